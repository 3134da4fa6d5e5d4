//! Python bindings: each file translates one class, and no file decides anything.

use pyo3::prelude::*;

mod attention;
mod block_list;
mod block_snapshot;
mod errors;
mod events;
mod extra_keys;
mod keys;
mod manager;
mod pool;
mod process;
mod specs;
mod step_buffers;
mod step_results;
mod tokens;

#[pymodule(gil_used = false)]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    process::check_interpreter(m.py())?;
    process::watch_forks(m)?;
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<attention::CpuAttention>()?;
    m.add_class::<block_list::BlockList>()?;
    m.add_class::<block_snapshot::BlockSnapshot>()?;
    m.add_class::<pool::BlockPool>()?;
    m.add_class::<events::BlockStored>()?;
    m.add_class::<events::BlockRemoved>()?;
    m.add_class::<events::AllBlocksCleared>()?;
    m.add_class::<keys::BlockHasher>()?;
    m.add_class::<keys::BlockKeys>()?;
    m.add_class::<extra_keys::ExtraKey>()?;
    m.add_class::<specs::LayerSpec>()?;
    m.add_class::<specs::GroupSpec>()?;
    m.add_class::<manager::KVCacheManager>()?;
    m.add_class::<step_results::StepInfo>()?;
    m.add_class::<step_results::FinishedRow>()?;
    m.add_class::<step_results::RunningOutcome>()?;
    m.add_class::<step_results::PrefixMatch>()
}
