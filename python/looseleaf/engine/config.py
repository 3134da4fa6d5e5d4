"""What an engine is asked for, and what is settled once the model is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Literal, get_args

from looseleaf.engine.bounds import bounded_integer, shown
from looseleaf.errors import InvalidConfigError

DEFAULT_BLOCK_SIZE = 16
DEFAULT_MAX_NUM_SEQS = 128
# A CPU is busy with a few hundred tokens. More in one step would only keep the rows that write text waiting.
DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
# Requests are admitted with an eye on the next steps anyway. To keep 1 % free as well halves what is computed
# again (benches/policies.py: 14,319 tokens of 3.3 million, not 25,966), but a crowd over one cached prefix
# then takes 40 steps for 36.
DEFAULT_WATERMARK = 0.0

# What the manager's arrays can number.
_MOST_ROWS = 2**16
_MOST_TOKENS = 2**31 - 1

CacheDtype = Literal["float32", "bfloat16", "float16"]
HashAlgorithm = Literal["sha256_cbor", "blake3", "xxh3"]
PolicyName = Literal["fcfs", "priority", "cost"]

DTYPES = ("auto", *get_args(CacheDtype))
SCHEDULING_POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)

# Our name for each hash by the name it is asked for; vLLM's default "sha256" hashes pickled objects, which no
# other program can reproduce, so it selects the hash of the same strength that others can.
HASH_ALGORITHMS: Final[dict[str, HashAlgorithm]] = {
    "sha256": "sha256_cbor",
    "sha256_cbor": "sha256_cbor",
    "blake3": "blake3",
    "xxh3": "xxh3",
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the caller asks for; ``None`` leaves the choice to the engine. The names are vLLM's.

    Attributes:
        model: folder, GGUF file, or the name of a built-in model.
        dtype: what the model computes in; ``auto`` is what its files say.
        block_size: tokens per block; by default 16, or what the attention backend prefers.
        kv_cache_dtype: what the cache stores: what the model computes in, which is also what ``auto`` means.
        kv_cache_memory_bytes: size of the pool in bytes, before anything that is derived.
        gpu_memory_utilization: share of a GPU's memory to use. A pool in main memory ignores it.
        num_gpu_blocks_override: size of the pool in blocks, the null block included; wins over bytes.
        enable_prefix_caching: reuse the blocks of prompts that begin alike.
        prefix_caching_hash_algo: one of :data:`HASH_ALGORITHMS`.
        max_num_seqs: rows of one step at most.
        max_num_batched_tokens: tokens of one step at most; not below ``max_num_seqs``, so that every row
            that writes text gets its token in every step.
        long_prefill_token_threshold: tokens of one prompt in one step at most; 0 sets no limit.
        scheduling_policy: who is admitted first and who gives way when blocks run out, one of
            :data:`SCHEDULING_POLICIES`.
        priority_aging_steps: steps of waiting that make up for one priority; 0 for none.
        watermark: share of the usable blocks that stays free for rows that grow when a request is admitted
            beside others.
        swap_space: GiB of main memory that blocks of preempted requests may be copied to, where that is
            sooner than to compute them again; never more than the pool has. 0 turns it off.
        max_model_len: tokens of prompt and output together at most; by default the model's own limit.
        seed: what requests without a seed of their own derive theirs from.

    Raises:
        InvalidConfigError: a value is not allowed.
    """

    model: str
    dtype: str = "auto"
    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.92
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str = "sha256"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    scheduling_policy: PolicyName = "fcfs"
    priority_aging_steps: int = 0
    watermark: float = DEFAULT_WATERMARK
    swap_space: float = 0.0
    max_model_len: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise InvalidConfigError(f"model must be a non-empty string, found {self.model!r}")
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("kv_cache_dtype", self.kv_cache_dtype, DTYPES)
        _one_of("prefix_caching_hash_algo", self.prefix_caching_hash_algo, tuple(HASH_ALGORITHMS))
        _boolean("enable_prefix_caching", self.enable_prefix_caching)
        for name in ("block_size", "kv_cache_memory_bytes", "max_model_len"):
            _optional_integer(name, getattr(self, name), lowest=1)
        _optional_integer("max_num_seqs", self.max_num_seqs, lowest=1, highest=_MOST_ROWS)
        _optional_integer(
            "max_num_batched_tokens", self.max_num_batched_tokens, lowest=1, highest=_MOST_TOKENS
        )
        _optional_integer("num_gpu_blocks_override", self.num_gpu_blocks_override, lowest=2)
        bounded_integer(
            "long_prefill_token_threshold",
            self.long_prefill_token_threshold,
            InvalidConfigError,
            lowest=0,
        )
        _one_of("scheduling_policy", self.scheduling_policy, SCHEDULING_POLICIES)
        bounded_integer("priority_aging_steps", self.priority_aging_steps, InvalidConfigError, lowest=0)
        _share("watermark", self.watermark, zero=True, one=False)
        _gibibytes("swap_space", self.swap_space)
        bounded_integer("seed", self.seed, InvalidConfigError, lowest=-(2**63), highest=2**64 - 1)
        _share("gpu_memory_utilization", self.gpu_memory_utilization)
        self._step_sizes()

    @property
    def hash_algorithm(self) -> HashAlgorithm:
        """The hash that ``prefix_caching_hash_algo`` selects."""
        return HASH_ALGORITHMS[self.prefix_caching_hash_algo]

    def limits(self, model_max_len: int) -> StepLimits:
        """Settle what the model has a say in.

        Args:
            model_max_len: positions that the model was built for, in tokens.

        Raises:
            InvalidConfigError: ``max_model_len`` is longer than that.
        """
        max_model_len = self.max_model_len or model_max_len
        if max_model_len > model_max_len:
            raise InvalidConfigError(
                f"max_model_len must be at most {model_max_len}, the model's own limit, found {max_model_len}"
            )
        max_num_seqs, max_num_batched_tokens = self._step_sizes()
        return StepLimits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            scheduling_policy=self.scheduling_policy,
            priority_aging_steps=self.priority_aging_steps,
            watermark=self.watermark,
        )

    def _step_sizes(self) -> tuple[int, int]:
        """Rows and tokens of one step; a default gives way to a value that was asked for."""
        seqs, tokens = self.max_num_seqs, self.max_num_batched_tokens
        if seqs is None:
            seqs = min(DEFAULT_MAX_NUM_SEQS, tokens or DEFAULT_MAX_NUM_SEQS)
        if tokens is None:
            tokens = max(DEFAULT_MAX_NUM_BATCHED_TOKENS, seqs)
        if tokens < seqs:
            raise InvalidConfigError(
                f"max_num_batched_tokens must be at least max_num_seqs ({seqs}), so that every row can get a"
                f" token in every step, found {tokens}"
            )
        return seqs, tokens


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits that hold for every step, all settled; fields as in :class:`EngineConfig`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    long_prefill_token_threshold: int = 0
    scheduling_policy: PolicyName = "fcfs"
    priority_aging_steps: int = 0
    watermark: float = DEFAULT_WATERMARK


def _optional_integer(name: str, value: object, *, lowest: int, highest: int | None = None) -> None:
    if value is not None:
        bounded_integer(name, value, InvalidConfigError, lowest=lowest, highest=highest)


def _boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidConfigError(f"{name} must be True or False, found {shown(value)}")


def _share(name: str, value: object, *, zero: bool = False, one: bool = True) -> None:
    # Comparisons with nan are false.
    number: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (0 < number < 1 or (zero and number == 0) or (one and number == 1)):
        lowest, highest = "at least 0" if zero else "above 0", "at most 1" if one else "below 1"
        raise InvalidConfigError(f"{name} must be {lowest} and {highest}, found {shown(value)}")


def _gibibytes(name: str, value: object) -> None:
    number: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not 0 <= number < math.inf:
        raise InvalidConfigError(f"{name} must be a number of GiB, at least 0, found {shown(value)}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidConfigError(f"{name} must be one of {', '.join(allowed)}, found {shown(value)}")
