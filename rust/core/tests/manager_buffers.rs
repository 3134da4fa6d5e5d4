//! The arrays a step is written to: only what changed, and nothing that is not the step's.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use looseleaf::{BufferMarks, KVCacheManager, ManagerError, OpenParams, SeqHandle};
use simulation::{Arrays, Setup};

/// What a test paints over entries that must not be written again.
const PAINT: i32 = -555;

fn setup() -> Setup {
    Setup {
        max_num_seqs: 4,
        max_model_len: 80,
        max_num_batched_tokens: 64,
        ..Setup::default()
    }
}

fn admitted(manager: &mut KVCacheManager, tokens: &[u32]) -> SeqHandle {
    let handle = manager
        .open(OpenParams {
            tokens,
            max_tokens: 60,
            ..<_>::default()
        })
        .unwrap();
    manager.admit(handle, 0).unwrap();
    handle
}

/// One step of everybody; each row samples the token 5.
fn step(manager: &mut KVCacheManager, arrays: &mut Arrays) {
    manager.schedule_running(u32::MAX, u32::MAX).unwrap();
    let info = arrays.prepare(manager).unwrap();
    manager
        .commit_step(info.step, &vec![5; info.num_samples as usize])
        .unwrap();
}

#[test]
fn a_decode_step_writes_no_table_entry_but_those_of_new_blocks() {
    let mut manager = setup().manager();
    let mut arrays = Arrays::new(manager.buffer_sizes());
    let handle = admitted(&mut manager, &[1; 21]);
    step(&mut manager, &mut arrays);
    assert_eq!(arrays.table(0, 0)[..7], [1, 2, 3, 4, 5, 6, 0]);
    arrays.block_tables[0].fill(PAINT);
    for _ in 0..40 {
        step(&mut manager, &mut arrays);
    }
    let written: Vec<_> = manager.block_ids(handle, 0).unwrap()[6..].to_vec();
    let expected = [PAINT; 6]
        .into_iter()
        .chain(written.iter().map(|&block| block as i32));
    let row = arrays.table(0, 0);
    assert!(
        row[..6 + written.len()].iter().copied().eq(expected),
        "{row:?}"
    );
    assert!(
        row[6 + written.len()..].iter().all(|&entry| entry == PAINT),
        "{row:?}"
    );
}

#[test]
fn a_copied_block_changes_its_own_table_entry_only() {
    let mut manager = setup().manager();
    let mut arrays = Arrays::new(manager.buffer_sizes());
    let parent = admitted(&mut manager, &[1; 10]);
    step(&mut manager, &mut arrays);
    manager.fork(parent, 1).unwrap();
    arrays.block_tables[0].fill(PAINT);
    step(&mut manager, &mut arrays);
    assert_eq!(arrays.table(0, 0)[..4], [PAINT, PAINT, 4, PAINT]);
    assert_eq!(arrays.table(0, 1)[..4], [1, 2, 3, PAINT]);
}

#[test]
fn a_row_is_emptied_when_its_slot_changes_hands() {
    let mut manager = setup().manager();
    let mut arrays = Arrays::new(manager.buffer_sizes());
    let [first, second] = [17, 9].map(|len| admitted(&mut manager, &vec![len; len as usize]));
    step(&mut manager, &mut arrays);
    manager.close(first).unwrap();
    step(&mut manager, &mut arrays);
    assert!(arrays.table(0, 0).iter().all(|&entry| entry == 0));
    assert_eq!((arrays.seq_lens[0], arrays.seq_lens[1]), (0, 10));
    assert_eq!(arrays.cu_seqlens_q, [0, 0, 1, 1, 1]);
    let third = admitted(&mut manager, &[3; 2]);
    assert_eq!(manager.row(third), Ok(Some(0)));
    step(&mut manager, &mut arrays);
    let block = manager.block_ids(third, 0).unwrap()[0] as i32;
    assert_eq!(arrays.table(0, 0)[..2], [block, 0]);
    manager.close(second).unwrap();
}

