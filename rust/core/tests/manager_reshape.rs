//! Sequences that branch and go back, and when they stop.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use std::sync::{Arc, Mutex};

use looseleaf::{FinishReason, ManagerError, OpenParams, SeqHandle};
use simulation::{Engine, Setup};

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|at| 3 * at + 1).collect()
}

fn decoding(engine: &mut Engine, len: u32) -> SeqHandle {
    let handle = engine.open(&prompt(len), None, 40, &[]).unwrap();
    engine.admit(handle).unwrap();
    engine.step().unwrap();
    handle
}

#[test]
fn a_cut_through_a_block_that_nobody_else_has_retracts_it() {
    let mut engine = Engine::new(Setup::default());
    let handle = decoding(&mut engine, 14);
    assert_eq!(engine.manager.pool().stats().hashed, 3);
    engine.truncate(handle, 7).unwrap();
    engine.check();
    let pool = engine.manager.pool();
    assert_eq!(engine.blocks(handle, 0), [1, 2]);
    assert!(pool.key_of(1).is_some() && pool.is_writable(2));
    // The third block was dropped whole: it stays in the cache.
    assert!(pool.key_of(3).is_some());
    engine.push_token(handle, 500).unwrap();
    engine.finish(handle).unwrap();
    assert_eq!(engine.manager.stats().block_copies, 0);
}

#[test]
fn a_cut_through_a_block_that_others_have_copies_it_on_the_next_write() {
    let mut engine = Engine::new(Setup::default());
    let handle = decoding(&mut engine, 14);
    let other = decoding(&mut engine, 14);
    assert_eq!(engine.blocks(other, 0)[..3], [1, 2, 3]);
    engine.truncate(other, 7).unwrap();
    assert!(engine.manager.pool().key_of(2).is_some());
    engine.push_token(other, 500).unwrap();
    engine.finish(other).unwrap();
    assert_eq!(engine.manager.stats().block_copies, 1);
    assert_ne!(engine.blocks(other, 0)[1], 2);
    engine.finish(handle).unwrap();
    assert!(engine.manager.pool().key_of(2).is_some());
}

#[test]
fn a_published_block_stays_until_it_is_copied_though_another_manager_gives_it_up() {
    let setup = Setup::default();
    let (pool, memory) = (setup.pool(), Arc::new(Mutex::new(setup.memory())));
    let mut engines = [0, 1].map(|_| Engine::over(setup, Arc::clone(&pool), &memory));
    let [theirs, ours] = &mut engines;
    let their = decoding(theirs, 14);
    let our = ours.open(&prompt(14), None, 9, &[]).unwrap();
    assert_eq!(ours.admit(our), Ok(12));
    ours.truncate(our, 7).unwrap();
    ours.push_token(our, 500).unwrap();
    ours.append(our, 1, &[]).unwrap();
    assert_eq!(
        ours.manager
            .copies()
            .map(|(source, _)| source)
            .collect::<Vec<_>>(),
        [2]
    );
    theirs.close(their).unwrap();
    assert_eq!(pool.ref_cnt(2), 1);
    ours.prepare().unwrap();
    ours.commit().unwrap();
    assert_eq!(pool.ref_cnt(2), 0);
    assert!(pool.key_of(2).is_some());
}

#[test]
fn a_cut_through_a_block_that_a_step_is_filling_drops_it() {
    let mut engine = Engine::new(Setup::default());
    let writer = engine.open(&prompt(9), None, 4, &[]).unwrap();
    engine.admit(writer).unwrap();
    engine.append(writer, 9, &[]).unwrap();
    let other = engine.open(&prompt(9), None, 4, &[]).unwrap();
    assert_eq!(engine.admit(other), Ok(8));
    // A copy in this step would come before the write of what it should copy.
    engine.truncate(other, 7).unwrap();
    assert_eq!(engine.blocks(other, 0), [1]);
    assert_eq!(engine.manager.num_computed_tokens(other), Ok(4));
    engine.append(other, 3, &[]).unwrap();
    assert_eq!(engine.manager.copies().len(), 0);
    engine.prepare().unwrap();
    engine.commit().unwrap();
    engine.check();
    engine.finish(other).unwrap();
    engine.finish(writer).unwrap();
}

#[test]
fn forks_go_on_from_a_token_of_their_own_also_where_the_parent_has_finished() {
    let mut engine = Engine::new(Setup::default());
    let parent = engine.open(&prompt(9), None, 1, &[]).unwrap();
    engine.finish(parent).unwrap();
    let children = engine.fork(parent, 2).unwrap();
    assert!(
        children
            .iter()
            .all(|&it| engine.manager.finish_reason(it) != Ok(None))
    );
    for (&child, token) in children.iter().zip([500, 501]) {
        engine.truncate(child, 9).unwrap();
        assert_eq!(engine.manager.finish_reason(child), Ok(None));
        engine.push_token(child, token).unwrap();
        assert_eq!(
            engine.manager.finish_reason(child),
            Ok(Some(FinishReason::Length))
        );
        assert_eq!(engine.manager.tokens(child).unwrap()[9], token);
    }
    engine.check();
}

#[test]
fn a_fork_of_a_half_computed_prompt_shares_what_is_computed_and_nothing_else() {
    let mut engine = Engine::new(Setup::default());
    let parent = engine.open(&prompt(20), None, 4, &[]).unwrap();
    engine.admit(parent).unwrap();
    engine.manager.schedule_running(10, 10).unwrap();
    engine.prepare().unwrap();
    engine.commit().unwrap();
    let [child] = engine.fork(parent, 1).unwrap()[..] else {
        unreachable!()
    };
    assert_eq!(engine.blocks(child, 0), [1, 2, 3]);
    assert_eq!(engine.blocks(parent, 0), [1, 2, 3, 4, 5]);
    engine.finish(child).unwrap();
    engine.finish(parent).unwrap();
    assert_eq!(engine.manager.tokens(parent), engine.manager.tokens(child));
    assert_eq!(engine.manager.stats().block_copies, 1);
}

