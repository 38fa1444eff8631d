"""``phases``."""

from collections.abc import Sequence

from ....spec import (
    AutomatonSpec,
    AutomatonState,
    BannedTextSpec,
    BannedTokensSpec,
    ChoiceSpec,
    DrySpec,
    ForcedTokenSequenceSpec,
    LogitsProcessorSpec,
    MaxRunSpec,
    NoLoopSpec,
    NoRepeatNgramSpec,
    Phase,
    PhaseEnd,
    PhasesSpec,
    PromptBiasSpec,
    ThinkingBudgetSpec,
)
from ....spec.kinds.banned_scripts import ScriptsSpec
from . import banned_scripts, banned_text, max_run
from .base import Edit, Force, FreeRun, Kind, Several, Tokens, ban, flat


def _edit(
    spec: PhasesSpec, prompt: Tokens, output: Tokens, vocabulary: Sequence[bytes | None] = ()
) -> Edit:
    index, of_request = 0, prompt
    while index < len(spec.phases):
        phase = spec.phases[index]
        for n in range(len(output) + 1):
            followed = _following(phase, prompt, output[:n], index + 1, vocabulary)
            if followed is not None:
                index, prompt, output = followed, (), output[n:]
                break
        else:  # the phase is not over
            acting = [
                _edit_of(
                    each,
                    of_request if isinstance(each, PromptBiasSpec) else prompt,
                    output,
                    vocabulary,
                )
                for each in phase.specs
            ]
            if index < len(spec.phases) - 1:
                acting.append(ban(spec.stop_token_ids))
            edits = flat(acting)
            return edits[0] if len(edits) == 1 else Several(tuple(edits)) if edits else None
        if index == len(spec.phases) and spec.repeat:
            index = 0
    return None if spec.eos_token_id is None else Force(spec.eos_token_id)


def _edit_of(
    spec: LogitsProcessorSpec, prompt: Tokens, output: Tokens, vocabulary: Sequence[bytes | None]
) -> Edit:
    from . import KINDS

    if isinstance(spec, BannedTextSpec):
        return ban(banned_text.completing(spec, vocabulary, output))
    if isinstance(spec, MaxRunSpec):
        return ban(max_run.completing(spec, vocabulary, output))
    if isinstance(spec, ScriptsSpec):
        return ban(banned_scripts.completing([spec], vocabulary, output))
    edit = KINDS[type(spec)].edit
    return edit(spec, prompt, output) if edit else None


def _following(
    phase: Phase,
    prompt: Tokens,
    said: Tokens,
    next_phase: int,
    vocabulary: Sequence[bytes | None],
) -> int | None:
    """Return the index of the phase that follows, if the phase ends right here."""
    for end in phase.ends:
        if end.n is not None:
            is_over = len(said) == end.n
        elif end.token_ids:
            is_over = said[-len(end.token_ids) :] == end.token_ids
        elif end.text:
            is_over = _has_completed(end.text.encode(), said, vocabulary)
        else:
            is_over = _is_complete(phase, prompt, said)
        if is_over:
            return next_phase if end.phase is None else end.phase
    return None


def _has_completed(text: bytes, said: Tokens, vocabulary: Sequence[bytes | None]) -> bool:
    """Whether the last token completes a text, in the bytes since the last special token."""
    before = now = b""
    for token in said:
        piece = vocabulary[token]
        before, now = (b"", b"") if piece is None else (now, now + piece)
    return any(now[:end].endswith(text) for end in range(len(before) + 1, len(now) + 1))


def _is_complete(phase: Phase, prompt: Tokens, said: Tokens) -> bool:
    from . import KINDS

    awaited = [(each, KINDS[type(each)].complete) for each in phase.specs if each.can_complete]
    return all(complete is not None and complete(each, prompt, said) for each, complete in awaited)


def _examples(free: FreeRun) -> list[PhasesSpec]:
    a, b, c = free.unused
    choice, complete = ChoiceSpec(((a, b), (c, a))), PhaseEnd(complete=True)
    banned = BannedTokensSpec((free.output_ids[0],))
    return [
        PhasesSpec.prefix_then((b, c), choice, eos_token_id=free.eos_token_id),
        PhasesSpec.think_then(
            ThinkingBudgetSpec(2, free.prompt_ids[-1:], (a,)),
            ForcedTokenSequenceSpec((b,)),
            choice,
            Phase((banned,)),
        ),
        PhasesSpec(
            (
                Phase((), (PhaseEnd(token_ids=free.output_ids[:1]), PhaseEnd(n=2, phase=0))),
                Phase((ForcedTokenSequenceSpec((a, b)), banned), (complete,)),
                Phase((choice, banned), (PhaseEnd(n=1), complete)),
            ),
            repeat=True,
        ),
        PhasesSpec(  # rules, which begin anew with their phase
            (
                Phase((ForcedTokenSequenceSpec((a, b, a)),), (complete,)),
                Phase(
                    (
                        NoRepeatNgramSpec(1),
                        NoLoopSpec(2, then_token_ids=(c,)),
                        PromptBiasSpec(-1000),
                    ),
                    (PhaseEnd(n=3),),
                ),
                Phase((DrySpec(1000.0, 1.5, 1), NoLoopSpec(2)), (PhaseEnd(n=4),)),
                Phase((AutomatonSpec((AutomatonState(force=b),)),)),
            )
        ),
    ]


KIND = Kind(PhasesSpec((Phase(),)), _edit, _examples)
