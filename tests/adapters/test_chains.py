"""Chains of requests: what they are bound to, and what of a request's own sampling is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from logitport import spec as s
from logitport.adapters import Policy, admit, bind_draw
from logitport.adapters.admission import forget
from logitport.adapters.backend import backend
from logitport.adapters.core import Chain, Mark, Program, compile_specs
from logitport.adapters.draws import bind_live
from logitport.adapters.native import check_grammar
from logitport.hooks.configuration import ConfigurationError, policy
from logitport.spec import ChainSpec, ChainStep, SamplingSpec, SpecError, Xtc

from tests.hooks.test_hello_world import Characters

NEWS = Mark("news", 7)
POLICY = Policy(profiles={"news": NEWS})
XTC = {"threshold": 0.1, "probability": 0.5}


def chain(**steps: Any) -> ChainSpec:
    made: dict[str, Any] = {
        name: Xtc(**value) if name == "xtc" else value for name, value in steps.items()
    }
    return ChainSpec(tuple(ChainStep(**{name: value}) for name, value in made.items()))


PLAIN, OWN = chain(top_k=5), chain(min_p=0.1, temperature=0.8)
EXCLUDES, BOTH = chain(top_p=0.9, xtc=XTC), chain(xtc=XTC, temperature=0.8)


def draws_of(program: Program | None) -> tuple[Any, ...]:
    """The chain and the mark of a program, which come after all else."""
    assert program is not None
    while program.guard is not None:
        assert not program.chains
        assert not program.marks
        program = program.guard
    return (*program.chains, *program.marks)


def bound(request: Any, *specs: Any, policy: Any = None, **more: Any) -> Program | None:
    return bind_draw(compile_specs(specs), policy, request, **more)


# a chain | fields of a request | the temperature that the engine divides by, and the last step
@pytest.mark.parametrize(
    ("spec", "fields", "temperature", "adds"),
    [
        (PLAIN, {}, 1.0, None),
        (PLAIN, {"temperature": 0.7}, 1.0, None),  # the engine's, after all steps
        (PLAIN, {"temperature": 0.005}, 1.0, None),  # which some engines draw with
        (PLAIN, {"temperature": 1.3, "top_k": 3, "top_p": 0.5, "min_p": 0.2}, 1.0, None),
        (PLAIN, {"n": 4, "best_of": 4, "num_beams": 1, "seed": 3}, 1.0, None),
        (OWN, {}, 1.0, None),
        (OWN, {"temperature": None}, 1.0, None),
        (OWN, {"temperature": 1}, 1.0, None),
        (OWN, {"temperature": 0.8}, 0.8, None),  # the row is multiplied by it
        (OWN, {"temperature": 0.8, "top_p": 0.9}, 0.8, None),
        (EXCLUDES, {}, 1.0, 1.0),  # its exclusions are of tempered tokens
        (EXCLUDES, {"temperature": 0.6}, 0.6, 0.6),
        (EXCLUDES, {"top_k": 0, "top_p": 1, "min_p": 0.0}, 1.0, 1.0),
        (EXCLUDES, {"top_k": -1}, 1.0, 1.0),
        (EXCLUDES, {"top_k": 1 << 30}, 1.0, 1.0),  # SGLang's, for none
        (BOTH, {}, 1.0, None),
        (BOTH, {"temperature": 0.8}, 0.8, None),
    ],
)
def test_what_a_chain_is_bound_to(spec: Any, fields: Any, temperature: float, adds: float | None):
    steps = spec.steps if adds is None else (*spec.steps, ChainStep(temperature=adds))
    for request in (fields, type("Params", (), fields)()):
        assert draws_of(bound(request, spec)) == (Chain(steps, temperature),)
        beside = bound(request, s.BannedTokensSpec((1,)), spec)
        assert draws_of(beside) == (Chain(steps, temperature),)
        assert beside is not None
        assert beside.guard is not None
        assert beside.automata


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 0.0}, {"do_sample": False}])
def test_where_the_likeliest_token_comes_a_chain_has_no_effect(fields: Any):
    """No step changes which token that is."""
    for request in (fields, type("Params", (), fields)()):
        left = bound(request, PLAIN)
        assert left is not None
        assert (left.parts, left.guard) == ((), None)
        beside = bound(request, s.BannedTokensSpec((1,)), PLAIN)
        assert beside is not None
        assert (len(beside.parts), beside.guard) == (1, None)


ONE = "a temperature of 1, or of 0.8 as in its steps"
REASON = "because the request has a `chain`"

# a chain | fields of a request | the field that is named | a part of the message
REFUSED: list[tuple[ChainSpec, dict[str, Any], str, str]] = [
    (OWN, {"temperature": 0.7}, "temperature", f"Expected {ONE}, {REASON}; got 0.7"),
    (OWN, {"temperature": 0}, "temperature", f"Expected {ONE}"),
    (OWN, {"temperature": 0.80001}, "temperature", f"Expected {ONE}"),
    (OWN, {"do_sample": False}, "do_sample", f"do_sample that is not false, {REASON}; got False"),
    (BOTH, {"temperature": 0}, "temperature", f"Expected {ONE}"),
    (PLAIN, {"temperature": -1.0}, "temperature", "a temperature of at least 0"),
    (PLAIN, {"temperature": float("nan")}, "temperature", f"a number, {REASON}; got nan"),
    (PLAIN, {"temperature": float("inf")}, "temperature", "a number"),
    (PLAIN, {"temperature": "1.0"}, "temperature", "a number"),
    (PLAIN, {"temperature": True}, "temperature", "a number"),
    (EXCLUDES, {"temperature": 0}, "temperature", f"a temperature of at least 0.01, {REASON}"),
    (EXCLUDES, {"temperature": 0.005}, "temperature", "a temperature of at least 0.01"),
    (EXCLUDES, {"temperature": 101}, "temperature", "a temperature of at most 100"),
    (EXCLUDES, {"do_sample": False}, "do_sample", "do_sample that is not false"),
    (EXCLUDES, {"top_k": 5}, "top_k", "no top_k, which can be a step before xtc"),
    (EXCLUDES, {"top_p": 0.95}, "top_p", "no top_p"),
    (BOTH, {"min_p": 0.05}, "min_p", "no min_p"),
    (EXCLUDES, {"top_k": "5"}, "top_k", "a number"),
    (PLAIN, {"num_beams": 2}, "num_beams", f"no beam search, {REASON}; got 2"),
    (PLAIN, {"beam_width": 2}, "beam_width", "no beam search"),
    (PLAIN, {"presence_penalty": 0.1}, "presence_penalty", "Expected 0, because"),
    (PLAIN, {"frequency_penalty": -0.1}, "frequency_penalty", "Expected 0, because"),
    (OWN, {"repetition_penalty": 1.05}, "repetition_penalty", "Expected 1, because"),
]


@pytest.mark.parametrize(("spec", "fields", "path", "message"), REFUSED)
def test_what_would_be_drawn_otherwise(spec: ChainSpec, fields: Any, path: str, message: str):
    for request in (fields, type("Params", (), fields)()):
        for specs in ((spec,), (s.BannedTokensSpec((1,)), spec)):
            with pytest.raises(SpecError) as error:
                bound(request, *specs)
            assert error.value.path == path
            assert message in error.value.message
        assert draws_of(bound(request)) == ()


def test_what_an_engine_does_before_us_is_no_reason():
    assert draws_of(bound({"presence_penalty": 1.0}, PLAIN, after={})) == (Chain(PLAIN.steps, 1.0),)


def test_a_mark_comes_after_a_chain():
    chained = Chain(OWN.steps, 0.8)
    request, mark = {"temperature": 0.8}, replace(NEWS, temperature=0.8)
    asked = bound(request, s.WatermarkSpec("news"), OWN, policy=POLICY)
    required = bound(request, OWN, policy=replace(POLICY, required="news"))
    assert draws_of(asked) == draws_of(required) == (chained, mark)
    engines = bound(request, s.WatermarkSpec("news"), OWN, policy=POLICY, engine_marks=bool)
    assert draws_of(engines) == (chained,)
    with pytest.raises(SpecError, match="because the text is marked"):  # it would not be
        bound({"temperature": 0}, s.WatermarkSpec("news"), PLAIN, policy=POLICY)


# how an engine in this process draws | the temperature | what is refused
@pytest.mark.parametrize(
    ("sampling", "temperature", "message"),
    [
        (SamplingSpec(temperature=0.7), 1.0, None),
        ({"temperature": 0.7}, 1.0, None),
        (None, None, "A chain needs `sampling` with the temperature"),
        (SamplingSpec(top_p=0.5), None, "A chain needs `sampling` with the temperature"),
        (SamplingSpec(temperature=1, presence_penalty=1), None, "Expected 0, because"),
    ],
)
def test_an_engine_in_this_process(sampling: Any, temperature: float | None, message: Any):
    if message is None:
        assert draws_of(bind_live(compile_specs([PLAIN]), None, sampling)) == (
            Chain(PLAIN.steps, temperature or 0),
        )
        return
    with pytest.raises(SpecError) as error:
        bind_live(compile_specs([PLAIN]), None, sampling)
    assert message in error.value.message


# an engine | whether a chain can be realized there
@pytest.mark.parametrize(
    ("engine", "realizes"),
    [
        *(("vllm", True), ("sglang", True), ("tensorrt_llm", False)),
        *(("transformers", True), ("mlx", True)),
    ],
)
def test_engines(engine: str, realizes: bool):
    found, payload = backend(engine), s.encode(PLAIN)
    forget()
    if realizes:
        (part,) = admit(found, payload, 64)[1].parts
        assert part.part == Chain(PLAIN.steps)  # without a temperature, it acts nowhere
        return
    with pytest.raises(SpecError, match="does not support `chain`") as error:
        admit(found, payload, 64)
    assert error.value.path == "$.specs[0]"


PAYLOADS: list[tuple[Any, str, str]] = [
    ([PLAIN, OWN], "$.specs[1]", "A request has one chain"),
    (
        '{"version": 1, "specs": [{"kind": "phases", "phases": [{"specs": '
        '[{"kind": "chain", "steps": [{"top_k": 1}]}]}]}]}',
        "$.specs[0].phases[0].specs[0]",
        "chain",
    ),
]


@pytest.mark.parametrize(("specs", "path", "message"), PAYLOADS)
def test_where_a_chain_cannot_be(specs: Any, path: str, message: str):
    payload = specs if isinstance(specs, str) else s.encode(specs)
    with pytest.raises(SpecError) as error:
        admit(backend("vllm"), payload, 64)
    assert error.value.path == path
    assert message in error.value.message


def test_an_equal_chain_twice_acts_once():
    _, program = admit(backend("vllm"), s.encode([PLAIN, chain(top_k=5)]), 64)
    assert len(program.parts) == 1


def test_a_grammar_may_not_take_what_a_chain_leaves():
    """llama.cpp applies a grammar last, and ends the process where it takes no token."""
    specs = [PLAIN, s.GrammarSpec(choices=("yes", "no"))]
    s.encode(specs)  # elsewhere, a grammar's bans come first
    check_grammar(specs)
    with pytest.raises(SpecError, match="may not take the tokens that `chain` leaves"):
        check_grammar(specs, comes_last=True)


def in_json(spec: ChainSpec) -> Any:
    return json.loads(s.encode(spec))["specs"][0]


def configured(**content: Any) -> Policy:
    found = policy(Characters, content)
    assert found is not None
    return found


def test_chains_of_a_configuration():
    found = configured(default=[in_json(OWN)], presets={"calm": [in_json(PLAIN)]})
    assert found.default_payload is not None
    forget()
    with_presets = replace(backend("vllm"), policy=found)
    asked = s.encode(s.PluginSpec("calm"))
    decoded, program = admit(with_presets, asked, 64)
    (acting,) = program.parts
    assert acting.part == Chain(PLAIN.steps)
    assert draws_of(bind_draw(program, found, {})) == (Chain(PLAIN.steps, 1.0),)
    assert decoded.specs == (PLAIN,)
    again = s.encode([s.PluginSpec("calm"), OWN])
    with pytest.raises(SpecError, match="A request has one chain"):
        admit(with_presets, again, 64)


@pytest.mark.parametrize("chains", [[PLAIN], [OWN, PLAIN]])
def test_a_chain_is_no_guard(chains: Any):
    guard = [{"kind": "banned_tokens", "token_ids": [1]}, *map(in_json, chains)]
    with pytest.raises(ConfigurationError) as error:
        configured(guard=guard)
    assert "A chain is no guard" in str(error.value)
    assert "guard[1]" in str(error.value)
