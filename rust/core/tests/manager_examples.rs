//! Published examples of what sharing saves, by number, and what a prefix hit is.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use looseleaf::{DuplicatePolicy, SeqHandle};
use simulation::{Engine, Setup};

/// Pages of 16 tokens numbered from 0, as in the published examples.
fn pool_of_200() -> Setup {
    Setup {
        usable_blocks: 200,
        null_block: false,
        block_size: 16,
        max_model_len: 2048,
        max_num_batched_tokens: 2048,
        ..Setup::default()
    }
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|at| 7 * at + 3).collect()
}

/// Opens, admits and computes a prompt, and no more than that.
fn computed(engine: &mut Engine, tokens: &[u32], max_tokens: u32) -> SeqHandle {
    let handle = engine.open(tokens, None, max_tokens, &[]).unwrap();
    engine.admit(handle).unwrap();
    engine.step().unwrap();
    handle
}

/// Four samples of one 1,000-token prompt, 200 tokens each.
fn four_samples(engine: &mut Engine) -> Vec<SeqHandle> {
    let parent = computed(engine, &prompt(1000), 500);
    assert_eq!(engine.blocks(parent, 0), (0..63).collect::<Vec<_>>());
    let samples = engine.fork(parent, 4).unwrap();
    engine.close(parent).unwrap();
    assert_eq!(engine.manager.pool().ref_cnt(62), 4);
    // Each goes on with a token of its own.
    for (nth, &sample) in samples.iter().enumerate() {
        engine.truncate(sample, 1000).unwrap();
        engine.push_token(sample, 900 + nth as u32).unwrap();
    }
    samples
}

fn assert_shared_as_published(engine: &Engine, samples: &[SeqHandle]) {
    let pool = engine.manager.pool();
    assert_eq!(pool.num_usable() - pool.num_free(), 114);
    assert_eq!(pool.ref_cnt(0), 4);
    let ids = |sample: &SeqHandle| engine.blocks(*sample, 0)[62];
    assert_eq!(
        samples.iter().map(ids).collect::<Vec<_>>(),
        [63, 64, 65, 62]
    );
    assert!(
        samples
            .iter()
            .all(|&sample| engine.blocks(sample, 0).len() == 75)
    );
    assert_eq!(engine.manager.stats().block_copies, 3);
}

#[test]
fn four_samples_that_append_in_one_step_copy_three_blocks_and_write_one_in_place() {
    let mut engine = Engine::new(pool_of_200());
    let samples = four_samples(&mut engine);
    for _ in 0..200 {
        engine.step().unwrap();
    }
    assert_shared_as_published(&engine, &samples);
}

#[test]
fn four_samples_that_append_one_after_the_other_share_the_same_way() {
    let mut engine = Engine::new(pool_of_200());
    let samples = four_samples(&mut engine);
    for _ in 0..200 {
        for &sample in &samples {
            engine.append(sample, 1, &[]).unwrap();
            assert!(engine.commit_alone(sample).unwrap());
        }
        engine.check();
    }
    assert_shared_as_published(&engine, &samples);
}

#[test]
fn a_copy_is_scheduled_when_its_sharer_appends_and_its_reference_drops_at_once() {
    let mut engine = Engine::new(pool_of_200());
    let samples = four_samples(&mut engine);
    let pool = engine.manager.pool().clone();
    for (nth, &sample) in samples.iter().enumerate() {
        engine.append(sample, 1, &[]).unwrap();
        assert_eq!(pool.ref_cnt(62) as usize, (3 - nth).max(1));
    }
    let copies: Vec<_> = engine.manager.copies().collect();
    assert_eq!(copies, [(62, 63), (62, 64), (62, 65)]);
}

