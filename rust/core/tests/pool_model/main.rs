//! Used from one thread, the pool does exactly what a list does (INV-7): same ids, same errors, and
//! after every call the same free queue, reference counts, keys and counts.
//!
//! The rings are tiny, so that entries move and rings swap roles all the time; the tests assert
//! that they did.
#![cfg(not(any(loom, shuttle)))]

mod list_pool;

use std::cell::Cell;

use list_pool::ListPool;
use looseleaf::{
    BlockId, BlockKey, BlockPool, DuplicatePolicy, FreeOrder, OutOfBlocks, PoolConfig, PoolError,
    PrefixPeek, Published, Tuning,
};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::TestRunner;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

const NUM_KEYS: u64 = 6;

#[derive(Clone, Debug)]
enum Call {
    Allocate(usize),
    Release(Vec<BlockId>),
    ReleaseDistinct(Vec<BlockId>),
    Share(Vec<BlockId>),
    Publish(BlockId, BlockKey),
    Retract(BlockId),
    Peek(Vec<BlockKey>),
    Match(Vec<BlockKey>),
    Admit(Vec<BlockKey>, usize),
    Reset,
}

#[derive(Clone, PartialEq, Debug)]
enum Answer {
    Done,
    Ids(Vec<BlockId>),
    Admitted(Vec<BlockId>, Vec<BlockId>),
    Published(Published),
    Retracted(bool),
    Peeked(PrefixPeek),
    OutOfBlocks(OutOfBlocks),
    Refused(PoolError),
}

impl From<Result<(), PoolError>> for Answer {
    fn from(result: Result<(), PoolError>) -> Self {
        result.map_or_else(Self::Refused, |()| Self::Done)
    }
}

fn call_list(list: &mut ListPool, call: &Call) -> Answer {
    match call {
        Call::Allocate(count) => list
            .allocate(*count)
            .map_or_else(Answer::OutOfBlocks, Answer::Ids),
        Call::Release(ids) | Call::ReleaseDistinct(ids) => list.release(ids).into(),
        Call::Share(ids) => list.share(ids).into(),
        Call::Publish(id, key) => list
            .publish(*id, *key)
            .map_or_else(Answer::Refused, Answer::Published),
        Call::Retract(id) => list
            .retract(*id)
            .map_or_else(Answer::Refused, Answer::Retracted),
        Call::Peek(keys) => Answer::Peeked(list.peek_prefix(keys)),
        Call::Match(keys) => Answer::Ids(list.match_prefix(keys)),
        Call::Admit(keys, new) => match list.admit(keys, *new) {
            Ok((hits, new)) => Answer::Admitted(hits, new),
            Err(error) => Answer::OutOfBlocks(error),
        },
        Call::Reset => list.reset_prefix_cache().into(),
    }
}

fn call_pool(pool: &BlockPool, call: &Call) -> Answer {
    match call {
        Call::Allocate(count) => {
            let mut out = vec![0; *count];
            pool.allocate(&mut out)
                .map_or_else(Answer::OutOfBlocks, |()| Answer::Ids(out))
        }
        Call::Release(ids) => pool.release(ids).into(),
        Call::ReleaseDistinct(ids) => pool.release_distinct(ids).into(),
        Call::Share(ids) => pool.share(ids).into(),
        Call::Publish(id, key) => pool
            .publish(*id, key)
            .map_or_else(Answer::Refused, Answer::Published),
        Call::Retract(id) => pool
            .retract(*id)
            .map_or_else(Answer::Refused, Answer::Retracted),
        Call::Peek(keys) => Answer::Peeked(pool.peek_prefix(keys)),
        Call::Match(keys) => {
            let mut out = vec![0; keys.len()];
            let hits = pool.match_prefix(keys, &mut out);
            out.truncate(hits);
            Answer::Ids(out)
        }
        Call::Admit(keys, new) => {
            let (mut hits, mut out) = (vec![0; keys.len()], vec![0; *new]);
            match pool.admit(keys, &mut hits, &mut out) {
                Ok(taken) => {
                    hits.truncate(taken);
                    Answer::Admitted(hits, out)
                }
                Err(error) => Answer::OutOfBlocks(error),
            }
        }
        Call::Reset => pool.reset_prefix_cache().into(),
    }
}

