//! `BlockPool`: the shared pool, from Python.

use std::sync::Arc;

use looseleaf::{
    BlockContent, BlockId, BlockKey, DuplicatePolicy, FreeOrder, KeyWidth, OutOfBlocks, PoolConfig,
    PoolError, Prefix, Published,
};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::block_list::BlockList;
use crate::block_snapshot::BlockSnapshot;
use crate::errors::{invalid_buffer, invalid_config, invariant_error, out_of_blocks, pool_error};
use crate::events::Events;
use crate::keys::{KeysArg, key_bytes, parse_key};
use crate::process::{Home, not_copyable};
use crate::specs::choice;
use crate::tokens::{BlockIds, TokenIds};

/// A fixed set of equal blocks with reference counts and a hashed prefix cache.
#[pyclass(frozen, module = "looseleaf._core")]
pub struct BlockPool {
    inner: Arc<looseleaf::BlockPool>,
    key_width: KeyWidth,
    home: Home,
    events: Option<Events>,
}

#[pymethods]
impl BlockPool {
    #[new]
    #[pyo3(signature = (num_blocks, *, reserve_null_block = true, free_order = "unhashed_first",
        duplicate_policy = "first_wins", key_bits = 256, event_capacity = 0, event_tokens = 0,
        verify_tokens = 0))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of one constructor"
    )]
    fn new(
        num_blocks: u32,
        reserve_null_block: bool,
        free_order: &str,
        duplicate_policy: &str,
        key_bits: u32,
        event_capacity: u32,
        event_tokens: u32,
        verify_tokens: u32,
    ) -> PyResult<Self> {
        let key_width = match key_bits {
            128 => KeyWidth::Bits128,
            256 => KeyWidth::Bits256,
            other => {
                return Err(invalid_config(format!(
                    "key_bits must be 128 or 256, found {other}"
                )));
            }
        };
        let config = PoolConfig {
            reserve_null_block,
            free_order: choice(
                "free_order",
                free_order,
                &[
                    ("unhashed_first", FreeOrder::UnhashedFirst),
                    ("append_all", FreeOrder::AppendAll),
                ],
            )?,
            duplicate_policy: choice(
                "duplicate_policy",
                duplicate_policy,
                &[
                    ("first_wins", DuplicatePolicy::FirstWins),
                    ("keep_all", DuplicatePolicy::KeepAll),
                ],
            )?,
            key_width,
            event_capacity,
            event_tokens,
            verify_tokens,
            ..PoolConfig::new(num_blocks)
        };
        let inner = Arc::new(looseleaf::BlockPool::new(config).map_err(pool_error)?);
        Ok(Self {
            events: Events::new(&inner)?,
            inner,
            key_width,
            home: Home::here(),
        })
    }

    /// Takes `n` blocks, or raises `OutOfBlocksError` and takes none.
    fn allocate(&self, n: usize) -> PyResult<BlockList> {
        let mut ids = self.room_for(n)?;
        self.pool()?.allocate(&mut ids).map_err(out_of_blocks)?;
        Ok(self.list(ids))
    }

    /// Takes `n` blocks, or returns `None` and takes none.
    fn try_allocate(&self, n: usize) -> PyResult<Option<BlockList>> {
        let pool = self.pool()?;
        if n > pool.num_usable() {
            return Ok(None);
        }
        let mut ids = vec![0; n];
        let taken = pool.allocate(&mut ids).is_ok();
        Ok(taken.then(|| self.list(ids)))
    }

    /// Fills a writable int32 buffer with new blocks, or raises `OutOfBlocksError` and takes none. The caller
    /// owes a `release` of each.
    fn allocate_into(&self, py: Python<'_>, row: PyBuffer<i32>) -> PyResult<()> {
        if row.readonly() || !row.is_c_contiguous() {
            return Err(invalid_buffer(
                "the row must be writable and C-contiguous".into(),
            ));
        }
        let mut ids = self.room_for(row.item_count())?;
        self.pool()?.allocate(&mut ids).map_err(out_of_blocks)?;
        let ids: Vec<i32> = ids.into_iter().map(u32::cast_signed).collect();
        row.copy_from_slice(py, &ids)
    }

    /// Gives one reference of each block back, in the order given; blocks that nobody holds any more join
    /// the free queue in that order. Any misuse raises and changes nothing.
    fn release(&self, ids: BlockIds) -> PyResult<()> {
        self.pool()?.release(&ids.unowned()?).map_err(pool_error)
    }

    /// Takes one more reference on each block; all must be held already.
    fn share(&self, ids: BlockIds) -> PyResult<()> {
        let pool = self.pool()?;
        pool.share(&ids.of(pool)?).map_err(pool_error)
    }

    /// Makes a held block findable under `key`, once its keys and values are written.
    ///
    /// Returns `"cached"`, `"duplicate"` (another block already answers to the key; this one stays plain)
    /// or `"full"` (the index has no room; legal for a cache, and counted).
    ///
    /// `parent`, the hash of the block before it, and `token_ids` are for the event that tells of it.
    #[pyo3(signature = (block_id, key, *, parent = None, token_ids = None))]
    fn publish(
        &self,
        block_id: BlockId,
        key: &[u8],
        parent: Option<&[u8]>,
        token_ids: Option<TokenIds>,
    ) -> PyResult<&'static str> {
        if self.inner.config().verify_tokens != 0 {
            return Err(invalid_config(
                "this pool verifies tokens, which takes those of the whole prefix: publish its blocks with \
                 publish_prefix(blocks, keys, start, token_ids=...)"
                    .into(),
            ));
        }
        let parse = |key| parse_key(key, self.key_width);
        let content = BlockContent {
            parent: parent.map(parse).transpose()?,
            tokens: token_ids.as_ref().map_or(&[], |token_ids| &token_ids.0),
            group: 0,
            after: None,
        };
        let published = self
            .pool()?
            .publish_content(block_id, &parse(key)?, &content)
            .map_err(pool_error)?;
        Ok(match published {
            Published::Cached => "cached",
            Published::Duplicate => "duplicate",
            Published::Full => "full",
        })
    }

    /// Makes the blocks of a prefix findable, each under its key, once their keys and values are written.
    ///
    /// `blocks[start:]` are published under `keys[start:]`. Returns how many of them can be found now. Any
    /// misuse raises before something is published.
    #[pyo3(signature = (blocks, keys, start = 0, *, token_ids = None))]
    fn publish_prefix(
        &self,
        blocks: BlockIds,
        keys: KeysArg<'_>,
        start: usize,
        token_ids: Option<TokenIds>,
    ) -> PyResult<usize> {
        let blocks = blocks.of(self.pool()?)?;
        keys.with(self.key_width, |keys| {
            if keys.len() > blocks.len() || start > keys.len() {
                return Err(invalid_config(format!(
                    "publish_prefix takes a block for each key and starts at one of them, found {} blocks, \
                     {} keys, start {start}",
                    blocks.len(),
                    keys.len()
                )));
            }
            let prefix = self.prefix("publish_prefix", keys, token_ids.as_ref())?;
            let published = self
                .pool()?
                .publish_prefix(&blocks[..keys.len()], prefix, start);
            published.map_err(pool_error)
        })?
    }

    /// Forgets a block's hash; its references and its place in the queue stay. False if it had none.
    fn retract(&self, block_id: BlockId) -> PyResult<bool> {
        self.pool()?.retract(block_id).map_err(pool_error)
    }

    /// Takes a reference on each block of the longest cached prefix of `keys`.
    #[pyo3(signature = (keys, *, token_ids = None))]
    fn match_prefix(&self, keys: KeysArg<'_>, token_ids: Option<TokenIds>) -> PyResult<BlockList> {
        let pool = self.pool()?;
        keys.with(self.key_width, |keys| {
            let prefix = self.prefix("match_prefix", keys, token_ids.as_ref())?;
            let mut ids = vec![0; keys.len()];
            let hits = pool.match_prefix(prefix, &mut ids);
            ids.truncate(hits);
            Ok(self.list(ids))
        })?
    }

    /// How many blocks of `keys`' prefix are cached, and how many of them nobody holds. Changes nothing.
    #[pyo3(signature = (keys, *, token_ids = None))]
    fn peek_prefix(
        &self,
        keys: KeysArg<'_>,
        token_ids: Option<TokenIds>,
    ) -> PyResult<(usize, usize)> {
        let pool = self.pool()?;
        keys.with(self.key_width, |keys| {
            let prefix = self.prefix("peek_prefix", keys, token_ids.as_ref())?;
            let found = pool.peek_prefix(prefix);
            Ok((found.hits, found.free_hits))
        })?
    }

    /// Takes the cached prefix of `keys` and `n` new blocks, or raises `OutOfBlocksError` and takes nothing.
    ///
    /// Returns the blocks, cached ones first, and how many are cached.
    #[pyo3(signature = (keys, n, *, token_ids = None))]
    fn admit(
        &self,
        keys: KeysArg<'_>,
        n: usize,
        token_ids: Option<TokenIds>,
    ) -> PyResult<(BlockList, usize)> {
        let mut new = self.room_for(n)?;
        keys.with(self.key_width, |keys| {
            let prefix = self.prefix("admit", keys, token_ids.as_ref())?;
            let mut ids = vec![0; keys.len()];
            let hits = self
                .pool()?
                .admit(prefix, &mut ids, &mut new)
                .map_err(out_of_blocks)?;
            ids.truncate(hits);
            ids.extend(new);
            Ok((self.list(ids), hits))
        })?
    }

    /// Takes `num_blocks` blocks: the cached prefix of `keys`, and new ones for the rest; or raises
    /// `OutOfBlocksError` and takes nothing. Returns them in order and how many are cached.
    #[pyo3(signature = (keys, num_blocks, *, token_ids = None))]
    fn admit_table(
        &self,
        keys: KeysArg<'_>,
        num_blocks: usize,
        token_ids: Option<TokenIds>,
    ) -> PyResult<(BlockList, usize)> {
        let mut ids = self.room_for(num_blocks)?;
        keys.with(self.key_width, |keys| {
            let prefix = self.prefix("admit_table", keys, token_ids.as_ref())?;
            let hits = self
                .pool()?
                .admit_table(prefix, &mut ids)
                .map_err(out_of_blocks)?;
            Ok((self.list(ids), hits))
        })?
    }

    /// How many references a block has.
    fn ref_cnt(&self, block_id: BlockId) -> PyResult<u32> {
        self.check_id(block_id)?;
        Ok(self.pool()?.ref_cnt(block_id))
    }

    /// Whether the block has one holder and no hash, so that its holder may write to it.
    fn is_writable(&self, block_id: BlockId) -> PyResult<bool> {
        self.check_id(block_id)?;
        Ok(self.pool()?.is_writable(block_id))
    }

    /// The hash under which a block can be found, or `None`.
    fn key_of<'py>(
        &self,
        py: Python<'py>,
        block_id: BlockId,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.check_id(block_id)?;
        Ok(self
            .pool()?
            .key_of(block_id)
            .map(|key| key_bytes(py, &key, self.key_width)))
    }

    /// Blocks in the pool, the null block included.
    #[getter]
    fn num_blocks(&self) -> usize {
        self.inner.num_blocks()
    }

    /// Blocks that can be handed out: all but the null block.
    #[getter]
    fn num_usable(&self) -> usize {
        self.inner.num_usable()
    }

    /// Blocks that an allocation could take now, cached ones included.
    #[getter]
    fn num_free(&self) -> PyResult<usize> {
        Ok(self.pool()?.num_free())
    }

    /// Every block's references and use at this moment. Stops nobody: each block's entry is right by itself.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<BlockSnapshot> {
        let pool = self.pool()?;
        let views = py.detach(|| {
            let mut views = Vec::with_capacity(pool.num_blocks());
            pool.snapshot(&mut views);
            views
        });
        BlockSnapshot::new(py, &views)
    }

    /// The free queue, front to back; exact while no other thread uses the pool.
    fn free_order(&self) -> PyResult<Vec<BlockId>> {
        Ok(self.pool()?.free_order())
    }

    /// Counters and gauges by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.pool()?.stats();
        let dict = PyDict::new(py);
        for (name, value) in [
            ("total", stats.total as u64),
            ("usable", stats.usable as u64),
            ("free", stats.free as u64),
            ("cached_free", stats.cached_free as u64),
            ("in_use", stats.in_use as u64),
            ("hashed", stats.hashed as u64),
            ("published", stats.published),
            ("duplicates", stats.duplicates),
            ("collisions", stats.collisions),
            ("orphans", stats.orphans),
            ("evictions", stats.evictions),
            ("retractions", stats.retractions),
            ("spills", stats.spills),
            ("spilled_hashes", stats.spilled_hashes),
            ("table_overflows", stats.table_overflows),
            ("moves", stats.moves),
            ("role_swaps", stats.role_swaps),
            ("lost_events", stats.lost_events),
        ] {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// Forgets every hash. Raises `BlocksInUseError` while blocks are held.
    fn reset_prefix_cache(&self) -> PyResult<()> {
        self.pool()?.reset_prefix_cache().map_err(pool_error)
    }

    /// What has changed in the set of cached hashes since the last call: `BlockStored`,
    /// `BlockRemoved` and `AllBlocksCleared`. Raises `ConcurrentUseError` if another thread is in this call.
    fn drain_events(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        self.home.check("BlockPool")?;
        let events = self.events.as_ref();
        events
            .ok_or_else(|| pool_error(PoolError::NoEvents))?
            .drain(py)
    }

    /// Raises `InvariantError` if a conservation law is broken; call it while no other thread uses the pool.
    fn check_invariants(&self) -> PyResult<()> {
        self.pool()?.check_invariants().map_err(invariant_error)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_copyable("BlockPool"))
    }

    fn __repr__(&self) -> String {
        format!(
            "BlockPool(num_blocks={}, num_free={})",
            self.inner.num_blocks(),
            self.inner.num_free()
        )
    }
}

