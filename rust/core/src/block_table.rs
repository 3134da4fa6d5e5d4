//! One sequence's blocks: per group, which block holds which run of tokens.
//!
//! All groups of a manager have the same block size, so their tables always have the same length,
//! and entry `i` of every group holds the tokens `i · block_size ..`.

use crate::{BlockId, BlockPool, PoolError};

/// The tables of one sequence over all groups, with just enough history to bring a copy of them
/// up to date without reading the whole.
#[derive(Debug)]
pub(crate) struct BlockTable {
    groups: Box<[Vec<BlockId>]>,
    edits: u32,
    edited_from: u32,
}

impl BlockTable {
    pub(crate) fn new(groups: usize) -> Self {
        Self {
            groups: vec![Vec::new(); groups].into_boxed_slice(),
            edits: 0,
            edited_from: 0,
        }
    }

    /// Blocks per group.
    pub(crate) fn len(&self) -> usize {
        self.groups[0].len()
    }

    pub(crate) fn num_groups(&self) -> usize {
        self.groups.len()
    }

    pub(crate) fn ids(&self, group: usize) -> &[BlockId] {
        &self.groups[group]
    }

    /// Makes room, so that growing to `blocks` per group does not allocate.
    pub(crate) fn reserve(&mut self, blocks: usize) {
        for ids in &mut self.groups {
            ids.reserve_exact(blocks.saturating_sub(ids.len()));
        }
    }

    /// Adds one block per group: `ids` in group order.
    pub(crate) fn push(&mut self, ids: &[BlockId]) {
        debug_assert_eq!(ids.len(), self.groups.len());
        for (table, &id) in self.groups.iter_mut().zip(ids) {
            table.push(id);
        }
    }

    /// Puts `id` in the place of the block at `index`, which it returns. The caller notes the edit
    /// once for all groups.
    pub(crate) fn replace(&mut self, group: usize, index: usize, id: BlockId) -> BlockId {
        std::mem::replace(&mut self.groups[group][index], id)
    }

    /// Records that entries from `index` on are no longer what they were.
    pub(crate) fn note_edit(&mut self, index: usize) {
        self.edits = self.edits.wrapping_add(1);
        self.edited_from = index as u32;
    }

    /// Cuts the tables to `len` blocks and appends what fell off to `dropped`, leaves before
    /// roots, so that a release in this order evicts a prefix from its end. Groups alternate:
    /// a prefix counts only while all groups have it, so they should lose it evenly.
    pub(crate) fn truncate_into(&mut self, len: usize, dropped: &mut Vec<BlockId>) {
        if len >= self.len() {
            return;
        }
        for index in (len..self.len()).rev() {
            dropped.extend(self.groups.iter().map(|ids| ids[index]));
        }
        for ids in &mut self.groups {
            ids.truncate(len);
        }
        self.note_edit(len);
    }

    /// Takes one more reference on each of the first `len` blocks and returns a table of them.
    /// `scratch` is overwritten.
    pub(crate) fn share_prefix(
        &self,
        len: usize,
        pool: &BlockPool,
        scratch: &mut Vec<BlockId>,
    ) -> Result<Self, PoolError> {
        scratch.clear();
        for ids in &self.groups {
            scratch.extend_from_slice(&ids[..len]);
        }
        pool.share(scratch)?;
        let groups = self.groups.iter().map(|ids| ids[..len].to_vec()).collect();
        Ok(Self {
            groups,
            edits: 0,
            edited_from: 0,
        })
    }

    /// How many entries differ from a copy of this table that had `written` entries when
    /// `edits` edits had been made: the entries from here on are to be written again.
    pub(crate) fn first_change_since(&self, written: usize, edits: u32) -> usize {
        match self.edits.wrapping_sub(edits) {
            0 => written,
            1 => written.min(self.edited_from as usize),
            _ => 0,
        }
    }

    /// Changes so far other than growth.
    pub(crate) fn edits(&self) -> u32 {
        self.edits
    }
}
