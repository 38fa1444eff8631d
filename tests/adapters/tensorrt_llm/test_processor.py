"""TensorRT-LLM's backend, on a caller that follows the engine's source.

The engine itself needs a GPU, and has not been run. ``Caller`` does what ``_execute_logit_post_``
``processors`` and the two executor loops of ``tensorrt_llm/_torch/pyexecutor/`` do with logits
processors: which tokens they are shown, when, and in which rows.
"""

import copy
import io
import math
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch
from logitport import spec as lp
from logitport.adapters.conformance import ConformanceSuite, Generate, Output, Request
from logitport.adapters.conformance.kinds import KINDS
from logitport.adapters.conformance.suite import DTYPES
from logitport.adapters.core import compile_specs, plugins
from logitport.adapters.tensorrt_llm import (
    BACKEND,
    LogitportProcessor,
    attach,
    rows,
)

from tests.adapters.failing import fails_later

VOCABULARY, EOS = 96, 0
PROMPT = (5, 3, 9, 11, 20, 7, 31)


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    """As in ``tensorrt_llm/sampling_params.py``."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """The fields of ``tensorrt_llm/sampling_params.py`` that matter here, and a check of it."""

    end_id: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logits_processor: Any = None
    n: int = 1
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    prompt_ignore_length: int | None = None
    guided_decoding: GuidedDecodingParams | None = None
    min_tokens: int | None = None
    bad_token_ids: list[int] | None = None
    embedding_bias: torch.Tensor | None = None
    _bad_word_ids: list[list[int]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n > 1 and self.top_k == 1:
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns.")


def model(history: Sequence[int]) -> torch.Tensor:
    """Logits that look like chance, and are a function of the history."""
    generator = torch.Generator().manual_seed(hash(tuple(history)) % (1 << 31))
    return torch.randn(VOCABULARY, generator=generator)


@dataclass(eq=False)
class Running:
    """A request in the engine.

    Attributes:
        prompt_ids: the prompt.
        max_tokens: of the output.
        processors: ``py_logits_post_processors``.
        output_ids: what is out, the handed-over tokens first.
        tokens: prompt and output, as ``get_tokens`` tells them.
        position: ``context_current_position``.
        scores: the logits from which the first token was chosen.
    """

    prompt_ids: list[int]
    max_tokens: int
    processors: list[LogitportProcessor] = field(default_factory=list[LogitportProcessor])
    output_ids: list[int] = field(default_factory=list[int])
    tokens: list[int] = field(default_factory=list[int])
    position: int = 0
    scores: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self.tokens = self.prompt_ids + self.output_ids
        if self.output_ids:  # the KV cache came with the token
            self.position = len(self.prompt_ids)

    @property
    def is_context(self) -> bool:
        """Whether there is something of the prompt to prefill."""
        return self.position < len(self.prompt_ids)


class Caller:
    """Runs requests as the engine does, the likeliest token at each step.

    Args:
        overlap: whether the next step begins before the last one's tokens are known.
        slots: rows of the batch.
        chunk: tokens of a prompt that are prefilled in a step.
        dtype: of the logits.
    """

    last_request_id = 0

    def __init__(
        self,
        *,
        overlap: bool = False,
        slots: int = 4,
        chunk: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._overlap, self._dtype = overlap, dtype
        self._slots, self._chunk = slots, chunk

    def run(self, requests: Sequence[Running]) -> None:
        waiting, active = list(requests), dict[int, Running]()
        sampled: list[tuple[Running, int]] = []
        while waiting or active:
            while waiting and len(active) < self._slots:
                Caller.last_request_id += 1
                active[Caller.last_request_id] = waiting.pop(0)
            if not self._overlap:
                self._update(sampled)
                sampled = []
            active = {i: each for i, each in active.items() if not self._is_done(each)}
            logits = self._forward(active, sampled)
            self._update(sampled)
            sampled = self._sample(active, logits)

    def _forward(
        self, active: dict[int, Running], sampled: list[tuple[Running, int]]
    ) -> torch.Tensor:
        """Context requests come first. Their KV cache is written, so the model knows it all."""
        on_device = dict(sampled)  # the model is given tokens that the host does not know yet
        in_order = sorted(active.items(), key=lambda item: not item[1].is_context)
        active.clear()
        active |= in_order
        logits = torch.zeros(len(active), VOCABULARY, dtype=self._dtype)
        for row, running in enumerate(active.values()):
            seen = running.tokens + ([on_device[running]] if running in on_device else [])
            if running.is_context:
                running.position += self._chunk
                seen = seen[: running.position]
            logits[row] = model(seen).to(self._dtype)
        shown = [logits[row : row + 1].view(1, 1, -1) for row in range(len(active))]
        for view, (request_id, running) in zip(shown, active.items(), strict=True):
            for each in running.processors:
                each(request_id, view, [list(running.tokens)], None, None)
        return logits

    @staticmethod
    def _sample(active: dict[int, Running], logits: torch.Tensor) -> list[tuple[Running, int]]:
        sampled: list[tuple[Running, int]] = []
        for row, running in zip(logits, active.values(), strict=True):
            if not running.is_context:
                if running.scores is None:
                    running.scores = row.float()
                sampled.append((running, int(row.argmax())))
        return sampled

    def _update(self, sampled: list[tuple[Running, int]]) -> None:
        for running, token in sampled:
            if not self._is_done(running):  # a step too many, which overlap takes
                running.tokens.append(token)
                running.output_ids.append(token)

    @staticmethod
    def _is_done(running: Running) -> bool:
        out = running.output_ids
        return len(out) >= running.max_tokens or out[-1:] == [EOS]


def travelled(params: SamplingParams) -> list[LogitportProcessor]:
    """The processors of a request, in the worker: ``py_logits_post_processors``."""
    there = pickle.loads(pickle.dumps(params.logits_processor))
    return there if isinstance(there, list) else [] if there is None else [there]


def running(
    prompt_ids: Sequence[int],
    *specs: lp.LogitsProcessorSpec,
    max_tokens: int = 10,
    output_ids: Sequence[int] = (),
    **arguments: Any,
) -> Running:
    arguments = {"disable_overlap_scheduler": True, **arguments}
    params = attach(SamplingParams(end_id=EOS), specs, **arguments)
    return Running([*prompt_ids], max_tokens, travelled(params), [*output_ids])


def say(caller: Caller, *requests: Running) -> list[list[int]]:
    caller.run(requests)
    return [each.output_ids for each in requests]


def prompt_length(request: Request) -> int | None:
    """Said where the engine shows another number of output tokens first than a worker would."""
    begins_as_usual = len(request.output_ids) == (request.stage is lp.Stage.DECODE)
    return None if begins_as_usual else len(request.prompt_ids)


class TestConformance(ConformanceSuite):
    backend = BACKEND
    vocab_size = VOCABULARY
    eos_token_id = EOS
    slots = 4
    long_prompt = 100
    shows_scores = True
    resumes = True
    has_stages = True
    dtypes = DTYPES

    @pytest.fixture
    def generate(self) -> Generate:
        def generate(requests: Sequence[Request]) -> list[Output]:
            (dtype,) = {request.dtype for request in requests}
            all_running = [
                running(
                    request.prompt_ids,
                    *request.specs,
                    max_tokens=request.max_tokens,
                    output_ids=request.output_ids,
                    stage=request.stage,
                    prompt_length=prompt_length(request),
                    vocab_size=VOCABULARY,
                )
                for request in requests
            ]
            Caller(slots=self.slots, dtype=getattr(torch, dtype)).run(all_running)
            return [Output(each.output_ids, each.scores) for each in all_running]

        return generate


# --- what travels ---


class OneClass(pickle.Unpickler):
    """Reads what a deployment with a list of approved classes would read."""

    def find_class(self, module: str, name: str) -> Any:
        assert (module, name) == (LogitportProcessor.__module__, "LogitportProcessor")
        return super().find_class(module, name)


TEXT = lp.ForcedTokenSequenceSpec((21, 22, 23), EOS)


def test_a_pickle_has_one_class_and_nothing_live():
    params = attach(SamplingParams(), TEXT, disable_overlap_scheduler=True)
    carried = params.logits_processor
    before = pickle.dumps(carried)
    carried(1, torch.zeros(1, 1, VOCABULARY), [[5]], None, None)
    assert pickle.dumps(carried) == before
    again = OneClass(io.BytesIO(before)).load()
    assert again.payload == lp.encode(TEXT)
    logits = torch.zeros(1, 1, VOCABULARY)
    again(1, logits, [[5]], None, None)
    assert logits.argmax() == 21


def test_several_outputs_of_a_request():
    """``n`` above 1: the engine copies the processor deeply for each."""
    params = attach(SamplingParams(n=2), TEXT, disable_overlap_scheduler=True)
    copies = [copy.deepcopy(params.logits_processor) for _ in range(2)]
    requests = [Running([*PROMPT], 6, [each]) for each in copies]
    assert say(Caller(), *requests) == [[21, 22, 23, EOS]] * 2


# --- which tokens are the prompt's ---


def test_first_call_says_where_the_prompt_ends():
    """In chunks, too: at each the engine shows all of the prompt."""
    long = [7, *range(30, 90), 10]
    think = lp.ThinkingBudgetSpec(62, (7,), (8,), (9,))
    (said,) = say(Caller(chunk=8), running(long, think, max_tokens=6))
    assert said[1:3] == [9, 8]  # 61 thoughts in the prompt, and one after it
    (said,) = say(Caller(chunk=8), running(long, TEXT))
    assert said == [21, 22, 23, EOS]


@pytest.mark.parametrize(("handed_over", "expected"), [(21, [22, 23, EOS]), (5, [21, 22, 23, EOS])])
def test_handed_over(handed_over: int, expected: list[int]):
    request = running(PROMPT, TEXT, output_ids=[handed_over], stage=lp.Stage.DECODE)
    assert say(Caller(), request) == [[handed_over, *expected]]


def test_the_handed_over_token_is_no_part_of_the_prompt():
    request = running((5, 3), lp.PromptBiasSpec(1000.0), output_ids=[60], stage=lp.Stage.DECODE)
    (said,) = say(Caller(), request)
    assert set(said[1:]) <= {5, 3}


def test_evicted_requests_go_on():
    """The engine calls no processor for the token with which such a request goes on."""
    request = running(PROMPT, TEXT, lp.TriggerSpec((40,), (41, 42), None), max_tokens=3)
    (each,) = request.processors
    rows_of = {out: torch.zeros(1, 1, VOCABULARY) for out in ((), (21,), (21, 22), (21, 22, 50))}
    for out, logits in rows_of.items():
        each(1, logits, [[*PROMPT, *out]], None, None)
    assert [int(logits.argmax()) for logits in rows_of.values()] == [21, 22, 23, EOS]


# --- the overlap scheduler ---

STATIC = (
    lp.AllowedTokensSpec((20, 21, 22)),
    lp.BannedTokensSpec(tuple(range(0, 90))),
    lp.BannedSequencesSpec(((1,), (2,))),
    lp.LogitBiasSpec({20: 1000.0, 21: 1000.0}),
    lp.PromptBiasSpec(1000.0),
)
"""What does not depend on the output."""


@pytest.mark.parametrize("spec", STATIC, ids=lambda spec: spec.kind)
def test_static_kinds_overlap(spec: lp.LogitsProcessorSpec):
    request = running(PROMPT, spec, disable_overlap_scheduler=False)
    free, in_time = running(PROMPT), running(PROMPT, spec)
    said, plain = say(Caller(overlap=True, chunk=3), request, free)
    assert say(Caller(), in_time) == [said]
    assert said != plain or isinstance(spec, lp.BannedSequencesSpec)


@pytest.mark.parametrize("spec", [kind.minimal for kind in KINDS.values()], ids=lambda s: s.kind)
def test_what_comes_late_is_refused(spec: lp.LogitsProcessorSpec):
    """Exactly what depends on the output, at the spec, by the engine's name and the kind's."""
    if type(spec) not in BACKEND.realizes or isinstance(spec, lp.PluginSpec):
        pytest.skip("realized by nobody, or not installed")
    params = SamplingParams(end_id=EOS)
    if not compile_specs((spec,)).needs_history:
        attach(params, spec)
        return
    with pytest.raises(lp.SpecError, match=rf"`{spec.kind}` .*TensorRT-LLM.*specs\[1\]"):
        attach(params, [lp.LogitBiasSpec({1: 1.0}), spec])
    assert params.logits_processor is None
    assert attach(params, spec, disable_overlap_scheduler=True).logits_processor is not None


def test_the_overlap_is_real():
    """What is refused would come out wrong: the caller does what it is to do."""
    (said,) = say(Caller(overlap=True), running(PROMPT, TEXT))
    assert said[:3] == [21, 21, 22]


# --- beams ---


# --- what fails ---


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> lp.PluginSpec:
    monkeypatch.setattr(
        plugins, "_plugins", lambda: {"fails": lambda: lambda params: fails_later()}
    )
    return lp.PluginSpec("fails")


def test_failing_code_ends_its_request(plugin: lp.PluginSpec, caplog: pytest.LogCaptureFixture):
    failing, other, plain = running(PROMPT, plugin), running((3,), TEXT), running(PROMPT)
    said, beside, free = say(Caller(), failing, other, plain)
    assert said == [*free[:2], EOS]
    assert beside == [21, 22, 23, EOS]
    assert "It is ended; no other request is affected" in caplog.text


def test_a_plugin_that_the_worker_lacks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(plugins, "_plugins", dict[str, Any])
    carried = LogitportProcessor(lp.encode(lp.PluginSpec("absent")), stop_token_id=EOS)
    assert say(Caller(), Running([*PROMPT], 6, [carried])) == [[EOS]]
    assert "No plugin 'absent' is installed" in caplog.text


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(end_id=EOS, ignore_eos=True)])
def test_code_that_could_not_be_ended_is_refused(plugin: lp.PluginSpec, params: SamplingParams):
    with pytest.raises(lp.SpecError, match="Expected a token that ends the request"):
        attach(params, plugin, disable_overlap_scheduler=True)
    params = SamplingParams(stop_token_ids=[9, 4])
    attach(params, plugin, disable_overlap_scheduler=True)
    assert params.logits_processor.stop_token_id == 4


def test_tokens_beyond_the_vocabulary_of_the_worker(caplog: pytest.LogCaptureFixture):
    """Of whose size ``attach`` was told nothing."""
    assert say(Caller(), running(PROMPT, lp.BannedTokensSpec((VOCABULARY,)))) == [[EOS]]


@pytest.mark.parametrize(
    ("logits", "token_ids"),
    [
        (torch.zeros(()), [[5]]),
        (torch.zeros(1, 1, VOCABULARY), []),
        (torch.zeros(VOCABULARY, 1, 1).transpose(0, 2), [None]),
    ],
)
def test_it_never_raises(logits: torch.Tensor, token_ids: Any, caplog: pytest.LogCaptureFixture):
    (each,) = running(PROMPT, TEXT).processors
    each(3, ended := logits.clone(), token_ids, None, None)
    assert not ended.shape or ended.isfinite().nonzero().tolist() == [[0, 0, EOS]]
    assert caplog.text.count("The specs of request 3 cannot be realized") == 1


def test_what_cannot_be_followed_is_ended(caplog: pytest.LogCaptureFixture):
    """And said once. A prompt cannot be longer than all tokens."""
    request = running(PROMPT, TEXT, prompt_length=len(PROMPT) + 1)
    other = running((3,), TEXT)
    assert say(Caller(), request, other) == [[EOS], [21, 22, 23, EOS]]
    assert caplog.text.count("cannot be realized: ValueError: prompt_length is 8") == 1


def test_it_is_not_said_to_be_ended_where_it_cannot_be(caplog: pytest.LogCaptureFixture):
    (each,) = running(PROMPT, TEXT, prompt_length=9).processors
    each.stop_token_id = VOCABULARY
    each(3, logits := torch.zeros(1, 1, VOCABULARY), [[1]], None, None)
    assert not logits.any()
    assert "It goes on without them" in caplog.text


@pytest.mark.parametrize("length", [-1, True, "4", [5, 6], 1.0])
def test_a_prompt_length_that_is_none(length: Any):
    with pytest.raises(lp.SpecError, match="Expected prompt_length to be a number of tokens, got "):
        running(PROMPT, TEXT, prompt_length=length)


def test_errors_count_native_kinds():
    for spec, place in (
        (lp.BannedTokensSpec((3, 99)), "token_ids[1]"),
        (lp.PluginSpec("no"), "name"),
    ):
        with pytest.raises(lp.SpecError) as error:
            attach(SamplingParams(), [lp.SamplingSpec(top_k=3), spec], vocab_size=9)
        assert error.value.path == f"$.specs[1].{place}"


def test_no_sampling_params():
    params: Any
    for params in ({}, None, TEXT):
        with pytest.raises(lp.SpecError, match="Expected TensorRT-LLM's SamplingParams, got "):
            attach(params, TEXT)


# --- attach ---


def other(req_id: int, logits: torch.Tensor, token_ids: Any, stream: Any, client: Any) -> None:
    """A processor of the application's own."""