/// 50 chats over a system prompt of 1,000 tokens, each with up to 8 tokens of its own.
#[test]
fn fifty_chats_over_one_system_prompt_hold_112_blocks() {
    for block_size in [16, 128] {
        let setup = Setup {
            usable_blocks: 4096 / block_size * 16,
            max_num_seqs: 50,
            block_size,
            ..pool_of_200()
        };
        let mut engine = Engine::new(setup);
        let system = computed(&mut engine, &prompt(1000), 1);
        engine.close(system).unwrap();
        let mut chats = Vec::new();
        for chat in 0..50 {
            // Five tokens of a question that is nobody else's, and three of the answer.
            let question = (0..5).map(|at| 10_000 + 5 * chat + at);
            let tokens: Vec<_> = prompt(1000).into_iter().chain(question).collect();
            let chat = engine.open(&tokens, None, 3, &[]).unwrap();
            engine.admit(chat).unwrap();
            chats.push(chat);
        }
        for &chat in &chats {
            engine.finish(chat).unwrap();
        }
        let pool = engine.manager.pool();
        let reused = engine.manager.num_cached_tokens(chats[49]).unwrap();
        if block_size == 16 {
            let shared = |block: &&u32| pool.ref_cnt(**block) == 50;
            assert_eq!(engine.blocks(chats[0], 0).iter().filter(shared).count(), 62);
            assert_eq!(pool.num_usable() - pool.num_free(), 112);
            assert_eq!(reused, 992);
        } else {
            assert_eq!(reused, 896);
        }
        assert!(
            chats
                .iter()
                .all(|&chat| engine.manager.num_tokens(chat) == Ok(1008))
        );
        for chat in chats {
            engine.close(chat).unwrap();
        }
        engine.check();
        assert_eq!(engine.manager.stats().num_open, 0);
        let pool = engine.manager.pool();
        assert_eq!(pool.num_free(), pool.num_usable());
    }
}

#[test]
fn a_repeated_prompt_is_hit_in_whole_blocks_and_never_to_its_last_token() {
    for len in 1..40 {
        let mut engine = Engine::new(Setup::default());
        let first = engine.open(&prompt(len), None, 1, &[]).unwrap();
        engine.finish(first).unwrap();
        engine.close(first).unwrap();
        let second = engine.open(&prompt(len), None, 1, &[]).unwrap();
        assert_eq!(engine.admit(second), Ok((len - 1) / 4 * 4));
        engine.finish(second).unwrap();
        let stats = engine.manager.stats();
        let expected = (u64::from(2 * len), u64::from((len - 1) / 4 * 4));
        assert_eq!((stats.prefix_queries, stats.prefix_hits), expected);
    }
}

#[test]
fn generated_tokens_are_hit_like_prompt_tokens() {
    let mut engine = Engine::new(Setup::default());
    let first = engine.open(&prompt(6), None, 11, &[]).unwrap();
    engine.finish(first).unwrap();
    let turn = engine.manager.tokens(first).unwrap().to_vec();
    engine.close(first).unwrap();
    // 17 tokens, of which the last was never computed; the next turn adds three.
    let next: Vec<_> = turn.into_iter().chain([1, 2, 3]).collect();
    let second = engine.open(&next, None, 1, &[]).unwrap();
    assert_eq!(engine.admit(second), Ok(16));
    engine.finish(second).unwrap();
}

#[test]
fn a_preempted_sequence_finds_its_own_blocks_and_counts_apart_from_new_ones() {
    let mut engine = Engine::new(Setup::default());
    let handle = engine.open(&prompt(10), None, 20, &[]).unwrap();
    engine.admit(handle).unwrap();
    for _ in 0..5 {
        engine.step().unwrap();
    }
    engine.preempt(handle).unwrap();
    assert_eq!(engine.manager.row(handle), Ok(None));
    assert_eq!(engine.manager.num_tokens(handle), Ok(15));
    assert_eq!(engine.manager.num_computed_tokens(handle), Ok(0));
    let pool = engine.manager.pool();
    assert_eq!(pool.num_free(), pool.num_usable());

    // 14 tokens were computed: three full blocks, two of which have generated tokens.
    assert_eq!(engine.admit(handle), Ok(12));
    engine.finish(handle).unwrap();
    assert_eq!(engine.manager.num_cached_tokens(handle), Ok(0));
    let stats = engine.manager.stats();
    assert_eq!((stats.prefix_queries, stats.prefix_hits), (10, 0));
    assert_eq!((stats.preempted_queries, stats.preempted_hits), (15, 12));
    assert_eq!(stats.preemptions, 1);

    // The tokens are those of a sequence that was left in peace.
    let mut calm = Engine::new(Setup::default());
    let other = calm.open(&prompt(10), None, 20, &[]).unwrap();
    calm.finish(other).unwrap();
    assert_eq!(engine.manager.tokens(handle), calm.manager.tokens(other));
}

