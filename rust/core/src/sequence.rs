//! A sequence: its tokens, how far they are computed, and when it stops.

use crate::PrefixId;
use crate::block_table::BlockTable;
use crate::hash_chain::HashChain;
use crate::kv_cache_manager::{Beginning, Load};

/// Names one open sequence of one manager.
///
/// The lower 32 bits are an index, the upper ones the index's generation, so that a handle kept
/// after `close` is recognised and refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct SeqHandle(u64);

impl SeqHandle {
    /// The handle whose raw value is `raw`; any value is safe, an unknown one is refused in use.
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw value, for callers that keep handles as integers.
    pub fn raw(self) -> u64 {
        self.0
    }

    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(index) | u64::from(generation) << 32)
    }

    pub(crate) fn index(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Why a sequence is complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FinishReason {
    /// It produced an end-of-sequence token.
    Eos,
    /// It produced one of the request's stop tokens.
    StopToken,
    /// It reached its `max_tokens` or the manager's `max_model_len`.
    Length,
}

/// When a sequence is complete.
#[derive(Clone, Debug)]
pub(crate) struct StopRules {
    pub(crate) eos_token_ids: Box<[u32]>,
    pub(crate) stop_token_ids: Box<[u32]>,
    pub(crate) min_tokens: u32,
    pub(crate) max_tokens: u32,
    pub(crate) max_model_len: u32,
}

/// The state of one sequence. Positions count from the first prompt token.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: u32,
    pub(crate) stop: StopRules,
    pub(crate) chain: HashChain,
    pub(crate) table: BlockTable,
    /// The row slot, held from admission to preemption or close.
    pub(crate) row: Option<u32>,
    /// Tokens whose keys and values are written and committed.
    pub(crate) computed: u32,
    /// Where the next append starts: `computed` plus what uncommitted appends cover.
    pub(crate) scheduled: u32,
    /// Tokens that uncommitted appends will add.
    pub(crate) pending: u32,
    /// An uncommitted append runs tokens that may be rejected, so its end is not known.
    pub(crate) uncertain: bool,
    /// Leading blocks that need no publishing any more: hits, published ones and duplicates.
    pub(crate) settled: u32,
    /// The prefixes that end with its blocks, the groups of one block together, for a pool that
    /// verifies tokens: of the settled blocks at least, and of those that were announced. They stay
    /// when the blocks go: they are names of its tokens.
    pub(crate) names: Vec<PrefixId>,
    /// Tokens found ready at the first admission.
    pub(crate) cached: Option<u32>,
    /// Set while its blocks are being filled from outside.
    pub(crate) loading: Option<Load>,
    /// Whether admissions look for cached blocks.
    pub(crate) reads_cache: bool,
    /// Set until the first admission has compared it with others.
    pub(crate) beginning: Option<Beginning>,
    pub(crate) preemptions: u32,
    pub(crate) finished: Option<FinishReason>,
}

impl Sequence {
    pub(crate) fn new(
        tokens: Vec<u32>,
        stop: StopRules,
        chain: HashChain,
        table: BlockTable,
    ) -> Self {
        Self {
            prompt_len: tokens.len() as u32,
            tokens,
            stop,
            chain,
            table,
            row: None,
            computed: 0,
            scheduled: 0,
            pending: 0,
            uncertain: false,
            settled: 0,
            names: Vec::new(),
            cached: None,
            loading: None,
            reads_cache: true,
            beginning: None,
            preemptions: 0,
            finished: None,
        }
    }

    /// A sequence of the same tokens on a table that has this one's computed blocks.
    pub(crate) fn branch(&self, table: BlockTable) -> Self {
        Self {
            tokens: self.tokens.clone(),
            prompt_len: self.prompt_len,
            stop: self.stop.clone(),
            chain: self.chain.clone(),
            table,
            row: None,
            computed: self.computed,
            scheduled: self.computed,
            pending: 0,
            uncertain: false,
            settled: self.settled,
            names: self.names.clone(),
            cached: self.cached,
            loading: None,
            reads_cache: self.reads_cache,
            beginning: None,
            preemptions: 0,
            finished: self.finished,
        }
    }

    /// Makes room for all the sequence can become, so that its steps do not allocate.
    pub(crate) fn reserve(&mut self, block_size: u32, with_names: bool) {
        let tokens = self.length_limit();
        let blocks = tokens.div_ceil(block_size) as usize;
        self.tokens
            .reserve_exact((tokens as usize).saturating_sub(self.tokens.len()));
        self.chain.reserve(blocks, with_names);
        self.table.reserve(blocks);
        if with_names {
            let names = blocks * self.table.num_groups();
            self.names
                .reserve_exact(names.saturating_sub(self.names.len()));
        }
    }

    /// Forgets tokens from position `len` on and what was known about them.
    pub(crate) fn cut_tokens(&mut self, len: u32, block_size: u32) {
        let full = len / block_size;
        self.tokens.truncate(len as usize);
        self.prompt_len = self.prompt_len.min(len);
        self.chain.truncate(full as usize);
        self.names.truncate(full as usize * self.table.num_groups());
        self.settled = self.settled.min(full);
        self.computed = self.computed.min(len);
        self.finished = None;
    }

    pub(crate) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub(crate) fn output_len(&self) -> u32 {
        self.len() - self.prompt_len
    }

    /// The length at which the sequence is complete whatever its tokens are.
    pub(crate) fn length_limit(&self) -> u32 {
        self.prompt_len
            .saturating_add(self.stop.max_tokens)
            .min(self.stop.max_model_len)
    }

    /// The length once every uncommitted append is committed.
    pub(crate) fn expected_len(&self) -> u32 {
        self.len() + self.pending
    }

    /// Tokens known, or sampled by a step in flight, that no append covers yet. None where the
    /// next append must wait, or would compute the input of a token that nobody wants.
    pub(crate) fn remaining(&self) -> u32 {
        let waits = self.finished.is_some() || self.uncertain || self.loading.is_some();
        if waits || self.expected_len() >= self.length_limit() {
            return 0;
        }
        self.expected_len() - self.scheduled
    }

    /// Adds a token and says whether it completes the sequence.
    pub(crate) fn push_token(&mut self, token: u32) -> Option<FinishReason> {
        self.tokens.push(token);
        let may_stop = self.output_len() >= self.stop.min_tokens;
        self.finished = if may_stop && self.stop.eos_token_ids.contains(&token) {
            Some(FinishReason::Eos)
        } else if may_stop && self.stop.stop_token_ids.contains(&token) {
            Some(FinishReason::StopToken)
        } else if self.len() >= self.length_limit() {
            Some(FinishReason::Length)
        } else {
            None
        };
        self.finished
    }

    /// Forgets every uncommitted append.
    pub(crate) fn forget_appends(&mut self) {
        self.scheduled = self.computed;
        self.pending = 0;
        self.uncertain = false;
    }
}
