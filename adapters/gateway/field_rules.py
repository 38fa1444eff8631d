"""The operator's rules for the engine's own fields of requests, in the middleware."""

from copy import deepcopy
from functools import lru_cache
from typing import Any

from ...spec import SpecError
from ..policy import Policy
from .json_body import Fields, join

NAMES = {
    "max_tokens": (
        *("max_tokens", "max_completion_tokens", "max_output_tokens"),
        *("max_new_tokens", "num_predict"),
    ),
    "thinking_token_budget": (
        *("thinking_token_budget", "max_thinking_tokens", "thinking_budget", "budget_tokens"),
    ),
}
"""The fields with a ceiling, by its name: those of OpenAI's routes, Anthropic's and the engines."""


FORMS = {
    **NAMES,
    "response_format": ("response_format", "text.format", "output_config.format"),
    "reasoning_effort": ("reasoning_effort", "reasoning.effort", "output_config.effort"),
    "stop": ("stop", "stop_sequences"),
}
"""What a forbidden field is called on other routes: OpenAI's responses, and Anthropic's messages.
A field after a dot is one of an object of the request."""

BEAMS = "use_beam_search"
"""vLLM's field for a beam search, which chooses tokens without logits processors."""


class RuleError(SpecError):
    """A request that a rule for the engine's own fields does not admit.

    Attributes:
        reason: the rule, for the metrics.
    """

    reason = "fields"


@lru_cache(8)
def names_of(policy: Policy | None) -> frozenset[str]:
    """Return the names of the fields that a policy's rules are about, but for default fields."""
    if policy is None:
        return frozenset()
    names = {BEAMS} if policy.forbids_beams else set[str]()
    for name in (*policy.forbid_fields, *(("reasoning_effort",) if policy.efforts else ())):
        names.update(form.rpartition(".")[2] for form in FORMS.get(name, (name,)))
    return frozenset(names.union(*(NAMES[ceiling] for ceiling in policy.most_fields)))


def check_fields(policy: Policy, path: str, fields: Fields) -> None:
    """Check an object of a request: itself, its sampling parameters, and the like.

    Args:
        policy: the policy.
        path: path of the object; empty for the request itself.
        fields: the object.

    Raises:
        RuleError: for a field that the policy forbids, or a value above its ceiling.
    """
    for name in policy.forbid_fields:
        for form in FORMS.get(name, (name,)):
            around, _, last = form.rpartition(".")
            if around in ("", path) and fields.get(last) is not None:
                where = join(path, last)
                raise RuleError.of_field(f"This server does not admit the field `{name}`", where)
    for ceiling, most in policy.most_fields.items():
        for name in NAMES[ceiling]:
            if (value := fields.get(name)) is not None and not _is_below(value, most):
                where = join(path, name)
                what = f"This server admits at most {most}, and an integer from 0"
                raise RuleError.of_field(f"{what}; got {value!r:.50}", where)


def check_beams(policy: Policy | None, path: str, fields: Fields) -> None:
    """Refuse a beam search in an object of a request, see ``Policy.forbids_beams``.

    Raises:
        RuleError: at the field.
    """
    if fields.get(BEAMS) and policy is not None and policy.forbids_beams:
        raise RuleError.of_field(policy.NO_BEAMS, join(path, BEAMS))


def _is_below(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def fill_in(policy: Policy, fields: Fields, budget: str) -> bool:
    """Fill in a request what it leaves out: default fields, and the budget of its effort.

    Args:
        policy: the policy.
        fields: the request, of one of OpenAI's routes.
        budget: the engine's field for a thinking budget, with the object around it.

    Returns:
        Whether a field was filled in.
    """
    is_changed = False
    for name, value in policy.default_fields.items():
        is_changed |= _put(fields, name, value)
    effort = fields.get("reasoning_effort")
    if isinstance(effort, str) and effort in policy.efforts:
        around, _, name = budget.rpartition(".")
        if around and fields.get(around) is None:
            fields[around] = {}
        target = fields[around] if around else fields
        if isinstance(target, dict):  # the engine refuses another value than an object
            is_changed |= _put(target, name, policy.efforts[effort])
    return is_changed


def _put(fields: Fields, name: str, value: Any) -> bool:
    """Set a field, unless the request sets it."""
    if fields.get(name) is not None:
        return False
    fields[name] = deepcopy(value)  # of which a payload may become text
    return True
