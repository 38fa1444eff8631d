"""``no_loop`` in batches, held to the reference, which compares the copies."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logitport.adapters.core import Realizer, compile_specs
from logitport.adapters.core.host.history_rules import HistoryRules, scratch_for
from logitport.adapters.core.parts import Acting
from logitport.adapters.reference import FORCED, combine, edits
from logitport.spec import ForcedTokenSequenceSpec, LogitBiasSpec, NoLoopSpec

from tests.support.strategies import specs

VOCABULARY = 5
RULES = st.lists(specs(VOCABULARY, kinds=[NoLoopSpec]), min_size=1, max_size=2, unique=True)
BESIDE = st.sampled_from([(), (ForcedTokenSequenceSpec((1, 2)),), (LogitBiasSpec({1: 2.0}),)])


def assert_edits(logits: torch.Tensor, together: list, prompt: list[int], out: list[int]) -> None:
    expected = combine(np.zeros(VOCABULARY), edits(together, prompt, out))
    got = logits.numpy()
    if expected.max() >= FORCED:
        assert got.max() >= FORCED / 2
        assert got.argmax() == expected.argmax(), (together, prompt, out)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-5, err_msg=f"{together} {prompt} {out}")


@given(RULES, BESIDE, st.integers(0, 2**31))
@settings(max_examples=300)
def test_any_history(rules: list[NoLoopSpec], beside: tuple, seed: int) -> None:
    """Tokens come, several at once too, and are taken back; the request comes back."""
    choose, realizer = random.Random(seed), Realizer(VOCABULARY)
    together = [*rules, *beside] if seed % 2 else [*beside, *rules]
    program, out = compile_specs(together), list[int]()
    prompt = [choose.randrange(3) for _ in range(choose.randrange(12))]
    realizer.add(1, program, prompt, out)
    for _ in range(24):
        logits = torch.zeros(3, VOCABULARY)
        realizer.apply(logits)
        assert realizer.failed_requests == 0
        assert_edits(logits[1], together, prompt, out)
        assert not logits[::2].any()
        forced = int(logits[1].argmax()) if logits[1].max() >= FORCED / 2 else None
        for _ in range(choose.choice((1, 1, 1, 2))):
            if forced is not None and choose.random() < 0.8:
                out.append(forced)
            elif choose.random() < 0.6 and len(out) > 3:
                out.append(out[-choose.randrange(1, 4)])
            else:
                out.append(choose.randrange(VOCABULARY))
        if choose.random() < 0.1:
            out.pop()
        if choose.random() < 0.1:
            realizer.add(1, program, prompt, out)


@pytest.mark.parametrize("period", [1, 2, 63, 64, 65, 128, 511, 512])
@pytest.mark.parametrize("broken", [False, True])
def test_long_periods(period: int, broken: bool) -> None:
    """Tokens are compared in blocks: a copy differs in its first token, or in none."""
    spec = NoLoopSpec(2, 512)
    text = np.random.default_rng(period).permutation(1000)[:period].astype(np.int32)
    history = np.concatenate([[1001], text, text[:-1], np.zeros(9)]).astype(np.int32)
    history[1] = 1002 if broken and period > 1 else history[1]
    logits, newest = np.zeros(2048, np.float32), history[2 * period - 1]
    (rule,), scratch = compile_specs([spec]).loops, scratch_for(2048)
    rules = HistoryRules([Acting(rule)], history[:0], history[: 2 * period])
    banned = {newest, text[-1]} if not broken or period == 1 else {newest}
    assert {*rules.cells(scratch)[0].tolist()} == banned
    rules.edit(logits, 0, 2048, scratch)
    assert {*np.flatnonzero(logits).tolist()} == banned
    assert not scratch[2].any()


def test_many_periods_of_one_token() -> None:
    """Of a history of one token, each period bans the same."""
    request = compile_specs([NoLoopSpec(4, 256, min_tokens=100)])
    realizer, out = Realizer(8), [3] * 98
    realizer.add(0, request, [3], out)
    for banned in (False, True, True):
        logits = torch.zeros(1, 8)
        realizer.apply(logits)
        assert bool(logits[0, 3] < -1e8) is banned
        out.append(3)
