"""``dry``."""

from ....spec import DrySpec
from ....spec.kinds.dry import MAX_MATCH, MAX_MATCHES
from ....spec.limits import MAX_BIAS
from .base import Add, Edit, FreeRun, Kind, Tokens


def _edit(spec: DrySpec, prompt: Tokens, output: Tokens) -> Edit:
    history = prompt + output
    if spec.range is not None:
        history = history[-spec.range :]
    ends = [
        end
        for end in range(spec.allowed_length, len(history))
        if _matched(history, end, spec.breaker_token_ids) >= spec.allowed_length
        and history[end] not in spec.breaker_token_ids
    ]
    longest: dict[int, int] = {}
    for end in ends[-MAX_MATCHES:]:
        matched = _matched(history, end, spec.breaker_token_ids)
        longest[history[end]] = max(longest.get(history[end], 0), matched)
    penalties = {
        token: spec.multiplier * spec.base ** (length - spec.allowed_length)
        for token, length in longest.items()
    }
    added = {token: -min(penalty, MAX_BIAS) for token, penalty in penalties.items()}
    return Add(added) if added else None


def _matched(history: Tokens, end: int, breakers: Tokens) -> int:
    """Count the tokens before ``end`` that are the newest tokens, back to a breaker."""
    matched = 0
    while (
        matched < min(end, MAX_MATCH)
        and history[end - 1 - matched] == history[-1 - matched]
        and history[-1 - matched] not in breakers
    ):
        matched += 1
    return matched


def _examples(free: FreeRun) -> list[DrySpec]:
    spec = DrySpec(1000.0, 1.0, 1)
    for i, token in enumerate(free.output_ids):
        edit = _edit(spec, free.prompt_ids, free.output_ids[:i])
        if isinstance(edit, Add) and token in edit.values:
            return [spec]
    return []


KIND = Kind(DrySpec(1.0), _edit, _examples)
