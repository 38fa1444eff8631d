from typing import Any

import pytest
from logitport.adapters.core import compile_specs
from logitport.adapters.reference.kinds.base import Move
from logitport.spec import (
    AtEndSpec,
    ForcedEndSpec,
    GrammarSpec,
    Payload,
    Phase,
    PhaseEnd,
    PhasesSpec,
    SpecError,
    decode,
    limits,
)

from tests.support.kinds import SOME, TOO_LONG_TO_FIND, F, RealizedKindTests
from tests.support.small_tokenizer import FIVE, GREEDY, SPACE_CAT, NoEos, S

SPEC = AtEndSpec((5, 6, 5), (0, 3))
WAITS, ONE = Move(5, (0, 3), 1.0), Move(5, (0,), 1.0)
FIELDS = {"token_ids": [5], "stop_token_ids": [0]}
LONG_TEXT = (1,) * (limits.MAX_TOKEN_IDS - limits.MAX_PATTERN)


class TestRows(RealizedKindTests):
    golden = AtEndSpec((198, 2683), (2, 0), temperature=0.7)
    refused = (
        ({**FIELDS, "token_ids": []}, SOME, "token_ids"),
        ({**FIELDS, "stop_token_ids": []}, SOME, "stop_token_ids"),
        ({**FIELDS, "stop_token_ids": [0] * 65}, TOO_LONG_TO_FIND, "stop_token_ids"),
        (
            {**FIELDS, "stop_token_ids": [0, 3, 0]},
            "The same as `$.stop_token_ids[0]`",
            "stop_token_ids[2]",
        ),
        (
            {**FIELDS, "token_ids": [5, 6, 0]},
            "Token 0 ends the reply: the text would stop there",
            "token_ids[2]",
        ),
        ({**FIELDS, "temperature": -0.1}, "Expected `float` >= 0.0", "temperature"),
        ({**FIELDS, "temperature": 101.0}, "Expected `float` <= 100.0", "temperature"),
    )
    largest = (AtEndSpec(LONG_TEXT, tuple(range(2, 2 + limits.MAX_PATTERN)), 100.0),)
    beyond = (
        (AtEndSpec((5, 9), (0,)), "token_ids[1]"),
        (AtEndSpec((5,), (0, 9)), "stop_token_ids[1]"),
    )
    histories = (
        (SPEC, [5], [WAITS, 1, WAITS, 6, WAITS, 5, F(6), 6, F(5), 5, F(0), 1, F(0)]),
        # The text's second token is awaited, and what comes in place of a later one is passed.
        (SPEC, [], [WAITS, 5, F(6), 2, F(6), 6, F(5), 2, F(0)]),
        (AtEndSpec((5,), (0,)), [], [ONE, 5, F(0), 0, F(0)]),
    )


def test_text():
    spec = AtEndSpec.from_text(" cats", GREEDY)
    assert spec == AtEndSpec((SPACE_CAT, S), (0,))
    assert AtEndSpec.from_text("5", NoEos(), stop_token_ids=[7, 8], temperature=0.5) == AtEndSpec(
        (FIVE,), (7, 8), 0.5
    )
    with pytest.raises(SpecError, match="has no EOS token: pass stop_token_ids"):
        AtEndSpec.from_text("5", NoEos())


@pytest.mark.parametrize("text", ["\n~ Acme", "\n\n~", " \n~", " 5", "\n"])
def test_a_first_token_that_replies_need(text: str, tokenizer: Any):
    """Until the end, it comes nowhere else: a reply would have no other line or space."""
    asked = [{"kind": "at_end", "text": text, "stop_token_ids": [0]}]
    with pytest.raises(SpecError, match="begins with a token of white space"):
        AtEndSpec.from_text(text, tokenizer)
    with pytest.raises(SpecError, match=r"white space.* - at `\$\.specs\[0\]\.text`"):
        decode({"version": 1, "specs": asked}, tokenizer)


@pytest.mark.parametrize("specs", [(SPEC, SPEC), (SPEC, PhasesSpec((Phase((SPEC,)),)))])
def test_one_at_a_time(specs: tuple[AtEndSpec, ...]):
    with pytest.raises(SpecError, match="at most 1 `at_end`, got 2"):
        compile_specs(specs)


def test_beside_a_grammar():
    with pytest.raises(SpecError, match="may not take the tokens that `at_end` forces"):
        Payload(1, (SPEC, GrammarSpec(regex="a+")))


def test_in_phases():
    thinking = Phase((), (PhaseEnd(token_ids=(8,)),))
    assert PhasesSpec((thinking, Phase((SPEC,)))).breaks_grammar
    for phases in ((Phase((SPEC,), thinking.ends), Phase()), (Phase((SPEC,), thinking.ends),)):
        with pytest.raises(SpecError, match="A phase with `at_end` has no ends") as error:
            PhasesSpec(phases)
        assert error.value.path == "$.phases[0].specs[0]"


def test_its_text_comes_before_what_others_force():
    """In any order of the specs: an end that is forced again and again does not cut the text."""
    for specs in ((SPEC, end := ForcedEndSpec(1, (4,), 0)), (end, SPEC)):
        lanes = compile_specs(specs).lanes
        assert lanes[0].automaton.moves
        assert not lanes[1].automaton.moves
