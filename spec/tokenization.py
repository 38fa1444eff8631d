"""The conversion of text to token ids, once, before a request is sent."""

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, Protocol, get_args

from .errors import SpecError

LeadingSpace = Literal["both", "with", "without"]
"""The forms of a word: with a space as within a text, without it as at a text's start, or both."""

Eos = int | Literal["tokenizer"] | None
"""A token id, the tokenizer's own EOS, or none."""


def text_fields(**ids: str) -> Mapping[str, str]:
    """Declare the wire's text fields of a class, each with the field of token ids it stands for.

    The end of a name says what the field holds: ``text`` is a text, ``texts`` are several, and
    ``tokens`` are texts of one token each. See ``TextResolver``.
    """
    return ids


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the text helpers use.

    All ``transformers`` tokenizers and vLLM's own tokenizers have it. A ``tokenizers.Tokenizer``
    has all but the EOS token, which the caller must pass. A ``llama_cpp.Llama`` and its
    ``tokenizer()`` are taken as well.
    """

    def encode(self, text: str, /, *, add_special_tokens: bool) -> Any:
        """Return token ids, or an object that has them as ``ids``."""
        ...


def _inner(tokenizer: Any) -> Any:
    """Return what a tokenizer of llama-cpp-python has within: llama.cpp's model, or a tokenizer."""
    own = getattr(tokenizer, "tokenizer_", tokenizer)  # a ``Llama`` has one
    if not hasattr(own, "detokenize"):
        return tokenizer
    return getattr(own, "hf_tokenizer", None) or getattr(own, "_model", None)


def _check_tokenizer(tokenizer: object) -> None:
    inner = _inner(tokenizer)
    if isinstance(tokenizer, str) or not (hasattr(inner, "encode") or hasattr(inner, "token_eos")):
        raise SpecError(f"Expected a tokenizer, got {reprlib.repr(tokenizer)}")


def _check_text(text: object) -> None:
    if not isinstance(text, str):  # in YAML, yes and 7 are none without quotes
        raise SpecError(f"Expected a text, in quotes, got {reprlib.repr(text)}")


def token_ids_of(text: str, tokenizer: Tokenizer, *, takes_first: bool = False) -> tuple[int, ...]:
    """Tokenize ``text`` as it stands, without special tokens.

    Tags that are one token in the vocabulary (``<think>``) become that token.

    Args:
        text: the text.
        tokenizer: the model's tokenizer.
        takes_first: whether the first token is taken away from the rest of the reply.

    Raises:
        SpecError: if ``text`` is not a text, there are no tokens, or ``tokenizer`` is not a
            tokenizer; if a token that is taken away is white space, which replies need.
    """
    _check_tokenizer(tokenizer)
    _check_text(text)
    inner = _inner(tokenizer)
    try:
        if hasattr(inner, "token_eos"):
            encoded = inner.tokenize(text.encode(), add_bos=False, special=True)
        else:
            encoded = inner.encode(text, add_special_tokens=False)
    except TypeError as error:
        what = "Expected a tokenizer of Hugging Face or llama.cpp"
        raise SpecError(f"{what}, got {type(tokenizer).__name__}: {error}") from error
    token_ids = tuple(getattr(encoded, "ids", encoded))
    if not token_ids:
        raise SpecError(f"The tokenizer makes no tokens of {text!r}")
    rest = text.lstrip()
    blanks = (text[:length] for length in range(1, len(text) - len(rest) + 1))
    if takes_first and any(token_ids[0] in token_ids_of(blank, tokenizer) for blank in blanks):
        raise SpecError(
            "The text begins with a token of white space, which could then come nowhere else in "
            f"the reply: begin with what replies do not contain{rest and f', such as {rest!r}'}"
        )
    return token_ids


_TOKEN = re.compile(r"\btoken (\d+)")


def name_tokens(error: SpecError, tokenizer: Any) -> SpecError:
    """Add the texts of the tokens that an error names by their ids, if they can be decoded."""

    def named(found: re.Match[str]) -> str:
        text = text_of_token(int(found[1]), tokenizer)
        return f"{found[0]}, {reprlib.repr(text)}" if text else found[0]

    parts = [_TOKEN.sub(named, each) if isinstance(each, str) else each for each in error.parts]
    return SpecError(parts, *error.location)


