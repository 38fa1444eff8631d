"""Presets with parameters: specs of the operator's, with values that a request chooses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Annotated, Any, TypeVar, cast

import msgspec

from ..spec import LogitsProcessorSpec, SpecError
from ..spec.base import PositiveCount, spec_error
from ..spec.suggestions import instead_of

Specs = tuple[LogitsProcessorSpec, ...]
Make = Callable[[Sequence[Any]], Specs]
"""Makes specs of entries; raises ``SpecError`` at the first that is wrong."""

Value = int | float | str
T = TypeVar("T")
_Values = Annotated[tuple[Value, ...], msgspec.Meta(max_length=64)]


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that a request may choose: a number, one of some values, or a text.

    Args:
        min, max: of a number, with both; a whole number if both are.
        one_of: up to 64 values.
        max_length: of a text, in characters.
        default: the value if a request names none; without it, it has to.

    Raises:
        SpecError: if not exactly one of the three is given, or the default is none of the values.
    """

    min: int | float | None = None
    max: int | float | None = None
    one_of: _Values = ()
    max_length: PositiveCount | None = None
    default: Value | None = None

    def __post_init__(self) -> None:
        is_number = self.min is not None or self.max is not None
        if is_number + bool(self.one_of) + (self.max_length is not None) != 1:
            raise SpecError("Expected exactly one of min and max, one_of, and max_length")
        if is_number and (self.min is None or self.max is None or self.min > self.max):
            raise SpecError("Expected min and max, of which min is not above max")
        if self.default is not None:
            try:
                self.check(self.default)
            except SpecError as error:
                raise error.at("default") from None

    def check(self, value: object) -> None:
        """Refuse a value that is none of the parameter's.

        Raises:
            SpecError: with what was expected.
        """
        if self.one_of:
            is_fine = any(type(value) is type(each) and value == each for each in self.one_of)
            expected = f"one of {', '.join(map(repr, self.one_of))}"
        elif self.max_length is not None:
            is_fine = isinstance(value, str) and 0 < len(value) <= self.max_length
            expected = f"a text of 1 to {self.max_length} characters"
        else:
            least, most = cast("float", self.min), cast("float", self.max)
            is_whole = isinstance(least, int) and isinstance(most, int)
            kinds = int if is_whole else (int, float)
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            is_fine = is_number and least <= cast("float", value) <= most
            expected = f"{'an integer' if is_whole else 'a number'} from {least} to {most}"
        if not is_fine:
            raise SpecError(f"Expected {expected}, got {value!r:.100}")

    def ends(self) -> Sequence[Value]:
        """List the values with which a preset is checked when it is read."""
        if self.max_length is not None:
            letters = ascii_lowercase * (self.max_length // len(ascii_lowercase) + 1)
            return "a", letters[: self.max_length]
        return self.one_of or (cast("float", self.min), cast("float", self.max))


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    params: dict[str, Any]
    specs: Annotated[list[Any], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, eq=False)
class Preset:
    """Specs of which a request chooses some values, ``{"param": "budget"}`` in their fields.

    Every preset is made with each parameter at each of its ends when it is read, so that no request
    meets a broken one; the text of a parameter may still make a spec that is refused.

    Attributes:
        parameters: what a request chooses.
        entries: the specs, as objects.
        make: makes specs of the objects.
    """

    parameters: Mapping[str, Parameter]
    entries: Sequence[Any]
    make: Make

    @classmethod
    def of(cls, value: Any, make: Make) -> "Preset":
        """Read a preset of a configuration: an object with ``params`` and ``specs``.

        Raises:
            SpecError: with the path of what is wrong.
        """
        fields, parameters = _converted(value, _Fields), dict[str, Parameter]()
        for name, each in fields.params.items():
            parameters[name] = _converted(each, Parameter, "params", name)
        named = set(_named(fields.specs))
        for name in named - parameters.keys():
            what = f"There is no parameter {name!r}; {instead_of(name, parameters)}"
            raise SpecError(what, "specs")
        for name in parameters.keys() - named:
            raise SpecError("No spec has this parameter", "params", name)
        preset = cls(parameters, fields.specs, make)
        for params in preset.examples():
            try:
                preset.specs(params)
            except SpecError as error:
                raise SpecError((*error.parts, f", with {dict(params)}"), "specs") from error
        return preset

    def examples(self) -> Iterator[Mapping[str, Value]]:
        """Yield parameters with which the preset has to work: each at each of its ends."""
        of_all = {
            name: each.ends()[0] if each.default is None else each.default
            for name, each in self.parameters.items()
        }
        yield of_all
        for name, each in self.parameters.items():
            yield from ({**of_all, name: value} for value in each.ends())

    def specs(self, params: Mapping[str, Any]) -> Specs:
        """Make the specs of a request.

        Raises:
            SpecError: for a parameter that is unknown, missing, or out of bounds, at its name.
        """
        for name in params.keys() - self.parameters.keys():
            what = f"There is no parameter {name!r}; {instead_of(name, self.parameters)}"
            raise SpecError(what, name)
        values: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            value = params.get(name, parameter.default)
            if value is None:
                raise SpecError("Expected a value, which has no default", name)
            try:
                parameter.check(value)
            except SpecError as error:
                raise error.at(name) from None
            values[name] = value
        return self.make(_filled(list(self.entries), values))

    def describe(self) -> Any:
        """Describe the preset, for the digest of a policy."""
        return [msgspec.to_builtins(self.parameters), self.entries]


def _converted(value: Any, kind: type[T], *path: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except SpecError as error:
        raise error.at(*path) from None
    except msgspec.ValidationError as error:
        raise spec_error(error).at(*path) from None


def _is_parameter(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.keys() == {"param"}


def _named(entry: Any) -> Iterator[str]:
    """Yield the names of the parameters in an entry."""
    if _is_parameter(entry):
        yield str(entry["param"])
    elif isinstance(entry, Mapping | list):
        every = entry.values() if isinstance(entry, Mapping) else entry
        for each in cast("Sequence[Any]", every):
            yield from _named(each)


def _filled(entry: Any, values: Mapping[str, Any]) -> Any:
    """Return an entry with values in place of parameters."""
    if _is_parameter(entry):
        return values[str(entry["param"])]
    if isinstance(entry, Mapping):
        return {name: _filled(each, values) for name, each in cast("Any", entry).items()}
    if isinstance(entry, list):
        return [_filled(each, values) for each in cast("list[Any]", entry)]
    return entry
