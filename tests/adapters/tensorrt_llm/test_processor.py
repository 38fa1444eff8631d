"""TensorRT-LLM's backend, on a caller that follows the engine's source.

The engine itself needs a GPU, and has not been run. ``Running`` calls logits processors as
``_execute_logit_post_processors`` of ``tensorrt_llm/_torch/pyexecutor/`` does.
"""

import io
import json
import math
import pickle
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType
from typing import Any

import pytest
import torch
from logitport import spec as lp
from logitport.adapters.conformance import Output, Request
from logitport.adapters.conformance.suite import DTYPES
from logitport.adapters.core import plugins
from logitport.adapters.reference.kinds import KINDS
from logitport.adapters.tensorrt_llm import BACKEND, LogitportProcessor, attach
from logitport.adapters.tensorrt_llm.processor import on_stream

from tests.adapters.failing import fails_later
from tests.adapters.suite import TinySuite
from tests.support.tiny_model import EOS

VOCABULARY, CHUNK = 96, 16
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
    """A request in the engine, of whose output some tokens may be handed over."""

    prompt_ids: list[int]
    max_tokens: int
    processors: list[LogitportProcessor]
    output_ids: list[int]
    position: int = 0  # ``context_current_position``
    scores: torch.Tensor | None = None  # of the first token
    request_id: int = field(default_factory=count(1).__next__)

    def __post_init__(self) -> None:
        if self.output_ids:  # the KV cache came with the token
            self.position = len(self.prompt_ids)

    @property
    def is_done(self) -> bool:
        return len(self.output_ids) >= self.max_tokens or self.output_ids[-1:] == [EOS]

    def step(self, dtype: torch.dtype) -> None:
        """Prefill a chunk of the prompt; choose the likeliest token if that was the last one."""
        tokens = self.prompt_ids + self.output_ids
        self.position += CHUNK
        is_context = self.position < len(self.prompt_ids)
        logits = model(tokens[: self.position] if is_context else tokens).to(dtype)
        for each in self.processors:
            each(self.request_id, logits.view(1, 1, -1), [tokens], None, None)
        if not is_context:
            if self.scores is None:
                self.scores = logits.float()
            self.output_ids.append(int(logits.argmax()))


def say(*requests: Running, dtype: torch.dtype = torch.float32) -> list[list[int]]:
    """Run requests together; return their outputs."""
    while active := [each for each in requests if not each.is_done]:
        for each in active:
            each.step(dtype)
    return [each.output_ids for each in requests]


def travelled(params: SamplingParams) -> list[LogitportProcessor]:
    """The processors of a request, in the worker: ``py_logits_post_processors``."""
    there = pickle.loads(pickle.dumps(params.logits_processor))
    return there if isinstance(there, list) else [] if there is None else [there]


def running(
    prompt_ids: Sequence[int],
    specs: Any,
    max_tokens: int = 10,
    output_ids: Sequence[int] = (),
    **arguments: Any,
) -> Running:
    arguments = {"disable_overlap_scheduler": True, **arguments}
    params = attach(SamplingParams(end_id=EOS), specs, **arguments)
    return Running([*prompt_ids], max_tokens, travelled(params), [*output_ids])


def acting_stage(request: Request) -> lp.Stage:
    """What ``attach`` has to know: the engine has nothing by which a worker could gate specs."""
    is_one = request.stage is lp.Stage.AGGREGATED
    return request.attached_for if is_one else request.stage


def prompt_length(request: Request) -> int | None:
    """Said where the engine shows another number of output tokens first than a worker would."""
    begins_as_usual = len(request.output_ids) == (request.stage is lp.Stage.DECODE)
    return None if begins_as_usual else len(request.prompt_ids)


class TestConformance(TinySuite):
    backend = BACKEND
    vocab_size = VOCABULARY
    resumes = True
    has_stages = True
    attaches = True
    dtypes = DTYPES

    def run(self, requests: Sequence[Request]) -> list[Output]:
        (dtype,) = {request.dtype for request in requests}
        all_running = [
            running(
                request.prompt_ids,
                request.specs,
                max_tokens=request.max_tokens,
                output_ids=request.output_ids,
                stage=acting_stage(request),
                generation_only=request.generation_only,
                prompt_length=prompt_length(request),
                continued=request.continued,
                vocab_size=VOCABULARY,
            )
            for request in requests
        ]
        say(*all_running, dtype=getattr(torch, dtype))
        return [Output(each.output_ids, each.scores) for each in all_running]


