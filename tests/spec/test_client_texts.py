"""Texts in place of token ids, as clients without a tokenizer send them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from logitport.spec import SpecError, StandIn, decode, encode, json_schema, limits
from logitport.spec.texts import TEXT_FIELDS

from tests.support.small_tokenizer import CAT, GREEDY, Greedy, NoEos, S
from tests.support.transcripts import check, inputs, transcripts

CHOICE = {"kind": "choice", "texts": ["cat", "cats"]}


def sent(*specs: Any) -> dict[str, Any]:
    return {"version": 1, "specs": list(specs)}


def resolved(_: str, text: str) -> Iterator[str]:
    """Resolve the texts of a payload, in each form: the same with token ids."""
    given = json.loads(text)
    jsonschema.validate(given, json_schema())
    (spec,) = decode(given, GREEDY).specs
    for form in (text, text.encode(), given["specs"]):
        assert decode(form, GREEDY).specs == (spec,)
    assert given == json.loads(text)
    assert decode(given, StandIn()).specs[0].kind == spec.kind
    with pytest.raises(SpecError, match="needs the model's tokenizer") as error:
        decode(sent({"kind": "banned_text", "texts": ["dog"]}, *given["specs"]))
    assert error.value.path.startswith("$.specs[1].")
    yield encode(spec)


@transcripts("texts")
def test_transcript(file: Path, request: pytest.FixtureRequest):
    check(file, resolved, request)


def test_every_text_field_is_resolved():
    given = "".join(text for text, _ in inputs("texts/resolved.txt"))
    assert [name for name in TEXT_FIELDS if f'"{name}"' not in given] == []


@pytest.mark.parametrize("payload", [text for text, _ in inputs("payloads/texts.txt")])
def test_refuses_entries(payload: str):
    """As it refuses the whole payload, but for the paths."""
    given, errors = json.loads(payload), list[str]()
    for form in (given, given["specs"]):
        with pytest.raises(SpecError) as error:
            decode(form, GREEDY)
        errors.append(str(error.value))
    assert errors[1] == errors[0].replace("$.specs", "$")


MOST = "Expected at most 2048 bytes of texts in place of token ids"


@pytest.mark.parametrize(
    ("texts", "message", "index"),
    [
        (["5" * 2000, "5" * 24, "é"], MOST, 2),
        (["5"] * 300, f"{MOST}, with 8 more for each", 227),
        (["5" * (limits.MAX_CLIENT_TEXT_BYTES + 1)], MOST, 0),
        (["5", "\ud800"], "Expected valid Unicode", 1),
    ],
)
def test_refuses_texts(texts: list[str], message: str, index: int):
    with pytest.raises(SpecError, match=message) as error:
        decode(sent({"kind": "choice", "texts": texts}), GREEDY)
    assert error.value.path == f"$.specs[0].texts[{index}]"


class Marked(Greedy):
    tokens = *Greedy.tokens, *"<|xe>.", "<|im_end|>"
    eos_token_id: int | None = len(tokens) - 1


LOOP = {"kind": "no_loop", "times": 3}
ANOTHER = "5.<|xxx|>"  # as tokens: 5 . <| x x x |>


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({**LOOP, "then_text": ANOTHER}, ".then_text"),
        ({**LOOP, "then_text": " cat<|im_end|>"}, None),
        ({**LOOP, "then_text": ANOTHER, "start_text": "<think>", "end_text": "</think>"}, None),
        (
            {"kind": "phases", "phases": [{"ends": [{"tag_text": ANOTHER}]}]},
            ".phases[0].ends[0].tag_text",
        ),
        ({"kind": "phases", "phases": [{"ends": [{"tag_text": "</think>"}]}]}, None),
        (
            {"kind": "min_tokens", "n": 1, "stop_tokens": ["<|im_end|>", "<|xxx|>"]},
            ".stop_tokens[1]",
        ),
        ({"kind": "forced_sequence", "text": ANOTHER, "eos_token_id": None}, None),
    ],
)
def test_special_tokens_of_other_models(spec: dict[str, Any], path: str | None):
    decode(sent(spec), StandIn())
    if path is None:
        decode(sent(spec), Marked())
        return
    for end, says in ((Marked.eos_token_id, "; its end token is `<|im_end|>`"), (None, "")):
        tokenizer = Marked()
        tokenizer.eos_token_id = end
        with pytest.raises(SpecError) as error:
            decode(sent(spec), tokenizer)
        expected = f"`<|xxx|>` is no token of this model{says} - at `$.specs[0]{path}`"
        assert str(error.value) == expected


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
