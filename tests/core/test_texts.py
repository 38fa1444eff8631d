"""Texts times a vocabulary, against the bytes of the whole output."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from logitport.adapters.core import Vocabulary
from logitport.adapters.core.automaton.automaton import table_bytes
from logitport.adapters.core.text.byte_automaton import Symbol
from logitport.adapters.core.text.token_product import completing_texts
from logitport.adapters.reference.automata import edit_of
from logitport.spec import SpecError

from tests.support.automata import fold, folded, walk

# Like the letters k and a, an e with an accent, and one more, in both cases.
SYMBOLS: tuple[Symbol, ...] = (
    (b"k", b"K", b"\xe2\x84\xaa"),
    (b"a", b"A"),
    (b"\xc3\xa9", b"\xc3\x89"),
    (b"x",),
)
PIECES = (*(encoding for symbol in SYMBOLS for encoding in symbol), b"\xe2", b"\x84", b"\xaa", b"-")


def texts_of(symbols: Sequence[Symbol]) -> st.SearchStrategy[list[list[Symbol]]]:
    text = st.lists(st.sampled_from(symbols), min_size=1, max_size=5)
    return st.lists(text, min_size=1, max_size=5)


texts = texts_of(SYMBOLS) | texts_of(SYMBOLS[:2])
pieces = st.sampled_from(PIECES) | st.sampled_from((b"a", b"k"))
token = st.lists(pieces, min_size=1, max_size=5).map(b"".join) | st.none()
vocabularies = st.lists(token, min_size=1, max_size=12).map(
    lambda tokens: [*tokens, b"a", b"k", b"x", b"\xe2", b"\x84\xaa", None]
)


ROOM = 1 << 30


def completing(
    texts: Sequence[Sequence[Symbol]], tokens: Sequence[bytes | None], output: Sequence[int]
) -> set[int]:
    """The tokens that would complete a text: in the bytes since the last special token."""
    before = b""
    for i in output:
        piece = tokens[i]
        before = b"" if piece is None else before + piece
    encodings = (
        b"".join(b"(%b)" % b"|".join(map(re.escape, symbol)) for symbol in text) for text in texts
    )
    ends_with_one = re.compile(b"(%b)\\Z" % b"|".join(encodings))
    return {
        i
        for i, piece in enumerate(tokens)
        if piece is not None
        if any(ends_with_one.search(before + piece[:n]) for n in range(1, len(piece) + 1))
    }


def check(texts: list[list[Symbol]], tokens: list[bytes | None], output: list[int]) -> None:
    """What is banned before each token of an output, and after it."""
    banned, automaton = completing_texts(texts, Vocabulary.of_tokens(tokens), ROOM)
    for length in range(len(output) + 1):
        before, found = output[:length], {*banned}
        if automaton is not None:
            state, _ = folded(automaton, [], before)
            assert (state, -1) == walk(automaton, [], before)
            in_state = edit_of(automaton, state)
            found |= {*in_state.values} if in_state else set()
        assert found == completing(texts, tokens, before), before


@given(texts, vocabularies, st.data())
def test_bans_what_completes_a_text(
    texts: list[list[Symbol]], tokens: list[bytes | None], data: st.DataObject
):
    check(texts, tokens, data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=12)))


E_ACUTE, X = (b"\xc3\xa9",), (b"x",)


@example([[E_ACUTE, E_ACUTE, X], [E_ACUTE] * 3 + [X, E_ACUTE]], [0, 0, 0])
@given(texts_of((E_ACUTE, X)), st.lists(st.integers(0, 1), max_size=20))
def test_a_beginning_holds_another(texts: list[list[Symbol]], output: list[int]):
    check(texts, [b"\xc3\xa9", b"x"], output)


def symbols(text: str) -> list[Symbol]:
    return [(c.encode(),) for c in text]


@pytest.mark.parametrize(
    ("texts", "tokens", "banned"),
    [
        (["a"], [None], []),
        (["a"], [b"b", b"ab", b"a"], [1, 2]),
        (["ab"], [b"c", None], []),
        (["ab"], [b"abc", b"b"], [0]),
    ],
)
def test_no_automaton_where_no_token_begins_a_text(
    texts: list[str], tokens: list[bytes | None], banned: list[int]
):
    everywhere, automaton = completing_texts(
        [symbols(each) for each in texts], Vocabulary.of_tokens(tokens), ROOM
    )
    assert (everywhere.tolist(), automaton) == (banned, None)


def test_ranges_of_tokens_that_overlap():
    """Of the tokens ``a`` to ``c``, one text's end bans the first two, another's the last two."""
    tokens = [b"a", b"b", b"c", b"x", b"y"]
    texts = [symbols(text) for text in ("xa", "xb", "yxb", "yxc")]
    _, automaton = completing_texts(texts, Vocabulary.of_tokens(tokens), ROOM)
    assert automaton is not None
    in_state = edit_of(automaton, fold(automaton, [], [4, 3])[0])
    assert in_state is not None
    assert {*in_state.values} == {0, 1, 2}


def test_states_share_the_tokens_that_complete_them():
    tokens = [bytes([byte]) for byte in range(256)]
    texts = [symbols(text) for text in ("cat", "rat", "bat")]
    _, automaton = completing_texts(texts, Vocabulary.of_tokens(tokens), ROOM)
    assert automaton is not None
    assert automaton.set_tokens.tolist() == [ord("t")]


def test_the_cost_is_checked_before_tables_are_made():
    tokens = [b"a", b"aa", b"baab", *(b"b%c" % byte for byte in range(255)), b"ba"]
    banned, automaton = completing_texts([symbols("aab")], Vocabulary.of_tokens(tokens), ROOM)
    assert automaton is not None
    assert banned.tolist() == [2]  # and not in the table's set
    sizes = automaton.states, len(automaton.keys), len(automaton.set_tokens)
    assert sizes == (3, 5, 256)
    enough = table_bytes(3, 5, 256 + len(banned))
    assert automaton.table_bytes - 100 < enough <= automaton.table_bytes + 48
    completing_texts([symbols("aab")], Vocabulary.of_tokens(tokens), enough)
    with pytest.raises(SpecError, match=f"costs {enough} or more"):
        completing_texts([symbols("aab")], Vocabulary.of_tokens(tokens), enough - 1)
