//! The caller's arrays, bound once and filled at every step.

use std::ptr::NonNull;

use looseleaf::{BufferMarks, PageList, StepBuffers};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;

use crate::errors::invalid_buffer;

/// One writable, C-contiguous array that stays where it is as long as this value lives.
struct Array<T: Element> {
    buffer: PyBuffer<T>,
    data: NonNull<[T]>,
}

// SAFETY: `data` points into `buffer`, which keeps the exporter from moving or freeing its memory; both are only
// used through `BoundBuffers`, whose owner admits one thread at a time.
unsafe impl<T: Element> Send for Array<T> {}

impl<T: Element> Array<T> {
    fn new(name: &str, wanted: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<T>::get(object).map_err(|error| {
            invalid_buffer(format!("{name} must be a writable {wanted} array: {error}"))
        })?;
        if buffer.readonly() {
            return Err(invalid_buffer(format!(
                "{name} is read-only; the manager must be able to write to it"
            )));
        }
        let Some(data) = buffer.as_slice_ptr() else {
            return Err(invalid_buffer(format!(
                "{name} is not C-contiguous; pass a contiguous {wanted} array"
            )));
        };
        Ok(Self { buffer, data })
    }

    fn address_range(&self) -> (usize, usize) {
        let start = self.buffer.buf_ptr() as usize;
        (start, start + self.buffer.len_bytes())
    }

    /// # Safety
    /// No other slice over the same memory may live while this one does.
    unsafe fn as_mut(&mut self) -> &mut [T] {
        // SAFETY: the buffer is held, so the memory is valid; exclusiveness is the caller's promise.
        unsafe { self.data.as_mut() }
    }
}

/// All arrays of a step.
pub struct BoundBuffers {
    token_ids: Array<i64>,
    positions: Array<i64>,
    slot_mapping: Vec<Array<i64>>,
    block_tables: Vec<Array<i32>>,
    seq_lens: Array<i32>,
    cu_seqlens_q: Array<i32>,
    logits_indices: Array<i64>,
    sample_rows: Array<i32>,
    copies: Array<i32>,
    pages: Option<PageArrays>,
    marks: BufferMarks,
}

/// The arrays of a page list.
struct PageArrays {
    indptr: Array<i32>,
    indices: Vec<Array<i32>>,
    last_page_len: Array<i32>,
}

/// The arrays as Python passes them.
pub struct Arrays<'py> {
    pub token_ids: Bound<'py, PyAny>,
    pub positions: Bound<'py, PyAny>,
    pub slot_mapping: Vec<Bound<'py, PyAny>>,
    pub block_tables: Vec<Bound<'py, PyAny>>,
    pub seq_lens: Bound<'py, PyAny>,
    pub cu_seqlens_q: Bound<'py, PyAny>,
    pub logits_indices: Bound<'py, PyAny>,
    pub sample_rows: Bound<'py, PyAny>,
    pub copies: Bound<'py, PyAny>,
    pub pages: Option<Pages<'py>>,
}

/// The arrays of a page list as Python passes them.
pub struct Pages<'py> {
    pub indptr: Bound<'py, PyAny>,
    pub indices: Vec<Bound<'py, PyAny>>,
    pub last_page_len: Bound<'py, PyAny>,
}

