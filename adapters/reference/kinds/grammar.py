"""``grammar``."""

from typing import Any

from ....spec import GrammarSpec
from .base import Draws, Kind


def _tag(format_: Any) -> Any:
    return {"type": "structural_tag", "format": format_}


def _strategy(draw: Draws) -> Any:
    characters = draw.st.characters(codec="utf-8", exclude_characters="\0")
    text = draw.st.text(characters, min_size=1, max_size=6)
    choices = draw.st.lists(text, min_size=1, max_size=3, unique=True).map(tuple)
    return draw.st.one_of(
        draw.builds(GrammarSpec, json_schema=draw.json_object),
        draw.builds(GrammarSpec, regex=text),
        draw.builds(GrammarSpec, ebnf=text.map(lambda text: f"root ::= {text}")),
        draw.builds(GrammarSpec, choices=choices),
        draw.builds(GrammarSpec, structural_tag=draw.json_object.map(_tag)),
    )


KIND = Kind(GrammarSpec(regex="a"), strategy=_strategy)
