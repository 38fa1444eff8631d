"""Banned texts, over a vocabulary whose tokens overlap and split characters."""

import random
import re
import string
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from logitport.adapters import REALIZABLE, Backend, admission, admit
from logitport.adapters.core import Realizer, Vocabulary, compile_specs
from logitport.adapters.core.kinds.banned_text import _variants
from logitport.adapters.reference.automata import edit_of
from logitport.adapters.reference.kinds.banned_text import completing
from logitport.spec import BannedTextSpec, BannedTokensSpec, SpecError, encode, limits
from logitport.spec.kinds.banned_text import SEPARATORS, in_word

from tests.support.automata import fold, folded, walk
from tests.support.kinds import SOME, KindTests
from tests.support.strategies import Draws, banned_texts

EMPTY = "Expected `str` of length >= 1"
TOO_LONG = f"Expected `str` of length <= {limits.MAX_PATTERN}"
IN_BYTES = f"Expected at most {limits.MAX_PATTERN} bytes in UTF-8, got {limits.MAX_PATTERN + 1}"
IN_ALL = f"Expected at most {limits.MAX_TEXT_BYTES} bytes in all, got {limits.MAX_TEXT_BYTES + 1}"
IN_A_WORD = "Expected a text that begins and ends in a word, because of `whole_words`"
ACCENTS_ALONE = "Expected a text that is more than accents, because of `ignore_accents`"
FULL = ("x" * limits.MAX_PATTERN,) * (limits.MAX_TEXT_BYTES // limits.MAX_PATTERN)


class TestRows(KindTests):
    golden = BannedTextSpec((" banana", "Größe"), ignore_case=True)
    refused = (
        ({"texts": []}, SOME, "texts"),
        ({"texts": "ab"}, "Expected `array`, got `str`", "texts"),
        ({"texts": ["a", ""]}, EMPTY, "texts[1]"),
        ({"texts": ["a", 1]}, "Expected `str`, got `int`", "texts[1]"),
        (
            {"texts": ["a"] * (limits.MAX_TEXT_BYTES + 1)},
            f"Expected at most {limits.MAX_TEXT_BYTES} entries",
            "texts",
        ),
        ({"texts": ["a" * (limits.MAX_PATTERN + 1)]}, TOO_LONG, "texts[0]"),
        ({"texts": ["a", "é" * 31 + "狐"]}, IN_BYTES, "texts[1]"),
        ({"texts": [*FULL, "x"]}, IN_ALL, "texts"),
        ({"texts": ["a"], "ignore_case": 1}, "Expected `bool`, got `int`", "ignore_case"),
        ({"texts": ["a", " b"], "whole_words": True}, IN_A_WORD, "texts[1]"),
        ({"texts": ["C++"], "whole_words": True}, IN_A_WORD, "texts[0]"),
        ({"texts": ["a"], "ignore_accents": 1}, "Expected `bool`, got `int`", "ignore_accents"),
        ({"texts": ["a", "\u0301"], "ignore_accents": True}, ACCENTS_ALONE, "texts[1]"),
        (
            {"texts": ["\u0301 a"], "ignore_accents": True, "whole_words": True},
            IN_A_WORD,
            "texts[0]",
        ),
    )
    largest = (BannedTextSpec(FULL), BannedTextSpec(("x",) * limits.MAX_TEXT_BYTES))


def test_text_is_unicode():
    with pytest.raises(SpecError) as error:
        BannedTextSpec(("a", "\ud800"))
    assert (error.value.message, error.value.path) == ("Expected valid Unicode", "$.texts[1]")


TOKENS = (b" Ban", b"anas", b"ana", b"a", b"n", b"Banana", b"bananas", b"b", b"K", None)
"""And one special token, with the id 9."""
BAN, ANAS, ANA, A, N, BANANA, BANANAS, B, K, SPECIAL = range(10)


def banned(
    specs: Sequence[BannedTextSpec], tokens: Sequence[bytes | None], output: Sequence[int]
) -> set[int]:
    """The tokens that the compiled automata ban after an output."""
    found: set[int] = set()
    for automaton in compile_specs(specs, lambda: Vocabulary.of_tokens(tokens)).automata:
        edit = edit_of(automaton, fold(automaton, [], output)[0])
        found |= {*edit.values} if edit else set()
    return found


@pytest.mark.parametrize(
    ("spec", "output", "expected"),
    [
        (BannedTextSpec(("banana",)), [], {BANANAS}),
        (BannedTextSpec(("Banana",)), [], {BANANA}),
        (BannedTextSpec(("Banana",)), [BAN], {ANAS, ANA, BANANA}),
        (BannedTextSpec(("Banana",)), [BAN, A, N], {ANAS, ANA, A, BANANA}),
        (BannedTextSpec(("Banana",)), [BAN, A, N, N], {BANANA}),
        (BannedTextSpec(("Banana",)), [BAN, SPECIAL], {BANANA}),
        (BannedTextSpec(("banana",), True), [], {BANANA, BANANAS}),
        (BannedTextSpec(("BANANA",), True), [BAN], {ANAS, ANA, BANANA, BANANAS}),
        (BannedTextSpec(("k",)), [], set()),
        (BannedTextSpec(("\u212a",), True), [], {K}),
        (BannedTextSpec(("ab",)), [A], {BANANAS, B}),
        (BannedTextSpec(("Banana!", "an")), [], {BAN, ANAS, ANA, BANANA, BANANAS}),
        (BannedTextSpec(("not here",)), [A], set()),
    ],
)
def test_what_completes_a_text(spec: BannedTextSpec, output: list[int], expected: set[int]):
    assert banned([spec], TOKENS, output) == expected
    assert completing(spec, TOKENS, tuple(output)) == expected


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [
        (BannedTextSpec(("strasse",), True), "Straße", False),  # as the tables have it
        (BannedTextSpec(("straße",), True), "STRA\u1e9eE", True),
        (BannedTextSpec(("k",), True), "\u212a", True),
        (BannedTextSpec(("k",)), "\u212a", False),
        (BannedTextSpec(("ass",), whole_words=True), "class ass", True),
        (BannedTextSpec(("ass",), whole_words=True), "class", False),
        (BannedTextSpec(("Paris",), ignore_accents=True), "a Par\u00eds", True),
        (BannedTextSpec(("Par\u00eds",), ignore_accents=True), "Paris", True),
        (BannedTextSpec(("Par\u00eds",), ignore_accents=True), "Pari\u0301s", True),
        (BannedTextSpec(("Pari\u0301s",), ignore_accents=True), "Pa\u0301ris", True),
        (BannedTextSpec(("Paris",), ignore_accents=True), "PAR\u00cdS", False),
        (BannedTextSpec(("Paris",), True, ignore_accents=True), "PAR\u00cdS", True),
        (BannedTextSpec(("Paris",), False, True, True), "Par\u00edsian", False),
        (BannedTextSpec(("Paris",), False, True, True), "Paris\u0301.", True),
        (BannedTextSpec(("i",), True, ignore_accents=True), "\u0130", True),
        (
            BannedTextSpec(("\u0131", "l", "o", "="), True, False, True),
            "i\u0142\u00f8\u2260",
            False,
        ),
    ],
)
def test_which_texts_it_bans(spec: BannedTextSpec, text: str, expected: bool):
    """A grammar of such choices is refused beside it."""
    assert spec.bans_text(text) is expected


