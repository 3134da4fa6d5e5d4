//! Faults that other systems had in public, each in the smallest scenario that shows it. The
//! scenarios are ours; the reference says where the fault was seen.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use looseleaf::{ManagerError, OpenParams, SeqHandle};
use simulation::{Engine, Setup};

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|at| 5 * at + 2).collect()
}

fn pool_of(usable_blocks: u32) -> Setup {
    Setup {
        usable_blocks,
        ..Setup::default()
    }
}

fn in_use(engine: &Engine) -> usize {
    let pool = engine.manager.pool();
    pool.num_usable() - pool.num_free()
}

fn run_to_end(engine: &mut Engine, tokens: &[u32], max_tokens: u32) {
    let handle = engine.open(tokens, None, max_tokens, &[]).unwrap();
    engine.finish(handle).unwrap();
    engine.close(handle).unwrap();
    engine.check();
}

/// xLLM-AI/xllm#828: registered blocks kept counting as used; utilisation went to 135 %.
#[test]
fn usage_returns_to_zero_after_each_request() {
    let mut engine = Engine::new(pool_of(4));
    for salt in 0..3 {
        run_to_end(&mut engine, &[salt; 9], 1);
        assert_eq!(in_use(&engine), 0);
    }
}

/// sgl-project/sglang#35270: a shared page was counted twice.
#[test]
fn a_shared_block_is_counted_once() {
    let mut engine = Engine::new(pool_of(8));
    run_to_end(&mut engine, &prompt(8), 1);
    let tails = [vec![1], vec![2]];
    let handles = tails.map(|tail| {
        let tokens: Vec<_> = prompt(8).into_iter().chain(tail).collect();
        let handle = engine.open(&tokens, None, 1, &[]).unwrap();
        assert_eq!(engine.admit(handle), Ok(8));
        handle
    });
    assert_eq!(in_use(&engine), 4);
    for handle in handles {
        engine.close(handle).unwrap();
        engine.check();
    }
    assert_eq!(in_use(&engine), 0);
}

/// sgl-project/sglang#16067, #15840: the first of two resources was not returned when the second
/// was missing.
#[test]
fn an_admission_that_fails_changes_nothing_however_often() {
    // No row: blocks are there.
    let mut engine = Engine::new(Setup {
        max_num_seqs: 1,
        ..pool_of(8)
    });
    run_to_end(&mut engine, &prompt(9), 1);
    let running = engine.open(&[1], None, 1, &[]).unwrap();
    engine.admit(running).unwrap();
    let waiting = engine.open(&prompt(9), None, 1, &[]).unwrap();
    refuse_often(&mut engine, waiting, |error| {
        matches!(error, ManagerError::NoFreeRow { .. })
    });

    // No blocks: rows are there.
    let mut engine = Engine::new(pool_of(8));
    run_to_end(&mut engine, &prompt(9), 1);
    let running = engine.open(&[1; 21], None, 1, &[]).unwrap();
    engine.admit(running).unwrap();
    let waiting = engine.open(&prompt(13), None, 1, &[]).unwrap();
    refuse_often(&mut engine, waiting, |error| {
        matches!(error, ManagerError::OutOfBlocks { missing: 2, .. })
    });
}

fn refuse_often(engine: &mut Engine, handle: SeqHandle, expected: fn(&ManagerError) -> bool) {
    let before = engine.manager.pool().free_order();
    for _ in 0..1000 {
        let error = engine.manager.admit(handle, 0).unwrap_err();
        assert!(expected(&error), "{error}");
    }
    assert_eq!(engine.manager.pool().free_order(), before);
    assert_eq!(engine.manager.row(handle), Ok(None));
    engine.check();
}

