"""``max_run``: at most so many characters of a class in a row, however they are tokenized."""

import re
from itertools import pairwise
from typing import Annotated

import msgspec

from ..base import Sizes, TextSpec, check_text, check_total
from ..errors import SpecError
from ..limits import MAX_PATTERN, MAX_TEXT_BYTES

WHITE_SPACE = (" ", "\t", "\n", "\r", "\v", "\f")
"""The white space of ASCII, which JSON and most grammars take between any two tokens."""

_Most = Annotated[int, msgspec.Meta(ge=1, le=MAX_PATTERN)]
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PATTERN)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MAX_PATTERN)]


class MaxRunSpec(TextSpec, frozen=True, tag="max_run", omit_defaults=True):
    r"""The output, as text, never has more than ``n`` characters of a class in a row.

    The class is white space, or other characters, or short texts. A token that would make the run
    too long is banned, whatever tokens it is made of, and also if it begins with white space and
    goes on with a word. This stops endless white space, for example in JSON, where a grammar
    accepts it between any two tokens: the model has to continue with something else. A run may end
    anywhere.

    Only the output is read: white space at the end of the prompt does not count. A special token
    has no text, and ends a run.

    The engine's adapter has to give the vocabulary of the tokenizer; where it does not, the kind is
    refused.

    Examples:
        >>> from logitport.adapters.reference.kinds.max_run import completing
        >>> spec = MaxRunSpec(2)
        >>> completing(spec, vocabulary=(b"{\n", b"  ", b" a", b"}"), output=(0,))
        {1}
        >>> completing(spec, vocabulary=(b"{\n", b" ", b" a", b"}"), output=(0, 1))
        {1, 2}

    Args:
        n: 1 to ``MAX_PATTERN`` characters, or texts.
        texts: the characters of the class, or texts, such as ``("!", "?")`` or ``("ha", "Ha")``;
            by default ``WHITE_SPACE``. None begins with another, or ends like one begins. In
            ``MAX_TEXT_BYTES``, a run counts ``n`` bytes, and ``n`` more for each different
            beginning of these texts, in bytes: none for ASCII, 8 for all of Unicode's white space.

    Raises:
        SpecError: if a field is out of bounds, or two texts overlap.
    """

    n: _Most
    texts: _Texts = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, text in enumerate(self.texts):
            check_text(text, "texts", i)
        check_total(self.sizes().text_bytes, MAX_TEXT_BYTES, "bytes", "texts")
        ordered = sorted((text, i) for i, text in enumerate(self.texts))
        for (one, i), (other, k) in pairwise(ordered):
            if other.startswith(one):
                raise SpecError(("Begins with ", ("texts", i)), "texts", k)
        for k, text in enumerate(self.texts):
            for end in (text[at:] for at in range(1, len(text))):
                for i, other in enumerate(self.texts):
                    if end.startswith(other) or other.startswith(end):
                        raise SpecError(("Ends like ", ("texts", i), " begins"), "texts", k)

    @property
    def characters(self) -> tuple[str, ...]:
        """The characters of the class, or texts."""
        return self.texts or WHITE_SPACE

    def sizes(self) -> Sizes:
        """Count the beginnings of texts, the empty one too, once for each text of a run."""
        encoded = (text.encode() for text in self.characters)
        begun = {text[:i] for text in encoded for i in range(len(text))}
        return Sizes(text_bytes=self.n * len(begun))

    def bans_text(self, text: str) -> bool:
        one = re.compile("|".join(map(re.escape, self.characters)))
        runs = re.compile(f"(?:{one.pattern})+").finditer(text)
        return any(len(one.findall(run[0])) > self.n for run in runs if len(run[0]) > self.n)
