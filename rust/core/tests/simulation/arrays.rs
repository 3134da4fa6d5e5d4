//! The arrays that steps are prepared into.

use looseleaf::{
    BufferMarks, BufferSizes, KVCacheManager, ManagerError, PageList, StepBuffers, StepInfo,
};

/// One set of step buffers, with its marks.
#[derive(Debug)]
pub struct Arrays {
    pub token_ids: Vec<i64>,
    pub positions: Vec<i64>,
    pub slot_mapping: Vec<Vec<i64>>,
    pub block_tables: Vec<Vec<i32>>,
    pub seq_lens: Vec<i32>,
    pub cu_seqlens_q: Vec<i32>,
    pub logits_indices: Vec<i64>,
    pub sample_rows: Vec<i32>,
    pub copies: Vec<i32>,
    pub indptr: Vec<i32>,
    pub indices: Vec<Vec<i32>>,
    pub last_page_len: Vec<i32>,
    pub marks: BufferMarks,
    pub sizes: BufferSizes,
}

impl Arrays {
    /// Arrays of the right sizes, full of rubbish.
    pub fn new(sizes: BufferSizes) -> Self {
        let rubbish = 77;
        let table = vec![rubbish as i32; sizes.rows * sizes.blocks_per_row];
        Self {
            token_ids: vec![rubbish; sizes.tokens],
            positions: vec![rubbish; sizes.tokens],
            slot_mapping: vec![vec![rubbish; sizes.tokens]; sizes.groups],
            block_tables: vec![table.clone(); sizes.groups],
            seq_lens: vec![rubbish as i32; sizes.rows],
            cu_seqlens_q: vec![rubbish as i32; sizes.rows + 1],
            logits_indices: vec![rubbish; sizes.rows],
            sample_rows: vec![rubbish as i32; sizes.rows],
            copies: vec![rubbish as i32; sizes.copies * 2],
            indptr: vec![rubbish as i32; sizes.rows + 1],
            indices: vec![table; sizes.groups],
            last_page_len: vec![rubbish as i32; sizes.rows],
            marks: BufferMarks::default(),
            sizes,
        }
    }

    pub fn prepare(&mut self, manager: &mut KVCacheManager) -> Result<StepInfo, ManagerError> {
        let mut slot_mapping: Vec<&mut [i64]> = self
            .slot_mapping
            .iter_mut()
            .map(Vec::as_mut_slice)
            .collect();
        let mut block_tables: Vec<&mut [i32]> = self
            .block_tables
            .iter_mut()
            .map(Vec::as_mut_slice)
            .collect();
        let mut indices: Vec<&mut [i32]> = self.indices.iter_mut().map(Vec::as_mut_slice).collect();
        manager.prepare(&mut StepBuffers {
            token_ids: &mut self.token_ids,
            positions: &mut self.positions,
            slot_mapping: &mut slot_mapping,
            block_tables: &mut block_tables,
            seq_lens: &mut self.seq_lens,
            cu_seqlens_q: &mut self.cu_seqlens_q,
            logits_indices: &mut self.logits_indices,
            sample_rows: &mut self.sample_rows,
            copies: &mut self.copies,
            page_list: Some(PageList {
                indptr: &mut self.indptr,
                indices: &mut indices,
                last_page_len: &mut self.last_page_len,
            }),
            marks: &mut self.marks,
        })
    }

    /// One row of a block table.
    pub fn table(&self, group: usize, row: usize) -> &[i32] {
        &self.block_tables[group][row * self.sizes.blocks_per_row..][..self.sizes.blocks_per_row]
    }

    /// Checks that the page list says what tables and lengths say.
    pub fn assert_pages_equal_tables(&self, block_size: u32) {
        let mut at = 0;
        for (row, &len) in self.seq_lens.iter().enumerate() {
            assert_eq!(self.indptr[row] as usize, at, "{self:?}");
            let pages = (len as u32).div_ceil(block_size) as usize;
            for (group, indices) in self.indices.iter().enumerate() {
                let listed = &indices[at..at + pages];
                assert_eq!(listed, &self.table(group, row)[..pages], "{self:?}");
            }
            at += pages;
            let before_last = pages.saturating_sub(1) as i32 * block_size as i32;
            assert_eq!(self.last_page_len[row], len - before_last, "{self:?}");
        }
        assert_eq!(self.indptr[self.sizes.rows] as usize, at, "{self:?}");
    }

    /// Checks that everything a step does not use is padding.
    pub fn assert_padded(&self, info: &StepInfo) {
        let tokens = info.num_tokens as usize;
        assert!(
            self.token_ids[tokens..].iter().all(|&id| id == 0),
            "token_ids: {self:?}"
        );
        assert!(
            self.positions[tokens..].iter().all(|&at| at == 0),
            "positions: {self:?}"
        );
        for slots in &self.slot_mapping {
            assert!(
                slots[..tokens].iter().all(|&slot| slot >= 0),
                "slot_mapping: {self:?}"
            );
            assert!(
                slots[tokens..].iter().all(|&slot| slot == -1),
                "slot_mapping: {self:?}"
            );
        }
        let rows = info.num_rows as usize;
        assert!(
            self.seq_lens[rows..].iter().all(|&len| len == 0),
            "seq_lens: {self:?}"
        );
        let ends = &self.cu_seqlens_q[rows..];
        assert!(
            ends.iter().all(|&end| end as usize == tokens),
            "cu_seqlens_q: {self:?}"
        );
        let samples = info.num_samples as usize;
        assert!(
            self.logits_indices[samples..].iter().all(|&at| at == 0),
            "logits: {self:?}"
        );
        assert!(
            self.sample_rows[samples..].iter().all(|&row| row == 0),
            "rows: {self:?}"
        );
        let copies = 2 * info.num_copies as usize;
        assert!(
            self.copies[copies..].iter().all(|&id| id == 0),
            "copies: {self:?}"
        );
    }
}
