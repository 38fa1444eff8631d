"""Marks of requests: which are bound to a profile's key, and which are refused, and why."""

import os
from dataclasses import replace
from typing import Any

import pytest
from logitport import spec as s
from logitport.adapters import Policy, bind_draw, mark_of
from logitport.adapters.core import Acting, Mark, Program, compile_specs
from logitport.adapters.detection import read_profiles
from logitport.spec import SpecError

KEY = 0x1234_5678_9ABC_DEF1
NEWS, OTHER = Mark("news", KEY, width=5), Mark("other", 7)
POLICY = Policy(profiles={"news": NEWS, "other": OTHER})
REQUIRED = replace(POLICY, required="news", unmarked=frozenset({"grammar"}))
ASKED = s.WatermarkSpec("news")


def bound(request: Any, *specs: Any, policy: Any = POLICY, **more: Any) -> Program | None:
    program = compile_specs(specs or (ASKED,))
    return bind_draw(program, policy, request, grammars=("json",), **more)


def mark_in(program: Program | None) -> Mark:
    """The mark of a program, which comes after all else."""
    assert program is not None
    assert not program.marks
    while program.guard is not None:
        program = program.guard
    (mark,) = program.marks
    return mark


# fields of a request | the fields of its mark
@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({}, {}),
        (dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "n", "repetition_penalty")), {}),
        ({"temperature": 0.7}, {"temperature": 0.7}),
        ({"temperature": 2}, {"temperature": 2.0}),
        ({"top_k": 0}, {}),
        ({"top_k": -1}, {}),
        ({"top_k": 2**40}, {}),
        ({"top_k": 40, "top_p": 0.9, "min_p": 0.1}, {"top_k": 40, "top_p": 0.9, "min_p": 0.1}),
        ({"n": 1, "best_of": 1, "beam_width": 1, "num_beams": 1}, {}),
        ({"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1}, {}),
        ({"do_sample": True, "seed": 3, "logit_bias": {"5": 100}, "max_tokens": 1}, {}),
    ],
)
def test_what_a_mark_is_bound_to(fields: Any, made: Any):
    for request in (fields, type("Params", (), fields)()):
        assert mark_in(bound(request)) == replace(NEWS, **made)


# fields of a request | the field that is named | a part of the message
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 0}, "temperature", "Expected a temperature of at least 0.01"),
    ({"temperature": 0.005}, "temperature", "at least 0.01, because the text is marked; got 0.005"),
    ({"temperature": -1.0}, "temperature", "at least 0.01"),
    ({"temperature": float("nan")}, "temperature", "a number, because the text is marked; got nan"),
    ({"temperature": float("inf")}, "temperature", "a number"),
    ({"temperature": 10**400}, "temperature", "a number"),
    ({"temperature": True}, "temperature", "a number"),
    ({"temperature": "1.0"}, "temperature", "a number, because the text is marked; got '1.0'"),
    ({"temperature": [1.0]}, "temperature", "a number"),
    ({"do_sample": False}, "do_sample", "do_sample that is not false"),
    ({"top_k": 1}, "top_k", "top_k of at least 2, or none"),
    ({"top_k": "1"}, "top_k", "a number"),
    ({"top_p": 0.0}, "top_p", "top_p of at least 0.01"),
    ({"top_p": 1e-9}, "top_p", "top_p of at least 0.01"),
    ({"min_p": 1}, "min_p", "min_p of at most 0.99"),
    ({"n": 2}, "n", "one reply, because the text is marked; got 2"),
    ({"best_of": 2}, "best_of", "one reply"),
    ({"num_return_sequences": 2}, "num_return_sequences", "one reply"),
    ({"num_beams": 2}, "num_beams", "no beam search"),
    ({"beam_width": 2}, "beam_width", "no beam search"),
    ({"presence_penalty": 0.1}, "presence_penalty", "Expected 0, because"),
    ({"frequency_penalty": -0.1}, "frequency_penalty", "Expected 0, because"),
    ({"repetition_penalty": 1.05}, "repetition_penalty", "Expected 1, because"),
]


@pytest.mark.parametrize(("fields", "path", "message"), REFUSED)
@pytest.mark.parametrize("policy", [POLICY, REQUIRED], ids=["asked", "required"])
def test_what_would_leave_no_mark(fields: Any, path: str, message: str, policy: Policy):
    for request in (fields, type("Params", (), fields)()):
        with pytest.raises(SpecError) as error:
            bound(request, policy=policy)
        assert error.value.path == path
        assert message in error.value.message or policy is REQUIRED
        assert str(KEY) not in str(error.value)
    if policy is REQUIRED:
        with pytest.raises(SpecError, match="because the text is marked"):
            bind_draw(None, policy, fields)
    else:
        assert bind_draw(None, policy, fields) is None
        unmarked = compile_specs((s.BannedTokensSpec((1,)),))
        assert bind_draw(unmarked, policy, fields) is unmarked


def test_what_an_engine_does_before_us_is_no_reason():
    fields = {"presence_penalty": 1.0}
    assert mark_in(bound(fields, after={})) == NEWS


