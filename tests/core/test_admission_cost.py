"""What admission costs, what it remembers, and what it shows: counts and bytes, never seconds."""

import gc
import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters import admission, cli
from logitport.adapters.core import AutomatonBuilder, Program, compile_specs
from logitport.adapters.core.kinds.base import TEXT_ROOM
from logitport.adapters.core.loops import why_slow
from logitport.spec import Payload, SpecError, decode, encode, limits
from logitport.spec.errors import Key, shown, text_of
from logitport.spec.json_values import FrozenDict, frozen_json

from tests.tools.fuzz import mutations, payloads, target

CORPUS = dict(payloads.load())
BACKEND, VOCAB = target.BACKEND, target.VOCAB
PHASES = s.PhasesSpec((s.Phase((), (s.PhaseEnd(n=1),)),) * 3 + (s.Phase(),))
CASELESS = tuple(letter * 18 for letter in "ksaeiout")
FULL = tuple(range(1000, 1000 + limits.MAX_TOKEN_IDS))


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch):
    """A server with the plugins of the fuzz, which remembers nothing."""
    loaders = {name: lambda make=make: make for name, make in target.PLUGINS.items()}
    monkeypatch.setattr("logitport.adapters.core.plugins._plugins", lambda: loaders)
    admission.forget()
    yield
    admission.forget()


@pytest.mark.skipif(why_slow() is not None, reason="plain loops call functions")
@pytest.mark.parametrize("name", CORPUS)
def test_work_of_the_corpus(name: str):
    """Calls are counted, not milliseconds: 100,000 of them take about 10."""
    text = payloads.text_of(CORPUS[name])
    outcome = target.admit(text)
    assert outcome.wrong is None
    assert target.calls_of(text) < 35_000


def test_no_hash_table_of_what_clients_choose(monkeypatch: pytest.MonkeyPatch):
    """``np.unique`` makes one unless it is asked for more than the values.

    16,384 multiples of 20,753, which is the size of it, take it 170 ms.
    """
    unique = np.unique

    def sorting(values: Any, **wanted: bool) -> Any:
        assert any(wanted.values())
        return unique(values, **wanted)

    monkeypatch.setattr(np, "unique", sorting)
    for short in CORPUS.values():
        assert target.admit(payloads.text_of(short), None).wrong is None


def test_tables_of_texts_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []
    build = AutomatonBuilder.build
    monkeypatch.setattr(
        AutomatonBuilder, "build", lambda self, **how: made.append(1) or build(self, **how)
    )
    spec = s.BannedTextSpec(CASELESS, ignore_case=True)
    with pytest.raises(SpecError, match=f"at most {TEXT_ROOM} bytes of memory with this vocab"):
        admission.admit(BACKEND, encode(spec), VOCAB)
    assert not made
    admission.admit(BACKEND, encode(s.BannedTextSpec(("ka",), ignore_case=True)), VOCAB)
    assert made


def test_work_is_counted():
    """The bound of the test above is one that what it stands for did not keep."""
    objects = payloads.expanded({"$repeat": [8000, {"a": 0}]})
    few, many = (target.calls_of({"version": 1, "x": objects[:n]}) for n in (10, 8000))
    assert few < many + 1000  # an unknown field is not looked into
    params = [s.PluginSpec("rule", {"a": objects[:n]}) for n in (10, 1000)]
    few, many = (target.calls_of(encode(spec)) for spec in params)
    assert many > few + 1000


# Text | what refuses it, before it is parsed.
@pytest.mark.parametrize(
    ("short", "message"),
    [
        ({"$text": [100_000, "[]"]}, "at most 18432 parts .*, got 200000"),
        ({"$text": [50_000, "{}"]}, "at most 18432 parts .*, got 200000"),
        ({"$text": [40_000, "1e-300"]}, "at most 32 numbers with three digits of exponent"),
        ({"$text": [70_000, "0,"]}, "at most 18432 parts .commas, colons, .*, got 70000"),
        ({"$text": [100_000, "1"]}, "at most 32 numbers .* or 256 in a row, got 390"),
    ],
    ids=["brackets", "objects", "numbers", "commas", "digits"],
)
def test_refused_unparsed(monkeypatch: pytest.MonkeyPatch, short: Any, message: str):
    monkeypatch.setattr("msgspec.json.decode", None)
    for form in (payloads.text_of(short), payloads.text_of(short).encode()):
        with pytest.raises(SpecError, match=message):
            decode(form)


