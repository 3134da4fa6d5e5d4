//! Operations of the sequence manager. Its blocks are hashed by XXH3, whose count is the same
//! everywhere; the rows of the hashes say what another one adds per block.

use std::sync::Arc;

use looseleaf::{
    BlockPool, BufferMarks, GroupKind, GroupSpec, HashAlgo, KVCacheManager, ManagerConfig,
    OpenParams, SeqHandle, StepBuffers,
};

use crate::pools::Pool;
use crate::scripts::NUM_BLOCKS;
use crate::{Call, Row};

const BLOCK_SIZE: u32 = 16;
const ROWS_OF_A_STEP: u32 = 64;
const MAX_MODEL_LEN: u32 = 16_384;

/// Calls that come every token are counted over whole blocks.
pub const ROWS: &[Row] = &[
    Row::new("append 1 and commit", 2048, append_and_commit),
    Row::new("step of 64 decoding rows", 128, decode_step),
    Row::new(
        "open, admit and close 512 blocks, 461 of them hits",
        50,
        admit,
    ),
];

fn manager() -> KVCacheManager {
    let config = ManagerConfig {
        groups: vec![GroupSpec {
            kind: GroupKind::Full,
            layers: vec![],
            block_size: BLOCK_SIZE,
            sliding_window: None,
        }],
        max_num_seqs: ROWS_OF_A_STEP,
        max_model_len: MAX_MODEL_LEN,
        max_num_batched_tokens: MAX_MODEL_LEN,
        verify_tokens: false,
        enable_prefix_caching: true,
        hash_algo: HashAlgo::Xxh3,
        hash_seed: None,
        max_steps_in_flight: 1,
    };
    let pool = Arc::new(BlockPool::with_blocks(NUM_BLOCKS));
    KVCacheManager::new(pool, config).expect("the config is valid")
}

/// A running sequence whose prompt is computed, with its first token.
fn decoding(manager: &mut KVCacheManager, prompt: &[u32]) -> SeqHandle {
    let handle = open(manager, prompt);
    let cached = manager.admit(handle, 0).expect("there is room");
    let left = prompt.len() as u32 - cached;
    manager.append(handle, left, &[]).expect("there is room");
    manager.commit(handle, &[1]).expect("it was appended");
    handle
}

fn open(manager: &mut KVCacheManager, prompt: &[u32]) -> SeqHandle {
    let params = OpenParams {
        tokens: prompt,
        max_tokens: MAX_MODEL_LEN,
        ..OpenParams::default()
    };
    manager.open(params).expect("it fits")
}

fn append_and_commit(_: usize) -> Call {
    let mut manager = manager();
    let handle = decoding(&mut manager, &[7; 100]);
    Box::new(move |i| {
        manager.append(handle, 1, &[]).expect("there is room");
        let finished = manager
            .commit(handle, &[i as u32])
            .expect("it was appended");
        assert_eq!(finished, None);
    })
}

fn admit(_: usize) -> Call {
    let mut manager = manager();
    let prompt: Vec<u32> = (0..512 * BLOCK_SIZE).collect();
    // One token more than whole blocks, so that the last of them is computed and cached.
    let cached = decoding(&mut manager, &prompt[..461 * BLOCK_SIZE as usize + 1]);
    manager.close(cached).expect("it is open");
    Box::new(move |_| {
        let handle = open(&mut manager, &prompt);
        assert_eq!(manager.admit(handle, 0), Ok(461 * BLOCK_SIZE));
        manager.close(handle).expect("it is open");
    })
}

/// Schedule, prepare and commit, as an engine does with requests that all write text.
fn decode_step(_: usize) -> Call {
    let mut manager = manager();
    for row in 0..ROWS_OF_A_STEP {
        decoding(&mut manager, &[row; 500]);
    }
    let mut arrays = Arrays::for_steps_of(&manager);
    let sampled = vec![1; ROWS_OF_A_STEP as usize];
    Box::new(move |_| {
        let scheduled = manager.schedule_running(u32::MAX, u32::MAX);
        let scheduled = scheduled.expect("there is room").num_tokens_scheduled;
        assert_eq!(scheduled, ROWS_OF_A_STEP);
        let info = arrays.prepare(&mut manager);
        let finished = manager.commit_step(info, &sampled);
        assert!(finished.expect("it is in flight").is_empty());
    })
}

/// What a step is written to.
struct Arrays {
    token_ids: Vec<i64>,
    positions: Vec<i64>,
    slot_mapping: Vec<i64>,
    block_tables: Vec<i32>,
    seq_lens: Vec<i32>,
    cu_seqlens_q: Vec<i32>,
    logits_indices: Vec<i64>,
    sample_rows: Vec<i32>,
    copies: Vec<i32>,
    marks: BufferMarks,
}

impl Arrays {
    fn for_steps_of(manager: &KVCacheManager) -> Self {
        let sizes = manager.buffer_sizes();
        Self {
            token_ids: vec![0; sizes.tokens],
            positions: vec![0; sizes.tokens],
            slot_mapping: vec![0; sizes.tokens],
            block_tables: vec![0; sizes.rows * sizes.blocks_per_row],
            seq_lens: vec![0; sizes.rows],
            cu_seqlens_q: vec![0; sizes.rows + 1],
            logits_indices: vec![0; sizes.rows],
            sample_rows: vec![0; sizes.rows],
            copies: vec![0; 2 * sizes.copies],
            marks: BufferMarks::default(),
        }
    }

    /// Returns the number of the step.
    fn prepare(&mut self, manager: &mut KVCacheManager) -> u64 {
        let mut buffers = StepBuffers {
            token_ids: &mut self.token_ids,
            positions: &mut self.positions,
            slot_mapping: &mut [&mut self.slot_mapping],
            block_tables: &mut [&mut self.block_tables],
            seq_lens: &mut self.seq_lens,
            cu_seqlens_q: &mut self.cu_seqlens_q,
            logits_indices: &mut self.logits_indices,
            sample_rows: &mut self.sample_rows,
            copies: &mut self.copies,
            page_list: None,
            marks: &mut self.marks,
        };
        manager
            .prepare(&mut buffers)
            .expect("rows are scheduled")
            .step
    }
}
