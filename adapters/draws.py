"""Draws of requests: a profile's key, and the request's own sampling, make what is realized.

No payload has a key, and no program that is cached: a request's chain and mark are bound when it is
admitted, to refuse what would change the one or leave its text without the other, and again in the
worker.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..spec import SpecError
from .native import UNSET, value_of
from .policy import Policy

if TYPE_CHECKING:
    from .core import Chain, Mark, Program

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

MOST = 1 << 30
"""More than there are tokens. SGLang's workers have this number for no top_k."""

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 100
"""The bounds of a temperature that is a step of a chain."""

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


def bind_draw(
    program: "Program | None",
    policy: Policy | None,
    request: Any,
    engine_marks: "Callable[[Mark], bool]" = lambda mark: False,
    after: Mapping[str, float] = PENALTIES,
    grammars: tuple[str, ...] = (),
    end_token: int | None = None,
) -> "Program | None":
    """Give a program's chain and mark what they draw with, and put them after all other edits.

    Where the policy requires a mark, a request without one gets it.

    Args:
        program: the program that acts on the request, if any does.
        policy: the engine's policy, which has the profiles.
        request: the request's parameters, a mapping or an object.
        engine_marks: whether the engine itself makes this mark, so that nothing is to be realized.
        after: the fields with which the engine changes logits after a processor, by the values
            that change nothing. Others are refused, because neither chain nor mark would see them.
        grammars: the fields that ask for a grammar.
        end_token: a token that ends the text if its mark fails.

    Returns:
        The program, or another one that ends with the chain and the mark; ``None`` if nothing acts.

    Raises:
        SpecError: if the policy has no such profile, with the path of the spec; if the request
            would be drawn otherwise than the chain says, or its text would have no mark, with the
            field of the request.
    """
    from .core import Acting, Chain, Mark, Program

    required = policy.required_mark_of(request, grammars) if policy else None
    name, path, parts = required, (), ()
    chain: Chain | None = None
    for each in () if program is None else program.parts:
        if isinstance(each.part, Mark):
            name, path = each.part.profile, ("specs", *each.specs[:1], "profile")
        elif isinstance(each.part, Chain):
            chain = each.part
        else:
            parts = *parts, each
    if name is None and chain is None:
        return program
    draws = [] if chain is None else [*map(Acting, _bind_chain(chain, request, after))]
    if name is not None:
        bound = _bind_mark(name, path, policy, required, request, after)
        draws += [] if engine_marks(bound) else [Acting(bound)]
    if not parts and not draws:
        return program and replace(program, parts=parts)
    ends = None if name is None else end_token
    left = replace(program or Program(), parts=parts)
    return left.then(Program(tuple(draws), end_token=ends)) if draws else left


def _bind_mark(
    name: str,
    path: tuple[str | int, ...],
    policy: Policy | None,
    required: str | None,
    request: Any,
    after: Mapping[str, float],
) -> "Mark":
    mark = None if policy is None else policy.profiles.get(name)
    if mark is None:
        named = ", ".join(sorted(policy.profiles if policy else ())) or "it has none"
        raise SpecError(f"This server has no profile {name!r} of marks; profiles: {named}", *path)
    if required not in (None, name):
        raise SpecError(f"This server marks its texts with the profile {required!r}", *path)
    bounds = {**REQUIRED_BOUNDS, **policy.mark_bounds} if policy and required else BOUNDS
    sampling = _Sampling(request, "the text is marked")
    sampling.check(after, (*BEAMS, *COPIES))  # copies would be equal: their noise is the same
    return replace(mark, **sampling.within(bounds))


