"""From a configuration to a running engine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, cast

import torch

from looseleaf._core import GroupSpec, LayerSpec
from looseleaf.attention import AttentionBackend, CacheSpec, backend_class
from looseleaf.engine.config import DEFAULT_BLOCK_SIZE, CacheDtype, EngineConfig
from looseleaf.engine.detokenizer import Tokenizer
from looseleaf.engine.engine import LLMEngine
from looseleaf.engine.memory import PoolSize, available_memory_bytes, log_pool_size, size_pool
from looseleaf.engine.swap_space import machine_memory_bytes, num_swap_blocks
from looseleaf.errors import InvalidConfigError
from looseleaf.tiers.host import HostTier

if TYPE_CHECKING:
    from looseleaf.models import LoadedModel

logger = logging.getLogger(__name__)

_BACKEND = "cpu"

_CACHE_DTYPES: Final[dict[torch.dtype, CacheDtype]] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def start_engine(config: EngineConfig) -> LLMEngine:
    """Load a model and build an engine around it.

    Raises:
        ModelLoadError: the model is missing or broken.
        UnsupportedError: the model, or a value asked for, is not something that looseleaf computes.
        InvalidConfigError: a value does not suit the model, or the longest request does not fit in the pool.
    """
    from looseleaf.models import load_model  # not needed by those who bring their own model

    return engine_for(load_model(config.model, config.dtype), config)


def engine_for(model: LoadedModel, config: EngineConfig) -> LLMEngine:
    """Build an engine around a model that is loaded; its former cache, if it had one, is let go.

    Raises:
        UnsupportedError: the attention backend cannot do what is asked for.
        InvalidConfigError: as for :func:`start_engine`.
    """
    limits = config.limits(model.max_model_len)
    backend = backend_class(_BACKEND)
    block_size = _block_size(config, backend)
    dtype = _cache_dtype(config, model)

    def cache_spec(num_blocks: int) -> CacheSpec:
        return CacheSpec(
            num_blocks=num_blocks,
            num_layers=model.num_layers,
            block_size=block_size,
            num_kv_heads=model.num_kv_heads,
            head_size=model.head_size,
            dtype=dtype,
        )

    backend.check(cache_spec(num_blocks=1))
    layer = LayerSpec(model.num_kv_heads, model.head_size, dtype=dtype)
    group = GroupSpec([layer] * model.num_layers, block_size)
    size = size_pool(
        config,
        block_size=block_size,
        bytes_per_block=group.bytes_per_block,
        dtype=dtype,
        max_model_len=limits.max_model_len,
        available_bytes=available_memory_bytes(),
    )
    log_pool_size(size, limits.max_model_len)
    swap_blocks = _swap_blocks(config, size)
    _log_hash_algorithm(config)
    try:
        store = backend(cache_spec(size.num_blocks))
    except MemoryError as error:
        raise InvalidConfigError(
            f"{error}; lower kv_cache_memory_bytes or num_gpu_blocks_override:"
            f" {available_memory_bytes()} bytes of memory are available"
        ) from error
    model.bind(store)
    # Decoding is declared to give one text or several: of one list of tokens it gives one.
    tokenizer = cast("Tokenizer | None", model.tokenizer)
    tier = HostTier(store.cache, swap_blocks) if swap_blocks else None
    engine = LLMEngine(config, model, store, group, size.num_blocks, tokenizer, tier)
    if tier is not None:
        engine.swapping.cost.count_copy(*tier.probe())
    return engine


def _swap_blocks(config: EngineConfig, size: PoolSize) -> int:
    if not config.swap_space:
        return 0
    return num_swap_blocks(config.swap_space, size, machine_bytes=machine_memory_bytes())


def _block_size(config: EngineConfig, backend: type[AttentionBackend]) -> int:
    if config.block_size is not None:
        return config.block_size
    if backend.preferred_block_size != DEFAULT_BLOCK_SIZE:
        logger.info("Setting kv cache block size to %d", backend.preferred_block_size)
    return backend.preferred_block_size


def _cache_dtype(config: EngineConfig, model: LoadedModel) -> CacheDtype:
    """The model's dtype, since attention takes keys and values in the format of its queries."""
    dtype = _CACHE_DTYPES[model.dtype]
    if config.kv_cache_dtype not in ("auto", dtype):
        raise InvalidConfigError(
            f"kv_cache_dtype must be auto or {dtype}, what the model computes in, found"
            f" {config.kv_cache_dtype}; pass dtype={config.kv_cache_dtype!r} to compute in that"
        )
    return dtype


def _log_hash_algorithm(config: EngineConfig) -> None:
    if not config.enable_prefix_caching:
        return
    if config.prefix_caching_hash_algo != config.hash_algorithm:
        logger.info(
            "prefix_caching_hash_algo %s is computed as %s",
            config.prefix_caching_hash_algo,
            config.hash_algorithm,
        )
    if config.hash_algorithm == "xxh3":
        logger.warning("xxh3 can be made to collide: use it only where all who send prompts trust each other")
