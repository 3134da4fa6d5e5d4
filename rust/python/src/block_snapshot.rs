//! `BlockSnapshot`: the state of every block, as arrays.

use looseleaf::{BlockUse, BlockView};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

/// What every block of a pool is used for, in order of id.
#[pyclass(frozen, get_all, module = "looseleaf._core")]
pub struct BlockSnapshot {
    /// int32: references.
    ref_cnt: Py<PyAny>,
    /// uint8: index into `USES`.
    uses: Py<PyAny>,
}

#[pymethods]
impl BlockSnapshot {
    #[classattr]
    const USES: (&str, &str, &str, &str, &str) = ("null", "free", "cached", "in_use", "published");

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.uses.bind(py).len()
    }
}

impl BlockSnapshot {
    pub fn new(py: Python<'_>, views: &[BlockView]) -> PyResult<Self> {
        let ref_cnt: Vec<u8> = views
            .iter()
            .flat_map(|view| view.ref_cnt.cast_signed().to_ne_bytes())
            .collect();
        let uses: Vec<u8> = views.iter().map(|view| index_of(view.state)).collect();
        Ok(Self {
            ref_cnt: array(py, &ref_cnt, "i")?,
            uses: array(py, &uses, "B")?,
        })
    }
}

/// A read-only array of the standard library's, which NumPy and torch read in place.
fn array(py: Python<'_>, bytes: &[u8], format: &str) -> PyResult<Py<PyAny>> {
    let view = PyMemoryView::from(&PyBytes::new(py, bytes))?;
    Ok(view.call_method1("cast", (format,))?.unbind())
}

fn index_of(state: BlockUse) -> u8 {
    match state {
        BlockUse::Null => 0,
        BlockUse::Free => 1,
        BlockUse::Cached => 2,
        BlockUse::InUse => 3,
        BlockUse::Published => 4,
    }
}
