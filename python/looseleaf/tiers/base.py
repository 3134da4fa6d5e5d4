"""What a place below the pool promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

BlockKey = bytes | tuple[int, int]
"""What is in a block: the hash of a full block, which any sequence with that prefix can use, or the handle of
a sequence and the block's index in it, for what only that sequence has."""


@dataclass(slots=True, frozen=True)
class CopyEnd:
    """A copy that has ended.

    Attributes:
        job: the number that ``store`` or ``load`` gave.
        succeeded: whether all of it is there. A store that failed has left nothing that can be found.
        seconds: that the copy itself took.
    """

    job: int
    succeeded: bool
    seconds: float


class Tier(ABC):
    """Keeps the contents of blocks under their keys, and writes them back to other blocks.

    ``store`` and ``load`` begin a copy; it has ended when ``poll`` says so, which may be at once. Until then
    the tier reads the blocks of a store and writes those of a load, and the caller sees to it that nobody
    else is given either of them. After ``poll`` or ``cancel`` it touches neither any more.

    A key whose store has not ended is not found. A call that raises has begun nothing. Calls come from one
    thread.
    """

    name: ClassVar[str]
    """In the log."""

    deadline_seconds: float = 60.0
    """After so long a copy is cancelled: whoever was to say that it has ended never will."""

    @abstractmethod
    def store(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int | None:
        """Begin to copy blocks out, all of them or none.

        Args:
            keys: one for each block, none of them stored or being stored.
            block_ids: in the pool.

        Returns:
            the number of the copy; None, and nothing is done, when there is no room for all of them.
        """

    @abstractmethod
    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        """Begin to copy blocks back; they stay stored. Fails, by ``poll``, when a key is not there.

        Args:
            keys: one for each block.
            block_ids: in the pool, held by the caller alone.

        Returns:
            the number of the copy.
        """

    @abstractmethod
    def poll(self, wait_seconds: float = 0.0) -> list[CopyEnd]:
        """The copies that have ended since the last call.

        Args:
            wait_seconds: how long to wait at most if there are none. A tier that does not wait may return at
                once.
        """

    @abstractmethod
    def cancel(self, job: int) -> None:
        """Give a copy up: when this returns, the tier touches neither its blocks nor, of a store, its keys.

        ``poll`` need not mention it again. Nothing happens if it has ended.
        """

    @abstractmethod
    def lookup(self, keys: Sequence[BlockKey]) -> int:
        """How many of ``keys``, from the first on, could be loaded."""

    @abstractmethod
    def drop(self, keys: Sequence[BlockKey]) -> None:
        """Say that nobody has a claim on these any more. Unknown ones are passed over."""

    @property
    def is_empty(self) -> bool:
        """Whether a lookup would find nothing, so that no keys need to be gathered for one."""
        return False
