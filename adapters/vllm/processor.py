"""The class that vLLM loads: it maps the engine's rows and histories to the neutral core."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import torch
from vllm.v1.sample.logits_processor.interface import (
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)

from ...spec import LivePayload, Payload, SpecError, decode, encode
from ..core import Program, Realizer, compile_specs, default_specs
from .engine_config import admitting_engine_config, load_tokenizer, stage_of
from .params import KEY

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig

try:  # vLLM 0.31 and later: an installed class must have this base too, or V2 engines do not start
    from vllm.v1.worker.gpu.sample.logits_processor.interface import (
        LogitsProcessor as LogitsProcessorV2,
    )
except ImportError:
    LogitsProcessorV2 = object

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
        if not sampling_params.extra_args or KEY not in sampling_params.extra_args:
            return
        config = admitting_engine_config()
        vocab_size = None if config is None else config.model_config.get_vocab_size()
        try:
            if config is not None and config.use_v2_model_runner:
                raise SpecError(NO_V2)
            payload = sampling_params.extra_args[KEY]
            if isinstance(payload, LivePayload) and id(config) not in cls._newest:
                raise SpecError("A live callable cannot reach an engine in another process")
            _admitted(payload, vocab_size)
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
        self._realizer = Realizer(self._vocab_size)
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
        _admitted(payload, self._vocab_size)
        return payload

    def is_argmax_invariant(self) -> bool:
        """False: forcing is there to change the argmax."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the engine's rows."""
        if batch_update is None or not self._acts:
            return
        realizer = self._realizer
        for row in batch_update.removed:
            realizer.remove(row)
        for row, params, prompt_ids, output_ids in batch_update.added:
            self._add(row, params, prompt_ids, output_ids)
        for source, destination, direction in batch_update.moved:
            if direction is MoveDirectionality.SWAP:
                realizer.swap(source, destination)
            else:
                realizer.move(source, destination)

    def _add(
        self,
        row: int,
        params: "SamplingParams",
        prompt_ids: list[int] | None,
        output_ids: list[int],
    ) -> None:
        payload = (params.extra_args or {}).get(KEY, self._default)
        if payload is None:
            self._realizer.remove(row)
            return
        stops = set(params.stop_token_ids or ()) if params.ignore_eos else params.all_stop_token_ids
        stop_token_id = min(stops, default=None)
        try:
            payload, program = _admitted(payload, self._vocab_size)
        except Exception as error:  # validate_params did not see it: something else admitted it
            self._realizer.fail(row, error, output_ids, stop_token_id)
            return
        if payload.acts_on(self._stage):
            self._realizer.add(row, program, prompt_ids, output_ids, stop_token_id)
        else:
            self._realizer.remove(row)

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


def _admitted(payload: Any, vocab_size: int | None) -> tuple[Payload, Program]:
    """What a request carries, checked against the vocabulary, and what it compiles to.

    Raises:
        SpecError: if it cannot be realized.
    """
    if isinstance(payload, str):
        return _admitted_text(payload, vocab_size)
    decoded = payload if isinstance(payload, Payload) else decode(payload)
    if vocab_size is not None:
        decoded.check_vocabulary(vocab_size)
    return decoded, compile_specs(decoded.specs)


@lru_cache(maxsize=128)
def _admitted_text(payload: str, vocab_size: int | None) -> tuple[Payload, Program]:
    """Requests that carry the same text share one program, and so one set of tables."""
    return _admitted(decode(payload), vocab_size)
