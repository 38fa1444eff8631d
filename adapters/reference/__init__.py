"""The reference, which finds the edits of a spec in the whole history before every token.

Its code is slow and obvious, and uses nothing of the core: realizers are checked against it by the
conformance suite, and finished replies by ``logitport replay``.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spec import LogitsProcessorSpec
from .kinds import KINDS
from .kinds.base import BAN, DECISIVE, Add, Allow, Edit, Move, flat, forced_by
from .kinds.base import Force as Force

FORCED = 1e9
"""The logit of a forced token."""


def edit(spec: LogitsProcessorSpec, prompt: Sequence[int], output: Sequence[int]) -> Edit:
    """Return the edit that ``spec`` makes to the logits of the token after ``output``."""
    reference = KINDS[type(spec)].edit
    if reference is None:
        raise ValueError(f"Expected a kind that has a reference, got `{spec.kind}`")
    if spec.needs_vocabulary:
        raise ValueError(f"Expected a spec that needs no vocabulary, got `{spec.kind}`")
    return reference(spec, tuple(prompt), tuple(output))


def edits(
    specs: Iterable[LogitsProcessorSpec], prompt: Sequence[int], output: Sequence[int]
) -> list[Edit]:
    """Return the edits of all specs of a request."""
    return [edit(spec, prompt, output) for spec in specs]


def combine(
    logits: npt.NDArray[np.floating[Any]], acting: Iterable[Edit], *, forced: float = FORCED
) -> npt.NDArray[np.float64]:
    """Apply edits, in the order of the specs, to a copy of ``logits``, ``[columns]``.

    ADDs come first, then ALLOWs, then FORCEs. The first ALLOW is strict; further ALLOWs ban the
    tokens that they do not contain. If all tokens of the first are masked, they are banned instead.
    Of several FORCEs, the first counts, and sets its token's logit to ``forced``. A MOVE comes
    last; if all of its ends are masked, it bans the token that would have their mass.
    """
    row = logits.astype(np.float64)
    acting = flat(acting)
    for addition in acting:
        if isinstance(addition, Add):
            for token, value in addition.values.items():
                row[token] += np.float32(value)
    if allows := [allow.tokens for allow in acting if isinstance(allow, Allow)]:
        strict = sorted(allows[0])
        for other in allows[1:]:
            row[[token for token in strict if token not in other]] += BAN
        kept = row[strict]
        row[:] = -np.inf
        row[strict] = -forced if (kept == -np.inf).all() else kept
    if (token := forced_by(acting)) is not None:
        row[token] = forced
    for move in acting:
        if isinstance(move, Move):
            logits, mass = row[[*move.ends]], row[[*move.ends]].max()
            if mass > -np.inf and move.temperature > 0:
                shares = np.exp((logits - mass) / move.temperature)
                mass += move.temperature * np.log(shares.sum())
            row[[*move.ends]] = -np.inf
            row[move.first] = mass if mass > -np.inf else row[move.first] + BAN
    return row


def permits(acting: Iterable[Edit], token: int) -> bool:
    """Whether a token may follow all edits of a model's logits together.

    Biases add up. They count from ``DECISIVE`` on, which far exceeds the differences between a
    model's logits. A forced token beats all else, and a token that is not allowed never comes; of
    the allowed tokens, one comes even if all of them are banned.
    """
    acting = flat(acting)
    for move in acting:
        if isinstance(move, Move) and token in (move.first, *move.ends):
            others = [each for each in acting if each is not move]
            return token == move.first and any(permits(others, end) for end in move.ends)
    if (forced := forced_by(acting)) is not None:
        return token == forced
    allows = [each.tokens for each in acting if isinstance(each, Allow)]
    adds = [each for each in acting if isinstance(each, Add)]

    def total(token: int) -> float:
        return sum(each.values.get(token, 0) for each in adds)

    wanted = {t for each in adds for t in each.wanted if total(t) >= DECISIVE}

    def may(token: int) -> bool:
        is_wanted = total(token) > -DECISIVE and (not wanted or token in wanted)
        return is_wanted and all(token in tokens for tokens in allows)

    return may(token) or bool(allows and token in allows[0] and not any(map(may, allows[0])))


def obeys(spec: LogitsProcessorSpec, prompt: Sequence[int], output: Sequence[int]) -> bool:
    """Whether the spec permits every token of an output."""
    return not first_wrong(spec, prompt, output)


def first_wrong(spec: LogitsProcessorSpec, prompt: Sequence[int], output: Sequence[int]) -> str:
    """Describe the first token of an output that a spec does not permit; empty if there is none."""
    for i, token in enumerate(output):
        if not permits([asked := edit(spec, prompt, output[:i])], token):
            return f"index {i} has token {token} in place of {asked!r:.200}: {spec} in {output}"
    return ""