PLACES = (" Par", "\u00eds", "is", "i", "s", "\u0301s", "\u0301", "PAR\u00cdS", "s\u0301", "ns")
"""Tokens of one word with accents and without."""


@pytest.mark.parametrize(
    ("text", "options", "output", "expected"),
    [
        ("Paris", {}, [0], {1, 2}),
        ("Par\u00eds", {}, [0], {1, 2}),
        ("Paris", {}, [0, 3], {4, 5, 8}),
        ("Paris", {}, [0, 3, 6], {4, 5, 8}),
        ("Paris", {}, [0, 6, 6, 3], {4, 5, 8}),
        ("Paris", {}, [0, 9], set()),
        ("Paris", {"ignore_case": True}, [], {7}),
        ("PARI\u0301S", {"ignore_case": True}, [0], {1, 2, 7}),
        ("Paris", {"whole_words": True}, [0, 3], {4, 5, 8}),
        ("Paris", {"whole_words": True}, [6, 0, 3], {4, 5, 8}),
        ("Paris", {"whole_words": True}, [9, 0, 3], {4, 5, 8}),
        ("ris", {"whole_words": True}, [0, 3], set()),
        ("is", {"whole_words": True}, [6], {1, 2}),
        ("is", {"whole_words": True}, [9, 6], set()),
    ],
)
def test_accents(text: str, options: dict[str, bool], output: list[int], expected: set[int]):
    spec = BannedTextSpec((text,), ignore_accents=True, **options)
    tokens = [each.encode() for each in PLACES]
    assert completing(spec, tokens, (*output,)) == expected
    assert banned([spec], tokens, output) == expected