fn key(i: u64) -> BlockKey {
    BlockKey([i, i * i, 0, 0])
}

/// Every list of distinct keys, in any order.
fn key_list() -> impl Strategy<Value = Vec<BlockKey>> {
    let keys: Vec<_> = (0..NUM_KEYS).map(key).collect();
    subsequence(keys, 0..=NUM_KEYS as usize).prop_shuffle()
}

fn call_on(list: &ListPool) -> BoxedStrategy<Call> {
    let blocks = list.config.num_blocks;
    let held: Vec<BlockId> = (0..blocks).filter(|id| list.ref_cnt(*id) != 0).collect();
    let some_held = subsequence(held.clone(), 0..=held.len()).prop_shuffle();
    // Mostly wrong: free, null, unknown or repeated.
    let any_ids = prop::collection::vec(0..blocks + 2, 0..12);
    let any_id = if held.is_empty() {
        (0..blocks + 2).boxed()
    } else {
        select(held).boxed()
    };
    prop_oneof![
        1 => (0..blocks as usize + 2).prop_map(Call::Allocate),
        5 => (0..3_usize).prop_map(Call::Allocate),
        8 => some_held.clone().prop_map(Call::Release),
        5 => some_held.clone().prop_map(Call::ReleaseDistinct),
        2 => some_held.prop_map(Call::Share),
        1 => any_ids.clone().prop_map(Call::Release),
        1 => any_ids.prop_map(Call::Share),
        9 => (any_id.clone(), 0..NUM_KEYS).prop_map(|(id, i)| Call::Publish(id, key(i))),
        1 => (0..blocks + 2, 0..NUM_KEYS).prop_map(|(id, i)| Call::Publish(id, key(i))),
        1 => any_id.prop_map(Call::Retract),
        1 => (0..blocks + 2).prop_map(Call::Retract),
        2 => key_list().prop_map(Call::Peek),
        // Hits on free blocks, released again, are what fills the rings with dead entries.
        9 => key_list().prop_map(Call::Match),
        3 => (key_list(), 0..4_usize).prop_map(|(keys, new)| Call::Admit(keys, new)),
        1 => Just(Call::Reset),
    ]
    .boxed()
}

#[derive(Clone, Debug)]
struct Model {
    list: ListPool,
    answer: Answer,
}

/// The rare branches that the cases of one run have taken.
#[derive(Clone, Copy, Default, Debug)]
struct Taken {
    moves: u64,
    role_swaps: u64,
    evictions: u64,
    duplicates: u64,
}

