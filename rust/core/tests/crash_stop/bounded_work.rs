//! How many accesses one call makes, whatever the size of the pool (INV-12).

use std::sync::Arc;

use looseleaf::crash_stop::{self, Plan};
use looseleaf::{BlockPool, PoolConfig};

use crate::MOST_ACCESSES;
use crate::ledger::key;

const SIZES: [u32; 2] = [60, 600];

/// Accesses of one call, made alone.
fn accesses(pool: &Arc<BlockPool>, call: impl FnOnce(&BlockPool) + Send + 'static) -> u64 {
    let plan = Plan {
        seed: 0,
        stop: None,
        most_accesses: MOST_ACCESSES,
    };
    let pool = pool.clone();
    let script = Box::new(move || call(&pool));
    crash_stop::run(plan, vec![script], Arc::new(|| {}), || {}).accesses
}

/// A pool of default sizes, in which every block is free and cached.
fn full_cache(usable: u32) -> Arc<BlockPool> {
    let pool = BlockPool::new(PoolConfig::new(usable + 1)).unwrap();
    let mut ids = vec![0; usable as usize];
    pool.allocate(&mut ids).unwrap();
    for id in &ids {
        pool.publish(*id, &key(u64::from(*id))).unwrap();
    }
    pool.release(&ids).unwrap();
    Arc::new(pool)
}

#[test]
fn a_lookup_reads_at_most_sixteen_slots() {
    for usable in SIZES {
        let pool = full_cache(usable);
        let absent = (5000..5200).map(key);
        let look_up = |key| move |pool: &BlockPool| assert_eq!(pool.peek_prefix(&[key]).hits, 0);
        let reads = absent.map(|key| accesses(&pool, look_up(key)));
        assert_eq!(reads.max(), Some(16), "{usable} blocks");
    }
}

#[test]
fn a_release_moves_at_most_four_entries() {
    for usable in SIZES {
        let pool = full_cache(usable);
        let (mut most_moves, mut most_accesses) = (0, 0);
        // Hits on free blocks leave dead entries, which have to be moved out of the way.
        for i in 0..u64::from(usable) * 20 {
            let mixed = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let mut hit = [0];
            let code = 1 + mixed % u64::from(usable);
            assert_eq!(pool.match_prefix(&[key(code)], &mut hit), 1);
            let moves = pool.stats().moves;
            let made = accesses(&pool, move |pool| pool.release(&hit).unwrap());
            most_moves = most_moves.max(pool.stats().moves - moves);
            most_accesses = most_accesses.max(made);
        }
        println!("crash_stop bounded work: {usable} blocks, at most {most_accesses} accesses");
        assert_eq!(most_moves, 4, "{usable} blocks");
        assert!(pool.stats().role_swaps > 0, "{usable} blocks");
        // Ten for the release itself and twelve a move, with a little to spare.
        assert!(
            most_accesses <= 64,
            "{usable} blocks: {most_accesses} accesses"
        );
        pool.check_invariants().unwrap();
    }
}
