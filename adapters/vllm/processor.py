"""The class that vLLM loads, under either of its model runners."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import WeakValueDictionary

from vllm import envs
from vllm.v1.sample.logits_processor.interface import LogitsProcessor

from ...spec import WIRE_KINDS, SpecError, encode
from ...spec.base import kind_of
from ..core import Program, admitted, default_specs
from ..key import KEY, check_spelling
from .admission import admit, admitting_engine, check_engine, check_free
from .back_end import BACK_END
from .engine_config import Role, load_tokenizer, once_per_engine, role_of
from .logs import show_logs
from .native import check_grammar_is_followed

if TYPE_CHECKING:
    import torch
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor.interface import BatchUpdate
    from vllm.v1.worker.gpu.sample.logits_processor.interface import (
        LogitsContext,
        LogitsProcRequestState,
    )

try:  # vLLM 0.31 and later: an installed class must have this base too, or V2 engines do not start
    from vllm.v1.worker.gpu.sample.logits_processor.interface import (
        LogitsProcessor as LogitsProcessorV2,
    )
except ImportError:
    LogitsProcessorV2 = object

logger = logging.getLogger(__name__)

_KINDS = [kind_of(kind) for kind in WIRE_KINDS if kind in BACK_END.realizes]


class LogitportProcessor(LogitsProcessor, LogitsProcessorV2):  # pyright: ignore
    """Realizes the specs that requests carry in ``extra_args["logitport"]``.

    Load it with ``--logits-processors logitport.adapters.vllm:LogitportProcessor``, or let vLLM
    find it by itself in the entry-point group ``vllm.logits_processors``. Both at once are as good
    as one: of several instances in an engine, the newest acts.

    It has the interfaces of both model runners: V1's in
    ``vllm/v1/sample/logits_processor/interface.py``, V2's in
    ``vllm/v1/worker/gpu/sample/logits_processor/interface.py``.
    """

    _newest: ClassVar[WeakValueDictionary[int, "LogitportProcessor"]] = WeakValueDictionary()

    @classmethod
    def validate_params(cls, sampling_params: "SamplingParams") -> None:
        """Refuse a request whose specs cannot be realized; vLLM answers it with HTTP 400.

        Raises:
            ValueError: with what is wrong, and where.
        """
        admitting = admitting_engine()
        config = admitting.vllm_config
        extra_args = sampling_params.extra_args or {}
        try:
            check_spelling(extra_args, "extra_args")
            if KEY in extra_args:
                if config is not None:
                    admitting = replace(admitting, share=1 / _times_loaded(config))
                in_process = id(config) in cls._newest
                admit(admitting, sampling_params, extra_args[KEY], in_process=in_process)
            elif config is not None:
                check_free(config)
        except SpecError as error:
            raise ValueError(f"{KEY}: {error}") from None

    def __init__(
        self,
        vllm_config: "VllmConfig",
        device_or_states: "torch.device | LogitsProcRequestState",
        is_pin_memory: bool = False,
    ):
        """Called by the engine, once per worker.

        Args:
            vllm_config: the engine's configuration, which says the worker's stage.
            device_or_states: the V1 runner passes the device, V2 the tokens of all requests.
            is_pin_memory: V1 alone passes it; not used.

        Raises:
            ValueError: if default specs are configured which this engine cannot realize.
        """
        show_logs()
        self._vllm_config = vllm_config
        role = role_of(vllm_config)
        key = id(vllm_config)  # not reused while an instance holds the configuration
        older = self._newest.get(key)
        self._default = _load_default(vllm_config) if older is None else older._default
        vocab_size = vllm_config.model_config.get_vocab_size()
        # Without this instance in it: an engine that has ended shall not have to wait for Python
        # to look for cycles until what it has on the device is given back.
        program_of = partial(_program_of, role, vocab_size, self._default)
        self._batch = _batch_of(vllm_config, device_or_states, vocab_size, program_of)
        self._realizer = self._batch.realizer
        # The entry point and the command line may both name the class: the newest instance acts.
        if older is not None:
            older._acts = False
        self._acts = True
        self._newest[key] = self
        if older is None:
            logger.info(
                "logitport: stage %s (%s), V%d model runner: %s",
                role.stage,
                role.source,
                1 + vllm_config.use_v2_model_runner,
                f"realizes {', '.join(_KINDS)}"
                if role.stage.generates
                else "acts on requests alone whose payload says generation_only=false",
            )
            if getattr(envs, "VLLM_USE_RUST_FRONTEND", False):
                logger.warning(
                    "logitport: vLLM's Rust front end does not check specs when it admits a "
                    "request; what cannot be realized is ended here, with status 200"
                )

    # --- V1 model runner ---

    def is_argmax_invariant(self) -> bool:
        """False: forcing is there to change the argmax."""
        return False

    def update_state(self, batch_update: "BatchUpdate | None") -> None:
        """Follow the engine's rows."""
        if self._acts:
            self._batch.update(batch_update)

    # --- V2 model runner ---

    def add_request(self, req_idx: int, sampling_params: "SamplingParams") -> bool:
        """Take a request into a slot; whether its logits are to be edited."""
        return self._acts and self._batch.add(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Let the device know of the requests that have come."""
        if self._acts:
            self._batch.upload()

    # --- both ---

    def apply(self, logits: "torch.Tensor", *ctx: "LogitsContext") -> "torch.Tensor":
        """Edit the logits in place.

        Args:
            logits: ``[rows, vocabulary]``; under V1, a row is a request.
            ctx: the V2 runner's layout of the rows.
        """
        if self._acts:
            self._batch.apply(logits, *ctx)
        return logits


def _batch_of(
    vllm_config: "VllmConfig",
    device_or_states: "torch.device | LogitsProcRequestState",
    vocab_size: int,
    program_of: "Callable[[SamplingParams], Program | None]",
) -> Any:
    """What is imported here is of no use in the front end, which imports this module too."""
    if hasattr(device_or_states, "all_token_ids"):
        from .v2_batch import V2Batch

        states = cast("LogitsProcRequestState", device_or_states)
        return V2Batch(vllm_config, states, vocab_size, program_of)
    from .v1_batch import V1Batch

    return V1Batch(vllm_config, vocab_size, program_of)


def _load_default(vllm_config: "VllmConfig") -> str | None:
    """The payload of requests that carry none."""
    specs = default_specs(lambda: load_tokenizer(vllm_config))
    if not specs:
        return None
    payload = encode(specs)
    decoded, program = admitted(BACK_END, payload, vllm_config.model_config.get_vocab_size())
    if decoded.acts_on(role_of(vllm_config).stage):
        check_engine(vllm_config, decoded, program)
    return payload


def _program_of(
    role: Role, vocab_size: int, default: str | None, params: "SamplingParams"
) -> Program | None:
    """What acts on a request here.

    Raises:
        Exception: for what ``validate_params`` has not seen: something else admitted it.
    """
    given = (params.extra_args or {}).get(KEY, default)
    if given is None or (given is default and _reads_probabilities(params)):
        return None
    payload, program = admitted(BACK_END, given, vocab_size)
    if given is default:
        try:
            check_grammar_is_followed(params, payload.specs)
        except SpecError:  # a grammar of the request's own would not take what is forced
            return None
    return program if payload.acts_on(role.stage_for(params)) else None


def _reads_probabilities(params: "SamplingParams") -> bool:
    """Whether a request is one of vLLM's own, for the probabilities of one token.

    A step of a beam search (``vllm/entrypoints/generate/beam_search``) asks for no text, and a
    score or decision (``generative_scoring`` and ``structured_decisions`` beside it) for the
    probabilities of labels. To default specs each would look like the first token of a reply.
    """
    if params.max_tokens != 1:
        return False
    is_beam = bool(params.logprobs) and not params.detokenize
    return is_beam or getattr(params, "logprob_token_ids", None) is not None


@once_per_engine
def _times_loaded(vllm_config: "VllmConfig") -> int:
    """How often vLLM has loaded the class, and so asks it about each request.

    It takes what is installed, then what is named (``_load_custom_logitsprocs`` in
    ``vllm/v1/sample/logits_processor``, ``_load_v2_logitsprocs`` in
    ``vllm/v1/worker/gpu/sample/logits_processor/loader.py``), with no regard to doubles.
    """
    loaded = [entry_point.load() for entry_point in entry_points(group="vllm.logits_processors")]
    for named in vllm_config.model_config.logits_processors or ():
        loaded.append(resolve_name(named) if isinstance(named, str) else named)
    return max(1, sum(issubclass(each, LogitportProcessor) for each in loaded))