thread_local! {
    static CONFIG: Cell<PoolConfig> = Cell::new(PoolConfig::new(2));
    static TAKEN: Cell<Taken> = const { Cell::new(Taken {
        moves: 0, role_swaps: 0, evictions: 0, duplicates: 0,
    }) };
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Call;

    fn init_state() -> BoxedStrategy<Self> {
        let config = CONFIG.get();
        let sizes = (1..10_u32, any::<bool>(), 1..5_u32, 0..3_u32, 1..4_u32);
        sizes
            .prop_map(
                move |(usable, reserve_null_block, young, spare_room, lazy_close)| {
                    let num_blocks = usable + u32::from(reserve_null_block);
                    let tuning = Tuning {
                        young_slots: Some(young),
                        young_threshold: Some(young / 3),
                        // As many as there are blocks is enough for one thread never to spill.
                        aged_slots: Some(usable + spare_room),
                        moves_per_push: Some(lazy_close),
                        lazy_close: Some(lazy_close),
                        ..Tuning::default()
                    };
                    let config = PoolConfig {
                        num_blocks,
                        reserve_null_block,
                        tuning,
                        ..config
                    };
                    Self {
                        list: ListPool::new(config),
                        answer: Answer::Done,
                    }
                },
            )
            .boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Call> {
        call_on(&state.list)
    }

    fn apply(mut state: Self, call: &Call) -> Self {
        state.answer = call_list(&mut state.list, call);
        state
    }

    /// `release_distinct` relies on its promise.
    fn preconditions(_: &Self, call: &Call) -> bool {
        match call {
            Call::ReleaseDistinct(ids) => (1..ids.len()).all(|i| !ids[..i].contains(&ids[i])),
            _ => true,
        }
    }
}

struct PoolTest;

impl StateMachineTest for PoolTest {
    type SystemUnderTest = BlockPool;
    type Reference = Model;

    fn init_test(model: &Model) -> BlockPool {
        BlockPool::new(model.list.config).expect("the sizes are valid")
    }

    fn apply(pool: BlockPool, model: &Model, call: Call) -> BlockPool {
        assert_eq!(call_pool(&pool, &call), model.answer);
        pool
    }

    fn check_invariants(pool: &BlockPool, model: &Model) {
        let list = &model.list;
        pool.check_invariants().unwrap();
        assert_eq!(pool.free_order(), list.queue);
        for id in 0..list.config.num_blocks {
            assert_eq!(pool.ref_cnt(id), list.ref_cnt(id));
            assert_eq!(pool.key_of(id), list.key_of(id));
            let writable = list.ref_cnt(id) == 1 && list.key_of(id).is_none();
            assert_eq!(pool.is_writable(id), writable);
        }
        let stats = pool.stats();
        assert_eq!(stats.free, list.queue.len());
        assert_eq!(stats.cached_free, list.num_cached_free());
        assert_eq!(stats.hashed, list.num_hashed());
        assert_eq!(stats.evictions, list.evictions);
        assert_eq!(stats.spills, 0);
    }

    fn teardown(pool: BlockPool, _: Model) {
        let (stats, mut taken) = (pool.stats(), TAKEN.get());
        taken.moves += stats.moves;
        taken.role_swaps += stats.role_swaps;
        taken.evictions += stats.evictions;
        taken.duplicates += stats.duplicates;
        TAKEN.set(taken);
    }
}

fn compare_with_the_list(free_order: FreeOrder, duplicate_policy: DuplicatePolicy) -> Taken {
    CONFIG.set(PoolConfig {
        free_order,
        duplicate_policy,
        ..PoolConfig::new(2)
    });
    TAKEN.set(Taken::default());
    let mut config = ProptestConfig::with_source_file(file!());
    config.cases = config.cases.max(256);
    config.test_name = Some("pool_does_what_a_list_does");
    let result = TestRunner::new(config.clone()).run(
        &Model::sequential_strategy(1..400),
        |(model, calls, seen)| {
            PoolTest::test_sequential(config.clone(), model, calls, seen);
            Ok(())
        },
    );
    if let Err(error) = result {
        panic!("{error}");
    }
    TAKEN.get()
}

fn assert_rings_worked(taken: Taken) {
    assert!(
        taken.moves > 1000 && taken.role_swaps > 10 && taken.evictions > 100,
        "{taken:?}"
    );
}

#[test]
fn unhashed_first_and_first_wins_does_what_a_list_does() {
    let taken = compare_with_the_list(FreeOrder::UnhashedFirst, DuplicatePolicy::FirstWins);
    assert_rings_worked(taken);
    assert!(taken.duplicates > 100, "{taken:?}");
}

#[test]
fn unhashed_first_and_keep_all_does_what_a_list_does() {
    let taken = compare_with_the_list(FreeOrder::UnhashedFirst, DuplicatePolicy::KeepAll);
    assert_rings_worked(taken);
}

#[test]
fn append_all_and_first_wins_does_what_a_list_does() {
    let taken = compare_with_the_list(FreeOrder::AppendAll, DuplicatePolicy::FirstWins);
    assert_rings_worked(taken);
    assert!(taken.duplicates > 100, "{taken:?}");
}

#[test]
fn append_all_and_keep_all_does_what_a_list_does() {
    assert_rings_worked(compare_with_the_list(
        FreeOrder::AppendAll,
        DuplicatePolicy::KeepAll,
    ));
}
