//! `BlockList`: references to blocks, owned by one Python object.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use looseleaf::{BlockId, BlockPool};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyTuple};

use crate::errors::pool_error;
use crate::process::{Home, not_copyable};

/// References to blocks that are given back exactly once.
///
/// The list releases its blocks tail first, so that the leaves of a prefix are evicted before its root: on
/// `release()`, when a `with` block ends, or when the last Python reference goes away, on whichever thread.
/// The mutex orders the calls of Python threads on one list; it is never held across a call into Python.
#[pyclass(frozen, module = "looseleaf._core")]
pub struct BlockList {
    pool: Arc<BlockPool>,
    ids: Mutex<Vec<BlockId>>,
    home: Home,
}

impl BlockList {
    pub fn new(pool: Arc<BlockPool>, ids: Vec<BlockId>) -> Self {
        Self {
            pool,
            ids: Mutex::new(ids),
            home: Home::here(),
        }
    }

    pub fn pool(&self) -> &Arc<BlockPool> {
        &self.pool
    }

    fn lock(&self) -> MutexGuard<'_, Vec<BlockId>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_tail_first(&self) -> Vec<BlockId> {
        let mut ids = std::mem::take(&mut *self.lock());
        ids.reverse();
        ids
    }
}

impl Drop for BlockList {
    fn drop(&mut self) {
        let ids = self.take_tail_first();
        if self.pool.release_distinct(&ids).is_err() {
            // Somebody released some of our references as raw ids. A destructor has nobody to tell, but it
            // must not leak the others.
            for id in ids {
                let _ = self.pool.release(&[id]);
            }
        }
    }
}

#[pymethods]
impl BlockList {
    /// The block ids, in order.
    #[getter]
    pub fn ids(&self) -> Vec<BlockId> {
        self.lock().clone()
    }

    /// Releases every block, tail first. Calling it again does nothing.
    fn release(&self) -> PyResult<()> {
        self.home.check("BlockList")?;
        self.pool
            .release_distinct(&self.take_tail_first())
            .map_err(pool_error)
    }

    /// Hands the ids and the duty to release them to the caller; the list is empty afterwards.
    #[pyo3(name = "into_ids")]
    fn hand_over(&self) -> PyResult<Vec<BlockId>> {
        self.home.check("BlockList")?;
        Ok(std::mem::take(&mut *self.lock()))
    }

    /// A second list over the same blocks, each with one more reference.
    fn share(&self) -> PyResult<Self> {
        self.home.check("BlockList")?;
        let ids = self.lock().clone();
        self.pool.share(&ids).map_err(pool_error)?;
        Ok(Self::new(self.pool.clone(), ids))
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<BlockId> {
        let ids = self.lock();
        let position = if index < 0 {
            index + ids.len() as isize
        } else {
            index
        };
        usize::try_from(position)
            .ok()
            .and_then(|at| ids.get(at).copied())
            .ok_or_else(|| {
                PyIndexError::new_err(format!(
                    "index {index} is outside a BlockList of {}",
                    ids.len()
                ))
            })
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.ids().into_pyobject(py)?.try_iter()
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copyable("BlockList"))
    }

    fn __repr__(&self) -> String {
        format!("BlockList({:?})", *self.lock())
    }
}