@pytest.mark.parametrize("current", [None, other, [other]])
def test_other_processors_stay(current: Any):
    params = SamplingParams(logits_processor=current)
    bias = lp.LogitBiasSpec({1: 1.0})
    for _ in range(2):
        attach(params, bias)
    if current is None:
        assert params.logits_processor.payload == lp.encode(bias)
    else:
        assert params.logits_processor[0] is other
        assert len(params.logits_processor) == 2
    attach(params, ())
    assert params.logits_processor is (None if current is None else other)
    if isinstance(current, list):
        assert current == [other]  # the caller's own list


def test_stages():
    bias = lp.LogitBiasSpec({1: 1.0})
    assert attach(SamplingParams(), bias, stage=lp.Stage.PREFILL).logits_processor is None
    both = {"stage": lp.Stage.PREFILL, "generation_only": False}
    assert attach(SamplingParams(), bias, **both).logits_processor.handed_over == 0
    with pytest.raises(lp.SpecError, match="tensorrt_llm cannot do `python`"):
        attach(SamplingParams(), lp.PythonProcessorSpec(fails_later), stage=lp.Stage.PREFILL)
    sampling = attach(SamplingParams(), lp.SamplingSpec(temperature=1), stage=lp.Stage.PREFILL)
    assert sampling.temperature == 1  # prefill chooses the first token


