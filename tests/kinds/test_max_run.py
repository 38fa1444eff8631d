"""Runs of characters, over a vocabulary whose tokens overlap and split characters."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport.adapters.core import Vocabulary
from logitport.adapters.reference.kinds.max_run import completing
from logitport.spec import GrammarSpec, MaxRunSpec, SpecError, encode, limits
from logitport.spec.kinds.max_run import WHITE_SPACE

from tests.support.families import SMOLLM2
from tests.support.kinds import AT_LEAST_1, KindTests
from tests.support.strategies import Draws, max_runs
from tests.support.texts import banned_after

MOST = limits.MAX_PATTERN
IN_ALL = f"Expected at most {limits.MAX_TEXT_BYTES} bytes in all, got "


class TestRows(KindTests):
    golden = MaxRunSpec(8, (" ", "\n", "\u3000"))
    refused = (
        ({"n": 0}, AT_LEAST_1, "n"),
        ({"n": MOST + 1}, f"Expected `int` <= {MOST}", "n"),
        ({"n": 1, "texts": [""]}, "Expected `str` of length >= 1", "texts[0]"),
        ({"n": 1, "texts": ["é" * 33]}, "Expected at most 64 bytes in UTF-8, got 66", "texts[0]"),
        ({"n": 1, "texts": ["ab", "c", "abd"]}, "Begins with `$.texts[0]`", "texts[2]"),
        ({"n": 1, "texts": ["a", "a"]}, "Begins with `$.texts[0]`", "texts[1]"),
        ({"n": 1, "texts": ["\n", "\r\n"]}, "Ends like `$.texts[0]` begins", "texts[1]"),
        ({"n": 1, "texts": ["ab", "bc"]}, "Ends like `$.texts[1]` begins", "texts[0]"),
        ({"n": 1, "texts": ["aba"]}, "Ends like `$.texts[0]` begins", "texts[0]"),
        ({"n": 64, "texts": ["\u3000", "é"]}, f"{IN_ALL}256", "texts"),
    )
    largest = (MaxRunSpec(MOST), MaxRunSpec(3, ("x" + "y" * (MOST - 1),)))


def test_characters_are_unicode():
    with pytest.raises(SpecError, match="Expected valid Unicode"):
        MaxRunSpec(1, ("\ud800",))


def test_white_space_is_left_out_of_a_payload():
    assert '"specs":[{"kind":"max_run","n":8}]' in encode(MaxRunSpec(8))


TOKENS = (b"{", b" ", b"  ", b"\n \n", b" a", b"a ", b"a", b"\xe3\x80", b"\x80", None)
OPEN, SPACE, TWO, LINES, SPACE_A, A_SPACE, A, IDEO, GRAPHIC, SPECIAL = range(10)


@pytest.mark.parametrize(
    ("spec", "output", "expected"),
    [
        (MaxRunSpec(2), [], {LINES}),
        (MaxRunSpec(2), [OPEN, SPACE], {LINES, TWO}),
        (MaxRunSpec(2), [OPEN, TWO], {LINES, TWO, SPACE, SPACE_A}),
        (MaxRunSpec(2), [A_SPACE], {LINES, TWO}),
        (MaxRunSpec(2), [TWO, A], {LINES}),
        (MaxRunSpec(2), [TWO, SPECIAL], {LINES}),
        (MaxRunSpec(3), [A_SPACE, SPACE], {LINES, TWO}),
        (MaxRunSpec(1, ("a",)), [], set()),
        (MaxRunSpec(1, ("a",)), [SPACE_A], {A, A_SPACE}),
        (MaxRunSpec(1, ("\u3000", " ")), [IDEO], {TWO}),
        (MaxRunSpec(1, ("\u3000", " ")), [IDEO, GRAPHIC], {SPACE, TWO, SPACE_A}),
        (MaxRunSpec(1, ("\u3000", " ")), [SPACE, IDEO], {GRAPHIC, TWO}),
        (MaxRunSpec(2, (" a",)), [SPACE_A, SPACE_A], {SPACE_A}),
        (MaxRunSpec(2, (" a",)), [SPACE_A, SPACE, A, SPACE], {A, A_SPACE}),
        (MaxRunSpec(2, (" a",)), [SPACE, A_SPACE, A_SPACE, A_SPACE], {A, A_SPACE}),
    ],
)
def test_what_is_banned(spec: MaxRunSpec, output: list[int], expected: set[int]):
    assert completing(spec, TOKENS, tuple(output)) == expected
    assert banned_after([spec], TOKENS, output) == expected


PIECES = (*"ab ", "\n", "h", "ha", "é", "è", "e", "\u3000")
pieces = st.sampled_from([piece.encode() for piece in PIECES]) | st.sampled_from(
    [bytes([byte]) for piece in PIECES for byte in piece.encode()]
)
vocabularies = st.lists(
    st.lists(pieces, min_size=1, max_size=5).map(b"".join) | st.none(), min_size=2, max_size=20
)


@given(max_runs(Draws(2)), vocabularies.map(tuple), st.data())
def test_bans_what_the_reference_bans(
    spec: MaxRunSpec, tokens: tuple[bytes | None, ...], data: st.DataObject
):
    output = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=12))
    assert banned_after([spec], tokens, output) == completing(spec, tokens, tuple(output))


@given(max_runs(Draws(2)), st.text("aha é\u3000\n", max_size=20))
def test_which_texts_it_bans(spec: MaxRunSpec, text: str):
    """A grammar of such choices is refused beside it."""
    any_text = "|".join(map(re.escape, spec.characters))
    assert spec.bans_text(text) == bool(re.search(f"(?:{any_text}){{{spec.n + 1}}}", text))


def test_a_choice_of_a_grammar_that_is_banned():
    with pytest.raises(SpecError, match="a grammar, which offers 'a   b'"):
        encode([GrammarSpec(choices=("a b", "a   b")), MaxRunSpec(2)])


def test_runs_in_a_real_vocabulary():
    """Half of all tokens begin with a space."""
    if not SMOLLM2.exists():
        pytest.skip("SmolLM2 is not here")
    vocabulary = Vocabulary.of_tokenizer(SMOLLM2)
    tokens = tuple(vocabulary.tokens())
    output = [tokens.index(b"{"), tokens.index(b"\n"), *[tokens.index(b" ")] * 2]
    for more in range(3):
        of_tokens = {
            i
            for i, token in enumerate(tokens)
            if token is not None
            and re.search(b"[ \t\n\r\v\f]{6}", b"\n" + b" " * (2 + more) + token)
        }
        assert (
            banned_after([MaxRunSpec(5)], tokens, output + [tokens.index(b" ")] * more) == of_tokens
        )
    assert len(of_tokens) > len(tokens) / 3
    assert MaxRunSpec(5).characters == WHITE_SPACE
