//! How the pool works, and why it is right.
//!
//! # One word per block, everything else is an index
//!
//! Each block has one 64-bit state word: reference count, tag, a bit for "queued in a ring", and a
//! sequence number that moves on with every new tenancy. The word is the only authority. The free
//! queue and the prefix index merely say where to look; whatever they say is checked against the
//! word, and the compare-and-swap that acts on it is the check. So they may be late, and nothing
//! has to be locked to keep them in step.
//!
//! ```text
//!             share +1            publish            finish
//!   ┌────── held, plain ───────► held, publishing ──────► held, hashed ──────┐
//!   │  ▲                                                   ▲   │   ▲         │
//!   │  │ allocate: refs 0 → 1, seq +1                      │   │   │ match   │ release
//!   │  │                                     match: seq +1 │   │   │ +1 / −1 │ the last
//!   │  │                                                   │   │   └─────────┤
//!   ▼  │                            retract: seq stays     │   ▼             ▼
//!  free, plain (stack) ◄───── spill ──────────────────── free, hashed (rings)
//!      ▲                                                       │
//!      └───────────── allocate evicts: seq +1, to held, plain ─┘
//! ```
//!
//! # The free queue
//!
//! Front to back: a stack of blocks without a hash, then three rings of tickets for blocks with
//! one. A ticket is (id, seq). It is live while the block's word says free, queued and this seq;
//! touching the block moves seq on and thereby kills the ticket where it lies, so nothing is ever
//! removed from the middle. The rings stand one behind the other, *spare ++ old ++ young*:
//!
//! ```text
//!   allocate ◄── stack ◄── [ spare ] ◄── [ old ] ◄── [ young ] ◄── release
//!                              ▲  drain    │  ▲  move    │
//!                              └───────────┘  └──────────┘     a few per push, copy then close
//! ```
//!
//! Seen from one thread this is exactly the order of a doubly linked list with prepend and append,
//! and hence that of vLLM 0.32 (`UnhashedFirst`) or of a plain FIFO (`AppendAll`). Concurrent calls
//! relax it by as much as they overlap.
//!
//! A release that finds the rings full spills: the block loses its hash and goes to the stack. With
//! the default sizes that takes a thread stopped for as long as the others release a poolful of
//! blocks. It costs a cached prefix; it never waits.
//!
//! # All or nothing
//!
//! One counter holds the free blocks that nobody has reserved. An allocation takes its units with
//! one compare-and-swap, and succeeds or fails right there. A release adds units after its blocks
//! can be found. Touching a free block takes a unit first. So at least as many free blocks are
//! visible as units are granted, and a granted allocation always ends with its blocks.
//!
//! # The prefix index
//!
//! Two candidate buckets of eight slots per key, a 40-bit fingerprint and a 24-bit id per slot,
//! insertion into the emptier bucket, no displacement and no tombstones. A full key is kept per
//! block and compared on every hit. If both buckets are full, the block is simply not cached.
//!
//! # Events
//!
//! With `event_capacity`, whoever publishes a block or takes its hash writes a record to a bounded
//! ring: stored while the block is still `publishing`, removed after the swap that took the hash.
//! So whoever removes has seen `hashed`, and with it the record before, and claims a later place.
//! A record that finds the ring full is dropped, and counted after the fact it was to tell. A reader
//! that sees the count move looks at the blocks themselves; `seq` then tells which of the records
//! still in the ring are older than what it saw. A block that is `publishing` counts as resident
//! just then if its record was read already: no other will come. What an event says about a block,
//! parent and tokens, is kept beside its key, so that nothing is missing after a loss.
//!
//! # Orderings
//!
//! No operation is sequentially consistent and there are no fences: loom treats the former as
//! acquire-release, so neither would be checked. Every use says at its place why its ordering
//! suffices; the chains are these.
//!
//! | from | to | through |
//! |---|---|---|
//! | writes to a block before `release` | its next owner | state: Release swap, Acquire swap or load |
//! | content and key before `publish` returns | whoever hits the block | state: Release at `hashed`, Acquire before the comparison |
//! | a queue entry | whoever was granted its unit | availability: Release add, Acquire reserve |
//! | an event's record | the reader | its slot's mark: Release store, Acquire load |
//! | the reader's reads of a slot | the slot's next record | event ring head: Release store, Acquire load |
//! | what a dropped record was to tell | the reader that starts over | count of losses: Release add, Acquire load |
//! | a copy of a queue entry | whoever finds the original closed over | ring head: Release close, Acquire load |
//!
//! Key words are stored Release and loaded Acquire: a reader that sees a word of a later tenancy
//! sees that seq has moved on, so its swap fails.
//!
//! # Invariants
//!
//! | | |
//! |---|---|
//! | INV-1 | Between the allocation of a block and the release that frees it, no allocation returns it. |
//! | INV-2 | Held blocks + available + reserved by calls in progress = usable blocks; at rest, each free block is queued in one place. |
//! | INV-3 | A ticket is live exactly while its block is free, queued and of its seq; once dead it stays dead. |
//! | INV-4 | At every step at least as many free blocks are visible as units are granted. |
//! | INV-5 | A block returned by a look-up holds the key until it is released or retracted; each hashed block has one index entry. |
//! | INV-6 | `allocate(n)` takes n distinct blocks or changes nothing. |
//! | INV-7 | Used from one thread, ids and queue order equal those of a list. |
//! | INV-8 | A second release of one reference is an error and changes nothing. |
//! | INV-9 | Of two publishers of one block exactly one wins; a key is never a mix of two. |
//! | INV-10 | A writable block has no other holder until its owner shares or publishes it. |
//! | INV-11 | With any thread stopped anywhere, all others finish in a bounded number of steps. |
//! | INV-12 | At most 4 moves per released block (64 when young is full), 16 slots probed per look-up, no allocation of memory after construction. |
//! | INV-13 | Replayed events give the resident hashes; per tenancy, stored is told before removed. |
//! | INV-14 | What was written before the release of a block is visible to its next owner. |
//!
//! [`BlockPool::check_invariants`](crate::BlockPool::check_invariants) checks what can be seen at
//! rest and reports by these numbers.
//!
//! # Memory
//!
//! Per block, in bytes: state 8, key 16 or 32, index 16, stack link 4, duplicate check 4, rings
//! 16 + 14 + 14; together 92 or 108, and 8 more with `KeepAll` for the publish stamp. Events cost
//! parent 16 or 32, group 8 and 4 per token, and per record of the ring that, the key and 16. Rings have
//! exactly the capacity asked for: a position is a (lap, slot) pair, so that no power of two and no
//! division is needed.
//!
//! # Known weaknesses
//!
//! - While no unit is available, a look-up can miss a free block whose unit another call has just
//!   reserved or not yet added; and a unit reserved by a look-up that then fails can make a
//!   concurrent allocation of the very last block fail. Both are off by one block per look-up and
//!   absent in one thread.
//! - Under `FirstWins`, overlapping publishes of one key can leave a cached copy each.
//! - Single-block calls cost several uncontended read-modify-writes; batches share them.
