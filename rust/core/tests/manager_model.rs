//! Random histories of sequences on simulated cache memory: whatever happens, every row reads its
//! own prefix, and no block is lost.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use std::cell::RefCell;

use looseleaf::{DuplicatePolicy, FreeOrder, ManagerError, SeqHandle};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use simulation::{Coverage, Engine, Setup};

/// One operation; numbers choose among what is possible when it comes.
#[derive(Clone, Debug)]
enum Op {
    Open {
        prefix: u8,
        len: u8,
        salt: bool,
        max_tokens: u8,
        eos: bool,
    },
    Admit {
        which: u8,
    },
    AdmitLoading {
        which: u8,
        external: u8,
    },
    FinishLoad {
        which: u8,
        missing: u8,
    },
    Append {
        which: u8,
        k: u8,
        drafts: Vec<bool>,
    },
    ScheduleRunning {
        budget: u8,
        chunk: u8,
    },
    /// What an engine does for a step: close, admit, schedule, prepare.
    Step {
        budget: u8,
        chunk: u8,
    },
    Prepare,
    Execute,
    Commit,
    CommitAlone {
        which: u8,
    },
    Fail {
        which: u8,
    },
    Preempt {
        which: u8,
    },
    Close {
        which: u8,
    },
    Fork {
        which: u8,
        n: u8,
    },
    Truncate {
        which: u8,
        by: u8,
    },
    Push {
        which: u8,
        token: u8,
    },
}

/// What happens to sequences between steps, and how they get into one.
fn sequence_ops() -> impl Strategy<Value = Op> {
    let which = any::<u8>;
    prop_oneof![
        4 => (0..3u8, 1..24u8, any::<bool>(), 1..14u8, any::<bool>()).prop_map(
            |(prefix, len, salt, max_tokens, eos)| Op::Open { prefix, len, salt, max_tokens, eos }
        ),
        6 => which().prop_map(|which| Op::Admit { which }),
        6 => (which(), 1..12u8, prop::collection::vec(prop::bool::weighted(0.8), 0..5))
            .prop_map(|(which, k, drafts)| Op::Append { which, k, drafts }),
        3 => (which(), 1..20u8).prop_map(|(which, external)| Op::AdmitLoading { which, external }),
        3 => (which(), prop_oneof![Just(0), 0..20u8])
            .prop_map(|(which, missing)| Op::FinishLoad { which, missing }),
        2 => which().prop_map(|which| Op::Preempt { which }),
        2 => which().prop_map(|which| Op::Close { which }),
        2 => (which(), 1..4u8).prop_map(|(which, n)| Op::Fork { which, n }),
        2 => (which(), 1..12u8).prop_map(|(which, by)| Op::Truncate { which, by }),
        1 => (which(), 0..3u8).prop_map(|(which, token)| Op::Push { which, token }),
    ]
}

/// Steps of an engine that prepares them.
fn engine_ops() -> impl Strategy<Value = Op> {
    let which = any::<u8>;
    prop_oneof![
        31 => sequence_ops(),
        6 => (1..40u8, 0..12u8).prop_map(|(budget, chunk)| Op::ScheduleRunning { budget, chunk }),
        8 => (1..40u8, 1..12u8).prop_map(|(budget, chunk)| Op::Step { budget, chunk }),
        6 => Just(Op::Prepare),
        3 => Just(Op::Execute),
        12 => Just(Op::Commit),
        1 => which().prop_map(|which| Op::Fail { which }),
    ]
}

/// Steps of an embedder that commits sequence by sequence.
fn embedder_ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        31 => sequence_ops(),
        15 => any::<u8>().prop_map(|which| Op::CommitAlone { which }),
    ]
}