TOKEN_IDS = (
    "token ids (choices and biases twice, other sequences three times; parts of parameters) in all "
    "specs together, got"
)


# Specs, each within its limits | what they go beyond together | the spec that does.
@pytest.mark.parametrize(
    ("specs", "message", "index"),
    [
        (tuple(map(s.BannedTokensSpec, (FULL[1:], (1, 2)))), f"at most 16384 {TOKEN_IDS} 16385", 1),
        (
            (
                s.BannedSequencesSpec(((1,) * 63,) * 85),
                s.MinTokensSpec(1, tuple(range(3, 320))),
                s.ChoiceSpec(((1,), (2,)), 2),
            ),
            f"{TOKEN_IDS} 16386",
            2,
        ),
        (
            (s.LogitBiasSpec(dict.fromkeys(FULL[: 1 << 13], 1.0)), s.LogitBiasSpec({1: 1.0})),
            f"{TOKEN_IDS} 16386",
            1,
        ),
        (
            (s.PluginSpec("any", {"a": [0] * 10_000}), s.ForcedTokenSequenceSpec(FULL[:7000])),
            f"{TOKEN_IDS} 17006",
            1,
        ),
        (
            (PHASES, PHASES, PHASES),
            "at most 8 specs in phases, an empty one as one, in all specs together, got 12",
            2,
        ),
    ],
    ids=["token ids", "in sequences", "biases", "parameters", "phases"],
)
def test_limits_of_all_specs_together(specs: tuple[Any, ...], message: str, index: int):
    assert Payload(1, specs[:index])
    with pytest.raises(SpecError, match=re.escape(message)) as error:
        encode(specs)
    assert error.value.path == f"$.specs[{index}]"


def test_memory_is_that_of_the_arrays():
    spec = s.ThinkingBudgetSpec(1, (1,), (2,), FULL[1:])
    gc.collect()
    tracemalloc.start()
    program = compile_specs((spec,))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    # Once as compiled; and in the tables of host and device, which have room to grow.
    assert held < program.memory < 10 * held


