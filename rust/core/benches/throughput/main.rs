//! What do the pool's operations cost beside a list behind a lock, on one thread and on two?
//!
//! The answer is a concession. One uncontended compare-and-swap costs more than a list operation
//! whose lines are in the cache. A lock is taken once per call, the pool pays per block: a hit is one
//! swap to take the reference and one to give it back, where the list adds one to a plain integer.
//! So hits cost several times what they cost behind a spinlock. Calls for a single block lose too,
//! since what batches share (the reservation, the stack's head, the release) is paid for one block.
//!
//! What the pool buys with it is progress: a thread that loses its core, or is suspended in a
//! debugger or by the collector of a free-threaded Python, stops nobody else; see `longest_stall`.
//!
//! A sample is one fixed number of calls per thread, on threads that are pinned to cores of their
//! own, from the first thread's beginning to the last one's end. Samples are long enough, and the
//! figure to read is their median, because the best of short ones would be runs without contention.

#[path = "../pinned/mod.rs"]
mod pinned;
#[path = "../pools/mod.rs"]
mod pools;
#[path = "../scripts/mod.rs"]
mod scripts;
mod together;

use std::time::Duration;

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use looseleaf::BlockPool;

use pools::{MutexPool, Pool, SpinPool};
use scripts::{
    AllocateRelease, EvictPublishRelease, HitFree, HitHeld, NUM_BLOCKS, Script, ShareRelease,
};

fn compare<S: Script>(criterion: &mut Criterion, name: &str) {
    let mut group = criterion.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat);
    // Of each thread: with two threads twice as many are served in the time.
    group.throughput(Throughput::Elements(S::BLOCKS));
    for threads in 1..=pinned::cores().len().min(2) {
        let parameter = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
        let id = |pool: &str| criterion::BenchmarkId::new(pool, &parameter);
        group.bench_function(id("pool"), |b| measure::<BlockPool, S>(b, threads));
        group.bench_function(id("spinlock"), |b| measure::<SpinPool, S>(b, threads));
        group.bench_function(id("mutex"), |b| measure::<MutexPool, S>(b, threads));
    }
    group.finish();
}

fn measure<P: Pool, S: Script>(bencher: &mut criterion::Bencher<'_>, threads: usize) {
    let pool = P::with_blocks(NUM_BLOCKS);
    let mut scripts: Vec<S> = (0..threads)
        .map(|thread| S::prepare(&pool, thread))
        .collect();
    bencher.iter_custom(|calls| {
        together::time(&mut scripts, |script| {
            (0..calls).for_each(|_| script.run(&pool));
        })
    });
}

fn benches(criterion: &mut Criterion) {
    compare::<AllocateRelease<1>>(criterion, "allocate and release, batch 1");
    compare::<AllocateRelease<8>>(criterion, "allocate and release, batch 8");
    compare::<AllocateRelease<64>>(criterion, "allocate and release, batch 64");
    compare::<HitHeld>(criterion, "hit on held blocks and release, batch 64");
    compare::<HitFree>(criterion, "hit on free blocks and release, batch 64");
    compare::<ShareRelease>(criterion, "fork and release, batch 64");
    compare::<EvictPublishRelease>(criterion, "evict, publish and release, batch 64");
}

/// Samples of 0.3 s, so that few are shorter than 0.2 s even when the machine is uneven: a whole
/// short one could fall into one time slice.
fn long_samples() -> Criterion {
    Criterion::default()
        .sample_size(15)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(15 * 300))
}

criterion_group! {
    name = throughput;
    config = long_samples();
    targets = benches
}
criterion_main!(throughput);
