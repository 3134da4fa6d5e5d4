"""The figures of a run, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looseleaf.engine.llm import LLM


_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did and what it took.

    Attributes:
        num_prompts: prompts that ran.
        seconds: from the first step to the last, loading excluded.
        num_generation_tokens: tokens written.
        num_prompt_tokens: tokens of all prompts.
        num_cached_tokens: how many of those were found in the prefix cache and not computed again.
        num_recomputed_tokens: tokens computed again because a preemption had taken their blocks.
        num_preemptions: times that a prompt lost its blocks.
        block_size: tokens per block.
        peak_blocks_in_use: most blocks held at once.
        num_usable_blocks: blocks of the pool that prompts can hold.
        num_shared_blocks: times that a prompt took a block which another one had filled.
        bytes_per_token: of keys and values, over all layers.
        max_model_len: tokens that a contiguous strip for one prompt must have room for.
        max_num_seqs: prompts that run at the same time at most.
    """

    num_prompts: int
    seconds: float
    num_generation_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_recomputed_tokens: int
    num_preemptions: int
    block_size: int
    peak_blocks_in_use: int
    num_usable_blocks: int
    num_shared_blocks: int
    bytes_per_token: int
    max_model_len: int
    max_num_seqs: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens written per second of the run."""
        return self.num_generation_tokens / self.seconds if self.seconds else 0.0

    @property
    def peak_bytes(self) -> int:
        """Bytes of the blocks held at the peak."""
        return self.peak_blocks_in_use * self.block_size * self.bytes_per_token

    @property
    def num_strips(self) -> int:
        """Contiguous strips that would have been reserved side by side."""
        return min(self.num_prompts, self.max_num_seqs)

    @property
    def strip_bytes(self) -> int:
        """Bytes of those strips, each as long as a prompt and its output may become."""
        return self.num_strips * self.max_model_len * self.bytes_per_token

    def as_dict(self) -> dict[str, Any]:
        """All fields, and what follows from them."""
        return asdict(self) | {
            "tokens_per_second": self.tokens_per_second,
            "peak_bytes": self.peak_bytes,
            "strip_bytes": self.strip_bytes,
        }

    def lines(self) -> list[str]:
        """The same for people."""
        lines = [
            f"written   {self.num_generation_tokens:,} tokens for {self.num_prompts} prompts"
            f" in {self.seconds:.1f} s: {self.tokens_per_second:.1f} tokens/s",
            f"prompts   {self.num_prompt_tokens:,} tokens;"
            f" {self.num_cached_tokens:,} of them came from the prefix cache and were not computed again",
            f"blocks    {self.peak_blocks_in_use:,} of {self.num_usable_blocks:,} in use at the peak"
            f" ({self.peak_bytes / _MIB:,.1f} MiB), {self.block_size} tokens each;"
            f" shared {self.num_shared_blocks:,} times",
            f"strips    {self.num_strips} contiguous ones of {self.max_model_len:,} tokens"
            f" would have reserved {self.strip_bytes / _MIB:,.1f} MiB",
        ]
        if self.num_preemptions:
            lines.append(
                f"preempted {self.num_preemptions:,} times;"
                f" {self.num_recomputed_tokens:,} tokens were computed again"
            )
        return lines


def summarize(llm: LLM, num_prompts: int, seconds: float) -> Summary:
    """The figures of everything that ``llm`` has done.

    Args:
        llm: a model that has run ``num_prompts`` prompts and nothing else.
        num_prompts: how many.
        seconds: what they took.
    """
    engine = llm.llm_engine
    stats = engine.stats
    block_size = engine.group.block_size
    return Summary(
        num_prompts=num_prompts,
        seconds=seconds,
        num_generation_tokens=stats.num_generation_tokens,
        num_prompt_tokens=stats.num_prompt_tokens + stats.num_cached_tokens,
        num_cached_tokens=stats.num_cached_tokens,
        num_recomputed_tokens=stats.num_recomputed_tokens,
        num_preemptions=stats.num_preemptions,
        block_size=block_size,
        peak_blocks_in_use=stats.peak_blocks_in_use,
        num_usable_blocks=engine.pool.num_usable,
        num_shared_blocks=stats.num_cached_tokens // block_size,  # a hit is always a whole block
        bytes_per_token=engine.group.bytes_per_token,
        max_model_len=engine.limits.max_model_len,
        max_num_seqs=engine.limits.max_num_seqs,
    )
