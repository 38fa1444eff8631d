"""``banned_scripts``: the output has no character of some scripts."""

from typing import Annotated

import msgspec

from ..base import TextSpec
from ..limits import MAX_NAME, MAX_SCRIPTS

_Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z _-]+$", max_length=MAX_NAME)]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1, max_length=MAX_SCRIPTS)]


class ScriptsSpec(TextSpec, frozen=True):
    """The base of the kinds that decide by the Unicode scripts of the output's characters.

    Args:
        scripts: 1 to ``MAX_SCRIPTS`` names of scripts; order and repetition mean nothing.
    """

    scripts: _Names


class BannedScriptsSpec(ScriptsSpec, frozen=True, tag="banned_scripts"):
    r"""The output has no character of the Unicode scripts ``scripts``.

    A token that would complete such a character is banned, whatever tokens the character is made
    of. So is a token that begins characters, all of which are banned: the byte 0xE5 begins nothing
    but Han. A token that begins others, too, is free, and after it only what completes a banned
    character is banned. So no output ends with half a character because its end is banned.

    The names are those of Unicode: ``Han``, ``Cyrillic``, ``Old Italic``. Case, spaces, hyphens and
    underscores do not count. A text may need several scripts: Japanese has Han, Hiragana
    and Katakana. Digits, spaces, punctuation, emoji, combining marks and other characters that
    many scripts use have the scripts ``Common`` and ``Inherited``, which cannot be named and are
    always free. So are the code points that are unassigned or for private use, unless they begin
    like banned characters only.

    Bytes that are not valid UTF-8 are no character, and free. Special tokens are not text: a
    character that begins before one is not completed after it. Only the output is read.

    The engine's adapter has to give the vocabulary of the tokenizer, and the server needs the
    package ``fonttools`` for Unicode's table (``logitport[scripts]``); otherwise the kind is
    refused. A name that is in no table is refused there, too.

    ``BannedScriptsSpec(("Han", "Hiragana", "Katakana"))`` keeps Chinese and Japanese out.

    Examples:
        >>> from logitport.adapters.reference.kinds.banned_scripts import completing
        >>> completing([BannedScriptsSpec(("Han",))], ("Hi".encode(), "\u4e2d".encode()), output=())
        {1}

    Args:
        scripts: 1 to ``MAX_SCRIPTS`` names of scripts; order and repetition mean nothing.

    Raises:
        SpecError: if a field is out of bounds.
    """
