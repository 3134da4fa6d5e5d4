//! Proof that a test has met what it is about.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

use super::Ledger;

/// How often each thing happened, rare branches included.
#[derive(Default, Debug)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// What happened to this pool so far.
    pub fn of(ledger: &Ledger) -> Self {
        let (seen, stats) = (&ledger.seen, ledger.pool.stats());
        Self(BTreeMap::from([
            ("allocated", seen.allocated.load(SeqCst)),
            ("none free", seen.none_free.load(SeqCst)),
            ("hit", seen.hits.load(SeqCst)),
            ("miss", seen.misses.load(SeqCst)),
            ("rewritten", seen.rewritten.load(SeqCst)),
            ("reset", seen.resets.load(SeqCst)),
            ("published", stats.published),
            ("duplicate", stats.duplicates),
            ("evicted", stats.evictions),
            ("retracted", stats.retractions),
            ("spilled", stats.spills),
            ("overflowed", stats.table_overflows),
            ("looked again", stats.short_passes),
            ("moved", stats.moves),
            ("swapped", stats.role_swaps),
        ]))
    }

    /// Adds what happened since `before`.
    pub fn add_since(&mut self, before: &Self, now: &Self) {
        for (name, count) in &now.0 {
            *self.0.entry(name).or_default() += count - before.0.get(name).unwrap_or(&0);
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.add_since(&Self::default(), other);
    }

    pub fn assert_happened(&self, what: &[&str]) {
        self.assert_at_least(1, what);
    }

    pub fn assert_at_least(&self, count: u64, what: &[&str]) {
        for what in what {
            assert!(self.0[what] >= count, "too seldom {what}: {:?}", self.0);
        }
    }
}
