"""The cases: every kind against its peers, and its growth with batch, vocabulary and lists."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from logitport.spec import LogitsProcessorSpec

from . import ours, peers, timing
from . import workload as w
from .timing import Begin, Logits, StepTimes
from .workload import Workload

Maker = Callable[[random.Random, int], LogitsProcessorSpec]

OURS = "logitport"


@dataclass(frozen=True, slots=True)
class Case:
    """One batch and the contenders that edit its logits.

    Attributes:
        group: heading of the case's table.
        name: the kind of the specs.
        rows: the number of requests in the batch.
        vocab_size: the number of columns of the logits.
        active: the number of requests with a spec.
        contenders: the contenders by name, logitport first.
        make: a function that makes the batch.
    """

    group: str
    name: str
    rows: int
    vocab_size: int
    active: int
    contenders: Mapping[str, Begin]
    make: Callable[[], Workload]

    def run(self, seconds: float, device: str = "cpu") -> dict[str, StepTimes]:
        """Time all contenders."""
        logits = Logits(self.rows, self.vocab_size, device)
        return timing.time_steps(self.contenders, self.make(), logits, seconds=seconds)


def case(
    group: str,
    name: str,
    makers: Maker | Sequence[Maker],
    others: Mapping[str, Begin],
    *,
    rows: int = 64,
    vocab_size: int = 151_936,
    active: int | None = None,
) -> Case:
    """Make a case of logitport against others."""
    makers = [makers] if callable(makers) else makers
    return Case(
        group,
        name,
        rows,
        vocab_size,
        rows if active is None else active,
        {OURS: ours.begin, **others},
        partial(w.workload, makers, rows, vocab_size, active=active),
    )


def same(make: Maker) -> Maker:
    """Make one spec for all requests: some peers take one set of parameters for a batch."""
    made: list[LogitsProcessorSpec] = []

    def once(rng: random.Random, size: int) -> LogitsProcessorSpec:
        if not made:
            made.append(make(rng, size))
        return made[0]

    return once


CAREFUL = {
    "callables, masking": peers.careful_mask,
    "callables, touching": peers.careful_touch,
}
"""Careful callables for one request each, through vLLM's adapter."""

DYNAMO = {"Dynamo, vLLM's adapter": peers.dynamo}
ALLOW = {"vLLM": peers.vllm_allowed, "xgrammar": peers.xgrammar_allowed}
BANNED = {"SGLang": peers.sglang_disallowed, "transformers": peers.transformers_suppress}
BIAS = {"vLLM": peers.vllm_logit_bias, "transformers": peers.transformers_bias}

KINDS: Mapping[str, tuple[Maker, Mapping[str, Begin]]] = {
    "forced_sequence": (w.forced_sequence(1000), DYNAMO),
    "forced_sequence, 1 token": (w.forced_sequence(1), {"vLLM's example": peers.one_token}),
    "allowed_tokens": (
        w.allowed_tokens(100),
        ALLOW | {"transformers": peers.transformers_allowed},
    ),
    "banned_tokens": (w.banned_tokens(100), BANNED),
    "banned_sequences": (
        w.banned_sequences(20),
        {"vLLM": peers.vllm_bad_words, "transformers": peers.transformers_bad_words},
    ),
    "logit_bias": (w.logit_bias(100), BIAS),
    "min_tokens": (
        w.min_tokens,
        {"vLLM": peers.vllm_min_tokens, "transformers": peers.transformers_min_tokens},
    ),
    "forced_end": (w.forced_end, {"logits-processor-zoo": peers.zoo_last_phrase}),
    "thinking_budget": (
        w.thinking_budget,
        {"vLLM": peers.vllm_thinking_budget, "SGLang": peers.sglang_thinking_budget},
    ),
    "choice": (w.choice(20), {"logits-processor-zoo": peers.zoo_choice}),
    "trigger": (w.trigger, {"logits-processor-zoo": peers.zoo_trigger}),
    "no_repeat_ngram": (
        w.no_repeat_ngram,
        {"SGLang": peers.sglang_ngram, "transformers": peers.transformers_ngram},
    ),
    "prompt_bias": (w.prompt_bias, {"logits-processor-zoo": peers.zoo_cite}),
}


def cases(*, quick: bool) -> Iterator[Case]:
    """Yield all cases; ``quick`` leaves out the large cases."""
    rows = 4 if quick else 64
    for name, (make, others) in KINDS.items():
        yield case("Every kind", name, same(make), others, rows=rows)
    forced = w.forced_sequence(1000)
    for batch in (1, 8) if quick else (1, 8, 64, 256, 1024):
        yield case("Batch", "forced_sequence", forced, DYNAMO, rows=batch)
    rows = 8 if quick else 256
    for vocab_size in (32_000,) if quick else (32_000, 151_936, 262_144):
        yield case(
            "Vocabulary", "forced_sequence", forced, DYNAMO, rows=rows, vocab_size=vocab_size
        )
    for active in (0, 1, rows // 4, rows):
        yield case("Active rows", "forced_sequence", forced, DYNAMO, rows=rows, active=active)
    rows = 4 if quick else 64
    for n in (1, 8_000) if quick else (1, 100, 8_000):
        listed = f"{n:,} tokens"
        yield case(
            "Lists", f"allowed_tokens, {listed}", same(w.allowed_tokens(n)), ALLOW, rows=rows
        )
        yield case("Lists", f"banned_tokens, {listed}", same(w.banned_tokens(n)), BANNED, rows=rows)
        # vLLM refuses long biases over HTTP; transformers takes seconds to prepare them.
        bias = {"vLLM": peers.vllm_logit_bias}
        yield case("Lists", f"logit_bias, {listed}", same(w.logit_bias(n)), bias, rows=rows)
