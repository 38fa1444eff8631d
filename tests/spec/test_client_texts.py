"""Texts in place of token ids, as clients without a tokenizer send them."""

import json
import re
from typing import Any

import jsonschema
import pytest
from logitport import spec as s
from logitport.spec import SpecError, StandIn, decode, json_schema, limits
from logitport.spec.texts import TEXT_FIELDS

from tests.support.small_tokenizer import CAT, END, FIVE, GREEDY, SPACE_CAT, THINK, D, NoEos, S

TAGS = {"start_text": "<think>", "end_text": "</think>"}
CHOICE = {"kind": "choice", "texts": ["cat", "cats"]}

# fields of a spec on the wire | the spec
RESOLVED: list[tuple[dict[str, Any], s.LogitsProcessorSpec]] = [
    (
        {"kind": "forced_sequence", "text": "cats"},
        s.ForcedTokenSequenceSpec((CAT, S), 0),
    ),
    (
        {"kind": "forced_sequence", "text": "cats", "eos_token_id": None},
        s.ForcedTokenSequenceSpec((CAT, S)),
    ),
    (
        {"kind": "forced_sequence", "text": "cats", "eos_token_id": 7},
        s.ForcedTokenSequenceSpec((CAT, S), 7),
    ),
    ({"kind": "forced_end", "after": 3, "text": " cat"}, s.ForcedEndSpec(3, (SPACE_CAT,), 0)),
    (CHOICE, s.ChoiceSpec(((CAT,), (CAT, S)), 0)),
    (
        {"kind": "trigger", "trigger_text": " cat", "text": "55"},
        s.TriggerSpec((SPACE_CAT,), (FIVE, FIVE)),
    ),
    (
        {"kind": "trigger", "trigger_text": " cat", "token_ids": [8, 9]},
        s.TriggerSpec((SPACE_CAT,), (8, 9)),
    ),
    ({"kind": "banned_tokens", "tokens": ["<think>", "cat"]}, s.BannedTokensSpec((THINK, CAT))),
    ({"kind": "allowed_tokens", "tokens": ["5", "5"]}, s.AllowedTokensSpec((FIVE, FIVE))),
    ({"kind": "min_tokens", "n": 4, "stop_tokens": ["<eos>"]}, s.MinTokensSpec(4, (0,))),
    (
        {"kind": "sequence_bias", "texts": ["cats", "5"], "biases": [1, -2]},
        s.SequenceBiasSpec(sequences=((CAT, S), (FIVE,)), biases=(1.0, -2.0)),
    ),
    (
        {"kind": "thinking_budget", "budget": 9, **TAGS, "message_text": "cats"},
        s.ThinkingBudgetSpec(9, (THINK,), (END,), (CAT, S)),
    ),
    (
        {
            "kind": "thinking_budget",
            "budget": 9,
            **TAGS,
            "other_start_texts": ["cat", "d"],
            "other_end_texts": ["cats"],
            "then_text": "5",
        },
        s.ThinkingBudgetSpec(9, (THINK,), (END,), (), ((CAT,), (D,)), ((CAT, S),), (FIVE,)),
    ),
    (
        {
            "kind": "phases",
            "phases": [
                {"ends": [{"text": "cat"}, {"tag_text": "</think>", "phase": 1}]},
                {"specs": [CHOICE]},
            ],
        },
        s.PhasesSpec(
            (
                s.Phase((), (s.PhaseEnd(text="cat"), s.PhaseEnd(token_ids=(END,), phase=1))),
                s.Phase((s.ChoiceSpec(((CAT,), (CAT, S)), 0),)),
            )
        ),
    ),
]


def sent(*specs: Any) -> dict[str, Any]:
    return {"version": 1, "specs": list(specs)}


@pytest.mark.parametrize(("fields", "spec"), RESOLVED)
def test_resolves(fields: dict[str, Any], spec: s.LogitsProcessorSpec):
    given = sent({"kind": "banned_text", "texts": ["dog"]}, fields)
    before = json.dumps(given)
    for form in (given, before, before.encode(), given["specs"]):
        assert decode(form, GREEDY).specs[1] == spec
    assert json.dumps(given) == before
    jsonschema.validate(given, json_schema())
    assert decode(given, StandIn()).specs[1].kind == spec.kind
    with pytest.raises(SpecError, match="needs the model's tokenizer") as error:
        decode(given)
    assert error.value.path.startswith("$.specs[1].")


def test_every_text_field_is_resolved():
    resolved = json.dumps([fields for fields, _ in RESOLVED])
    assert [name for name in TEXT_FIELDS if f'"{name}"' not in resolved] == []


