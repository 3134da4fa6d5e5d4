//! Python bindings: each file translates one class, and no file decides anything.

use pyo3::prelude::*;

mod attention;
mod block_list;
mod errors;
mod events;
mod keys;
mod manager;
mod pool;
mod specs;
mod step_buffers;
mod step_results;
mod tokens;

#[pymodule(gil_used = false)]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<attention::CpuAttention>()?;
    m.add_class::<block_list::BlockList>()?;
    m.add_class::<pool::BlockPool>()?;
    m.add_class::<events::BlockStored>()?;
    m.add_class::<events::BlockRemoved>()?;
    m.add_class::<events::AllBlocksCleared>()?;
    m.add_class::<keys::BlockHasher>()?;
    m.add_class::<keys::BlockKeys>()?;
    m.add_class::<specs::LayerSpec>()?;
    m.add_class::<specs::GroupSpec>()?;
    m.add_class::<manager::KVCacheManager>()?;
    m.add_class::<step_results::StepInfo>()?;
    m.add_class::<step_results::FinishedRow>()?;
    m.add_class::<step_results::RunningOutcome>()?;
    m.add_class::<step_results::PrefixMatch>()
}
