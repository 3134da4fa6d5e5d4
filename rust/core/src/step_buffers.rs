//! The arrays that a step is written to, for the model runner to read.

use crate::block_table::BlockTable;
use crate::kv_cache_manager::Sequences;
use crate::manager_error::ManagerError;
use crate::page_list::PageList;
use crate::sequence::Sequence;
use crate::step::{Step, StepRow};

/// Elements each buffer of [`StepBuffers`] needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferSizes {
    /// `token_ids`, `positions` and each `slot_mapping`, at least.
    pub tokens: usize,
    /// `seq_lens`, `logits_indices` and `sample_rows`, at least; `cu_seqlens_q` one more.
    pub rows: usize,
    /// Entries of one row of each `block_tables`, which has exactly `rows` rows.
    pub blocks_per_row: usize,
    /// Pairs of `copies`, at least.
    pub copies: usize,
    /// Arrays in `slot_mapping` and `block_tables`.
    pub groups: usize,
}

/// Caller-owned arrays that [`prepare`](crate::KVCacheManager::prepare) fills.
///
/// Rows are row slots. Tokens are packed in the order of the slots. The arrays keep their size from
/// step to step and what a step does not use is padded, so that a captured graph can replay on
/// them.
#[derive(Debug)]
pub struct StepBuffers<'a> {
    /// Input token of each packed token; −1 where it is sampled by a step in flight or is a draft
    /// that only the caller knows. Padding 0.
    pub token_ids: &'a mut [i64],
    /// Position of each packed token in its sequence. Padding 0.
    pub positions: &'a mut [i64],
    /// Per group, the slot each packed token is written to: block · block size + offset.
    /// Padding −1.
    pub slot_mapping: &'a mut [&'a mut [i64]],
    /// Per group, row-major, the blocks of each row. Padding 0. A row that is not in the step may
    /// lag behind its sequence.
    pub block_tables: &'a mut [&'a mut [i32]],
    /// Tokens each row has once the step has written; 0 for rows that are not in the step.
    pub seq_lens: &'a mut [i32],
    /// Packed index of each row's first token, and the number of tokens at the end and for all rows
    /// beyond.
    pub cu_seqlens_q: &'a mut [i32],
    /// Packed index of the last token of each sampling row, in the order of the slots. Padding 0.
    pub logits_indices: &'a mut [i64],
    /// Row slot of each sampling row, in the same order. Padding 0.
    pub sample_rows: &'a mut [i32],
    /// Pairs of source and destination block, to be copied before any write. Padding (0, 0).
    pub copies: &'a mut [i32],
    /// The rows' blocks in another form, for kernels that want it.
    pub page_list: Option<PageList<'a>>,
    /// What these arrays contain; belongs to them and to one manager.
    pub marks: &'a mut BufferMarks,
}

/// Remembers what a set of arrays contains, so that a step writes only what changed.
///
/// Keep one beside every set of arrays; a new one stands for arrays with unknown content. Two sets
/// can take turns when two steps are in flight.
#[derive(Debug, Default)]
pub struct BufferMarks {
    written: Written,
    /// Empty until the arrays were first written.
    rows: Vec<RowMark>,
}

/// Elements in use.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    tokens: usize,
    slots: usize,
    samples: usize,
    copies: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct RowMark {
    /// Whose blocks the row has: the tenancy of its slot when it was written.
    tenancy: u64,
    /// Blocks written.
    entries: usize,
    /// The table's edits by then.
    edits: u32,
}

/// The sizes, and how positions turn into slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferLayout {
    pub(crate) sizes: BufferSizes,
    pub(crate) block_size: u32,
}

