//! One engine step: which rows it computes, what it copies, which blocks it will fill, and what
//! may be freed when it is over.
//!
//! A step is *open* while rows are scheduled into it, then *in flight* until it is committed or
//! failed. A block that a step in flight may read or write is freed no earlier than that: blocks
//! given up meanwhile wait in the step's [`DeferredFrees`].

use crate::BlockId;
use crate::block_key::BlockKey;
use crate::prefix_contents::PrefixLink;
use crate::sequence::SeqHandle;

/// What became of a row of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowState {
    /// Its result is still wanted.
    Live,
    /// Its sequence was preempted, closed, finished or rolled back: the step may still run the
    /// row, but nobody wants the result.
    Dropped,
    /// Its result is in.
    Committed,
}

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRow {
    pub(crate) handle: SeqHandle,
    pub(crate) state: RowState,
    /// Position of its first token.
    pub(crate) start: u32,
    /// Tokens computed, drafts included.
    pub(crate) len: u32,
    /// How many of them may be rejected.
    pub(crate) drafts: u32,
    /// Where their ids stand in the step's drafts; `None` if only the caller knows them.
    pub(crate) drafts_at: Option<u32>,
    /// Whether the row reaches the end of what is known, so that it samples.
    pub(crate) at_tip: bool,
}

impl StepRow {
    /// End of the tokens that cannot be rejected.
    pub(crate) fn known_end(&self) -> u32 {
        self.start + self.len - self.drafts
    }
}

/// A copy of one block, over all layers of its group, before any write of the step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockCopy {
    pub(crate) source: BlockId,
    pub(crate) destination: BlockId,
    pub(crate) row: u32,
    /// Index of the block in its row's table.
    pub(crate) index: u32,
}

/// A block that the step will have filled, offered to sequences admitted after its row was
/// scheduled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcement {
    pub(crate) key: BlockKey,
    pub(crate) block: BlockId,
    pub(crate) owner: SeqHandle,
    pub(crate) row: u32,
    pub(crate) group: u32,
    /// Index of the block in its row's table, and in that of everybody who took it.
    pub(crate) index: u32,
    /// Key of the block before it, without a group.
    pub(crate) parent: Option<BlockKey>,
    /// Its place in its prefix, where look-ups compare tokens.
    pub(crate) link: PrefixLink,
    /// Where its tokens stand in the step's kept tokens, if these are compared or its sequence has
    /// left.
    pub(crate) tokens_at: Option<usize>,
}

/// Lists of blocks to release when the step is over, each as its owner would have released it.
///
/// Kept apart because two lists may name the same block, and because one list's order says which
/// blocks are evicted first.
#[derive(Debug, Default)]
pub(crate) struct DeferredFrees {
    ids: Vec<BlockId>,
    ends: Vec<usize>,
}

impl DeferredFrees {
    pub(crate) fn push(&mut self, list: &[BlockId]) {
        if !list.is_empty() {
            self.ids.extend_from_slice(list);
            self.ends.push(self.ids.len());
        }
    }

    pub(crate) fn ids(&self) -> &[BlockId] {
        &self.ids
    }

    pub(crate) fn lists(&self) -> impl Iterator<Item = &[BlockId]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, &end)| &self.ids[start..end])
    }

    pub(crate) fn clear(&mut self) {
        self.ids.clear();
        self.ends.clear();
    }
}

/// What the memory of one step is sized for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepShape {
    pub(crate) max_num_seqs: u32,
    pub(crate) groups: usize,
    /// Tokens kept of each announced block.
    pub(crate) kept_tokens: u32,
}

/// A step, open or in flight. Its memory is reused.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) id: u64,
    /// By row slot, so in the order in which the rows are packed.
    rows: Vec<Option<StepRow>>,
    /// One more than the highest slot in use.
    num_slots: usize,
    num_tokens: u32,
    /// Rows whose state is `Live`.
    num_live: u32,
    /// Nobody prepared the step: a result that came in on its own says that it has run. It is over
    /// when no row is live; other steps when they are committed or failed.
    pub(crate) has_run: bool,
    pub(crate) drafts: Vec<u32>,
    /// Slots of the sampling rows, in the order of the samples.
    pub(crate) sample_rows: Vec<u32>,
    pub(crate) copies: Vec<BlockCopy>,
    pub(crate) announcements: Vec<Announcement>,
    /// Tokens of announced blocks: of all, where look-ups compare them, and otherwise of those
    /// whose sequences have left, for the events that tell of them. A row leaves a step once, so it
    /// holds no more than the blocks that the step fills.
    kept_tokens: Vec<u32>,
    /// Sequences admitted onto announcements of this step.
    pub(crate) dependants: Vec<SeqHandle>,
    pub(crate) frees: DeferredFrees,
}

impl Step {
    pub(crate) fn new(shape: StepShape) -> Self {
        let rows = shape.max_num_seqs as usize;
        // Every row may copy one block per group, and fill one per `block_size` tokens: decoding
        // rows one at most, so that a full batch of them never allocates.
        let blocks = rows * shape.groups;
        Self {
            id: 0,
            rows: vec![None; rows],
            num_slots: 0,
            num_tokens: 0,
            num_live: 0,
            has_run: false,
            drafts: Vec::new(),
            sample_rows: Vec::with_capacity(rows),
            copies: Vec::with_capacity(blocks),
            announcements: Vec::with_capacity(blocks),
            kept_tokens: Vec::with_capacity(rows * shape.kept_tokens as usize),
            dependants: Vec::with_capacity(rows),
            frees: DeferredFrees::default(),
        }
    }

