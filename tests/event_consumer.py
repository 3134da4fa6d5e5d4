"""Somebody who is told which block hashes a pool has, and knows nothing else about it."""

from __future__ import annotations

from collections.abc import Iterable

from looseleaf import AllBlocksCleared, BlockPool, BlockRemoved, BlockStored

Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventConsumer:
    """A set of hashes per KV-cache group that refuses events which make no sense for a set.

    ``orphans`` are blocks that came before their parent was ever announced.
    """

    def __init__(self) -> None:
        self.resident: set[tuple[bytes, int]] = set()
        self.announced: set[tuple[bytes, int]] = set()
        self.orphans: set[tuple[bytes, int]] = set()
        self.num_resyncs = self.num_resets = 0

    def replay(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.resident.clear()
                self.num_resyncs += event.resync
                self.num_resets += not event.resync
                continue
            block = (event.block_hash, event.group_idx)
            if isinstance(event, BlockRemoved):
                self.resident.remove(block)
                continue
            assert block not in self.resident, f"{event} is resident already"
            parent = event.parent_block_hash
            if parent is not None and (parent, event.group_idx) not in self.announced:
                self.orphans.add(block)
            self.announced.add(block)
            self.resident.add(block)

    def listen_to(self, pool: BlockPool) -> list[Event]:
        """Replay what has happened in the pool; returns it too."""
        events = pool.drain_events()
        self.replay(events)
        return events


def resident_hashes(pool: BlockPool) -> set[bytes]:
    """The hashes that the blocks of a pool without groups hold."""
    keys = (pool.key_of(block) for block in range(pool.num_blocks))
    return {key for key in keys if key is not None}
