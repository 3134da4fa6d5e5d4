//! Free blocks with a hash, least recently released first.
//!
//! Three rings stand one behind the other: **spare ++ old ++ young**. Releases push to young. When
//! young grows past a threshold, every push also moves a few entries from its front to the back of
//! old, dropping the dead ones on the way; when old has no room left it is drained into spare in
//! the same small steps, and then the two swap roles. Each step copies an entry before it closes
//! over the original, so the sequence as a whole keeps its order, nothing is lost if the mover
//! stops half-way, and no call ever compacts a whole ring.
//!
//! A mover that acts on outdated roles can leave a second entry for a block. That is harmless: the
//! block's state word decides who gets it, and scanners always visit all three rings.

use crate::BlockId;
use crate::block_state::{BlockCell, Ticket};
use crate::eviction_ring::EvictionRing;
use crate::sync::{AtomicU32, CachePadded, Counter, Ordering};

/// Entries read or written per claim.
pub(crate) const BATCH: usize = 32;

/// From this many blocks on, an allocation claims entries before it takes them, so that two large
/// allocations work on different entries instead of racing for the same ones.
const CLAIM_FROM: usize = 4;

/// Moves tried when young is full before a ticket is given back to be spilled.
const RESCUE_MOVES: u64 = 64;

const SWAPPED: u32 = 1;
const DRAINING: u32 = 2;

/// Sizes of the queue; see `Tuning` for what they mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueSizes {
    pub(crate) young_slots: u32,
    pub(crate) aged_slots: u32,
    pub(crate) young_threshold: u32,
    pub(crate) moves_per_push: u32,
    pub(crate) lazy_close: u32,
}

#[derive(Debug)]
pub(crate) struct EvictionQueue {
    young: EvictionRing,
    aged: [EvictionRing; 2],
    /// Bit 0: which aged ring is old. Bit 1: old is being drained into spare. A thread that acts
    /// on a stale value only misplaces entries, so the order suffers, never the content.
    roles: CachePadded<AtomicU32>,
    young_threshold: u64,
    moves_per_push: u64,
    lazy_close: u64,
    moves: Counter,
    role_swaps: Counter,
}

/// What one attempt to move the front entries of a ring did.
enum Step {
    /// So many front entries were moved, or were dead and dropped, or somebody else moved them.
    Advanced(u64),
    Empty,
    /// The front entry is claimed but not written: its writer is still at it.
    Unwritten,
    /// The destination is full.
    NoRoom,
}

impl EvictionQueue {
    pub(crate) fn new(sizes: QueueSizes) -> Self {
        Self {
            young: EvictionRing::new(sizes.young_slots),
            aged: [
                EvictionRing::new(sizes.aged_slots),
                EvictionRing::new(sizes.aged_slots),
            ],
            roles: CachePadded(AtomicU32::new(0)),
            young_threshold: u64::from(sizes.young_threshold),
            moves_per_push: u64::from(sizes.moves_per_push),
            lazy_close: u64::from(sizes.lazy_close),
            moves: Counter::default(),
            role_swaps: Counter::default(),
        }
    }

    /// Queues the tickets in order, behind all others. What finds no room goes to `spill`, which
    /// happens only while some thread is stopped between claiming a place and writing it, or when
    /// the rings were configured too small for the blocks.
    pub(crate) fn push(
        &self,
        states: &[BlockCell],
        tickets: &[Ticket],
        mut spill: impl FnMut(Ticket),
    ) {
        if let Some(place) = self.young.claim(tickets.len() as u64) {
            self.young.write_run(place, tickets);
            if self.young.len() > self.young_threshold {
                self.age(states, self.moves_per_push * tickets.len() as u64);
            }
            return;
        }
        for ticket in tickets {
            self.age(states, RESCUE_MOVES);
            match self.young.claim(1) {
                Some(place) => self.young.write(place, *ticket),
                None => spill(*ticket),
            }
        }
    }