# fields of a spec on the wire | message | path in the spec
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"kind": "choice", "texts": ["cat", ""]}, "makes no tokens of ''", ".texts[1]"),
    ({"kind": "choice", "texts": []}, "length >= 1", ".texts"),
    ({"kind": "choice", "texts": "cat"}, "Expected `array`, got `str`", ".texts"),
    ({"kind": "choice", "texts": ["5", 5]}, "Expected `str`, got `int`", ".texts[1]"),
    ({"kind": "choice", "texts": None}, "Expected `array`, got `null`", ".texts"),
    (
        {"kind": "choice", "texts": ["cat", "5", "cat"]},
        r"The same as `\$.*texts\[0\]`",
        ".texts[2]",
    ),
    ({"kind": "max_run", "n": 1, "texts": ["ab", "a"]}, r"Begins with `", ".texts[0]"),
    ({"kind": "max_run", "n": 1, "texts": ["ab", "bc"]}, r"Ends like `", ".texts[0]"),
    ({**CHOICE, "eos_token_id": None}, "Expected an eos_token_id", ".texts[0]"),
    ({**CHOICE, "choices": [[1]]}, "Expected choices or texts, got both", ".texts"),
    ({**CHOICE, "x": 1}, "unknown field `x`", ""),
    ({"kind": "choice"}, "missing required field `choices` or `texts` - ", ""),
    ({"kind": "choice", "text": "cat"}, "unknown field `text`; did you mean texts", ""),
    ({"kind": "choice", "choices": ["cat"]}, "got `str`; `texts` takes texts", ".choices[0]"),
    ({"kind": "allowed_tokens", "token_ids": ["5"]}, "; `tokens` takes texts", ".token_ids[0]"),
    ({"kind": "forced_sequence", "token_ids": "5"}, "; `text` takes texts", ".token_ids"),
    (
        {"kind": "phases", "phases": [{"specs": [{"kind": "min_tokens", "n": "5"}]}]},
        "Expected `int`, got `str` - ",
        ".phases[0].specs[0].n",
    ),
    ({"kind": "banned_sequences", "texts": ["cat"]}, "unknown field `texts`", ""),
    ({"kind": "banned_tokens", "tokens": ["cats"]}, "Expected one token, got the 2", ".tokens[0]"),
    ({"kind": "forced_sequence", "text": "\ud800"}, "Expected valid Unicode", ".text"),
    (
        {"kind": "trigger", "trigger_text": "5" * 65, "text": "5"},
        "at most 64 token ids to look for",
        ".trigger_text",
    ),
    (
        {"kind": "thinking_budget", "budget": 1, **TAGS, "other_end_texts": ["5", "</think>"]},
        r"The same as `\$.*end_text`",
        ".other_end_texts[1]",
    ),
    (
        {"kind": "thinking_budget", "budget": 1, **TAGS, "stop_tokens": ["5", "</think>"]},
        r"The same as `\$.*end_text`",
        ".stop_tokens[1]",
    ),
    (
        {"kind": "phases", "phases": [{"ends": [{"tag_text": "5" * 65}]}, {}]},
        "at most 64 token ids",
        ".phases[0].ends[0].tag_text",
    ),
    (
        {"kind": "choice", "texts": ["5" * 2000, "5" * 24, "é"]},
        "Expected at most 2048 bytes of texts in place of token ids",
        ".texts[2]",
    ),
    (
        {"kind": "choice", "texts": ["5"] * 300},
        "Expected at most 2048 bytes of texts in place of token ids, with 8 more for each",
        ".texts[227]",
    ),
    (
        {"kind": "forced_sequence", "text": "5" * (limits.MAX_CLIENT_TEXT_BYTES + 1)},
        "Expected at most 2048 bytes of texts in place of token ids",
        ".text",
    ),
]


@pytest.mark.parametrize(("fields", "message", "path"), REFUSED)
def test_refuses(fields: dict[str, Any], message: str, path: str):
    for form, root in ((sent(fields), "$.specs[0]"), ([fields], "$[0]")):
        with pytest.raises(SpecError, match=message) as error:
            decode(form, GREEDY)
        assert error.value.path == root + path
        others = re.findall(r"`(\$.*?)`", error.value.message)
        assert [each for each in others if not each.startswith(root)] == []


def test_eos_of_the_tokenizer():
    with pytest.raises(SpecError, match="has no EOS token") as error:
        decode(sent(CHOICE), NoEos())
    assert error.value.path == "$.specs[0].eos_token_id"
    assert decode(sent({**CHOICE, "eos_token_id": 3}), NoEos()).specs


def test_tokenizer_that_fails():
    class Fails:
        def encode(self, text: str, *, add_special_tokens: bool) -> Any:
            raise RuntimeError("Already borrowed")

    with pytest.raises(SpecError, match="The tokenizer fails: Already borrowed") as error:
        decode(sent(CHOICE), Fails())
    assert error.value.path == "$.specs[0].texts[0]"


def test_stand_in_refuses_nothing_that_depends_on_tokens():
    specs = (
        {"kind": "forced_sequence", "text": "cats"},
        {"kind": "allowed_tokens", "token_ids": [CAT, S, 0]},
        {"kind": "banned_tokens", "tokens": ["cats"]},
    )
    assert len(decode(sent(*specs), StandIn()).specs) == 3


def test_a_payload_with_texts_is_short():
    ids = {"kind": "banned_tokens", "token_ids": [123456] * 10_000}
    assert decode(sent(ids), GREEDY)
    with pytest.raises(SpecError, match="The payload has texts, and 80"):
        decode(json.dumps(sent(ids, CHOICE)), GREEDY)