class OneClass(pickle.Unpickler):
    """Reads what a deployment with a list of approved classes would read."""

    def find_class(self, module: str, name: str) -> Any:
        assert (module, name) == (LogitportProcessor.__module__, "LogitportProcessor")
        return super().find_class(module, name)


TEXT, BIAS = lp.ForcedTokenSequenceSpec((21, 22, 23), EOS), lp.LogitBiasSpec({1: 1.0})


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


@pytest.mark.parametrize(("handed_over", "expected"), [(21, [22, 23, EOS]), (5, [21, 22, 23, EOS])])
def test_handed_over(handed_over: int, expected: list[int]):
    """To a decode worker, which is not told how long the prompt is."""
    request = running(PROMPT, TEXT, output_ids=[handed_over], stage=lp.Stage.DECODE)
    assert say(request) == [[handed_over, *expected]]


# --- the overlap scheduler ---

NOT_BY_OUTPUT = {
    lp.AllowedTokensSpec,
    lp.AutomatonSpec,
    lp.BannedTokensSpec,
    lp.LogitBiasSpec,
    lp.PhasesSpec,
    lp.PromptBiasSpec,
}
"""The kinds whose ``minimal`` does the same whatever the output is."""


@pytest.mark.parametrize(
    "spec",
    [KINDS[kind].minimal for kind in KINDS if kind in BACKEND.realizes - {lp.PluginSpec}],
    ids=lambda spec: spec.kind,
)
def test_what_comes_late_is_refused(spec: lp.LogitsProcessorSpec):
    """Exactly what depends on the output, at the spec, by the engine's name and the kind's."""
    params = SamplingParams(end_id=EOS)
    if type(spec) in NOT_BY_OUTPUT:
        attach(params, spec)
        return
    with pytest.raises(lp.SpecError, match=rf"`{spec.kind}` .*TensorRT-LLM.*specs\[1\]"):
        attach(params, [BIAS, spec])
    assert params.logits_processor is None
    assert attach(params, spec, disable_overlap_scheduler=True).logits_processor is not None


# --- what fails ---


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(end_id=EOS, ignore_eos=True)])
def test_code_that_could_not_be_ended_is_refused(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plugins, "_plugins", lambda: {"code": lambda: lambda params: fails_later()})
    code = lp.PluginSpec("code")
    with pytest.raises(lp.SpecError, match="Expected a token that ends the request"):
        attach(params, code, disable_overlap_scheduler=True)
    params = SamplingParams(stop_token_ids=[9, 4])
    attach(params, code, disable_overlap_scheduler=True)
    assert params.logits_processor.stop_token_id == 4


def test_tokens_beyond_the_vocabulary_of_the_worker(caplog: pytest.LogCaptureFixture):
    """Of whose size ``attach`` was told nothing."""
    wrong, other = running(PROMPT, lp.BannedTokensSpec((VOCABULARY,))), running((3,), TEXT)
    assert say(wrong, other) == [[EOS], [21, 22, 23, EOS]]
    assert f"beyond the vocabulary of {VOCABULARY}" in caplog.text


# the logits | all tokens | the prompt's length, if it is given | the stop token | what is logged
@pytest.mark.parametrize(
    ("logits", "token_ids", "length", "stop", "logged"),
    [
        (torch.zeros(()), [[5]], None, EOS, "It continues without them"),
        (torch.zeros(1, 1, VOCABULARY), [], None, EOS, "It is ended"),
        (torch.zeros(VOCABULARY, 1, 1).transpose(0, 2), [None], None, EOS, "It is ended"),
        (torch.zeros(1, 1, VOCABULARY), [[1]], 2, EOS, "prompt_length is 2, and there are 1"),
        (torch.zeros(1, 1, VOCABULARY), [[1]], 2, VOCABULARY, "It continues without them"),
    ],
)
def test_it_never_raises(
    logits: Any, token_ids: Any, length: Any, stop: int, logged: str, caplog: Any
):
    """What cannot be followed is ended where it can be, and that is said once."""
    each = LogitportProcessor(lp.encode(TEXT), length, stop_token_id=stop)
    for _ in range(2):
        each(3, edited := logits.clone(), token_ids, None, None)
        if "continues" in logged:
            assert torch.equal(edited, logits)
        else:
            assert edited.isfinite().nonzero().tolist() == [[0, 0, EOS]]
    assert caplog.text.count("The specs of request 3 cannot be realized") == 1
    assert logged in caplog.text


