"""The class that vLLM loads, under either of its model runners."""

import logging
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import WeakValueDictionary

from vllm import envs
from vllm.v1.sample.logits_processor.interface import LogitsProcessor

from ...spec import WIRE_KINDS, AllowedTokensSpec, SpecError
from ...spec.base import kind_of
from .. import (
    KEY,
    Backend,
    admit,
    bind_draw,
    check_bare,
    check_spelling,
    count,
    guard_of,
    one_policy,
)
from ..core import Program, compile_specs, failing
from .admission import (
    Admitting,
    admit_request,
    admitting_engine,
    backend_of,
    check_backend,
    check_beams,
    check_beside_policy,
    check_free,
    default_of,
    needs_no_mark,
)
from .admitted import complete
from .backend import BACKEND
from .engine_config import Role, eos_token_ids_of, once_per_engine, role_of, tokenizer_of
from .logs import show_logs
from .marks import own_mark
from .names import ACTING, DYNAMO_HANDLERS, GROUP, TAKES_SPECS
from .native import GRAMMARS

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

_handlers = sys.modules.get(DYNAMO_HANDLERS)
if _handlers is not None and not hasattr(_handlers, TAKES_SPECS):
    raise ImportError(
        "logitport: Dynamo's worker would ignore the specs of requests, because vLLM has not "
        "loaded the plugin `logitport`: name it in VLLM_PLUGINS"
    )


