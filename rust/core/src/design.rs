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
//! insertion into the first bucket or the emptier, no displacement and no tombstones. A full key is kept per
//! block and compared on every hit. If both buckets are full, the block is simply not cached.
//!
//! # Verified tokens
//!
//! With `verify_tokens`, a block's key has further words: its tokens, the name of the prefix that
//! ends with the block, and that of the prefix before it. They are written while the block is
//! `publishing` and confirmed by the same swap as the key. Names are counted up, never reused, and
//! the same for all copies of one content, so equality link by link is equality of whole prefixes:
//! if two blocks have the same tokens and continue the same name, they hold the same, and only then
//! are they given the same name. A name is also read without a swap, by a publish that finds its
//! content cached; it re-reads the state instead, and from then on what the name stands for cannot
//! change any more, whatever becomes of the block.
//!
//! Blocks of different content can be cached under one key, as far as two buckets have room.
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
//! | INV-5 | A block returned by a look-up holds the key, and with `verify_tokens` the whole prefix, until it is released or retracted; each hashed block has one index entry; blocks of one prefix name hold the same. |
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
//! # Where each invariant is checked
//!
//! Four ways to look, each for what the others cannot see:
//!
//! - **One thread** against a plain list (`pool_model`), and its rare branches (`rare_branches`).
//! - **loom** (`loom_pool`): two threads in one race, every interleaving up to two or three
//!   preemptions, and the memory orders that the language allows, short of load buffering.
//! - **Crash-stop** (`crash_stop`): two or three threads that take turns at every atomic access. One
//!   of them is stopped for good after its k-th, for every k; the others must finish, and then have
//!   whatever counts as free. At every access of every run, INV-2, INV-4 and INV-5 are looked at
//!   from outside. This is what finds a mover that closes over an entry before it has copied it: as
//!   long as the mover goes on, nobody misses the block.
//! - **shuttle** and real threads (`shuttle_pool`, `stress`): long runs of random calls.
//!
//! The last two ways compare the pool with one ledger of holders and content, and assert that moves,
//! role swaps, spills and full buckets were among what they met. What loom and the crash-stop
//! scheduler covered is printed: executions, and stop points. A weak swap that fails without cause
//! happens in the crash-stop runs only.
//!
//! | | in | test |
//! |---|---|---|
//! | INV-1 | `stress` | `no_block_is_lost_or_given_twice_and_the_rare_branches_happen` |
//! | INV-1 | `loom_pool` | `claim_of_a_batch_against_scan` |
//! | INV-1 | `loom_pool` | `touch_against_allocate` |
//! | INV-1 | `loom_pool` | `stack_pop_against_a_top_that_leaves_and_comes_back` |
//! | INV-1 | `crash_stop` | `a_stopped_allocation_or_release_stops_nobody` |
//! | INV-1 | `crash_stop` | `a_stopped_pop_or_push_leaves_the_stack_whole` |
//! | INV-2 | `pool_model` | `unhashed_first_and_first_wins_does_what_a_list_does` |
//! | INV-2 | `rare_branches` | `a_release_that_finds_the_rings_full_spills_and_loses_nothing_but_hashes` |
//! | INV-2 | `shuttle_pool` | `unhashed_first_keeps_its_promises_under_random_schedules` |
//! | INV-2 | `shuttle_pool` | `append_all_keeps_its_promises_under_random_schedules` |
//! | INV-2 | `crash_stop` | `a_stopped_spill_loses_hashes_and_no_block` |
//! | INV-3 | `block_state` | `a_ticket_is_live_only_for_the_state_it_was_made_for` |
//! | INV-3 | `loom_pool` | `ring_push_against_scan` |
//! | INV-3 | `loom_pool` | `a_push_overtaken_by_another_is_scanned_past` |
//! | INV-4 | `crash_stop` | `a_stopped_mover_hides_no_block` |
//! | INV-4 | `crash_stop` | `a_stopped_claim_of_a_batch_hides_only_what_it_was_granted` |
//! | INV-4 | `crash_stop` | `a_stopped_admission_holds_its_blocks_and_nothing_else` |
//! | INV-4 | `loom_pool` | `release_against_allocate_hands_the_payload_over` |
//! | INV-4 | `loom_pool` | `an_allocation_whose_block_moves_behind_its_back_looks_again` |
//! | INV-5 | `loom_pool` | `publish_against_lookup` |
//! | INV-5 | `loom_pool` | `retract_and_publish_anew_against_lookup` |
//! | INV-5 | `loom_pool` | `eviction_against_lookup_of_the_next_tenant` |
//! | INV-5 | `loom_pool` | `with_two_copies_of_a_key_an_eviction_leaves_one_to_be_hit` |
//! | INV-5 | `verified_tokens` | `hits_are_those_of_a_map_of_whole_prefixes_however_few_bits_a_hash_has` |
//! | INV-5 | `manager_model` | `every_row_reads_its_own_prefix_when_hashes_collide_and_tokens_are_verified` |
//! | INV-5 | `loom_pool` | `a_block_taken_over_by_colliding_content_against_a_lookup_of_what_it_held` |
//! | INV-5 | `loom_pool` | `a_block_taken_over_by_colliding_content_against_a_lookup_of_what_it_will_hold` |
//! | INV-5 | `loom_pool` | `a_held_block_published_anew_under_its_key_against_a_lookup_of_what_it_held` |
//! | INV-5 | `loom_pool` | `a_beginning_replaced_by_one_that_collides_against_a_lookup_of_the_whole_prompt` |
//! | INV-5 | `crash_stop` | `a_stopped_publish_lookup_or_eviction_stops_nobody` |
//! | INV-5 | `crash_stop` | `a_stopped_retraction_or_lookup_never_leads_to_other_content` |
//! | INV-5 | `shuttle_pool` | `unhashed_first_keeps_its_promises_when_threads_are_held_up` |
//! | INV-5 | `shuttle_pool` | `append_all_keeps_its_promises_when_threads_are_held_up` |
//! | INV-6 | `misuse` | `an_allocation_that_does_not_fit_says_what_there_was` |
//! | INV-6 | `misuse` | `an_admission_counts_the_free_hits_it_would_take` |
//! | INV-6 | `loom_pool` | `of_two_allocations_over_capacity_one_takes_all_and_one_takes_nothing` |
//! | INV-7 | `pool_model` | `unhashed_first_and_first_wins_does_what_a_list_does` |
//! | INV-7 | `pool_model` | `unhashed_first_and_keep_all_does_what_a_list_does` |
//! | INV-7 | `pool_model` | `append_all_and_first_wins_does_what_a_list_does` |
//! | INV-7 | `pool_model` | `append_all_and_keep_all_does_what_a_list_does` |
//! | INV-8 | `misuse` | `a_second_release_is_refused_for_plain_and_for_cached_blocks` |
//! | INV-8 | `misuse` | `free_blocks_cannot_be_released_shared_or_published` |
//! | INV-8 | `stress` | `of_two_calls_that_release_one_reference_one_succeeds` |
//! | INV-8 | `loom_pool` | `of_two_releases_of_one_reference_one_succeeds` |
//! | INV-9 | `misuse` | `a_block_is_published_once` |
//! | INV-9 | `loom_pool` | `of_two_publishers_of_a_block_one_wins` |
//! | INV-9 | `crash_stop` | `a_stopped_publisher_excludes_the_other_and_the_block_ends_with_one_key` |
//! | INV-10 | `loom_pool` | `a_sharer_leaves_while_the_owner_asks_whether_it_may_write` |
//! | INV-10 | `crash_stop` | `a_stopped_sharer_keeps_its_reference_and_no_more` |
//! | INV-11 | `crash_stop` | `a_stopped_mover_hides_no_block` |
//! | INV-11 | `crash_stop` | `a_stopped_role_swap_hides_no_block` |
//! | INV-11 | `crash_stop` | `a_stopped_reset_forgets_what_it_came_to_and_loses_nothing` |
//! | INV-11 | `crash_stop` | `a_thread_stopped_in_any_of_its_random_calls_stops_nobody` |
//! | INV-12 | `crash_stop` | `a_release_moves_at_most_four_entries` |
//! | INV-12 | `crash_stop` | `a_lookup_reads_at_most_sixteen_slots` |
//! | INV-12 | `rare_branches` | `a_release_that_finds_the_rings_full_tries_at_most_sixty_four_moves` |
//! | INV-12 | `hot_paths` | `no_call_on_the_hot_path_allocates_memory` |
//! | INV-13 | `events` | `replayed_events_give_what_is_resident_whenever_they_are_drained` |
//! | INV-13 | `events` | `four_threads_at_work_leave_a_reader_with_what_is_resident` |
//! | INV-13 | `loom_events` | `a_stranger_retracts_at_once` |
//! | INV-14 | `loom_pool` | `release_against_allocate_hands_the_payload_over` |
//! | INV-14 | `loom_pool` | `the_last_of_two_holders_hands_over_what_both_did` |
//! | INV-14 | `loom_pool` | `stack_pop_through_a_block_just_pushed` |
//!
//! # Memory
//!
//! Per block, in bytes: state 8, key 16 or 32, index 16, stack link 4, duplicate check 4, rings
//! 16 + 14 + 14; together 92 or 108, and 8 more with `KeepAll` for the publish stamp. Verified
//! tokens cost 4 each and 16. Events cost
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
//! - With `verify_tokens`, blocks behind a beginning that was forgotten and computed anew are not
//!   found any more, though they would be by hash; `orphans` counts the misses. Evictions do not
//!   cause it, since ends go before beginnings, except where a sequence continued another's copy of
//!   its beginning and outlived it; retractions do. Publishes of one content that overlap can give
//!   it two names, with the same effect. Extras beside the tokens are compared by the hash, and in
//!   managers by 64 bits of a second one under a secret: sure enough to be right, but no proof.
//! - Single-block calls cost several uncontended read-modify-writes; batches share them.
