//! What the manager refuses: with numbers, and without a trace.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use std::sync::Arc;

use looseleaf::{
    BlockPool, HashAlgo, KVCacheManager, KeyWidth, ManagerConfig, ManagerError, OpenParams,
    PoolConfig, PoolError, SeqHandle,
};
use simulation::Setup;

fn refusal(change: impl FnOnce(&mut ManagerConfig)) -> String {
    let setup = Setup::default();
    let mut config = setup.config();
    change(&mut config);
    KVCacheManager::new(setup.pool(), config)
        .unwrap_err()
        .to_string()
}

fn open(manager: &mut KVCacheManager, tokens: &[u32]) -> SeqHandle {
    manager
        .open(OpenParams {
            tokens,
            max_tokens: 9,
            ..<_>::default()
        })
        .unwrap()
}

fn admitted(manager: &mut KVCacheManager, tokens: &[u32]) -> SeqHandle {
    let handle = open(manager, tokens);
    manager.admit(handle, 0).unwrap();
    handle
}

#[test]
fn a_configuration_is_refused_by_field_and_value() {
    assert_eq!(
        refusal(|it| it.groups.clear()),
        "groups is 0; allowed is 1 to 64"
    );
    assert_eq!(
        refusal(|it| it.max_num_seqs = 0),
        "max_num_seqs is 0; allowed is 1 to 65,536"
    );
    assert!(refusal(|it| it.max_model_len = 0).starts_with("max_model_len is 0"));
    assert!(refusal(|it| it.max_num_batched_tokens = u32::MAX).contains("4294967295"));
    assert_eq!(
        refusal(|it| it.max_steps_in_flight = 3),
        "max_steps_in_flight is 3; allowed is 1 or 2"
    );
}

#[test]
fn groups_of_different_block_sizes_are_refused_in_a_sentence() {
    let message = refusal(|config| {
        config.groups.push(config.groups[0].clone());
        config.groups[1].block_size = 16;
    });
    assert_eq!(
        message,
        "group 1 has blocks of 16 tokens and group 0 blocks of 4; the groups of one manager must \
         have the same block size"
    );
}

#[test]
fn keys_that_the_pool_cannot_keep_are_refused_unless_nothing_is_cached() {
    let pool = PoolConfig {
        key_width: KeyWidth::Bits128,
        ..PoolConfig::new(8)
    };
    let pool = Arc::new(BlockPool::new(pool).unwrap());
    let mut config = Setup::default().config();
    config.hash_algo = HashAlgo::Sha256Cbor;
    let refused = KVCacheManager::new(Arc::clone(&pool), config.clone()).unwrap_err();
    assert_eq!(
        refused,
        ManagerError::Pool(PoolError::KeyTooWide { bits: 128 })
    );
    config.enable_prefix_caching = false;
    assert!(KVCacheManager::new(pool, config).is_ok());
}

#[test]
fn a_request_is_refused_by_field_and_value() {
    let mut manager = Setup {
        max_model_len: 10,
        ..Setup::default()
    }
    .manager();
    let mut refused = |tokens: &[u32], max_tokens| {
        let params = OpenParams {
            tokens,
            max_tokens,
            ..<_>::default()
        };
        manager.open(params).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&[], 1),
        "the number of prompt tokens is 0; allowed is at least 1"
    );
    assert_eq!(refused(&[1], 0), "max_tokens is 0; allowed is at least 1");
    assert_eq!(
        refused(&[1; 10], 1),
        "a sequence of 11 tokens is longer than max_model_len, 10"
    );
    assert_eq!(manager.num_open(), 0);
}

#[test]
fn running_out_of_blocks_says_how_many_are_missing_and_changes_nothing() {
    let mut manager = Setup {
        usable_blocks: 6,
        ..Setup::default()
    }
    .manager();
    let first = admitted(&mut manager, &[1; 16]);
    let second = open(&mut manager, &[2; 15]);
    let refused = manager.admit(second, 0).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "2 blocks are missing: asked for 4 blocks, 2 free (0 of them cached), 4 in use, pool of 7"
    );
    let third = admitted(&mut manager, &[3; 8]);
    let before = (manager.pool().free_order(), manager.references());
    let refused = manager.append(first, 17, &[7]).unwrap_err();
    assert!(
        matches!(refused, ManagerError::OutOfBlocks { missing: 1, .. }),
        "{refused}"
    );
    assert_eq!((manager.pool().free_order(), manager.references()), before);
    assert_eq!(manager.slots_of(first, 0).unwrap().count(), 0);
    manager.preempt(third).unwrap();
    manager.append(first, 17, &[7]).unwrap();
    assert_eq!(manager.slots_of(first, 0).unwrap().count(), 17);
}

