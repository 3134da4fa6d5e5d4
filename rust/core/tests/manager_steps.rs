//! Steps in flight: what waits for them, what they may promise, and what happens when they fail.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use looseleaf::{ManagerError, SeqHandle};
use simulation::{Engine, Setup};

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|at| 3 * at + 1).collect()
}

fn depth_2() -> Setup {
    Setup {
        steps_in_flight: 2,
        ..Setup::default()
    }
}

fn admitted(engine: &mut Engine, tokens: &[u32], max_tokens: u32) -> SeqHandle {
    let handle = engine.open(tokens, None, max_tokens, &[]).unwrap();
    engine.admit(handle).unwrap();
    handle
}

/// Schedules everybody and prepares.
fn launch(engine: &mut Engine) -> u64 {
    engine.manager.schedule_running(u32::MAX, u32::MAX).unwrap();
    engine.prepare().unwrap().step
}

fn in_use(engine: &Engine) -> usize {
    let pool = engine.manager.pool();
    pool.num_usable() - pool.num_free()
}

fn answer(tokens: &[u32], max_tokens: u32) -> Vec<u32> {
    let mut engine = Engine::new(Setup::default());
    let handle = engine.open(tokens, None, max_tokens, &[]).unwrap();
    engine.finish(handle).unwrap();
    engine.manager.tokens(handle).unwrap().to_vec()
}

#[test]
fn two_steps_in_flight_give_the_same_tokens_as_one() {
    let mut engine = Engine::new(depth_2());
    let handles = [5, 9, 13].map(|len| admitted(&mut engine, &prompt(len), 7));
    launch(&mut engine);
    while handles
        .iter()
        .any(|&it| engine.manager.finish_reason(it) == Ok(None))
    {
        // The second step is prepared before the first is run, so its inputs are not known.
        let outcome = engine.manager.schedule_running(u32::MAX, u32::MAX).unwrap();
        if outcome.num_tokens_scheduled > 0 {
            engine.prepare().unwrap();
        }
        engine.commit().unwrap();
        engine.check();
    }
    assert!(engine.coverage.unknown_inputs > 10);
    for (handle, len) in handles.into_iter().zip([5, 9, 13]) {
        assert_eq!(
            engine.manager.tokens(handle).unwrap(),
            answer(&prompt(len), 7)
        );
        engine.close(handle).unwrap();
    }
    assert_eq!((engine.num_in_flight(), in_use(&engine)), (0, 0));
}

#[test]
fn a_sequence_about_to_reach_its_length_is_not_scheduled_beyond_it() {
    let mut engine = Engine::new(depth_2());
    admitted(&mut engine, &prompt(5), 1);
    launch(&mut engine);
    let outcome = engine.manager.schedule_running(u32::MAX, u32::MAX).unwrap();
    assert_eq!(outcome.num_tokens_scheduled, 0);
}

#[test]
fn the_second_step_of_a_sequence_that_the_first_completed_is_ignored_and_still_holds_its_blocks() {
    let mut engine = Engine::new(depth_2());
    let eos = answer(&prompt(4), 1)[4];
    let handle = engine.open(&prompt(4), None, 9, &[eos]).unwrap();
    engine.admit(handle).unwrap();
    launch(&mut engine);
    launch(&mut engine);
    engine.commit().unwrap();
    assert_eq!(engine.manager.num_tokens(handle), Ok(5));
    engine.close(handle).unwrap();
    assert_eq!(in_use(&engine), 2);
    engine.commit().unwrap();
    assert_eq!(in_use(&engine), 0);
}

#[test]
fn no_third_step_is_prepared_and_steps_are_committed_in_order() {
    let mut engine = Engine::new(depth_2());
    admitted(&mut engine, &prompt(4), 9);
    let first = launch(&mut engine);
    let second = launch(&mut engine);
    engine.manager.schedule_running(1, 1).unwrap();
    let refused = engine.prepare().unwrap_err();
    assert_eq!(
        refused,
        ManagerError::TooManySteps {
            in_flight: 2,
            max_steps_in_flight: 2
        }
    );
    let refused = engine.manager.commit_step(second, &[1]).unwrap_err();
    assert_eq!(
        refused,
        ManagerError::UnknownStep {
            step: second,
            oldest: Some(first)
        }
    );
    engine.commit().unwrap();
    engine.prepare().unwrap();
    engine.check();
}

