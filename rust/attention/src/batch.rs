//! What `attend` is asked to do, and the checks on it.

use crate::error::AttentionError;
use crate::kernel::Terms;
use crate::layout::{GRAIN, Layout};
use std::ops::Range;

/// Block ids of each row, `[rows][width]`, rows `stride` apart.
#[derive(Clone, Copy, Debug)]
pub struct BlockTables<'a> {
    ids: &'a [i32],
    rows: usize,
    width: usize,
    stride: usize,
}

impl<'a> BlockTables<'a> {
    /// Tables in `ids`, of which each row's first `width` count.
    ///
    /// # Errors
    /// [`AttentionError::Array`] when rows overlap or `ids` is too short.
    pub fn new(
        ids: &'a [i32],
        rows: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self, AttentionError> {
        if stride < width {
            return Err(AttentionError::array(
                "block_tables",
                format!("rows {stride} apart"),
                width,
            ));
        }
        let last = rows
            .saturating_sub(1)
            .checked_mul(stride)
            .and_then(|start| start.checked_add(width));
        if rows > 0 && last.is_none_or(|end| end > ids.len()) {
            let required = format!("{rows} rows of {width} ids, {stride} apart");
            return Err(AttentionError::array(
                "block_tables",
                format!("{} ids", ids.len()),
                required,
            ));
        }
        Ok(BlockTables {
            ids,
            rows,
            width,
            stride,
        })
    }

    fn row(&self, row: usize) -> &'a [i32] {
        &self.ids[row * self.stride..][..self.width]
    }
}

/// Rows of one step: any mix of prompts, chunks of prompts and single tokens.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Tokens in the queries and the output; those past the last row are padding.
    pub num_tokens: usize,
    /// Query heads, a multiple of the cache's key/value heads.
    pub num_heads: usize,
    /// The blocks of each row.
    pub block_tables: BlockTables<'a>,
    /// Keys of each row, its query tokens included; 0 for a row without tokens.
    pub seq_lens: &'a [i32],
    /// Where each row's query tokens start, and where the last one's end: one more entry than rows.
    pub cu_seqlens_q: &'a [i32],
}

/// How scores are formed.
#[derive(Clone, Copy, Debug)]
pub struct ScoreTerms<'a> {
    /// Factor on `q · k`.
    pub scale: f32,
    /// Keys that a token sees at most, itself included.
    pub sliding_window: Option<usize>,
    /// Scaled scores s become `softcap · tanh(s / softcap)`.
    pub softcap: Option<f32>,
    /// For each query head one logit more in the softmax's denominator.
    pub sinks: Option<&'a [f32]>,
}

/// A row of a batch that was checked and has query tokens.
pub(crate) struct Row<'a> {
    /// Its blocks, up to the one with its last key.
    pub(crate) table: &'a [i32],
    /// Its query tokens within the batch.
    pub(crate) tokens: Range<usize>,
    /// Position of its first query token.
    pub(crate) first_position: usize,
}

/// First key to look at for the token at `position`, rounded down to where pieces of blocks may start.
pub(crate) fn first_key(position: usize, terms: &Terms) -> usize {
    (position + 1).saturating_sub(terms.window) / GRAIN * GRAIN
}

impl<'a> ScoreTerms<'a> {
    pub(crate) fn check(&self, num_heads: usize) -> Result<Terms, AttentionError> {
        if !self.scale.is_finite() {
            return Err(AttentionError::setting(
                "scale",
                self.scale,
                "a finite number",
            ));
        }
        if let Some(cap) = self.softcap.filter(|&cap| !(cap.is_finite() && cap > 0.0)) {
            return Err(AttentionError::setting(
                "softcap",
                cap,
                "a finite number above 0",
            ));
        }
        if self.sliding_window == Some(0) {
            return Err(AttentionError::setting("sliding_window", 0, "1 or more"));
        }
        if let Some(sinks) = self.sinks {
            check_len("sinks", sinks.len(), num_heads)?;
        }
        let window = self.sliding_window.unwrap_or(usize::MAX);
        Ok(Terms {
            scale: self.scale,
            softcap: self.softcap,
            window,
        })
    }
}

impl<'a> Batch<'a> {
    /// The rows that have query tokens, with every block id that will be followed checked.
    pub(crate) fn check(
        &self,
        layout: &Layout,
        terms: &Terms,
    ) -> Result<Vec<Row<'a>>, AttentionError> {
        let (num_heads, kv_heads) = (self.num_heads, layout.shape().num_kv_heads);
        if num_heads == 0 || !num_heads.is_multiple_of(kv_heads) {
            return Err(AttentionError::array(
                "q",
                format!("{num_heads} heads"),
                format!("a multiple of {kv_heads}"),
            ));
        }
        let num_rows = self.seq_lens.len();
        check_len("block_tables", self.block_tables.rows, num_rows)?;
        check_len("cu_seqlens_q", self.cu_seqlens_q.len(), num_rows + 1)?;
        if self.cu_seqlens_q[0] != 0 {
            return Err(AttentionError::array(
                "cu_seqlens_q[0]",
                self.cu_seqlens_q[0],
                0,
            ));
        }
        let mut rows = Vec::with_capacity(num_rows);
        for row in 0..num_rows {
            let (start, end) = (self.cu_seqlens_q[row], self.cu_seqlens_q[row + 1]);
            if end < start || end as usize > self.num_tokens {
                let required = format!("{start} to {} after entry {row}", self.num_tokens);
                return Err(AttentionError::array("cu_seqlens_q", end, required));
            }
            if end > start {
                rows.push(self.check_row(row, start as usize..end as usize, layout, terms)?);
            }
        }
        Ok(rows)
    }

    fn check_row(
        &self,
        row: usize,
        tokens: Range<usize>,
        layout: &Layout,
        terms: &Terms,
    ) -> Result<Row<'a>, AttentionError> {
        let shape = layout.shape();
        let seq_len = self.seq_lens[row].max(0) as usize;
        if seq_len < tokens.len() {
            let required = format!(
                "{} or more in row {row}, its number of query tokens",
                tokens.len()
            );
            return Err(AttentionError::array(
                "seq_lens",
                self.seq_lens[row],
                required,
            ));
        }
        let table = self.block_tables.row(row);
        let num_blocks = seq_len.div_ceil(shape.block_size);
        if table.len() < num_blocks {
            let required = format!("{num_blocks} for the {seq_len} keys of row {row}");
            return Err(AttentionError::array(
                "block_tables",
                format!("{} columns", table.len()),
                required,
            ));
        }
        let first_position = seq_len - tokens.len();
        let first_block = first_key(first_position, terms) / shape.block_size;
        for &id in &table[first_block..num_blocks] {
            if id < 0 || id as usize >= shape.num_blocks {
                let required = format!("0 to {} in row {row}", shape.num_blocks - 1);
                return Err(AttentionError::array("block_tables", id, required));
            }
        }
        Ok(Row {
            table: &table[..num_blocks],
            tokens,
            first_position,
        })
    }
}

pub(crate) fn check_len(
    argument: &'static str,
    found: usize,
    required: usize,
) -> Result<(), AttentionError> {
    if found == required {
        return Ok(());
    }
    Err(AttentionError::array(
        argument,
        format!("length {found}"),
        format!("length {required}"),
    ))
}
