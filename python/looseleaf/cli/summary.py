"""The figures of a run, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looseleaf.engine.llm import LLM


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
        num_shared_blocks: entries of block tables that pointed to a block which somebody else had filled.
        num_usable_blocks: blocks of the pool that prompts can hold.
        max_model_len: tokens that a contiguous strip per prompt would have to have room for.
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
    num_shared_blocks: int
    num_usable_blocks: int
    max_model_len: int
    max_num_seqs: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens written per second of the run."""
        return self.num_generation_tokens / self.seconds if self.seconds else 0.0

    @property
    def strip_tokens(self) -> int:
        """Tokens that strips of the longest possible length would have reserved, prompts side by side."""
        return min(self.num_prompts, self.max_num_seqs) * self.max_model_len

    def as_dict(self) -> dict[str, Any]:
        """All fields, and what follows from them."""
        return asdict(self) | {"tokens_per_second": self.tokens_per_second, "strip_tokens": self.strip_tokens}

    def lines(self) -> list[str]:
        """The same for people."""
        used = self.peak_blocks_in_use
        lines = [
            f"written   {self.num_generation_tokens:,} tokens for {self.num_prompts} prompts"
            f" in {self.seconds:.1f} s: {self.tokens_per_second:.1f} tokens/s",
            f"prompts   {self.num_prompt_tokens:,} tokens;"
            f" {self.num_cached_tokens:,} of them were not computed again",
            f"blocks    {used:,} of {self.num_usable_blocks:,} used at the peak, {self.block_size} tokens in each;"
            f" {self.num_shared_blocks:,} times one was shared",
            f"strips    {self.strip_tokens:,} tokens would have been reserved, {self.max_model_len:,} for each;"
            f" the blocks had room for {used * self.block_size:,}",
        ]
        if self.num_preemptions:
            lines.append(
                f"preempted {self.num_preemptions:,} times; {self.num_recomputed_tokens:,} tokens were"
                " computed again"
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
    block_size = engine.manager.block_size
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
        # A hit is always a whole block.
        num_shared_blocks=stats.num_cached_tokens // block_size,
        num_usable_blocks=engine.pool.num_usable,
        max_model_len=engine.limits.max_model_len,
        max_num_seqs=engine.limits.max_num_seqs,
    )
