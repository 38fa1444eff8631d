"""``plugin``: run a processor that the server has installed."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from ..base import LogitsProcessorSpec, Sizes
from ..errors import SpecError
from ..json_values import FrozenDict, frozen_json, parts_of
from ..limits import MAX_NAME

# "$" alone would let a line break follow.
_Name = Annotated[
    str, msgspec.Meta(min_length=1, max_length=MAX_NAME, pattern=r"^[A-Za-z0-9_.-]+$(?!\n)")
]


class PluginSpec(LogitsProcessorSpec, frozen=True, tag="plugin"):
    """A processor that the server has installed under ``name``.

    No code travels: the name is looked up in the server's entry points of the group
    ``logitport.plugins``, and a server that has none of that name refuses the request. The plugin
    defines and checks ``params``. Their token ids are not checked against the vocabulary here. Or
    the server's configuration has specs under the name, a preset, with parameters of its own.

    Where SGLang's ``CustomLogitProcessor`` sends the pickled class itself.

    Examples:
        >>> from logitport.spec import encode
        >>> print(encode(PluginSpec("yes-no")))
        {"version":1,"specs":[{"kind":"plugin","name":"yes-no","params":{}}],"generation_only":true}

    Args:
        name: 1 to ``MAX_NAME`` letters, digits, and ``_.-``.
        params: a JSON object, ``MAX_DEPTH`` levels deep at most; its size is bounded by that of
            the payload. Copied, its arrays as tuples, and never changed again.

    Raises:
        SpecError: if a field is out of bounds, or ``params`` holds a value which JSON cannot have.
    """

    name: _Name
    params: Mapping[str, Any] = FrozenDict()

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            params = frozen_json(self.params)
        except SpecError as error:
            raise error.at("params") from None
        msgspec.structs.force_setattr(self, "params", params)

    def sizes(self) -> Sizes:
        return Sizes(parts_of(self.params))

    @property
    def narrows(self) -> bool:
        return True
