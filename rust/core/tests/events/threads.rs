//! Threads at work, and one that drains all the time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use looseleaf::{BlockId, BlockPool, DuplicatePolicy, EventReader, PoolConfig};

use crate::consumer::{Consumer, resident_in};
use crate::{
    NUM_GROUPS, NUM_KEYS, OVERFLOWING, check_content, hashes, key, pool_with_events, publish,
};

/// A small multiplicative generator; the test needs variety, not quality.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % bound
    }
}

/// Works until the reader has drained often enough for the two to have met.
fn work(pool: &BlockPool, seed: u64, drains: &AtomicU64) {
    let mut rng = Rng(seed);
    let mut held = vec![];
    for round in 0..2_000_000_u64 {
        if round.is_multiple_of(64) {
            std::thread::yield_now();
            if round > 20_000 && drains.load(Ordering::Relaxed) > 200 {
                break;
            }
        }
        let (i, group) = (rng.below(NUM_KEYS), rng.below(NUM_GROUPS.into()) as u32);
        match rng.below(200) {
            0..60 => {
                let mut ids = [0];
                if pool.allocate(&mut ids).is_ok() {
                    held.push(ids[0]);
                }
            }
            60..100 if !held.is_empty() => {
                let id = held[rng.below(held.len() as u64) as usize];
                // It may be published already, by another thread that holds it too.
                let _ = publish(pool, id, i, group);
            }
            100..120 => {
                let mut ids = [0];
                if pool.match_prefix(&[key(i).with_group(group)], &mut ids) == 1 {
                    held.push(ids[0]);
                }
            }
            120..140 => {
                let id = 1 + rng.below(pool.num_blocks() as u64 - 1) as BlockId;
                pool.retract(id).unwrap();
            }
            140 => {
                let leave = |id| pool.release(&[id]).unwrap();
                held.drain(..).for_each(leave);
                // Refused unless the other threads hold nothing either.
                let _ = pool.reset_prefix_cache();
            }
            _ if !held.is_empty() => {
                let at = rng.below(held.len() as u64) as usize;
                pool.release(&[held.swap_remove(at)]).unwrap();
            }
            _ => {}
        }
    }
    for id in held {
        pool.release(&[id]).unwrap();
    }
}

/// Four threads at work and one that drains; returns what it was told and what found no room.
fn stress(event_capacity: u32, duplicate_policy: DuplicatePolicy) -> (Consumer, u64) {
    let pool = pool_with_events(PoolConfig {
        duplicate_policy,
        event_capacity,
        tuning: OVERFLOWING,
        ..PoolConfig::new(9)
    });
    let mut reader = EventReader::new(&pool).unwrap();
    let mut consumer = Consumer::default();
    let (drains, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut drain = || {
        let mut events = vec![];
        reader.drain(&mut events);
        check_content(&events);
        consumer.replay(&events);
    };
    std::thread::scope(|scope| {
        let (pool, drains, done, drain) = (&pool, &drains, &done, &mut drain);
        let work = |me: u64| scope.spawn(move || work(pool, 0x2545_F491_4F6C_DD1D ^ me, drains));
        let workers: Vec<_> = (1..=4).map(work).collect();
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                drain();
                drains.fetch_add(1, Ordering::Relaxed);
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    drain();
    assert_eq!(consumer.resident, resident_in(&pool, &hashes()));
    pool.check_invariants().unwrap();
    (consumer, pool.stats().lost_events)
}

#[test]
fn four_threads_at_work_leave_a_reader_with_what_is_resident() {
    let (mut removed, mut resyncs, mut without_loss) = (0, 0, 0);
    for policy in [DuplicatePolicy::FirstWins, DuplicatePolicy::KeepAll] {
        for capacity in [1, 4, 1 << 20] {
            let (consumer, lost) = stress(capacity, policy);
            // Whatever is missing has been made up for, and nothing is missing without need.
            assert_eq!(consumer.resyncs > 0, lost > 0);
            removed += consumer.removed;
            resyncs += consumer.resyncs;
            without_loss += u32::from(lost == 0);
        }
    }
    assert!(
        removed > 1000 && resyncs > 100 && without_loss > 0,
        "{removed}, {resyncs}, {without_loss}"
    );
}