impl BoundBuffers {
    pub fn new(arrays: &Arrays<'_>) -> PyResult<Self> {
        let int64 = |name, object: &Bound<'_, PyAny>| Array::new(name, "int64", object);
        let int32 = |name, object: &Bound<'_, PyAny>| Array::new(name, "int32", object);
        let pages = |pages: &Pages<'_>| {
            Ok::<_, PyErr>(PageArrays {
                indptr: int32("indptr", &pages.indptr)?,
                indices: pages
                    .indices
                    .iter()
                    .map(|a| int32("indices", a))
                    .collect::<PyResult<_>>()?,
                last_page_len: int32("last_page_len", &pages.last_page_len)?,
            })
        };
        let bound = Self {
            token_ids: int64("token_ids", &arrays.token_ids)?,
            positions: int64("positions", &arrays.positions)?,
            slot_mapping: arrays
                .slot_mapping
                .iter()
                .map(|a| int64("slot_mapping", a))
                .collect::<PyResult<_>>()?,
            block_tables: arrays
                .block_tables
                .iter()
                .map(|a| int32("block_tables", a))
                .collect::<PyResult<_>>()?,
            seq_lens: int32("seq_lens", &arrays.seq_lens)?,
            cu_seqlens_q: int32("cu_seqlens_q", &arrays.cu_seqlens_q)?,
            logits_indices: int64("logits_indices", &arrays.logits_indices)?,
            sample_rows: int32("sample_rows", &arrays.sample_rows)?,
            copies: int32("copies", &arrays.copies)?,
            pages: arrays.pages.as_ref().map(pages).transpose()?,
            marks: BufferMarks::default(),
        };
        bound.check_disjoint()?;
        Ok(bound)
    }

    fn check_disjoint(&self) -> PyResult<()> {
        let mut ranges = vec![
            ("token_ids", self.token_ids.address_range()),
            ("positions", self.positions.address_range()),
            ("seq_lens", self.seq_lens.address_range()),
            ("cu_seqlens_q", self.cu_seqlens_q.address_range()),
            ("logits_indices", self.logits_indices.address_range()),
            ("sample_rows", self.sample_rows.address_range()),
            ("copies", self.copies.address_range()),
        ];
        ranges.extend(
            self.slot_mapping
                .iter()
                .map(|a| ("slot_mapping", a.address_range())),
        );
        ranges.extend(
            self.block_tables
                .iter()
                .map(|a| ("block_tables", a.address_range())),
        );
        if let Some(pages) = &self.pages {
            ranges.push(("indptr", pages.indptr.address_range()));
            ranges.push(("last_page_len", pages.last_page_len.address_range()));
            let indices = pages.indices.iter();
            ranges.extend(indices.map(|a| ("indices", a.address_range())));
        }
        ranges.sort_by_key(|(_, range)| *range);
        for ((first, (_, end)), (second, (start, _))) in ranges.iter().zip(ranges.iter().skip(1)) {
            if start < end {
                return Err(invalid_buffer(format!(
                    "{first} and {second} share memory; each needs an array of its own"
                )));
            }
        }
        Ok(())
    }

    /// Lends the arrays to `fill`.
    pub fn with<R>(&mut self, fill: impl FnOnce(StepBuffers<'_>) -> R) -> R {
        // SAFETY: the arrays were found disjoint when they were bound, `&mut self` makes this the only loan,
        // and Python code that reads or writes them meanwhile would have to run on another thread, which the
        // documentation of `bind` forbids.
        unsafe {
            let mut slots: Vec<&mut [i64]> =
                self.slot_mapping.iter_mut().map(|a| a.as_mut()).collect();
            let mut tables: Vec<&mut [i32]> =
                self.block_tables.iter_mut().map(|a| a.as_mut()).collect();
            let (mut indices, mut others) = (vec![], None);
            if let Some(pages) = &mut self.pages {
                indices.extend(pages.indices.iter_mut().map(|a| a.as_mut()));
                others = Some((pages.indptr.as_mut(), pages.last_page_len.as_mut()));
            }
            let page_list = others.map(|(indptr, last_page_len)| PageList {
                indptr,
                indices: &mut indices,
                last_page_len,
            });
            fill(StepBuffers {
                token_ids: self.token_ids.as_mut(),
                positions: self.positions.as_mut(),
                slot_mapping: &mut slots,
                block_tables: &mut tables,
                seq_lens: self.seq_lens.as_mut(),
                cu_seqlens_q: self.cu_seqlens_q.as_mut(),
                logits_indices: self.logits_indices.as_mut(),
                sample_rows: self.sample_rows.as_mut(),
                copies: self.copies.as_mut(),
                page_list,
                marks: &mut self.marks,
            })
        }
    }
}
