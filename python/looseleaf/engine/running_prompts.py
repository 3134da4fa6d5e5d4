"""Prompts that are being computed over several steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from looseleaf.engine.request import Request

if TYPE_CHECKING:
    from looseleaf._core import KVCacheManager


class RunningPrompts:
    """Running requests with more than one token to compute.

    Args:
        manager: holds their tokens.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._requests: dict[int, Request] = {}
        # By running prompt and waiting request: leading tokens that they have in common.
        self._common: dict[int, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        """Note a prompt; nothing happens if it is here already."""
        self._requests[request.handle] = request

    def discard(self, request: Request) -> None:
        """Forget a prompt that is computed or has lost its row."""
        self._requests.pop(request.handle, None)
        self._common.pop(request.handle, None)

    def compute_for(self, request: Request) -> Request | None:
        """The prompt that goes on to compute blocks which a waiting request needs next, if there is one.

        The waiting request finds what that prompt has computed so far, and would find more later.
        """
        if not self._requests:
            return None
        found = self._manager.match_prefix(request.handle).num_cached_tokens
        size = self._manager.block_size
        if not found:
            return None
        for prompt in self:
            reached = self._manager.num_computed_tokens(prompt.handle) // size * size
            # Who does not find all that the prompt has computed has parted from it already.
            if prompt.cache_salt != request.cache_salt or found < reached:
                continue
            if self._common_tokens(prompt, request) // size * size > found:
                return prompt
        return None

    def _common_tokens(self, prompt: Request, request: Request) -> int:
        """Leading tokens that both have, but never the last one of ``request``, which it computes itself."""
        known = self._common.setdefault(prompt.handle, {})
        if request.handle not in known:
            ours, theirs = self._manager.tokens(prompt.handle), self._manager.tokens(request.handle)[:-1]
            pairs = enumerate(zip(ours, theirs, strict=False))
            shorter = min(len(ours), len(theirs))
            known[request.handle] = next((index for index, (a, b) in pairs if a != b), shorter)
        return known[request.handle]
