"""Admission to an SGLang engine, in the process that takes requests."""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from sglang.srt.hardware_backend.mlx.runtime import use_mlx
from sglang.srt.runtime_context import get_exec, get_serving, get_spec
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from ...spec import Payload, SpecError, WatermarkSpec, decode, encode
from .. import (
    ADMIT_OTHERS_VARIABLE,
    Attached,
    Live,
    Policy,
    admit,
    bind_draw,
    check_bare,
    check_ends,
    check_policy,
    check_prompt,
    check_spelling,
    count,
    note,
    policy_of,
)
from .backend import BACKEND, END_TOKEN, GUARD, KEY, PROCESSOR
from .native import GRAMMARS
from .params import check_request
from .worker import WITH_DRAFTS, check_tokens_in_time, stage

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

logger = logging.getLogger(__name__)

REFUSED = (
    "This server admits no custom_logit_processor but logitport's, which executes no code of "
    f"clients; its operator can admit others with {ADMIT_OTHERS_VARIABLE}=1"
)

NO_SPECS = (
    f"The request names logitport's processor, but has no specs in custom_params[{KEY!r}]: "
    "`attach` makes what /generate takes, `extra_body` what OpenAI's routes take. In a batch where "
    "some prompts have specs, name no processor: specs do not need it"
)


_ADMISSION = "_logitport_admission"


def start(manager: "TokenizerManager") -> None:
    """Have the requests of a manager checked."""
    live = Live(partial(Admission, manager), attrgetter("backend.policy"))
    setattr(manager, _ADMISSION, live)
    if get_exec().features.enable_custom_logit_processor:
        if not hasattr(CustomLogitProcessor.from_str, "__wrapped__"):
            raise SpecError("SGLang has not put logitport's guard in place; its log says why")
        logger.info("logitport: stage %s, admits no other logits processors", stage())


def admission_of(manager: "TokenizerManager") -> "Admission":
    """Return the ``Admission`` that checks a request of a manager; see ``one_policy``."""
    return getattr(manager, _ADMISSION).current()


def admits_others() -> bool:
    """Whether the operator admits other processors than logitport's."""
    return os.environ.get(ADMIT_OTHERS_VARIABLE) == "1"


def is_refused(custom_logit_processor: str | None) -> bool:
    """Whether a request may not name this processor."""
    return custom_logit_processor not in (None, PROCESSOR) and not admits_others()


def _tokenizer(manager: "TokenizerManager") -> Any:
    if manager.tokenizer is None:
        raise SpecError("Default specs need a tokenizer, and the engine was told to load none")
    return manager.tokenizer


def _eos_token_ids(manager: "TokenizerManager") -> set[int]:
    """Return the model's own stop tokens, which ``min_new_tokens`` holds back.

    See ``sglang/srt/sampling/penaltylib/min_new_tokens.py``.
    """
    eos = getattr(manager.tokenizer, "eos_token_id", None)
    others = getattr(manager.tokenizer, "additional_stop_token_ids", None) or ()
    return {eos, *others, *(manager.model_config.hf_eos_token_id or ())} - {None}


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping | None):
        raise ValueError(f"Expected {name} to be an object, got {type(value).__name__}")
    return value or {}


def _has_beams(sampling_params: Mapping[str, Any]) -> bool:
    return sampling_params.get("beam_width") not in (None, 1)


