"""Grammars as XGrammar and the engines that use it read them."""

import json
from collections.abc import Sequence


def one_of(texts: Sequence[str]) -> str:
    """The EBNF of one of some texts. A JSON string is a terminal of that notation, too."""
    terminals = (json.dumps(text, ensure_ascii=False) for text in texts)
    return f"root ::= {' | '.join(terminals)}"