#[test]
fn blocks_closed_while_a_step_uses_them_are_free_when_it_is_committed() {
    let mut engine = Engine::new(depth_2());
    let handle = admitted(&mut engine, &prompt(9), 9);
    launch(&mut engine);
    launch(&mut engine);
    engine.close(handle).unwrap();
    for held in [3, 0] {
        assert_eq!(in_use(&engine), 3);
        engine.commit().unwrap();
        engine.check();
        assert_eq!(in_use(&engine), held);
    }
    // What the step wrote for it can be hit: it was computed, wanted or not.
    let again = engine.open(&prompt(9), None, 1, &[]).unwrap();
    assert_eq!(engine.admit(again), Ok(8));
    engine.finish(again).unwrap();
}

#[test]
fn a_failed_step_is_undone_and_everybody_answers_the_same() {
    let mut engine = Engine::new(Setup::default());
    let decoding = admitted(&mut engine, &[9; 6], 12);
    engine.step().unwrap();
    let writer = admitted(&mut engine, &prompt(10), 12);
    engine.manager.schedule_running(100, 100).unwrap();
    let dependant = admitted(&mut engine, &prompt(10), 12);
    assert_eq!(engine.manager.num_computed_tokens(dependant), Ok(8));
    launch(&mut engine);
    engine.fail(0).unwrap();
    engine.check();
    assert_eq!(engine.manager.num_computed_tokens(decoding), Ok(6));
    assert_eq!(engine.manager.num_computed_tokens(writer), Ok(0));
    assert_eq!(engine.manager.row(dependant), Ok(None));
    assert_eq!(engine.coverage.evicted_with_others, 1);
    engine.admit(dependant).unwrap();
    for (handle, tokens) in [
        (decoding, vec![9; 6]),
        (writer, prompt(10)),
        (dependant, prompt(10)),
    ] {
        engine.finish(handle).unwrap();
        assert_eq!(engine.manager.tokens(handle).unwrap(), answer(&tokens, 12));
    }
}

#[test]
fn a_failed_step_takes_the_results_of_later_steps_that_build_on_it() {
    let mut engine = Engine::new(depth_2());
    let [both, second_only] = [6, 7].map(|len| admitted(&mut engine, &prompt(len), 12));
    engine.append(both, 6, &[]).unwrap();
    let first = engine.prepare().unwrap().step;
    launch(&mut engine);
    let affected = engine.manager.fail_step(first).unwrap().to_vec();
    assert_eq!(affected, [both]);
    let finished = engine.manager.commit_step(first + 1, &[-1, 77]).unwrap();
    assert!(finished.is_empty());
    assert_eq!(engine.manager.num_tokens(both), Ok(6));
    assert_eq!(engine.manager.num_tokens(second_only), Ok(8));
    assert_eq!(engine.manager.num_computed_tokens(both), Ok(0));
    engine.manager.check_invariants().unwrap();
}

/// Its copy may never have been made, so what the block held before has to be computed again.
#[test]
fn a_row_that_a_failed_step_gave_a_copy_goes_back_to_the_beginning_of_the_block() {
    let mut engine = Engine::new(Setup::default());
    let parent = admitted(&mut engine, &prompt(10), 20);
    engine.step().unwrap();
    let [child] = engine.fork(parent, 1).unwrap()[..] else {
        unreachable!()
    };
    launch(&mut engine);
    assert_eq!(engine.manager.stats().block_copies, 1);
    engine.fail(0).unwrap();
    engine.check();
    assert_eq!(engine.manager.num_computed_tokens(parent), Ok(8));
    assert_eq!(engine.manager.num_computed_tokens(child), Ok(10));
    engine.finish(parent).unwrap();
    engine.finish(child).unwrap();
    assert_eq!(engine.manager.tokens(parent), engine.manager.tokens(child));
}

/// The smallest history in which a block was copied, and freed, under a step that wrote to it.
#[test]
fn a_block_that_only_waits_to_be_freed_elsewhere_is_not_copied_under_a_step_in_flight() {
    let mut engine = Engine::new(depth_2());
    let bystander = admitted(&mut engine, &[9; 2], 9);
    engine.append(bystander, 2, &[]).unwrap();
    engine.prepare().unwrap();
    let writer = admitted(&mut engine, &prompt(6), 9);
    engine.append(writer, 6, &[]).unwrap();
    let dependant = admitted(&mut engine, &prompt(6), 9);
    engine.append(dependant, 2, &[]).unwrap();
    engine.prepare().unwrap();
    engine.fail(1).unwrap();
    // The dependant's reference goes no sooner than the bystander's step.
    let block = engine.blocks(writer, 0)[0];
    assert_eq!(engine.manager.row(dependant), Ok(None));
    assert_eq!(engine.manager.pool().ref_cnt(block), 2);
    engine.append(writer, 2, &[]).unwrap();
    engine.prepare().unwrap();
    engine.append(writer, 4, &[]).unwrap();
    assert_eq!(engine.blocks(writer, 0)[0], block);
    assert_eq!(engine.manager.copies().len(), 0);
    engine.commit().unwrap();
    engine.check();
    engine.prepare().unwrap();
    engine.commit().unwrap();
    engine.commit().unwrap();
    engine.check();
    assert_eq!(
        engine.manager.tokens(writer).unwrap()[..7],
        answer(&prompt(6), 9)[..7]
    );
}