@pytest.mark.parametrize(("output", "expected"), [([0], {1}), ([0, 2], {3}), ([0, 2, 4], {1})])
def test_a_letter_begins_with_the_first_byte_of_an_accent(output: list[int], expected: set[int]):
    spec = BannedTextSpec(("aA", "\u0370"), ignore_accents=True)
    tokens = (b"a", b"A", b"\xcd", b"\xb0", b"\x81")
    assert completing(spec, tokens, (*output,)) == expected
    assert banned([spec], tokens, output) == expected


WORDS = {
    token.encode(): i
    for i, token in enumerate(
        ("ass", " ass", "ess", " assess", "cl", " ", "a", "s", "ss", "ss ", "ss\u2014", "ssé")
    )
} | {b"ss\xe2": 12, b"ss\xe2\x80": 13, b"ss\xc3": 14, b"\xe2\x80": 15, b"\x94": 16, b"\x94ass": 17}


@pytest.mark.parametrize(
    ("texts", "output", "expected"),
    [
        (["ass"], [], ["ass", " ass"]),
        (["ass"], [" "], ["ass", " ass"]),
        (["ass"], ["cl"], [" ass"]),
        (["ass"], ["cl", " "], ["ass", " ass"]),
        (["ass"], ["cl", "a"], [" ass"]),
        (["ass"], ["a"], [" ass", "ss", "ss ", "ss\u2014", b"ss\xe2", b"ss\xe2\x80"]),
        (["ass"], [" ", "a", "s"], [" ass", "s"]),
        (["ass"], ["cl", None], ["ass", " ass"]),
        (["ass"], ["cl", b"\xe2\x80"], [" ass", b"\x94ass"]),
        (["ass"], ["cl", b"\xe2\x80", b"\x94"], ["ass", " ass"]),
        (["ass"], [b"ss\xe2", "ass"], [" ass"]),
        (["assess"], ["ass"], [" assess", "ess"]),
        (["assess"], ["cl", "ass"], [" assess"]),
        (["ass cl", "ass"], [" ass", " "], ["ass", " ass", "cl"]),
        (["a", "s"], [], ["a", "s"]),
        (["a", "s"], ["cl"], []),
    ],
)
def test_whole_words(texts: list[str], output: list[Any], expected: list[str | bytes]):
    def token(text: str | bytes | None) -> int:
        text = text.encode() if isinstance(text, str) else text
        return len(WORDS) if text is None else WORDS[text]

    spec, tokens = BannedTextSpec(tuple(texts), whole_words=True), [*WORDS, None]
    output = [*map(token, output)]
    assert banned([spec], tokens, output) == {*map(token, expected)}
    assert completing(spec, tokens, tuple(output)) == {*map(token, expected)}


@pytest.mark.parametrize("tokens", [[b"a "], [b"a}"], ["a—".encode()], [b"b", b"a", b"a\xf0"], []])
def test_whole_words_of_few_tokens(tokens: list[bytes]):
    everything = {i for i, token in enumerate(tokens) if token != b"b"}
    assert banned([BannedTextSpec(("a",), whole_words=True)], tokens, []) == everything


WAYS = (True, False), (False, True), (True, True)
"""Whether case is ignored, and whether accents are."""


def test_separators():
    """No character is in a word in one case and in none in the other."""
    for way in WAYS:
        for c, same in _variants(*way).items():
            assert {in_word(each.decode()) for each in same} == {in_word(c)}
    assert {c for c in map(chr, range(128)) if in_word(c)} == {
        *string.ascii_letters,
        *"0123456789_",
    }
    assert all(map(in_word, "é\u00b5ßжλ中あ한\u212aक"))
    assert not any(map(in_word, "\u00a0\u00ab\u2014\u201c\u2192\u20ac\u3002\U0001f600"))


LETTERS_APART = (
    *("\xaa\xaa", "\xb2\xb3", "\xb9\xba", "\xbc\xbe"),  # of Latin-1, beside signs
    *("\u2070\u2071", "\u2074\u2079", "\u207f\u2089", "\u2090\u209c"),  # small, above and below
    *("\u20d0\u20f0", "\u2460\u249b", "\u24ea\u24ff", "\u2776\u2793"),  # around others; in circles
    *("\u3005\u3007", "\u3021\u302f", "\u3031\u3035", "\u3038\u303c"),  # beside 、 and 。
    *("\U0001f100\U0001f10c", "\U0001fbf0\U0001fbf9"),  # among pictures
)
"""Ranges of the letters, numbers and marks that separate, because most of their block does."""


