//! Several managers over one pool, each in its own thread: hits, evictions and admissions race.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use looseleaf::{KVCacheManager, ManagerError, OpenParams, SeqHandle};
use simulation::{Engine, Setup};

const REQUESTS: u32 = 200;

fn setup(verify_tokens: bool) -> Setup {
    Setup {
        // With tokens verified, every hash is that of many prefixes.
        hash_bits: verify_tokens.then_some(4),
        verify_tokens,
        usable_blocks: 20,
        block_size: 2,
        max_num_seqs: 4,
        ..Setup::default()
    }
}

/// Serves requests with few beginnings, two or three at a time, and preempts the newest when
/// blocks run out. Rows read the memory that all managers write.
fn serve(mut engine: Engine, seed: u32) -> Engine {
    engine.vocabulary = 2;
    let mut running: Vec<SeqHandle> = Vec::new();
    let mut waiting: Vec<SeqHandle> = Vec::new();
    let mut opened = 0;
    while opened < REQUESTS || !running.is_empty() || !waiting.is_empty() {
        if opened < REQUESTS && waiting.len() + running.len() < 4 {
            let kind = (opened * 7 + seed) % 5;
            let tokens: Vec<u32> = (0..6 + 2 * kind).map(|at| at % (kind + 1)).collect();
            waiting.push(engine.open(&tokens, None, 1 + kind, &[]).unwrap());
            opened += 1;
        }
        while let Some(&next) = waiting.first() {
            match engine.manager.admit(next, 0) {
                Ok(_) => running.push(waiting.remove(0)),
                Err(ManagerError::OutOfBlocks { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        while engine
            .manager
            .schedule_running(40, 6)
            .unwrap()
            .blocked
            .is_some()
        {
            let newest = running.pop().expect("a blocked sequence runs");
            engine.preempt(newest).unwrap();
            waiting.insert(0, newest);
        }
        match engine.prepare() {
            Ok(_) => engine.commit().unwrap(),
            Err(ManagerError::NothingScheduled) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        running.retain(|&handle| {
            let finished = engine.manager.finish_reason(handle).unwrap().is_some();
            if finished {
                engine.close(handle).unwrap();
            }
            !finished
        });
        engine.manager.check_invariants().unwrap();
    }
    engine
}

/// Prefix tokens hit, evictions and collisions.
fn round(setup: Setup) -> [u64; 3] {
    let pool = setup.pool();
    let memory = Arc::new(Mutex::new(setup.memory()));
    let engines = [0, 1, 2].map(|_| Engine::over(setup, Arc::clone(&pool), &memory));
    let threads = (0..).zip(engines);
    let threads: Vec<_> = threads
        .map(|(seed, engine)| thread::spawn(move || serve(engine, seed)))
        .collect();
    let mut calm = Engine::new(Setup {
        usable_blocks: 400,
        prefix_caching: false,
        ..setup
    });
    calm.vocabulary = 2;
    let mut hits = 0;
    for engine in threads {
        let engine = engine.join().expect("the thread's checks hold");
        hits += engine.manager.stats().prefix_hits;
        for mirror in engine.mirrors.values() {
            let prompt = &mirror.tokens[..mirror.prompt_len];
            let handle = calm.open(prompt, None, mirror.max_tokens, &[]).unwrap();
            calm.finish(handle).unwrap();
            assert_eq!(calm.manager.tokens(handle).unwrap(), mirror.tokens);
            calm.close(handle).unwrap();
        }
    }
    pool.check_invariants().unwrap();
    assert_eq!(pool.stats().in_use, 0);
    let stats = pool.stats();
    [hits, stats.evictions, stats.collisions]
}

#[test]
fn managers_in_threads_read_only_their_own_prefixes_from_a_shared_pool() {
    let [hits, evictions, _] = round(setup(false));
    assert!(
        hits > 0 && evictions > 0,
        "{hits} hits, {evictions} evictions"
    );
}

#[test]
fn managers_in_threads_read_only_their_own_prefixes_when_hashes_collide() {
    let [hits, evictions, collisions] = round(setup(true));
    assert!(
        hits > 0 && evictions > 0 && collisions > 0,
        "{hits} hits, {evictions} evictions, {collisions} collisions"
    );
}

/// Another thread makes the last block of a long prefix come and go, until an admission has found
/// it and could not take it. That takes thousands of admissions at most: the time between the two
/// is most of what an admission lasts.
#[test]
fn an_admission_that_loses_a_hit_looks_again_and_takes_what_is_there() {
    const BLOCKS: u32 = 200;
    let setup = Setup {
        usable_blocks: 3 * BLOCKS,
        block_size: 2,
        max_model_len: 4 * BLOCKS,
        max_num_batched_tokens: 4 * BLOCKS,
        ..Setup::default()
    };
    let pool = setup.pool();
    let mut manager = KVCacheManager::new(Arc::clone(&pool), setup.config()).unwrap();
    let tokens: Vec<u32> = (0..=2 * BLOCKS).collect();
    let params = OpenParams {
        tokens: &tokens,
        max_tokens: 10,
        ..OpenParams::default()
    };
    let holder = manager.open(params).unwrap();
    manager.admit(holder, 0).unwrap();
    manager.append(holder, tokens.len() as u32, &[]).unwrap();
    manager.commit(holder, &[7]).unwrap();
    let last = manager.block_ids(holder, 0).unwrap()[BLOCKS as usize - 1];
    let key = pool.key_of(last).expect("the commit published it");

    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                pool.retract(last).unwrap();
                pool.publish(last, &key).unwrap();
            }
        });
        let expected = [2 * BLOCKS, 2 * BLOCKS - 2];
        let mut cached = expected[0];
        while manager.stats().lost_hits == 0 && expected.contains(&cached) {
            let handle = manager.open(params).unwrap();
            cached = manager.admit(handle, 0).unwrap();
            manager.close(handle).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(expected.contains(&cached), "{cached} tokens cached");
    });
    manager.close(holder).unwrap();
    manager.check_invariants().unwrap();
    assert_eq!(pool.stats().in_use, 0);
}