def text_of_token(token_id: int | None, tokenizer: Any) -> str:
    """Return the text of a token for a message; empty if it is not known."""
    with suppress(Exception):  # of any tokenizer
        return tokenizer.decode([token_id])
    return ""


def eos_token_id_of(tokenizer: Tokenizer, *, advice: str) -> int:
    """Return the tokenizer's end-of-sequence token.

    Args:
        tokenizer: the model's tokenizer.
        advice: the advice in the error if there is no such token.

    Raises:
        SpecError: if there is no such token, or ``tokenizer`` is not a tokenizer.
    """
    inner = _inner(tokenizer)
    if hasattr(inner, "token_eos"):  # -1 without one
        eos_token_id = None if inner.token_eos() < 0 else inner.token_eos()
    else:
        eos_token_id = getattr(inner, "eos_token_id", None)
    if eos_token_id is None:
        _check_tokenizer(tokenizer)
        raise SpecError(f"{type(tokenizer).__name__} has no EOS token: {advice}")
    return eos_token_id


def resolved_eos(eos_token_id: Eos, tokenizer: Tokenizer) -> int | None:
    """Return the token id that ``eos_token_id`` stands for.

    Raises:
        SpecError: if it stands for the tokenizer's EOS token, and there is none.
    """
    if eos_token_id != "tokenizer":
        return eos_token_id
    advice = "pass eos_token_id, or None to let the model go on by itself"
    return eos_token_id_of(tokenizer, advice=advice)


def word_forms(
    words: Iterable[str], tokenizer: Tokenizer, leading_space: LeadingSpace
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tokenize words in the forms that they have in a text.

    Args:
        words: with or without a leading space, which makes no difference.
        tokenizer: the model's tokenizer, any Hugging Face tokenizer.
        leading_space: the forms to tokenize.

    Yields:
        Each form (``" word"``) with its token ids.

    Raises:
        SpecError: if ``words`` is one text, a word is empty, or ``leading_space`` is unknown.
    """
    if isinstance(words, str):
        raise SpecError(f"Expected several words, got the text {words!r}")
    if leading_space not in get_args(LeadingSpace):
        forms = ", ".join(map(repr, get_args(LeadingSpace)))
        raise SpecError(f"Expected leading_space to be one of {forms}; got {leading_space!r}")
    for word in words:
        _check_text(word)
        bare = word.lstrip(" ")
        if not bare:
            raise SpecError(f"Expected words, got {word!r}")
        if leading_space != "without":
            yield f" {bare}", token_ids_of(f" {bare}", tokenizer)
        if leading_space != "with":
            yield bare, token_ids_of(bare, tokenizer)


def minimal_word_forms(
    words: Iterable[str], tokenizer: Tokenizer, leading_space: LeadingSpace
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield ``word_forms`` without the forms that end in the tokens of another form.

    If the space is a token of its own, ``" word"`` is the space and ``"word"``, so a rule for
    ``"word"`` holds for both. This is so for digits in many tokenizers, and for most words in
    tokenizers that add a space to the start of a text.
    """
    forms = dict(word_forms(words, tokenizer, leading_space))
    for form, token_ids in forms.items():
        bare = forms.get(form.lstrip(" "), token_ids)
        if token_ids == bare or token_ids[-len(bare) :] != bare:
            yield form, token_ids


def one_token_words(
    words: Iterable[str], tokenizer: Tokenizer, leading_space: LeadingSpace, *, advice: str
) -> Iterator[tuple[str, int]]:
    """Yield ``minimal_word_forms``, which must be one token each, with their token ids.

    Raises:
        SpecError: for a word of several tokens, with ``advice``; and as ``word_forms`` does.
    """
    for form, token_ids in minimal_word_forms(words, tokenizer, leading_space):
        if len(token_ids) != 1:
            raise SpecError(f"The tokenizer makes {len(token_ids)} tokens of {form!r}: {advice}")
        yield form, token_ids[0]