#[test]
fn the_scheduler_names_the_row_that_cannot_grow_and_goes_on_from_there() {
    let mut manager = Setup {
        usable_blocks: 6,
        ..Setup::default()
    }
    .manager();
    let handles = [1, 2, 3].map(|token| admitted(&mut manager, &[token; 8]));
    manager.schedule_running(100, 100).unwrap();
    let mut arrays = simulation::Arrays::new(manager.buffer_sizes());
    let info = arrays.prepare(&mut manager).unwrap();
    manager.commit_step(info.step, &[5, 5, 5]).unwrap();

    let outcome = manager.schedule_running(100, 100).unwrap();
    assert_eq!(outcome.num_tokens_scheduled, 0);
    let blocked = outcome.blocked.unwrap();
    assert_eq!(
        (blocked.handle, blocked.missing, blocked.can_never_fit),
        (handles[0], 1, false)
    );
    manager.preempt(handles[2]).unwrap();
    let outcome = manager.schedule_running(100, 100).unwrap();
    assert_eq!((outcome.num_tokens_scheduled, outcome.blocked), (2, None));
    manager.check_invariants().unwrap();
}

#[test]
fn decoding_rows_come_before_prefills_and_budget_and_chunk_are_kept() {
    let mut manager = Setup::default().manager();
    let long = admitted(&mut manager, &[1; 30]);
    let short = admitted(&mut manager, &[2; 1]);
    let middle = admitted(&mut manager, &[3; 9]);
    let lens = |manager: &KVCacheManager| {
        [long, short, middle].map(|handle| manager.slots_of(handle, 0).unwrap().count())
    };
    let outcome = manager.schedule_running(16, 12).unwrap();
    assert_eq!(
        (outcome.num_tokens_scheduled, lens(&manager)),
        (16, [12, 1, 3])
    );
    // What is scheduled is passed over.
    assert_eq!(
        manager
            .schedule_running(16, 12)
            .unwrap()
            .num_tokens_scheduled,
        0
    );
    manager.preempt(long).unwrap();
    assert_eq!(
        manager
            .schedule_running(16, 12)
            .unwrap()
            .num_tokens_scheduled,
        0
    );
}

#[test]
fn appends_that_make_no_sense_are_refused() {
    let setup = Setup {
        max_model_len: 32,
        max_num_batched_tokens: 40,
        ..Setup::default()
    };
    let mut manager = setup.manager();
    let waiting = open(&mut manager, &[1; 4]);
    let handle = admitted(&mut manager, &[1; 4]);
    let raw = handle.raw();
    let mut refused = |handle, k, drafts: &[u32]| manager.append(handle, k, drafts).unwrap_err();
    assert_eq!(
        refused(waiting, 1, &[]),
        ManagerError::NotAdmitted {
            handle: waiting.raw()
        }
    );
    assert!(matches!(
        refused(handle, 0, &[]),
        ManagerError::InvalidRequest { found: 0, .. }
    ));
    let (asked, left, max_num_batched_tokens) = (41, 40, 40);
    let expected = ManagerError::BudgetExceeded {
        asked,
        left,
        max_num_batched_tokens,
    };
    assert_eq!(refused(handle, 41, &[]), expected);
    let expected = ManagerError::TooLong {
        tokens: 33,
        max_model_len: 32,
    };
    assert_eq!(refused(handle, 33, &[]), expected);
    assert_eq!(
        refused(handle, 3, &[9]),
        ManagerError::DraftMismatch {
            found: 1,
            unknown: 0
        }
    );
    assert_eq!(
        refused(handle, 6, &[9]),
        ManagerError::DraftMismatch {
            found: 1,
            unknown: 2
        }
    );
    manager.append(handle, 4, &[]).unwrap();
    let expected = ManagerError::AlreadyScheduled {
        handle: raw,
        step: 1,
    };
    assert_eq!(manager.append(handle, 1, &[]), Err(expected));
    let unknown = SeqHandle::from_raw(u64::MAX);
    assert_eq!(
        manager.append(unknown, 1, &[]),
        Err(ManagerError::UnknownHandle { handle: u64::MAX })
    );
    assert_eq!(
        manager.admit(handle, 0),
        Err(ManagerError::AlreadyAdmitted { handle: raw })
    );
    assert_eq!(
        manager.block_ids(handle, 1),
        Err(ManagerError::UnknownGroup {
            group: 1,
            groups: 1
        })
    );
    manager.check_invariants().unwrap();
}