    /// Makes a used step ready for the number `id`.
    pub(crate) fn reset(&mut self, id: u64) {
        self.id = id;
        self.rows[..self.num_slots].fill(None);
        self.num_slots = 0;
        self.num_tokens = 0;
        self.num_live = 0;
        self.has_run = false;
        self.drafts.clear();
        self.sample_rows.clear();
        self.copies.clear();
        self.announcements.clear();
        self.kept_tokens.clear();
        self.dependants.clear();
        self.frees.clear();
    }

    pub(crate) fn num_slots(&self) -> usize {
        self.num_slots
    }

    pub(crate) fn num_tokens(&self) -> u32 {
        self.num_tokens
    }

    pub(crate) fn num_live(&self) -> u32 {
        self.num_live
    }

    pub(crate) fn is_over(&self) -> bool {
        self.has_run && self.num_live == 0
    }

    pub(crate) fn row(&self, slot: u32) -> Option<&StepRow> {
        self.rows[slot as usize].as_ref()
    }

    /// The slots in use with their rows, in packing order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (u32, &StepRow)> {
        self.rows[..self.num_slots]
            .iter()
            .enumerate()
            .filter_map(|(slot, row)| Some((slot as u32, row.as_ref()?)))
    }

    /// The draft that the row runs at the position, if it was given.
    pub(crate) fn draft(&self, row: &StepRow, position: usize) -> Option<u32> {
        let nth = position.checked_sub(row.known_end() as usize)?;
        self.drafts.get(row.drafts_at? as usize + nth).copied()
    }

    /// The share of the sequence `handle` if it has one, whatever its state.
    pub(crate) fn row_of(&self, slot: u32, handle: SeqHandle) -> Option<&StepRow> {
        self.row(slot).filter(|row| row.handle == handle)
    }

    /// Whether the sequence's share is still wanted.
    pub(crate) fn is_live(&self, slot: u32, handle: SeqHandle) -> bool {
        self.row_of(slot, handle)
            .is_some_and(|row| row.state == RowState::Live)
    }

    /// Whether the step may still touch blocks on behalf of the sequence.
    pub(crate) fn holds(&self, slot: u32, handle: SeqHandle) -> bool {
        self.row_of(slot, handle)
            .is_some_and(|row| row.state != RowState::Committed)
    }

    /// Lists the sampling rows, now that no more rows come.
    pub(crate) fn list_sample_rows(&mut self) {
        self.sample_rows.clear();
        for slot in 0..self.num_slots {
            if self.rows[slot].is_some_and(|row| row.at_tip) {
                self.sample_rows.push(slot as u32);
            }
        }
    }

    pub(crate) fn insert(&mut self, slot: u32, row: StepRow) {
        debug_assert!(self.rows[slot as usize].is_none());
        self.num_tokens += row.len;
        self.num_live += 1;
        self.num_slots = self.num_slots.max(slot as usize + 1);
        self.rows[slot as usize] = Some(row);
    }

    /// Takes a row out of the open step: it will not run.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<StepRow> {
        let row = self.rows[slot as usize].take()?;
        self.num_tokens -= row.len;
        self.num_live -= 1;
        while self.num_slots > 0 && self.rows[self.num_slots - 1].is_none() {
            self.num_slots -= 1;
        }
        Some(row)
    }

    /// Drops the announcements that do not stay, judged by them and their rows.
    pub(crate) fn retain_announcements(
        &mut self,
        mut stays: impl FnMut(&Announcement, Option<&StepRow>) -> bool,
    ) {
        let rows = &self.rows;
        self.announcements
            .retain(|announcement| stays(announcement, rows[announcement.row as usize].as_ref()));
        if self.announcements.is_empty() {
            self.kept_tokens.clear();
        }
    }

    /// Keeps the tokens of a block; says where.
    pub(crate) fn keep_block(&mut self, tokens: &[u32]) -> usize {
        let at = self.kept_tokens.len();
        self.kept_tokens.extend_from_slice(tokens);
        at
    }

    /// Keeps the tokens of all blocks that the sequence, of these tokens, has announced.
    pub(crate) fn keep_tokens(&mut self, owner: SeqHandle, tokens: &[u32], block_size: u32) {
        let unkept = |it: &&mut Announcement| it.owner == owner && it.tokens_at.is_none();
        for announcement in self.announcements.iter_mut().filter(unkept) {
            let (start, size) = (announcement.index * block_size, block_size as usize);
            announcement.tokens_at = Some(self.kept_tokens.len());
            self.kept_tokens
                .extend_from_slice(&tokens[start as usize..start as usize + size]);
        }
    }

    /// The tokens of an announced block, if they were kept.
    pub(crate) fn kept_tokens(&self, tokens_at: Option<usize>, block_size: u32) -> &[u32] {
        tokens_at.map_or(&[], |at| &self.kept_tokens[at..at + block_size as usize])
    }

    /// The lowest table index at which a copy of this step gives the row a block.
    pub(crate) fn first_copied(&self, slot: u32) -> Option<u32> {
        self.copies
            .iter()
            .filter(|copy| copy.row == slot)
            .map(|copy| copy.index)
            .min()
    }

    /// Ends the row's being live.
    pub(crate) fn settle(&mut self, slot: u32, state: RowState) {
        if let Some(row) = &mut self.rows[slot as usize]
            && row.state == RowState::Live
        {
            row.state = state;
            self.num_live -= 1;
        }
    }
}
