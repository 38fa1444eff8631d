"""Bans of scripts beside other specs, and what the reference makes of them."""

from collections.abc import Sequence

from logitport import spec as s
from logitport.adapters.core import Program, Vocabulary, compile_specs
from logitport.adapters.reference import edit
from logitport.adapters.reference.kinds.banned_scripts import completing
from logitport.adapters.reference.kinds.base import BAN, Add, Edit
from logitport.spec.kinds.banned_scripts import ScriptsSpec

BYTES: list[bytes | None] = [
    *(token.encode() for token in ("a", " Привет", "中文", "1!", "é", "あ", "😀", "\u0378")),
    *(b"\xd0", b"\x9f", b"\xd0\x9f\xd1", b"\xd2", b"a\xd2", b"\x85", b"\x8a", b"\x8aa"),
    *(b"\xe4", b"\xb7", b"\xb8", b"\xe4\xb8", b"\xe5", b"\xff", None),
]

MANY = s.BannedScriptsSpec(("Cyrillic", "Han", "Hiragana", "Latin", "Greek"))
"""It bans most tokens; so does the other one, and the two together."""
CHEROKEE = s.AllowedScriptsSpec(("Cherokee",))
HAN = s.BannedScriptsSpec(("Han",))

Specs = tuple[s.LogitsProcessorSpec, ...]
BESIDE: dict[str, Specs] = {
    "nothing": (),
    "a list": (s.AllowedTokensSpec((0, 1, 3, 4)),),
    "a list of banned tokens": (s.AllowedTokensSpec((0, 1, 4)),),
    "two lists": (s.AllowedTokensSpec((0, 1, 3, 4)), s.AllowedTokensSpec((0, 3, 6))),
    "choices": (s.ChoiceSpec(((0, 1), (3, 4))),),
    "one choice": (s.ChoiceSpec(((0, 1),)),),
    "biases": (s.LogitBiasSpec({0: 10_000.0, 3: -5.0, 6: 2.0}),),
    "bans of the rest": (s.BannedTokensSpec((3, 6, 9, 11, 13, 14, 17, 18, 21, 22)),),
    "forced": (s.ForcedTokenSequenceSpec((0, 2)),),
    "all of it": (s.LogitBiasSpec({3: 2.0}), HAN, s.AllowedTokensSpec((0, 1, 3, 4, 6))),
}
SCRIPTS: dict[str, Specs] = {
    "banned": (MANY,),
    "allowed": (CHEROKEE,),
    "merged": (MANY, CHEROKEE, HAN),
    "in a phase": (s.PhasesSpec((s.Phase((MANY,)),)),),
}
CASES = [
    (f"{name}, {beside}, {order}", specs if order == "first" else (*others, *scripts))
    for name, scripts in SCRIPTS.items()
    for beside, others in BESIDE.items()
    if HAN not in others or name != "in a phase"  # that would be too much work
    for order, specs in (("first", (*scripts, *others)), ("last", ()))
]
"""The scripts before the others, and after them."""


def compiled(specs: Specs) -> Program:
    """Compile specs for the vocabulary above."""
    return compile_specs(specs, lambda: Vocabulary.of_tokens(BYTES))


def edits_of(specs: Specs, output: Sequence[int]) -> list[Edit]:
    """Return the edits that the reference makes."""
    together = [each for each in specs if isinstance(each, ScriptsSpec)]
    acting: list[Edit] = []
    of_scripts = [together] if together else []
    for spec in specs:
        if isinstance(spec, s.PhasesSpec):
            of_scripts.append([each for _, each in spec.inner_specs()])  # pyright: ignore
        elif not isinstance(spec, ScriptsSpec):
            acting.append(edit(spec, (), output))
    for each in of_scripts:
        acting.append(Add(dict.fromkeys(completing(each, BYTES, tuple(output)), BAN)))
    return acting
