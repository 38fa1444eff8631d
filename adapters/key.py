"""The key under which a request carries its payload, and the check for misspelt keys."""

import re
from collections.abc import Iterable

from ..spec import SpecError

KEY = "logitport"
"""The name of the payload in a request's own parameters, on every engine."""

_LIKE_KEY = re.compile(r"[\W_]*logg?its?[\W_]*ports?[\W_]*", re.IGNORECASE)


def check_spelling(names: Iterable[object], path: str) -> None:
    """Refuse a name that is a misspelt ``KEY``: an engine would ignore what is under it.

    Args:
        names: keys of an object of the request, as the client wrote them.
        path: path of the object.

    Raises:
        SpecError: for ``logit_port``, ``LogitPort``, ``logits-port`` and the like.
    """
    for name in names:
        if name != KEY and isinstance(name, str) and len(name) < 32 and _LIKE_KEY.fullmatch(name):
            raise SpecError(f"Expected the key `{KEY}`, got {name!r}", path)