def test_stream(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda *arguments: arguments)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    device = torch.device("cuda", 1)
    assert rows.on_stream(77, device) == (77, device)
    for stream_ptr, where in ((None, device), (77, torch.device("cpu"))):
        with rows.on_stream(stream_ptr, where):
            pass


# --- native kinds ---


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("tensorrt_llm.sampling_params")
    module.GuidedDecodingParams = GuidedDecodingParams
    monkeypatch.setitem(sys.modules, "tensorrt_llm", ModuleType("tensorrt_llm"))
    monkeypatch.setitem(sys.modules, "tensorrt_llm.sampling_params", module)


def test_sampling():
    spec = lp.SamplingSpec(temperature=0.5, top_p=0.9, top_k=0, min_p=0.1, repetition_penalty=1.5)
    params = attach(SamplingParams(), spec)
    assert params == SamplingParams(
        temperature=0.5, top_p=0.9, top_k=0, min_p=0.1, repetition_penalty=1.5
    )


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_of_the_output_alone(name: str):
    """The engine counts the prompt's tokens, too, unless it is told to ignore them."""
    params = attach(SamplingParams(), lp.SamplingSpec(**{name: 0.5}))
    assert params == SamplingParams(**{name: 0.5}, prompt_ignore_length=2**31 - 1)
    assert attach(params, lp.SamplingSpec(**{name: 0.5})) == params
    assert attach(SamplingParams(), lp.SamplingSpec(**{name: 0})).prompt_ignore_length is None
    with pytest.raises(lp.SpecError, match=r"sets prompt_ignore_length to 3.*\$\.specs\[0\]"):
        attach(SamplingParams(prompt_ignore_length=3), lp.SamplingSpec(**{name: 0.5}))


