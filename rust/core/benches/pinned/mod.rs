//! Threads on cores of their own.

use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;

/// The cores that the process may use, as they were before any thread was pinned.
pub fn cores() -> &'static [CoreId] {
    static CORES: OnceLock<Vec<CoreId>> = OnceLock::new();
    CORES.get_or_init(|| core_affinity::get_core_ids().unwrap_or_default())
}

/// Calls `run` with each of `states` at one time, each on a core of its own. Returns the time from
/// the first beginning to the last end.
pub fn time<S: Send>(states: &mut [S], run: impl Fn(&mut S) + Sync) -> Duration {
    let (together, run) = (Barrier::new(states.len()), &run);
    let spans: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let threads: Vec<_> = states
            .iter_mut()
            .zip(cores())
            .map(|(state, core)| {
                let together = &together;
                scope.spawn(move || {
                    assert!(core_affinity::set_for_current(*core), "cannot be pinned");
                    together.wait();
                    let start = Instant::now();
                    run(state);
                    (start, Instant::now())
                })
            })
            .collect();
        let spans = threads.into_iter().map(|thread| thread.join());
        spans.map(|span| span.expect("no call panics")).collect()
    });
    let start = spans.iter().map(|span| span.0).min();
    let end = spans.iter().map(|span| span.1).max();
    end.zip(start)
        .map_or(Duration::ZERO, |(end, start)| end - start)
}
