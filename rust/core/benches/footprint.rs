//! What does a pool cost before it does anything: memory per block, and the time to build it?
//!
//! The memory is a promise, which a test keeps (`hot_paths`); the time has a goal.

use std::time::{Duration, Instant};

use looseleaf::{BlockPool, DuplicatePolicy, KeyWidth, PoolConfig};

const NUM_BLOCKS: u32 = 1 << 20;
const BUILDS: usize = 9;
const GOAL: Duration = Duration::from_millis(300);

fn main() {
    // `cargo test --benches` calls it too, and there is nothing to test.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("A pool of 2^20 blocks; median of {BUILDS} builds, goal below {GOAL:?}\n");
    println!("{:<26} {:>12} {:>12}", "", "bytes/block", "build");
    for (name, policy) in [
        ("FirstWins", DuplicatePolicy::FirstWins),
        ("KeepAll", DuplicatePolicy::KeepAll),
    ] {
        for key_width in [KeyWidth::Bits128, KeyWidth::Bits256] {
            let config = PoolConfig {
                key_width,
                duplicate_policy: policy,
                ..PoolConfig::new(NUM_BLOCKS)
            };
            let row = format!("{}-bit keys, {name}", key_width.bits());
            let (bytes, time) = build(config);
            let verdict = if time < GOAL { "" } else { " not met" };
            println!(
                "{row:<26} {:>12.2} {:>9.1} ms{verdict}",
                bytes as f64 / f64::from(NUM_BLOCKS),
                time.as_secs_f64() * 1e3
            );
        }
    }
}

/// Bytes of metadata, and the median time.
fn build(config: PoolConfig) -> (usize, Duration) {
    let mut bytes = 0;
    let mut times: Vec<Duration> = (0..BUILDS)
        .map(|_| {
            let start = Instant::now();
            let pool = BlockPool::new(config).expect("the size is valid");
            let time = start.elapsed();
            bytes = pool.metadata_bytes();
            time
        })
        .collect();
    times.sort_unstable();
    (bytes, times[BUILDS / 2])
}
