//! The sequence manager: sequences over one pool, one call per engine step.

mod admission;
mod audit;
mod commit;
mod config;
mod leave;
mod loading;
mod naming;
mod near_misses;
mod prepare;
mod reshape;
mod returns;
mod row_slots;
mod schedule;
mod sequences;
mod step_end;
mod steps;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use crate::block_key::KeyFold;
use crate::manager_error::ManagerError;
use crate::prefix_contents::PrefixLink;
use crate::sequence::{FinishReason, SeqHandle, Sequence};
use crate::step::{Announcement, StepShape};
use crate::{BlockHasher, BlockId, BlockKey, BlockPool, KeyWidth, PoolError, PrefixId};

pub use admission::PrefixMatch;
pub use audit::ManagerStats;
pub use commit::FinishedRow;
pub use config::{ManagerConfig, OpenParams};
pub use prepare::StepInfo;
pub use schedule::{Blocked, RunningOutcome};

pub(crate) use loading::Load;
pub(crate) use near_misses::Beginning;
use near_misses::Beginnings;
use returns::Returns;
use row_slots::RowSlots;
pub(crate) use sequences::Sequences;
use steps::Steps;

/// Where the block of an announcement is, and which step will have filled it.
#[derive(Clone, Copy, Debug)]
struct Announced {
    block: BlockId,
    step: u64,
    /// What is compared beside the key, as in the [`Announcement`].
    link: PrefixLink,
    tokens_at: Option<usize>,
}

/// Lists that calls fill and empty again, kept so that they allocate once.
#[derive(Debug, Default)]
struct Scratch {
    ids: Vec<BlockId>,
    /// Of each of these, the prefix that ends with it.
    names: Vec<PrefixId>,
    /// Each with its place in the table.
    announced: Vec<(usize, Announced)>,
    shared: Vec<BlockId>,
    groups: Vec<usize>,
    lost: Vec<Announcement>,
    affected: Vec<SeqHandle>,
    finished: Vec<FinishedRow>,
}

/// Owns sequences over one [`BlockPool`]: their tokens, lengths, block tables and stop rules.
///
/// A sequence is [opened](Self::open), [admitted](Self::admit) to a row with blocks for all its
/// known tokens, scheduled step by step ([`append`](Self::append) or
/// [`schedule_running`](Self::schedule_running)) and [closed](Self::close). A step is filled, then
/// [prepared](Self::prepare) into the caller's arrays, run by the caller and
/// [committed](Self::commit_step).
///
/// A decode step costs time in proportion to its tokens and to the rows that changed; context
/// length does not matter. Nothing is allocated after a sequence's admission.
///
/// ```
/// # use std::sync::Arc;
/// use looseleaf::{BlockPool, GroupKind, GroupSpec, HashAlgo, PoolConfig};
/// use looseleaf::{KVCacheManager, ManagerConfig, OpenParams};
///
/// let pool = Arc::new(BlockPool::new(PoolConfig::new(65))?);
/// let config = ManagerConfig {
///     groups: vec![GroupSpec {
///         kind: GroupKind::Full,
///         layers: vec![],
///         block_size: 16,
///         sliding_window: None,
///     }],
///     max_num_seqs: 8,
///     max_model_len: 256,
///     max_num_batched_tokens: 256,
///     enable_prefix_caching: true,
///     hash_algo: HashAlgo::Sha256Cbor,
///     hash_seed: None,
///     verify_tokens: false,
///     max_steps_in_flight: 1,
/// };
/// let mut manager = KVCacheManager::new(pool, config)?;
///
/// let prompt: Vec<u32> = (0..40).collect();
/// let params = OpenParams { tokens: &prompt, max_tokens: 8, ..OpenParams::default() };
/// let first = manager.open(params)?;
/// assert_eq!(manager.admit(first, 0)?, 0);
/// manager.append(first, 40, &[])?;
/// assert_eq!(manager.slots_of(first, 0)?.last(), Some(3 * 16 + 7));
/// // The caller runs the model on these slots, and it samples the token 7.
/// manager.commit(first, &[7])?;
///
/// let second = manager.open(params)?;
/// assert_eq!(manager.admit(second, 0)?, 32); // two of three blocks are there already
/// assert_eq!(manager.block_ids(second, 0)?, [1, 2, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The manager has one writer; the pool may serve others at the same time. What must hold between
/// calls is numbered in [`check_invariants`](Self::check_invariants).
#[derive(Debug)]
pub struct KVCacheManager {
    pool: Arc<BlockPool>,
    config: ManagerConfig,
    block_size: u32,
    /// `None` without prefix caching.
    hasher: Option<BlockHasher>,
    sequences: Sequences,
    rows: RowSlots,
    /// Sequences with a row, in the order of admission.
    running: Vec<SeqHandle>,
    steps: Steps,
    /// Blocks that uncommitted steps will have filled, for sequences of this manager only: the
    /// pool learns of a block when it *is* filled.
    announced: HashMap<BlockKey, Announced, BuildHasherDefault<KeyFold>>,
    returns: Returns,
    /// Blocks that are being filled for an admission which is over, by its sequence.
    abandoned_loads: BTreeMap<SeqHandle, Vec<BlockId>>,
    beginnings: Beginnings,
    stats: ManagerStats,
    scratch: Scratch,
}

