"""A request's own fields beside its specs: what contradicts is refused, with both places named."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from logitport import spec as lp
from logitport.adapters.native import check_grammar
from logitport.adapters.own_fields import check_bounds, check_own_fields, same_as

from tests.support.transcripts import check, transcripts

GRAMMARS = "structured_outputs", "response_format", "json_schema", "regex", "ebnf"


def checked(command: str, text: str) -> Iterator[str]:
    """Check the fields of a request, in the first line, beside the specs in the second.

    For ``fields``, each is written as the spec that it is the same as.
    """
    fields, *specs = map(json.loads, text.splitlines())
    given = lp.decode(specs[0]).specs if specs else ()
    try:
        if command == "fields":
            own = {name: lp.decode([each]).specs[0] for name, each in fields.items()}
            check_own_fields(given, own)
        elif command == "grammar":
            check_grammar(given, fields, GRAMMARS)
        else:
            check_bounds(fields)
    except lp.SpecError as error:
        yield str(error)


@transcripts("own_fields")
def test_transcript(file: Path, request: pytest.FixtureRequest):
    check(file, checked, request)


def test_a_field_beyond_the_limits_of_a_spec_is_not_compared():
    token_ids = tuple(range(lp.limits.MAX_TOKEN_IDS + 1))
    assert same_as(lp.AllowedTokensSpec, token_ids=token_ids) is None
    kept = token_ids[1:]
    assert same_as(lp.AllowedTokensSpec, token_ids=kept) == lp.AllowedTokensSpec(kept)


def test_the_bounds_of_an_object():
    with pytest.raises(lp.SpecError, match="where specs act, got") as error:
        check_bounds(SimpleNamespace(repetition_penalty=11))
    assert error.value.path == "repetition_penalty"


ONE, TWO = lp.AtEndSpec((5,), (0,)), lp.AtEndSpec((5,), (0, 2), 0.5)
HALF, DOUBLE = (lp.ChainSpec((lp.ChainStep(temperature=each),)) for each in (0.5, 2))
LAST = lp.PhasesSpec(
    (lp.Phase((), (lp.PhaseEnd(n=2),)), lp.Phase((lp.BannedTokensSpec((4,)), TWO)))
)


# a request's fields | its specs | the error's message and path
@pytest.mark.parametrize(
    ("fields", "specs", "message", "path"),
    [
        ({"temperature": 0.7}, [ONE], "", ""),
        ({"temperature": 0.5, "ignore_eos": False}, [TWO], "", ""),
        ({}, [TWO], "", ""),
        ({"ignore_eos": True}, [LAST], "`at_end` acts where a reply ends", "ignore_eos"),
        ({"ignore_eos": True}, [lp.BannedTokensSpec((4,))], "", ""),
        ({"ignore_eos": True, "stop_token_ids": [0, 9]}, [ONE], "", ""),
        ({"temperature": 1}, [TWO, HALF], "", ""),
        ({"temperature": 1}, [TWO, DOUBLE], "temperature, 2, by", "$.specs[0].temperature"),
        ({"temperature": 1}, [ONE, TWO], "temperature, 1, by", "$.specs[1].temperature"),
        (
            {"temperature": 0.6},
            [LAST],
            "end tokens add up; got 0.5",
            "$.specs[0].phases[1].specs[1].temperature",
        ),
        ({"do_sample": False, "temperature": 0.5}, [TWO], "temperature, 0, by", "temperature"),
        ({"temperature": 0}, [lp.AtEndSpec((5,), (0, 2), 0)], "", ""),
    ],
)
def test_beside_what_is_said_at_the_end(
    fields: dict[str, object], specs: list[lp.LogitsProcessorSpec], message: str, path: str
):
    if not message:
        check_bounds(fields, specs)
        return
    with pytest.raises(lp.SpecError, match=message) as error:
        check_bounds(SimpleNamespace(**fields), specs)
    assert error.value.path.endswith(path)


@pytest.mark.parametrize("choices", [["yes"] * 1000, [["yes"]]])
def test_a_grammar_that_is_left_to_the_engine(choices: list[object]):
    """So is a schema that is nested too deeply."""
    banned = (lp.BannedTextSpec(("yes", "[")),)
    check_grammar(banned, {"structured_outputs": {"choice": choices}}, GRAMMARS)
    check_grammar(banned, {"json_schema": "[" * 100_000}, GRAMMARS)