/// vllm#27073: prompts that were too long made usage climb for hours.
#[test]
fn a_prompt_longer_than_max_model_len_is_refused_before_it_touches_the_pool() {
    let mut engine = Engine::new(Setup {
        max_model_len: 20,
        ..pool_of(16)
    });
    for round in 0..50 {
        let before = engine.manager.pool().free_order();
        let error = engine.open(&prompt(20 + round), None, 1, &[]).unwrap_err();
        let tokens = u64::from(21 + round);
        assert_eq!(
            error,
            ManagerError::TooLong {
                tokens,
                max_model_len: 20
            }
        );
        assert_eq!(engine.manager.pool().free_order(), before);
        assert_eq!(engine.manager.num_open(), 0);
        run_to_end(&mut engine, &[round; 11], 3);
        assert_eq!(in_use(&engine), 0);
    }
}

/// NVIDIA/TensorRT-LLM#12933: storing blocks that the cache had already orphaned the new ones.
#[test]
fn two_copies_of_one_prompt_computed_at_once_are_both_accounted_for() {
    let mut engine = Engine::new(pool_of(16));
    // Both admitted before either has announced anything.
    let handles = [0, 1].map(|_| {
        let handle = engine.open(&prompt(8), None, 3, &[]).unwrap();
        assert_eq!(engine.admit(handle), Ok(0));
        handle
    });
    for handle in handles {
        engine.finish(handle).unwrap();
    }
    // The first copy is cached, the second stays plain and goes first.
    assert_eq!(engine.manager.pool().stats().hashed, 2);
    assert_eq!(engine.manager.pool().stats().duplicates, 2);
    for handle in handles {
        engine.close(handle).unwrap();
    }
    engine.check();
    assert_eq!(in_use(&engine), 0);
}

/// sgl-project/sglang#38981: an abort in the middle of a prefill freed part of a page twice.
#[test]
fn an_abort_in_the_middle_of_a_prefill_frees_the_partial_block_once() {
    let mut engine = Engine::new(pool_of(8));
    let handle = engine.open(&prompt(11), None, 1, &[]).unwrap();
    engine.admit(handle).unwrap();
    assert_eq!(
        engine
            .manager
            .schedule_running(100, 6)
            .unwrap()
            .num_tokens_scheduled,
        6
    );
    engine.prepare().unwrap();
    engine.commit().unwrap();
    assert_eq!(engine.manager.num_computed_tokens(handle), Ok(6));
    engine.close(handle).unwrap();
    engine.check();
    assert_eq!(in_use(&engine), 0);
    run_to_end(&mut engine, &prompt(11), 3);
    assert_eq!(engine.manager.stats().prefix_hits, 4);
}

/// vllm#4764, ovg-project/kvcached#362: a reused block still answered to its old hash.
#[test]
fn an_evicted_prefix_is_a_miss() {
    let mut engine = Engine::new(pool_of(2));
    run_to_end(&mut engine, &prompt(5), 1);
    let again = engine.open(&prompt(5), None, 1, &[]).unwrap();
    assert_eq!(
        engine
            .manager
            .match_prefix(again)
            .unwrap()
            .num_cached_tokens,
        4
    );
    run_to_end(&mut engine, &[9; 8], 1);
    assert_eq!(
        engine
            .manager
            .match_prefix(again)
            .unwrap()
            .num_cached_tokens,
        0
    );
    engine.finish(again).unwrap();
}

/// vllm#16016, sgl-project/sglang#1504: the cache told one tenant what another had asked.
#[test]
fn sequences_share_blocks_within_a_salt_and_not_across_salts() {
    let mut engine = Engine::new(pool_of(32));
    for (salt, expected) in [
        (Some("a"), 0),
        (Some("b"), 0),
        (None, 0),
        (Some("a"), 12),
        (Some("b"), 12),
        (None, 12),
    ] {
        let handle = engine.open(&prompt(13), salt, 1, &[]).unwrap();
        assert_eq!(engine.admit(handle), Ok(expected), "salt {salt:?}");
        engine.finish(handle).unwrap();
        engine.close(handle).unwrap();
    }
    // Nor by way of an announcement.
    let first = engine.open(&[8; 9], Some("a"), 1, &[]).unwrap();
    engine.admit(first).unwrap();
    engine.append(first, 9, &[]).unwrap();
    for (salt, expected) in [("b", 0), ("a", 8)] {
        let second = engine.open(&[8; 9], Some(salt), 1, &[]).unwrap();
        assert_eq!(engine.admit(second), Ok(expected));
    }
}

