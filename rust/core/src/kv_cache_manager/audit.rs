//! Counts, and what must hold between calls.

use std::collections::BTreeMap;

use super::KVCacheManager;
use crate::BlockId;
use crate::invariants::{InvariantError, Violation};
use crate::sequence::{SeqHandle, Sequence};
use crate::step::{RowState, Step};

/// What a [`KVCacheManager`] has and did. Look-ups count once per admission, in tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ManagerStats {
    /// Open sequences.
    pub num_open: usize,
    /// Sequences that hold a row.
    pub num_running: usize,
    /// Steps prepared and not yet committed.
    pub steps_in_flight: usize,
    /// Blocks announced and not yet filled.
    pub announced_blocks: usize,
    /// References that wait for a step in flight to be given back.
    pub deferred_frees: usize,
    /// Tokens of the sequences admitted for the first time.
    pub prefix_queries: u64,
    /// Of those, tokens found in cached blocks.
    pub prefix_hits: u64,
    /// The shortest prompt that can hit: a whole block, and a token to compute.
    pub min_cacheable_tokens: u32,
    /// Prompts opened that were shorter than that.
    pub short_prompts: u64,
    /// First admissions without a hit whose prompt began like a recent one, but for less than a
    /// block.
    pub short_prefixes: u64,
    /// Tokens of the sequences admitted again after a preemption.
    pub preempted_queries: u64,
    /// Of those, tokens found in cached blocks.
    pub preempted_hits: u64,
    /// Admissions that looked again because another user of the pool evicted a block they had found.
    pub lost_hits: u64,
    /// Tokens that came from outside instead of being computed. They are no hits.
    pub external_tokens: u64,
    /// Sequences that left while their blocks were being filled, which are held until that ends.
    pub abandoned_loads: usize,
    /// Preemptions so far, those that came with another one included.
    pub preemptions: u64,
    /// Blocks copied because others shared them.
    pub block_copies: u64,
}

impl ManagerStats {
    pub(super) fn count_lookup(&mut self, sequence: &Sequence, hit_tokens: u32) {
        let (queries, hits) = if sequence.preemptions == 0 {
            (&mut self.prefix_queries, &mut self.prefix_hits)
        } else {
            (&mut self.preempted_queries, &mut self.preempted_hits)
        };
        *queries += u64::from(sequence.len());
        *hits += u64::from(hit_tokens);
    }
}

#[derive(Default)]
struct Report(Vec<Violation>);

impl Report {
    fn add(&mut self, invariant: u8, found: String) {
        self.0.push(Violation { invariant, found });
    }
}

impl KVCacheManager {
    /// Counts of what the manager has and did.
    pub fn stats(&self) -> ManagerStats {
        ManagerStats {
            num_open: self.sequences.len(),
            num_running: self.rows.num_taken(),
            steps_in_flight: self.steps.in_flight().len(),
            announced_blocks: self.announced.len(),
            deferred_frees: self.steps.all().map(|step| step.frees.ids().len()).sum(),
            abandoned_loads: self.abandoned_loads.len(),
            min_cacheable_tokens: self.block_size + 1,
            ..self.stats
        }
    }

    /// How many references of the pool's count of each block are this manager's: one per table
    /// entry, one per deferred free and one per block of an abandoned load.
    pub fn references(&self) -> BTreeMap<BlockId, u32> {
        let tables = self.sequences.iter().flat_map(|(_, sequence)| {
            (0..sequence.table.num_groups()).flat_map(|group| sequence.table.ids(group))
        });
        let deferred = self.steps.all().flat_map(|step| step.frees.ids());
        let mut references = BTreeMap::new();
        let abandoned = self.abandoned_loads.values().flatten();
        for &block in tables.chain(deferred).chain(abandoned) {
            *references.entry(block).or_default() += 1;
        }
        references
    }

