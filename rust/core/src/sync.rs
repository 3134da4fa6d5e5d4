//! The one place that decides whose atomics the pool runs on: the standard library's, loom's
//! (every legal memory order, `--cfg loom`), shuttle's (random schedules, `--cfg shuttle`), or ours
//! that take turns and can stop a thread for good (`--cfg crash_stop`).
//! No other file names an atomics module; a test in `tests/source_rules.rs` holds us to it.

#[cfg(loom)]
mod announced;
#[cfg(all(crash_stop, not(any(loom, shuttle))))]
pub mod crash_stop;
#[cfg(any(loom, all(crash_stop, not(shuttle))))]
mod gated;

use std::ops::Deref;

#[cfg(loom)]
pub(crate) use {
    gated::{AtomicU32, AtomicU64},
    loom::{hint::spin_loop, sync::atomic::Ordering},
};

#[cfg(all(shuttle, not(loom)))]
pub(crate) use shuttle::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

#[cfg(all(crash_stop, not(any(loom, shuttle))))]
pub(crate) use {
    crash_stop::spin_loop,
    gated::{AtomicU32, AtomicU64},
    std::sync::atomic::Ordering,
};

#[cfg(not(any(loom, shuttle, crash_stop)))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

/// A statistic: how often something happened.
///
/// Always the standard library's atomic, also under a model checker, because no decision of the
/// pool reads it: modelling it would multiply the schedules to explore without adding a behaviour.
/// Relaxed throughout for the same reason.
#[derive(Debug, Default)]
pub(crate) struct Counter(std::sync::atomic::AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        if n != 0 {
            self.0.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Gives each caller in the process a number of its own. Always the standard library's atomic, and
/// Relaxed, for the reasons of [`Counter`].
#[derive(Debug)]
pub(crate) struct Serial(std::sync::atomic::AtomicU64);

impl Serial {
    pub(crate) const fn new() -> Self {
        Self(std::sync::atomic::AtomicU64::new(0))
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

/// Keeps a word that many threads write on a cache line of its own; 128 bytes because x86-64
/// fetches lines in pairs and aarch64 servers have lines that long.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
