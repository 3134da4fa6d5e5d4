//! Several managers over one pool, each in its own thread: hits, evictions and admissions race.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use std::sync::{Arc, Mutex};
use std::thread;

use looseleaf::{ManagerError, SeqHandle};
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

/// Prefix tokens hit, hits lost to another thread, evictions and collisions, of one round.
fn round(setup: Setup) -> [u64; 4] {
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
    let (mut hits, mut lost) = (0, 0);
    for engine in threads {
        let engine = engine.join().expect("the thread's checks hold");
        hits += engine.manager.stats().prefix_hits;
        lost += engine.manager.stats().lost_hits;
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
    [hits, lost, stats.evictions, stats.collisions]
}

/// Rounds go on until the rarest thing has happened: that a block was evicted between a manager's
/// looking it up and its taking it. About every fifth round sees one.
#[test]
fn managers_in_threads_read_only_their_own_prefixes_from_a_shared_pool() {
    rounds(setup(false), |[hits, lost, evictions, _]| {
        [hits, lost, evictions]
    });
}

#[test]
fn managers_in_threads_read_only_their_own_prefixes_when_hashes_collide() {
    rounds(setup(true), |[hits, _, evictions, collisions]| {
        [hits, evictions, collisions]
    });
}

fn rounds(setup: Setup, required: fn([u64; 4]) -> [u64; 3]) {
    let mut seen = [0; 4];
    for _ in 0..100 {
        for (seen, more) in seen.iter_mut().zip(round(setup)) {
            *seen += more;
        }
        if required(seen).iter().all(|&count| count > 0) {
            return;
        }
    }
    panic!("hits, lost hits, evictions and collisions: {seen:?}");
}
