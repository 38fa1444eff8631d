"""What the cases of the conformance suite share: requests, capabilities and helpers."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

import pytest

from ...spec import LogitsProcessorSpec, Stage
from ...spec.base import kind_of
from ..backend import Backend
from ..reference import first_wrong
from ..reference.kinds import KINDS
from ..reference.kinds.base import FreeRun


@dataclass(frozen=True)
class Request:
    """A request of the suite to an engine.

    Attributes:
        prompt_ids: the prompt's token ids.
        specs: the specs that act on the request.
        max_tokens: the limit on the output, handed-over tokens included.
        output_ids: output tokens that another worker has already chosen.
        continued: as in ``Payload``: how many tokens at the prompt's end count as output.
        stage: the stage of the worker that receives the request. The specs are sent in any stage.
        attached_for: the ``stage`` that ``attach`` is given, which may be another.
        generation_only: an argument of ``attach``, too.
        shows_scores: whether the suite reads the scores.
        dtype: the type of the engine's logits, as torch names it. Only one case uses another of
            the suite's ``dtypes`` than float32. An engine with a single type ignores this field.
    """

    prompt_ids: tuple[int, ...]
    specs: tuple[LogitsProcessorSpec, ...] = ()
    max_tokens: int = 16
    output_ids: tuple[int, ...] = ()
    continued: int = 0
    stage: Stage = Stage.AGGREGATED
    attached_for: Stage = Stage.AGGREGATED
    generation_only: bool = True
    shows_scores: bool = False
    dtype: str = "float32"


@dataclass(frozen=True)
class Output:
    """An engine's output for a request.

    Attributes:
        token_ids: the output's token ids, the handed-over tokens first; EOS may be the last. Any
            sequence or array becomes a list.
        scores: ``[vocabulary]``, the edited logits of the first token that was chosen; ``None``
            if the engine does not show them. They may be normalized (log-probabilities), and may
            have any numpy type.
    """

    token_ids: list[int]
    scores: Any = None

    def __post_init__(self) -> None:
        # Engines have tuples, and arrays of numpy and torch, which are unequal to lists.
        object.__setattr__(self, "token_ids", [int(token_id) for token_id in self.token_ids])


Generate = Callable[[Sequence[Request]], list[Output]]
Free = tuple[Request, list[int]]
"""A request without specs, and its output."""

DTYPES = ("float32", "float16", "bfloat16")
"""The types of engines' logits."""

CAPABILITIES = {
    "backend": "the adapter's `Backend`",
    "vocab_size": "the number of the engine's tokens, at least 64",
    "eos_token_id": "the token that ends the engine's outputs, below `vocab_size`",
    "slots": "the number of requests that the engine runs at once, at least 1",
    "long_prompt": "the length of a prompt that the engine prefills in several chunks, at least 7",
    "resumes": "whether the engine can begin with output tokens that another worker chose",
    "has_stages": "whether `generate` can run a request in other stages than aggregated",
    "attaches": "whether `generate` calls an `attach` that takes `stage` and `generation_only`",
    "shows_scores": "whether `generate` returns the edited logits of the first token",
    "dtypes": f"the types of logits that reach the backend, a tuple of some of {DTYPES}",
}
"""What a suite declares. Without the declaration, the cases that need it fail."""

LEAST = {"vocab_size": 64, "eos_token_id": 0, "slots": 1, "long_prompt": 7}
"""The lowest value of what is declared as an integer."""

NOT_COVERED = "Not covered by the conformance suite: "
"""How reasons of skipped cases begin, which pytest lists with ``-rs``."""


