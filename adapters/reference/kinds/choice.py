"""``choice``."""

from ....spec import ChoiceSpec
from .base import Allow, Edit, Force, FreeRun, Kind, Tokens


def _edit(spec: ChoiceSpec, prompt: Tokens, output: Tokens) -> Edit:
    firsts = {choice[0] for choice in spec.choices}
    while output and output[0] not in firsts:  # no choice has begun yet
        output = output[1:]
    n = len(output)
    options = {choice[n] for choice in spec.choices if len(choice) > n and choice[:n] == output}
    if output in spec.choices or not options:
        if spec.eos_token_id is None:
            return None
        options.add(spec.eos_token_id)
    return Force(*options) if len(options) == 1 else Allow(frozenset(options))


def _examples(free: FreeRun) -> list[ChoiceSpec]:
    a, b, c = free.unused
    return [
        ChoiceSpec(((a, b), (a, b, c), (c, a)), free.eos_token_id),
        ChoiceSpec(((a, b, c), (c, a))),
    ]


KIND = Kind(
    ChoiceSpec(((1,),)),
    edit=_edit,
    examples=_examples,
    complete=lambda spec, prompt, output: _edit(spec, prompt, output) is None,
)
