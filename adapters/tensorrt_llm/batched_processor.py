"""The processor of a whole engine, for engines that have such a hook."""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from ...spec import LogitsProcessorSpec, SpecError, Stage
from .. import payload_for
from .backend import BACKEND
from .params import processor_for
from .processor import LogitportProcessor
from .rows import Beam, Rows, Unfollowed, on_stream

logger = logging.getLogger(__name__)

MAX_ASSIGNED = 1 << 16
"""How many requests can have specs of their own at a time."""


class LogitportBatchedProcessor:
    """``batched_logits_processor`` of ``LLM``; ``processor_batched`` of its C++ executor.

    It acts on requests that have ``apply_batched_logits_processor=True``, on all of a step at once.
    The engine's TensorRT backend calls it, its PyTorch backend does not: there ``attach`` is the
    way (``examples/llm-api/llm_logits_processor.py``).

    The hook is shown a request's ids and tokens, and no parameters. So what acts is

    - on every request, what the engine is started with: ``specs``;
    - instead, on a request that the application numbers itself (``client_id`` of
      ``tensorrt_llm.bindings.executor.Request``), what it has said in ``assign``, in the engine's
      process, before the request was enqueued, until ``release``. ``LLM`` numbers requests when it
      is given them, which is too late, and may run the engine in another process.

    Args:
        specs: for all requests; none by default.
        vocab_size: number of tokens, if they are to be checked.
        stage: what the engine does in its deployment.
        stop_token_id: ends a request whose specs fail.
        disable_overlap_scheduler: see ``attach``.

    Raises:
        SpecError: as ``attach`` does.
    """

    def __init__(
        self,
        specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec] = (),
        *,
        vocab_size: int | None = None,
        stage: Stage = Stage.AGGREGATED,
        stop_token_id: int | None = None,
        disable_overlap_scheduler: bool = False,
    ) -> None:
        self._vocab_size, self._stage, self._stop = vocab_size, stage, stop_token_id
        self._in_time = disable_overlap_scheduler
        self._of_all = self._processor(specs, None)
        self._assigned: dict[int, LogitportProcessor | None] = {}
        self._rows = Rows()
        self._unfollowed = Unfollowed()

    def __getstate__(self) -> dict[str, Any]:
        # Nothing live travels to the worker.
        return self.__dict__ | {"_rows": Rows(), "_unfollowed": Unfollowed()}

    def assign(
        self,
        client_id: int,
        specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
        *,
        prompt_length: int | None = None,
    ) -> None:
        """Give one request specs of its own, before it is enqueued.

        Args:
            client_id: the number that the application gives the request.
            specs: one or several, in place of those for all requests; none lets nothing act.
            prompt_length: see ``attach``.

        Raises:
            SpecError: as ``attach`` does, and beyond ``MAX_ASSIGNED`` requests.
        """
        processor = self._processor(specs, prompt_length)
        if client_id not in self._assigned and len(self._assigned) >= MAX_ASSIGNED:
            raise SpecError(
                f"Expected at most {MAX_ASSIGNED} requests with specs of their own at a time; "
                "release those that have ended"
            )
        self._assigned[client_id] = processor

    def release(self, client_id: int) -> None:
        """Forget a request that has ended."""
        self._assigned.pop(client_id, None)

    def _processor(
        self,
        specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
        prompt_length: int | None,
    ) -> LogitportProcessor | None:
        return processor_for(
            specs,
            payload_for(BACKEND, specs, self._stage),
            stage=self._stage,
            vocab_size=self._vocab_size,
            prompt_length=prompt_length,
            stop_token_id=self._stop,
            disable_overlap_scheduler=self._in_time,
        )

    def __call__(
        self,
        req_ids: Sequence[int],
        logits: Sequence[torch.Tensor],
        token_ids: Sequence[Sequence[Sequence[int]]],
        stream_ptr: int,
        client_ids: Sequence[int | None],
    ) -> None:
        """Edit a step's logits in place; ``BatchedLogitsProcessor`` in ``sampling_params.py``.

        It never raises.

        Args:
            req_ids: the engine's numbers of the requests.
            logits: of each request, ``[beams, 1, vocabulary]``.
            token_ids: of each request and beam, prompt and output so far.
            stream_ptr: the CUDA stream of the logits.
            client_ids: the application's numbers of the requests.
        """
        beams: list[Beam] = []
        shown: list[tuple[int, torch.Tensor]] = []
        try:
            # Nothing is to be done for a request without logits.
            rows = zip(req_ids, logits, token_ids, client_ids, strict=False)
            for req_id, of_request, tokens, client_id in rows:
                processor = self._of_all
                if client_id is not None:
                    processor = self._assigned.get(client_id, processor)
                if processor is not None:
                    try:
                        flat = of_request.view(-1, of_request.shape[-1])
                        beams += processor.beams(req_id, tokens)[: len(flat)]
                        shown.append((req_id, flat))
                    except Exception as error:
                        self._unfollowed.end(req_id, error, of_request, self._stop, stream_ptr)
            try:
                self._edit([flat for _, flat in shown], beams, stream_ptr)
            except Exception:  # nobody has to pay for what was short for a moment
                self._edit([flat for _, flat in shown], beams, stream_ptr)
        except Exception as error:
            logger.exception("A step of requests %s fails", [req_id for req_id, _ in shown])
            for req_id, flat in shown:
                self._unfollowed.end(req_id, error, flat, self._stop, stream_ptr)

    def _edit(self, logits: Sequence[torch.Tensor], beams: Sequence[Beam], stream_ptr: int) -> None:
        """Edit them all in place, or none."""
        if logits:
            with on_stream(stream_ptr, logits[0].device):
                together = torch.cat([*logits])
                self._rows.apply(together, beams)
                edited = together.split([len(of_request) for of_request in logits])
                for of_request, result in zip(logits, edited, strict=True):
                    of_request.copy_(result)