#[test]
fn a_shorter_table_leaves_no_entries_behind() {
    let mut manager = setup().manager();
    let mut arrays = Arrays::new(manager.buffer_sizes());
    let handle = admitted(&mut manager, &[1; 20]);
    step(&mut manager, &mut arrays);
    for len in [11, 6] {
        manager.truncate(handle, len).unwrap();
        manager.push_token(handle, 9).unwrap();
        step(&mut manager, &mut arrays);
        let blocks = manager.block_ids(handle, 0).unwrap();
        let (used, rest) = arrays.table(0, 0).split_at(blocks.len());
        assert!(
            used.iter()
                .zip(blocks)
                .all(|(&entry, &block)| entry as u32 == block)
        );
        assert!(rest.iter().all(|&entry| entry == 0), "{rest:?}");
    }
}

#[test]
fn two_sets_of_arrays_can_take_turns() {
    let mut manager = setup().manager();
    let mut sets = [0, 1].map(|_| Arrays::new(manager.buffer_sizes()));
    let handles = [5, 12].map(|len| admitted(&mut manager, &vec![len; len as usize]));
    for turn in 0..40 {
        let arrays = &mut sets[turn % 2];
        step(&mut manager, arrays);
        for (row, &handle) in handles.iter().enumerate() {
            let blocks = manager.block_ids(handle, 0).unwrap();
            let entries = &arrays.table(0, row)[..blocks.len()];
            assert!(
                entries
                    .iter()
                    .zip(blocks)
                    .all(|(&entry, &block)| entry as u32 == block)
            );
        }
        if turn == 20 {
            manager.truncate(handles[1], 14).unwrap();
            manager.push_token(handles[1], 4).unwrap();
        }
    }
}

#[test]
fn new_marks_make_the_next_step_write_everything() {
    let mut manager = setup().manager();
    let mut arrays = Arrays::new(manager.buffer_sizes());
    let handle = admitted(&mut manager, &[1; 21]);
    step(&mut manager, &mut arrays);
    arrays.block_tables[0].fill(PAINT);
    arrays.slot_mapping[0].fill(9);
    arrays.marks = BufferMarks::default();
    step(&mut manager, &mut arrays);
    let blocks: Vec<_> = manager.block_ids(handle, 0).unwrap().to_vec();
    assert!(
        arrays
            .table(0, 0)
            .iter()
            .zip(&blocks)
            .all(|(&a, &b)| a as u32 == b)
    );
    assert!(arrays.slot_mapping[0][1..].iter().all(|&slot| slot == -1));
}

#[test]
fn each_array_of_the_wrong_size_is_named_with_both_sizes_and_the_step_stays_open() {
    let mut manager = setup().manager();
    admitted(&mut manager, &[1; 3]);
    manager.schedule_running(9, 9).unwrap();
    let sizes = manager.buffer_sizes();
    type Shrink = fn(&mut Arrays);
    let cases: [(&str, usize, Shrink); 9] = [
        ("token_ids", 64, |arrays| arrays.token_ids.truncate(63)),
        ("positions", 64, |arrays| arrays.positions.truncate(63)),
        ("slot_mapping", 64, |arrays| {
            arrays.slot_mapping[0].truncate(63)
        }),
        ("block_tables", 80, |arrays| arrays.block_tables[0].push(0)),
        ("seq_lens", 4, |arrays| arrays.seq_lens.truncate(3)),
        ("cu_seqlens_q", 5, |arrays| arrays.cu_seqlens_q.truncate(4)),
        ("logits_indices", 4, |arrays| {
            arrays.logits_indices.truncate(3)
        }),
        ("sample_rows", 4, |arrays| arrays.sample_rows.truncate(3)),
        ("copies", 8, |arrays| arrays.copies.truncate(7)),
    ];
    for (name, size, shrink) in cases {
        let mut arrays = Arrays::new(sizes);
        shrink(&mut arrays);
        let found = if name == "block_tables" {
            size + 1
        } else {
            size - 1
        };
        let expected = ManagerError::BufferSize {
            buffer: name,
            found,
            required: size,
        };
        assert_eq!(arrays.prepare(&mut manager).unwrap_err(), expected);
    }
    let mut arrays = Arrays::new(sizes);
    arrays.slot_mapping.push(Vec::new());
    assert!(arrays.prepare(&mut manager).is_err());
    assert_eq!(
        Arrays::new(sizes).prepare(&mut manager).unwrap().num_tokens,
        3
    );
}
