//! Threads on cores of their own.

use std::sync::OnceLock;

use core_affinity::CoreId;

/// The cores that the process may use, as they were before any thread was pinned.
pub fn cores() -> &'static [CoreId] {
    static CORES: OnceLock<Vec<CoreId>> = OnceLock::new();
    CORES.get_or_init(|| core_affinity::get_core_ids().unwrap_or_default())
}

/// Keeps the calling thread on the `n`-th core.
pub fn pin(n: usize) {
    assert!(
        core_affinity::set_for_current(cores()[n]),
        "core {n} can be had"
    );
}