# --- attach ---

NO_LENGTH = "Expected prompt_length to be a number of tokens, got "
BEYOND = lp.SamplingSpec(top_k=3), lp.BannedTokensSpec((9,))
PENALTIES = [lp.SamplingSpec(presence_penalty=0.5), lp.SamplingSpec(frequency_penalty=0.5)]
REGEX, ALLOWED = lp.GrammarSpec(regex="a"), lp.AllowedTokensSpec((1,))


@pytest.mark.parametrize(
    ("params", "specs", "arguments", "message"),
    [
        *((SamplingParams(), TEXT, {"prompt_length": n}, NO_LENGTH) for n in (-1, True, "4", 1.0)),
        (SamplingParams(), BEYOND, {"vocab_size": 9}, r"at `\$\.specs\[1\]\.token_ids\[0\]`"),
        ({}, TEXT, {}, "Expected TensorRT-LLM's SamplingParams, got dict"),
        (SamplingParams(n=2), lp.SamplingSpec(top_k=1), {}, "Greedy decoding"),
        *(
            (SamplingParams(prompt_ignore_length=3), [spec], {}, r"to 3.*\$\.specs\[0\]")
            for spec in PENALTIES
        ),
        # The engine's tokenizer is not here.
        (SamplingParams(), '[{"kind": "choice", "texts": ["a"]}]', {}, "A text needs the model's"),
        # The engine applies a grammar last: nothing might be left of what a spec wants.
        (SamplingParams(), [REGEX, ALLOWED], {}, "a grammar, which may not take the tokens that"),
        (
            SamplingParams(guided_decoding=GuidedDecodingParams(regex="a")),
            ALLOWED,
            {},
            "the request's guided_decoding, which may not take",
        ),
    ],
)
def test_refused(engine: None, params: Any, specs: Any, arguments: Any, message: str):
    with pytest.raises(ValueError, match=message):
        attach(params, specs, disable_overlap_scheduler=True, **arguments)
    assert params == {} or params.logits_processor is None


def other(req_id: int, logits: torch.Tensor, token_ids: Any, stream: Any, client: Any) -> None:
    """A processor of the application's own."""


@pytest.mark.parametrize("current", [None, other, [other]])
def test_other_processors_stay(current: Any):
    params = SamplingParams(logits_processor=current)
    for _ in range(2):
        attach(params, BIAS)
    if current is None:
        assert params.logits_processor.payload == lp.encode(BIAS)
    else:
        assert params.logits_processor[0] is other
        assert len(params.logits_processor) == 2
    attach(params, ())
    assert params.logits_processor is (None if current is None else other)
    if isinstance(current, list):
        assert current == [other]  # the caller's own list


def test_a_prefill_worker_samples():
    both = [lp.SamplingSpec(temperature=1), BIAS]
    params = attach(SamplingParams(), both, stage=lp.Stage.PREFILL)
    assert params == SamplingParams(temperature=1)
    attach(params, both, stage=lp.Stage.PREFILL, generation_only=False)
    assert params.logits_processor.handed_over == 0


def test_stream(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda *arguments: arguments)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    device = torch.device("cuda", 1)
    assert on_stream(77, device) == (77, device)
    for stream_ptr, where in ((None, device), (77, torch.device("cpu"))):
        with on_stream(stream_ptr, where):
            pass


# --- native kinds ---


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("tensorrt_llm.sampling_params")
    module.GuidedDecodingParams = GuidedDecodingParams
    monkeypatch.setitem(sys.modules, "tensorrt_llm", ModuleType("tensorrt_llm"))
    monkeypatch.setitem(sys.modules, "tensorrt_llm.sampling_params", module)