    /// Fills `out` with blocks in queue order as far as there are any, and returns how many.
    /// `take` tries to make the caller the owner of a ticket's block; either way the ticket is
    /// dead when it returns.
    pub(crate) fn collect(
        &self,
        states: &[BlockCell],
        out: &mut [BlockId],
        mut take: impl FnMut(Ticket) -> bool,
    ) -> usize {
        let mut taken = 0;
        for ring in self.front_to_back() {
            if taken == out.len() {
                break;
            }
            taken += claim_and_take(ring, states, &mut out[taken..], &mut take);
            taken += self.scan_and_take(ring, &mut out[taken..], &mut take);
        }
        taken
    }

    /// The rings in queue order, by the roles of this moment.
    pub(crate) fn front_to_back(&self) -> [&EvictionRing; 3] {
        let (old, spare) = self.old_and_spare(self.roles.load(Ordering::Acquire));
        [spare, old, &self.young]
    }

    pub(crate) fn moves(&self) -> u64 {
        self.moves.get()
    }

    pub(crate) fn role_swaps(&self) -> u64 {
        self.role_swaps.get()
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.front_to_back()
            .iter()
            .map(|ring| ring.metadata_bytes())
            .sum()
    }

    fn old_and_spare(&self, roles: u32) -> (&EvictionRing, &EvictionRing) {
        let old = (roles & SWAPPED) as usize;
        (&self.aged[old], &self.aged[1 - old])
    }

    /// Up to `budget` entries towards a shorter young ring (INV-12).
    fn age(&self, states: &[BlockCell], budget: u64) {
        let mut moved = 0;
        // Changes of roles take from the budget too, so that the loop ends.
        let mut steps = 0;
        while steps < budget {
            let Some(advanced) = self.age_once(states, budget - steps) else {
                break;
            };
            moved += advanced;
            steps += advanced.max(1);
        }
        self.moves.add(moved);
    }

    /// One step. Returns how many entries it moved, at most `budget`, or `None` if nothing is to be
    /// done or can be.
    fn age_once(&self, states: &[BlockCell], budget: u64) -> Option<u64> {
        let roles = self.roles.load(Ordering::Acquire);
        let (old, spare) = self.old_and_spare(roles);
        if roles & DRAINING != 0 {
            return match advance(old, spare, states, budget) {
                Step::Advanced(entries) => Some(entries),
                Step::Empty => self.change_roles(roles, (roles ^ SWAPPED) & !DRAINING),
                Step::NoRoom => drop_dead_front(spare, states).then_some(0),
                Step::Unwritten => None,
            };
        }
        let excess = self.young.len().saturating_sub(self.young_threshold);
        if excess == 0 {
            return None;
        }
        match advance(&self.young, old, states, budget.min(excess)) {
            Step::Advanced(entries) => Some(entries),
            Step::NoRoom => self.change_roles(roles, roles | DRAINING),
            Step::Empty | Step::Unwritten => None,
        }
    }

    fn change_roles(&self, from: u32, to: u32) -> Option<u64> {
        // AcqRel: the new roles come after the moves that led to them. Losing the race means that
        // somebody else has made the same decision.
        let changed = self
            .roles
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        if changed.is_ok() && (from ^ to) & SWAPPED != 0 {
            self.role_swaps.add(1);
        }
        Some(0)
    }

    /// Takes live blocks one by one from the front, past places that are not written yet. Serves
    /// small requests, and any request while a stopped writer blocks the head.
    fn scan_and_take(
        &self,
        ring: &EvictionRing,
        out: &mut [BlockId],
        take: &mut impl FnMut(Ticket) -> bool,
    ) -> usize {
        let (head, tail) = (ring.head(), ring.tail());
        let mut place = head;
        let mut closable = head;
        let mut contiguous = true;
        let mut taken = 0;
        while taken < out.len() && place < tail {
            match ring.read(place) {
                Some(ticket) => {
                    if take(ticket) {
                        out[taken] = ticket.id();
                        taken += 1;
                    }
                }
                // Closed over and written anew meanwhile: what follows is no prefix any more.
                None if ring.head() > place => break,
                None => contiguous = false,
            }
            place = ring.after(place, 1);
            if contiguous {
                closable = place;
            }
        }
        // Everything before `closable` is dead. Closing costs a contended swap, so one-block
        // allocations leave it until a few have gathered.
        if closable > head && (closable == tail || ring.distance(head, closable) >= self.lazy_close)
        {
            ring.close(head, closable);
        }
        taken
    }
}

