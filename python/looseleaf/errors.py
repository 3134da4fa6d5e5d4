"""Every exception the library raises, one class per condition.

Each class also inherits the built-in exception that generic callers would catch. Errors that carry numbers
expose them as attributes of the names in their ``__init__``.
"""

from __future__ import annotations


class LooseleafError(Exception):
    """Base of every error raised by looseleaf."""


# --- Block pool ---------------------------------------------------------------------------------------------


class PoolError(LooseleafError):
    """A block pool refused an operation; the pool is unchanged."""


class OutOfBlocksError(PoolError, MemoryError):
    """The pool cannot supply the blocks asked for; nothing was taken.

    Attributes:
        asked: blocks asked for.
        free: blocks that could be handed out, cached ones included.
        cached: how many of ``free`` still hold a reusable prefix.
        pinned: blocks held by sequences.
        total: usable blocks of the pool (the null block excluded).
    """

    def __init__(
        self, message: str, asked: int = 0, free: int = 0, cached: int = 0, pinned: int = 0, total: int = 0
    ) -> None:
        super().__init__(message)
        self.asked = asked
        self.free = free
        self.cached = cached
        self.pinned = pinned
        self.total = total


class UnknownBlockError(PoolError, IndexError):
    """A block id lies outside the pool."""


class NullBlockError(PoolError, ValueError):
    """The null block was passed where a real block is needed."""


class DoubleReleaseError(PoolError, ValueError):
    """A reference was released that is not held: the block is already free."""


class BlockNotHeldError(PoolError, ValueError):
    """The operation needs a block that somebody holds, and this one is free."""


class DuplicateBlockError(PoolError, ValueError):
    """The same block id appears twice in one call."""


class ForeignBlocksError(PoolError, ValueError):
    """A ``BlockList`` was passed where its blocks have no business: another pool, or a release of raw ids."""


class AlreadyPublishedError(PoolError, ValueError):
    """The block already carries a hash."""


class PublishInProgressError(PoolError, RuntimeError):
    """The last reference cannot go while another thread writes the block's hash."""


class RefCountOverflowError(PoolError, OverflowError):
    """A block has as many holders as its counter can count."""


class BlocksInUseError(PoolError, RuntimeError):
    """The prefix cache cannot be reset while sequences hold blocks."""


class InvariantError(LooseleafError, AssertionError):
    """``check_invariants()`` found a broken conservation law: a bug in looseleaf."""


# --- Sequences ----------------------------------------------------------------------------------------------


class ManagerError(LooseleafError):
    """A KV-cache manager refused an operation; the sequence is unchanged."""


class StaleHandleError(ManagerError, KeyError):
    """The handle names no open sequence: never opened here, or already closed."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class NeverFitsError(ManagerError, ValueError):
    """The sequence needs more than the whole pool, or more than ``max_model_len``."""


class NoFreeRowError(ManagerError, RuntimeError):
    """All ``max_num_seqs`` row slots are taken."""


class SequenceStateError(ManagerError, RuntimeError):
    """The call is not legal in the state the sequence or the step is in."""


class InvalidTokensError(ManagerError, ValueError):
    """Sampled, accepted or draft tokens do not fit the step they are given for."""


class ConcurrentUseError(ManagerError, RuntimeError):
    """Something that has one user at a time and never waits was entered by a second one.

    For a manager and for a pool's events that is a second thread; for an ``LLM``, also a call from within one
    of its own steps.
    """


class InvalidBufferError(LooseleafError, ValueError):
    """A buffer has the wrong dtype, shape, stride, or is read-only."""


class InvalidConfigError(LooseleafError, ValueError):
    """A configuration value is not allowed; the message names it and what is."""


class UseAfterForkError(LooseleafError, RuntimeError):
    """An object was used in a forked child of the process that created it."""


# --- Engine -------------------------------------------------------------------------------------------------


class RequestError(LooseleafError, ValueError):
    """A request is invalid and was refused before it touched the pool."""


class UnsupportedError(LooseleafError, ValueError):
    """Something valid elsewhere that looseleaf does not do; the message says what it does."""


class UnsupportedModelError(UnsupportedError):
    """The model needs something the paged cache would compute wrongly."""


class ModelLoadError(LooseleafError, OSError):
    """A model folder or file is missing, incomplete or unreadable."""


class EngineError(LooseleafError, RuntimeError):
    """The engine cannot go on; the message says why."""


class MissingExtraError(LooseleafError, ImportError):
    """An optional dependency is not installed; the message is the command that installs it."""
