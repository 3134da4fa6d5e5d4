//! Random calls from one thread, with drains in between.

use std::cell::Cell;

use looseleaf::{
    BlockId, BlockPool, DuplicatePolicy, EventReader, FreeOrder, KeyWidth, PoolConfig, PoolError,
    Tuning,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::consumer::{Consumer, resident_in};
use crate::{
    NUM_GROUPS, NUM_KEYS, OVERFLOWING, check_content, hashes, key, pool_with_events, publish,
};

#[derive(Clone, Debug)]
enum Call {
    Allocate(usize),
    /// One reference of the n-th that is held.
    Release(usize),
    Publish(usize, u64, u32),
    Retract(BlockId),
    Match(u64, u32),
    Reset,
    Drain,
    NewReader,
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        5 => (1..3_usize).prop_map(Call::Allocate),
        8 => any::<usize>().prop_map(Call::Release),
        9 => (any::<usize>(), 0..NUM_KEYS, 0..NUM_GROUPS)
            .prop_map(|(nth, i, group)| Call::Publish(nth, i, group)),
        2 => (1..7_u32).prop_map(Call::Retract),
        4 => (0..NUM_KEYS, 0..NUM_GROUPS).prop_map(|(i, group)| Call::Match(i, group)),
        1 => Just(Call::Reset),
        3 => Just(Call::Drain),
        1 => Just(Call::NewReader),
    ]
}

fn config() -> impl Strategy<Value = PoolConfig> {
    (1..7_u32, 1..20_u32, any::<[bool; 4]>()).prop_map(|(usable, event_capacity, choices)| {
        let [append_all, keep_all, wide, overflowing] = choices;
        let sizes = Tuning::default();
        PoolConfig {
            free_order: if append_all {
                FreeOrder::AppendAll
            } else {
                FreeOrder::UnhashedFirst
            },
            duplicate_policy: if keep_all {
                DuplicatePolicy::KeepAll
            } else {
                DuplicatePolicy::FirstWins
            },
            key_width: if wide {
                KeyWidth::Bits256
            } else {
                KeyWidth::Bits128
            },
            tuning: if overflowing { OVERFLOWING } else { sizes },
            event_capacity,
            ..PoolConfig::new(usable + 1)
        }
    })
}

/// The rare branches that the cases have taken.
#[derive(Clone, Copy, Default, Debug)]
struct Taken {
    lost: u64,
    spilled: u64,
    evicted: u64,
    removed: u64,
    resets: u64,
    second_copies: u64,
}

struct Run<'p> {
    pool: &'p BlockPool,
    reader: Option<EventReader<&'p BlockPool>>,
    consumer: Consumer,
    held: Vec<BlockId>,
    second_copies: u64,
}

impl Run<'_> {
    fn call(&mut self, call: &Call) {
        let pool = self.pool;
        match *call {
            Call::Allocate(count) => {
                let mut ids = vec![0; count];
                if pool.allocate(&mut ids).is_ok() {
                    self.held.extend(ids);
                }
            }
            Call::Release(nth) if !self.held.is_empty() => {
                let id = self.held.swap_remove(nth % self.held.len());
                pool.release(&[id]).unwrap();
            }
            Call::Publish(nth, i, group) if !self.held.is_empty() => {
                let id = self.held[nth % self.held.len()];
                match publish(pool, id, i, group) {
                    Ok(_) | Err(PoolError::AlreadyPublished { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Call::Retract(id) if (id as usize) < pool.num_blocks() => {
                pool.retract(id).unwrap();
            }
            Call::Match(i, group) => {
                let mut ids = [0];
                if pool.match_prefix(&[key(i).with_group(group)], &mut ids) == 1 {
                    self.held.push(ids[0]);
                }
            }
            Call::Reset => assert_eq!(pool.reset_prefix_cache().is_ok(), self.held.is_empty()),
            Call::Drain => self.drain(),
            Call::NewReader => {
                self.reader = None;
                self.reader = Some(EventReader::new(pool).unwrap());
            }
            _ => {}
        }
    }

    fn drain(&mut self) {
        let mut events = vec![];
        self.reader.as_mut().unwrap().drain(&mut events);
        check_content(&events);
        self.consumer.replay(&events);
        let second_copies = self.pool.stats().hashed > self.consumer.resident.len();
        self.second_copies += u64::from(second_copies);
        assert_eq!(self.consumer.resident, resident_in(self.pool, &hashes()));
    }
}

#[test]
fn replayed_events_give_what_is_resident_whenever_they_are_drained() {
    let taken = Cell::new(Taken::default());
    let mut runner_config = ProptestConfig::with_source_file(file!());
    runner_config.cases = runner_config.cases.max(512);
    let calls = prop::collection::vec(call(), 1..400);
    let outcome = TestRunner::new(runner_config).run(&(config(), calls), |(config, calls)| {
        let pool = pool_with_events(config);
        let mut run = Run {
            pool: &pool,
            reader: Some(EventReader::new(&pool).unwrap()),
            consumer: Consumer::default(),
            held: vec![],
            second_copies: 0,
        };
        calls.iter().for_each(|call| run.call(call));
        run.drain();
        let (stats, mut sum) = (pool.stats(), taken.get());
        sum.lost += stats.lost_events;
        sum.spilled += stats.spilled_hashes;
        sum.evicted += stats.evictions;
        sum.removed += run.consumer.removed;
        sum.resets += run.consumer.resets;
        sum.second_copies += run.second_copies;
        taken.set(sum);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let taken = taken.get();
    assert!(
        taken.lost > 300
            && taken.spilled > 300
            && taken.evicted > 1000
            && taken.removed > 500
            && taken.resets > 100
            && taken.second_copies > 100,
        "{taken:?}"
    );
}
