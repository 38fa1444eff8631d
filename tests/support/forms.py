"""The forms in which specs reach an entry point in Python, all with the same meaning."""

import json
from typing import Any

ENTRY: dict[str, Any] = {"kind": "forced_sequence", "text": " cat5", "eos_token_id": None}
"""A spec as an object of the wire, with a text."""


def forms(entry: Any) -> dict[str, Any]:
    """The forms of a payload of one object of the wire, by name."""
    payload = {"version": 1, "specs": [entry]}
    return {
        "object": entry,
        "list": [entry],
        "tuple": (entry,),
        "payload": payload,
        "text of a payload": json.dumps({**payload, "generation_only": True}),
        "text of a list": json.dumps([entry]),
        "bytes": json.dumps(payload).encode(),
    }