#[test]
fn a_fork_needs_as_many_rows_as_children_or_makes_none() {
    let mut engine = Engine::new(Setup {
        max_num_seqs: 3,
        ..Setup::default()
    });
    let parent = decoding(&mut engine, 6);
    let refused = engine.manager.fork(parent, 3).unwrap_err();
    assert_eq!(
        refused,
        ManagerError::NoFreeRow {
            asked: 3,
            free: 2,
            max_num_seqs: 3
        }
    );
    assert_eq!(engine.manager.num_open(), 1);
    engine.check();
    assert_eq!(engine.fork(parent, 2).unwrap().len(), 2);
    engine.check();
}

#[test]
fn a_sequence_in_an_uncommitted_step_is_neither_forked_nor_cut_nor_extended() {
    let mut engine = Engine::new(Setup::default());
    let handle = decoding(&mut engine, 6);
    engine.append(handle, 1, &[]).unwrap();
    for prepared in [false, true] {
        if prepared {
            engine.prepare().unwrap();
        }
        let expected = ManagerError::InUncommittedStep {
            handle: handle.raw(),
            step: 2,
        };
        assert_eq!(engine.manager.fork(handle, 1), Err(expected.clone()));
        assert_eq!(engine.manager.truncate(handle, 3), Err(expected.clone()));
        assert_eq!(engine.manager.push_token(handle, 3), Err(expected));
    }
    engine.commit().unwrap();
    engine.check();
}

/// One token after the other through `commit`, until something stops the sequence.
fn stopped_by(params: OpenParams<'_>, outputs: &[u32]) -> (Option<FinishReason>, u32) {
    let mut manager = Setup {
        max_model_len: 12,
        ..Setup::default()
    }
    .manager();
    let handle = manager
        .open(OpenParams {
            tokens: &[1, 2, 3],
            ..params
        })
        .unwrap();
    manager.admit(handle, 0).unwrap();
    for &token in outputs {
        let k = manager.num_tokens(handle).unwrap() - manager.num_computed_tokens(handle).unwrap();
        manager.append(handle, k, &[]).unwrap();
        if manager.commit(handle, &[token]).unwrap().is_some() {
            break;
        }
    }
    (
        manager.finish_reason(handle).unwrap(),
        manager.output_len(handle).unwrap(),
    )
}

#[test]
fn an_end_token_counts_before_a_stop_token_and_that_before_the_length() {
    let rules = OpenParams {
        max_tokens: 2,
        ..<_>::default()
    };
    let (eos, stop): (&[u32], &[u32]) = (&[7], &[7, 8]);
    let rules = OpenParams {
        eos_token_ids: eos,
        stop_token_ids: stop,
        ..rules
    };
    assert_eq!(stopped_by(rules, &[5, 7]), (Some(FinishReason::Eos), 2));
    assert_eq!(
        stopped_by(rules, &[5, 8]),
        (Some(FinishReason::StopToken), 2)
    );
    assert_eq!(stopped_by(rules, &[5, 6]), (Some(FinishReason::Length), 2));
    assert_eq!(stopped_by(rules, &[7, 6]), (Some(FinishReason::Eos), 1));
}

#[test]
fn end_and_stop_tokens_do_not_count_before_min_tokens_but_the_length_does() {
    let rules = OpenParams {
        max_tokens: 4,
        min_tokens: 3,
        ..<_>::default()
    };
    let rules = OpenParams {
        eos_token_ids: &[7],
        stop_token_ids: &[8],
        ..rules
    };
    assert_eq!(
        stopped_by(rules, &[7, 8, 7, 7]),
        (Some(FinishReason::Eos), 3)
    );
    assert_eq!(
        stopped_by(rules, &[7, 8, 1, 1]),
        (Some(FinishReason::Length), 4)
    );
    let rules = OpenParams {
        min_tokens: 9,
        max_tokens: 2,
        ..rules
    };
    assert_eq!(stopped_by(rules, &[7, 7]), (Some(FinishReason::Length), 2));
}

#[test]
fn a_sequence_stops_at_max_model_len_whatever_max_tokens_says() {
    let rules = OpenParams {
        max_tokens: u32::MAX,
        ..<_>::default()
    };
    assert_eq!(stopped_by(rules, &[1; 20]), (Some(FinishReason::Length), 9));
}

#[test]
fn tokens_accepted_after_the_one_that_completes_a_sequence_are_dropped() {
    let mut manager = Setup::default().manager();
    let params = OpenParams {
        tokens: &[1, 2, 3],
        max_tokens: 9,
        ..<_>::default()
    };
    let handle = manager
        .open(OpenParams {
            eos_token_ids: &[7],
            ..params
        })
        .unwrap();
    manager.admit(handle, 0).unwrap();
    manager.append(handle, 6, &[5, 7, 6]).unwrap();
    assert_eq!(
        manager.commit(handle, &[5, 7, 6, 4]),
        Ok(Some(FinishReason::Eos))
    );
    assert_eq!(manager.tokens(handle).unwrap(), [1, 2, 3, 5, 7]);
    assert_eq!(manager.num_computed_tokens(handle), Ok(5));
    manager.check_invariants().unwrap();
}
