//! `ExtraKey`: what else a block's keys and values depend on, and where.

use looseleaf::SpannedKey;
use pyo3::prelude::*;

use crate::errors::invalid_config;

/// Something beside the tokens that goes into block hashes: an adapter, a media item or embeddings.
#[pyclass(frozen, eq, from_py_object, module = "looseleaf._core")]
#[derive(Clone, PartialEq)]
pub struct ExtraKey {
    inner: SpannedKey,
}

#[pymethods]
impl ExtraKey {
    /// An adapter, for the whole sequence. Its name must tell two versions of it apart.
    #[staticmethod]
    fn lora(name: String, path: String) -> Self {
        let key = looseleaf::ExtraKey::Lora { name, path };
        Self {
            inner: SpannedKey::everywhere(key),
        }
    }

    /// A media item in the place of `length` tokens from position `start` on.
    #[staticmethod]
    fn media(identifier: String, start: u32, length: u32) -> PyResult<Self> {
        // The offset is worked out for each block.
        let key = looseleaf::ExtraKey::Media {
            identifier,
            offset: 0,
        };
        Self::spanning(key, start, length)
    }

    /// Embeddings in the place of some of `length` tokens from position `start` on. To distinguish what
    /// distinct blocks hold, give one key for each block.
    #[staticmethod]
    fn embeds(
        sha256: [u8; 32],
        dtype: String,
        shape: Vec<u64>,
        mask: Vec<u8>,
        start: u32,
        length: u32,
    ) -> PyResult<Self> {
        let key = looseleaf::ExtraKey::Embeds {
            sha256,
            dtype,
            shape,
            mask,
        };
        Self::spanning(key, start, length)
    }

    fn __repr__(&self) -> String {
        format!("ExtraKey({:?})", self.inner)
    }
}

impl ExtraKey {
    fn spanning(key: looseleaf::ExtraKey, start: u32, length: u32) -> PyResult<Self> {
        if length == 0 {
            return Err(invalid_config(
                "the length of an extra key must be at least 1 token, found 0".into(),
            ));
        }
        Ok(Self {
            inner: SpannedKey {
                key,
                start,
                len: length,
            },
        })
    }
}

/// The keys as the core takes them.
pub fn spanned(keys: Vec<ExtraKey>) -> Vec<SpannedKey> {
    keys.into_iter().map(|key| key.inner).collect()
}