class SuiteBase:
    """The declarations and the helpers of ``ConformanceSuite``, which has the cases."""

    backend: ClassVar[Backend]
    vocab_size: ClassVar[int]
    eos_token_id: ClassVar[int]
    slots: ClassVar[int]
    long_prompt: ClassVar[int]
    resumes: ClassVar[bool]
    has_stages: ClassVar[bool]
    attaches: ClassVar[bool]
    shows_scores: ClassVar[bool]
    dtypes: ClassVar[tuple[str, ...]]

    def __getattr__(self, name: str) -> Any:
        if name in CAPABILITIES:
            pytest.fail(self._declare(name), pytrace=False)
        raise AttributeError(name)

    def _declare(self, name: str) -> str:
        return f"Declare `{name}` in {type(self).__name__}: {CAPABILITIES[name]}"

    def _is_declared(self, name: str) -> bool:
        """Whether a declaration has a value that it can have."""
        value = getattr(self, name)
        if name in LEAST:
            most = self.vocab_size - 1 if name == "eos_token_id" else value
            return type(value) is int and LEAST[name] <= value <= most
        if name == "dtypes":
            return isinstance(value, tuple) and set[Any]() < {*value} <= {*DTYPES}
        return isinstance(value, Backend if name == "backend" else bool)

    @pytest.fixture
    def generate(self) -> Generate:
        """Run requests through the engine and the backend under test."""
        raise NotImplementedError("a subclass has the engine")

    def _needs(self, kind: type[LogitsProcessorSpec]) -> None:
        if kind not in self.backend.realizes:
            self._leave_out(f"`{kind_of(kind)}`, which `realizes` does not have")

    def _declared(self, capability: str) -> None:
        """Leave a case out if the suite declares that the engine does not have a capability."""
        if not getattr(self, capability):
            self._leave_out(f"`{capability}` is declared false")

    def _leave_out(self, what: str) -> NoReturn:
        pytest.skip(f"{NOT_COVERED}{self.backend.name}: {what}")

    def _tokens(self, count: int, seed: int = 0) -> tuple[int, ...]:
        """Choose tokens other than EOS. They repeat only if there are fewer than ``count``."""
        all_tokens = [token for token in range(self.vocab_size) if token != self.eos_token_id]
        random.Random(seed).shuffle(all_tokens)
        return tuple(all_tokens[i % len(all_tokens)] for i in range(count))

    def _others(self, token_ids: Collection[int], count: int) -> list[int]:
        """Choose tokens that are not in ``token_ids``."""
        candidates = self._tokens(len(token_ids) + count)
        return [token for token in candidates if token not in token_ids][:count]

    def _free(self, generate: Generate, count: int, **fields: Any) -> list[Free]:
        """Find requests without specs whose outputs have at least six tokens, with the outputs."""
        found: list[Free] = []
        for seed in range(0, 100 * count, self.slots):
            requests = [Request(self._tokens(7, seed + i), **fields) for i in range(self.slots)]
            for request, output in zip(requests, generate(requests), strict=True):
                if len(output.token_ids) >= 6:
                    found.append((request, output.token_ids))
            if len(found) >= count:
                return found[:count]
        raise AssertionError("the engine ends its outputs at once")

    def _outputs(
        self, generate: Generate, kind: type[LogitsProcessorSpec], **fields: Any
    ) -> list[tuple[LogitsProcessorSpec, Output]]:
        """Run specs of a kind, each beside a request without; check and return the outputs."""
        self._needs(kind)
        outputs: list[tuple[LogitsProcessorSpec, Output]] = []
        free, other = self._free(generate, 2, **fields)
        for spec in self._specs(free, kind):
            output, neighbour = generate([replace(free[0], specs=(spec,)), other[0]])
            self._check(spec, free[0].prompt_ids, output)
            assert output.token_ids != free[1], f"{spec} changes nothing"
            assert neighbour.token_ids == other[1], f"{spec} changes a request without specs"
            outputs.append((spec, output))
        return outputs

    def _check(self, spec: LogitsProcessorSpec, prompt: Sequence[int], output: Output) -> None:
        """Check that an output obeys a spec."""
        __tracebackhide__ = True
        if wrong := first_wrong(spec, prompt, output.token_ids):
            raise AssertionError(wrong)

    def _specs(self, free: Free, kind: type[LogitsProcessorSpec]) -> list[LogitsProcessorSpec]:
        if not (specs := self._examples(free, kind)):
            why = f"`{kind_of(kind)}`, which would change nothing in the engine's output"
            self._leave_out(f"{why}: use a model that repeats itself")
        return specs

    def _examples(self, free: Free, kind: type[LogitsProcessorSpec]) -> list[LogitsProcessorSpec]:
        """Make specs of a kind that change the engine's output."""
        request, said = free
        unused = self._others({*said, *request.prompt_ids}, 3)
        run = FreeRun(request.prompt_ids, tuple(said), tuple(unused), self.eos_token_id)
        return KINDS[kind].examples(run)