impl StepBuffers<'_> {
    /// Refuses arrays of the wrong size.
    pub(crate) fn check(&self, sizes: &BufferSizes) -> Result<(), ManagerError> {
        at_least("token_ids", self.token_ids.len(), sizes.tokens)?;
        at_least("positions", self.positions.len(), sizes.tokens)?;
        exactly(
            "slot_mapping (groups)",
            self.slot_mapping.len(),
            sizes.groups,
        )?;
        for slots in &*self.slot_mapping {
            at_least("slot_mapping", slots.len(), sizes.tokens)?;
        }
        exactly(
            "block_tables (groups)",
            self.block_tables.len(),
            sizes.groups,
        )?;
        for table in &*self.block_tables {
            exactly(
                "block_tables",
                table.len(),
                sizes.rows * sizes.blocks_per_row,
            )?;
        }
        at_least("seq_lens", self.seq_lens.len(), sizes.rows)?;
        at_least("cu_seqlens_q", self.cu_seqlens_q.len(), sizes.rows + 1)?;
        at_least("logits_indices", self.logits_indices.len(), sizes.rows)?;
        at_least("sample_rows", self.sample_rows.len(), sizes.rows)?;
        at_least("copies", self.copies.len(), sizes.copies * 2)?;
        self.page_list
            .as_ref()
            .map_or(Ok(()), |list| list.check(sizes))
    }

    /// Writes the step; the arrays have the right sizes.
    pub(crate) fn write(
        &mut self,
        step: &Step,
        sequences: &Sequences,
        tenancies: &[u64],
        layout: &BufferLayout,
    ) -> Result<Extent, ManagerError> {
        self.initialise(&layout.sizes);
        self.clear_vacated(tenancies, &layout.sizes);
        if let Some(list) = &mut self.page_list {
            list.begin();
        }
        let mut extent = Extent::default();
        let mut samples = 0;
        for slot in 0..step.num_slots() {
            self.cu_seqlens_q[slot] = extent.num_tokens as i32;
            let Some(row) = step.row(slot as u32) else {
                self.seq_lens[slot] = 0;
                if let Some(list) = &mut self.page_list {
                    list.push_empty(slot);
                }
                continue;
            };
            let sequence = sequences.get(row.handle)?;
            self.write_table(slot, &sequence.table, &layout.sizes);
            self.write_tokens(
                extent.num_tokens as usize,
                row,
                sequence,
                step,
                layout.block_size,
            );
            let seq_len = row.start + row.len;
            self.seq_lens[slot] = seq_len as i32;
            if let Some(list) = &mut self.page_list {
                list.push(slot, seq_len, layout.block_size, &sequence.table);
            }
            extent.add(row);
            if row.at_tip {
                self.logits_indices[samples] = i64::from(extent.num_tokens) - 1;
                self.sample_rows[samples] = slot as i32;
                samples += 1;
            }
        }
        for (pair, copy) in self.copies.chunks_exact_mut(2).zip(&step.copies) {
            pair[0] = copy.source as i32;
            pair[1] = copy.destination as i32;
        }
        self.cu_seqlens_q[step.num_slots()..].fill(extent.num_tokens as i32);
        if let Some(list) = &mut self.page_list {
            list.pad(step.num_slots());
        }
        self.pad(Written {
            tokens: extent.num_tokens as usize,
            slots: step.num_slots(),
            samples,
            copies: step.copies.len(),
        });
        Ok(extent)
    }

    /// Brings arrays of unknown content to the state of an empty step.
    fn initialise(&mut self, sizes: &BufferSizes) {
        if self.marks.rows.len() == sizes.rows {
            return;
        }
        self.token_ids.fill(0);
        self.positions.fill(0);
        self.slot_mapping
            .iter_mut()
            .for_each(|slots| slots.fill(-1));
        self.block_tables.iter_mut().for_each(|table| table.fill(0));
        self.seq_lens.fill(0);
        self.logits_indices.fill(0);
        self.sample_rows.fill(0);
        self.copies.fill(0);
        let rows = vec![RowMark::default(); sizes.rows];
        *self.marks = BufferMarks {
            written: Written::default(),
            rows,
        };
    }

    /// Empties the table rows whose slots changed hands.
    fn clear_vacated(&mut self, tenancies: &[u64], sizes: &BufferSizes) {
        for (slot, (mark, &tenancy)) in self.marks.rows.iter_mut().zip(tenancies).enumerate() {
            if mark.tenancy != tenancy {
                for table in &mut *self.block_tables {
                    table[slot * sizes.blocks_per_row..][..mark.entries].fill(0);
                }
                *mark = RowMark {
                    tenancy,
                    ..RowMark::default()
                };
            }
        }
    }

    fn write_table(&mut self, slot: usize, table: &BlockTable, sizes: &BufferSizes) {
        let mark = &mut self.marks.rows[slot];
        let from = table.first_change_since(mark.entries, mark.edits);
        let (had, has) = (mark.entries, table.len());
        (mark.entries, mark.edits) = (has, table.edits());
        for (group, entries) in self.block_tables.iter_mut().enumerate() {
            let entries = &mut entries[slot * sizes.blocks_per_row..][..sizes.blocks_per_row];
            for (entry, &id) in entries[from..has].iter_mut().zip(&table.ids(group)[from..]) {
                *entry = id as i32;
            }
            if had > has {
                entries[has..had].fill(0);
            }
        }
    }

    /// Writes one row's tokens, positions and slots from packed index `at` on.
    fn write_tokens(
        &mut self,
        at: usize,
        row: &StepRow,
        sequence: &Sequence,
        step: &Step,
        block_size: u32,
    ) {
        let positions = row.start as usize..(row.start + row.len) as usize;
        for (position, token) in positions.clone().zip(&mut self.token_ids[at..]) {
            let known = sequence.tokens.get(position).copied();
            *token = known
                .or_else(|| step.draft(row, position))
                .map_or(-1, i64::from);
        }
        for (position, entry) in positions.clone().zip(&mut self.positions[at..]) {
            *entry = position as i64;
        }
        let size = block_size as usize;
        for (group, slots) in self.slot_mapping.iter_mut().enumerate() {
            let ids = sequence.table.ids(group);
            for (position, slot) in positions.clone().zip(&mut slots[at..]) {
                *slot = i64::from(ids[position / size]) * i64::from(block_size)
                    + (position % size) as i64;
            }
        }
    }

    /// Pads what the step before wrote and this one did not.
    fn pad(&mut self, now: Written) {
        let before = std::mem::replace(&mut self.marks.written, now);
        pad(self.token_ids, now.tokens, before.tokens, 0);
        pad(self.positions, now.tokens, before.tokens, 0);
        for slots in &mut *self.slot_mapping {
            pad(slots, now.tokens, before.tokens, -1);
        }
        pad(self.seq_lens, now.slots, before.slots, 0);
        pad(self.logits_indices, now.samples, before.samples, 0);
        pad(self.sample_rows, now.samples, before.samples, 0);
        pad(self.copies, 2 * now.copies, 2 * before.copies, 0);
    }
}

fn wrong_size(buffer: &'static str, found: usize, required: usize) -> Result<(), ManagerError> {
    Err(ManagerError::BufferSize {
        buffer,
        found,
        required,
    })
}

pub(crate) fn at_least(
    buffer: &'static str,
    found: usize,
    required: usize,
) -> Result<(), ManagerError> {
    if found >= required {
        Ok(())
    } else {
        wrong_size(buffer, found, required)
    }
}

pub(crate) fn exactly(
    buffer: &'static str,
    found: usize,
    required: usize,
) -> Result<(), ManagerError> {
    if found == required {
        Ok(())
    } else {
        wrong_size(buffer, found, required)
    }
}

fn pad<T: Clone>(array: &mut [T], now: usize, before: usize, padding: T) {
    if now < before {
        array[now..before].fill(padding);
    }
}

/// How far a step reaches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    pub(crate) num_tokens: u32,
    pub(crate) max_seq_len: u32,
    pub(crate) max_query_len: u32,
}

impl Extent {
    fn add(&mut self, row: &StepRow) {
        self.num_tokens += row.len;
        self.max_seq_len = self.max_seq_len.max(row.start + row.len);
        self.max_query_len = self.max_query_len.max(row.len);
    }
}