class TestCache:
    @pytest.mark.parametrize(
        "name", ["banned_tokens", "logit_bias", "banned_sequences", "choice", "plugin"]
    )
    def test_bytes_are_what_an_entry_takes(self, name: str):
        """The estimate has the tables of a running batch in it, so it may be above."""
        text = payloads.text_of(CORPUS[f"{name}_full"])
        admission.admit(BACKEND, text, VOCAB)  # imports, and what is kept for all
        admission.forget()
        gc.collect()
        tracemalloc.start()
        admission.admit(BACKEND, "".join(list(text)), VOCAB)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert 0.9 * held < admission._programs.currsize < 4 * held

    @pytest.mark.parametrize(
        ("carried", "message"),
        [
            ("x", "not valid JSON"),
            ('{"version":1,"specs":[]}', "length >= 1"),
            (encode(s.BannedTokensSpec((VOCAB,))), "beyond the vocabulary"),
            (encode(s.PluginSpec("absent")), "No plugin 'absent'"),
        ],
    )
    def test_a_refusal_is_the_same_again(self, carried: str, message: str):
        with pytest.raises(SpecError, match=message) as first:
            admission.admit(BACKEND, carried, VOCAB)
        for form in (carried, carried.encode()):
            with pytest.raises(SpecError) as again:
                admission.admit(BACKEND, form, VOCAB)
            assert str(again.value) == str(first.value)
            assert again.value is not first.value

    def test_a_plugin_may_change_its_mind(self, monkeypatch: pytest.MonkeyPatch):
        text, answers = encode(s.PluginSpec("rule")), [ValueError("not yet"), None]

        def make(params: Any) -> Any:
            if answer := answers.pop(0):
                raise answer
            return target.Rule()

        monkeypatch.setattr(
            "logitport.adapters.core.plugins._plugins", lambda: {"rule": lambda: make}
        )
        with pytest.raises(SpecError, match="not yet"):
            admission.admit(BACKEND, text, VOCAB)
        admission.admit(BACKEND, text, VOCAB)

    def test_bad_payloads_push_out_no_program(self, monkeypatch: pytest.MonkeyPatch):
        good = encode(s.BannedTokensSpec((1,)))
        _, program = admission.admit(BACKEND, good, VOCAB)
        for i in range(200):
            with pytest.raises(SpecError):
                admission.admit(BACKEND, f"{i}" + "x" * 200_000, VOCAB)
        assert admission.admit(BACKEND, good, VOCAB)[1] is program

    def test_grammars_put_out_no_other_program(self):
        good = encode(s.BannedTokensSpec((1,)))
        _, program = admission.admit(BACKEND, good, VOCAB)
        grammars = [s.Phase((s.GrammarSpec(regex=f"a{i}"),)) for i in range(70)]
        texts = [encode(s.PhasesSpec((each,))) for each in grammars]
        kept = [admission.admit(BACKEND, text, VOCAB)[1] for text in texts]
        assert admission.admit(BACKEND, good, VOCAB)[1] is program
        assert admission.admit(BACKEND, texts[-1], VOCAB)[1] is kept[-1]
        assert admission._grammars.currsize <= admission.CACHE_BYTES

    def test_a_grammar_that_is_refused_is_compiled_once(self, monkeypatch: pytest.MonkeyPatch):
        bad = encode(s.PhasesSpec((s.Phase((s.GrammarSpec(regex="("),)),)))
        with pytest.raises(SpecError) as first:
            admission.admit(BACKEND, bad, VOCAB)
        monkeypatch.setattr(admission, "compile_specs", None)
        with pytest.raises(SpecError) as again:
            admission.admit(BACKEND, bad, VOCAB)
        assert str(again.value) == str(first.value)
        assert again.value is not first.value

    def test_too_long_to_be_a_key(self):
        with pytest.raises(SpecError, match="the limit is 262144"):
            admission.admit(BACKEND, "x" * (limits.MAX_PAYLOAD_BYTES + 1), VOCAB)
        assert not admission._programs

    def test_threads_share_a_program_and_wait_for_none(self, monkeypatch: pytest.MonkeyPatch):
        """While one compiles, another admits something else: nothing is locked meanwhile."""
        slow, quick = (encode(s.BannedTokensSpec((i,))) for i in (1, 2))
        compiling, done = threading.Event(), threading.Event()
        compile_now = admission.compile_specs

        def compile_slowly(specs: Any, *vocabulary: Any) -> Program:
            if specs[0].token_ids == (1,):
                compiling.set()
                assert done.wait(60)
            return compile_now(specs, *vocabulary)

        monkeypatch.setattr(admission, "compile_specs", compile_slowly)
        programs: list[Program] = []
        threads = [
            threading.Thread(
                target=lambda: programs.append(admission.admit(BACKEND, slow, VOCAB)[1])
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        assert compiling.wait(60)
        admission.admit(BACKEND, quick, VOCAB)
        done.set()
        for thread in threads:
            thread.join(60)
        assert len(programs) == 3
        assert len(set(map(id, programs))) == 1


class TestShown:
    @pytest.mark.parametrize(
        ("text", "safe"),
        [
            ("plain é 漢", "plain é 漢"),
            ("a\nb\t\x00", r"a\nb\t\x00"),
            ("\x1b[31m", r"\x1b[31m"),
            ("\u202eabc\u2066", r"\u202eabc\u2066"),
            ("\ud800", r"\ud800"),
            ("\u2028", r"\u2028"),
            ("x" * 1000, "x" * 265 + "..." + "x" * 132),
        ],
    )
    def test_text(self, text: str, safe: str):
        assert shown(text) == safe
        assert shown(safe) == safe

    @given(st.text(st.characters()))
    def test_any_text(self, text: str):
        error = SpecError((text, (text, Key(text)), text), text).at("specs", 0)
        assert target.unsafe(error) is None
        assert SpecError(*error.args).args == error.args

    @pytest.mark.parametrize(
        "payload",
        [
            {"version": 1, "specs": [], "\x1b[31m\n" * 9: 1},
            {"version": 1, "specs": [{"kind": "\u202e" * 100_000}]},
            {
                "version": 1,
                "specs": [{"kind": "plugin", "name": "a", "params": {"\n" * 999: [2**64]}}],
            },
            {"version": 1, "specs": [{"kind": "plugin", "name": "\x1b]0;x\x07"}]},
            {
                "version": 1,
                "specs": [{"kind": "plugin", "name": "echoes", "params": {"a": "b" * 999}}],
            },
            b'{"version":1,"x":"\xff\x1b"}',
            b"\xff\xfe",
        ],
        ids=range(7),
    )
    def test_what_a_client_sends(self, payload: Any):
        outcome = target.admit(payload)
        assert outcome.wrong is None
        assert not outcome.admitted

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("exits", r"refuses its parameters: FrozenDict|refuses its parameters: {"),
            ("stops", "refuses its parameters"),
            ("unprintable", "refuses its parameters: UnprintableError"),
            ("echoes", r"refuses its parameters: \\x1b\[2J\\n\\u202e"),
        ],
    )
    def test_plugins(self, name: str, message: str):
        with pytest.raises(SpecError, match=message) as error:
            admission.admit(BACKEND, encode(s.PluginSpec(name)), VOCAB)
        assert target.unsafe(error.value) is None

    def test_a_keyboard_interrupt_is_the_operators(self, monkeypatch: pytest.MonkeyPatch):
        def make(params: Any) -> Any:
            raise KeyboardInterrupt

        loaders = {"rule": lambda: make}
        monkeypatch.setattr("logitport.adapters.core.plugins._plugins", lambda: loaders)
        with pytest.raises(KeyboardInterrupt):
            admission.admit(BACKEND, encode(s.PluginSpec("rule")), VOCAB)

    def test_text_of(self):
        assert text_of(ValueError("a\n")) == r"a\n"


