"""A plugin: ends a reply after so many of some tokens, full stops for example.

A package of the server's owner offers it in its ``pyproject.toml``, and clients ask for it with
``PluginSpec("at-most", {"token_ids": [30], "times": 3, "eos_token_id": 2})``::

    [project.entry-points."logitport.plugins"]
    at-most = "examples.plugin:at_most"
"""

from collections.abc import Mapping
from typing import Any

from logitport.adapters.core import Automaton, AutomatonBuilder


def at_most(params: Mapping[str, Any]) -> Automaton:
    """Count in states, and force EOS in the last one. What it raises, the client gets."""
    builder = AutomatonBuilder()
    counted = [builder.free() for _ in range(int(params["times"]))]
    counted.append(builder.force(int(params["eos_token_id"])))
    for i, state in enumerate(counted[:-1]):
        for token_id in params["token_ids"]:
            builder.edge(state, int(token_id), counted[i + 1])
    return builder.build()