#[test]
fn commits_that_make_no_sense_are_refused() {
    let mut manager = Setup::default().manager();
    let mut arrays = simulation::Arrays::new(manager.buffer_sizes());
    let [first, second] = [1, 2].map(|token| admitted(&mut manager, &[token; 8]));
    manager.append(first, 8, &[]).unwrap();
    manager.append(second, 4, &[]).unwrap();
    let step = arrays.prepare(&mut manager).unwrap().step;
    // One row samples.
    let mut refused = |sampled: &[i32]| manager.commit_step(step, sampled).unwrap_err();
    assert_eq!(
        refused(&[]),
        ManagerError::SampleCount {
            found: 0,
            expected: 1
        }
    );
    assert_eq!(
        refused(&[1, 2]),
        ManagerError::SampleCount {
            found: 2,
            expected: 1
        }
    );
    assert_eq!(
        refused(&[-1]),
        ManagerError::InvalidToken { row: 0, found: -1 }
    );
    let refused = manager.commit_step(step + 1, &[1]).unwrap_err();
    assert_eq!(
        refused,
        ManagerError::UnknownStep {
            step: step + 1,
            oldest: Some(step)
        }
    );
    let refused = manager.fail_step(step + 1).unwrap_err();
    assert_eq!(
        refused,
        ManagerError::UnknownStep {
            step: step + 1,
            oldest: Some(step)
        }
    );
    let refused = manager.commit(second, &[3]).unwrap_err();
    assert_eq!(
        refused,
        ManagerError::AcceptedCount {
            found: 1,
            at_least: 0,
            at_most: 0
        }
    );
    let refused = manager.commit(first, &[3, 4]).unwrap_err();
    assert_eq!(
        refused,
        ManagerError::AcceptedCount {
            found: 2,
            at_least: 0,
            at_most: 1
        }
    );
    manager.commit_step(step, &[3]).unwrap();

    manager.append(first, 3, &[4, 5]).unwrap();
    let refused = manager.commit(first, &[4, 6, 7]).unwrap_err();
    let expected = ManagerError::AcceptedMismatch {
        position: 10,
        drafted: 5,
        accepted: 6,
    };
    assert_eq!(refused, expected);
    manager.commit(first, &[4, 6]).unwrap();
    assert_eq!(manager.tokens(first).unwrap()[8..], [3, 4, 6]);
    manager.check_invariants().unwrap();
}

#[test]
fn a_finished_sequence_takes_no_tokens_and_no_blocks() {
    let mut manager = Setup::default().manager();
    let params = OpenParams {
        tokens: &[1; 4],
        max_tokens: 1,
        ..<_>::default()
    };
    let handle = manager.open(params).unwrap();
    manager.admit(handle, 0).unwrap();
    manager.append(handle, 4, &[]).unwrap();
    manager.commit(handle, &[9]).unwrap().unwrap();
    let expected = ManagerError::AlreadyFinished {
        handle: handle.raw(),
    };
    assert_eq!(manager.append(handle, 1, &[]), Err(expected.clone()));
    assert_eq!(manager.push_token(handle, 1), Err(expected.clone()));
    manager.preempt(handle).unwrap();
    assert_eq!(manager.admit(handle, 0), Err(expected));
}

