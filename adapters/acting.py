"""What acts on a request, noted where it is admitted: for counters, and for a receipt."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..spec import LogitsProcessorSpec, Payload, StandIn, decode
from .metrics import count_acting
from .policy import Policy
from .reload import of_request

_NOTED = "acting"


class Acting(NamedTuple):
    """The server's specs that act on a request without own specs.

    Attributes:
        specs: those of the guard, then the default specs.
        default: whether default specs are among them.
    """

    specs: tuple[LogitsProcessorSpec, ...]
    default: bool


def note(
    policy: Policy,
    guard: Sequence[LogitsProcessorSpec],
    specs: Sequence[LogitsProcessorSpec],
    given: Any,
    model: str,
    amount: float = 1,
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
    presets: tuple[str, ...] = ()
    is_plain = isinstance(given, str) and "plugin" not in given and "\\u" not in given
    if specs and policy.presets and given is not None and not is_plain:
        own = given if isinstance(given, Payload) else decode(given, StandIn())
        presets = policy.join(own.specs)[1]
    every = *guard, *specs
    count_acting({spec.kind for spec in every}, presets, model, amount)
    if (seen := of_request()) is not None:  # of several prompts, all are without specs, or none is
        is_own = given is not None or seen.get(_NOTED, every) is None
        seen[_NOTED] = None if is_own else Acting(every, bool(specs))


def noted(seen: dict[Any, Any]) -> Acting | None:
    """Return what has been noted of a request; ``None`` if nothing acts, or it has own specs."""
    found = seen.get(_NOTED)
    return found if found and found.specs else None