/// Closes over the shortest written prefix that holds as many live tickets as are wanted, then
/// takes their blocks. Never claims more live tickets than it still needs, so it never hides a
/// block that another thread's reservation counts on (INV-4).
fn claim_and_take(
    ring: &EvictionRing,
    states: &[BlockCell],
    out: &mut [BlockId],
    take: &mut impl FnMut(Ticket) -> bool,
) -> usize {
    let mut taken = 0;
    while out.len() - taken >= CLAIM_FROM {
        let mut batch = [Ticket::default(); BATCH];
        let wanted = (out.len() - taken).min(BATCH);
        let Some(claimed) = close_live_prefix(ring, states, &mut batch[..wanted]) else {
            break;
        };
        for ticket in &batch[..claimed] {
            if take(*ticket) {
                out[taken] = ticket.id();
                taken += 1;
            }
        }
    }
    taken
}

/// Returns how many live tickets the closed prefix held; `None` if the ring is empty or its front
/// is not written yet.
fn close_live_prefix(
    ring: &EvictionRing,
    states: &[BlockCell],
    batch: &mut [Ticket],
) -> Option<usize> {
    loop {
        let (head, tail) = (ring.head(), ring.tail());
        let mut place = head;
        let mut live = 0;
        while place < tail && live < batch.len() {
            let Some(ticket) = ring.read(place) else {
                break;
            };
            if is_live(states, ticket) {
                batch[live] = ticket;
                live += 1;
            }
            place = ring.after(place, 1);
        }
        if place == head {
            if ring.head() == head {
                return None;
            }
        } else if ring.close(head, place) {
            return Some(live);
        }
    }
}

/// Moves up to `budget` front entries of `from` to the back of `to`, and drops the dead ones.
fn advance(from: &EvictionRing, to: &EvictionRing, states: &[BlockCell], budget: u64) -> Step {
    let (head, tail) = (from.head(), from.tail());
    if head >= tail {
        return Step::Empty;
    }
    let mut batch = [Ticket::default(); BATCH];
    let (mut entries, mut live) = (0, 0);
    let mut place = head;
    while entries < budget.min(BATCH as u64) && place < tail {
        let Some(ticket) = from.read(place) else {
            break;
        };
        if is_live(states, ticket) {
            batch[live] = ticket;
            live += 1;
        }
        place = from.after(place, 1);
        entries += 1;
    }
    if entries == 0 {
        return if from.head() == head {
            Step::Unwritten
        } else {
            Step::Advanced(1)
        };
    }
    // Copy first, close second: whoever finds the entries gone from here sees them there.
    if live != 0 {
        match to.claim(live as u64) {
            Some(first) => to.write_run(first, &batch[..live]),
            None if entries == 1 => return Step::NoRoom,
            // Perhaps there is room for fewer.
            None => return advance(from, to, states, entries / 2),
        }
    }
    from.close(head, place);
    Step::Advanced(entries)
}

/// Closes over the front entry if it is dead.
fn drop_dead_front(ring: &EvictionRing, states: &[BlockCell]) -> bool {
    let head = ring.head();
    head < ring.tail()
        && ring
            .read(head)
            .is_some_and(|ticket| !is_live(states, ticket))
        && ring.close(head, ring.after(head, 1))
}

/// Acquire: "dead" must mean that the block's word moved past the ticket, see
/// [`EvictionRing::write`].
fn is_live(states: &[BlockCell], ticket: Ticket) -> bool {
    ticket.is_live(states[ticket.id() as usize].load(Ordering::Acquire))
}
