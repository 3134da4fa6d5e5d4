//! How long does one operation take while another thread is asleep?
//!
//! This is what lock-freedom buys, and where the lists lose by as much as one likes: by however
//! long the holder of the lock sleeps.

mod nap;
#[path = "../pinned/mod.rs"]
mod pinned;
#[path = "../pools/mod.rs"]
mod pools;
#[path = "../scripts/mod.rs"]
#[allow(
    dead_code,
    reason = "what the threads do to each other's free blocks rules some out"
)]
mod scripts;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use looseleaf::BlockPool;

use nap::NAP;
use pools::{MutexPool, Pool, SpinPool};
use scripts::{AllocateRelease, EvictPublishRelease, HitHeld, NUM_BLOCKS, Script, ShareRelease};

const HEADER: &str = "\
One thread works without a pause and is put to sleep for 50 ms again and again, by a signal, at
whatever instruction it happens to be. Another thread on another core times each of its own calls.

The lists: if the sleeper has the lock, the other thread waits for it, asleep or not. The count says
how many of the naps held up a call for more than half of their length.
The pool: there is no lock to sleep with. The sleeper may be in the middle of a call, with a block
reserved or a ticket half written, and the others go on. What is left in its column is the timing
thread's own preemption, which is why a loaded machine shows milliseconds there. That no instruction
is an exception cannot be shown by sampling: the crash-stop tests stop a thread at each of them.
";

fn main() {
    // `cargo test --benches` calls it too, and there is nothing to test.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    if pinned::cores().len() < 2 {
        println!("longest stall: needs two cores, one for the sleeper and one for the other");
        return;
    }
    let naps = 40;
    println!("{HEADER}");
    println!(
        "{:<16} {:>16} {:>20}",
        "", "longest call", "naps that held up"
    );
    row("pool", naps, stalls::<BlockPool>(naps));
    row("spinlock list", naps, stalls::<SpinPool>(naps));
    row("mutex list", naps, stalls::<MutexPool>(naps));
}

fn row(pool: &str, naps: u32, stalls: Stalls) {
    let Stalls { longest, held_up } = stalls;
    let milliseconds = longest.as_secs_f64() * 1e3;
    println!("{pool:<16} {milliseconds:>13.3} ms {held_up:>13} of {naps:>3}");
}

/// What one thread saw of the other's naps.
#[derive(Clone, Copy, Default, Debug)]
struct Stalls {
    longest: Duration,
    held_up: u32,
}

impl Stalls {
    fn time(&mut self, call: impl FnOnce()) {
        let start = Instant::now();
        call();
        let took = start.elapsed();
        self.longest = self.longest.max(took);
        self.held_up += u32::from(took > NAP / 2);
    }
}

fn stalls<P: Pool>(naps: u32) -> Stalls {
    let pool = P::with_blocks(NUM_BLOCKS);
    let (mut sleeper, mut other) = (Work::prepare(&pool, 0), Work::prepare(&pool, 1));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sleeper = nap::spawn(scope, || {
            pinned::pin(0);
            while !stop.load(Ordering::Relaxed) {
                sleeper.run(&pool, |call| call());
            }
        });
        let stalls = scope.spawn(|| {
            pinned::pin(1);
            let mut stalls = Stalls::default();
            while !stop.load(Ordering::Relaxed) {
                other.run(&pool, |call| stalls.time(call));
            }
            stalls
        });
        for _ in 0..naps {
            // Awake for some time that is not a multiple of anything, then a whole nap.
            thread::sleep(Duration::from_micros(7_919));
            sleeper.nap();
            thread::sleep(NAP + Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        stalls.join().expect("no call panics")
    })
}

/// What the other benchmark measures, in turns. Without hits on free blocks: while one thread sleeps
/// the other evicts them.
struct Work {
    allocate: AllocateRelease<64>,
    hit_held: HitHeld,
    share: ShareRelease,
    evict: EvictPublishRelease,
}

impl Work {
    fn prepare<P: Pool>(pool: &P, thread: usize) -> Self {
        Self {
            allocate: Script::prepare(pool, thread),
            hit_held: Script::prepare(pool, thread),
            share: Script::prepare(pool, thread),
            evict: Script::prepare(pool, thread),
        }
    }

    fn run<P: Pool>(&mut self, pool: &P, mut each: impl FnMut(&mut dyn FnMut())) {
        each(&mut || self.allocate.run(pool));
        each(&mut || self.hit_held.run(pool));
        each(&mut || self.share.run(pool));
        each(&mut || self.evict.run(pool));
    }
}