#[test]
fn a_handle_of_one_manager_means_nothing_to_another() {
    let [mut ours, mut theirs] = [Setup::default(), Setup::default()].map(|setup| setup.manager());
    let params = OpenParams {
        tokens: &[1, 2, 3],
        max_tokens: 4,
        ..<_>::default()
    };
    let (first, foreign) = (ours.open(params).unwrap(), theirs.open(params).unwrap());
    let unknown = ManagerError::UnknownHandle {
        handle: foreign.raw(),
    };
    assert_eq!(ours.admit(foreign, 0), Err(unknown.clone()));
    assert_eq!(ours.close(foreign).map(<[_]>::to_vec), Err(unknown));
    assert_eq!(ours.num_open(), 1);
    ours.close(first).unwrap();
}

#[test]
fn a_manager_verifies_tokens_if_its_pool_does_and_in_blocks_of_the_same_size() {
    let build = |pool_tokens, verify_tokens, enable_prefix_caching| {
        let pool = BlockPool::new(PoolConfig {
            verify_tokens: pool_tokens,
            ..PoolConfig::new(9)
        });
        let config = ManagerConfig {
            verify_tokens,
            enable_prefix_caching,
            ..Setup::default().config()
        };
        let manager = KVCacheManager::new(Arc::new(pool.unwrap()), config);
        manager.map(drop).map_err(|error| error.to_string())
    };
    let refusal = |text: &str| Err(format!("verify_tokens of the pool is {text}"));
    assert_eq!(
        build(0, true, true),
        refusal("0; allowed is the manager's block size")
    );
    assert_eq!(
        build(8, true, true),
        refusal("8; allowed is the manager's block size")
    );
    assert_eq!(
        build(4, false, true),
        refusal("4; allowed is 0, unless the manager verifies tokens too")
    );
    for (pool_tokens, verify_tokens, caching) in [
        (0, false, true),
        (4, true, true),
        (0, true, false),
        (4, false, false),
    ] {
        assert_eq!(build(pool_tokens, verify_tokens, caching), Ok(()));
    }
}

#[test]
fn tokens_from_outside_are_refused_with_numbers_when_there_is_no_place_for_them() {
    let mut manager = Setup::default().manager();
    let first = admitted(&mut manager, &[5; 9]);
    manager.append(first, 9, &[]).unwrap();
    manager.commit(first, &[7]).unwrap();

    let handle = open(&mut manager, &[5; 9]);
    for offered in [1, u32::MAX] {
        assert_eq!(
            manager.admit(handle, offered).unwrap_err().to_string(),
            format!(
                "{offered} external tokens are offered and 0 can be taken: the sequence has 9, the first 8 are \
                 cached, and the last one is always computed"
            )
        );
    }
    assert_eq!(manager.row(handle), Ok(None));
    assert_eq!(manager.admit(handle, 0), Ok(8));
    let raw = handle.raw();
    assert_eq!(
        manager.finish_load(handle, 0),
        Err(ManagerError::NotLoading { handle: raw })
    );
}

#[test]
fn a_sequence_whose_blocks_are_being_filled_is_left_alone() {
    let mut manager = Setup::default().manager();
    let handle = open(&mut manager, &[5; 9]);
    manager.admit(handle, 6).unwrap();
    let loading = ManagerError::Loading {
        handle: handle.raw(),
    };
    assert_eq!(manager.append(handle, 1, &[]), Err(loading.clone()));
    assert_eq!(manager.fork(handle, 1), Err(loading.clone()));
    assert_eq!(manager.truncate(handle, 3), Err(loading.clone()));
    let too_many = manager.finish_load(handle, 7).unwrap_err().to_string();
    assert_eq!(
        too_many,
        "the number of loaded tokens is 7; allowed is at most the external tokens of the admission"
    );

    manager.preempt(handle).unwrap();
    assert_eq!(manager.admit(handle, 6), Err(loading));
    assert_eq!(
        manager.admit(handle, 0),
        Ok(0),
        "it can be computed meanwhile"
    );
    assert_eq!(manager.finish_load(handle, 6), Ok(false));
    manager.close(handle).unwrap();
    assert_eq!(manager.pool().num_free(), manager.pool().num_usable());
}
