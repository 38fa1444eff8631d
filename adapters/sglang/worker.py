"""The settings of SGLang's workers, and the ends of their requests."""

import logging
import os
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.runtime_context import get_disagg, get_exec, get_parallel, get_schedule, get_serving

from ...spec import LogitsProcessorSpec, Stage
from .. import stage_from_environment
from ..core import Program, VocabularyOf, unsupported

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

logger = logging.getLogger(__name__)

_DELAY = envs.SGLANG_ENABLE_DELAY_SAMPLE.name

_STAGES = {"prefill": Stage.PREFILL, "decode": Stage.DECODE}


def stage() -> Stage:
    """Return this engine's stage, from ``LOGITPORT_STAGE`` or ``--disaggregation-mode``."""
    mode = get_disagg().disaggregation_mode
    return stage_from_environment() or _STAGES.get(mode, Stage.AGGREGATED)


UNCHECKED = (
    "logitport: %s. Default specs and the configuration do not act; bad specs end their request in "
    "a worker; nothing refuses specs with fields that contradict them, beams or drafts, or "
    "misspelt keys. See docs/sglang.md"
)

RUST_SERVER = (
    "The Rust server (SGLANG_RUST_SERVER=1) checks no specs, and drops those of /v1/completions"
)

SMG_SERVER = "The gRPC server of --smg-grpc-mode checks no specs"


def warn_of_front_end() -> None:
    """Warn once per engine, in its first worker, if it has no ``TokenizerManager`` to check specs.

    Two of SGLang's front ends have none.
    """
    front_end = SMG_SERVER if get_serving().smg_grpc_mode else None
    if envs.SGLANG_RUST_SERVER.get():
        front_end = RUST_SERVER
    parallel = get_parallel()
    is_first = not (parallel.pp_rank or parallel.attn_tp_rank or parallel.attn_cp_rank)
    calls_processors = get_exec().features.enable_custom_logit_processor
    if front_end and is_first and calls_processors:
        logger.warning(UNCHECKED, front_end)


def delay_sampling() -> None:
    """Make SGLang sample a batch only when the tokens before are known on the host.

    Otherwise, with overlap scheduling, ``output_ids`` lacks the newest token in most steps. SGLang
    does the same for batches with a grammar, and still overlaps the rest. It reads the variable in
    every step (``sglang/srt/managers/tp_worker.py``).
    """
    os.environ.setdefault(_DELAY, "true")


def output_ids_lag() -> bool:
    """Whether the engine's environment forbids the delay, although overlap scheduling is on."""
    explicitly_off = _DELAY in os.environ and not envs.SGLANG_ENABLE_DELAY_SAMPLE.get()
    return explicitly_off and not get_schedule().disable_overlap_schedule


def check_tokens_in_time(
    specs: Sequence[LogitsProcessorSpec], program: Program, vocabulary: VocabularyOf
) -> None:
    """Refuse specs that need the output's tokens, if these tokens come late.

    Raises:
        SpecError: at the spec that needs the tokens.
    """
    if program.needs_history and output_ids_lag():
        raise unsupported(
            specs,
            lambda program: program.needs_history,
            "needs the output tokens, which SGLang's overlap scheduling passes too late: "
            f"start the engine without {_DELAY}=0, or with --disable-overlap-schedule",
            vocabulary,
        )


WITH_DRAFTS = "SGLang does not pass the draft tokens of speculative decoding to logits processors"


def stop_token_of(req: "Req") -> int | None:
    """Return a token that makes SGLang end the request, if there is one."""
    if req.sampling_params.ignore_eos:
        return None
    stops = {*(req.sampling_params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    stops = {
        token_id for token_id in stops if token_id >= 0
    }  # SGLang takes any that a client sends
    return min(stops, default=getattr(req.tokenizer, "eos_token_id", None))


def abort(req: "Req", reason: str) -> None:
    """End a request after this step. Its client receives the reason with HTTP 400."""
    req.to_finish = FINISH_ABORT(reason, HTTPStatus.BAD_REQUEST, "BadRequestError")
