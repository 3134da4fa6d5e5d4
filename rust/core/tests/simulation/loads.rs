//! Admissions whose tokens come partly from outside, at a time of the test's choosing.

use looseleaf::{BlockId, ManagerError, SeqHandle};

use super::{Cell, Engine};

/// Something outside that fills blocks. It knows only what it was told when it began.
#[derive(Debug)]
pub struct PendingLoad {
    pub handle: SeqHandle,
    /// Position of the first token that it writes.
    first: usize,
    /// What the sequence's slots should hold, up to the last token that it writes.
    cells: Vec<Cell>,
    /// By group, the blocks of these.
    tables: Vec<Vec<BlockId>>,
}

impl Engine {
    /// Admits with up to `external` tokens from outside, at least one if there is room for it.
    pub fn admit_loading(&mut self, handle: SeqHandle, external: u32) -> Result<(), ManagerError> {
        let promised = self.manager.match_prefix(handle)?;
        let cached = promised.num_cached_tokens;
        let external = external.min(self.manager.num_tokens(handle)? - 1 - cached);
        if external == 0 {
            return self.admit(handle).map(drop);
        }
        let free = self.manager.pool().num_free();
        let ready = self.manager.admit(handle, external)?;
        assert_eq!(ready, cached + external);
        assert_eq!(self.manager.num_computed_tokens(handle), Ok(cached));
        let taken = (promised.free_hit_blocks + promised.new_blocks) as usize;
        assert_eq!(free - self.manager.pool().num_free(), taken);
        let table = |group| self.blocks(handle, group).to_vec();
        let load = PendingLoad {
            handle,
            first: cached as usize,
            cells: self.mirrors[&handle].cells(ready as usize),
            tables: (0..self.setup.groups).map(table).collect(),
        };
        self.loads.push(load);
        Ok(())
    }

    /// Writes what the load was to bring, but for the last `missing` tokens, and ends it.
    pub fn finish_load(&mut self, which: usize, missing: usize) -> Result<(), ManagerError> {
        let load = self.loads.remove(which);
        let end = load.cells.len();
        let right = end.saturating_sub(missing).max(load.first);
        let mut memory = self.memory.lock().expect("nobody panicked");
        for (group, table) in load.tables.iter().enumerate() {
            for position in load.first..end {
                let cell = load.cells[position];
                let slot = memory.slot(table, position);
                memory.write(group, slot, (position < right).then_some(cell));
            }
        }
        drop(memory);
        let abandoned = self.manager.stats().abandoned_loads;
        let tokens = (right - load.first) as u32;
        let still_there = self.manager.finish_load(load.handle, tokens)?;
        let left = abandoned - self.manager.stats().abandoned_loads;
        assert_eq!(left, usize::from(!still_there));
        self.coverage.loads += u64::from(still_there);
        self.coverage.abandoned_loads += u64::from(!still_there);
        self.coverage.short_loads += u64::from(right < end);
        if still_there {
            let computed = self.manager.num_computed_tokens(load.handle);
            assert_eq!(computed, Ok(right as u32));
        }
        Ok(())
    }

    /// Blocks that something outside may write to have one holder, and nobody finds them.
    pub(super) fn check_loads(&self) {
        let pool = self.manager.pool();
        let size = self.setup.block_size as usize;
        for load in &self.loads {
            assert!(self.manager.is_loading(load.handle));
            for table in &load.tables {
                for &block in &table[load.first / size..load.cells.len().div_ceil(size)] {
                    assert_eq!(pool.ref_cnt(block), 1, "block {block}");
                    assert_eq!(pool.key_of(block), None, "block {block}");
                }
            }
        }
        let abandoned = self.manager.stats().abandoned_loads;
        assert!(abandoned <= self.loads.len());
    }
}
