"""The language-neutral vectors are what the reference says, and the core does what they say."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from logitport.adapters.core import Realizer, Vocabulary, compile_specs
from logitport.adapters.core.contradictions import check_contradictions, may_lose
from logitport.adapters.gateway.receipt import digest_of
from logitport.adapters.reference.kinds import REALIZED
from logitport.spec import WIRE_KINDS, NativeSpec, SpecError, Stage, decode
from logitport.spec.base import kind_of
from logitport.spec.thinking_families import ThinkingFamily, ThinkingTags

from tests.support.requests import assert_row, random_logits
from tests.tools import vectors
from tests.tools.vectors import read_edit

VECTORS: dict[str, list[Any]] = json.loads(vectors.FILE.read_text(encoding="utf-8"))
EVERY = [kind_of(kind) for kind in WIRE_KINDS]


def test_file():
    """`python -m tests.tools.vectors` writes it. Change no vector that a release has had."""
    assert vectors.text().splitlines() == vectors.FILE.read_text(encoding="utf-8").splitlines()
    assert vectors.FILE.stat().st_size < 200_000


def test_every_kind_has_vectors():
    edited = {each["payload"]["specs"][0]["kind"] for each in VECTORS["edits"]}
    assert edited == {kind_of(kind) for kind in REALIZED} & {*EVERY}
    assert {each["payload"]["specs"][0]["kind"] for each in VECTORS["refused"]} == {*EVERY}


@pytest.mark.parametrize("kind", EVERY)
def test_core_edits_as_the_vectors_say(kind: str):
    """Step by step in one row, and from the whole history in another."""
    for vector in VECTORS["edits"]:
        payload = decode(vector["payload"])
        if payload.specs[0].kind != kind:
            continue
        size, prompt = vector["vocab_size"], vector["prompt_ids"]
        payload.check_vocabulary(size)
        program = replace(compile_specs(payload.specs), continued=payload.continued)
        realizer, output = Realizer(size), list[int]()
        realizer.add(0, program, prompt, output)
        for n, acting in enumerate(vector["edits"]):
            realizer.add(1, program, prompt, vector["output_ids"][:n])
            before = random_logits(1, size, n, torch.float32).repeat(2, 1)
            after = before.clone()
            realizer.apply(after)
            for row in range(2):
                assert_row(before[row], after[row], [*map(read_edit, acting)])
            output.extend(vector["output_ids"][n : n + 1])


@pytest.mark.parametrize("vector", VECTORS["text_edits"])
def test_core_edits_text_as_the_vectors_say(vector: Any):
    specs = decode(vector["payload"]).specs
    tokens = [None if token is None else bytes.fromhex(token) for token in vector["vocabulary"]]
    program = compile_specs(specs, lambda: Vocabulary.of_tokens(tokens))
    realizer = Realizer(len(tokens))
    for n, acting in enumerate(vector["edits"]):
        realizer.add(0, program, [], vector["output_ids"][:n])
        before = random_logits(1, len(tokens), n, torch.float32)
        after = before.clone()
        realizer.apply(after)
        assert_row(before[0], after[0], [*map(read_edit, acting)])


@pytest.mark.parametrize("vector", VECTORS["conflicts"])
def test_conflicts(vector: Any):
    def admit() -> tuple[str, ...]:
        specs = decode(vector["payload"]).specs
        if any(isinstance(spec, NativeSpec) for spec in specs):
            return ()
        arguments = specs, compile_specs(specs), vector["vocab_size"]
        check_contradictions(*arguments)
        return may_lose(*arguments)

    if vector["refused"]:
        with pytest.raises(SpecError):
            admit()
    else:
        assert {*admit()} >= {*vector.get("may_lose", ())}


@pytest.mark.parametrize("vector", VECTORS["payloads"], ids=lambda each: each["text"])
def test_payloads(vector: Any):
    if "path" in vector:
        with pytest.raises(SpecError) as error:
            decode(vector["text"])
        assert error.value.path == vector["path"]
    else:
        payload = decode(vector["text"])
        assert [stage for stage in Stage if payload.is_active(stage)] == vector["stages"]
        assert digest_of(vector["text"]) == vector["digest"]


def test_one_digest_for_all_texts_that_say_the_same():
    digests = [each["digest"] for each in VECTORS["payloads"] if "digest" in each]
    same = digests[0], digests[1], *digests[3:6]
    assert len({*same}) == 1
    assert digests[7::2] == digests[8::2]
    assert len({*digests}) == 5


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda each: each["path"])
def test_refused(vector: Any):
    with pytest.raises(SpecError) as error:
        decode(vector["payload"]).check_vocabulary(vector.get("vocab_size", 1 << 31))
    assert error.value.path == vector["path"]


@pytest.mark.parametrize("vector", VECTORS["texts"])
def test_texts(vector: Any):
    """A tokenizer that knows the vector's texts alone is enough."""
    if "path" in vector:
        with pytest.raises(SpecError) as error:
            decode(vector["payload"], Tokens(vector))
        assert error.value.path == vector["path"]
    else:
        assert decode(vector["payload"], Tokens(vector)) == decode(vector["resolved"])


class Tokens:
    """The tokenizer of a vector."""

    def __init__(self, vector: Any) -> None:
        self.tokens, self.eos_token_id = vector["tokens"], vector["eos_token_id"]
        self.tags = vector.get("tags")

    def thinking_tags(self, stated: ThinkingFamily | None) -> ThinkingTags:
        start, end, then = (self.tags[name] for name in ("start", "end", "then"))
        family = ThinkingFamily("", "", ("",) * len(start), ("",) * len(end))
        return ThinkingTags(family, [*map(tuple, start)], [*map(tuple, end)], tuple(then))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self.tokens[text]
