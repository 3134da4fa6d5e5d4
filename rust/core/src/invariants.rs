//! The conservation laws, as a function.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;

use crate::block_state::BlockState;
use crate::sync::Ordering;
use crate::{BlockId, BlockPool};

/// One broken invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Number of the invariant on the [design page](crate::design).
    pub invariant: u8,
    /// What was found, with numbers.
    pub found: String,
}

/// Everything that [`BlockPool::check_invariants`] found wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvariantError {
    /// The violations, in the order of the checks.
    pub violations: Vec<Violation>,
}

impl fmt::Display for InvariantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, violation) in self.violations.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(
                f,
                "{separator}INV-{}: {}",
                violation.invariant, violation.found
            )?;
        }
        Ok(())
    }
}

impl Error for InvariantError {}

/// Where the free structures and the index mention a block.
#[derive(Clone, Copy, Default)]
struct Mentions {
    on_stack: u32,
    live_tickets: u32,
    index_entries: u32,
}

impl BlockPool {
    /// Checks everything that must hold while no other thread uses the pool, and lists what does
    /// not. Calls in progress on other threads show up as violations that are none.
    ///
    /// # Errors
    /// [`InvariantError`] with one entry per violation.
    pub fn check_invariants(&self) -> Result<(), InvariantError> {
        let mut report = Report::default();
        let mentions = self.mentions(&mut report);
        self.check_counts(&mut report);
        for (id, mentions) in (0..).zip(&mentions) {
            let state = self.state(id).load(Ordering::Acquire);
            self.check_block(id, state, *mentions, &mut report);
        }
        self.check_names(&mut report);
        if report.0.is_empty() {
            Ok(())
        } else {
            Err(InvariantError {
                violations: report.0,
            })
        }
    }

    fn mentions(&self, report: &mut Report) -> Vec<Mentions> {
        let mut mentions = vec![Mentions::default(); self.num_blocks()];
        for id in self.stack.top_down().take(self.num_blocks() + 1) {
            mentions[id as usize].on_stack += 1;
        }
        for (name, ring) in ["spare", "old", "young"]
            .iter()
            .zip(self.queue.front_to_back())
        {
            for (place, entry) in ring.entries().enumerate() {
                match entry {
                    Some(ticket) => {
                        let state = self.state(ticket.id()).load(Ordering::Acquire);
                        mentions[ticket.id() as usize].live_tickets +=
                            u32::from(ticket.is_live(state));
                    }
                    None => report.add(11, format!("{name} ring: place {place} was never written")),
                }
            }
            let (length, capacity) = (ring.len(), ring.capacity());
            if length > capacity {
                report.add(
                    12,
                    format!("{name} ring: {length} entries in {capacity} slots"),
                );
            }
        }
        for id in self.index.entered() {
            mentions[id as usize].index_entries += 1;
        }
        mentions
    }

    /// INV-2, over the whole pool.
    fn check_counts(&self, report: &mut Report) {
        let states = || {
            self.states
                .iter()
                .map(|state| state.load(Ordering::Acquire))
        };
        let count = |wanted: fn(BlockState) -> bool| states().filter(|s| wanted(*s)).count();
        let held = count(|state| !state.is_free());
        let cached = count(|state| state.is_free() && state.is_hashed());
        let hashed = count(BlockState::is_hashed);
        let stats = self.stats();
        if held + stats.free != stats.usable {
            let (free, usable) = (stats.free, stats.usable);
            report.add(
                2,
                format!("{held} blocks held and {free} free of {usable} usable"),
            );
        }
        if cached != stats.cached_free {
            let counted = stats.cached_free;
            report.add(
                2,
                format!("{cached} free blocks are cached, {counted} are counted"),
            );
        }
        if hashed != stats.hashed {
            report.add(
                2,
                format!("{hashed} blocks are hashed, {} are counted", stats.hashed),
            );
        }
    }

    /// INV-5: blocks that end one prefix hold the same.
    fn check_names(&self, report: &mut Report) {
        let Some(contents) = &self.contents else {
            return;
        };
        let mut named = HashMap::new();
        for id in 0..self.config.num_blocks {
            let Some(key) = self.key_of(id) else { continue };
            let (tokens, name) = contents.read(id);
            let first = named.entry(name).or_insert((id, key, tokens.clone()));
            if (first.1, &first.2) != (key, &tokens) {
                let found = format!("blocks {} and {id} differ and are both {name:?}", first.0);
                report.add(5, found);
            }
        }
    }

    fn check_block(&self, id: BlockId, state: BlockState, seen: Mentions, report: &mut Report) {
        let Mentions {
            on_stack,
            live_tickets,
            index_entries,
        } = seen;
        if id < self.config.first_usable() {
            if state != BlockState::INITIAL || on_stack + live_tickets + index_entries != 0 {
                report.add(1, format!("the null block is in use: {state:?}"));
            }
            return;
        }
        if !state.is_free() && on_stack + live_tickets != 0 {
            report.add(1, format!("block {id} is held and queued: {state:?}"));
        }
        if !state.is_free() && state.in_ring() {
            report.add(
                3,
                format!("block {id} is held and marked as queued: {state:?}"),
            );
        }
        if state.is_free() && (on_stack != 0) == (live_tickets != 0) {
            report.add(
                2,
                format!("block {id} is free, {on_stack} times on the stack, {live_tickets} queued"),
            );
        }
        if on_stack > 1 || on_stack == 1 && (state.in_ring() || !state.is_plain()) {
            report.add(
                3,
                format!("block {id} is {on_stack} times on the stack: {state:?}"),
            );
        }
        if state.is_publishing() {
            report.add(9, format!("block {id} is half published"));
        }
        if index_entries != u32::from(state.is_hashed()) {
            report.add(
                5,
                format!("block {id} has {index_entries} index entries: {state:?}"),
            );
        }
        if let Some(key) = self.key_of(id) {
            let home = self.index.home(&key);
            let found = self
                .index
                .find(home, |candidate| (candidate == id).then_some(()));
            if found.is_none() {
                report.add(5, format!("block {id} is not found by its key"));
            }
        }
    }
}

#[derive(Default)]
struct Report(Vec<Violation>);

impl Report {
    fn add(&mut self, invariant: u8, found: String) {
        self.0.push(Violation { invariant, found });
    }
}
