//! `CpuAttention`: paged attention over a cache that Python allocated.

mod arrays;

use std::num::NonZero;
use std::sync::{PoisonError, RwLock};
use std::thread::available_parallelism;

use looseleaf_attention::{
    AttentionError, Batch, Bf16, BlockTables, CacheShape, Element, GRAIN, Isa, MAX_HEAD_SIZE,
    PagedAttention, ScoreTerms,
};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

use crate::errors::{invalid_buffer, invalid_config};
use arrays::{Array, Number};

/// Paged attention on the CPU over one cache.
///
/// Every array is used in place and must not be changed by others during a call. Calls run detached from the
/// interpreter; from several threads, they may read at the same time but write one after the other.
#[pyclass(frozen, module = "looseleaf._core")]
pub struct CpuAttention {
    attention: PagedAttention,
    cache: Cache,
    /// Held to read or to write the cache, and only while detached from the interpreter.
    turn: RwLock<()>,
}

enum Cache {
    Float32(Array<f32>),
    Bfloat16(Array<Bf16>),
}

/// Evaluates `$body` with `$array` bound to the cache, whatever its dtype.
macro_rules! with_cache {
    ($cache:expr, |$array:ident| $body:expr) => {
        match $cache {
            Cache::Float32($array) => $body,
            Cache::Bfloat16($array) => $body,
        }
    };
}

#[pymethods]
impl CpuAttention {
    /// Head sizes and block sizes are multiples of this.
    #[classattr]
    const GRAIN: usize = GRAIN;

    /// The largest head size.
    #[classattr]
    const MAX_HEAD_SIZE: usize = MAX_HEAD_SIZE;

    #[new]
    #[pyo3(signature = (cache, *, block_size, num_kv_heads, head_size, num_threads=None, isa=None))]
    fn new(
        cache: &Bound<'_, PyAny>,
        block_size: usize,
        num_kv_heads: usize,
        head_size: usize,
        num_threads: Option<usize>,
        isa: Option<&str>,
    ) -> PyResult<Self> {
        let num_threads =
            num_threads.unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get));
        let isa = isa.map_or_else(|| Ok(Isa::detect()), find_isa)?;
        let start = |[num_blocks, num_layers, _]: [usize; 3]| {
            let shape = CacheShape {
                num_blocks,
                num_layers,
                block_size,
                num_kv_heads,
                head_size,
            };
            PagedAttention::new(shape, num_threads).map_err(attention_error)
        };
        let has_size = |size| PyUntypedBuffer::get(cache).is_ok_and(|b| b.item_size() == size);
        let (attention, cache) = if has_size(size_of::<Bf16>()) {
            let array = Array::<Bf16>::new("cache", cache)?;
            (start(array.axes()?)?, Cache::Bfloat16(array))
        } else {
            let array = Array::<f32>::new("cache", cache)?;
            (start(array.axes()?)?, Cache::Float32(array))
        };
        let CacheShape {
            num_blocks,
            num_layers,
            ..
        } = *attention.layout().shape();
        let per_layer = attention.layout().block_elements() / num_layers;
        with_cache!(&cache, |cache| {
            cache.check_shape(&[num_blocks, num_layers, per_layer])?;
            cache.check_writable()?;
        });
        Ok(Self {
            attention: attention.with_isa(isa),
            cache,
            turn: RwLock::new(()),
        })
    }

    /// The instructions in use: "avx512", "avx2" or "portable".
    #[getter]
    fn isa(&self) -> &'static str {
        self.attention.isa().name()
    }

    /// Threads that a call may use, the calling one included.
    #[getter]
    fn num_threads(&self) -> usize {
        self.attention.num_threads()
    }

    /// Stores keys and values, each [T, num_kv_heads, head_size], in the slots of a layer; slot −1 is ignored.
    fn write(
        &self,
        py: Python<'_>,
        layer: usize,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        slot_mapping: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let slots = Array::<i64>::new("slot_mapping", slot_mapping)?;
        with_cache!(&self.cache, |cache| self
            .write_to(py, cache, layer, k, v, &slots))
    }

    /// Attention of q, [T, num_heads, head_size], to a layer, into out, of the same shape.
    #[pyo3(signature = (layer, q, block_tables, seq_lens, cu_seqlens_q, out, *, scale, sliding_window=None,
                        softcap=None, sinks=None))]
    #[allow(clippy::too_many_arguments, reason = "the signature that Python sees")]
    fn attend(
        &self,
        py: Python<'_>,
        layer: usize,
        q: &Bound<'_, PyAny>,
        block_tables: &Bound<'_, PyAny>,
        seq_lens: &Bound<'_, PyAny>,
        cu_seqlens_q: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        scale: f32,
        sliding_window: Option<i64>,
        softcap: Option<f32>,
        sinks: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let rows = Rows {
            block_tables: Array::with_gaps("block_tables", block_tables)?,
            seq_lens: Array::new("seq_lens", seq_lens)?,
            cu_seqlens_q: Array::new("cu_seqlens_q", cu_seqlens_q)?,
        };
        let too_small = |window| {
            invalid_config(format!(
                "sliding_window: found {window}, required 1 or more"
            ))
        };
        let window =
            sliding_window.map(|window| usize::try_from(window).map_err(|_| too_small(window)));
        let terms = Terms {
            scale,
            sliding_window: window.transpose()?,
            softcap,
            sinks: sinks.map(|sinks| Array::new("sinks", sinks)).transpose()?,
        };
        with_cache!(&self.cache, |cache| self
            .attend_to(py, cache, layer, q, &rows, &terms, out))
    }

    /// Copies whole blocks, all layers; copies is int32 [n, 2], each row a source and a destination.
    fn copy_blocks(&self, py: Python<'_>, copies: &Bound<'_, PyAny>) -> PyResult<()> {
        let copies = Array::<i32>::new("copies", copies)?;
        let [num_copies, _] = copies.axes()?;
        copies.check_shape(&[num_copies, 2])?;
        with_cache!(&self.cache, |cache| self.copy_within(py, cache, &copies))
    }
}