impl KVCacheManager {
    /// A manager without sequences.
    ///
    /// # Errors
    /// [`ManagerError::InvalidConfig`] and [`ManagerError::MixedBlockSizes`] name the value at
    /// fault; [`PoolError::KeyTooWide`] if the pool cannot keep the keys of `hash_algo`.
    pub fn new(pool: Arc<BlockPool>, config: ManagerConfig) -> Result<Self, ManagerError> {
        config.validate()?;
        if config.enable_prefix_caching
            && config.hash_algo.key_width() == KeyWidth::Bits256
            && pool.config().key_width == KeyWidth::Bits128
        {
            return Err(PoolError::KeyTooWide { bits: 128 }.into());
        }
        let (block_size, event_tokens) = (config.groups[0].block_size, pool.config().event_tokens);
        if config.enable_prefix_caching && event_tokens != 0 && event_tokens < block_size {
            return Err(ManagerError::InvalidConfig {
                field: "event_tokens of the pool",
                found: event_tokens.into(),
                allowed: "0, or at least the block size",
            });
        }
        let expected = if config.verify_tokens { block_size } else { 0 };
        let found = pool.config().verify_tokens;
        if config.enable_prefix_caching && found != expected {
            return Err(ManagerError::InvalidConfig {
                field: "verify_tokens of the pool",
                found: found.into(),
                allowed: if config.verify_tokens {
                    "the manager's block size"
                } else {
                    "0, unless the manager verifies tokens too"
                },
            });
        }
        let shape = StepShape {
            max_num_seqs: config.max_num_seqs,
            groups: config.groups.len(),
            kept_tokens: expected,
        };
        let steps = usize::from(config.max_steps_in_flight) + 1;
        let announcements = steps * config.max_num_seqs as usize * config.groups.len();
        let hasher = || {
            let hasher = BlockHasher::new(config.hash_algo.clone(), config.hash_seed.as_deref());
            let contents = pool.contents.as_ref();
            hasher.with_marks(contents.map(|contents| contents.marks().clone()))
        };
        Ok(Self {
            block_size,
            hasher: config.enable_prefix_caching.then(hasher),
            sequences: Sequences::default(),
            rows: RowSlots::new(config.max_num_seqs),
            running: Vec::with_capacity(config.max_num_seqs as usize),
            steps: Steps::new(shape, config.max_steps_in_flight),
            announced: HashMap::with_capacity_and_hasher(announcements, Default::default()),
            returns: Returns::new(Arc::clone(&pool)),
            abandoned_loads: BTreeMap::new(),
            beginnings: Beginnings::default(),
            stats: ManagerStats::default(),
            scratch: Scratch::default(),
            pool,
            config,
        })
    }

    /// The pool the blocks come from.
    pub fn pool(&self) -> &Arc<BlockPool> {
        &self.pool
    }

    /// How the manager was built.
    pub fn config(&self) -> &ManagerConfig {
        &self.config
    }

