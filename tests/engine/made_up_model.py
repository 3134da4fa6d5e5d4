"""A model without floating-point luck: its logits are a hash of every (token, position) that it finds by
following the block tables into a memory of integers. One wrong slot, table entry, length or copy changes
every later token.

The oracle beside it computes the same text from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from engine.slow_tier import AlwaysCopy
from looseleaf import GroupSpec, LayerSpec
from looseleaf.engine.batch import StepBatch
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.detokenizer import Tokenizer
from looseleaf.engine.engine import LLMEngine
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.tiers.base import Tier

VOCAB_SIZE = 61
EOS_TOKEN_ID = 60
_EMPTY = -1
POSITIONS = 1 << 20

Hashes = npt.NDArray[np.uint64]


def _mix(values: npt.ArrayLike) -> Hashes:
    """A bijection on 64-bit words whose outputs look random (the finaliser of MurmurHash3)."""
    words = np.asarray(values).astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        words = (words ^ (words >> np.uint64(33))) * np.uint64(factor)
    return words ^ (words >> np.uint64(33))


def _logits(context: np.uint64) -> npt.NDArray[np.float32]:
    """float32 [VOCAB_SIZE] of a context's hash, all different in practice."""
    words = _mix(context + np.arange(1, VOCAB_SIZE + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return ((words >> np.uint64(40)).astype(np.float64) * (8.0 / 2**24)).astype(np.float32)


def logits_after(token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """The logits that follow a text, from the text alone."""
    entries = np.asarray(token_ids, np.int64) * POSITIONS + np.arange(len(token_ids))
    return _logits(_mix(entries).sum(dtype=np.uint64))


def expected_output(
    prompt: Sequence[int], params: SamplingParams, *, max_model_len: int
) -> tuple[list[int], str, int | None]:
    """What a greedy request must write, its finish reason and its stop reason."""
    token_ids = list(prompt)
    end_ids = [EOS_TOKEN_ID, *params.stop_ids]
    while True:
        logits = logits_after(token_ids)
        if len(token_ids) - len(prompt) < params.min_tokens:
            logits[end_ids] = -np.inf
        token = int(logits.argmax())
        token_ids.append(token)
        output = token_ids[len(prompt) :]
        if len(output) >= params.min_tokens:
            if token == EOS_TOKEN_ID and not params.ignore_eos:
                return output, "stop", None
            if token in params.stop_ids:
                return output, "stop", token
        if len(output) == params.max_tokens or len(token_ids) == max_model_len:
            return output, "length", None


class IntegerMemory:
    """The contents of the blocks: one integer per slot, saying which token stands there at which position."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.slots = np.full((num_blocks, block_size), _EMPTY, np.int64)

    def copy_blocks(self, copies: torch.Tensor) -> None:
        sources, destinations = copies.numpy().T
        self.slots[destinations] = self.slots[sources]


class MadeUpModel:
    """See the module; raises whatever ``errors`` holds for the number of a forward pass."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = (EOS_TOKEN_ID,)

    def __init__(self, memory: IntegerMemory, max_model_len: int = 1 << 16) -> None:
        self.max_model_len = max_model_len
        self.memory = memory
        self.num_passes = 0
        self.errors: dict[int, BaseException] = {}
        # Tokens that each row computed, by row slot, for each pass.
        self.rows: list[list[int]] = []

    def forward(self, batch: StepBatch) -> torch.Tensor:
        self.num_passes += 1
        self._write(batch)
        if (error := self.errors.get(self.num_passes)) is not None:
            raise error
        starts = batch.cu_seqlens_q.numpy()
        self.rows.append(np.diff(starts).tolist())
        rows = np.searchsorted(starts, batch.logits_indices.numpy(), side="right") - 1
        contexts = [self._read(batch, row) for row in rows]
        logits = [_logits(context) for context in contexts]
        return torch.from_numpy(np.stack(logits) if logits else np.zeros((0, VOCAB_SIZE), np.float32))

    def _write(self, batch: StepBatch) -> None:
        starts = batch.cu_seqlens_q.numpy()
        block_size = self.memory.slots.shape[1]
        assert starts[-1] == len(batch.token_ids)
        for row, (start, end) in enumerate(pairwise(starts)):
            positions = batch.positions[start:end].numpy()
            length = int(batch.seq_lens[row])
            if start == end:
                assert length == 0, "a row without tokens must have no length"
                continue
            assert positions.tolist() == list(range(length - (end - start), length))
            blocks = batch.block_tables[row].numpy()[positions // block_size]
            slots = batch.slot_mapping[start:end].numpy()
            assert (slots == blocks.astype(np.int64) * block_size + positions % block_size).all()
            assert (blocks > 0).all(), "the null block must never be written"
            self.memory.slots.flat[slots] = batch.token_ids[start:end].numpy() * POSITIONS + positions

    def _read(self, batch: StepBatch, row: int) -> np.uint64:
        positions = np.arange(int(batch.seq_lens[row]))
        block_size = self.memory.slots.shape[1]
        blocks = batch.block_tables[row].numpy()[positions // block_size]
        entries = self.memory.slots[blocks, positions % block_size]
        assert (entries % POSITIONS == positions).all(), f"row {row} reads slots that hold other positions"
        return _mix(entries).sum(dtype=np.uint64)


def made_up_engine(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 64,
    tokenizer: Tokenizer | None = None,
    tier: Callable[[torch.Tensor], Tier] | None = None,
    clock: Callable[[], float] | None = None,
    **options: object,
) -> tuple[LLMEngine, MadeUpModel]:
    """An engine over ``num_blocks`` blocks with the null block; ``options`` are fields of EngineConfig.

    With a ``tier``, made from the tensor of all blocks, whatever a preempted request loses is copied to it.
    """
    memory = IntegerMemory(num_blocks, block_size)
    model = MadeUpModel(memory)
    config = EngineConfig(model="made up", max_model_len=max_model_len, **options)  # type: ignore[arg-type]
    layer = LayerSpec(kv_heads=1, head_size_k=8, dtype="float32")
    group = GroupSpec([layer], block_size=block_size)
    below = tier(torch.from_numpy(memory.slots)) if tier else None
    engine = LLMEngine(config, model, memory, group, num_blocks, tokenizer, below, clock)
    engine.swapping.cost = AlwaysCopy()
    return engine, model


def run_to_end(engine: LLMEngine) -> dict[str, RequestOutput]:
    """The last output of every request, with the books checked after every step."""
    outputs = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id] = output
        engine.manager.check_invariants()
    assert_nothing_is_held(engine)
    return outputs


def assert_nothing_is_held(engine: LLMEngine) -> None:
    for _ in range(1000):
        if not engine.swapping.busy:
            break
        engine.step()
    engine.manager.check_invariants()
    engine.pool.check_invariants()
    assert engine.manager.num_open == 0
    assert not engine.swapping._claims
    assert engine.pool.num_free == engine.pool.num_usable