impl BlockPool {
    /// The pool, in the process it was made in.
    pub fn pool(&self) -> PyResult<&Arc<looseleaf::BlockPool>> {
        self.home.check("BlockPool")?;
        Ok(&self.inner)
    }

    /// Ids to fill, refusing first what the pool could never hold: `n` comes from the caller.
    fn room_for(&self, n: usize) -> PyResult<Vec<BlockId>> {
        if n <= self.inner.num_usable() {
            return Ok(vec![0; n]);
        }
        let stats = self.inner.stats();
        Err(out_of_blocks(OutOfBlocks {
            asked: n,
            free: stats.free,
            cached: stats.cached_free,
            pinned: stats.in_use,
            total: stats.total,
        }))
    }

    /// The keys with the tokens that they are of, which a pool that verifies tokens must have.
    fn prefix<'a>(
        &self,
        call: &str,
        keys: &'a [BlockKey],
        token_ids: Option<&'a TokenIds>,
    ) -> PyResult<Prefix<'a>> {
        let block_size = self.inner.config().verify_tokens as usize;
        let tokens = token_ids.map_or(&[][..], |token_ids| &token_ids.0);
        let needed = keys.len() * block_size;
        if tokens.len() < needed {
            return Err(invalid_config(format!(
                "this pool verifies tokens: {call} takes token_ids, the tokens of the blocks of all keys, \
                 {block_size} for each; needed are {needed}, found {}",
                tokens.len()
            )));
        }
        Ok(Prefix {
            keys,
            tokens,
            group: 0,
        })
    }

    fn check_id(&self, id: BlockId) -> PyResult<()> {
        let total = self.inner.num_blocks();
        if (id as usize) < total {
            Ok(())
        } else {
            Err(pool_error(PoolError::UnknownBlock { id, total }))
        }
    }

    fn list(&self, ids: Vec<BlockId>) -> BlockList {
        BlockList::new(self.inner.clone(), ids)
    }
}
