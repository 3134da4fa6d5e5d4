"""The sampler against a row-at-a-time computation in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from looseleaf import SamplingParams
from looseleaf.engine.sampler import Sampled, Sampler


def expected_distribution(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities float64 [vocab] in vLLM's order of filters: temperature, min-p, top-k, top-p."""
    scaled = logits.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    weights[weights < params.min_p] = 0
    if 0 < params.top_k < len(weights):
        weights[weights < np.sort(weights)[-params.top_k]] = 0
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    if params.top_p < 1:
        weights[order[before >= params.top_p]] = 0
    return weights / weights.sum()


def draw(logits: torch.Tensor, params: list[SamplingParams], *, lengths: list[int] | None = None) -> Sampled:
    """One step of a fresh sampler with prompts of one token."""
    count = len(params)
    sampler = Sampler(count, logits.shape[1])
    for row, row_params in enumerate(params):
        sampler.set_row(row, row_params, seed=row_params.seed or 0, prompt_len=1, end_ids=(0,))
    return sampler.sample(
        logits.clone(), np.arange(count, dtype=np.int32), np.array(lengths or [1] * count, np.int32)
    )


def random_logits(rows: int, vocab: int, seed: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.5),
    SamplingParams(top_k=4),
    SamplingParams(top_p=0.7),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=2.0, min_p=0.02, top_k=12, top_p=0.9),
]


@pytest.mark.parametrize("params", FILTERS, ids=["none", "temperature", "top-k", "top-p", "min-p", "all"])
def test_tokens_are_drawn_with_the_probabilities_that_the_filters_leave(params):
    vocab, rows, steps = 40, 400, 50
    draws = rows * steps
    logits = random_logits(1, vocab, seed=5, spread=1.5)
    wanted = expected_distribution(logits[0].numpy(), params)
    sampler = Sampler(rows, vocab)
    for row in range(rows):
        sampler.set_row(row, params, seed=row, prompt_len=0, end_ids=())
    counts = np.zeros(vocab)
    for position in range(steps):
        tokens = sampler.sample(
            logits.repeat(rows, 1), np.arange(rows, dtype=np.int32), np.full(rows, position, np.int32)
        ).token_ids
        counts += np.bincount(tokens, minlength=vocab)
    assert not counts[wanted == 0].any(), "a token was drawn that the filters had dropped"
    usual = wanted * draws > 10
    chi_square = ((counts - wanted * draws)[usual] ** 2 / (wanted * draws)[usual]).sum()
    # Mean and standard deviation of chi-square with n degrees of freedom are n and sqrt(2 n).
    freedom = usual.sum() - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


@given(
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.01, 1.0, 10.0]),
    vocab=st.sampled_from([2, 50, 3000]),
    temperature=st.sampled_from([1e-4, 0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 7, 1024, 2000]),
    top_p=st.sampled_from([1e-6, 0.3, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_only_tokens_that_the_filters_leave_are_drawn(seed, spread, vocab, temperature, top_k, top_p, min_p):
    logits = random_logits(8, vocab, seed, spread)
    params = [
        SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=row)
        for row in range(8)
    ]
    tokens = draw(logits, params).token_ids
    for row in range(8):
        allowed = expected_distribution(logits[row].numpy(), params[row])
        # A token within rounding of a filter's edge may fall on either side.
        loose = SamplingParams(
            temperature=temperature, top_k=top_k, top_p=min(1.0, top_p * 1.001 + 1e-6), min_p=min_p * 0.999
        )
        assert allowed[tokens[row]] > 0 or expected_distribution(logits[row].numpy(), loose)[tokens[row]] > 0


def test_a_row_gets_the_same_token_alone_and_in_any_company():
    vocab = 3000
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, seed=17 * k + 1)
        for t in (0.0, 0.7, 1.3)
        for k in (0, 5, 1500)
        for p in (0.5, 0.9999, 1.0)
        for m in (0.0, 0.01)
    ]
    logits = random_logits(len(params), vocab, seed=3)
    lengths = list(range(1, len(params) + 1))
    together = draw(logits, params, lengths=lengths).token_ids
    backwards = draw(logits.flip(0), params[::-1], lengths=lengths[::-1]).token_ids[::-1]
    alone = [
        draw(logits[i : i + 1], params[i : i + 1], lengths=lengths[i : i + 1]).token_ids[0]
        for i in range(len(params))
    ]
    assert together.tolist() == backwards.tolist() == alone


def test_greedy_takes_the_largest_logit_and_the_lowest_id_of_equals():
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    assert draw(logits, [SamplingParams(temperature=0)] * 2).token_ids.tolist() == [1, 0]


def test_the_same_seed_draws_another_number_at_another_position():
    logits = torch.zeros(1, 1000)
    tokens = {draw(logits, [SamplingParams(seed=5)], lengths=[1 + i]).token_ids[0] for i in range(20)}
    assert len(tokens) > 15


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_end_tokens_cannot_be_chosen_before_min_tokens(temperature):
    logits = torch.tensor([[9.0, 1.0, 8.5]]).repeat(3, 1)
    params = SamplingParams(temperature=temperature, min_tokens=2, top_k=1)
    sampler = Sampler(4, 3)
    for row in (0, 2, 3):
        sampler.set_row(row, params, seed=1, prompt_len=5, end_ids=(0, 2))
    rows, lengths = np.array([3, 0, 2], np.int32), np.array([5, 6, 7], np.int32)
    assert sampler.sample(logits.clone(), rows, lengths).token_ids.tolist() == [1, 1, 0]
    # The slot goes to a request that may end at once.
    sampler.set_row(3, SamplingParams(temperature=0), seed=1, prompt_len=5, end_ids=(0, 2))
    assert sampler.sample(logits.clone(), rows, lengths).token_ids.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.5),
        SamplingParams(top_p=0.5, top_k=2, min_p=0.1),
    ],
    ids=["greedy", "random", "top-k", "top-p", "all"],
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_numbers_are_reported_and_harm_no_other_row(params, value):
    logits = random_logits(3, 2000, seed=9)
    clean = draw(logits, [params] * 3).token_ids
    logits[1] = value
    sampled = draw(logits, [params] * 3)
    assert sampled.broken.tolist() == [False, True, False]
    assert sampled.token_ids[[0, 2]].tolist() == clean[[0, 2]].tolist()


def test_a_temperature_of_almost_nothing_takes_the_likeliest_token():
    logits = random_logits(16, 5000, seed=2)
    tokens = draw(logits, [SamplingParams(temperature=2e-5, seed=row) for row in range(16)]).token_ids
    assert tokens.tolist() == logits.argmax(dim=-1).tolist()