/// vllm#11186, #17999: nothing was left to compute for a prompt that was cached to its last token.
/// vLLM 0.32.0 also leaves one more copy of the last block with each repeat.
#[test]
fn an_aligned_prompt_computes_its_last_block_and_leaves_no_second_copy_of_it() {
    for blocks in 1..=3 {
        let mut engine = Engine::new(pool_of(16));
        for repeat in 0..4 {
            let handle = engine.open(&prompt(4 * blocks), None, 1, &[]).unwrap();
            let hits = if repeat == 0 { 0 } else { 4 * (blocks - 1) };
            assert_eq!(engine.admit(handle), Ok(hits));
            engine.finish(handle).unwrap();
            engine.close(handle).unwrap();
            assert_eq!(engine.manager.pool().stats().hashed, blocks as usize);
        }
    }
}

/// Three identical prompts in one batch, as vllm#37152 and sgl-project/sglang#38319 have them.
fn three_identical(engine: &mut Engine) -> [SeqHandle; 3] {
    [0; 3].map(|_| {
        let handle = engine.open(&prompt(10), None, 6, &[]).unwrap();
        engine.admit(handle).unwrap();
        engine.manager.schedule_running(100, 100).unwrap();
        handle
    })
}

fn serial_answer() -> Vec<u32> {
    let mut engine = Engine::new(Setup::default());
    let handle = engine.open(&prompt(10), None, 6, &[]).unwrap();
    engine.finish(handle).unwrap();
    engine.manager.tokens(handle).unwrap().to_vec()
}

/// vllm#37152, sgl-project/sglang#38319: blocks registered in the middle of a step were read too
/// early.
#[test]
fn identical_prompts_in_one_batch_answer_as_if_served_one_by_one() {
    let mut engine = Engine::new(Setup::default());
    let handles = three_identical(&mut engine);
    engine.prepare().unwrap();
    engine.commit().unwrap();
    for handle in handles {
        engine.finish(handle).unwrap();
        assert_eq!(engine.manager.tokens(handle).unwrap(), serial_answer());
    }
}

/// As above, with the first sequence gone between schedule and execution: the others had counted on
/// blocks that now nobody fills.
#[test]
fn those_who_counted_on_an_aborted_sequence_are_preempted_and_answer_the_same() {
    for preempt in [false, true] {
        let mut engine = Engine::new(Setup::default());
        let [first, second, third] = three_identical(&mut engine);
        let others = if preempt {
            engine.manager.preempt(first).unwrap().to_vec()
        } else {
            engine.manager.close(first).unwrap().to_vec()
        };
        assert_eq!(others, [second, third]);
        assert_eq!(in_use(&engine), 0);
        assert_eq!(engine.manager.stats().announced_blocks, 0);
        assert!(matches!(
            engine.prepare(),
            Err(ManagerError::NothingScheduled)
        ));
        for handle in others {
            engine.finish(handle).unwrap();
            assert_eq!(engine.manager.tokens(handle).unwrap(), serial_answer());
        }
    }
}

/// huggingface/text-generation-inference#2711: slots of drafts were taken to be contiguous.
#[test]
fn each_draft_has_the_slot_of_its_own_block_when_blocks_are_scattered() {
    let mut engine = Engine::new(pool_of(16));
    let [first, second] = [0, 1].map(|nth| {
        let handle = engine.open(&[nth + 1; 6], None, 20, &[]).unwrap();
        engine.admit(handle).unwrap();
        handle
    });
    engine.step().unwrap();
    // The first has blocks 1 and 2; a third block can only come after the second's.
    assert_eq!(engine.blocks(first, 0), [1, 2]);
    assert_eq!(engine.blocks(second, 0), [3, 4]);
    engine
        .append_with_drafts(first, 1, &[true, true, false])
        .unwrap();
    assert_eq!(engine.blocks(first, 0), [1, 2, 5]);
    // Positions 6 and 7 end block 2, positions 8 and 9 begin block 5.
    let slots: Vec<_> = engine.manager.slots_of(first, 0).unwrap().collect();
    assert_eq!(slots, [2 * 4 + 2, 2 * 4 + 3, 5 * 4, 5 * 4 + 1]);
    engine.prepare().unwrap();
    engine.commit().unwrap();
    // Two drafts were right, so three tokens are new.
    assert_eq!(engine.manager.num_tokens(first), Ok(10));
    assert_eq!(engine.manager.num_computed_tokens(first), Ok(9));
    engine.finish(first).unwrap();
    engine.finish(second).unwrap();
}