    /// Checks what must hold between calls, beside the invariants of the pool:
    ///
    /// - INV-21: a sequence has a row if and only if it is among the running ones, and no two have
    ///   the same.
    /// - INV-22: computed ≤ scheduled ≤ tokens, pending ones and drafts included; a sequence
    ///   without a row has no blocks, one with a row has blocks for everything scheduled, and the
    ///   tables of its groups are equally long.
    /// - INV-23: the pool counts at least the references of [`references`](Self::references).
    /// - INV-24: an announced block is held and has no hash yet, its step is uncommitted.
    /// - INV-25: the blocks that a step copies from are held, and no block is both read and
    ///   written by its copies, or written twice.
    /// - INV-26: a live row of a step is that of an admitted sequence, and the rows of a sequence
    ///   in successive steps join.
    /// - INV-27: where tokens are verified, each settled block has its prefix named.
    /// - INV-28: blocks that are being filled from outside have no hash and are in no step.
    ///
    /// # Errors
    /// [`InvariantError`] with one entry per violation.
    pub fn check_invariants(&self) -> Result<(), InvariantError> {
        let mut report = Report::default();
        self.check_rows(&mut report);
        for (handle, sequence) in self.sequences.iter() {
            self.check_sequence(handle, sequence, &mut report);
        }
        for (block, held) in self.references() {
            let counted = self.pool.ref_cnt(block);
            if counted < held {
                report.add(
                    23,
                    format!("block {block}: {held} references, {counted} counted"),
                );
            }
        }
        for step in self.steps.all() {
            self.check_announcements(step, &mut report);
            self.check_copies(step, &mut report);
            self.check_live_rows(step, &mut report);
        }
        for &block in self.abandoned_loads.values().flatten() {
            if self.pool.key_of(block).is_some() {
                report.add(28, format!("block {block} of an abandoned load is hashed"));
            }
        }
        if report.0.is_empty() {
            return Ok(());
        }
        Err(InvariantError {
            violations: report.0,
        })
    }

    fn check_rows(&self, report: &mut Report) {
        for &handle in &self.running {
            let slot = self
                .sequences
                .get(handle)
                .ok()
                .and_then(|sequence| sequence.row);
            if slot.and_then(|slot| self.rows.owner(slot)) != Some(handle) {
                report.add(
                    21,
                    format!("{handle:?} is running and does not own row {slot:?}"),
                );
            }
        }
        let with_row = self
            .sequences
            .iter()
            .filter(|(_, sequence)| sequence.row.is_some())
            .count();
        let (running, taken) = (self.running.len(), self.rows.num_taken());
        if with_row != running || taken != running {
            report.add(
                21,
                format!("{running} running, {with_row} with a row, {taken} rows taken"),
            );
        }
    }

    fn check_sequence(&self, handle: SeqHandle, sequence: &Sequence, report: &mut Report) {
        let table = &sequence.table;
        let lens = (0..table.num_groups()).map(|group| table.ids(group).len());
        if lens.clone().any(|len| len != table.len()) {
            report.add(
                22,
                format!(
                    "{handle:?} has tables of {:?} blocks",
                    lens.collect::<Vec<_>>()
                ),
            );
        }
        let (computed, scheduled) = (sequence.computed, sequence.scheduled);
        let covered = table.len() as u64 * u64::from(self.block_size);
        let known = scheduled <= sequence.expected_len() || sequence.uncertain;
        let settled = sequence.settled * self.block_size <= computed;
        if computed > scheduled || u64::from(scheduled) > covered || !known || !settled {
            let (tokens, pending, blocks) = (sequence.len(), sequence.pending, sequence.settled);
            report.add(
                22,
                format!(
                    "{handle:?}: {computed} computed and {scheduled} scheduled of {tokens} tokens \
                     and {pending} pending, blocks for {covered} tokens, {blocks} blocks settled"
                ),
            );
        }
        if sequence.row.is_none() && (table.len() != 0 || scheduled != 0) {
            report.add(
                22,
                format!("{handle:?} has no row and {} blocks", table.len()),
            );
        }
        let named = sequence.settled as usize * table.num_groups();
        if self.verifies() && sequence.names.len() < named {
            let names = sequence.names.len();
            report.add(27, format!("{handle:?}: {named} settled, {names} named"));
        }
        self.check_joined(handle, sequence, report);
        self.check_loading(handle, sequence, report);
    }