fn setups() -> impl Strategy<Value = Setup> {
    let pool = (4..40u32, any::<bool>(), 1..5u32, 1..3usize);
    let steps = (1..6u32, 1..3u8, 4..40u32, prop::bool::weighted(0.8));
    let policies = (any::<bool>(), any::<bool>());
    (pool, steps, policies).prop_map(|(pool, steps, policies)| Setup {
        usable_blocks: pool.0,
        null_block: pool.1,
        block_size: pool.2,
        groups: pool.3,
        max_num_seqs: steps.0,
        steps_in_flight: steps.1,
        max_num_batched_tokens: steps.2,
        prefix_caching: steps.3,
        max_model_len: 40,
        free_order: if policies.0 {
            FreeOrder::UnhashedFirst
        } else {
            FreeOrder::AppendAll
        },
        duplicate_policy: if policies.1 {
            DuplicatePolicy::FirstWins
        } else {
            DuplicatePolicy::KeepAll
        },
        ..Setup::default()
    })
}

fn pick(handles: &[SeqHandle], which: u8) -> Option<SeqHandle> {
    handles.get(which as usize % handles.len().max(1)).copied()
}

/// Applies one operation. Refusals are fine, as long as they change nothing.
fn apply(engine: &mut Engine, op: &Op) -> Result<(), ManagerError> {
    let open = engine.open_handles();
    match op {
        Op::Open {
            prefix,
            len,
            salt,
            max_tokens,
            eos,
        } => {
            // Few tokens and common beginnings, so that sequences meet in the cache.
            let token =
                |at: u8| u32::from(at % 5 == 4) * u32::from(at % 3) + u32::from(*prefix % 2);
            let tokens: Vec<u32> = (0..*len).map(token).collect();
            let eos: &[u32] = if *eos { &[2] } else { &[] };
            engine
                .open(&tokens, salt.then_some("a"), u32::from(*max_tokens), eos)
                .map(drop)
        }
        Op::Admit { which } => {
            let waiting = |handle: &SeqHandle| engine.manager.row(*handle) == Ok(None);
            let waiting: Vec<_> = open.into_iter().filter(waiting).collect();
            pick(&waiting, *which).map_or(Ok(()), |handle| engine.admit(handle).map(drop))
        }
        Op::AdmitLoading { which, external } => {
            let waiting = |handle: &SeqHandle| engine.manager.row(*handle) == Ok(None);
            let waiting: Vec<_> = open.into_iter().filter(waiting).collect();
            pick(&waiting, *which).map_or(Ok(()), |handle| {
                engine.admit_loading(handle, u32::from(*external))
            })
        }
        Op::FinishLoad { .. } if engine.loads.is_empty() => Ok(()),
        Op::FinishLoad { which, missing } => {
            let which = *which as usize % engine.loads.len();
            engine.finish_load(which, usize::from(*missing))
        }
        Op::Append { which, k, drafts } => {
            let Some(handle) = pick(&open, *which) else {
                return Ok(());
            };
            engine.append_with_drafts(handle, u32::from(*k), drafts)
        }
        Op::ScheduleRunning { budget, chunk } => engine
            .manager
            .schedule_running(u32::from(*budget), u32::from(*chunk))
            .map(drop),
        Op::Step { budget, chunk } => {
            for handle in open {
                if engine.manager.finish_reason(handle)?.is_some() {
                    engine.close(handle)?;
                } else if engine.manager.row(handle)?.is_none() && engine.admit(handle).is_ok() {
                    // So that the next one may hit what this one is about to compute.
                    let k = u32::from(*chunk);
                    let _ = engine.append_with_drafts(handle, k, &[]);
                }
            }
            engine
                .manager
                .schedule_running(u32::from(*budget), u32::from(*chunk))?;
            // No row to run is no reason to fail: what came before it has happened.
            engine.prepare().map(drop).or(Ok(()))
        }
        Op::Prepare => engine.prepare().map(drop),
        Op::Execute => {
            engine.execute();
            Ok(())
        }
        Op::Commit if engine.num_in_flight() > 0 => engine.commit(),
        Op::Fail { which } if engine.num_in_flight() > 0 => {
            engine.fail(*which as usize % engine.num_in_flight())
        }
        Op::Commit | Op::Fail { .. } => Ok(()),
        Op::CommitAlone { which } => {
            pick(&open, *which).map_or(Ok(()), |it| engine.commit_alone(it).map(drop))
        }
        Op::Preempt { which } => pick(&open, *which).map_or(Ok(()), |it| engine.preempt(it)),
        Op::Close { which } => pick(&open, *which).map_or(Ok(()), |it| engine.close(it)),
        Op::Fork { which, n } => {
            pick(&open, *which).map_or(Ok(()), |it| engine.fork(it, u32::from(*n)).map(drop))
        }
        Op::Truncate { which, by } => pick(&open, *which).map_or(Ok(()), |it| {
            let len = engine
                .manager
                .num_tokens(it)?
                .saturating_sub(u32::from(*by));
            engine.truncate(it, len)
        }),
        Op::Push { which, token } => {
            pick(&open, *which).map_or(Ok(()), |it| engine.push_token(it, u32::from(*token)))
        }
    }
}