/// The smallest history in which a block came free under an older step.
#[test]
fn what_waited_for_a_failed_step_waits_for_older_steps_too() {
    let mut engine = Engine::new(depth_2());
    let handle = admitted(&mut engine, &prompt(4), 9);
    launch(&mut engine);
    launch(&mut engine);
    engine.close(handle).unwrap();
    engine.fail(1).unwrap();
    engine.check();
    assert_eq!(in_use(&engine), 2);
    engine.commit().unwrap();
    assert_eq!(in_use(&engine), 0);
}

/// The smallest history in which a sequence kept unwritten blocks that it had announced itself.
#[test]
fn a_sequence_that_came_back_onto_its_own_announcement_goes_when_the_step_fails() {
    let mut engine = Engine::new(Setup::default());
    let handle = admitted(&mut engine, &prompt(9), 3);
    launch(&mut engine);
    engine.preempt(handle).unwrap();
    assert_eq!(engine.admit(handle), Ok(8));
    engine.fail(0).unwrap();
    engine.check();
    assert_eq!(engine.manager.row(handle), Ok(None));
    engine.finish(handle).unwrap();
    assert_eq!(
        engine.manager.tokens(handle).unwrap(),
        answer(&prompt(9), 3)
    );
}

/// The smallest history in which a closed sequence's later step published what it had computed
/// from nothing.
#[test]
fn what_later_steps_fill_for_a_closed_sequence_is_not_published_after_a_failure() {
    let mut engine = Engine::new(depth_2());
    let handle = admitted(&mut engine, &prompt(9), 3);
    for _ in 0..2 {
        engine.manager.schedule_running(4, 4).unwrap();
        engine.prepare().unwrap();
    }
    engine.close(handle).unwrap();
    engine.fail(0).unwrap();
    engine.commit().unwrap();
    engine.check();
    assert_eq!(engine.manager.pool().stats().hashed, 0);
}

#[test]
fn a_preempted_writer_takes_those_along_who_forked_from_its_dependants() {
    let mut engine = Engine::new(Setup::default());
    let writer = admitted(&mut engine, &prompt(9), 3);
    engine.append(writer, 9, &[]).unwrap();
    let dependant = admitted(&mut engine, &prompt(9), 3);
    let children = engine.fork(dependant, 2).unwrap();
    let others = engine.manager.preempt(writer).unwrap().to_vec();
    assert_eq!(others, [dependant, children[0], children[1]]);
    assert_eq!(in_use(&engine), 0);
    assert_eq!(engine.manager.stats().preemptions, 4);
}

#[test]
fn the_source_of_a_copy_stays_until_the_copy_has_run() {
    let mut engine = Engine::new(Setup::default());
    let parent = admitted(&mut engine, &prompt(6), 20);
    engine.step().unwrap();
    let [child] = engine.fork(parent, 1).unwrap()[..] else {
        unreachable!()
    };
    engine.append(parent, 1, &[]).unwrap();
    let copies: Vec<_> = engine.manager.copies().collect();
    assert_eq!(copies, [(2, 3)]);
    // The child was the last to hold block 2.
    engine.close(child).unwrap();
    assert_eq!(in_use(&engine), 3);
    engine.prepare().unwrap();
    assert_eq!(in_use(&engine), 3);
    engine.commit().unwrap();
    engine.check();
    assert_eq!(in_use(&engine), 2);
}

#[test]
fn the_source_of_a_copy_that_is_called_off_is_free_at_once() {
    let mut engine = Engine::new(Setup::default());
    let parent = admitted(&mut engine, &prompt(6), 20);
    engine.step().unwrap();
    let [child] = engine.fork(parent, 1).unwrap()[..] else {
        unreachable!()
    };
    engine.append(parent, 1, &[]).unwrap();
    engine.close(child).unwrap();
    engine.preempt(parent).unwrap();
    engine.check();
    assert_eq!(in_use(&engine), 0);
    assert_eq!(engine.manager.copies().len(), 0);
}

