//! `KVCacheManager`: sequences over one pool, from Python.

use std::sync::{Mutex, MutexGuard, TryLockError};

use looseleaf::{BlockId, FinishReason, ManagerConfig, OpenParams, SeqHandle};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{
    concurrent_use, invalid_buffer, invariant_error, manager_error, request_error, sequence_state,
};
use crate::extra_keys::{ExtraKey, spanned};
use crate::keys::{key_bytes, parse_hash_algo};
use crate::pool::BlockPool;
use crate::process::{Home, not_copyable};
use crate::specs::GroupSpec;
use crate::step_buffers::{Arrays, BoundBuffers, Pages};
use crate::step_results::{FinishedRow, PrefixMatch, RunningOutcome, StepInfo};
use crate::tokens::{AcceptedIds, SampledIds, TokenIds};

/// Sequences, their block tables and the steps that compute them.
///
/// Arguments are converted before the manager is entered and results after it is left, so no Python code runs
/// in between.
#[pyclass(frozen, module = "looseleaf._core")]
pub struct KVCacheManager {
    pool: Py<BlockPool>,
    state: Mutex<State>,
    home: Home,
}

struct State {
    manager: looseleaf::KVCacheManager,
    buffers: Option<BoundBuffers>,
}

impl KVCacheManager {
    fn enter(&self) -> PyResult<MutexGuard<'_, State>> {
        self.home.check("KVCacheManager")?;
        self.state.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => concurrent_use(),
            TryLockError::Poisoned(_) => {
                sequence_state("the manager failed an assertion earlier and cannot go on")
            }
        })
    }

    fn with<R>(
        &self,
        call: impl FnOnce(&mut looseleaf::KVCacheManager) -> Result<R, looseleaf::ManagerError>,
    ) -> PyResult<R> {
        let result = call(&mut self.enter()?.manager);
        result.map_err(manager_error)
    }

    fn affected(
        &self,
        call: impl FnOnce(
            &mut looseleaf::KVCacheManager,
        ) -> Result<&[SeqHandle], looseleaf::ManagerError>,
    ) -> PyResult<Vec<u64>> {
        self.with(|manager| Ok(call(manager)?.iter().map(|handle| handle.raw()).collect()))
    }
}