#[test]
fn external_tokens_count_as_computed_once_they_are_there() {
    let mut engine = Engine::new(Setup::default());
    let tokens = prompt(14);
    for (external, loaded) in [(5, 5), (13, 13), (13, 6), (8, 0)] {
        let handle = engine.manager.open(looseleaf::OpenParams {
            tokens: &tokens,
            max_tokens: 1,
            ..<_>::default()
        });
        let handle = handle.unwrap();
        engine.manager.pool().reset_prefix_cache().unwrap();
        assert_eq!(engine.manager.admit(handle, external), Ok(external));
        assert_eq!(engine.manager.num_computed_tokens(handle), Ok(0));
        let outcome = engine.manager.schedule_running(99, 99).unwrap();
        assert_eq!(outcome.num_tokens_scheduled, 0, "it is in no step");
        let blocks = engine.blocks(handle, 0).to_vec();
        let hashed = |engine: &Engine| {
            let key = |block: &&u32| engine.manager.pool().key_of(**block).is_some();
            blocks.iter().filter(key).count()
        };
        assert_eq!(
            hashed(&engine),
            0,
            "nobody finds a block before it is filled"
        );

        assert_eq!(engine.manager.finish_load(handle, loaded), Ok(true));
        assert_eq!(hashed(&engine), loaded as usize / 4);
        assert_eq!(engine.manager.num_computed_tokens(handle), Ok(loaded));
        assert_eq!(engine.manager.num_cached_tokens(handle), Ok(loaded));
        let outcome = engine.manager.schedule_running(99, 99).unwrap();
        assert_eq!(outcome.num_tokens_scheduled, 14 - loaded);
        engine.manager.close(handle).unwrap();
    }
    let stats = engine.manager.stats();
    assert_eq!((stats.prefix_hits, stats.external_tokens), (0, 24));
}

#[test]
fn tokens_from_outside_are_no_hits_when_a_preempted_sequence_resumes() {
    let mut engine = Engine::new(Setup::default());
    let handle = engine.open(&prompt(10), None, 20, &[]).unwrap();
    engine.admit(handle).unwrap();
    for _ in 0..5 {
        engine.step().unwrap();
    }
    engine.preempt(handle).unwrap();
    engine.manager.pool().reset_prefix_cache().unwrap();

    engine.admit_loading(handle, 99).unwrap();
    engine.finish_load(0, 0).unwrap();
    engine.check();
    assert_eq!(engine.manager.num_computed_tokens(handle), Ok(14));
    assert_eq!(engine.manager.num_cached_tokens(handle), Ok(0));
    let stats = engine.manager.stats();
    assert_eq!((stats.preempted_queries, stats.preempted_hits), (15, 0));
    assert_eq!(stats.external_tokens, 14);
    engine.finish(handle).unwrap();
}

/// Of identical prompts admitted in one step, all but the first wait for the first one's blocks;
/// vLLM 0.32.0 schedules 18, 2 and 2 tokens here.
#[test]
fn identical_prompts_of_one_step_are_computed_once() {
    for duplicate_policy in [DuplicatePolicy::FirstWins, DuplicatePolicy::KeepAll] {
        let mut engine = Engine::new(Setup {
            duplicate_policy,
            ..Setup::default()
        });
        let mut scheduled = Vec::new();
        let mut handles = Vec::new();
        for _ in 0..3 {
            let handle = engine.open(&prompt(18), None, 4, &[]).unwrap();
            engine.admit(handle).unwrap();
            let done = engine.manager.schedule_running(100, 100).unwrap();
            scheduled.push(done.num_tokens_scheduled);
            handles.push(handle);
        }
        assert_eq!(scheduled, [18, 2, 2]);
        assert_eq!(
            engine.blocks(handles[0], 0)[..4],
            engine.blocks(handles[2], 0)[..4]
        );
        // Nobody but this manager can see them yet.
        assert_eq!(engine.manager.pool().stats().hashed, 0);
        engine.prepare().unwrap();
        engine.commit().unwrap();
        assert_eq!(engine.manager.pool().stats().hashed, 4);
        for _ in 0..3 {
            engine.step().unwrap();
        }
        let [first, rest @ ..] = handles.as_slice() else {
            unreachable!()
        };
        let tokens = engine.manager.tokens(*first).unwrap();
        assert!(
            rest.iter()
                .all(|&handle| engine.manager.tokens(handle).unwrap() == tokens)
        );
    }
}