    /// Tokens per block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Entries of a block table that a sequence of `max_model_len` tokens fills.
    pub fn max_blocks_per_seq(&self) -> u32 {
        self.config.max_model_len.div_ceil(self.block_size)
    }

    /// Sequences that hold a row.
    pub fn num_running(&self) -> usize {
        self.rows.num_taken()
    }

    /// Sequences that are open.
    pub fn num_open(&self) -> usize {
        self.sequences.len()
    }

    /// The sequence's tokens, prompt first.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`], as for every question about a sequence.
    pub fn tokens(&self, handle: SeqHandle) -> Result<&[u32], ManagerError> {
        Ok(&self.sequences.get(handle)?.tokens)
    }

    /// How many tokens the sequence has.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`].
    pub fn num_tokens(&self, handle: SeqHandle) -> Result<u32, ManagerError> {
        Ok(self.sequences.get(handle)?.len())
    }

    /// How many of its tokens the sequence generated.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`].
    pub fn output_len(&self, handle: SeqHandle) -> Result<u32, ManagerError> {
        Ok(self.sequences.get(handle)?.output_len())
    }

    /// How many leading tokens have their keys and values in the sequence's blocks, by committed
    /// steps or by prefix hits.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`].
    pub fn num_computed_tokens(&self, handle: SeqHandle) -> Result<u32, ManagerError> {
        Ok(self.sequences.get(handle)?.computed)
    }

    /// How many tokens the first admission found ready: prefix hits and external tokens. Later
    /// admissions, after a preemption, do not change it.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`].
    pub fn num_cached_tokens(&self, handle: SeqHandle) -> Result<u32, ManagerError> {
        Ok(self.sequences.get(handle)?.cached.unwrap_or(0))
    }

    /// The sequence's blocks in one group, in the order of its tokens.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`] and [`ManagerError::UnknownGroup`].
    pub fn block_ids(&self, handle: SeqHandle, group: usize) -> Result<&[BlockId], ManagerError> {
        self.check_group(group)?;
        Ok(self.sequences.get(handle)?.table.ids(group))
    }

    /// The sequence's row slot; `None` while it is not admitted.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`].
    pub fn row(&self, handle: SeqHandle) -> Result<Option<u32>, ManagerError> {
        Ok(self.sequences.get(handle)?.row)
    }

    /// Why the sequence is complete, if it is.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`].
    pub fn finish_reason(&self, handle: SeqHandle) -> Result<Option<FinishReason>, ManagerError> {
        Ok(self.sequences.get(handle)?.finished)
    }

    /// The sequences that hold a row, in the order of their admission.
    pub fn running(&self) -> &[SeqHandle] {
        &self.running
    }

    fn num_groups(&self) -> usize {
        self.config.groups.len()
    }

    fn check_group(&self, group: usize) -> Result<(), ManagerError> {
        let groups = self.num_groups();
        if group < groups {
            Ok(())
        } else {
            Err(ManagerError::UnknownGroup { group, groups })
        }
    }

    /// Blocks for that many tokens, over all groups, if a pool with nothing else in it has them.
    fn blocks_that_can_fit(&self, tokens: u32) -> Result<usize, ManagerError> {
        let asked = tokens.div_ceil(self.block_size) as usize * self.num_groups();
        let usable = self.pool.num_usable();
        if asked <= usable {
            return Ok(asked);
        }
        Err(ManagerError::CanNeverFit {
            tokens,
            asked: asked as u32,
            usable: usable as u32,
        })
    }

    /// The sequence and its row slot.
    fn admitted(&self, handle: SeqHandle) -> Result<(&Sequence, u32), ManagerError> {
        let sequence = self.sequences.get(handle)?;
        match sequence.row {
            Some(slot) => Ok((sequence, slot)),
            None => Err(ManagerError::NotAdmitted {
                handle: handle.raw(),
            }),
        }
    }

    /// Refuses a change to the blocks of a sequence that an uncommitted step holds.
    fn check_idle(&self, handle: SeqHandle, slot: u32) -> Result<(), ManagerError> {
        match self.steps.newest_with(slot, handle) {
            None => Ok(()),
            Some(step) => Err(ManagerError::InUncommittedStep {
                handle: handle.raw(),
                step,
            }),
        }
    }
}