class LogitportProcessor(LogitsProcessor, LogitsProcessorV2):  # pyright: ignore
    """Realizes the specs that requests carry in ``extra_args["logitport"]``.

    Load it with ``--logits-processors logitport.adapters.vllm:LogitportProcessor``, or let vLLM
    find it in the entry-point group ``vllm.logits_processors``. Both together are allowed: of
    several instances in an engine, only the newest acts.

    It implements the interfaces of both model runners: V1's in
    ``vllm/v1/sample/logits_processor/interface.py``, V2's in
    ``vllm/v1/worker/gpu/sample/logits_processor/interface.py``.
    """

    _newest: ClassVar[WeakValueDictionary[int, "LogitportProcessor"]] = WeakValueDictionary()

    @classmethod
    def validate_params(cls, sampling_params: "SamplingParams") -> None:
        """Refuse a request whose specs cannot be realized; vLLM answers it with HTTP 400.

        Raises:
            ValueError: with the error and its path.
        """
        with one_policy():
            cls._validate(sampling_params, admitting_engine())

    @classmethod
    def _validate(cls, sampling_params: "SamplingParams", admitting: Admitting) -> None:
        config = admitting.vllm_config
        extra_args = sampling_params.extra_args or {}
        acting = None
        try:
            policy = None if config is None else backend_of(config).policy
            is_stamped = policy is not None and policy.source is not None  # anew, below
            check_spelling(extra_args.keys() - ({ACTING} if is_stamped else ()), "extra_args")
            check_bare(extra_args, "extra_args", "extra_args")
            check_beams(policy, sampling_params)
            if KEY in extra_args:
                if config is not None:
                    admitting = replace(admitting, share=1 / _times_loaded(config))
                in_process = id(config) in cls._newest
                payload = extra_args[KEY]
                acting = admit_request(admitting, sampling_params, payload, in_process=in_process)
            elif config is not None:
                check_free(config, sampling_params)
            if acting is None and config is not None and role_of(config).stage.generates:
                check_beside_policy(admitting, backend_of(config), sampling_params)
            if config is not None:
                complete(config, sampling_params, acting, 1 / _times_loaded(config))
        except SpecError as error:
            # Once: vLLM calls no other class after this.
            count("refused", admitting.stage(sampling_params), error=error)
            raise ValueError(f"{KEY}: {error}") from None

    def __init__(
        self,
        vllm_config: "VllmConfig",
        device_or_states: "torch.device | LogitsProcRequestState",
        is_pin_memory: bool = False,
    ):
        """Set up a worker's instance. The V1 runner passes a device, V2 the tokens of all requests.

        Raises:
            ValueError: if default specs are configured which this engine cannot realize.
        """
        show_logs()
        self._vllm_config = vllm_config
        role = role_of(vllm_config)
        key = id(vllm_config)  # not reused while an instance holds the configuration
        older = self._newest.get(key)
        backend = backend_of(vllm_config)
        vocab_size = vllm_config.model_config.get_vocab_size()
        if older is None:
            check_backend(vllm_config, backend)
            if _reloads(backend) and getattr(envs, "VLLM_USE_RUST_FRONTEND", False):
                raise ValueError("logitport: `reload` needs vLLM's Python front end")
        # The partial must not hold this instance: only Python's garbage collector would end that
        # cycle, and an ended engine's memory on the device would stay in use until then.
        args = role, backend, vocab_size, _end_token(vllm_config)
        own = getattr(vllm_config, "watermark_config", None)
        program_of = partial(_program_of, *args, own=own)
        if hasattr(device_or_states, "all_token_ids"):  # the front end needs neither import
            from .v2_batch import V2Batch

            states = cast("LogitsProcRequestState", device_or_states)
            self._batch: Any = V2Batch(vllm_config, states, vocab_size, program_of)
        else:
            from .v1_batch import V1Batch

            device = cast("torch.device", device_or_states)
            self._batch = V1Batch(vllm_config, vocab_size, program_of, device)
        self._realizer = self._batch.realizer
        # The entry point and the command line may both name the class: the newest instance acts.
        if older is not None:
            older._acts = False
        self._acts = True
        self._newest[key] = self
        if older is None:
            acting = "acts only on requests whose payload says generation_only=false"
            if role.stage.generates:
                kinds = (kind_of(kind) for kind in WIRE_KINDS if kind in BACKEND.realizes)
                acting = f"realizes {', '.join(kinds)}"
            runner = f"V{1 + vllm_config.use_v2_model_runner} model runner"
            logger.info("logitport: stage %s (%s), %s: %s", role.stage, role.source, runner, acting)
            if getattr(envs, "VLLM_USE_RUST_FRONTEND", False):
                logger.warning(
                    "logitport: vLLM's Rust front end does not check specs when it admits a "
                    "request; what cannot be realized is ended here, with status 200"
                )

    # --- V1 model runner ---

    def is_argmax_invariant(self) -> bool:
        """Return ``False``, because forcing changes the argmax."""
        return False

    def update_state(self, batch_update: "BatchUpdate | None") -> None:
        """Follow the engine's rows."""
        if self._acts:
            self._batch.update(batch_update)

    # --- V2 model runner ---

    def add_request(self, req_idx: int, sampling_params: "SamplingParams") -> bool:
        """Take a request into a slot, and return whether its logits are to be edited."""
        return self._acts and self._batch.add(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Copy the changes of requests to the device."""
        if self._acts:
            self._batch.upload()

    # --- both ---

    def apply(self, logits: "torch.Tensor", *ctx: "LogitsContext") -> "torch.Tensor":
        """Edit the logits, ``[rows, vocabulary]``, in place; ``ctx`` is V2's layout of the rows."""
        if self._acts:
            self._batch.apply(logits, *ctx)
        return logits


def _program_of(
    role: Role,
    backend: Backend,
    vocab_size: int,
    end_token: int | None,
    params: "SamplingParams",
    own: Any = None,
) -> Program | None:
    """Return the program that acts on a request in this worker, with the mark of its text.

    Raises:
        Exception: for a request that other code has admitted without ``validate_params``.
    """
    program = _unmarked_program_of(role, backend, vocab_size, end_token, params)
    if needs_no_mark(params):
        return program
    policy = backend.policy if role.stage.generates else None  # elsewhere, no text is marked
    try:
        makes = own_mark(own, params)
        how: dict[str, Any] = {"grammars": GRAMMARS, "end_token": end_token}
        return bind_draw(program, policy, params, makes, **how)
    except SpecError as error:
        if end_token is None:
            raise
        return failing(error, compile_specs((AllowedTokensSpec((end_token,)),)))


def _unmarked_program_of(
    role: Role,
    backend: Backend,
    vocab_size: int,
    end_token: int | None,
    params: "SamplingParams",
) -> Program | None:
    extra_args, of_guard = params.extra_args or {}, None
    given = extra_args.get(KEY)
    if _reloads(backend) and ACTING in extra_args:  # of admission's policy, and not of this one
        given, of_guard = extra_args[ACTING]
        backend = backend.free
    # The guard acts on what a request marks for prefill, too, in a worker that can decode: clients
    # may set the mark, and a token of such a prefill is not the reply's.
    guard = guard_of(backend, vocab_size, of_guard) if role.stage.generates else None
    if guard is not None:
        guard = replace(guard, end_token=end_token)
    if given is None:  # null from a front end that checks nothing counts as absent
        program = default_of(backend, vocab_size, role, params)
        if program is None:
            return guard
    else:
        try:
            payload, program = admit(backend, given, vocab_size)
        except Exception as error:
            if guard is None:
                raise
            return failing(error, guard)
        if not payload.is_active(role.stage_for(params)):
            return guard and replace(guard, continued=payload.continued)
    return program if guard is None else replace(program, guard=guard)


def _reloads(backend: Backend) -> bool:
    return backend.policy is not None and backend.policy.source is not None


@once_per_engine
def _end_token(vllm_config: "VllmConfig") -> int | None:
    """Return ``Policy.end_token`` of the engine's policy, if there is one."""
    policy, tokenizer = backend_of(vllm_config).policy, None
    if policy is None:
        return None
    with suppress(Exception):  # an engine without a tokenizer's files starts as well
        tokenizer = tokenizer_of(vllm_config.model_config)
    eos = eos_token_ids_of(vllm_config, tokenizer)
    return policy.end_token(eos, vllm_config.model_config.get_vocab_size())


@once_per_engine
def _times_loaded(vllm_config: "VllmConfig") -> int:
    """Count how often vLLM has loaded the class, and so calls it for each request.

    vLLM loads the installed classes, then the named classes (``_load_custom_logitsprocs`` in
    ``vllm/v1/sample/logits_processor``, ``_load_v2_logitsprocs`` in
    ``vllm/v1/worker/gpu/sample/logits_processor/loader.py``), and keeps duplicates.
    """
    loaded = [entry_point.load() for entry_point in entry_points(group=GROUP)]
    named = vllm_config.model_config.logits_processors or ()
    loaded += (resolve_name(each) if isinstance(each, str) else each for each in named)
    return max(1, sum(issubclass(each, LogitportProcessor) for each in loaded))
