"""What to write in place of an unknown name."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

MAX_NAME = 64
"""The characters of a name that is compared with others: the time grows with the square."""

OTHER_NAMES = {
    **dict.fromkeys(("banned_words", "bad_words", "banned_strings", "ban"), "banned_text"),
    **dict.fromkeys(("forced_text", "prefix", "greeting"), "forced_sequence"),
    **dict.fromkeys(("labels", "enum", "options", "guided_choice"), "choice"),
    **dict.fromkeys(("json", "json_schema", "regex", "structured_outputs"), "grammar"),
    **dict.fromkeys(("repetition", "repetition_detection"), "no_loop"),
    **dict.fromkeys(("language", "script"), "allowed_scripts"),
    **dict.fromkeys(("thinking", "reasoning_budget"), "thinking_budget"),
    **dict.fromkeys(("temperature", "top_p", "top_k"), "sampling"),
    **dict.fromkeys(("samplers", "xtc", "min_p", "top_n_sigma", "typical_p"), "chain"),
    **dict.fromkeys(("footer", "suffix"), "at_end"),
    **dict.fromkeys(("words", "strings", "phrases"), "texts"),
    **dict.fromkeys(("case_insensitive", "caseless"), "ignore_case"),
}
"""What others call kinds and fields, and the names here."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask for the known name that is nearest; return an empty text if none is near."""
    from difflib import get_close_matches  # for errors alone

    if len(name) > MAX_NAME:
        return ""
    known = {*known}
    meant = {other: each for other, each in OTHER_NAMES.items() if each in known}
    others = get_close_matches(name, meant.keys() - known, 1, 0.8)
    close = [meant[each] for each in others] or get_close_matches(name, sorted(known), 1)
    return f"did you mean {close[0]}?" if close else ""


def instead_of(name: str, known: Iterable[str]) -> str:
    """Ask for the nearest known name, or list all."""
    known = sorted(known)
    return nearest(name, known) or f"there are {', '.join(known)}"


class SpecMeta(msgspec.StructMeta):
    """The type of the classes whose constructors ask for the nearest argument of an unknown one."""

    if not TYPE_CHECKING:  # a checker reads the arguments of a constructor from the fields

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as error:
                if unknown := kwargs.keys() - {*self.__struct_fields__}:
                    raise TypeError(f"{error}; {_argument(self, *sorted(unknown)[:1])}") from None
                raise


def _argument(of: Any, name: str) -> str:
    """Say what to pass in place of an argument that a class does not have."""
    if name not in getattr(of, "TEXTS", ()):
        return instead_of(name, of.__struct_fields__)
    makes = next((each for each in ("from_text", "from_words") if hasattr(of, each)), "decode")
    return f"{makes} takes texts and a tokenizer"