ALL = {"temperature": 0.5, "top_p": 0.9, "top_k": 0, "min_p": 0.1, "repetition_penalty": 1.5}


# The engine counts the prompt's tokens, too, unless it is told to ignore them.
@pytest.mark.parametrize(
    ("fields", "more"),
    [
        (ALL, {}),
        ({"presence_penalty": 0}, {}),
        ({"frequency_penalty": 0}, {}),
        ({"presence_penalty": 0.5}, {"prompt_ignore_length": 2**31 - 1}),
        ({"frequency_penalty": 0.5}, {"prompt_ignore_length": 2**31 - 1}),
    ],
)
def test_sampling(fields: dict[str, Any], more: dict[str, Any]):
    params = SamplingParams()
    for _ in range(2):
        assert attach(params, lp.SamplingSpec(**fields)) == SamplingParams(**fields, **more)


def bias(value: float) -> torch.Tensor:
    """A bias for token 5 alone."""
    return torch.zeros(VOCABULARY).index_fill(0, torch.tensor(5), value)


OWN = lp.ForcedTokenSequenceSpec((4, 5), EOS)


# spec | the request's own fields | message, or None where both can be obeyed
@pytest.mark.parametrize(
    ("spec", "fields", "message"),
    [
        (OWN, {"min_tokens": 3, "end_id": EOS}, f"`min_tokens`, which bans token {EOS}"),
        (OWN, {"min_tokens": 2, "end_id": EOS}, None),
        (OWN, {"min_tokens": 3}, None),  # the engine asks its tokenizer for EOS, later
        (OWN, {"bad_token_ids": [5]}, r"`bad_token_ids`, which bans token 5 - at `\$\.specs\[1\]"),
        (OWN, {"bad_token_ids": [6]}, None),
        # Of words, which the engine has made tokens of.
        (OWN, {"_bad_word_ids": [[4, 5]]}, "the request's `bad`, which bans token 5"),
        (OWN, {"embedding_bias": bias(-math.inf)}, "`embedding_bias`, which bans token 5"),
        (OWN, {"embedding_bias": bias(-100)}, None),
        (lp.AllowedTokensSpec((5,)), {"bad_token_ids": [5]}, "no token is left"),
    ],
)
def test_own_fields(spec: lp.LogitsProcessorSpec, fields: dict[str, Any], message: str | None):
    params = SamplingParams()
    for name, value in fields.items():
        setattr(params, name, value)
    with nullcontext() if message is None else pytest.raises(lp.SpecError) as raised:
        attach(params, [BIAS, spec], disable_overlap_scheduler=True)
    assert (params.logits_processor is None) is bool(message)
    if message is not None:
        raised.match(f"Conflicts with .*{message}")


TAG = {"type": "structural_tag", "format": {"type": "any_text"}}

# the grammar | the field of ``GuidedDecodingParams`` | its value
GRAMMARS = [
    (lp.GrammarSpec(json_schema={"required": ["b", "a"]}), "json", '{"required":["b","a"]}'),
    (lp.GrammarSpec(regex="a+"), "regex", "a+"),
    (lp.GrammarSpec(ebnf='root ::= "a"'), "grammar", 'root ::= "a"'),
    (lp.GrammarSpec(choices=('"a"', "né\n")), "grammar", r'root ::= "\"a\"" | "né\n"'),
    (lp.GrammarSpec(structural_tag=TAG), "structural_tag", json.dumps(TAG, separators=(",", ":"))),
]


@pytest.mark.parametrize(("spec", "form", "text"), GRAMMARS)
def test_grammar(engine: None, spec: lp.GrammarSpec, form: str, text: str):
    expected = GuidedDecodingParams(**{form: text})
    params = attach(SamplingParams(), [spec, lp.BannedTokensSpec((3,))])
    assert params.guided_decoding == expected
    assert params.logits_processor.payload == lp.encode(lp.BannedTokensSpec((3,)))
    assert attach(params, spec).guided_decoding == expected
    with pytest.raises(lp.SpecError, match="sets guided_decoding to"):
        attach(params, lp.GrammarSpec(regex="b"))
