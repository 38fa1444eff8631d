"""What an engine lets in, in the process that takes requests."""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from ...spec import SpecError, encode
from ..core import admitted, default_specs
from ..counters import count
from .back_end import BACK_END, KEY, PROCESSOR
from .params import check_grammar_is_followed
from .worker import WITH_DRAFTS, check_tokens_in_time, stage

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

logger = logging.getLogger(__name__)

OTHERS_VARIABLE = "LOGITPORT_SGLANG_ADMIT_OTHERS"
"""Set to 1, it admits processors of others, and so code: the engine unpickles what clients send."""

REFUSED = (
    "This server admits no custom_logit_processor but logitport's, which executes no code of "
    f"clients; its operator can admit others with {OTHERS_VARIABLE}=1"
)

NO_SPECS = (
    f"The request names logitport's processor, and brings no specs in custom_params[{KEY!r}]: "
    "`attach` makes what /generate takes, `extra_body` what OpenAI's routes take. In a batch where "
    "some prompts have specs, name none: those that have some need not"
)


def is_refused(custom_logit_processor: str | None) -> bool:
    """Whether a request may not name this processor."""
    others = os.environ.get(OTHERS_VARIABLE) == "1"
    return custom_logit_processor not in (None, PROCESSOR) and not others


def _tokenizer(manager: "TokenizerManager") -> Any:
    if manager.tokenizer is None:
        raise SpecError("Default specs need a tokenizer, and the engine was told to load none")
    return manager.tokenizer


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping | None):
        raise ValueError(f"Expected {name} to be an object, got {type(value).__name__}")
    return value or {}


def _has_beams(sampling_params: Mapping[str, Any]) -> bool:
    return sampling_params.get("beam_width") not in (None, 1)


class Admission:
    """Checks the requests of one engine, before they go to its workers.

    Args:
        manager: the engine's.

    Raises:
        SpecError: if default specs are configured which this engine cannot realize.
    """

    def __init__(self, manager: "TokenizerManager") -> None:
        self._vocab_size: int = manager.model_config.vocab_size
        self._default_specs = default_specs(lambda: _tokenizer(manager))
        self._default = encode(self._default_specs) if self._default_specs else None
        calls_processors = get_exec().features.enable_custom_logit_processor
        if self._default is not None:
            if not calls_processors:
                raise SpecError(
                    "Default specs are configured, but SGLang calls no logits processors: start "
                    "the engine with --enable-custom-logit-processor"
                )
            self._default_acts = self._check(self._default, {})
        if calls_processors:
            if not hasattr(CustomLogitProcessor.from_str, "__wrapped__"):
                raise SpecError("SGLang has not put logitport's guard in place; its log says why")
            logger.info("logitport: stage %s, admits no other logits processors", stage())

    def admit(self, request: Any) -> None:
        """Refuse a request that names somebody else's processor, or whose specs cannot be realized.

        One that has specs is made to name our processor, and one without gets the default specs.

        Args:
            request: a ``GenerateReqInput`` for one prompt, changed in place.

        Raises:
            ValueError: with what is wrong, and where; over HTTP, status 400.
        """
        processor = request.custom_logit_processor
        if is_refused(processor):
            raise ValueError(REFUSED)
        sampling_params = _mapping(request.sampling_params, "sampling_params")
        custom_params = _mapping(sampling_params.get("custom_params"), "custom_params")
        payload = custom_params.get(KEY)
        if payload is None:
            if processor == PROCESSOR:
                count("refused", stage())
                raise ValueError(NO_SPECS)
            if processor is None and self._takes_default(sampling_params):
                custom_params = {**custom_params, KEY: self._default}
                request.sampling_params = {**sampling_params, "custom_params": custom_params}
                request.custom_logit_processor = PROCESSOR if self._default_acts else None
            return
        where = stage()
        try:
            if processor not in (None, PROCESSOR):
                raise SpecError("The request names another custom_logit_processor")
            acts = self._check(payload, sampling_params)
        except SpecError as error:
            count("refused", where)
            raise ValueError(f"{KEY}: {error}") from None
        count("admitted" if acts else "gated", where)
        request.custom_logit_processor = PROCESSOR if acts else None

    def _takes_default(self, sampling_params: Mapping[str, Any]) -> bool:
        """Whether there are default specs, and the request can have them."""
        try:
            check_grammar_is_followed(sampling_params, self._default_specs)
        except SpecError:  # a grammar of the request's own would not take what is forced
            return False
        return self._default is not None and not _has_beams(sampling_params)

    def _check(self, payload: Any, sampling_params: Mapping[str, Any]) -> bool:
        """Whether a payload acts on this engine, which can then realize it.

        Raises:
            SpecError: if it cannot, or what is in the payload is wrong.
        """
        decoded, program = admitted(BACK_END, payload, self._vocab_size)
        check_grammar_is_followed(sampling_params, decoded.specs)
        acts = decoded.acts_on(stage())
        if not acts:
            return False
        if get_spec().speculative_algorithm:
            raise SpecError(WITH_DRAFTS)
        check_tokens_in_time(decoded.specs, program)
        if get_exec().dllm.dllm_algorithm:
            raise SpecError("SGLang's diffusion models choose tokens without logits processors")
        if _has_beams(sampling_params):
            raise SpecError("SGLang tells no logits processor the tokens of its beams")
        return True
