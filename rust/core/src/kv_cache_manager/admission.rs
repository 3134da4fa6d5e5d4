//! Opening sequences and admitting them: prefix hits, and blocks for the rest.

use super::{Announced, Beginning, KVCacheManager, Load, ManagerConfig, OpenParams, Scratch};
use crate::block_table::BlockTable;
use crate::hash_chain::HashChain;
use crate::manager_error::ManagerError;
use crate::pool::Found;
use crate::prefix_contents::{Wanted, as_verified};
use crate::sequence::{SeqHandle, Sequence, StopRules};
use crate::{OutOfBlocks, PrefixId};

/// What an admission would find now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefixMatch {
    /// Leading tokens whose keys and values are there, or will be when the steps scheduled so far
    /// have run.
    pub num_cached_tokens: u32,
    /// Blocks of that prefix, over all groups, that nobody holds: taking them uses up free blocks.
    pub free_hit_blocks: u32,
    /// Further blocks, over all groups, that the known tokens need.
    pub new_blocks: u32,
}

/// Where a block with wanted content is.
#[derive(Clone, Copy)]
enum Hit {
    Cached(Found),
    Announced(Announced),
}

/// What a look-up of a whole prefix found.
#[derive(Clone, Copy, Default)]
struct Plan {
    /// Blocks of the prefix, per group.
    hits: u32,
    /// Of the pool's blocks in it, those that nobody holds.
    free: usize,
}

impl KVCacheManager {
    /// Opens a sequence. It holds no blocks until it is admitted; the keys of the prompt's full
    /// blocks are computed here, once.
    ///
    /// # Errors
    /// [`ManagerError::InvalidRequest`] for an empty prompt or `max_tokens` of 0,
    /// [`ManagerError::TooLong`] if the prompt leaves no room for a token, and
    /// [`ManagerError::CanNeverFit`] if it is larger than the pool.
    pub fn open(&mut self, params: OpenParams<'_>) -> Result<SeqHandle, ManagerError> {
        let refuse = |field| {
            Err(ManagerError::InvalidRequest {
                field,
                found: 0,
                allowed: "at least 1",
            })
        };
        if params.tokens.is_empty() {
            return refuse("the number of prompt tokens");
        }
        if params.max_tokens == 0 {
            return refuse("max_tokens");
        }
        let max_model_len = self.config.max_model_len;
        if params.tokens.len() >= max_model_len as usize {
            let tokens = params.tokens.len() as u64 + 1;
            return Err(ManagerError::TooLong {
                tokens,
                max_model_len,
            });
        }
        self.blocks_that_can_fit(params.tokens.len() as u32)?;
        let stop = StopRules {
            eos_token_ids: params.eos_token_ids.into(),
            stop_token_ids: params.stop_token_ids.into(),
            min_tokens: params.min_tokens,
            max_tokens: params.max_tokens,
            max_model_len,
        };
        let chain = HashChain::new(params.salt, params.extra_keys);
        let table = BlockTable::new(self.num_groups());
        let mut sequence = Sequence::new(params.tokens.to_vec(), stop, chain, table);
        sequence.reads_cache = !params.skip_reading_prefix_cache;
        if self.hasher.is_some() && sequence.reads_cache {
            sequence.beginning = Beginning::of(params.tokens, params.salt, self.block_size);
            self.stats.short_prompts += u64::from(sequence.beginning.is_none());
        }
        sequence.reserve(self.block_size, self.verifies());
        self.hash_known(&mut sequence);
        Ok(self.sequences.insert(sequence))
    }

    /// How much of the sequence [`admit`](Self::admit) would find cached, and what else it would
    /// take. Changes nothing. At least the last token is always left to compute, so the prefix is
    /// at most `num_tokens - 1` long, in whole blocks.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`].
    pub fn match_prefix(&self, handle: SeqHandle) -> Result<PrefixMatch, ManagerError> {
        as_verified!(self.match_prefix_as(handle))
    }

