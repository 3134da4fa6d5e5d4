//! Objects that stand for memory of one process, and what they refuse.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::use_after_fork;

/// Address of the `sys` module of the interpreter that imported this module first; 0 before.
static INTERPRETER: AtomicUsize = AtomicUsize::new(0);

/// Refuses a second interpreter in one process: PyO3 keeps types and exceptions for one.
pub fn check_interpreter(py: Python<'_>) -> PyResult<()> {
    let here = py.import("sys")?.as_ptr() as usize;
    match INTERPRETER.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != here => Err(PyImportError::new_err(
            "looseleaf cannot be imported in a subinterpreter: another interpreter of this process has imported it; \
             use threads or processes",
        )),
        _ => Ok(()),
    }
}

/// How often this process was forked from one in which the module was loaded already. Relaxed: changed only
/// in a child that has one thread yet.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process an object was made in.
#[derive(Clone, Copy)]
pub struct Home(u32);

impl Home {
    pub fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Refuses use in a child of that process.
    pub fn check(self, class: &str) -> PyResult<()> {
        if self.0 == FORKS.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err(use_after_fork(class))
        }
    }
}

/// The refusal to pickle or copy an object of this class.
pub fn not_copyable(class: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "a {class} cannot be pickled or copied: it stands for blocks of memory in this process; share the object \
         itself between threads, and make another one in another process"
    ))
}

#[pyfunction]
fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Has forks noted.
pub fn watch_forks(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let os = module.py().import("os")?;
    // Absent where processes cannot fork.
    if let Ok(register) = os.getattr("register_at_fork") {
        let arguments = PyDict::new(module.py());
        arguments.set_item("after_in_child", wrap_pyfunction!(note_fork, module)?)?;
        register.call((), Some(&arguments))?;
    }
    Ok(())
}
