"""What acts on a request, noted where it is admitted: for counters, and for a receipt."""

from collections.abc import Sequence
from typing import Any

from ..spec import LogitsProcessorSpec, Payload, StandIn, decode
from .metrics import count_by
from .policy import Policy
from .reload import REQUEST

NOTED = "noted"
"""The key in ``REQUEST`` for the guard's specs and the default specs that act on a request without
own specs; ``None`` on others."""

Specs = Sequence[LogitsProcessorSpec]


def note(
    policy: Policy, guard: Specs, specs: Specs, given: Any, model: str, amount: float = 1
) -> None:
    """Count what acts on an admitted request, and note what the server alone has added.

    Args:
        policy: the policy that has admitted the request.
        guard: the specs of its guard, if they act on the request.
        specs: the others that act: those of the request, with the server's, or the default specs.
        given: the payload of the request, if it has one.
        model: the name of the served model.
        amount: as for ``count``.
    """
    for kind in {spec.kind for spec in (*guard, *specs)}:
        count_by("kinds", amount, kind, model)
    is_plain = isinstance(given, str) and "plugin" not in given and "\\u" not in given
    if specs and policy.presets and given is not None and not is_plain:
        own = given if isinstance(given, Payload) else decode(given, StandIn())
        for preset in policy.join(own.specs)[1]:
            count_by("presets", amount, preset, model)
    if (seen := REQUEST.get()) is not None:  # of several prompts, all are without specs, or none is
        is_own = given is not None or seen.get(NOTED, ()) is None
        seen[NOTED] = None if is_own else (guard, specs)
