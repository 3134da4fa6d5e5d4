"""vLLM's own scheduler over a model that exists as a configuration only, set up as its engine sets it up."""

from __future__ import annotations

import functools
import tempfile

import torch
from transformers import LlamaConfig
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from peers.vllm_core import request_hasher

SAMPLED = 5


class VllmServer:
    """Schedules requests and takes the token ``SAMPLED`` for each of them in every step.

    Args:
        num_blocks: blocks of the pool, vLLM's null block included.
        block_size: tokens per block.
        max_num_seqs: requests that run at once.
        max_model_len: most tokens of a request, and of a step.
    """

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_model_len: int) -> None:
        config = _config(block_size, max_num_seqs, max_model_len)
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            log_stats=False,
        )
        self._hasher = request_hasher(block_size)
        self._added = 0

    def add(self, token_ids: list[int], max_tokens: int) -> None:
        """Queue a request."""
        self._added += 1
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        name = str(self._added)
        request = Request(name, token_ids, params, pooling_params=None, block_hasher=self._hasher)
        self.scheduler.add_request(request)

    def step(self) -> int:
        """Schedule a step and take its tokens; returns how many requests wrote one."""
        scheduler = self.scheduler
        output = scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        requests = [scheduler.requests[name] for name in names]
        # A prompt that is not computed to its end gets no token.
        sampled = [[SAMPLED] if r.num_computed_tokens >= r.num_tokens else [] for r in requests]
        index = {name: place for place, name in enumerate(names)}
        scheduler.update_from_output(
            output, ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=sampled)
        )
        return sum(map(len, sampled))


@functools.cache
def _config(block_size: int, max_num_seqs: int, max_model_len: int) -> VllmConfig:
    with tempfile.TemporaryDirectory() as folder:
        model = LlamaConfig(
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            max_position_embeddings=max_model_len,
            architectures=["LlamaForCausalLM"],
        )
        model.save_pretrained(folder)
        return EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            block_size=block_size,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_model_len,
            enforce_eager=True,
            async_scheduling=False,
        ).create_engine_config()
