"""The roles that a worker of a deployment can have."""

from enum import StrEnum
from typing import NoReturn

from .errors import SpecError


class Stage(StrEnum):
    """What a worker does for a request.

    The values are those of Dynamo's ``DisaggregationMode`` (``dynamo/common/constants.py``).

    Raises:
        SpecError: for a value that is none of them.
    """

    AGGREGATED = "agg"
    """Prefill and decode on one worker."""
    PREFILL = "prefill"
    """Computes the prompt's KV cache; its token, if it samples one, is not the reply's."""
    DECODE = "decode"
    """Generates the reply from a KV cache that a prefill worker computed."""
    ENCODE = "encode"
    """Encodes images, audio and the like; samples nothing."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise SpecError(f"Expected a stage, one of {', '.join(cls)}; got {value!r}")

    @property
    def generates(self) -> bool:
        """Whether a worker in this stage emits the tokens that the client sees."""
        return self in (Stage.AGGREGATED, Stage.DECODE)

    def is_active(self, generation_only: bool) -> bool:
        """Whether specs act in this stage, given whether they are for stages that generate."""
        return self.generates or not generation_only
