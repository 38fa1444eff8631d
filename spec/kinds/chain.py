"""``chain``: what is left of the next-token distribution, step by step."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from ..base import LogitsProcessorSpec, PositiveCount, check_fields
from ..errors import SpecError

TOP_H_TOKENS, MIN_K_TOKENS = 100, 1024
"""How many of the likeliest tokens `top_h` and `min_k` look at."""

_Temperature = Annotated[float, msgspec.Meta(ge=0.01, le=100)]
_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
_Half = Annotated[float, msgspec.Meta(gt=0, le=0.5)]
_Number = Annotated[float, msgspec.Meta(gt=0, le=1000)]
_Curve = Annotated[float, msgspec.Meta(ge=1, le=3)]


class Smoothing(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A cubic curve of logits.

    Args:
        factor: above 0, to 1000; how steep it is.
        curve: 1 to 3; at 1, it is a parabola.

    Raises:
        SpecError: if a field is out of bounds.
    """

    factor: _Number
    curve: _Curve = 1.0

    def __post_init__(self) -> None:
        check_fields(self)


class Xtc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exclude top choices: of the tokens that are likely enough, only the least likely stays.

    Args:
        threshold: above 0, to 0.5; how likely a token has to be.
        probability: above 0, to 1; how often tokens are excluded.

    Raises:
        SpecError: if a field is out of bounds.
    """

    threshold: _Half
    probability: _Share

    def __post_init__(self) -> None:
        check_fields(self)


class ChainStep(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """One step of a ``chain``: exactly one of the fields.

    `p` are the probabilities of the tokens that are left, `H` is their entropy in nats.

    Args:
        temperature: 0.01 to 100; what logits are divided by.
        top_k: keep so many of the likeliest tokens, and those that are as likely as the last.
        top_p: keep the likeliest tokens that together have this probability, up to 1.
        min_p: keep `p >= min_p * max(p)`, up to 1.
        top_n_sigma: keep logits that are not further below the highest than so many standard
            deviations of all that are left, up to 1000 (arXiv 2411.07641).
        top_a: keep `p >= top_a * max(p)**2`, up to 1.
        typical: keep the tokens whose `-ln p` is the nearest to `H`, that together have this
            probability, up to 1 (arXiv 2202.00666).
        epsilon: keep `p >= epsilon`, up to 1 (arXiv 2210.15191).
        eta: keep `p >= min(eta, sqrt(eta) * exp(-H))`, up to 1 (arXiv 2210.15191).
        top_h: of the 100 likeliest tokens, keep the first whose terms `-p ln p` add up to no more
            than this share of `H`, up to 1 (arXiv 2509.02510).
        p_less: keep `p >= sum(p**2)` (arXiv 2509.23234).
        min_k: keep the tokens before the steepest fall of the 1,024 highest logits, but at least
            `floor(min_k / R)`, where `R` is the range of all that are left; up to 1000
            (arXiv 2604.11012).
        smoothing: bend the logits; see ``Smoothing``.
        xtc: exclude top choices; see ``Xtc``.

    Raises:
        SpecError: if a field is out of bounds, or if not exactly one is given.
    """

    temperature: _Temperature | None = None
    top_k: PositiveCount | None = None
    top_p: _Share | None = None
    min_p: _Share | None = None
    top_n_sigma: _Number | None = None
    top_a: _Share | None = None
    typical: _Share | None = None
    epsilon: _Share | None = None
    eta: _Share | None = None
    top_h: _Share | None = None
    p_less: Literal[True] | None = None
    min_k: _Number | None = None
    smoothing: Smoothing | None = None
    xtc: Xtc | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise SpecError(f"Expected one of {', '.join(self.__struct_fields__)}, got {got}")

    @property
    def name(self) -> str:
        """The name of the field that is given."""
        return next(name for name in self.__struct_fields__ if getattr(self, name) is not None)


_NAMES = ChainStep.__struct_fields__


class ChainSpec(LogitsProcessorSpec, frozen=True, tag="chain"):
    """Samplers, in this order, the same on every engine.

    The steps see what all other edits leave, the server's guard included. Tokens that are banned,
    masked or not allowed are outside of all means, masses and entropies. The likeliest token always
    stays, but for ``xtc``. A forced token stays what it is.

    The engine draws from what the steps leave. Without a ``temperature``, the request's own comes
    after all steps. With one, the request's own has to be equal to it, or 1.

    ``xtc`` needs no random numbers: the logits of the tokens that it would exclude get
    `ln((1 - q) / (1 + q m / (1 - m)))`, where `q` is its probability and `m` their share of
    the mass. What is drawn is distributed as with XTC itself. Only a ``temperature`` may follow.

    Examples:
        >>> from logitport.spec import encode
        >>> print(encode(ChainSpec((ChainStep(min_p=0.1),))))
        {"version":1,"specs":[{"kind":"chain","steps":[{"min_p":0.1}]}],"generation_only":true}

    Args:
        steps: at least one step, each of another name.

    Raises:
        SpecError: if a field is out of bounds, for a second step of a name, and for what follows
            ``xtc``.
    """

    steps: Annotated[tuple[ChainStep, ...], msgspec.Meta(min_length=1, max_length=len(_NAMES))]

    @property
    def narrows(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [step.name for step in self.steps]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise SpecError(f"Expected {name} once", "steps", i)
            if "xtc" in names[:i] and name != "temperature":
                raise SpecError(f"Expected no {name} after xtc, which has to see it", "steps", i)

    @classmethod
    def from_llama_cpp(cls, samplers: str, **settings: float) -> "ChainSpec":
        """Make the chain of llama.cpp's command line.

        Examples:
            >>> ChainSpec.from_llama_cpp("top_k;xtc;temperature", top_k=20, temp=0.7)
            ChainSpec(steps=(ChainStep(top_k=20), ChainStep(temperature=0.7)))

        Args:
            samplers: the value of ``--samplers``.
            settings: ``temp``, ``top_k``, ``top_p``, ``min_p``, ``typical``, ``top_n_sigma``,
                ``xtc_probability`` and ``xtc_threshold``, as on the command line. Others have
                llama.cpp's defaults, with which ``penalties``, ``dry``, ``typ_p``,
                ``top_n_sigma`` and ``xtc`` do nothing.

        Raises:
            SpecError: for a sampler or a setting that a chain does not have, and as the constructor
                does.
        """
        for name in settings.keys() - _LLAMA_CPP.keys():
            what = "; penalties are the kinds `sampling` and `dry`"
            raise SpecError(f"Expected settings of {', '.join(_LLAMA_CPP)}, got {name}{what}")
        values, steps = {**_LLAMA_CPP, **settings}, list[ChainStep]()
        for given in samplers.split(";"):
            name = given.replace("-", "_")
            name = _ALIASES.get(name, name)
            if name not in _OFF:
                raise SpecError(f"Expected samplers of {', '.join(_OFF)}, got {given!r:.50}")
            if not _OFF[name](values):
                steps.append(_step_of(name, values))
        return cls(tuple(steps))


_LLAMA_CPP = {
    **{"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical": 1.0},
    **{"top_n_sigma": -1.0, "xtc_probability": 0.0, "xtc_threshold": 0.1},
}
"""The defaults of llama.cpp's common/common.h."""

_ALIASES = {
    **{"temp": "temperature", "typ_p": "typical", "typical_p": "typical", "typ": "typical"},
    **{"nucleus": "top_p", "top_nsigma": "top_n_sigma"},
}
_OFF: dict[str, Callable[[Mapping[str, float]], bool]] = {
    "penalties": lambda of: True,
    "dry": lambda of: True,
    "temperature": lambda of: False,
    "top_k": lambda of: of["top_k"] <= 0,
    "top_p": lambda of: of["top_p"] >= 1,
    "min_p": lambda of: of["min_p"] <= 0,
    "typical": lambda of: of["typical"] >= 1,
    "top_n_sigma": lambda of: of["top_n_sigma"] <= 0,
    "xtc": lambda of: of["xtc_probability"] <= 0 or of["xtc_threshold"] > 0.5,
}
"""Where a sampler of llama.cpp does nothing. Penalties cannot be set: they are other kinds."""


def _step_of(name: str, values: dict[str, float]) -> ChainStep:
    """Make the step of a sampler of llama.cpp."""
    if name == "xtc":
        return ChainStep(xtc=Xtc(values["xtc_threshold"], values["xtc_probability"]))
    value: Any = values["temp" if name == "temperature" else name]
    return ChainStep(**{name: value})
