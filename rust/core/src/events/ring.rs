//! A bounded queue of records: many writers, one reader, and nobody waits for anybody.
//!
//! A writer claims the next number by a compare-and-swap, refused when the reader is a whole ring
//! behind; then it fills the number's slot, and marks it with the number. The reader goes from
//! number to number and stops at the first slot that does not carry its mark yet.

use super::BlockContent;
use super::content::{ContentStore, OwnedContent};
use crate::BlockId;
use crate::block_key::{BlockKey, KeyStore, KeyWidth};
use crate::sync::{AtomicU64, CachePadded, Ordering};

const ID_BITS: u32 = 24;
const ID_MASK: u64 = (1 << ID_BITS) - 1;
const STORED: u64 = 1;

#[derive(Debug)]
pub(super) struct EventRing {
    slots: Box<[Slot]>,
    /// Of stored blocks. Like the next one, read only while the slot carries its mark.
    keys: KeyStore,
    contents: ContentStore,
    /// The number of the next record to be read.
    head: CachePadded<AtomicU64>,
    /// The number that the next record gets.
    tail: CachePadded<AtomicU64>,
}

/// What is known of a record without its key and content.
#[derive(Debug)]
struct Slot {
    /// One more than the record's number, over a bit that tells stored from removed.
    mark: AtomicU64,
    /// `seq` (40 bits) over the block's id (24). Relaxed: the mark publishes it.
    tenancy: AtomicU64,
}

/// One record. Numbers have no gaps: a record that was dropped never had one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) id: BlockId,
    /// Of the block's state: when publishing began, or just before the hash went.
    pub(super) seq: u64,
    /// `None` for a removal: the reader knows what was stored.
    pub(super) stored: Option<(BlockKey, OwnedContent)>,
}

impl EventRing {
    /// `capacity` is rounded up to a power of two.
    pub(super) fn new(capacity: u32, width: KeyWidth, tokens_each: u32) -> Self {
        let capacity = capacity.next_power_of_two();
        let slot = |_| Slot {
            mark: AtomicU64::new(0),
            tenancy: AtomicU64::new(0),
        };
        Self {
            slots: (0..capacity).map(slot).collect(),
            keys: KeyStore::new(capacity, width),
            contents: ContentStore::new(capacity, width, tokens_each),
            head: CachePadded(AtomicU64::new(0)),
            tail: CachePadded(AtomicU64::new(0)),
        }
    }

    /// Writes a record that a block is stored; false if the ring is full.
    pub(super) fn push_stored(
        &self,
        id: BlockId,
        seq: u64,
        key: &BlockKey,
        content: &BlockContent<'_>,
    ) -> bool {
        self.push(id, seq, STORED, |at| {
            self.keys.write(at, key);
            self.contents.write(at, content);
        })
    }

    /// Writes a record that a block lost its hash; false if the ring is full.
    pub(super) fn push_removed(&self, id: BlockId, seq: u64) -> bool {
        self.push(id, seq, 0, |_| ())
    }

    fn push(&self, id: BlockId, seq: u64, kind: u64, fill: impl FnOnce(u32)) -> bool {
        let Some(number) = self.claim() else {
            return false;
        };
        let at = self.place(number);
        fill(at);
        let slot = &self.slots[at as usize];
        let tenancy = seq << ID_BITS | u64::from(id);
        slot.tenancy.store(tenancy, Ordering::Relaxed);
        // Release: whoever sees the mark sees the record.
        slot.mark.store((number + 1) << 1 | kind, Ordering::Release);
        true
    }

