"""Grammars: which tokens may come after a text, as llguidance finds them.

A grammar is compiled once, and acts on requests as copies of one matcher, which share what it has
found of the grammar so far. Forced text is not tokenized in one way alone: any tokens may make it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from ....spec import GrammarSpec, SpecError
from .vocabulary import Vocabulary

SEPARATORS: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""The white space of JSON, as ``json.dumps`` writes it, unless a spec allows more: a model that
prefers white space to an answer would go on with it."""

COMPACT = {**SEPARATORS, "item_separator": ",", "key_separator": ":"}
"""JSON without white space."""

_LIMITS: dict[str, Any] = {
    "max_items_in_row": 300,
    "initial_lexer_fuel": 300_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 1_000,
    "max_lexer_states": 4_000,
    "max_grammar_size": 10_000,
    "verbose_errors": False,
}
"""Bounds of a grammar. The items of a row bound a step: it takes their cube, 6 ms."""

_HEADER = '%llguidance {"no_forcing": true}\n'
_LITERAL = re.compile(r"\\.|/|\n", re.DOTALL)


class _Tokens:
    """A vocabulary as llguidance takes one, with a token more, which ends a text."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = vocabulary.is_special
        self.eos_token_id = vocabulary.size
        self.special_token_ids = [*np.flatnonzero(special).tolist(), vocabulary.size]
        self.tokens = [
            b"\xff<%d>" % i if is_special else text
            for i, (text, is_special) in enumerate(
                zip([*vocabulary.tokens(), b""], [*special.tolist(), True], strict=True)
            )
        ]

    def __call__(self, text: str) -> list[int]:
        """Return no tokens: a grammar that forces none does not ask for a text's."""
        return []


_made: "WeakKeyDictionary[Vocabulary, Any]" = WeakKeyDictionary()


def tokens_of(vocabulary: Vocabulary) -> Any:
    """Return llguidance's tokenizer, which takes 0.1 to 0.5 s to make.

    Raises:
        SpecError: if llguidance is not installed.
    """
    if (made := _made.get(vocabulary)) is not None:
        return made
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError:
        what = "A grammar needs llguidance here: pip install 'logitport[grammar]'"
        raise SpecError(what) from None
    return _made.setdefault(vocabulary, LLTokenizer(TokenizerWrapper(_Tokens(vocabulary))))


class Start:
    """A grammar before any token.

    Copies of a matcher share a lexer. Once it has come to its bounds with one of them, none goes
    on: each asks for another, which is a copy of a new one.

    Attributes:
        matcher: the one to copy.
    """

    def __init__(self, text: str, tokens: Any) -> None:
        self._made_of = text, tokens
        self.matcher = self._make()

    def _make(self) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        text, tokens = self._made_of
        return LLMatcher(tokens, text, log_level=0, limits=LLParserLimits(**_LIMITS))

    def copy(self) -> Any:
        """Return a matcher."""
        return self.matcher.deep_copy()

    def another(self) -> Any:
        """Return a matcher in place of one that has stopped with its lexer."""
        copy = self.copy()
        copy.compute_bitmask()
        if copy.is_error():
            self.matcher = self._make()
        return self.copy()


def compile_grammar(spec: GrammarSpec, vocabulary: Vocabulary) -> Start:
    """Return a grammar's matcher.

    Raises:
        SpecError: for a grammar that llguidance does not know, with its reason, and for one that is
            too large.
    """
    tokens = tokens_of(vocabulary)
    start = Start(_HEADER + _lark(spec), tokens)
    matcher = start.matcher
    first = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    if matcher.is_error():
        why = matcher.get_error().split("\n")[0]
        raise SpecError(f"The grammar cannot be followed: {why}", form_of(spec))
    if matcher.is_accepting() and np.unpackbits(first).sum() == 1:
        raise SpecError("Expected a grammar with some text, got one without", form_of(spec))
    return start


def form_of(spec: GrammarSpec) -> str:
    """Return the name of the field that has the grammar."""
    return next(name for name in spec.FORMS if getattr(spec, name) is not None)


def _lark(spec: GrammarSpec) -> str:
    """Write a grammar as llguidance's Lark."""
    if spec.json_schema is not None:
        schema: Mapping[str, Any] = msgspec.json.decode(msgspec.json.encode(spec.json_schema))
        white = spec.whitespace_pattern
        own = {"whitespace_pattern": white} if white else SEPARATORS if white is None else COMPACT
        return f"start: %json {json.dumps({**schema, 'x-guidance': own})}"
    if spec.regex is not None:
        return f"start: /{_LITERAL.sub(_escaped, spec.regex)}/"
    if spec.choices is not None:
        return f"start: TEXT\nTEXT: {' | '.join(json.dumps(each) for each in spec.choices)}"
    if spec.ebnf is not None:
        from llguidance.gbnf_to_lark import gbnf_to_lark

        try:
            return gbnf_to_lark(spec.ebnf).removeprefix("%llguidance {}")
        except Exception as error:  # of many kinds
            raise SpecError(f"The rules cannot be read: {error}", "ebnf") from None
    raise SpecError(
        "Expected an engine with XGrammar: others have no structural tags", form_of(spec)
    )


def _escaped(match: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n"}.get(match[0], match[0])