class Admission:
    """Checks the requests of one engine, before they go to its workers.

    Attributes:
        backend: the backend, with the engine's vocabulary and policy.

    Raises:
        SpecError: if default specs are configured which this engine cannot realize.
    """

    def __init__(self, manager: "TokenizerManager") -> None:
        self._vocab_size: int = manager.model_config.vocab_size
        args: Any = manager.server_args
        generates: bool = manager.model_config.is_generation
        load = partial(_tokenizer, manager) if generates else None
        policy = policy_of(load)
        ends = _eos_token_ids(manager)
        tokenizer, size = manager.tokenizer, self._vocab_size
        backend = BACKEND.for_tokenizer(tokenizer, size, end_tokens=lambda: ends)
        self.backend = replace(backend, policy=policy).preload()
        if policy and policy.efforts and not get_serving().enable_strict_thinking:
            raise SpecError(
                "`effort` bounds the engine's own thinking, which SGLang does only with "
                "--enable-strict-thinking: start the engine with it"
            )
        self._thinks = bool(args.reasoning_parser)  # before a grammar begins
        self._eos_token_ids = _eos_token_ids(manager)
        self._end_token = policy and policy.end_token(self._eos_token_ids, self._vocab_size)
        if generates:
            check_policy(self.backend, self._vocab_size)
        else:
            logger.info("logitport: the model generates nothing, so default specs do nothing")
        self._model: str = args.served_model_name or args.model_path
        self._default: str | None = None
        default = policy and policy.default_payload
        if generates and policy and policy.acts_always:
            if not get_exec().features.enable_custom_logit_processor:
                raise SpecError(
                    "Default specs are configured, but SGLang calls no logits processors: start "
                    "the engine with --enable-custom-logit-processor"
                )
            self._guard({}, None, has_prompt_ids=True)
            if default and self.decide(default, {}, has_prompt_ids=True, is_own=False):
                self._default = default

    def admit(self, request: Any) -> None:
        """Refuse a request that names another processor, or whose specs cannot be realized.

        A request with specs that act here gets the name of our processor. Specs that do not act are
        removed. A request without specs gets the default specs.

        Args:
            request: a ``GenerateReqInput`` for one prompt, changed in place.

        Raises:
            ValueError: with the error and its path; over HTTP, status 400.
        """
        try:
            self._admit(request)
        except SpecError as error:
            count("refused", stage(), error=error)
            raise ValueError(f"{KEY}: {error}") from None

    def _admit(self, request: Any) -> None:
        processor = request.custom_logit_processor
        if is_refused(processor):
            raise SpecError(REFUSED)
        sampling_params = _mapping(request.sampling_params, "sampling_params")
        custom_params = _mapping(sampling_params.get("custom_params"), "custom_params")
        payload = custom_params.get(KEY)
        check_spelling(custom_params, "custom_params")
        check_bare(custom_params, "custom_params", "custom_params")
        if payload is None and processor == PROCESSOR:
            raise SpecError(NO_SPECS)
        if payload is not None and processor not in (None, PROCESSOR):
            raise SpecError("The request names another custom_logit_processor")
        decided = None
        if payload is not None:
            decided = self.decide(payload, sampling_params, request.input_embeds is None)
        continued, losing = 0, ()
        acting = payload if decided is not None else None
        is_bare = payload is processor is None
        takes_default = is_bare and self._takes_default(sampling_params)
        if takes_default:
            acting = self._default
        if decided is not None and self.backend.policy is not None:
            acting = msgspec.json.encode(decided).decode()
        if payload is not None:
            decoded, program = admit(self.backend, payload, self._vocab_size)
            continued, losing = decoded.continued, () if acting is None else program.may_lose
        decision = "gated" if acting is None else "admitted"
        other = processor if payload is None else None
        if sampling_params.get("max_new_tokens") != 0:
            acting = self._marked(acting, sampling_params, other)
        guard = self._guard(sampling_params, other, request.input_embeds is None)
        if guard is not None and continued:  # it may act where the request's own specs do not
            guard = encode(decode(guard).specs, generation_only=False, continued=continued)
        if payload is not None:  # and nothing refuses it any more
            count(decision, stage(), may_lose=losing)
        policy, specs = self.backend.policy or Policy(), ()
        if decided is not None:
            specs = decided.specs
        elif takes_default:
            specs = policy.default
        note(policy, policy.guard if guard else (), specs, payload, self._model)
        if payload is None and processor is not None:
            return
        if payload is acting is guard is None:
            return
        attached = Attached((), acting, {}).put_into(custom_params)
        if guard is not None:
            attached[GUARD] = guard
            if self._end_token is not None:
                attached[END_TOKEN] = self._end_token
        request.sampling_params = {**sampling_params, "custom_params": attached or None}
        request.custom_logit_processor = None if acting is guard is None else PROCESSOR

    def _marked(
        self, payload: Any, sampling_params: Mapping[str, Any], processor: str | None
    ) -> Any:
        """Return the payload that acts on a request, with the mark that the policy requires.

        Raises:
            SpecError: if the text would have no mark.
        """
        policy, program = self.backend.policy if stage().generates else None, None
        required = policy and policy.required_mark_of(sampling_params, GRAMMARS)
        if required and processor is not None:
            raise SpecError("This server marks its texts, and SGLang takes one logit processor")
        if payload is not None:
            decoded, program = admit(self.backend.free, payload, self._vocab_size)
            if required and not program.marks:
                specs = *decoded.specs, WatermarkSpec(required)
                decoded = msgspec.structs.replace(decoded, specs=specs)
                payload = msgspec.json.encode(decoded).decode()
        elif required:
            payload = encode([WatermarkSpec(required)])
        bind_draw(program, policy, sampling_params, after={}, grammars=GRAMMARS)
        return payload

    def _guard(
        self, sampling_params: Mapping[str, Any], processor: str | None, has_prompt_ids: bool
    ) -> str | None:
        """Return the guard's payload, if there is a guard and the request generates.

        It acts in prefill workers, too, which choose the first token.

        Raises:
            SpecError: if the request cannot have it.
        """
        policy = self.backend.policy
        guard = policy and policy.guard_payload
        if policy is None or guard is None or sampling_params.get("max_new_tokens") == 0:
            return None
        if processor is not None:
            raise SpecError("This server has a guard, and SGLang takes one logit processor")
        with policy.naming_guard():
            self.decide(guard, sampling_params, has_prompt_ids, is_own=False)
        return guard

    def _takes_default(self, sampling_params: Mapping[str, Any]) -> bool:
        """Whether there are default specs, and the request can have them.

        A request that generates nothing reads the logits of labels: ``/v1/score`` and the like.
        """
        policy = self.backend.policy
        if policy is None or self._default is None or sampling_params.get("max_new_tokens") == 0:
            return False
        try:
            check_request(sampling_params, policy.default, self._eos_token_ids)
        except SpecError:  # the request's own fields come first
            return False
        return not _has_beams(sampling_params)

    def decide(
        self,
        payload: Any,
        sampling_params: Mapping[str, Any],
        has_prompt_ids: bool,
        *,
        is_own: bool = True,
    ) -> Payload | None:
        """Check a payload beside its ``sampling_params``.

        Args:
            payload: the payload.
            sampling_params: the parameters of its request.
            has_prompt_ids: whether the prompt has token ids; a prompt of embeddings has none.
            is_own: whether a request brings it, and not the server.

        Returns:
            The payload with what the policy fills in; ``None`` if it does not act.

        Raises:
            SpecError: if the payload is wrong, or acts and cannot be realized.
        """
        backend = self.backend if is_own else self.backend.free
        decoded, program = admit(backend, payload, self._vocab_size)
        known: list[Any] = [self._eos_token_ids]
        if not self._thinks:
            known.append(backend.vocabulary)
        is_continued, specs = decoded.continued > 0, decoded.specs
        with (backend.policy or Policy()).restoring(payload):
            check_request(
                sampling_params, specs, *known, program=program, is_continued=is_continued
            )
            if not decoded.is_active(stage()):
                return None
            check_ends({"temperature": 1.0, **sampling_params}, specs)  # SGLang's default
            if not has_prompt_ids:
                check_prompt(backend, specs, program, None)
            if get_spec().speculative_algorithm:
                raise SpecError(WITH_DRAFTS)
            check_tokens_in_time(specs, program, backend.vocabulary)
            if get_exec().dllm.dllm_algorithm:
                raise SpecError("SGLang's diffusion models choose tokens without logits processors")
            if use_mlx():
                raise SpecError("SGLang's MLX backend calls no logits processor on first tokens")
            if _has_beams(sampling_params):
                raise SpecError("SGLang does not pass the tokens of its beams to logits processors")
        return decoded

    def may_lose(self, payload: Any) -> tuple[str, ...]:
        """Return the kinds of an admitted payload that others in it may override."""
        return admit(self.backend, payload, self._vocab_size)[1].may_lose