def _bind_chain(chain: "Chain", request: Any, after: Mapping[str, float]) -> "list[Chain]":
    """Return the chain with the request's temperature; none if the likeliest token comes.

    No step changes which token is the likeliest, but for ``xtc``.
    """
    from ..spec import ChainStep

    sampling = _Sampling(request, "the request has a `chain`")
    sampling.check(after, BEAMS)
    own = next((each.temperature for each in chain.steps if each.temperature), None)
    excludes = any(each.xtc for each in chain.steps)
    given = sampling.number("temperature")
    if value_of(request, "do_sample") is False:
        if excludes or own is not None:
            raise sampling.refusal("do_sample", "do_sample that is not false")
        given = 0.0
    for name in ("top_k", "top_p", "min_p") if excludes else ():
        if sampling.drawn[name] != SAMPLING[name]:
            raise sampling.refusal(name, f"no {name}, which can be a step before xtc")
    if own is not None and given not in (1.0, own):
        raise sampling.refusal("temperature", f"a temperature of 1, or of {own:g} as in its steps")
    least, most = (LEAST_TEMPERATURE, MOST_TEMPERATURE) if excludes else (0, MOST)
    if not least <= given <= most:
        bound = f"most {most}" if given > most else f"least {least}"
        raise sampling.refusal("temperature", f"a temperature of at {bound}")
    if given == 0:
        return []
    if own is None and excludes:
        chain, own = replace(chain, steps=(*chain.steps, ChainStep(temperature=given))), given
    return [replace(chain, temperature=1.0 if own is None else given)]


def bind_live(
    program: "Program",
    profiles: Mapping[str, Any] | None,
    sampling: Any,
) -> "Program":
    """Bind the chain and mark of a program whose engine is in this process.

    Args:
        program: the program.
        profiles: the profiles by name, as ``detect`` takes them.
        sampling: how the engine draws: a ``SamplingSpec``, or its own parameters.

    Raises:
        SpecError: as ``bind_draw`` does; if it is not known how the engine draws.
    """
    if not program.marks and not program.chains:
        return program
    if value_of(sampling, "temperature") is None:
        what = "A mark" if program.marks else "A chain"
        raise SpecError(
            f"{what} needs `sampling` with the temperature, which the engine does not say"
        )
    marks = {name: mark_of(name, profile) for name, profile in (profiles or {}).items()}
    return bind_draw(program, Policy(profiles=marks), sampling) or program


class _Sampling:
    """How a request's tokens are drawn by the engine.

    Args:
        request: the request's parameters, a mapping or an object.
        why: why some of them are refused.
    """

    def __init__(self, request: Any, why: str) -> None:
        self._request, self._why = request, why

    def refusal(self, name: str, what: str) -> SpecError:
        """Make the error for a field."""
        got = f"got {value_of(self._request, name)!r:.50}"
        return SpecError.of_field(f"Expected {what}, because {self._why}; {got}", name)

    def number(self, name: str, default: float | None = None) -> float:
        """Return the value of a field, or its default.

        Raises:
            SpecError: if it is no number.
        """
        value = value_of(self._request, name)
        if value in UNSET:
            return SAMPLING[name] if default is None else default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) < 1e38:  # NaN is neither
            raise self.refusal(name, "a number")
        return float(value)

    @property
    def drawn(self) -> dict[str, Any]:
        """The fields of ``SAMPLING``."""
        top_k = int(self.number("top_k"))
        values = {name: self.number(name) for name in SAMPLING}
        return {**values, "top_k": top_k if 0 < top_k < MOST else 0}

    def check(self, after: Mapping[str, float], single: Iterable[str]) -> None:
        """Refuse what changes logits afterwards, and more than one of some things.

        Raises:
            SpecError: with the field.
        """
        for name in single:
            if self.number(name, 1) > 1:
                raise self.refusal(name, "no beam search" if name in BEAMS else "one reply")
        for name, neutral in after.items():
            if value_of(self._request, name) not in (*UNSET, neutral):
                raise self.refusal(name, f"{neutral:g}")

    def within(self, bounds: Mapping[str, float]) -> dict[str, Any]:
        """Return the fields of ``SAMPLING``.

        Raises:
            SpecError: for one that is out of bounds.
        """
        drawn, least = self.drawn, bounds["temperature"]
        if value_of(self._request, "do_sample") is False:
            raise self.refusal("do_sample", "do_sample that is not false")
        if drawn["temperature"] < least:
            raise self.refusal("temperature", f"a temperature of at least {least:g}")
        if 0 < drawn["top_k"] < bounds["top_k"]:
            raise self.refusal("top_k", f"top_k of at least {bounds['top_k']:g}, or none")
        if drawn["top_p"] < bounds["top_p"]:
            raise self.refusal("top_p", f"top_p of at least {bounds['top_p']:g}")
        if drawn["min_p"] > bounds["min_p"]:
            raise self.refusal("min_p", f"min_p of at most {bounds['min_p']:g}")
        return drawn
