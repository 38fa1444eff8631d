"""Banned and allowed scripts, over a vocabulary whose tokens overlap and split characters."""

import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from logitport.adapters.core import Realizer, Vocabulary, compile_specs
from logitport.adapters.reference.kinds.banned_scripts import completing
from logitport.spec import AllowedScriptsSpec, BannedScriptsSpec, MaxRunSpec, SpecError, limits

from tests.support.families import SMOLLM2
from tests.support.kinds import ScriptsTests, with_table
from tests.support.requests import assert_row, random_logits
from tests.support.scripts import BYTES, CASES, Specs, compiled, edits_of
from tests.support.strategies import STRATEGIES, Draws
from tests.support.texts import banned_after


class TestRows(ScriptsTests):
    golden = BannedScriptsSpec(("Han", "Old Italic"))
    largest = (
        BannedScriptsSpec(("a" * limits.MAX_NAME,)),
        BannedScriptsSpec(("Han",) * limits.MAX_SCRIPTS),
    )


@with_table
@pytest.mark.parametrize(
    "spec", [BannedScriptsSpec(("Han",)), AllowedScriptsSpec(("Latin",)), MaxRunSpec(1)]
)
@pytest.mark.parametrize("unknown", [None, lambda: None])
def test_without_a_vocabulary(spec: Any, unknown: Any):
    with pytest.raises(SpecError, match=f"`{spec.kind}` needs the vocabulary") as error:
        compile_specs([spec], unknown)
    assert error.value.path == "$.specs[0]"


TOKENS = {BYTES[i]: i for i in range(len(BYTES))}
Spec = BannedScriptsSpec | AllowedScriptsSpec


CYRILLIC = [" Привет", b"\xd0", b"\xd0\x9f\xd1"]
HAN = ["中文", b"\xe4\xb8", b"\xe5"]
CYR, ZH = BannedScriptsSpec(("Cyrillic",)), BannedScriptsSpec(("Han",))
LATIN = AllowedScriptsSpec(("Latin",))
OTHERS = [*CYRILLIC, *HAN, "あ", "\u0378"]


@with_table
@pytest.mark.parametrize(
    ("specs", "output", "expected"),
    [
        ([CYR], [], CYRILLIC),
        ([BannedScriptsSpec(("CYRILLIC", "Cyrillic"))], [], CYRILLIC),
        # After D2, 85 is a combining mark, 8A and 9F are letters.
        ([CYR], [b"\xd2"], [*CYRILLIC, b"\x8a", b"\x8aa", b"\x9f", b"\xb7", b"\xb8"]),
        ([CYR], ["é", b"a\xd2"], [*CYRILLIC, b"\x8a", b"\x8aa", b"\x9f", b"\xb7", b"\xb8"]),
        ([CYR], [b"\xd2", None], CYRILLIC),
        ([CYR], [b"\xd2", "a"], CYRILLIC),
        ([CYR], [b"\xd2", b"\x85"], CYRILLIC),
        # E4 B7 begins hexagrams, and all else after E4 is Han.
        ([ZH], [], HAN),
        ([ZH], [b"\xe4"], [*HAN, b"\x9f", b"\x85", b"\x8a", b"\x8aa", b"\xb8"]),
        ([ZH], [b"\xe4", b"\xb7"], HAN),
        ([CYR, ZH], [], [*CYRILLIC, *HAN]),
        ([BannedScriptsSpec(("Han", "Cyrillic"))], [], [*CYRILLIC, *HAN]),
        ([LATIN], [], OTHERS),
        ([AllowedScriptsSpec(("Han", "Latin"))], [], [*CYRILLIC, "あ", "\u0378"]),
        ([AllowedScriptsSpec(("Han", "Latin")), LATIN], [], OTHERS),
        ([AllowedScriptsSpec(("Han", "Latin")), ZH], [], OTHERS),
        ([AllowedScriptsSpec(("Cherokee",))], [], [*OTHERS, "a", "é", b"a\xd2", b"\x8aa"]),
    ],
)
def test_what_completes_a_character(
    specs: list[Spec], output: list[str | bytes | None], expected: list[str | bytes]
):
    def ids(tokens: Sequence[str | bytes | None]) -> list[int]:
        return [TOKENS[each.encode() if isinstance(each, str) else each] for each in tokens]

    assert banned_after(specs, BYTES, ids(output)) == {*ids(expected)}
    assert completing(specs, texts_of(BYTES), tuple(ids(output))) == {*ids(expected)}


