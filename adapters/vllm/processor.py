"""The class that vLLM loads, under either of its model runners."""

from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import WeakValueDictionary

from vllm.v1.sample.logits_processor.interface import LogitsProcessor

from ...spec import LivePayload, SpecError, encode
from ..core import Program, default_specs
from .admission import admitted, admitting_engine_config, check_engine, check_free
from .engine_config import load_tokenizer, stage_of
from .native import check_grammar_is_followed
from .params import KEY

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
        config = admitting_engine_config()
        try:
            if not sampling_params.extra_args or KEY not in sampling_params.extra_args:
                if config is not None:
                    check_free(config)
                return
            vocab_size = None if config is None else config.model_config.get_vocab_size()
            payload, program = admitted(sampling_params.extra_args[KEY], vocab_size)
            check_grammar_is_followed(sampling_params, payload.specs)
            if config is not None:
                check_engine(config, payload, program)
            if isinstance(payload, LivePayload) and id(config) not in cls._newest:
                raise SpecError("A live callable cannot reach an engine in another process")
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
        self._vllm_config = vllm_config
        self._stage = stage_of(vllm_config)
        self._vocab_size = vllm_config.model_config.get_vocab_size()
        self._batch = self._batch_of(vllm_config, device_or_states)
        self._realizer = self._batch.realizer
        # The entry point and the command line may both name the class: the newest instance acts.
        key = id(vllm_config)  # not reused while an instance holds the configuration
        older = self._newest.get(key)
        if older is not None:
            older._acts = False
        self._acts = True
        self._newest[key] = self
        self._default = older._default if older is not None else self._load_default()

    def _batch_of(
        self, vllm_config: "VllmConfig", device_or_states: "torch.device | LogitsProcRequestState"
    ) -> Any:
        """What is imported here is of no use in the front end, which imports this module too."""
        if hasattr(device_or_states, "all_token_ids"):
            from .v2_batch import V2Batch

            states = cast("LogitsProcRequestState", device_or_states)
            return V2Batch(states, self._vocab_size, self._program_of)
        from .v1_batch import V1Batch

        return V1Batch(vllm_config, self._vocab_size, self._program_of)

    def _load_default(self) -> str | None:
        """The payload of requests that carry none."""
        specs = default_specs(lambda: load_tokenizer(self._vllm_config))
        if not specs:
            return None
        payload = encode(specs)
        check_engine(self._vllm_config, *admitted(payload, self._vocab_size))
        return payload

    def _program_of(self, params: "SamplingParams") -> Program | None:
        """What acts on a request here.

        Raises:
            Exception: for what ``validate_params`` has not seen: something else admitted it.
        """
        payload = (params.extra_args or {}).get(KEY, self._default)
        if payload is None:
            return None
        payload, program = admitted(payload, self._vocab_size)
        return program if payload.acts_on(self._stage) else None

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