    fn match_prefix_as<const VERIFY: bool>(
        &self,
        handle: SeqHandle,
    ) -> Result<PrefixMatch, ManagerError> {
        let sequence = self.sequences.get(handle)?;
        let (mut hits, mut free_hits) = (0, 0);
        let mut before = roots();
        'blocks: for index in 0..self.num_candidates(sequence) {
            let mut free = 0;
            for (group, before) in (0..self.num_groups()).zip(&mut before) {
                let wanted = sequence.wanted_as::<VERIFY>(index, group, *before, self.block_size);
                match self.find::<VERIFY>(&wanted) {
                    Some(Hit::Cached(found)) => {
                        free += u32::from(found.state.is_free());
                        *before = found.name;
                    }
                    Some(Hit::Announced(hit)) => *before = hit.link.name,
                    None => break 'blocks,
                }
            }
            hits += 1;
            free_hits += free;
        }
        let blocks = sequence.len().div_ceil(self.block_size);
        Ok(PrefixMatch {
            num_cached_tokens: hits * self.block_size,
            free_hit_blocks: free_hits,
            new_blocks: (blocks - hits) * self.num_groups() as u32,
        })
    }

    /// Gives the sequence a row and blocks for all tokens it has, prompt and generated ones, taking
    /// those of the cached prefix as they are. Returns the tokens that need no computing.
    ///
    /// `external_tokens` more tokens, right after the cached prefix, come from the caller: it fills
    /// their blocks and says with [`finish_load`](Self::finish_load) when that has ended. They count
    /// as computed from then on, and are no hits. Until then no step takes the sequence, and the
    /// blocks are neither found nor given to anybody, even if the sequence leaves.
    ///
    /// # Errors
    /// [`ManagerError::TooManyExternalTokens`] when not even the last token would be left to compute,
    /// and [`ManagerError::Loading`] if a load of an earlier admission has not ended.
    /// [`ManagerError::OutOfBlocks`] and [`ManagerError::NoFreeRow`] when the admission must wait,
    /// [`ManagerError::CanNeverFit`] when waiting cannot help. Nothing has changed then, the order
    /// of the free blocks included.
    pub fn admit(&mut self, handle: SeqHandle, external_tokens: u32) -> Result<u32, ManagerError> {
        let sequence = self.sequences.get(handle)?;
        if sequence.row.is_some() {
            return Err(ManagerError::AlreadyAdmitted {
                handle: handle.raw(),
            });
        }
        if sequence.finished.is_some() {
            return Err(ManagerError::AlreadyFinished {
                handle: handle.raw(),
            });
        }
        self.rows.check_free(1)?;
        let blocks = self.blocks_that_can_fit(sequence.len())?;
        let hits = as_verified!(self.take_blocks(handle, blocks, external_tokens))?;
        self.depend_on_announcements(handle);

        let slot = self.rows.take(handle)?;
        self.running.push(handle);
        let block_size = self.block_size;
        let groups = self.num_groups();
        let verifies = self.verifies();
        let sequence = self.sequences.get_mut(handle)?;
        if verifies {
            for (place, name) in self.scratch.names.iter().enumerate() {
                sequence.set_name(place / groups, place % groups, *name);
            }
        }
        self.scratch
            .ids
            .chunks_exact(groups)
            .for_each(|ids| sequence.table.push(ids));

        let hit_tokens = hits * block_size;
        sequence.row = Some(slot);
        sequence.computed = hit_tokens;
        sequence.scheduled = hit_tokens;
        sequence.settled = hits;
        sequence.loading = (external_tokens > 0).then_some(Load {
            tokens: external_tokens,
            is_first: sequence.cached.is_none(),
        });
        sequence.cached.get_or_insert(hit_tokens);
        if let Some(beginning) = sequence.beginning.take() {
            let near_miss = self.beginnings.is_near_miss(beginning);
            self.stats.short_prefixes += u64::from(near_miss && hits == 0);
        }
        self.stats.count_lookup(sequence, hit_tokens);
        Ok(hit_tokens + external_tokens)
    }

    /// Takes the cached prefix and new blocks for the rest, `blocks` in all, into `scratch.ids` in
    /// the order of the table, all groups of one index together. Returns the blocks per group that
    /// were hit.
    fn take_blocks<const VERIFY: bool>(
        &mut self,
        handle: SeqHandle,
        blocks: usize,
        external_tokens: u32,
    ) -> Result<u32, ManagerError> {
        loop {
            let plan = self.plan_hits::<VERIFY>(handle)?;
            self.check_external(handle, plan.hits, external_tokens)?;
            let (groups, block_size) = (self.num_groups(), self.block_size);
            let sequence = self.sequences.get(handle)?;
            let Scratch {
                ids,
                names,
                announced,
                shared,
                ..
            } = &mut self.scratch;
            shared.clear();
            shared.extend(announced.iter().map(|(_, hit)| hit.block));
            self.pool.share(shared)?;

            let num_hits = ids.len();
            ids.resize(blocks, 0);
            let (prefix, new) = ids.split_at_mut(num_hits);
            let is_cached = |entry: usize| {
                let found = announced.binary_search_by_key(&entry, |(entry, _)| *entry);
                found.is_err()
            };
            let wanted = |entry: usize| {
                let (index, group) = (entry / groups, entry % groups);
                let before = entry.checked_sub(groups).and_then(|entry| names.get(entry));
                let before = before.copied().unwrap_or(PrefixId::root(group as u32));
                sequence.wanted_as::<VERIFY>(index, group, before, block_size)
            };
            let cached = prefix
                .iter_mut()
                .enumerate()
                .filter(|(entry, _)| is_cached(*entry));
            let taken = match self.pool.admit_found(cached, wanted, plan.free, new) {
                Ok(taken) => taken,
                Err(refusal) => {
                    self.pool.release_distinct(shared)?;
                    return Err(out_of_blocks(refusal));
                }
            };
            if taken == num_hits - announced.len() {
                return Ok(plan.hits);
            }
            // Another thread evicted a hit in between, so the prefix is shorter than planned. That
            // thread got on; look again.
            self.stats.lost_hits += 1;
            let cached = (0..num_hits).filter(|entry| is_cached(*entry));
            shared.extend(cached.take(taken).map(|entry| prefix[entry]));
            self.pool.release_distinct(shared)?;
        }
    }

    /// Lists the blocks of the cached prefix in `scratch.ids`, in the order of the table, the names
    /// of the prefixes that end with them in `scratch.names`, and those blocks of them that are only
    /// announced in `scratch.announced`. Names are listed only where they are compared.
    fn plan_hits<const VERIFY: bool>(&mut self, handle: SeqHandle) -> Result<Plan, ManagerError> {
        let sequence = self.sequences.get(handle)?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let Scratch {
            ids,
            names,
            announced,
            ..
        } = &mut scratch;
        ids.clear();
        names.clear();
        announced.clear();
        let mut plan = Plan::default();
        let mut before = roots();
        'blocks: for index in 0..self.num_candidates(sequence) {
            let whole = (ids.len(), announced.len(), plan.free);
            for (group, before) in (0..self.num_groups()).zip(&mut before) {
                let wanted = sequence.wanted_as::<VERIFY>(index, group, *before, self.block_size);
                match self.find::<VERIFY>(&wanted) {
                    Some(Hit::Cached(found)) => {
                        ids.push(found.id);
                        plan.free += usize::from(found.state.is_free());
                        *before = found.name;
                    }
                    Some(Hit::Announced(hit)) => {
                        announced.push((ids.len(), hit));
                        ids.push(hit.block);
                        *before = hit.link.name;
                    }
                    None => {
                        // A prefix counts only while all groups have it.
                        ids.truncate(whole.0);
                        names.truncate(whole.0);
                        announced.truncate(whole.1);
                        plan.free = whole.2;
                        break 'blocks;
                    }
                }
                if VERIFY {
                    names.push(*before);
                }
            }
            plan.hits += 1;
        }
        self.scratch = scratch;
        Ok(plan)
    }

    /// Notes in the steps whose announcements were just taken that the sequence needs them.
    fn depend_on_announcements(&mut self, handle: SeqHandle) {
        for (_, announced) in &self.scratch.announced {
            for step in self
                .steps
                .all_mut()
                .filter(|step| step.id == announced.step)
            {
                if step.dependants.last() != Some(&handle) {
                    step.dependants.push(handle);
                }
            }
        }
    }

    /// Leading blocks that a look-up may take: full ones, and never the last token's.
    fn num_candidates(&self, sequence: &Sequence) -> usize {
        let most = match self.hasher {
            Some(_) if sequence.reads_cache => (sequence.len() - 1) / self.block_size,
            _ => 0,
        };
        sequence.chain.keys().len().min(most as usize)
    }

    /// Looks for filled blocks first: they are there whatever becomes of the steps in flight.
    #[inline(always)]
    fn find<const VERIFY: bool>(&self, wanted: &Wanted<'_>) -> Option<Hit> {
        match self.pool.find_as::<VERIFY>(wanted) {
            Some(found) => Some(Hit::Cached(found)),
            None => self.announced_as(wanted).map(Hit::Announced),
        }
    }

    /// Computes the keys of all full blocks of the sequence's tokens.
    pub(super) fn hash_known(&self, sequence: &mut Sequence) {
        if let Some(hasher) = &self.hasher {
            let blocks = sequence.tokens.len() / self.block_size as usize;
            sequence
                .chain
                .extend_to(blocks, &sequence.tokens, self.block_size, hasher);
        }
    }
}

/// What the first blocks of all groups continue.
fn roots() -> [PrefixId; ManagerConfig::MAX_GROUPS] {
    std::array::from_fn(|group| PrefixId::root(group as u32))
}

/// The pool's refusal, with what is missing.
pub(super) fn out_of_blocks(pool: OutOfBlocks) -> ManagerError {
    let missing = pool.asked.saturating_sub(pool.free).max(1);
    ManagerError::OutOfBlocks {
        missing: missing as u32,
        pool,
    }
}
