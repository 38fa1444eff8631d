"""The operator's rules for the engine's own fields of requests, in the middleware."""

from functools import lru_cache

from ...spec import SpecError
from ..policy import Policy
from .json_body import Fields, join

BEAMS = "use_beam_search"
"""vLLM's field for a beam search, which chooses tokens without logits processors."""

EFFORT = "reasoning_effort"


@lru_cache(8)
def names_of(policy: Policy | None) -> frozenset[str]:
    """Return the names of the fields that a policy's rules are about."""
    rules = {} if policy is None else {BEAMS: policy.forbids_beams, EFFORT: policy.efforts}
    return frozenset(name for name, rule in rules.items() if rule)


def check_beams(policy: Policy, path: str, fields: Fields) -> None:
    """Refuse a beam search beside a guard.

    Args:
        policy: the policy.
        path: path of an object of the request; empty for the request itself.
        fields: the object.

    Raises:
        SpecError: at the field.
    """
    if policy.forbids_beams and fields.get(BEAMS):
        raise SpecError.of_field(policy.NO_BEAMS, join(path, BEAMS))


def set_budget(policy: Policy, fields: Fields, budget: str) -> bool:
    """Set the thinking budget of a request's effort, unless the request has a budget.

    Args:
        policy: the policy.
        fields: the request, of one of OpenAI's routes.
        budget: the engine's field for a thinking budget, with the object around it.

    Returns:
        Whether the budget was set.
    """
    effort = fields.get(EFFORT)
    if not isinstance(effort, str) or effort not in policy.efforts:
        return False
    around, _, name = budget.rpartition(".")
    if around and fields.get(around) is None:
        fields[around] = {}
    target = fields[around] if around else fields
    if not isinstance(target, dict) or target.get(name) is not None:
        return False  # the engine refuses another value than an object
    target[name] = policy.efforts[effort]
    return True
