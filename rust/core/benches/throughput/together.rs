//! Work that several threads begin at one time.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::pinned::pin;

/// Calls `run` with each of `states` at one time, each on a core of its own. Returns the time from
/// the first beginning to the last end.
pub fn time<S: Send>(states: &mut [S], run: impl Fn(&mut S) + Sync) -> Duration {
    let (together, run) = (Barrier::new(states.len()), &run);
    let spans: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let threads: Vec<_> = states
            .iter_mut()
            .enumerate()
            .map(|(n, state)| {
                let together = &together;
                scope.spawn(move || {
                    pin(n);
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