def test_older_engines_are_not_asked_for_what_they_lack():
    @dataclass
    class Older:
        logits_processor: Any = None
        end_id: int | None = None
        stop_token_ids: list[int] | None = None
        ignore_eos: bool = False
        presence_penalty: float | None = None

    params = Older()
    with pytest.raises(lp.SpecError, match=r"Older to have a field prompt_ignore_length"):
        attach(params, lp.SamplingSpec(presence_penalty=1))
    with pytest.raises(
        lp.SpecError, match=r"Older to have a field min_p - at `\$\.specs\[0\]\.min_p`"
    ):
        attach(params, lp.SamplingSpec(min_p=0.5))
    assert params == Older()


def test_what_the_request_says_otherwise():
    with pytest.raises(lp.SpecError, match=r"sets temperature to 0\.7.*specs\[1\]\.temperature"):
        attach(
            SamplingParams(temperature=0.7),
            [lp.LogitBiasSpec({1: 1}), lp.SamplingSpec(temperature=1)],
        )
    with pytest.raises(ValueError, match="Greedy decoding"):
        attach(SamplingParams(n=2), lp.SamplingSpec(top_k=1))


def bias(value: float) -> torch.Tensor:
    """A bias for token 5 alone."""
    return torch.zeros(VOCABULARY).index_fill(0, torch.tensor(5), value)