/// Runs a history, then closes everything: the pool must be whole again.
fn run(setup: Setup, ops: &[Op]) -> Coverage {
    let mut engine = Engine::new(setup);
    engine.vocabulary = 3;
    for op in ops {
        let before = (
            engine.manager.pool().free_order(),
            engine.manager.references(),
        );
        let result = apply(&mut engine, op);
        let after = (
            engine.manager.pool().free_order(),
            engine.manager.references(),
        );
        if let Err(error) = result {
            assert_eq!(
                before, after,
                "{op:?} failed ({error}) and changed something"
            );
            assert!(!matches!(error, ManagerError::Pool(_)), "{op:?}: {error}");
        }
        engine.check();
    }
    while engine.num_in_flight() > 0 && !engine.is_unprepared() {
        engine.commit().expect("steps in flight can be committed");
        engine.check();
    }
    for handle in engine.open_handles() {
        engine.close(handle).expect("the sequence is open");
        engine.check();
    }
    while !engine.loads.is_empty() {
        engine.finish_load(0, 0).expect("the load has not ended");
        engine.check();
    }
    assert_eq!(
        engine.manager.pool().num_free(),
        setup.usable_blocks as usize
    );
    assert_eq!(engine.manager.stats().announced_blocks, 0);
    engine.total_coverage()
}

/// Runs random histories, a multiple of proptest's usual number, and adds up what they met.
fn explore(ops: impl Strategy<Value = Op>) -> Coverage {
    explore_with(setups(), ops)
}

fn explore_with(setups: impl Strategy<Value = Setup>, ops: impl Strategy<Value = Op>) -> Coverage {
    let cases = Config::default().cases * 4;
    let mut runner = TestRunner::new(Config {
        cases,
        ..Config::with_source_file(file!())
    });
    let seen = RefCell::new(Coverage::default());
    runner
        .run(
            &(setups, prop::collection::vec(ops, 1..120)),
            |(setup, ops)| {
                seen.borrow_mut().add(&run(setup, &ops));
                Ok(())
            },
        )
        .unwrap_or_else(|failure| panic!("{failure}"));
    seen.into_inner()
}

#[test]
fn every_row_reads_its_own_prefix_when_an_engine_prepares_steps() {
    let seen = explore(engine_ops());
    for (name, count) in seen.counts() {
        assert!(count > 0, "{name} never happened: {seen:?}");
    }
}

#[test]
fn every_row_reads_its_own_prefix_when_an_embedder_commits_row_by_row() {
    let seen = explore(embedder_ops());
    assert!(
        seen.steps > 0 && seen.evicted_with_others > 0 && seen.accepted_drafts > 0,
        "{seen:?}"
    );
}

/// Of 16 hashes each is that of many prefixes, and of many salts.
fn setups_with_collisions() -> impl Strategy<Value = Setup> {
    setups().prop_map(|setup| Setup {
        hash_bits: Some(4),
        verify_tokens: true,
        ..setup
    })
}

#[test]
fn every_row_reads_its_own_prefix_when_hashes_collide_and_tokens_are_verified() {
    let seen = explore_with(setups_with_collisions(), engine_ops());
    for (name, count) in seen.counts() {
        assert!(count > 0, "{name} never happened: {seen:?}");
    }
    assert!(seen.collisions > 100 && seen.orphans > 100, "{seen:?}");
    let seen = explore_with(setups_with_collisions(), embedder_ops());
    assert!(seen.collisions > 100 && seen.orphans > 100, "{seen:?}");
}