/// llm-d/llm-d-inference-sim#704, #701: blocks released together were evicted in any order, and
/// hits were counted past a hole.
#[test]
fn the_end_of_a_prefix_is_evicted_first_and_hits_stop_at_a_hole() {
    let mut engine = Engine::new(pool_of(3));
    run_to_end(&mut engine, &prompt(12), 1);
    run_to_end(&mut engine, &[9], 1);
    let again = engine.open(&prompt(12), None, 1, &[]).unwrap();
    assert_eq!(
        engine
            .manager
            .match_prefix(again)
            .unwrap()
            .num_cached_tokens,
        8
    );
    engine.manager.pool().retract(1).unwrap();
    assert_eq!(
        engine
            .manager
            .match_prefix(again)
            .unwrap()
            .num_cached_tokens,
        0
    );
}

/// vllm#48489: deferred frees of several groups lost the order of each.
#[test]
fn a_deferred_release_evicts_in_the_same_order_as_an_immediate_one() {
    let order = |deferred: bool| {
        let mut engine = Engine::new(Setup {
            groups: 2,
            ..pool_of(12)
        });
        let handle = engine.open(&prompt(13), None, 9, &[]).unwrap();
        engine.admit(handle).unwrap();
        engine.step().unwrap();
        engine.step().unwrap();
        if deferred {
            engine.manager.schedule_running(1, 1).unwrap();
            engine.prepare().unwrap();
            engine.close(handle).unwrap();
            assert_eq!(in_use(&engine), 8);
            engine.commit().unwrap();
        } else {
            engine.close(handle).unwrap();
        }
        engine.check();
        assert_eq!(in_use(&engine), 0);
        engine.manager.pool().free_order()
    };
    assert_eq!(order(true), order(false));
}

/// EricLBuehler/mistral.rs#167: cached prefixes were not given up before running out of memory.
#[test]
fn a_pool_full_of_unreferenced_cache_admits_a_new_prompt() {
    let mut engine = Engine::new(pool_of(4));
    run_to_end(&mut engine, &prompt(16), 1);
    assert_eq!(engine.manager.pool().stats().cached_free, 4);
    run_to_end(&mut engine, &[9; 15], 1);
    assert_eq!(engine.manager.pool().stats().evictions, 4);
}

/// vllm#35541: a request larger than the pool waited for ever, and everybody behind it.
#[test]
fn a_sequence_larger_than_the_pool_is_refused_with_numbers() {
    let mut engine = Engine::new(pool_of(4));
    let error = engine.open(&prompt(100), None, 1, &[]).unwrap_err();
    assert_eq!(
        error,
        ManagerError::CanNeverFit {
            tokens: 100,
            asked: 25,
            usable: 4
        }
    );
    run_to_end(&mut engine, &prompt(3), 1);

    // One that grows out of it is named when it does.
    let handle = engine.open(&prompt(12), None, 40, &[]).unwrap();
    engine.admit(handle).unwrap();
    let blocked = loop {
        let outcome = engine.manager.schedule_running(100, 100).unwrap();
        if let Some(blocked) = outcome.blocked {
            break blocked;
        }
        engine.prepare().unwrap();
        engine.commit().unwrap();
    };
    assert_eq!(
        (blocked.handle, blocked.missing, blocked.can_never_fit),
        (handle, 1, true)
    );
    assert_eq!(engine.manager.num_tokens(handle), Ok(17));
    engine.close(handle).unwrap();
    assert_eq!(in_use(&engine), 0);
}