/// The arrays that say where each row's tokens and keys are.
struct Rows {
    block_tables: Array<i32>,
    seq_lens: Array<i32>,
    cu_seqlens_q: Array<i32>,
}

/// How scores are formed.
struct Terms {
    scale: f32,
    sliding_window: Option<usize>,
    softcap: Option<f32>,
    sinks: Option<Array<f32>>,
}

// SAFETY, of the references made below: an `Array` keeps its memory valid. The lock keeps the other calls away from
// the cache; what is written has been found to lie apart from the rest; and that nobody else changes an argument during
// a call is a rule of the class, as it is of NumPy's own functions.
impl CpuAttention {
    fn write_to<E: Element + Number>(
        &self,
        py: Python<'_>,
        cache: &Array<E>,
        layer: usize,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        slots: &Array<i64>,
    ) -> PyResult<()> {
        let [num_tokens] = slots.axes()?;
        let CacheShape {
            num_kv_heads,
            head_size,
            ..
        } = *self.attention.layout().shape();
        let (k, v) = (Array::<E>::new("k", k)?, Array::<E>::new("v", v)?);
        for array in [&k, &v] {
            array.check_shape(&[num_tokens, num_kv_heads, head_size])?;
            array.check_apart(cache)?;
        }
        slots.check_apart(cache)?;
        let result = py.detach(|| {
            let _turn = self.turn.write().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: see above.
            let (cache, k, v, slots) = unsafe {
                (
                    &mut *cache.as_ptr(),
                    &*k.as_ptr(),
                    &*v.as_ptr(),
                    &*slots.as_ptr(),
                )
            };
            self.attention.write(cache, layer, k, v, slots)
        });
        result.map_err(attention_error)
    }

    #[allow(clippy::too_many_arguments, reason = "one more than its caller")]
    fn attend_to<E: Element + Number>(
        &self,
        py: Python<'_>,
        cache: &Array<E>,
        layer: usize,
        q: &Bound<'_, PyAny>,
        rows: &Rows,
        terms: &Terms,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let q = Array::<E>::new("q", q)?;
        let [num_tokens, num_heads, head_size] = q.axes()?;
        q.check_shape(&[
            num_tokens,
            num_heads,
            self.attention.layout().shape().head_size,
        ])?;
        let out = Array::<E>::new("out", out)?;
        out.check_shape(&[num_tokens, num_heads, head_size])?;
        out.check_writable()?;
        for array in [cache, &q] {
            out.check_apart(array)?;
        }
        for array in [&rows.block_tables, &rows.seq_lens, &rows.cu_seqlens_q] {
            out.check_apart(array)?;
        }
        if let Some(sinks) = &terms.sinks {
            sinks.check_shape(&[num_heads])?;
            out.check_apart(sinks)?;
        }
        let [num_rows, width] = rows.block_tables.axes()?;
        rows.seq_lens.check_shape(&[num_rows])?;
        rows.cu_seqlens_q.check_shape(&[num_rows + 1])?;
        let result = py.detach(|| {
            let _turn = self.turn.read().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: see above.
            let (cache, q, out) = unsafe { (&*cache.as_ptr(), &*q.as_ptr(), &mut *out.as_ptr()) };
            // SAFETY: see above.
            let batch = unsafe {
                Batch {
                    num_tokens,
                    num_heads,
                    block_tables: BlockTables::new(
                        &*rows.block_tables.as_ptr(),
                        num_rows,
                        width,
                        rows.block_tables.stride(),
                    )?,
                    seq_lens: &*rows.seq_lens.as_ptr(),
                    cu_seqlens_q: &*rows.cu_seqlens_q.as_ptr(),
                }
            };
            let terms = ScoreTerms {
                scale: terms.scale,
                sliding_window: terms.sliding_window,
                softcap: terms.softcap,
                // SAFETY: see above.
                sinks: terms
                    .sinks
                    .as_ref()
                    .map(|sinks| unsafe { &*sinks.as_ptr() }),
            };
            self.attention.attend(cache, layer, q, &batch, &terms, out)
        });
        result.map_err(attention_error)
    }

    fn copy_within<E: Element + Number>(
        &self,
        py: Python<'_>,
        cache: &Array<E>,
        copies: &Array<i32>,
    ) -> PyResult<()> {
        copies.check_apart(cache)?;
        let result = py.detach(|| {
            let _turn = self.turn.write().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: see above.
            let (cache, copies) = unsafe { (&mut *cache.as_ptr(), &*copies.as_ptr()) };
            self.attention.copy_blocks(cache, copies.as_chunks().0)
        });
        result.map_err(attention_error)
    }
}

fn find_isa(name: &str) -> PyResult<Isa> {
    let available = Isa::available();
    available
        .iter()
        .copied()
        .find(|isa| isa.name() == name)
        .ok_or_else(|| {
            let names: Vec<_> = available.into_iter().map(Isa::name).collect();
            invalid_config(format!(
                "isa: found {name:?}, required one of {names:?}, what this processor has"
            ))
        })
}

fn attention_error(error: AttentionError) -> PyErr {
    match error {
        AttentionError::Setting(mismatch) => invalid_config(mismatch.to_string()),
        AttentionError::Array(mismatch) => invalid_buffer(mismatch.to_string()),
    }
}