OWN = lp.ForcedTokenSequenceSpec((4, 5), EOS)


# spec | the request's own fields | message, or None where both can be obeyed
@pytest.mark.parametrize(
    ("spec", "fields", "message"),
    [
        (OWN, {"min_tokens": 3, "end_id": EOS}, "`min_tokens`, which bans token 0"),
        (OWN, {"min_tokens": 2, "end_id": EOS}, None),
        (OWN, {"min_tokens": 3}, None),  # the engine asks its tokenizer for EOS, later
        (OWN, {"bad_token_ids": [5]}, r"`bad_token_ids`, which bans token 5 - at `\$\.specs\[1\]"),
        (OWN, {"bad_token_ids": [6]}, None),
        (OWN, {"embedding_bias": bias(-math.inf)}, "`embedding_bias`, which bans token 5"),
        (OWN, {"embedding_bias": bias(-100)}, None),
        (lp.AllowedTokensSpec((5,)), {"bad_token_ids": [5]}, "no token is left"),
    ],
)
def test_own_fields(spec: lp.LogitsProcessorSpec, fields: dict[str, Any], message: str | None):
    params = SamplingParams(**fields)

    def ask() -> SamplingParams:
        return attach(params, [lp.LogitBiasSpec({1: 1}), spec], disable_overlap_scheduler=True)

    if message is None:
        assert ask().logits_processor is not None
    else:
        with pytest.raises(lp.SpecError, match=f"Conflicts with .*{message}"):
            ask()
        assert params.logits_processor is None


