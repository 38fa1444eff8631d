"""The thinking tags of open models, with tokenizers that are made here."""

import re

import pytest
import torch
from logitport import spec as s
from logitport.adapters.core import Realizer, compile_specs
from logitport.spec import THINKING_FAMILIES, SpecError, ThinkingBudgetSpec
from tokenizers import Tokenizer, models

from tests.support.families import FAMILIES, SMOLLM2, filled, spec_of, tokenizer_of
from tests.support.paths import ROOT


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def decoded(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=False)


def generated(spec: s.PhasesSpec, tokenizer: Tokenizer, prompt: str, says: str) -> str:
    """What a model adds to a prompt that says ``says``, then only its last token."""
    size, output = tokenizer.get_vocab_size(), list[int]()
    said = encoded(tokenizer, says)
    realizer = Realizer(size)
    realizer.add(0, compile_specs((spec,)), encoded(tokenizer, prompt), output)
    for i in range(40):
        logits = torch.zeros(1, size)
        logits[0, said[min(i, len(said) - 1)]] = 1.0
        realizer.apply(logits)
        output.append(int(logits[0].argmax()))
    return decoded(tokenizer, output)


@pytest.mark.parametrize("name", FAMILIES)
def test_think_then(name: str):
    """The prompt opens the block; the model would think for ever, and then answers."""
    tokenizer, family = tokenizer_of(name), filled(FAMILIES[name])
    yes, no = (tuple(encoded(tokenizer, text)) for text in (" yes", " no"))
    answer = s.ForcedTokenSequenceSpec(tuple(encoded(tokenizer, "Answer:")))
    spec = s.PhasesSpec.think_then(spec_of(name, 3), answer, s.ChoiceSpec((yes, no)))
    for text in family.start:
        made = generated(spec, tokenizer, f"Hi.{text}", "w")
        assert re.fullmatch(rf"www{re.escape(family.end[0] + family.then)}Answer: (yes|no)w+", made)
    # The model's own end is recognized in any of the texts.
    for text in family.end:
        spec = s.PhasesSpec.think_then(spec_of(name, 30), answer)
        made = generated(spec, tokenizer, f"Hi.{family.start[0]}", f"w.{text}w")
        assert re.fullmatch(rf"w\.{re.escape(text)}Answer:w+", made)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_of_a_tokenizer(name: str):
    tokenizer, family = tokenizer_of(name), FAMILIES[name]
    if family.tokens:
        assert s.thinking_family(tokenizer) == filled(family)
    else:
        with pytest.raises(
            SpecError,
            match=r"no known thinking tags\..* name the model's `family`, one of hunyuan",
        ):
            s.thinking_family(tokenizer)
    assert s.thinking_family(tokenizer, name) == filled(family)


def test_refused():
    text, qwen = tokenizer_of("olmo-3"), tokenizer_of("think")
    with pytest.raises(SpecError, match=r"^Expected a family of .*: gpt-oss, .*; got 'nope'$"):
        s.thinking_family(qwen, "nope")
    with pytest.raises(SpecError, match=r"no token '\[THINK\]', which 'magistral' needs"):
        s.thinking_family(qwen, "magistral")
    with pytest.raises(SpecError, match="Expected a tokenizer with a vocabulary, got str"):
        s.thinking_family("qwen")  # pyright: ignore
    with pytest.raises(SpecError, match="no token with a newline"):
        s.newline_token_ids(Tokenizer(models.WordLevel({"Ċ": 0}, "Ċ")))

    class Plain:
        """A tokenizer that takes special tokens in a text for text."""

        encode, decode = text.encode, text.decode
        get_vocab = tokenizer_of("gpt-oss").get_vocab

    with pytest.raises(SpecError, match=r"does not make the token '<\|channel\|>' of"):
        ThinkingBudgetSpec.for_tokenizer(1, Plain())


def test_all_fields():
    tokenizer = tokenizer_of("gpt-oss")
    spec = ThinkingBudgetSpec.for_tokenizer(9, tokenizer, message=" no", min_tokens=2, grace=5)
    ids = tokenizer.token_to_id
    assert spec.end_token_ids == (ids("<|end|>"),)
    assert spec.other_end_token_ids == ((ids("<|call|>"),), (ids("<|return|>"),))
    assert decoded(tokenizer, [*spec.message_token_ids]) == " no"
    assert (spec.budget, spec.min_tokens, spec.grace) == (9, 2, 5)
    assert spec.newline_token_ids == s.newline_token_ids(tokenizer)
    texts = [tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size())]
    assert spec.newline_token_ids == tuple(i for i, text in enumerate(texts) if "\n" in text)


@pytest.mark.skipif(not SMOLLM2.exists(), reason="`make demo` fetches the model")
def test_tags_that_merge():
    """A tokenizer of a real model writes a text tag in several ways."""
    tokenizer = Tokenizer.from_file(str(SMOLLM2))
    spec = ThinkingBudgetSpec.for_tokenizer(9, tokenizer, family="olmo-3")
    names = [[tokenizer.id_to_token(i) for i in tag] for tag in spec.other_start_token_ids]
    assert names == [["Ġ<", "think", ">"], [".<", "think", ">"], [")<", "think", ">"]]


def table() -> str:
    """The table in the docs."""
    rows = [
        "| family | models | start | end | forced after a forced end | tokens |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for family in THINKING_FAMILIES:
        spec = spec_of(family.name, 1)
        starts = spec.start_token_ids, *spec.other_start_token_ids
        ends = spec.end_token_ids, *spec.other_end_token_ids
        sizes = [", ".join(str(len(tag)) for tag in tags) for tags in (starts, ends)]
        found = f"{sizes[0]}; {sizes[1]}" if family.tokens else "text, in several spellings"
        texts = (family.start, family.end, filter(None, (family.then,)))
        shown = [", ".join(map(code, each)) for each in texts]
        rows.append(" | ".join([f"| `{family.name}`", family.models, *shown, f"{found} |"]))
    return "\n".join(rows) + "\n"


def code(text: str) -> str:
    return "`" + text.replace("\n", "\\n").replace("|", "\\|") + "`"


def test_table_in_the_docs():
    assert table() in (ROOT / "docs" / "thinking.md").read_text(encoding="utf-8")