#[test]
fn an_embedder_commits_sequence_by_sequence_and_steps_end_by_themselves() {
    let mut engine = Engine::new(Setup::default());
    let [first, second] = [6, 9].map(|len| admitted(&mut engine, &prompt(len), 3));
    engine.append(first, 6, &[]).unwrap();
    engine.append(second, 9, &[]).unwrap();
    assert_eq!(
        engine
            .manager
            .slots_of(first, 0)
            .unwrap()
            .collect::<Vec<_>>(),
        [4, 5, 6, 7, 8, 9]
    );
    engine.commit_alone(first).unwrap();
    assert_eq!(engine.manager.stats().steps_in_flight, 1);
    // The first goes on while the second's result is not in.
    engine.append(first, 1, &[]).unwrap();
    engine.commit_alone(first).unwrap();
    engine.commit_alone(second).unwrap();
    assert_eq!(engine.manager.stats().steps_in_flight, 0);
    assert_eq!(engine.manager.num_tokens(first), Ok(8));
    assert_eq!(engine.manager.num_tokens(second), Ok(10));
    engine.check();
    let refused = engine.manager.commit(first, &[1]).unwrap_err();
    assert_eq!(
        refused,
        ManagerError::NothingToCommit {
            handle: first.raw()
        }
    );
}

/// The smallest history in which a freed block was still offered as about to be filled.
#[test]
fn what_a_closed_sequence_has_written_is_published_though_its_unprepared_step_goes_on() {
    let mut engine = Engine::new(Setup::default());
    let [first, second] = [6, 3].map(|len| admitted(&mut engine, &prompt(len), 9));
    let third = admitted(&mut engine, &[9; 3], 9);
    engine.append(first, 5, &[]).unwrap();
    engine.append(second, 2, &[]).unwrap();
    engine.append(third, 3, &[]).unwrap();
    engine.commit_alone(third).unwrap();
    // The first has rows in two steps that have run; the second keeps only the older one open.
    engine.append(first, 1, &[]).unwrap();
    engine.append(third, 1, &[]).unwrap();
    engine.commit_alone(third).unwrap();
    engine.close(first).unwrap();
    engine.check();
    assert_eq!(engine.manager.stats().steps_in_flight, 1);
    assert_eq!(engine.manager.stats().announced_blocks, 0);
    let again = engine.open(&prompt(6), None, 1, &[]).unwrap();
    assert_eq!(engine.admit(again), Ok(4));
}

#[test]
fn drafts_are_accepted_as_far_as_they_are_right() {
    for right in 0..=3 {
        let mut engine = Engine::new(Setup::default());
        let handle = admitted(&mut engine, &prompt(6), 20);
        engine.step().unwrap();
        let drafts: Vec<bool> = (0..3).map(|nth| nth < right).collect();
        engine.append_with_drafts(handle, 1, &drafts).unwrap();
        engine.prepare().unwrap();
        engine.commit().unwrap();
        engine.check();
        let right = right as u32;
        assert_eq!(engine.manager.num_tokens(handle), Ok(7 + right + 1));
        assert_eq!(engine.manager.num_computed_tokens(handle), Ok(7 + right));
        engine.finish(handle).unwrap();
        assert_eq!(
            engine.manager.tokens(handle).unwrap(),
            answer(&prompt(6), 20)
        );
    }
}

#[test]
fn a_row_with_drafts_takes_no_append_before_its_commit_and_no_commit_by_sample() {
    let mut engine = Engine::new(depth_2());
    let handle = admitted(&mut engine, &prompt(6), 20);
    engine.step().unwrap();
    engine.append_with_drafts(handle, 1, &[true]).unwrap();
    let step = engine.prepare().unwrap().step;
    let refused = engine.append(handle, 1, &[]).unwrap_err();
    assert_eq!(
        refused,
        ManagerError::DraftInFlight {
            handle: handle.raw()
        }
    );
    let refused = engine.manager.commit_step(step, &[5]).unwrap_err();
    assert_eq!(
        refused,
        ManagerError::DraftsNeedCommit {
            handle: handle.raw()
        }
    );
    let outcome = engine.manager.schedule_running(9, 9).unwrap();
    assert_eq!(outcome.num_tokens_scheduled, 0);
    engine.commit().unwrap();
    engine.check();
}