def test_letters_and_numbers_are_in_words():
    apart = {chr(i) for first, last in LETTERS_APART for i in range(ord(first), ord(last) + 1)}
    assert {
        c
        for c in map(chr, range(0x110000))
        if not in_word(c) and unicodedata.category(c)[0] in "LMN"
    } <= apart
    assert not any(map(in_word, apart))


def test_every_character_after_a_word():
    """The first bytes of a character do not decide where others begin with them, too."""
    numbers = (*range(0x3200), *range(0x3200, 0xD800, 7), *range(0xE000, 0x110000, 7))
    after = [chr(i) for i in sorted({*numbers, *range(0x1F000, 0x1FC00)})]
    spec = BannedTextSpec(("a",), whole_words=True)
    tokens = [b"a" + c.encode() for c in after]
    expected = {i for i, c in enumerate(after) if not in_word(c)}
    assert banned([spec], tokens, []) == expected
    small = range(0x2150, 0x21D0)
    tokens = [b"a" + chr(i).encode() for i in small]
    assert completing(spec, tokens, ()) == {k for k, i in enumerate(small) if not in_word(chr(i))}


RANGES = "".join(f"{re.escape(first)}-{re.escape(last)}" for first, last in SEPARATORS)
LETTER = f"(?:[^{RANGES}])"
PIECES = (*"abAkKsß\u1e9eé\u00c1\u0301\u0370 \u2014\u2190", "\u2180", "\u212a", "\U0001f600")
pieces = st.sampled_from([piece.encode() for piece in PIECES]) | st.sampled_from(
    [bytes([byte]) for piece in PIECES for byte in piece.encode()]
)
vocabularies = st.lists(
    st.lists(pieces, min_size=1, max_size=4).map(b"".join) | st.none(), min_size=2, max_size=20
)
any_spec = banned_texts(Draws(2))
many = st.lists(any_spec, min_size=1, max_size=2)


@given(many, vocabularies, st.data())
def test_bans_what_the_reference_bans(
    specs: list[BannedTextSpec], tokens: list[bytes | None], data: st.DataObject
):
    vocabulary = Vocabulary.of_tokens(tokens)
    program = compile_specs(specs, lambda: vocabulary)
    realizer, output = Realizer(len(tokens)), list[int]()
    realizer.add(0, program, [0], output)
    for token in data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=10)):
        logits = torch.zeros(1, len(tokens))
        realizer.apply(logits)
        expected = set[int]().union(*(completing(spec, tokens, tuple(output)) for spec in specs))
        assert {i for i, logit in enumerate(logits[0].tolist()) if logit < 0} == expected
        output.append(token)
    for automaton in program.automata:
        assert folded(automaton, [], output) == walk(automaton, [], output)


@given(any_spec, vocabularies, st.randoms())
def test_no_output_has_a_banned_text(
    spec: BannedTextSpec, tokens: list[bytes | None], choose: random.Random
):
    tokens.append(None)  # there is always something left to choose
    realizer, output = Realizer(len(tokens)), list[int]()
    realizer.add(0, compile_specs((spec,), lambda: Vocabulary.of_tokens(tokens)), [], output)
    for _ in range(20):
        logits = torch.tensor([[choose.random() for _ in tokens]])
        realizer.apply(logits)
        output.append(int(logits.argmax()))
    parts = b"".join(b"\xff" if tokens[i] is None else tokens[i] for i in output).split(b"\xff")
    for part in parts:
        written = part.decode(errors="replace")
        for text in spec.texts:
            assert not holds(written, text, spec.whole_words)
            if spec.ignore_case:
                assert not holds(written.lower(), text.lower(), spec.whole_words)
            if spec.ignore_accents:
                assert not holds(bare(written), bare(text), spec.whole_words)


def bare(text: str) -> str:
    """Leave accents out. The sign of kelvin has none: it stays, though its normal form is a K."""
    parts = (unicodedata.normalize("NFD", each) for each in text)
    return "".join(p if p[1:] else c for c, p in zip(text, parts, strict=True)).replace(
        "\u0301", ""
    )


def holds(written: str, text: str, whole_words: bool) -> bool:
    around = LETTER if whole_words else "(?!)"
    return bool(re.search(f"(?<!{around}){re.escape(text)}(?!{around})", written))


