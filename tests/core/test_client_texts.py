"""Texts in place of token ids, at the admission of an engine that has a tokenizer, or has none."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from logitport.adapters import REALIZABLE, Backend, Policy, admission, admit
from logitport.spec import ChoiceSpec, SpecError, ThinkingBudgetSpec, decode, encode, limits
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.support.families import tokenizer_of
from tests.support.small_tokenizer import CAT, GREEDY, S

BACKEND = Backend("test", REALIZABLE)
TEXT = '{"version":1,"specs":[{"kind":"choice","texts":["cat","cats"]}]}'


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    admission.forget()
    yield
    admission.forget()


def backend(tokenizer: Any) -> Backend:
    return BACKEND.for_tokenizer(tokenizer, 12)


def test_admits_what_ids_admit():
    payload, program = admit(backend(GREEDY), TEXT, 12)
    assert payload.specs == (ChoiceSpec(((CAT,), (CAT, S)), 0),)
    same = admit(backend(GREEDY), encode(payload.specs), 12)
    assert same[0] == payload
    assert [each.cells for each in program.automata] == [each.cells for each in same[1].automata]
    assert admit(backend(GREEDY), TEXT, 12)[1] is program
    assert admit(backend(GREEDY), json.loads(TEXT), 12)[0] == payload


def test_refuses_without_a_tokenizer():
    for _ in range(2):  # the second time by the cache
        with pytest.raises(SpecError, match="needs the model's tokenizer") as error:
            admit(BACKEND, TEXT, 12)
        assert error.value.path == "$.specs[0].texts[0]"
    assert admit(backend(GREEDY), TEXT, 12)[0].specs  # a refusal is that of one backend


@pytest.mark.parametrize("form", [str, json.loads])
def test_errors_of_an_engine_name_the_text(form: Any):
    with pytest.raises(SpecError, match="Token id 11 is beyond the vocabulary of 11") as error:
        admit(backend(GREEDY), form(TEXT), 11)
    assert error.value.path == "$.specs[0].texts[1]"


@pytest.mark.parametrize("decodes", [True, False])
def test_errors_have_the_texts_of_tokens(decodes: bool):
    """As far as the server's tokenizer decodes, and for clients who sent texts."""
    tokenizer, text = (Digits(), "3")
    if decodes:
        transformers = pytest.importorskip("transformers")
        fast = tokenizer_of("think")
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=fast, eos_token="</think>"
        )
        text = "</think>"
    ban = {"kind": "banned_tokens", "tokens": [text]}
    specs = [{"kind": "forced_sequence", "text": text, "eos_token_id": None}, ban]
    made = BACKEND.for_tokenizer(tokenizer, 400)
    with pytest.raises(SpecError, match=r"bans token \d+") as error:
        admit(made, specs, 400)
    assert str(error.value).endswith(
        (f", {text!r}" if decodes else "4") + " - at `$.specs[0].text`"
    )
    sent = encode(decode(specs, tokenizer).specs)
    with pytest.raises(SpecError, match=r"bans token \d+ - at"):
        admit(made, sent, 400)
    if decodes:
        says = "`<|eot_id|>` is no token of this model; its end token is `</think>`"
        with pytest.raises(SpecError, match=re.escape(says)):
            admit(made, [{"kind": "no_loop", "times": 3, "then_text": "<|eot_id|>"}], 400)


def test_policy_sees_token_ids():
    text = '[{"kind":"thinking_budget","budget":9,"start_text":"5","end_text":"d"}]'
    policy = Policy((ThinkingBudgetSpec(1, (1,), (2,)),), own="add")
    made = Backend("test", REALIZABLE, tokenizer=GREEDY, policy=policy)
    assert len(admit(made, text, 12)[0].specs) == 2


class Digits:
    eos_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [int(each) + 1 for each in text]


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore
    tokenizer.add_special_tokens(["<think>"])
    return tokenizer


def test_truncation_and_padding_of_other_requests():
    tokenizer = word_level()
    tokenizer.enable_truncation(1)
    tokenizer.enable_padding(length=8)
    text = '[{"kind":"forced_sequence","text":"a b<think>a","eos_token_id":null}]'
    (spec,) = admit(backend(tokenizer), text, 12)[0].specs
    assert spec.token_ids == (1, 2, 3, 1)  # pyright: ignore
    assert tokenizer.encode("a b").ids == [1, *[0] * 7]  # as it was


def test_most_texts_are_admitted():
    """By themselves; ``docs/security.md`` has the time."""
    texts = [f"{i:08}" for i in range(limits.MAX_CLIENT_TEXT_BYTES // 16)]  # each counts 8 more
    tokenizer = Digits()  # a backend keeps none alive
    (spec,) = admit(backend(tokenizer), [{"kind": "choice", "texts": texts}], 12)[0].specs
    assert spec.sizes().token_ids == limits.MAX_CLIENT_TEXT_BYTES


def test_tokenizer_that_fails_once():
    """Its refusal is not kept."""

    class Fails(Digits):
        failed = False

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            if not self.failed:
                self.failed = True
                raise RuntimeError("Already borrowed")
            return super().encode(text, add_special_tokens=add_special_tokens)

    tokenizer, text = Fails(), '[{"kind":"forced_sequence","text":"12"}]'
    with pytest.raises(SpecError, match="Already borrowed"):
        admit(backend(tokenizer), text, 12)
    assert admit(backend(tokenizer), text, 12)[0].specs
