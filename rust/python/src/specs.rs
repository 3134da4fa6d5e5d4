//! `LayerSpec` and `GroupSpec`: what a block is, in bytes.

use looseleaf::{GroupKind, KvDtype};
use pyo3::prelude::*;

use crate::errors::invalid_config;

const DTYPES: [(&str, KvDtype); 4] = [
    ("float32", KvDtype::F32),
    ("float16", KvDtype::F16),
    ("bfloat16", KvDtype::Bf16),
    ("fp8_e4m3", KvDtype::Fp8E4m3),
];

/// The cached keys and values of one attention layer.
#[pyclass(frozen, eq, from_py_object, module = "looseleaf._core")]
#[derive(Clone, PartialEq)]
pub struct LayerSpec {
    inner: looseleaf::LayerSpec,
}

#[pymethods]
impl LayerSpec {
    #[new]
    #[pyo3(signature = (kv_heads, head_size_k, head_size_v = None, dtype = "bfloat16", scale_bytes = 0))]
    fn new(
        kv_heads: u32,
        head_size_k: u32,
        head_size_v: Option<u32>,
        dtype: &str,
        scale_bytes: u32,
    ) -> PyResult<Self> {
        let dtype = choice("dtype", dtype, &DTYPES)?;
        let head_size_v = head_size_v.unwrap_or(head_size_k);
        Ok(Self {
            inner: looseleaf::LayerSpec {
                kv_heads,
                head_size_k,
                head_size_v,
                dtype,
                scale_bytes,
            },
        })
    }

    #[getter]
    fn kv_heads(&self) -> u32 {
        self.inner.kv_heads
    }

    #[getter]
    fn head_size_k(&self) -> u32 {
        self.inner.head_size_k
    }

    #[getter]
    fn head_size_v(&self) -> u32 {
        self.inner.head_size_v
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        dtype_name(self.inner.dtype)
    }

    #[getter]
    fn scale_bytes(&self) -> u32 {
        self.inner.scale_bytes
    }

    /// Bytes one token takes in this layer.
    #[getter]
    fn bytes_per_token(&self) -> u64 {
        self.inner.bytes_per_token()
    }

    fn __repr__(&self) -> String {
        let looseleaf::LayerSpec {
            kv_heads,
            head_size_k,
            head_size_v,
            scale_bytes,
            dtype,
        } = self.inner;
        format!(
            "LayerSpec(kv_heads={kv_heads}, head_size_k={head_size_k}, head_size_v={head_size_v}, \
             dtype='{}', scale_bytes={scale_bytes})",
            dtype_name(dtype)
        )
    }
}

/// Layers that share one block table.
#[pyclass(frozen, eq, from_py_object, module = "looseleaf._core")]
#[derive(Clone, PartialEq)]
pub struct GroupSpec {
    pub inner: looseleaf::GroupSpec,
}

#[pymethods]
impl GroupSpec {
    #[new]
    #[pyo3(signature = (layers, block_size = 16, *, kind = "full", sliding_window = None))]
    fn new(
        layers: Vec<LayerSpec>,
        block_size: u32,
        kind: &str,
        sliding_window: Option<u32>,
    ) -> PyResult<Self> {
        let kind = choice("kind", kind, &[("full", GroupKind::Full)])?;
        let layers = layers.into_iter().map(|layer| layer.inner).collect();
        Ok(Self {
            inner: looseleaf::GroupSpec {
                kind,
                layers,
                block_size,
                sliding_window,
            },
        })
    }

    #[getter]
    fn layers(&self) -> Vec<LayerSpec> {
        self.inner
            .layers
            .iter()
            .map(|layer| LayerSpec { inner: *layer })
            .collect()
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.inner.block_size
    }

    #[getter]
    fn kind(&self) -> &'static str {
        match self.inner.kind {
            GroupKind::Full => "full",
        }
    }

    #[getter]
    fn sliding_window(&self) -> Option<u32> {
        self.inner.sliding_window
    }

    /// Bytes one token takes over all layers.
    #[getter]
    fn bytes_per_token(&self) -> u64 {
        self.inner.bytes_per_token()
    }

    /// Bytes one block takes over all layers.
    #[getter]
    fn bytes_per_block(&self) -> u64 {
        self.inner.bytes_per_block()
    }

    fn __repr__(&self) -> String {
        let window = self
            .inner
            .sliding_window
            .map_or("None".into(), |window| window.to_string());
        format!(
            "GroupSpec({} layers, block_size={}, kind='{}', sliding_window={window})",
            self.inner.layers.len(),
            self.inner.block_size,
            self.kind()
        )
    }
}

/// The value that a word stands for, or an error that lists the words.
pub fn choice<T: Copy>(field: &str, found: &str, allowed: &[(&str, T)]) -> PyResult<T> {
    allowed
        .iter()
        .find(|(name, _)| *name == found)
        .map(|(_, value)| *value)
        .ok_or_else(|| {
            let names: Vec<_> = allowed
                .iter()
                .map(|(name, _)| format!("'{name}'"))
                .collect();
            invalid_config(format!(
                "{field} must be one of {}, found '{found}'",
                names.join(", ")
            ))
        })
}

fn dtype_name(dtype: KvDtype) -> &'static str {
    DTYPES
        .iter()
        .find(|(_, value)| *value == dtype)
        .map_or("", |(name, _)| name)
}
