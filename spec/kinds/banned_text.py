"""``banned_text``: the output never contains some texts, however they are tokenized."""

from typing import Annotated

import msgspec

from ..base import LogitsProcessorSpec, Sizes, check_total
from ..claims import TokenFields
from ..errors import SpecError
from ..limits import MAX_TEXT, MAX_TEXT_BYTES, MAX_TEXTS

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1, max_length=MAX_TEXTS)]


class BannedTextSpec(LogitsProcessorSpec, frozen=True, tag="banned_text", omit_defaults=True):
    """The output, as text, never contains one of ``texts``.

    A token that would complete a text is banned, whatever tokens the text is made of, and also if
    the text begins or ends within a token. ``banned_sequences`` bans one tokenization of a word:
    with ``" banana"`` as one token, the model may still choose `` Ban`` and ``anas``.

    Texts are compared byte by byte, in UTF-8. Nothing is normalized: ``é`` as one character is not
    ``e`` and an accent. A text is found within words, too: ``" ass"`` with a space leaves
    ``class`` free. Texts that begin with a space also take much less memory, because few tokens
    end with a space and the first letters of a word.

    Only the output is read: a text that the prompt begins is not completed by the output. A
    special token has no text, and nothing that begins before it is completed after it.

    The engine's adapter has to give the vocabulary of the tokenizer; where it does not, the kind is
    refused. The texts' tables are refused where they would take more than ``MAX_PROGRAM_BYTES``:
    many texts that begin with different letters, or end with a space.

    ``BannedTextSpec((" banana", " as an AI"), ignore_case=True)`` bans `` Banana`` as well.

    Args:
        texts: 1 to ``MAX_TEXTS`` non-empty texts of up to ``MAX_TEXT`` bytes in UTF-8, and
            ``MAX_TEXT_BYTES`` in all.
        ignore_case: whether characters are equal that Unicode's case folding makes the same:
            ``k``, ``K`` and the Kelvin sign; ``ß`` and ``ẞ``; the two small sigmas and ``Σ``. One
            character never equals two: ``ß`` is not ``ss``. The Turkish letters, ``İ`` and the
            dotless i, equal only themselves.

    Raises:
        SpecError: if a field is out of bounds.
    """

    texts: _Texts
    ignore_case: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, text in enumerate(self.texts):
            if (size := len(text.encode())) > MAX_TEXT:
                what = f"Expected at most {MAX_TEXT} bytes in UTF-8, got {size}"
                raise SpecError(what, f"$.texts[{i}]")
        check_total(self.sizes().text_bytes, MAX_TEXT_BYTES, "bytes", "$.texts")

    def token_fields(self) -> TokenFields:
        return iter(())

    def sizes(self) -> Sizes:
        return Sizes(
            texts=len(self.texts), text_bytes=sum(len(text.encode()) for text in self.texts)
        )
