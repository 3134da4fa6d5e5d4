//! How often rare things happened, so that a test can insist that they did.

#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    pub steps: u64,
    pub failed_steps: u64,
    pub poisoned_rows: u64,
    pub unknown_inputs: u64,
    pub accepted_drafts: u64,
    pub rejected_drafts: u64,
    pub evicted_with_others: u64,
    pub ignored_rows: u64,
    pub deferred_frees: u64,
    pub announced_hits: u64,
    pub preempted_hits: u64,
    pub copies: u64,
    pub duplicates: u64,
    pub evictions: u64,
    pub collisions: u64,
    pub orphans: u64,
    pub idle_checks: u64,
    pub loads: u64,
    pub short_loads: u64,
    pub abandoned_loads: u64,
}

impl Coverage {
    pub fn counts(&self) -> [(&'static str, u64); 18] {
        [
            ("a step", self.steps),
            ("a failed step", self.failed_steps),
            (
                "a row that read what a failed step left",
                self.poisoned_rows,
            ),
            ("an input known to the device only", self.unknown_inputs),
            ("an accepted draft", self.accepted_drafts),
            ("a rejected draft", self.rejected_drafts),
            (
                "a preemption with another sequence",
                self.evicted_with_others,
            ),
            ("a row that nobody wanted", self.ignored_rows),
            ("a deferred free", self.deferred_frees),
            ("a hit on an announced block", self.announced_hits),
            ("a hit after a preemption", self.preempted_hits),
            ("a copy on write", self.copies),
            ("a duplicate block", self.duplicates),
            ("an eviction", self.evictions),
            ("a check of all contents", self.idle_checks),
            ("a load", self.loads),
            ("a load that brought too little", self.short_loads),
            ("a load for a sequence that left", self.abandoned_loads),
        ]
    }

    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.failed_steps += other.failed_steps;
        self.poisoned_rows += other.poisoned_rows;
        self.unknown_inputs += other.unknown_inputs;
        self.accepted_drafts += other.accepted_drafts;
        self.rejected_drafts += other.rejected_drafts;
        self.evicted_with_others += other.evicted_with_others;
        self.ignored_rows += other.ignored_rows;
        self.deferred_frees += other.deferred_frees;
        self.announced_hits += other.announced_hits;
        self.preempted_hits += other.preempted_hits;
        self.copies += other.copies;
        self.duplicates += other.duplicates;
        self.evictions += other.evictions;
        self.collisions += other.collisions;
        self.orphans += other.orphans;
        self.idle_checks += other.idle_checks;
        self.loads += other.loads;
        self.short_loads += other.short_loads;
        self.abandoned_loads += other.abandoned_loads;
    }
}
