"""Specs in whatever form they come: ``specs_of``, which every entry point in Python uses."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from logitport import spec as lp
from logitport.spec.payload import specs_of

from tests.support.forms import ENTRY, forms
from tests.support.small_tokenizer import FIVE, GREEDY, SPACE_CAT

SPEC = lp.ForcedTokenSequenceSpec((SPACE_CAT, FIVE), None)
BAN = lp.BannedTokensSpec((7,))


@pytest.mark.parametrize("form", forms(ENTRY))
def test_one(form: str):
    assert specs_of(forms(ENTRY)[form], GREEDY) == (SPEC,)
    assert len(lp.encode(forms(ENTRY)[form])) > 0
    with pytest.raises(lp.SpecError, match="A text needs the model's tokenizer"):
        specs_of(forms(ENTRY)[form])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (SPEC, (SPEC,)),
        ([BAN, SPEC], (BAN, SPEC)),
        ([BAN, ENTRY], (BAN, SPEC)),
        ((), ()),
        ([], ()),
    ],
)
def test_specs(given: Any, expected: Any):
    assert specs_of(given, GREEDY) == expected


def phases(first: Any) -> Any:
    return {"kind": "phases", "phases": [first, {}]}


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        ([BAN, {"kind": "choise"}], "$.specs[1].kind", "did you mean choice"),
        ({"kind": "choice", "texts": ["cat", "cat"]}, "$.specs[0].texts[1]", "same as"),
        ('[{"kind":"choice","texts":[]}]', "$[0].texts", "length >= 1"),
        ("yes", "$", "not valid JSON"),
        ('{"kind":"choice"}', "$", "put it into a list"),
        ({"version": 2, "specs": []}, "$.version", "newer"),
        (
            {"version": 1, "specs": [ENTRY], "generation_only": False},
            "$.generation_only",
            "as an argument",
        ),
        ([7], "$.specs[0]", "Expected a LogitsProcessorSpec, got 7"),
        ([BAN, {"kind": "choice", "text": "a"}], "$.specs[1]", "`text`; did you mean texts?"),
        ({"kind": "choice", "texts": ["5" * 3000]}, "$.specs[0].texts[0]", "at most 2048 bytes"),
        ([ENTRY] * 17, "$.specs", "16 specs"),
        ({}, "$.specs[0]", "missing required field `kind`"),
        ({"kind": "banned_words"}, "$.specs[0].kind", "did you mean banned_text?"),
        ({"kind": "json_schema"}, "$.specs[0].kind", "did you mean grammar?"),
        ({"kind": "banned_text", "words": ["a"]}, "$.specs[0]", "`words`; did you mean texts?"),
        ({"kind": "max_run", "x": 1}, "$.specs[0]", "`x`; there are kind, n, texts"),
        (phases({"end": []}), "$.specs[0].phases[0]", "`end`; did you mean ends?"),
        (
            phases({"ends": [{"tag": "a"}]}),
            "$.specs[0].phases[0].ends[0]",
            "`tag`; did you mean tags?",
        ),
        (
            {"kind": "automaton", "states": [{"edges": [{"sets": 1}]}]},
            "$.specs[0].states[0].edges[0]",
            "`sets`; there are state, token_set",
        ),
    ],
)
def test_refused(given: Any, path: str, message: str):
    with pytest.raises(lp.SpecError) as error:
        specs_of(given, GREEDY)
    assert error.value.path == path
    assert message in error.value.message
    with pytest.raises(lp.SpecError):
        lp.encode(given)


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        (partial(lp.BannedTextSpec, ("a",), ignorecase=True), "did you mean ignore_case?"),
        (partial(lp.BannedTextSpec, words=("a",)), "did you mean texts?"),
        (partial(lp.ChoiceSpec, texts=("a",)), "from_text takes texts and a tokenizer"),
        (partial(lp.SequenceBiasSpec, texts=("a",)), "from_words takes texts and a tokenizer"),
        (partial(lp.NoLoopSpec, 2, end_text="a"), "decode takes texts and a tokenizer"),
        (partial(lp.PhaseEnd, texts="a"), "did you mean text?"),
        (partial(lp.MaxRunSpec, x=1), "there are n, texts"),
        (partial(lp.MaxRunSpec), r"\AMissing required argument 'n'\Z"),
    ],
)
def test_arguments(made: partial[Any], asked: str):
    with pytest.raises(TypeError, match=asked.replace("?", "\\?")):
        made()


def test_a_callable_is_no_object_of_the_wire():
    with pytest.raises(lp.SpecError, match="cannot be serialized") as error:
        lp.encode([ENTRY, lp.PythonProcessorSpec(list)])
    assert error.value.path == "$.specs[1]"


class Model:
    """llama.cpp's model, within llama-cpp-python's classes."""

    def tokenize(self, text: bytes, *, add_bos: bool, special: bool) -> list[int]:
        assert (add_bos, special) == (False, True)
        return GREEDY.encode(text.decode(), add_special_tokens=False)

    def token_eos(self) -> int:
        return 0


class LlamaTokenizer:
    """llama-cpp-python's tokenizer."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def detokenize(self, tokens: list[int]) -> bytes:
        raise NotImplementedError

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        raise NotImplementedError


class NoEos(Model):
    def token_eos(self) -> int:
        return -1


OWN = LlamaTokenizer(Model())
OF_HUGGING_FACE = SimpleNamespace(hf_tokenizer=GREEDY, detokenize=None)


@pytest.mark.parametrize(
    "tokenizer",
    [
        OWN,
        SimpleNamespace(tokenizer_=OWN),  # a Llama
        OF_HUGGING_FACE,
        SimpleNamespace(tokenizer_=OF_HUGGING_FACE),
    ],
)
def test_a_tokenizer_of_llama_cpp(tokenizer: Any):
    assert specs_of(ENTRY, tokenizer) == (SPEC,)
    spec = lp.ForcedTokenSequenceSpec.from_text(" cat5", tokenizer)
    assert spec == lp.ForcedTokenSequenceSpec((SPACE_CAT, FIVE), 0)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (LlamaTokenizer(NoEos()), "LlamaTokenizer has no EOS token"),
        (SimpleNamespace(encode=lambda text: [1]), "Expected a tokenizer of Hugging Face or"),
        (SimpleNamespace(detokenize=None), "Expected a tokenizer, got"),
        ("SmolLM2", "Expected a tokenizer, got 'SmolLM2'"),
        (7, "Expected a tokenizer, got 7"),
    ],
)
def test_no_tokenizer(tokenizer: Any, message: str):
    with pytest.raises(lp.SpecError, match=message):
        lp.ForcedTokenSequenceSpec.from_text(" cat5", tokenizer)
