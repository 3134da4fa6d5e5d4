//! Once a sequence is admitted, its steps allocate no memory.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use looseleaf::{ExtraKey, HashAlgo, KVCacheManager, OpenParams, SpannedKey, StepBuffers};
use simulation::{Arrays, Setup};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steps_of_admitted_sequences_allocate_nothing() {
    for (groups, verify_tokens) in [(1, false), (2, false), (1, true), (2, true)] {
        let setup = Setup {
            groups,
            verify_tokens,
            usable_blocks: 4000,
            max_model_len: 2048,
            max_num_batched_tokens: 600,
            ..Setup::default()
        };
        let mut config = setup.config();
        config.hash_algo = HashAlgo::Sha256Cbor;
        let extra_keys = [SpannedKey::everywhere(ExtraKey::Lora {
            name: "a".into(),
            path: "/a".into(),
        })];
        let mut manager = KVCacheManager::new(setup.pool(), config).unwrap();
        let mut arrays = Arrays::new(manager.buffer_sizes());
        for nth in 0..8 {
            let tokens: Vec<u32> = (0..60).map(|at| at * nth).collect();
            let params = OpenParams {
                tokens: &tokens,
                max_tokens: 500,
                extra_keys: &extra_keys,
                ..<_>::default()
            };
            let handle = manager.open(params).unwrap();
            manager.admit(handle, 0).unwrap();
        }
        let mut slots: Vec<_> = arrays
            .slot_mapping
            .iter_mut()
            .map(Vec::as_mut_slice)
            .collect();
        let mut tables: Vec<_> = arrays
            .block_tables
            .iter_mut()
            .map(Vec::as_mut_slice)
            .collect();
        let mut buffers = StepBuffers {
            token_ids: &mut arrays.token_ids,
            positions: &mut arrays.positions,
            slot_mapping: &mut slots,
            block_tables: &mut tables,
            seq_lens: &mut arrays.seq_lens,
            cu_seqlens_q: &mut arrays.cu_seqlens_q,
            logits_indices: &mut arrays.logits_indices,
            sample_rows: &mut arrays.sample_rows,
            copies: &mut arrays.copies,
            page_list: None,
            marks: &mut arrays.marks,
        };
        let mut step = || {
            manager.schedule_running(u32::MAX, u32::MAX).unwrap();
            let info = manager.prepare(&mut buffers).unwrap();
            manager
                .commit_step(info.step, &[1, 2, 3, 4, 5, 6, 7, 8])
                .unwrap();
        };
        // The prefill and one decode bring every list to its size.
        step();
        step();
        let before = ALLOCATIONS.get();
        for _ in 0..300 {
            step();
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "allocations in 300 steps");
    }
}
