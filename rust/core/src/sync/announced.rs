//! What makes loom explore every schedule.
//!
//! loom reduces the schedules to explore to those that differ in the order of dependent accesses,
//! but remembers one last access per word only: once a thread has loaded a word, its later write no
//! longer counts as racing with another thread's earlier load (tokio-rs/loom issues 166 and 392).
//! Load-then-swap loops, of which this crate is made, are just that pattern. So each access is
//! announced by an addition to a companion word. Additions all depend on each other, hence loom
//! tries them, and the accesses behind them, in every order; being relaxed, and on a word that
//! nobody reads, they order nothing themselves.

use loom::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
pub(super) struct Gate {
    announcements: AtomicU32,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            announcements: AtomicU32::new(0),
        }
    }

    pub(super) fn pass(&self) {
        self.announcements.fetch_add(1, Ordering::Relaxed);
    }

    /// To loom, a weak swap is a strong one.
    pub(super) fn fails_spuriously(&self) -> bool {
        false
    }
}
