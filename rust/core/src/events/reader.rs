//! From records to events.

use std::ops::Deref;

use super::Event;
use super::content::OwnedContent;
use super::log::{EventLog, Upsets};
use super::parents_first::parents_first;
use super::residents::{Residents, stored_event};
use crate::sync::Ordering;
use crate::{BlockId, BlockKey, BlockPool, PoolError};

/// Reads the events of a pool. There is one reader at a time.
///
/// ```
/// use looseleaf::{BlockKey, BlockPool, Event, EventReader, PoolConfig};
///
/// let config = PoolConfig { event_capacity: 1024, ..PoolConfig::new(8) };
/// let pool = BlockPool::new(config)?;
/// let mut reader = EventReader::new(&pool)?;
///
/// let mut ids = [0];
/// pool.allocate(&mut ids)?;
/// let key = BlockKey([1, 2, 3, 4]);
/// pool.publish(ids[0], &key)?;
/// pool.retract(ids[0])?;
/// let mut events = vec![];
/// reader.drain(&mut events);
/// let (parent, tokens, group) = (None, [].into(), 0);
/// assert_eq!(
///     events,
///     [Event::Stored { key, parent, tokens, group }, Event::Removed { key, group }]
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It takes memory of its own: 56 bytes per block, and about 100 per hash that is resident.
#[derive(Debug)]
pub struct EventReader<P: Deref<Target = BlockPool>> {
    pool: P,
    residents: Residents,
    /// Those that the residents account for.
    seen: Upsets,
    /// Another reader has read records that this one has not.
    is_late: bool,
}

impl<P: Deref<Target = BlockPool>> EventReader<P> {
    /// Becomes the reader of the pool's events. The first [`drain`](Self::drain) begins with the
    /// hashes that are resident by then; a [`Cleared`](Event::Cleared) event comes before them if
    /// there was another reader.
    ///
    /// # Errors
    /// [`PoolError::NoEvents`] if the pool was built without, [`PoolError::EventsTaken`] while there
    /// is another reader.
    pub fn new(pool: P) -> Result<Self, PoolError> {
        let log = pool.events.as_deref().ok_or(PoolError::NoEvents)?;
        if !log.take() {
            return Err(PoolError::EventsTaken);
        }
        Ok(Self {
            residents: Residents::new(pool.num_blocks()),
            seen: Upsets::default(),
            is_late: log.ring.head() != 0,
            pool,
        })
    }

    /// Appends what has changed since the last call. Replaying all events gives the set of hashes
    /// that are resident, once no call of others is in progress. What is written meanwhile is left
    /// for the next call. Within one call, no block is stored before a parent that is.
    ///
    /// If records were dropped, or the prefix cache was reset, the new events are
    /// [`Cleared`](Event::Cleared) and then one for each resident hash.
    pub fn drain(&mut self, out: &mut Vec<Event>) {
        let mut events = vec![];
        self.read_records(&mut events);
        let upsets = log_of(&self.pool).upsets();
        if self.is_late || upsets != self.seen {
            let resync = self.is_late || upsets.lost != self.seen.lost;
            (self.seen, self.is_late) = (upsets, false);
            out.push(Event::Cleared { resync });
            events.clear();
            self.start_over(&mut events);
        }
        parents_first(events, out);
    }

    fn read_records(&mut self, out: &mut Vec<Event>) {
        let ring = &log_of(&self.pool).ring;
        for number in ring.head()..ring.tail() {
            let Some(record) = ring.read(number) else {
                return;
            };
            ring.pass(number);
            match record.stored {
                Some((key, content)) => {
                    self.residents
                        .stored(record.id, record.seq, key, content, out);
                }
                None => self.residents.removed(record.id, record.seq, out),
            }
        }
    }

    /// Looks at every block. Each is seen at a moment of its own, and records of what happened
    /// before it will count for nothing.
    fn start_over(&mut self, out: &mut Vec<Event>) {
        self.residents.start_over();
        for id in 0..self.pool.num_blocks() as BlockId {
            let (seq, found) = self.look_at(id);
            let hash = found.as_ref().map(|(key, content)| (*key, content.group));
            let is_first = self.residents.found(id, seq, hash);
            if let Some((key, content)) = found.filter(|_| is_first) {
                out.push(stored_event(key, content));
            }
        }
    }

    /// What the block holds, if it is resident, and the `seq` up to which that tells everything.
    fn look_at(&self, id: BlockId) -> (u64, Option<(BlockKey, OwnedContent)>) {
        let state = self.pool.state(id);
        let mut found = state.load(Ordering::Acquire);
        loop {
            let seq = found.seq();
            // A block whose record was read is as good as published: there is no other to come.
            let resident = found.is_hashed()
                || found.is_publishing() && self.residents.is_stored_since(id, seq);
            if !resident {
                // A record that a block just being published is stored is still to come.
                return (seq - u64::from(found.is_publishing()), None);
            }
            let (key, content) = (self.pool.keys.read(id), log_of(&self.pool).content_of(id));
            let now = state.load(Ordering::Acquire);
            if !now.is_plain() && now.seq() == seq {
                // The pool keeps the key with the group mixed in; mixing twice gives it back.
                return (seq, Some((key.with_group(content.group), content)));
            }
            found = now;
        }
    }
}

impl<P: Deref<Target = BlockPool>> Drop for EventReader<P> {
    fn drop(&mut self) {
        log_of(&self.pool).give_back();
    }
}

fn log_of(pool: &BlockPool) -> &EventLog {
    pool.events
        .as_deref()
        .expect("a reader is made for a pool with events only")
}