/// vllm#6586: an abort between schedule and result killed the engine.
#[test]
fn a_sequence_can_be_closed_in_every_state() {
    let mut engine = Engine::new(Setup {
        steps_in_flight: 2,
        ..Setup::default()
    });
    let open = |engine: &mut Engine| engine.open(&prompt(10), None, 9, &[]).unwrap();
    let steady = open(&mut engine);
    engine.admit(steady).unwrap();

    let waiting = open(&mut engine);
    engine.close(waiting).unwrap();
    assert_eq!(
        engine.manager.close(waiting),
        Err(ManagerError::UnknownHandle {
            handle: waiting.raw()
        })
    );

    let scheduled = open(&mut engine);
    engine.admit(scheduled).unwrap();
    engine.append(scheduled, 4, &[]).unwrap();
    engine.close(scheduled).unwrap();

    let in_flight = open(&mut engine);
    engine.admit(in_flight).unwrap();
    engine.manager.schedule_running(100, 7).unwrap();
    engine.prepare().unwrap();
    engine.manager.schedule_running(100, 7).unwrap();
    engine.prepare().unwrap();
    engine.close(in_flight).unwrap();
    engine.check();
    engine.commit().unwrap();
    engine.commit().unwrap();

    let preempted = open(&mut engine);
    engine.admit(preempted).unwrap();
    engine.preempt(preempted).unwrap();
    engine.close(preempted).unwrap();

    engine.finish(steady).unwrap();
    engine.close(steady).unwrap();
    engine.check();
    assert_eq!((in_use(&engine), engine.manager.num_open()), (0, 0));
}

/// vllm#43810, NVIDIA/TensorRT-LLM#18673: padding was used as an index and overwrote a slot.
#[test]
fn padding_names_no_slot_and_no_row() {
    let setup = Setup {
        max_num_batched_tokens: 8,
        ..Setup::default()
    };
    let mut manager = setup.manager();
    let mut arrays = simulation::Arrays::new(manager.buffer_sizes());
    for nth in 0..3 {
        let tokens = [nth + 1; 1];
        let params = OpenParams {
            tokens: &tokens,
            max_tokens: 4,
            ..<_>::default()
        };
        let handle = manager.open(params).unwrap();
        manager.admit(handle, 0).unwrap();
    }
    manager.schedule_running(8, 8).unwrap();
    let info = arrays.prepare(&mut manager).unwrap();
    arrays.assert_padded(&info);
    assert_eq!(arrays.slot_mapping[0], [4, 8, 12, -1, -1, -1, -1, -1]);
    assert_eq!(arrays.seq_lens, [1, 1, 1, 0, 0, 0, 0, 0]);
    assert_eq!(arrays.cu_seqlens_q, [0, 1, 2, 3, 3, 3, 3, 3, 3]);
}

/// sglang#35049, vllm#32255 and vllm#46283: a request was aborted while its blocks were being
/// filled; they were given to the next one at once, and the late write landed there. Or the blocks
/// were held for ever.
#[test]
fn blocks_that_are_being_filled_stay_out_of_reach_when_their_request_is_aborted() {
    let mut engine = Engine::new(pool_of(6));
    let handle = engine.open(&prompt(17), None, 1, &[]).unwrap();
    engine.admit_loading(handle, 12).unwrap();
    let filled = engine.blocks(handle, 0)[..3].to_vec();
    engine.close(handle).unwrap();
    engine.check();
    assert_eq!(in_use(&engine), 3, "the blocks behind those are free");

    let other = engine.open(&prompt(9), Some("other"), 3, &[]).unwrap();
    engine.admit(other).unwrap();
    let taken = engine.blocks(other, 0);
    assert!(taken.iter().all(|block| !filled.contains(block)));
    engine.finish_load(0, 0).unwrap();
    engine.check();
    engine.finish(other).unwrap();
    engine.close(other).unwrap();
    assert_eq!(in_use(&engine), 0);
    let late = engine.manager.finish_load(handle, 12);
    assert!(matches!(late, Err(ManagerError::UnknownHandle { .. })));
}