# policy | the specs of a request | the path | the message
@pytest.mark.parametrize(
    ("policy", "specs", "path", "message"),
    [
        (None, (ASKED,), "$.specs[0].profile", "This server has no profile 'news' of marks"),
        (Policy(), (ASKED,), "$.specs[0].profile", "profiles: it has none"),
        (
            POLICY,
            (s.BannedTokensSpec((1,)), s.WatermarkSpec("mine")),
            "$.specs[1].profile",
            "no profile 'mine' of marks; profiles: news, other",
        ),
        (
            REQUIRED,
            (s.WatermarkSpec("other"),),
            "$.specs[0].profile",
            "This server marks its texts with the profile 'news'",
        ),
    ],
)
def test_which_profiles_there_are(policy: Any, specs: Any, path: str, message: str):
    with pytest.raises(SpecError) as error:
        bound({}, *specs, policy=policy)
    assert error.value.path == path
    assert message in error.value.message


def test_a_required_mark_comes_after_all_else():
    guard = compile_specs((s.BannedTokensSpec((1,)),))
    own = compile_specs((s.BannedTokensSpec((2,)),))
    for program in (None, own, replace(own, guard=guard), compile_specs((ASKED,))):
        made = bind_draw(program, REQUIRED, {"temperature": 0.5}, end_token=3)
        assert mark_in(made) == replace(NEWS, temperature=0.5)
        assert made is not None
        last = made.guard if made.guard is None or made.guard.guard is None else made.guard.guard
        assert last is not None
        assert last.end_token == 3
        assert made.reads_prompt is False
    assert made is not program


GRAMMARS = "structured_outputs", "json_schema", "regex", "ebnf", "structural_tag"
YES = 'root ::= "yes" | "no"'


# fields of a request | whether its text needs no mark
@pytest.mark.parametrize(
    ("fields", "is_free"),
    [
        ({}, False),
        ({"structured_outputs": None}, False),
        ({"json_schema": ""}, False),
        ({"structured_outputs": {"json": {}}}, True),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, True),
        ({"structured_outputs": {"json_object": True}}, True),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, True),
        ({"structured_outputs": {"grammar": YES}}, True),  # what vLLM makes of choices
        ({"structured_outputs": {"regex": "[0-9]+"}}, True),
        ({"structured_outputs": {"regex": "(.|\\n)*"}}, False),
        ({"structured_outputs": {"regex": ""}}, False),
        ({"structured_outputs": {"grammar": "root ::= [^x]*"}}, False),
        ({"structured_outputs": {"structural_tag": '{"type": "any_text"}'}}, False),
        ({"structured_outputs": {"json_object": True}, "ignore_eos": True}, False),
        ({"json_schema": "{}"}, True),
        ({"ebnf": YES}, True),
        ({"regex": "(.|\\n)*"}, False),
        ({"ebnf": "root ::= [^x]*"}, False),
        ({"structural_tag": "{}"}, False),
    ],
)
def test_what_needs_no_mark(fields: Any, is_free: bool):
    """JSON and choices, as long as nothing can come after them."""
    fields, json = {"temperature": 0.5, **fields}, replace(REQUIRED, unmarked=frozenset({"json"}))
    for request in (fields, type("Params", (), fields)()):
        assert (bind_draw(None, json, request, grammars=GRAMMARS) is None) is is_free
    has_grammar = any(fields.get(name) for name in GRAMMARS) and "ignore_eos" not in fields
    assert (bind_draw(None, REQUIRED, fields, grammars=GRAMMARS) is None) is has_grammar
    always = replace(REQUIRED, unmarked=frozenset[str]())
    assert bind_draw(None, always, fields, grammars=GRAMMARS) is not None
    assert mark_in(bound(fields, policy=REQUIRED)).profile == "news"  # it asks for one


# fields of a profile | the path | a part of the message
@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"scheme": "sglang-gumbel"}, "scheme", "Expected the scheme vllm-gumbel"),
        ({"scheme": "vllm-dual-gumbel"}, "scheme", "Expected the scheme vllm-gumbel"),
        ({"key": {"env": "NO_KEY"}}, "key", "No key in the variable NO_KEY"),
        ({"key": {"env": "BAD_KEY"}}, "key", "Expected a key of at most 64 bits as a number"),
        ({"key": {"file": "/no/such/file"}}, "key", "No key in the file /no/such/file"),
    ],
)
def test_profiles_that_cannot_mark(
    fields: Any, path: str, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("A_KEY", "42")
    monkeypatch.setenv("BAD_KEY", "18446744073709551616777")
    content = {"a": {"scheme": "vllm-gumbel", "key": {"env": "A_KEY"}} | fields}
    profile = read_profiles(content)["a"]
    with pytest.raises(SpecError) as error:
        mark_of("a", profile)
    assert error.value.path.endswith(path)
    assert message in error.value.message
    assert "18446744073709551616777" not in str(error.value)
    assert os.environ["A_KEY"] == "42"


# the fields of a profile | the fields of its mark
@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({}, {"width": 4, "searched": 8192, "reads_prompt": False}),
        ({"width": 64, "deduplicate": "none"}, {"width": 64, "searched": 0}),
        ({"deduplicate": "all"}, {"width": 4, "searched": 8192, "reads_prompt": True}),
    ],
)
def test_profiles_that_mark(fields: Any, made: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_KEY", "0xffffffffffffffff")
    content = {"a": {"scheme": "vllm-gumbel", "key": {"env": "A_KEY"}} | fields}
    assert mark_of("a", read_profiles(content)["a"]) == Mark("a", 2**64 - 1, **made)


def test_the_key_is_in_no_text():
    program = bind_draw(None, REQUIRED, {})
    assert program is not None
    for each in (POLICY, REQUIRED, program, program.guard, Acting(NEWS), NEWS, REQUIRED.describe()):
        assert str(KEY) not in repr(each)
        assert f"{KEY:x}" not in repr(each)