#[pymethods]
impl KVCacheManager {
    #[new]
    #[pyo3(signature = (pool, groups, *, max_num_seqs, max_model_len, max_num_batched_tokens,
        enable_prefix_caching = true, hash_algo = "sha256_cbor", hash_key = None, hash_seed = None,
        verify_tokens = false, max_steps_in_flight = 1))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of one constructor"
    )]
    fn new(
        pool: Py<BlockPool>,
        groups: Vec<GroupSpec>,
        max_num_seqs: u32,
        max_model_len: u32,
        max_num_batched_tokens: u32,
        enable_prefix_caching: bool,
        hash_algo: &str,
        hash_key: Option<[u8; 32]>,
        hash_seed: Option<String>,
        verify_tokens: bool,
        max_steps_in_flight: u8,
    ) -> PyResult<Self> {
        let config = ManagerConfig {
            groups: groups.into_iter().map(|group| group.inner).collect(),
            max_num_seqs,
            max_model_len,
            max_num_batched_tokens,
            enable_prefix_caching,
            hash_algo: parse_hash_algo(hash_algo, hash_key)?,
            hash_seed,
            verify_tokens,
            max_steps_in_flight,
        };
        let manager = looseleaf::KVCacheManager::new(pool.get().pool()?.clone(), config)
            .map_err(manager_error)?;
        Ok(Self {
            pool,
            state: Mutex::new(State {
                manager,
                buffers: None,
            }),
            home: Home::here(),
        })
    }

    /// The pool whose blocks the sequences hold.
    #[getter]
    fn pool(&self, py: Python<'_>) -> Py<BlockPool> {
        self.pool.clone_ref(py)
    }

    /// Tokens per block.
    #[getter]
    fn block_size(&self) -> PyResult<u32> {
        Ok(self.enter()?.manager.block_size())
    }

    /// Most blocks a sequence can have in one group: the width of `block_tables`.
    #[getter]
    fn max_blocks_per_seq(&self) -> PyResult<u32> {
        Ok(self.enter()?.manager.max_blocks_per_seq())
    }

    /// Sequences that hold a row.
    #[getter]
    fn num_running(&self) -> PyResult<usize> {
        Ok(self.enter()?.manager.num_running())
    }

    /// Sequences that are open.
    #[getter]
    fn num_open(&self) -> PyResult<usize> {
        Ok(self.enter()?.manager.num_open())
    }

    /// Opens a sequence; it holds no blocks before `admit`.
    #[pyo3(signature = (token_ids, *, cache_salt = None, extra_keys = Vec::new(), skip_reading_prefix_cache = false,
        max_tokens = None, min_tokens = 0, eos_token_ids = None, stop_token_ids = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one call")]
    fn open(
        &self,
        py: Python<'_>,
        token_ids: TokenIds,
        cache_salt: Option<&str>,
        extra_keys: Vec<ExtraKey>,
        skip_reading_prefix_cache: bool,
        max_tokens: Option<u32>,
        min_tokens: u32,
        eos_token_ids: Option<TokenIds>,
        stop_token_ids: Option<TokenIds>,
    ) -> PyResult<u64> {
        let ids = |given: Option<TokenIds>| given.map_or_else(Vec::new, |ids| ids.0);
        let (eos, stop) = (ids(eos_token_ids), ids(stop_token_ids));
        let extra_keys = spanned(extra_keys);
        let params = OpenParams {
            tokens: &token_ids.0,
            salt: cache_salt,
            extra_keys: &extra_keys,
            skip_reading_prefix_cache,
            max_tokens: max_tokens.unwrap_or(u32::MAX),
            min_tokens,
            eos_token_ids: &eos,
            stop_token_ids: &stop,
        };
        let open = || {
            self.with(|manager| manager.open(params))
                .map(SeqHandle::raw)
        };
        if token_ids.is_long() {
            py.detach(open)
        } else {
            open()
        }
    }

    /// What `admit` would find cached and take; changes nothing.
    fn match_prefix(&self, handle: u64) -> PyResult<PrefixMatch> {
        self.with(|manager| manager.match_prefix(SeqHandle::from_raw(handle)))
            .map(Into::into)
    }

    /// Takes the cached prefix, blocks for all other known tokens, and a row; all or nothing.
    ///
    /// Returns how many tokens need not be computed. `external_tokens` of them, right after the cached prefix, come
    /// from the caller, who fills their blocks; until `finish_load` no step takes the sequence.
    #[pyo3(signature = (handle, external_tokens = 0))]
    fn admit(&self, handle: u64, external_tokens: i64) -> PyResult<u32> {
        let external_tokens = count_of("external_tokens", external_tokens)?;
        self.with(|manager| manager.admit(SeqHandle::from_raw(handle), external_tokens))
    }

    /// Says that nothing fills the sequence's blocks any more, and how many of the external tokens of its admission
    /// are there. Returns whether the sequence still has these blocks; if not, they become free now.
    fn finish_load(&self, handle: u64, num_tokens: i64) -> PyResult<bool> {
        let num_tokens = count_of("num_tokens", num_tokens)?;
        self.with(|manager| manager.finish_load(SeqHandle::from_raw(handle), num_tokens))
    }

    /// Whether a load into the sequence's blocks has not ended.
    fn is_loading(&self, handle: u64) -> PyResult<bool> {
        Ok(self
            .enter()?
            .manager
            .is_loading(SeqHandle::from_raw(handle)))
    }

    /// The hashes of the sequence's full blocks from index `first` on, as far as they are known.
    #[pyo3(signature = (handle, first = 0))]
    fn block_hashes<'py>(
        &self,
        py: Python<'py>,
        handle: u64,
        first: usize,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let (keys, width) = self.with(|manager| {
            let keys = manager.block_keys(SeqHandle::from_raw(handle))?;
            let keys = keys.get(first..).unwrap_or_default().to_vec();
            Ok((keys, manager.config().hash_algo.key_width()))
        })?;
        Ok(keys.iter().map(|key| key_bytes(py, key, width)).collect())
    }

    /// Schedules the next `k` tokens of a sequence in the open step.
    #[pyo3(signature = (handle, k, draft_tokens = None))]
    fn append(&self, handle: u64, k: u32, draft_tokens: Option<TokenIds>) -> PyResult<()> {
        let drafts = draft_tokens.map_or_else(Vec::new, |ids| ids.0);
        self.with(|manager| manager.append(SeqHandle::from_raw(handle), k, &drafts))
    }

    /// Schedules running sequences in order of admission: first those that need one token, then prompts, each
    /// at most `chunk` tokens, within `budget`. Stops at the first that cannot grow.
    fn schedule_running(&self, budget: u32, chunk: u32) -> PyResult<RunningOutcome> {
        self.with(|manager| manager.schedule_running(budget, chunk))
            .map(Into::into)
    }

    /// Takes all blocks and the row from a sequence; its tokens stay, to be computed again after another
    /// `admit`. Returns the sequences that were preempted with it, because they had been admitted onto blocks
    /// that it was to fill in the open step.
    fn preempt(&self, handle: u64) -> PyResult<Vec<u64>> {
        self.affected(|manager| manager.preempt(SeqHandle::from_raw(handle)))
    }

    /// Makes these the arrays that `prepare` fills. They stay bound, and no other thread may use them while a
    /// call of this manager runs.
    #[pyo3(signature = (*, token_ids, positions, slot_mapping, block_tables, seq_lens, cu_seqlens_q, logits_indices,
        sample_rows, copies, indptr = None, indices = None, last_page_len = None))]
    #[expect(clippy::too_many_arguments, reason = "one keyword argument per array")]
    fn bind(
        &self,
        token_ids: Bound<'_, PyAny>,
        positions: Bound<'_, PyAny>,
        slot_mapping: Vec<Bound<'_, PyAny>>,
        block_tables: Vec<Bound<'_, PyAny>>,
        seq_lens: Bound<'_, PyAny>,
        cu_seqlens_q: Bound<'_, PyAny>,
        logits_indices: Bound<'_, PyAny>,
        sample_rows: Bound<'_, PyAny>,
        copies: Bound<'_, PyAny>,
        indptr: Option<Bound<'_, PyAny>>,
        indices: Option<Vec<Bound<'_, PyAny>>>,
        last_page_len: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let pages = match (indptr, indices, last_page_len) {
            (None, None, None) => None,
            (Some(indptr), Some(indices), Some(last_page_len)) => Some(Pages {
                indptr,
                indices,
                last_page_len,
            }),
            _ => {
                return Err(invalid_buffer(
                    "indptr, indices and last_page_len belong together: bind all three or none"
                        .into(),
                ));
            }
        };
        let arrays = Arrays {
            token_ids,
            positions,
            slot_mapping,
            block_tables,
            seq_lens,
            cu_seqlens_q,
            logits_indices,
            sample_rows,
            copies,
            pages,
        };
        let bound = BoundBuffers::new(&arrays)?;
        let former = self.enter()?.buffers.replace(bound);
        drop(former);
        Ok(())
    }

    /// Closes the open step and writes it to the bound arrays.
    fn prepare(&self) -> PyResult<StepInfo> {
        let state = &mut *self.enter()?;
        let Some(buffers) = &mut state.buffers else {
            return Err(sequence_state(
                "no arrays are bound: call bind() once before prepare()",
            ));
        };
        let step = buffers.with(|mut arrays| state.manager.prepare(&mut arrays));
        step.map(Into::into).map_err(manager_error)
    }

    /// Takes the result of a prepared step: one token for each entry of `sample_rows`.
    ///
    /// Returns the rows that finished with it; they keep their blocks until they are closed.
    fn commit_step(&self, step: u64, sampled: SampledIds) -> PyResult<Vec<FinishedRow>> {
        let finished =
            self.with(|manager| manager.commit_step(step, &sampled.0).map(<[_]>::to_vec))?;
        Ok(finished.into_iter().map(Into::into).collect())
    }

    /// Takes the result of a sequence's oldest append, for steps that are run without `prepare` and for rows
    /// with drafts. Says why that completes the sequence, if it does.
    fn commit(&self, handle: u64, accepted: AcceptedIds) -> PyResult<Option<&'static str>> {
        let accepted = accepted.as_slice();
        let reason = self.with(|manager| manager.commit(SeqHandle::from_raw(handle), accepted))?;
        Ok(reason.map(reason_name))
    }

    /// Undoes a prepared step that did not run. Returns the sequences that must be computed again.
    fn fail_step(&self, step: u64) -> PyResult<Vec<u64>> {
        self.affected(|manager| manager.fail_step(step))
    }

    /// Opens `n` copies of a sequence that share all its blocks.
    fn fork(&self, handle: u64, n: u32) -> PyResult<Vec<u64>> {
        let forks = self.with(|manager| manager.fork(SeqHandle::from_raw(handle), n))?;
        Ok(forks.into_iter().map(SeqHandle::raw).collect())
    }

    /// Cuts a sequence back to its first `num_tokens` tokens.
    fn truncate(&self, handle: u64, num_tokens: u32) -> PyResult<()> {
        self.with(|manager| manager.truncate(SeqHandle::from_raw(handle), num_tokens))
    }

    /// Ends a sequence in whatever state it is and releases its blocks, tail first. Returns the sequences that
    /// were preempted, as `preempt` does.
    fn close(&self, handle: u64) -> PyResult<Vec<u64>> {
        self.affected(|manager| manager.close(SeqHandle::from_raw(handle)))
    }

    /// Adds a token that was sampled elsewhere, such as a fork's own first token. Says why that completes the
    /// sequence, if it does.
    fn push_token(&self, handle: u64, token: u32) -> PyResult<Option<&'static str>> {
        let reason = self.with(|manager| manager.push_token(SeqHandle::from_raw(handle), token))?;
        Ok(reason.map(reason_name))
    }

    /// Known tokens, generated ones included.
    fn tokens(&self, handle: u64) -> PyResult<Vec<u32>> {
        self.with(|manager| {
            manager
                .tokens(SeqHandle::from_raw(handle))
                .map(<[_]>::to_vec)
        })
    }

    /// How many tokens are known.
    fn num_tokens(&self, handle: u64) -> PyResult<u32> {
        self.with(|manager| manager.num_tokens(SeqHandle::from_raw(handle)))
    }

    /// How many tokens' keys and values are written and committed.
    fn num_computed_tokens(&self, handle: u64) -> PyResult<u32> {
        self.with(|manager| manager.num_computed_tokens(SeqHandle::from_raw(handle)))
    }

    /// How many tokens the first admission found cached.
    fn num_cached_tokens(&self, handle: u64) -> PyResult<u32> {
        self.with(|manager| manager.num_cached_tokens(SeqHandle::from_raw(handle)))
    }

    /// How many tokens were generated.
    fn output_len(&self, handle: u64) -> PyResult<u32> {
        self.with(|manager| manager.output_len(SeqHandle::from_raw(handle)))
    }

    /// The sequence's blocks, in the order of its tokens.
    #[pyo3(signature = (handle, group = 0))]
    fn block_ids(&self, handle: u64, group: usize) -> PyResult<Vec<BlockId>> {
        self.with(|manager| {
            manager
                .block_ids(SeqHandle::from_raw(handle), group)
                .map(<[_]>::to_vec)
        })
    }

    /// The slots of the newest uncommitted append: block · block size + offset.
    #[pyo3(signature = (handle, group = 0))]
    fn slots_of(&self, handle: u64, group: usize) -> PyResult<Vec<i64>> {
        self.with(|manager| {
            manager
                .slots_of(SeqHandle::from_raw(handle), group)
                .map(Iterator::collect)
        })
    }

    /// Block copies of the open step, source and destination: all must run before any of its writes.
    fn copies(&self) -> PyResult<Vec<(BlockId, BlockId)>> {
        Ok(self.enter()?.manager.copies().collect())
    }

    /// The row slot a sequence holds, or `None`.
    fn row(&self, handle: u64) -> PyResult<Option<u32>> {
        self.with(|manager| manager.row(SeqHandle::from_raw(handle)))
    }

    /// `"eos"`, `"stop_token"` or `"length"` once a sequence is complete, else `None`.
    fn finish_reason(&self, handle: u64) -> PyResult<Option<&'static str>> {
        let reason = self.with(|manager| manager.finish_reason(SeqHandle::from_raw(handle)))?;
        Ok(reason.map(reason_name))
    }

    /// Counters by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.enter()?.manager.stats();
        let dict = PyDict::new(py);
        for (name, value) in [
            ("num_open", stats.num_open as u64),
            ("num_running", stats.num_running as u64),
            ("steps_in_flight", stats.steps_in_flight as u64),
            ("announced_blocks", stats.announced_blocks as u64),
            ("deferred_frees", stats.deferred_frees as u64),
            ("prefix_queries", stats.prefix_queries),
            ("prefix_hits", stats.prefix_hits),
            ("min_cacheable_tokens", stats.min_cacheable_tokens.into()),
            ("short_prompts", stats.short_prompts),
            ("short_prefixes", stats.short_prefixes),
            ("preempted_queries", stats.preempted_queries),
            ("preempted_hits", stats.preempted_hits),
            ("lost_hits", stats.lost_hits),
            ("external_tokens", stats.external_tokens),
            ("abandoned_loads", stats.abandoned_loads as u64),
            ("preemptions", stats.preemptions),
            ("block_copies", stats.block_copies),
        ] {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// Raises `InvariantError` if the books of the sequences or of the pool do not balance.
    fn check_invariants(&self) -> PyResult<()> {
        let checked = self.enter()?.manager.check_invariants();
        checked.map_err(invariant_error)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copyable("KVCacheManager"))
    }

    fn __repr__(&self) -> PyResult<String> {
        let state = self.enter()?;
        let manager = &state.manager;
        Ok(format!(
            "KVCacheManager({} open, {} running)",
            manager.num_open(),
            manager.num_running()
        ))
    }
}

fn count_of(name: &str, found: i64) -> PyResult<u32> {
    u32::try_from(found).map_err(|_| {
        request_error(format!(
            "{name} must be from 0 to {}, found {found}",
            u32::MAX
        ))
    })
}

pub fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Eos => "eos",
        FinishReason::StopToken => "stop_token",
        FinishReason::Length => "length",
    }
}