class TestFrozen:
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
            lambda values: st.lists(values) | st.dictionaries(st.text(), values),
        )
    )
    def test_is_equal_and_hashable(self, value: Any):
        frozen = frozen_json(value)
        hash(frozen)
        assert json.loads(json.dumps(frozen)) == value
        assert frozen_json(frozen) == frozen
        if isinstance(value, dict):
            assert type(frozen) is FrozenDict


class TestLimits:
    def run(self, lowered: str, code: str) -> tuple[int, str]:
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, limits.VARIABLE: lowered},
            capture_output=True,
            text=True,
            check=False,
        )
        return result.returncode, result.stdout + result.stderr

    @pytest.mark.parametrize(
        ("lowered", "code", "says"),
        [
            ("", "from logitport.spec import limits as l; print(l.MAX_SPECS)", "16"),
            ("max_specs=2", "from logitport.spec import limits as l; print(l.MAX_SPECS)", "2"),
            (
                " max_bias = 5.5 , max_token_ids=3,",
                "from logitport.spec import *; BannedTokensSpec((1,) * 4)",
                "Expected at most 3 entries",
            ),
            ("max_bias=5.5", "from logitport.spec import *; LogitBiasSpec({1: 6.0})", "<= 5.5"),
        ],
    )
    def test_lowered(self, lowered: str, code: str, says: str):
        assert says in self.run(lowered, code)[1]

    @pytest.mark.parametrize(
        ("lowered", "message"),
        [
            ("max_spec=2", "there is no limit 'max_spec'; did you mean max_specs?"),
            ("x=2", "there is no limit 'x'; the limits are max_payload_bytes, "),
            ("max_specs=17", "expected max_specs from 1 to 16, got '17'"),
            ("max_specs=0", "expected max_specs from 1 to 16, got '0'"),
            ("max_body_bytes=0", "expected max_body_bytes from 1 to 1073741824, got '0'"),
            ("max_specs=many", "expected max_specs from 1 to 16, got 'many'"),
            ("max_bias=nan", "expected max_bias from 1 to 10000.0, got 'nan'"),
            ("max_specs", "expected name=value, got 'max_specs'"),
            ("max_specs=1,max_specs=2", "expected max_specs once"),
        ],
    )
    def test_refused(self, lowered: str, message: str):
        code, text = self.run(lowered, "import logitport.spec")
        assert code == 1
        assert f"ValueError: {limits.VARIABLE}: {message}" in text

    def test_printed(self):
        lines, as_json = cli.limits(), json.loads(cli.limits(as_json=True))
        assert as_json["max_specs"]["value"] == limits.MAX_SPECS == 16
        for name, limit in limits.LIMITS.items():
            constant = getattr(limits, name.upper())
            assert constant == limit.value == as_json[name]["value"]
            assert f"{name} " in lines
            assert limit.meaning in lines


def test_fuzz():
    """A few of the payloads that ``make fuzz`` sends; it is to find what it is made for, too."""
    random = Random(0)
    seeds = [
        json.loads(encode(s.BannedTokensSpec((1, 2)))),
        json.loads(encode(s.PluginSpec("rule"))),
    ]
    outcomes = [
        target.admit(mutations.sent(random, mutations.mutated(random, random.choice(seeds), seeds)))
        for _ in range(2000)
    ]
    assert not [outcome.wrong for outcome in outcomes if outcome.wrong]
    assert {outcome.admitted for outcome in outcomes} == {True, False}
    assert target.admit(payloads.expanded("x"), vocab_size="no number").wrong is None
    assert target.admit(encode(s.BannedTokensSpec((1,))), vocab_size="no number").wrong  # pyright: ignore