    /// INV-28.
    fn check_loading(&self, handle: SeqHandle, sequence: &Sequence, report: &mut Report) {
        let Some(load) = sequence.loading else { return };
        let end = (sequence.computed + load.tokens).div_ceil(self.block_size) as usize;
        let ids = (0..sequence.table.num_groups()).flat_map(|group| {
            let ids = sequence.table.ids(group);
            &ids[(sequence.settled as usize).min(end)..end.min(ids.len())]
        });
        let hashed = ids.filter(|&&block| self.pool.key_of(block).is_some());
        let (hashed, scheduled) = (hashed.count(), sequence.scheduled != sequence.computed);
        if hashed != 0 || scheduled || sequence.row.is_none() || end > sequence.table.len() {
            report.add(
                28,
                format!(
                    "{handle:?} loads {load:?}: {hashed} blocks hashed, scheduled: {scheduled}"
                ),
            );
        }
    }

    /// INV-26, from the sequence's side.
    fn check_joined(&self, handle: SeqHandle, sequence: &Sequence, report: &mut Report) {
        let Some(slot) = sequence.row else { return };
        let rows = self
            .steps
            .all()
            .filter_map(|step| step.row_of(slot, handle));
        let mut end = sequence.computed;
        for row in rows.filter(|row| row.state == RowState::Live) {
            if row.start != end {
                report.add(
                    26,
                    format!("{handle:?} continues at {}, not {end}", row.start),
                );
            }
            end = row.start + row.len;
        }
        if end != sequence.scheduled {
            report.add(
                26,
                format!(
                    "{handle:?} is scheduled to {end}, not {}",
                    sequence.scheduled
                ),
            );
        }
    }

    fn check_announcements(&self, step: &Step, report: &mut Report) {
        for announcement in &step.announcements {
            let block = announcement.block;
            let announced = self.announced.get(&announcement.key);
            let listed =
                announced.is_some_and(|found| found.block == block && found.step == step.id);
            if !listed || self.pool.ref_cnt(block) == 0 || self.pool.key_of(block).is_some() {
                report.add(
                    24,
                    format!("block {block} of step {} is not as announced", step.id),
                );
            }
        }
        let listed: usize = self.steps.all().map(|step| step.announcements.len()).sum();
        if listed != self.announced.len() {
            report.add(
                24,
                format!("{} announced blocks, {listed} listed", self.announced.len()),
            );
        }
    }

    fn check_copies(&self, step: &Step, report: &mut Report) {
        for (nth, copy) in step.copies.iter().enumerate() {
            let earlier = &step.copies[..nth];
            let twice = earlier
                .iter()
                .any(|other| other.destination == copy.destination);
            let chained = step
                .copies
                .iter()
                .any(|other| other.source == copy.destination);
            if twice || chained || self.pool.ref_cnt(copy.source) == 0 {
                report.add(
                    25,
                    format!("step {} copies {copy:?} beside {:?}", step.id, step.copies),
                );
            }
            if self.returns.readers(copy.source) == 0 {
                report.add(25, format!("block {} has no reader counted", copy.source));
            }
        }
    }

    /// INV-26, from the step's side.
    fn check_live_rows(&self, step: &Step, report: &mut Report) {
        let live = || step.rows().filter(|(_, row)| row.state == RowState::Live);
        for (slot, row) in live() {
            let owner = self
                .sequences
                .get(row.handle)
                .ok()
                .and_then(|sequence| sequence.row);
            if owner != Some(slot) {
                report.add(
                    26,
                    format!("step {} has row {slot} of {:?}", step.id, row.handle),
                );
            }
        }
        let (found, counted) = (live().count(), step.num_live());
        if found != counted as usize {
            report.add(
                26,
                format!("step {} has {found} live rows, {counted} counted", step.id),
            );
        }
    }
}
