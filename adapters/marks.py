"""Marks of requests: a profile's key, and the request's own sampling, make what is realized.

No payload has a key, and no program that is cached: a request's mark is bound when it is admitted,
to refuse what would leave its text without a mark, and again in the worker.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..spec import SpecError
from .native import UNSET, value_of
from .policy import Policy

if TYPE_CHECKING:
    from .core import Mark, Program

PENALTIES: Mapping[str, float] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Fields with which engines change logits after a processor, and the values that change nothing."""

SAMPLING: Mapping[str, float] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""The fields that say how tokens are drawn, and the values that change nothing."""

BOUNDS: Mapping[str, float] = {"temperature": 0.01, "top_k": 2, "top_p": 0.01, "min_p": 0.99}
"""What a request that asks for a mark may ask for besides. Beyond, the likeliest token comes."""

REQUIRED_BOUNDS: Mapping[str, float] = {
    "temperature": 0.5,
    "top_k": 10,
    "top_p": 0.8,
    "min_p": 0.1,
}
"""What a request may ask for whose text has to be marked, unless the operator says otherwise.

A mark is in what is left to chance. At these bounds, SmolLM2-135M leaves so much that a text of
1,000 tokens is found, with a p-value of about 1e-10; at a temperature of 0.2 alone, hardly.
"""

MOST = 1 << 31
"""More than there are tokens."""

BEAMS = "beam_width", "num_beams"
COPIES = "n", "best_of", "num_return_sequences"


def mark_of(name: str, profile: Any) -> "Mark":
    """Return the mark with which texts are marked as a profile says.

    Raises:
        SpecError: for a profile that texts cannot be marked with here, or without a key.
    """
    from .core import Mark
    from .detection import VllmGumbel

    if type(profile) is not VllmGumbel:
        raise SpecError("Expected the scheme vllm-gumbel, with which texts are marked", "scheme")
    try:
        (key,) = profile.keys()
    except ValueError as error:
        raise SpecError(str(error), "key") from None
    searched = 0 if profile.deduplicate == "none" else 8192  # as vLLM's default
    reads_prompt = profile.deduplicate == "all"
    return Mark(name, key, width=profile.width, searched=searched, reads_prompt=reads_prompt)


def bind_mark(
    program: "Program | None",
    policy: Policy | None,
    request: Any,
    engine_marks: "Callable[[Mark], bool]" = lambda mark: False,
    after: Mapping[str, float] = PENALTIES,
    grammars: tuple[str, ...] = (),
    end_token: int | None = None,
) -> "Program | None":
    """Give a program's mark its key and the request's sampling, and put it after all other edits.

    Where the policy requires a mark, a request without one gets it.

    Args:
        program: the program that acts on the request, if any does.
        policy: the engine's policy, which has the profiles.
        request: the request's parameters, a mapping or an object.
        engine_marks: whether the engine itself makes this mark, so that nothing is to be realized.
        after: the fields with which the engine changes logits after a processor, by the values
            that change nothing. Others are refused, because the mark would not see them.
        grammars: the fields that ask for a grammar.
        end_token: a token that ends the text if its mark fails.

    Returns:
        The program, or another one that ends with the mark; ``None`` if nothing acts.

    Raises:
        SpecError: if the policy has no such profile, with the path of the spec; if the request's
            text would have no mark, with the field of the request.
    """
    from .core import Acting, Mark, Program

    required = policy.required_mark_of(request, grammars) if policy else None
    name, path, parts = required, (), ()
    for each in () if program is None else program.parts:
        if isinstance(each.part, Mark):
            name, path = each.part.profile, ("specs", *each.specs[:1], "profile")
        else:
            parts = *parts, each
    if name is None:
        return program
    mark = None if policy is None else policy.profiles.get(name)
    if mark is None:
        named = ", ".join(sorted(policy.profiles if policy else ())) or "it has none"
        raise SpecError(f"This server has no profile {name!r} of marks; profiles: {named}", *path)
    if required not in (None, name):
        raise SpecError(f"This server marks its texts with the profile {required!r}", *path)
    bounds = {**REQUIRED_BOUNDS, **policy.mark_bounds} if policy and required else BOUNDS
    bound = replace(mark, **_sampling(request, after, bounds))
    if engine_marks(mark):
        return program and replace(program, parts=parts)
    marking = Program((Acting(bound),), end_token=end_token)
    return replace(program or Program(), parts=parts).then(marking)


def bind_live(
    program: "Program",
    profiles: Mapping[str, Any] | None,
    sampling: Any,
) -> "Program":
    """Bind the mark of a program whose engine is in this process.

    Args:
        program: the program.
        profiles: the profiles by name, as ``detect`` takes them.
        sampling: how the engine draws: a ``SamplingSpec``, or its own parameters.

    Raises:
        SpecError: as ``bind_mark`` does; if it is not known how the engine draws.
    """
    if not program.marks:
        return program
    if value_of(sampling, "temperature") is None:
        raise SpecError(
            "A mark needs `sampling` with the temperature, which the engine does not say"
        )
    marks = {name: mark_of(name, profile) for name, profile in (profiles or {}).items()}
    return bind_mark(program, Policy(profiles=marks), sampling) or program


def _sampling(
    request: Any, after: Mapping[str, float], bounds: Mapping[str, float]
) -> dict[str, float]:
    """Return how a request's tokens are drawn; refuse what leaves its text without a mark."""

    def refuse(name: str, what: str) -> SpecError:
        got = f"got {value_of(request, name)!r:.50}"
        return SpecError.of_field(f"Expected {what}, because the text is marked; {got}", name)

    def number(name: str, default: float) -> float:
        value = value_of(request, name)
        if value in UNSET:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) < 1e38:  # NaN is neither
            raise refuse(name, "a number")
        return float(value)

    drawn = {name: number(name, neutral) for name, neutral in SAMPLING.items()}
    top_k = int(drawn["top_k"])
    drawn["top_k"] = top_k = top_k if 0 < top_k < MOST else 0
    if value_of(request, "do_sample") is False:
        raise refuse("do_sample", "do_sample that is not false")
    if drawn["temperature"] < bounds["temperature"]:
        raise refuse("temperature", f"a temperature of at least {bounds['temperature']:g}")
    if 0 < top_k < bounds["top_k"]:
        raise refuse("top_k", f"top_k of at least {bounds['top_k']:g}, or none")
    if drawn["top_p"] < bounds["top_p"]:
        raise refuse("top_p", f"top_p of at least {bounds['top_p']:g}")
    if drawn["min_p"] > bounds["min_p"]:
        raise refuse("min_p", f"min_p of at most {bounds['min_p']:g}")
    for name in BEAMS:
        if number(name, 1) > 1:
            raise refuse(name, "no beam search")
    for name in COPIES:  # which would be equal: their noise is the same
        if number(name, 1) > 1:
            raise refuse(name, "one reply")
    for name, neutral in after.items():
        if value_of(request, name) not in (*UNSET, neutral):
            raise refuse(name, f"{neutral:g}")
    return drawn
