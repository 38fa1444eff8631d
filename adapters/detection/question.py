"""Questions to the detector: a text, and the profiles to try."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from ...spec.errors import SpecError
from ...spec.suggestions import instead_of
from .detection import MAX_TOKENS, Detection, detect
from .profiles import Profile, Share

TokenIds = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]], msgspec.Meta(max_length=MAX_TOKENS)
]


class TextTokenizer(NamedTuple):
    """A model's tokenizer.

    Attributes:
        name: the model's name, as the operator has given it.
        digest: the digest of its file, as in ``Profile``.
        encode: makes token ids of a text, without special tokens.
    """

    name: str
    digest: str
    encode: Callable[[str], Sequence[int]]


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text that may be marked.

    Attributes:
        text: the text; or
        token_ids: its tokens, of any tokenizer.
        prompt_token_ids: the tokens before it, if they are known.
        profiles: the names of the profiles to try; all by default.
        threshold: the highest p-value of a mark.
        tokenizer: the name or digest of the tokenizer that the text needs.
    """

    text: str | None = None
    token_ids: TokenIds | None = None
    prompt_token_ids: TokenIds = []
    profiles: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    threshold: Share | None = None
    tokenizer: str | None = None


def examine(
    question: Question,
    profiles: Mapping[str, Profile],
    tokenizer: TextTokenizer | None = None,
    threshold: float = 0.01,
) -> tuple[Detection, Sequence[int]]:
    """Answer a question; return the text's tokens, too.

    Raises:
        SpecError: with the field that is wrong.
        ValueError: with the profile, if a key is missing or none of its scheme.
    """
    profiles = select(question.profiles, profiles)
    text, wanted = question.text, question.tokenizer
    if (text is None) == (question.token_ids is None):
        raise SpecError("Expected `text` or `token_ids`, and one of them")
    if wanted is not None and (tokenizer is None or wanted not in tokenizer[:2]):
        there = f"of {tokenizer.name}, {tokenizer.digest}," if tokenizer else "none"
        raise SpecError(f"Expected another tokenizer: there is {there} here", "tokenizer")
    tokens = question.token_ids or ()
    if text is not None:
        if tokenizer is None:
            raise SpecError("A text needs a tokenizer: without one, give token ids", "text")
        for name, profile in profiles.items():
            if profile.tokenizer not in (None, tokenizer.digest):
                what = f"The profile {name} needs the tokenizer {profile.tokenizer}"
                raise SpecError(f"{what}, and this one is {tokenizer.digest}", "text")
        tokens = tokenizer.encode(text)
    prompt, threshold = question.prompt_token_ids, question.threshold or threshold
    try:
        found = detect(tokens, profiles, prompt_token_ids=prompt, threshold=threshold)
    except SpecError as error:
        raise error if text is None else SpecError(error.message, "text") from None
    return found, tokens


def cost(question: Question, profiles: Mapping[str, Profile]) -> int:
    """Estimate what an answer costs, in tokens of the cheapest scheme: one for each byte of a text.

    Raises:
        SpecError: with the field, for an unknown profile.
    """
    given = question.token_ids or (question.text or "").encode(errors="replace")
    return len(given) * sum(each.COST for each in select(question.profiles, profiles).values())


def select(names: Sequence[str] | None, profiles: Mapping[str, Profile]) -> Mapping[str, Profile]:
    """Return the profiles that have these names; all without names.

    Raises:
        SpecError: with the field, for an unknown name.
    """
    for name in {*(names or ())} - {*profiles}:
        raise SpecError(f"There is no {name!r}; {instead_of(name, profiles)}", "profiles")
    return {name: each for name, each in profiles.items() if names is None or name in names}