def test_specs_of_a_request_share_an_automaton():
    ways = [(False, False), (True, True)]
    specs = [BannedTextSpec((text,), *way) for text in ("ab", "ba") for way in ways]
    program = compile_specs(specs, lambda: Vocabulary.of_tokens(TOKENS))
    alone = compile_specs(
        [BannedTextSpec(("ab", "ba"), *way) for way in ways],
        lambda: Vocabulary.of_tokens(TOKENS),
    )
    assert program.cells == alone.cells
    assert len(program.automata) == len(alone.automata) == 3  # one holds a text


@pytest.mark.parametrize(
    ("characters", "others"),
    [
        ("kK\u212a", "c"),
        ("sS\u017f", "ß"),
        ("ß\u1e9e", "s"),
        ("σςΣ", "o"),
        ("éÉ", "e"),
        ("ǆǅǄ", "d"),
    ],
)
def test_characters_that_are_equal_but_for_their_case(characters: str, others: str):
    same = {c.encode() for c in characters}
    for c in characters:
        assert {*_variants(True, False)[c]} == same
    for c in others:
        assert not {*_variants(True, False).get(c, ())} & same


@pytest.mark.parametrize("way", WAYS)
def test_variants_are_equal_or_disjoint(way: tuple[bool, bool]):
    variants = {**_variants(*way)}
    if way == (True, True):
        del variants["\u0345"]  # an accent is in no text
    found = {encoding: same for same in variants.values() for encoding in same}
    for c, same in variants.items():
        assert c.encode() in same
        assert all(found[encoding] == same for encoding in same)


def test_every_letter_with_a_case_has_variants():
    for c in map(chr, range(0x110000)):
        if c.casefold() != c and not unicodedata.category(c).startswith("C"):
            assert c in _variants(True, False)


def test_every_letter_with_accents_has_variants():
    for c in map(chr, range(0x110000)):
        letter, *marks = unicodedata.normalize("NFD", c)
        if marks and letter.isalpha() and all("\u0300" <= mark <= "\u036f" for mark in marks):
            assert letter.encode() in _variants(False, True)[c]
            assert {letter.lower().encode(), c.encode()} <= {*_variants(True, True)[c]}
    assert b"\xcd\x85" not in _variants(True, True)["\u03b9"]  # an accent, with a letter's case


class TestEngines:
    """What an engine's backend admits."""

    BACKEND = Backend("engine", REALIZABLE)
    TEXT = encode([BannedTokensSpec((1,)), BannedTextSpec(("ab",))])

    def test_without_a_vocabulary(self):
        with pytest.raises(SpecError) as error:
            admit(self.BACKEND, self.TEXT, len(TOKENS))
        assert error.value.path == "$.specs[1]"
        assert error.value.message.startswith("`banned_text` needs the vocabulary")

    def test_programs_are_those_of_the_vocabulary(self):
        """Two engines in one process, or one that gets a vocabulary later."""
        swapped = [*TOKENS[::-1]]
        first, second = (
            replace(
                self.BACKEND,
                load_vocabulary=cache(lambda tokens=tokens: Vocabulary.of_tokens(tokens)),
            )
            for tokens in (TOKENS, swapped)
        )
        admission.forget()
        self.test_without_a_vocabulary()
        _, program = admit(first, self.TEXT, len(TOKENS))
        assert admit(first, self.TEXT, len(TOKENS))[1] is program
        _, other = admit(second, self.TEXT, len(TOKENS))
        sets = [each.automata[-1].set_tokens.tolist() for each in (program, other)]
        assert sets == [[BANANAS, B], [9 - B, 9 - BANANAS]]
        self.test_without_a_vocabulary()

    def test_too_much_memory(self):
        tokens = [b"a", *(b"b%d" % i for i in range(limits.MAX_PROGRAM_BYTES // 40))]
        backend = replace(self.BACKEND, load_vocabulary=lambda: Vocabulary.of_tokens(tokens))
        with pytest.raises(SpecError, match="bytes of memory with this vocabulary") as error:
            admit(backend, self.TEXT, len(tokens))
        assert error.value.path == "$.specs[1]"


def test_all_specs_together():
    with pytest.raises(SpecError) as error:
        encode([BannedTextSpec(FULL), BannedTextSpec(("x",))])
    assert error.value.path == "$.specs[1]"
    assert error.value.message == (
        f"Expected at most {limits.MAX_TEXT_BYTES} bytes of texts to look for in all specs "
        f"together, got {limits.MAX_TEXT_BYTES + 1}"
    )