    /// The number of a record that the caller now has to write.
    fn claim(&self) -> Option<u64> {
        // Relaxed: the swap below decides whether it is the last one.
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            // Acquire: the reader has read the slot before we overwrite it.
            let head = self.head.load(Ordering::Acquire);
            let Some(waiting) = tail.checked_sub(head) else {
                // The tail is an old one: numbers that were read had been claimed.
                tail = self.tail.load(Ordering::Relaxed);
                continue;
            };
            if waiting >= self.slots.len() as u64 {
                return None;
            }
            // Relaxed: only shares out numbers. Of two records of one block the later one is
            // claimed by whoever saw, through the block's state, what the earlier one tells.
            match self.tail.compare_exchange_weak(
                tail,
                tail + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(tail),
                Err(found) => tail = found,
            }
        }
    }

    /// The first number that was not claimed when asked: where a reader may stop.
    pub(super) fn tail(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    /// The first number that was not read. Only the reader moves it.
    pub(super) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// The record of this number, which must be the head; `None` if it is not written yet.
    pub(super) fn read(&self, number: u64) -> Option<Record> {
        let at = self.place(number);
        let slot = &self.slots[at as usize];
        let mark = slot.mark.load(Ordering::Acquire);
        if mark >> 1 != number + 1 {
            return None;
        }
        let tenancy = slot.tenancy.load(Ordering::Relaxed);
        let content = || (self.keys.read(at), self.contents.read(at));
        Some(Record {
            id: (tenancy & ID_MASK) as BlockId,
            seq: tenancy >> ID_BITS,
            stored: (mark & STORED != 0).then(content),
        })
    }

    /// Gives the slot of the head back to the writers. Release: our reads of it come first.
    pub(super) fn pass(&self, number: u64) {
        self.head.store(number + 1, Ordering::Release);
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.slots) + self.keys.metadata_bytes() + self.contents.metadata_bytes()
    }

    fn place(&self, number: u64) -> u32 {
        (number & (self.slots.len() as u64 - 1)) as u32
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn ring(capacity: u32) -> EventRing {
        EventRing::new(capacity, KeyWidth::Bits256, 2)
    }

    fn pop(ring: &EventRing) -> Option<Record> {
        let record = ring.read(ring.head())?;
        ring.pass(ring.head());
        Some(record)
    }

    #[test]
    fn records_come_out_in_order_over_many_laps_and_a_full_ring_refuses() {
        const LAST_SEQ: u64 = (1 << 40) - 1;
        for (asked, capacity) in [(1, 1), (2, 2), (3, 4), (7, 8)] {
            let ring = ring(asked);
            for lap in 0..50 {
                for i in 0..capacity {
                    let key = BlockKey([lap, i, 0, 1]);
                    let content = BlockContent {
                        tokens: &[lap as u32],
                        ..BlockContent::default()
                    };
                    assert!(if i % 2 == 0 {
                        ring.push_removed(ID_MASK as BlockId, LAST_SEQ - i)
                    } else {
                        ring.push_stored(i as BlockId, lap, &key, &content)
                    });
                }
                assert!(!ring.push_removed(1, 1));
                for i in 0..capacity {
                    let record = pop(&ring).unwrap();
                    let stored = record.stored.map(|(key, content)| (key.0, content.tokens));
                    if i % 2 == 0 {
                        assert_eq!((record.id, record.seq), (ID_MASK as BlockId, LAST_SEQ - i));
                        assert_eq!(stored, None);
                    } else {
                        assert_eq!((record.id, record.seq), (i as BlockId, lap));
                        assert_eq!(stored, Some(([lap, i, 0, 1], [lap as u32].into())));
                    }
                }
                assert_eq!(pop(&ring), None);
            }
        }
    }

    #[test]
    fn the_reader_stops_at_a_record_that_is_claimed_and_not_written() {
        let ring = ring(4);
        let number = ring.claim().unwrap();
        assert!(ring.push_removed(5, 1));
        assert_eq!(pop(&ring), None);
        ring.slots[0]
            .mark
            .store((number + 1) << 1, Ordering::Release);
        assert_eq!(pop(&ring).map(|record| record.id), Some(0));
        assert_eq!(pop(&ring).map(|record| record.id), Some(5));
    }
}
