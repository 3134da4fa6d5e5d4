//! The pool as a list: obviously correct, and slow.

use looseleaf::{
    BlockId, BlockKey, DuplicatePolicy, FreeOrder, OutOfBlocks, PoolConfig, PoolError, PrefixPeek,
    Published,
};

#[derive(Clone, Debug)]
struct Block {
    refs: u32,
    key: Option<BlockKey>,
    /// When the key was published; hits return the oldest copy.
    published_at: u64,
}

#[derive(Clone, Debug)]
pub struct ListPool {
    pub config: PoolConfig,
    /// Free blocks, the next one to be allocated first.
    pub queue: Vec<BlockId>,
    blocks: Vec<Block>,
    clock: u64,
    pub evictions: u64,
}

impl ListPool {
    pub fn new(config: PoolConfig) -> Self {
        let first = u32::from(config.reserve_null_block);
        let block = Block {
            refs: 0,
            key: None,
            published_at: 0,
        };
        Self {
            config,
            queue: (first..config.num_blocks).collect(),
            blocks: vec![block; config.num_blocks as usize],
            clock: 0,
            evictions: 0,
        }
    }

    pub fn ref_cnt(&self, id: BlockId) -> u32 {
        self.blocks[id as usize].refs
    }

    pub fn key_of(&self, id: BlockId) -> Option<BlockKey> {
        self.blocks[id as usize].key
    }

    pub fn num_cached_free(&self) -> usize {
        self.queue
            .iter()
            .filter(|id| self.key_of(**id).is_some())
            .count()
    }

    pub fn num_hashed(&self) -> usize {
        self.blocks
            .iter()
            .filter(|block| block.key.is_some())
            .count()
    }

    pub fn allocate(&mut self, count: usize) -> Result<Vec<BlockId>, OutOfBlocks> {
        self.check_room(count)?;
        let taken: Vec<_> = self.queue.drain(..count).collect();
        for id in &taken {
            let block = &mut self.blocks[*id as usize];
            self.evictions += u64::from(block.key.take().is_some());
            block.refs = 1;
        }
        Ok(taken)
    }

    pub fn release(&mut self, ids: &[BlockId]) -> Result<(), PoolError> {
        self.check_held(ids, |id| PoolError::DoubleRelease { id })?;
        let (mut front, mut back) = (vec![], vec![]);
        for id in ids {
            let block = &mut self.blocks[*id as usize];
            block.refs -= 1;
            if block.refs == 0 {
                let to_front =
                    self.config.free_order == FreeOrder::UnhashedFirst && block.key.is_none();
                if to_front {
                    front.push(*id)
                } else {
                    back.push(*id)
                }
            }
        }
        front.append(&mut self.queue);
        front.append(&mut back);
        self.queue = front;
        Ok(())
    }

    pub fn share(&mut self, ids: &[BlockId]) -> Result<(), PoolError> {
        self.check_held(ids, |id| PoolError::FreeBlock { id })?;
        ids.iter()
            .for_each(|id| self.blocks[*id as usize].refs += 1);
        Ok(())
    }

    pub fn publish(&mut self, id: BlockId, key: BlockKey) -> Result<Published, PoolError> {
        self.check_held(&[id], |id| PoolError::FreeBlock { id })?;
        if self.key_of(id).is_some() {
            return Err(PoolError::AlreadyPublished { id });
        }
        let first_wins = self.config.duplicate_policy == DuplicatePolicy::FirstWins;
        if first_wins && self.find(&key).is_some() {
            return Ok(Published::Duplicate);
        }
        self.clock += 1;
        let block = &mut self.blocks[id as usize];
        block.key = Some(key);
        block.published_at = self.clock;
        Ok(Published::Cached)
    }

    pub fn retract(&mut self, id: BlockId) -> Result<bool, PoolError> {
        self.check_id(id)?;
        Ok(self.blocks[id as usize].key.take().is_some())
    }

    pub fn peek_prefix(&self, keys: &[BlockKey]) -> PrefixPeek {
        let hits: Vec<_> = keys.iter().map_while(|key| self.find(key)).collect();
        let free_hits = hits.iter().filter(|id| self.ref_cnt(**id) == 0).count();
        PrefixPeek {
            hits: hits.len(),
            free_hits,
        }
    }

    pub fn match_prefix(&mut self, keys: &[BlockKey]) -> Vec<BlockId> {
        let hits: Vec<_> = keys.iter().map_while(|key| self.find(key)).collect();
        for id in &hits {
            self.queue.retain(|queued| queued != id);
            self.blocks[*id as usize].refs += 1;
        }
        hits
    }

    pub fn admit(
        &mut self,
        keys: &[BlockKey],
        new: usize,
    ) -> Result<(Vec<BlockId>, Vec<BlockId>), OutOfBlocks> {
        self.check_room(self.peek_prefix(keys).free_hits + new)?;
        let hits = self.match_prefix(keys);
        Ok((hits, self.allocate(new)?))
    }

    pub fn reset_prefix_cache(&mut self) -> Result<(), PoolError> {
        match self.num_held() {
            0 => {
                self.blocks.iter_mut().for_each(|block| block.key = None);
                Ok(())
            }
            blocks => Err(PoolError::InUse { blocks }),
        }
    }

    fn find(&self, key: &BlockKey) -> Option<BlockId> {
        let holders = self
            .blocks
            .iter()
            .zip(0..)
            .filter(|(block, _)| block.key == Some(*key));
        holders
            .min_by_key(|(block, _)| block.published_at)
            .map(|(_, id)| id)
    }

    fn num_held(&self) -> usize {
        self.blocks.iter().filter(|block| block.refs != 0).count()
    }

    fn check_room(&self, asked: usize) -> Result<(), OutOfBlocks> {
        if asked <= self.queue.len() {
            return Ok(());
        }
        Err(OutOfBlocks {
            asked,
            free: self.queue.len(),
            cached: self.num_cached_free(),
            pinned: self.num_held(),
            total: self.blocks.len(),
        })
    }

    fn check_id(&self, id: BlockId) -> Result<(), PoolError> {
        if id as usize >= self.blocks.len() {
            Err(PoolError::UnknownBlock {
                id,
                total: self.blocks.len(),
            })
        } else if id == 0 && self.config.reserve_null_block {
            Err(PoolError::NullBlock)
        } else {
            Ok(())
        }
    }

    fn check_held(
        &self,
        ids: &[BlockId],
        if_free: impl Fn(BlockId) -> PoolError,
    ) -> Result<(), PoolError> {
        for id in ids {
            self.check_id(*id)?;
            if self.ref_cnt(*id) == 0 {
                return Err(if_free(*id));
            }
        }
        match (0..ids.len()).find(|i| ids[i + 1..].contains(&ids[*i])) {
            Some(i) => Err(PoolError::DuplicateId { id: ids[i] }),
            None => Ok(()),
        }
    }
}
