"""Rows about an engine's step: all that happens between two forward passes but sampling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from comparison.alternation import Comparison
from peers.vllm_scheduler import SAMPLED, VllmServer
from vllm.v1.request import RequestStatus

from looseleaf import GroupSpec, LayerSpec, SamplingParams
from looseleaf._core import StepInfo
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import LLMEngine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.sampler import Sampled
from looseleaf.engine.sampling_params import RequestOutputKind

BLOCK_SIZE = 16
NUM_BLOCKS = 122_880
MAX_MODEL_LEN = 8192
PROMPT_TOKENS = 400
MAX_TOKENS = 7000
VOCABULARY = 49_152


def decode(num_rows: int) -> Comparison:
    """One decode step of ``num_rows`` requests with prompts of 400 tokens: scheduled, and its tokens taken.

    Ours also writes the arrays that the model reads, which vLLM does elsewhere. Nothing streams. Requests
    that come near their limit are replaced by new ones before a sample is timed.
    """
    ours, peer = _our_engine(num_rows), VllmServer(NUM_BLOCKS, BLOCK_SIZE, num_rows, MAX_MODEL_LEN)
    state = {"ours": 0, "peer": 0}

    def ours_side(n: int) -> Callable[[], None]:
        if not state["ours"] or state["ours"] + n > MAX_TOKENS - 500:
            ours.abort_request([str(number) for number in range(num_rows)])
            for number, tokens in enumerate(_prompts(num_rows)):
                ours.add_request(str(number), TokenPrompt(tokens), _params())
            while ours.manager.num_running < num_rows or min(_output_lens(ours)) < 1:
                ours.step()
            state["ours"] = max(_output_lens(ours))
        state["ours"] += n

        def perform() -> None:
            for _ in range(n):
                ours.step()

        return perform

    def peer_side(n: int) -> Callable[[], None]:
        scheduler = peer.scheduler
        if not state["peer"] or state["peer"] + n > MAX_TOKENS - 500:
            scheduler.finish_requests(list(scheduler.requests), RequestStatus.FINISHED_ABORTED)
            for tokens in _prompts(num_rows):
                peer.add(tokens, MAX_TOKENS)
            while peer.step() < num_rows:
                pass
            state["peer"] = max(request.num_output_tokens for request in scheduler.running)
        state["peer"] += n

        def perform() -> None:
            for _ in range(n):
                peer.step()

        return perform

    ours_side(1)()
    peer_side(1)()
    rows = ours.manager.num_running, len(peer.scheduler.running)
    equal = rows == (num_rows, num_rows)
    return Comparison(ours_side, peer_side, () if equal else (f"{rows[0]} rows run, {rows[1]} in vLLM",))


class _FixedTokens:
    """Stands for model and sampler: each row that reached its end gets the same token."""

    def __init__(self, max_num_seqs: int) -> None:
        self._tokens = np.full(max_num_seqs, SAMPLED, np.int32)
        self._broken = np.zeros(max_num_seqs, np.bool_)

    def run(self, step: StepInfo) -> Sampled:
        return Sampled(self._tokens[: step.num_samples], self._broken[: step.num_samples])


class _NoModel:
    vocab_size, max_model_len, eos_token_ids = VOCABULARY, MAX_MODEL_LEN, (2,)

    def forward(self, batch: object) -> torch.Tensor:
        raise AssertionError("tokens come from _FixedTokens")

    def copy_blocks(self, copies: torch.Tensor) -> None:
        raise AssertionError("nothing is shared for writing")


def _our_engine(num_rows: int) -> LLMEngine:
    config = EngineConfig(
        model="none",
        max_num_seqs=num_rows,
        max_num_batched_tokens=MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
    )
    group = GroupSpec([LayerSpec(kv_heads=1, head_size_k=64)], BLOCK_SIZE)
    engine = LLMEngine(config, _NoModel(), _NoModel(), group, NUM_BLOCKS)
    engine._runner = _FixedTokens(num_rows)  # type: ignore[assignment]
    return engine


def _params() -> SamplingParams:
    return SamplingParams(
        temperature=0,
        max_tokens=MAX_TOKENS,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _output_lens(engine: LLMEngine) -> list[int]:
    return [engine.manager.output_len(handle) for handle in engine._by_handle]


def _prompts(num_rows: int) -> list[list[int]]:
    return np.random.default_rng(0).integers(3, VOCABULARY, (num_rows, PROMPT_TOKENS)).tolist()
