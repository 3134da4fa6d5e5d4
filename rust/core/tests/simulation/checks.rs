//! What must hold between the operations of an engine.

use looseleaf::BlockId;

use super::{Coverage, Engine};

impl Engine {
    /// Everything that must hold between operations.
    pub fn check(&mut self) {
        self.manager
            .check_invariants()
            .expect("the manager's invariants hold");
        let pool = self.manager.pool();
        pool.check_invariants().expect("the pool's invariants hold");
        let references = self.manager.references();
        for block in 0..pool.num_blocks() as BlockId {
            let held = references.get(&block).copied().unwrap_or(0);
            assert_eq!(pool.ref_cnt(block), held, "references of block {block}");
        }
        assert_eq!(pool.num_free() + references.len(), pool.num_usable());
        for launch in self.launches.iter().filter(|launch| !launch.unprepared) {
            for block in launch.blocks() {
                assert_ne!(
                    pool.ref_cnt(block),
                    0,
                    "block {block} of step {}",
                    launch.step
                );
            }
        }
        self.check_loads();
        let stats = self.manager.stats();
        self.coverage.deferred_frees += stats.deferred_frees as u64;
        for handle in self.open_handles() {
            let mirror = &self.mirrors[&handle];
            assert_eq!(self.manager.tokens(handle).unwrap(), mirror.tokens);
            assert_eq!(self.manager.finish_reason(handle), Ok(mirror.finished));
        }
        let promised = stats.announced_blocks != 0 || self.manager.copies().len() != 0;
        if self.launches.is_empty() && !promised {
            self.check_contents();
        }
    }

    /// While nothing is in flight or promised, every sequence has what it counts as computed.
    fn check_contents(&mut self) {
        self.coverage.idle_checks += 1;
        for handle in self.open_handles() {
            let computed = self.manager.num_computed_tokens(handle).unwrap() as usize;
            let cells = self.mirrors[&handle].cells(computed);
            for group in 0..self.setup.groups {
                let table = self.blocks(handle, group);
                let memory = self.memory.lock().expect("nobody panicked");
                memory.assert_holds(group, table, &cells, &format!("{handle:?}"));
            }
        }
    }

    /// What happened, with what the manager and the pool counted.
    pub fn total_coverage(&self) -> Coverage {
        let (manager, pool) = (self.manager.stats(), self.manager.pool().stats());
        Coverage {
            preempted_hits: manager.preempted_hits,
            copies: manager.block_copies,
            duplicates: pool.duplicates,
            evictions: pool.evictions,
            collisions: pool.collisions,
            orphans: pool.orphans,
            ..self.coverage
        }
    }
}