def test_bad_words_once_the_engine_has_made_tokens_of_them():
    params = SamplingParams()
    params._bad_word_ids = [[4, 5]]
    with pytest.raises(lp.SpecError, match=r"the request's `bad`, which bans token 5"):
        attach(params, OWN, disable_overlap_scheduler=True)


GRAMMARS: list[tuple[lp.GrammarSpec, Callable[[], GuidedDecodingParams]]] = [
    (
        lp.GrammarSpec(json_schema={"type": "object", "required": ["b", "a"]}),
        lambda: GuidedDecodingParams(json='{"type":"object","required":["b","a"]}'),
    ),
    (lp.GrammarSpec(regex="a+"), lambda: GuidedDecodingParams(regex="a+")),
    (lp.GrammarSpec(ebnf='root ::= "a"'), lambda: GuidedDecodingParams(grammar='root ::= "a"')),
    (
        lp.GrammarSpec(choices=('say "yes"', "né\n")),
        lambda: GuidedDecodingParams(grammar=r'root ::= "say \"yes\"" | "né\n"'),
    ),
    (
        lp.GrammarSpec(structural_tag={"type": "structural_tag", "format": {"type": "any_text"}}),
        lambda: GuidedDecodingParams(
            structural_tag='{"type":"structural_tag","format":{"type":"any_text"}}'
        ),
    ),
]


@pytest.mark.parametrize(("spec", "expected"), GRAMMARS)
def test_grammar(engine: None, spec: lp.GrammarSpec, expected: Callable[[], GuidedDecodingParams]):
    params = attach(SamplingParams(), [spec, lp.BannedTokensSpec((3,))])
    assert params.guided_decoding == expected()
    assert params.logits_processor.payload == lp.encode(lp.BannedTokensSpec((3,)))
    assert attach(params, spec).guided_decoding == expected()
    with pytest.raises(lp.SpecError, match="sets guided_decoding to"):
        attach(params, lp.GrammarSpec(regex="b"))


@pytest.mark.parametrize(
    "spec",
    [TEXT, lp.AllowedTokensSpec((1,)), lp.ThinkingBudgetSpec(3, (1,), (2,)), lp.PluginSpec("any")],
    ids=lambda spec: spec.kind,
)
def test_a_grammar_comes_last(engine: None, spec: lp.LogitsProcessorSpec):
    """The engine applies it after the processors: nothing might be left of what a spec wants."""
    guided = GuidedDecodingParams(regex="a")
    for params, specs, grammar in (
        (SamplingParams(), [lp.GrammarSpec(regex="a"), spec], "a grammar"),
        (SamplingParams(guided_decoding=guided), [spec], "the request's guided_decoding"),
    ):
        with pytest.raises(lp.SpecError, match=f"{grammar}, which may not take the tokens that"):
            attach(params, specs, disable_overlap_scheduler=True)
        assert params.logits_processor is None


def test_each_kind_is_realized_lowered_or_refused():
    for kind, known in KINDS.items():
        if kind is lp.PythonProcessorSpec:
            with pytest.raises(lp.SpecError, match="tensorrt_llm cannot do `python`"):
                attach(SamplingParams(), known.minimal)
        else:
            assert (kind in BACKEND.lowers) == issubclass(kind, lp.NativeSpec)
