"""The class that vLLM loads: it maps the engine's rows and histories to the neutral core."""

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import torch
from vllm.v1.sample.logits_processor.interface import (
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)

from ...spec import SpecError, Stage, decode, encode
from ..core import Automaton, Realizer, compile_payload, default_specs
from .engine_config import admitting_engine_config, load_tokenizer, stage_of
from .params import KEY, payload_of

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig

try:  # vLLM 0.31 and later: an installed class must have this base too, or V2 engines do not start
    from vllm.v1.worker.gpu.sample.logits_processor.interface import (
        LogitsProcessor as LogitsProcessorV2,
    )
except ImportError:
    LogitsProcessorV2 = object

logger = logging.getLogger(__name__)

NO_V2 = (
    "logitport does not act under vLLM's V2 model runner yet; "
    "start the engine with VLLM_USE_V2_MODEL_RUNNER=0"
)


class LogitportProcessor(LogitsProcessor, LogitsProcessorV2):  # pyright: ignore
    """Realizes the specs that requests carry in ``extra_args["logitport"]``.

    Load it with ``--logits-processors logitport.adapters.vllm:LogitportProcessor``, or let vLLM
    find it by itself in the entry-point group ``vllm.logits_processors``. Both at once are as good
    as one: of several instances in an engine, the newest acts.

    The interface is that of ``vllm/v1/sample/logits_processor/interface.py`` (V1 model runner).
    """

    _newest: ClassVar[WeakValueDictionary[int, "LogitportProcessor"]] = WeakValueDictionary()

    @classmethod
    def validate_params(cls, sampling_params: "SamplingParams") -> None:
        """Refuse a request whose specs cannot be realized; vLLM answers it with HTTP 400.

        Raises:
            ValueError: with what is wrong, and where.
        """
        try:
            payload = payload_of(sampling_params)
            config = None if payload is None else admitting_engine_config()
            if payload is not None and config is not None:
                if config.use_v2_model_runner:
                    raise SpecError(NO_V2)
                payload.check_vocabulary(config.model_config.get_vocab_size())
        except SpecError as error:
            raise ValueError(f"{KEY}: {error}") from None

    def __init__(
        self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool = False
    ):
        """Called by the engine, once per worker.

        Args:
            vllm_config: the engine's configuration, which says the worker's stage.
            device: of the logits (the V2 runner passes its request states here).
            is_pin_memory: not used.

        Raises:
            ValueError: if default specs are configured which this engine cannot realize.
        """
        self._vllm_config = vllm_config
        self._stage = stage_of(vllm_config)
        self._vocab_size = vllm_config.model_config.get_vocab_size()
        self._realizer = Realizer()
        # The entry point and the command line may both name the class: the newest instance acts.
        key = id(vllm_config)  # not reused while an instance holds the configuration
        older = self._newest.get(key)
        if older is not None:
            older._acts = False
        self._acts = True
        self._newest[key] = self
        self._default = older._default if older is not None else self._load_default()

    def _load_default(self) -> str | None:
        """The payload of requests that carry none."""
        specs = default_specs(lambda: load_tokenizer(self._vllm_config))
        if not specs:
            return None
        if self._vllm_config.use_v2_model_runner:
            raise ValueError(NO_V2)
        payload = encode(specs)
        decode(payload).check_vocabulary(self._vocab_size)
        return payload

    def is_argmax_invariant(self) -> bool:
        """False: forcing is there to change the argmax."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the engine's rows."""
        if batch_update is None or not self._acts:
            return
        batch = self._realizer.batch
        for row in batch_update.removed:
            batch.remove(row)
        for row, params, _, output_ids in batch_update.added:
            self._add(row, params, output_ids)
        for source, destination, direction in batch_update.moved:
            if direction is MoveDirectionality.SWAP:
                batch.swap(source, destination)
            else:
                batch.move(source, destination)

    def _add(self, row: int, params: "SamplingParams", output_ids: list[int]) -> None:
        payload = (params.extra_args or {}).get(KEY) or self._default
        automaton = None
        try:
            if payload is not None:
                automaton = self._automaton(payload)
        except Exception:
            stop_token_ids = params.all_stop_token_ids
            self._realizer.fail(row, min(stop_token_ids, default=None), output_ids)
            return
        if automaton is None:
            self._realizer.batch.remove(row)
        else:
            self._realizer.batch.add(row, automaton, output_ids)

    def _automaton(self, payload: Any) -> Automaton | None:
        """What the payload compiles to; ``None`` when it is not for this worker."""
        if not isinstance(payload, str):  # in-process callers may hand over what they parsed
            decoded = decode(payload)
            payload = encode(decoded.specs, generation_only=decoded.generation_only)
        return _compile(payload, self._stage, self._vocab_size)

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Edit the batch's logits in place.

        Args:
            logits: ``[requests, vocabulary]``.
            ctx: the V2 runner's batch layout.
        """
        if self._acts:
            self._realizer.apply(logits)
        return logits

    def add_request(self, req_idx: int, sampling_params: "SamplingParams") -> bool:
        """V2 model runner: nothing is realized there yet; ``validate_params`` says so."""
        return False


@lru_cache(maxsize=256)
def _compile(payload: str, stage: Stage, vocab_size: int) -> Automaton | None:
    """Requests that carry the same text share one automaton, and so one set of tables."""
    decoded = decode(payload)
    if not decoded.acts_on(stage):
        return None
    decoded.check_vocabulary(vocab_size)
    return compile_payload(decoded)
