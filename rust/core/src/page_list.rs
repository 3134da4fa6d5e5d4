//! The blocks of a step's rows as one list without gaps, the form in which FlashInfer takes them.

use crate::block_table::BlockTable;
use crate::manager_error::ManagerError;
use crate::step_buffers::{BufferSizes, at_least, exactly};

/// Arrays for all rows' blocks, one row behind the other: FlashInfer's `paged_kv_indptr`,
/// `paged_kv_indices` and `paged_kv_last_page_len`. A row has the blocks of its `seq_lens` tokens.
///
/// The list has no gaps, so a row that grows shifts all behind it: it is written anew at every step,
/// four bytes per block of every row. Kernels that read `block_tables` do without.
#[derive(Debug)]
pub struct PageList<'a> {
    /// Where each row's blocks begin in `indices`, and the number of blocks at the end and for all
    /// rows beyond; one more than rows, at least.
    pub indptr: &'a mut [i32],
    /// Per group, the blocks of all rows. What lies behind the last one is not written. Rows times
    /// blocks per row, at least.
    pub indices: &'a mut [&'a mut [i32]],
    /// Tokens in the last block of each row, 0 for rows without blocks; rows, at least.
    pub last_page_len: &'a mut [i32],
}

impl PageList<'_> {
    pub(crate) fn check(&self, sizes: &BufferSizes) -> Result<(), ManagerError> {
        at_least("indptr", self.indptr.len(), sizes.rows + 1)?;
        exactly("indices (groups)", self.indices.len(), sizes.groups)?;
        for indices in &*self.indices {
            at_least("indices", indices.len(), sizes.rows * sizes.blocks_per_row)?;
        }
        at_least("last_page_len", self.last_page_len.len(), sizes.rows)
    }

    /// Writes a row of `seq_len` tokens, at least one. Rows come in order.
    pub(crate) fn push(&mut self, row: usize, seq_len: u32, block_size: u32, table: &BlockTable) {
        let first = self.indptr[row] as usize;
        let pages = seq_len.div_ceil(block_size) as usize;
        for (group, indices) in self.indices.iter_mut().enumerate() {
            let pages = &table.ids(group)[..pages];
            for (entry, &id) in indices[first..].iter_mut().zip(pages) {
                *entry = id as i32;
            }
        }
        self.indptr[row + 1] = (first + pages) as i32;
        self.last_page_len[row] = (seq_len - (pages as u32 - 1) * block_size) as i32;
    }

    /// Writes a row without blocks.
    pub(crate) fn push_empty(&mut self, row: usize) {
        self.indptr[row + 1] = self.indptr[row];
        self.last_page_len[row] = 0;
    }

    /// Begins the list.
    pub(crate) fn begin(&mut self) {
        self.indptr[0] = 0;
    }

    /// Empties the rows from `row` on.
    pub(crate) fn pad(&mut self, row: usize) {
        let end = self.indptr[row];
        self.indptr[row..].fill(end);
        self.last_page_len[row..].fill(0);
    }
}
