//! Two managers over one pool, which take turns: what one has promised is nothing to the other.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use std::sync::{Arc, Mutex};

use looseleaf::SeqHandle;
use simulation::{Engine, Setup};

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|at| 3 * at + 1).collect()
}

fn two_engines() -> [Engine; 2] {
    let setup = Setup::default();
    let (pool, memory) = (setup.pool(), Arc::new(Mutex::new(setup.memory())));
    [0, 1].map(|_| Engine::over(setup, Arc::clone(&pool), &memory))
}

fn open(engine: &mut Engine) -> SeqHandle {
    engine.open(&prompt(9), None, 3, &[]).unwrap()
}

fn hit_tokens(engine: &Engine, handle: SeqHandle) -> u32 {
    let found = engine.manager.match_prefix(handle).unwrap();
    found.num_cached_tokens
}

#[test]
fn a_block_that_a_step_is_to_fill_is_shared_within_its_manager_and_found_by_others_once_filled() {
    let [mut ours, mut theirs] = two_engines();
    let writer = open(&mut ours);
    let [our, their] = [open(&mut ours), open(&mut theirs)];
    ours.admit(writer).unwrap();
    ours.append(writer, 9, &[]).unwrap();
    for prepare in [false, true] {
        if prepare {
            ours.prepare().unwrap();
        }
        assert_eq!((hit_tokens(&ours, our), hit_tokens(&theirs, their)), (8, 0));
    }
    ours.commit().unwrap();
    assert_eq!((hit_tokens(&ours, our), hit_tokens(&theirs, their)), (8, 8));
    // Their row reads what ours has written.
    assert_eq!(theirs.admit(their), Ok(8));
    theirs.manager.schedule_running(1, 1).unwrap();
    theirs.prepare().unwrap();
    theirs.commit().unwrap();
    assert_eq!(ours.manager.tokens(writer), theirs.manager.tokens(their));
}

#[test]
fn a_block_that_a_failed_step_was_to_fill_is_found_by_nobody() {
    let [mut ours, mut theirs] = two_engines();
    let writer = open(&mut ours);
    let [our, their] = [open(&mut ours), open(&mut theirs)];
    ours.admit(writer).unwrap();
    ours.append(writer, 9, &[]).unwrap();
    ours.prepare().unwrap();
    ours.fail(0).unwrap();
    assert_eq!((hit_tokens(&ours, our), hit_tokens(&theirs, their)), (0, 0));
}