@with_table
@pytest.mark.parametrize("specs", [pytest.param(specs, id=name) for name, specs in CASES])
def test_a_ban_of_most_tokens_stays_a_ban(specs: Specs):
    """In whatever order the specs come: a list, a choice or the engine's own mask decides."""
    program = compiled(specs)
    for output in ([], [0], [3], [TOKENS[b"\xd2"]]):
        acting = edits_of(specs, output)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            before = random_logits(4, len(BYTES), len(output), dtype)
            before[0, 5:] = before[0, 1:4] = -torch.inf  # the engine leaves two Latin tokens
            for is_array in {False, dtype == torch.float32}:
                realizer, after = Realizer(len(BYTES)), before.clone()
                for row in range(4):
                    realizer.add(row, program, [], output)
                realizer.apply(after.numpy() if is_array else after)
                for row in range(4):
                    assert_row(before[row], after[row], acting)


PIECES = (*"a\u03b1\u0387\u03e2Ж\u0485中䷀々あ\u30fb1\u0301😀", "\u0378", "\U00010000")
pieces = st.sampled_from([each.encode() for each in PIECES])
cut = st.tuples(pieces, st.integers(0, 3), st.integers(1, 4)).map(
    lambda cut: cut[0][cut[1] : cut[2]]
)
token = st.lists(pieces | cut | st.binary(max_size=1), min_size=1, max_size=3).map(b"".join)
vocabularies = st.lists(
    token.filter(lambda each: each[:1] not in (b"", b"\xff")) | st.none(), min_size=1, max_size=20
)
any_spec = st.one_of(
    *(STRATEGIES[kind](Draws(2)) for kind in (BannedScriptsSpec, AllowedScriptsSpec))
)  # pyright: ignore


def texts_of(tokens: Sequence[bytes | None]) -> list[bytes | None]:
    """The tokens as a vocabulary takes them: what begins with FF is special."""
    return [None if each is None or each[:1] == b"\xff" else each for each in tokens]


@with_table
@given(st.lists(any_spec, min_size=1, max_size=3), vocabularies, st.data())
def test_bans_what_the_reference_bans(
    specs: list[Spec], tokens: list[bytes | None], data: st.DataObject
):
    tokens = [*tokens, None]  # there is always something left to choose
    for output in data.draw(
        st.lists(st.lists(st.integers(0, len(tokens) - 1), max_size=4), max_size=8)
    ):
        assert banned_after(specs, tokens, output) == completing(specs, tokens, tuple(output))


@with_table
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (BannedScriptsSpec(("Han", "Klingon")), "'Klingon' is no script"),
        (AllowedScriptsSpec(("Han", "Hani")), "'Hani' is no script"),
        (BannedScriptsSpec(("Han", "Unknown")), "'Unknown' is no script"),
        (BannedScriptsSpec(("Han", "common")), "'common' is shared by all scripts"),
        (AllowedScriptsSpec(("Han", "Inherited")), "'Inherited' is shared by all scripts"),
    ],
)
def test_names(spec: Spec, message: str):
    others = [AllowedScriptsSpec(("Latin",)), BannedScriptsSpec(("Han",))]
    with pytest.raises(SpecError) as error:
        compile_specs([*others, spec, *others], lambda: Vocabulary.of_tokens(BYTES))
    assert error.value.path == "$.specs[2].scripts[1]"
    assert error.value.message.endswith(message)


def test_without_the_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "fontTools.unicodedata", None)
    with pytest.raises(SpecError, match=r"needs fontTools.*'logitport\[scripts\]'") as error:
        compile_specs([BannedScriptsSpec(("Han",))], lambda: Vocabulary.of_tokens(BYTES))
    assert error.value.path == "$.specs[0]"


@with_table
def test_a_real_vocabulary():
    """Each token that holds a Cyrillic or Han character is banned."""
    if not SMOLLM2.exists():
        pytest.skip("SmolLM2 is not here")
    tokens = Vocabulary.of_tokenizer(SMOLLM2).tokens()
    banned = banned_after([BannedScriptsSpec(("Cyrillic", "Han"))], tokens, [])
    for i, token in enumerate(tokens):
        if re.search("[\u0410-\u044f\u4e00-\u9fa5]", token.decode(errors="ignore")):
            assert i in banned, token
