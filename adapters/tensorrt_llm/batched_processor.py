"""The processor of a whole engine, for engines that have such a hook."""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from ...spec import LogitsProcessorSpec, NativeSpec, SpecError, Stage
from ...spec.base import as_specs
from .. import payload_for
from .backend import BACKEND
from .params import processor_for
from .processor import LogitportProcessor
from .rows import Beam, BeamRows, Unfollowed, on_stream

logger = logging.getLogger(__name__)

MAX_ASSIGNED = 1 << 16
"""The number of requests that can have specs of their own at a time."""

Specs = LogitsProcessorSpec | Sequence[LogitsProcessorSpec]


class LogitportBatchedProcessor:
    """``batched_logits_processor`` of ``LLM``; ``processor_batched`` of its C++ executor.

    It edits all requests of a step that have ``apply_batched_logits_processor=True``. The engine's
    TensorRT backend calls it; its PyTorch backend does not, and needs ``attach``
    (``examples/llm-api/llm_logits_processor.py``).

    The engine passes ids and tokens to the hook, and no parameters. So ``specs`` act on every
    request, except that ``assign`` gives other specs to a request which the application itself
    numbers (``client_id`` of ``tensorrt_llm.bindings.executor.Request``). ``LLM`` numbers requests
    too late for ``assign``, and may run the engine in another process.

    Args:
        specs: one or several, for all requests.
        vocab_size: the number of tokens, if token ids are to be checked.
        stage: the engine's task in its deployment.
        stop_token_id: ends a request whose specs fail.
        disable_overlap_scheduler: see ``attach``.

    Raises:
        SpecError: as ``attach`` does, and for a native kind.
    """

    def __init__(
        self,
        specs: Specs = (),
        *,
        vocab_size: int | None = None,
        stage: Stage = Stage.AGGREGATED,
        stop_token_id: int | None = None,
        disable_overlap_scheduler: bool = False,
    ) -> None:
        self._options: dict[str, Any] = {
            "stage": stage,
            "vocab_size": vocab_size,
            "stop_token_id": stop_token_id,
            "disable_overlap_scheduler": disable_overlap_scheduler,
        }
        self._of_all = self._processor(specs)
        self._assigned: dict[int | None, LogitportProcessor | None] = {}
        self._rows = BeamRows()
        self._unfollowed = Unfollowed()

    def __getstate__(self) -> dict[str, Any]:
        # The state of running requests stays in this process.
        return self.__dict__ | {"_rows": BeamRows(), "_unfollowed": Unfollowed()}

    def assign(self, client_id: int, specs: Specs, *, prompt_length: int | None = None) -> None:
        """Give one request specs of its own. Call it in the engine's process, before ``enqueue``.

        Args:
            client_id: the application's number of the request.
            specs: one or several, in place of those for all requests; of none, nothing acts.
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
        self, specs: Specs, prompt_length: int | None = None
    ) -> LogitportProcessor | None:
        for i, spec in enumerate(as_specs(specs)):
            if isinstance(spec, NativeSpec):
                why = "is a field of a request, which this processor is not passed: use attach()"
                raise SpecError(f"`{spec.kind}` {why}", "specs", i)
        payload = payload_for(BACKEND, specs, self._options["stage"])
        return processor_for(specs, payload, prompt_length=prompt_length, **self._options)

    def __call__(
        self,
        req_ids: Sequence[int],
        logits: Sequence[torch.Tensor],
        token_ids: Sequence[Sequence[Sequence[int]]],
        stream_ptr: int,
        client_ids: Sequence[int | None],
    ) -> None:
        """Edit a step's logits in place; ``BatchedLogitsProcessor`` in ``sampling_params.py``.

        This never raises: a failure ends the requests concerned.

        Args:
            req_ids: the engine's numbers of the requests.
            logits: of each request, ``[beams, 1, vocabulary]``.
            token_ids: of each request and beam, prompt and output so far.
            stream_ptr: the CUDA stream of the logits.
            client_ids: the application's numbers of the requests.
        """
        beams: list[Beam] = []
        shown: list[tuple[int, torch.Tensor]] = []
        stop = self._options["stop_token_id"]
        try:
            # A request may have no logits; then there is nothing to edit.
            rows = zip(req_ids, logits, token_ids, client_ids, strict=False)
            for req_id, of_request, tokens, client_id in rows:
                processor = self._assigned.get(client_id, self._of_all)
                if processor is not None:
                    try:
                        flat, of_rows = processor.rows_of(req_id, of_request, tokens)
                        beams += of_rows
                        shown.append((req_id, flat))
                    except Exception as error:
                        self._unfollowed.end(req_id, error, of_request, stop, stream_ptr)
            try:
                self._edit([flat for _, flat in shown], beams, stream_ptr)
            except Exception:  # a brief shortage must not end any request
                self._edit([flat for _, flat in shown], beams, stream_ptr)
        except Exception as error:
            logger.exception("A step of requests %s fails", [req_id for req_id, _ in shown])
            for req_id, flat in shown:
                self._unfollowed.end(req_id, error, flat, stop, stream_ptr)

    def _edit(self, logits: Sequence[torch.Tensor], beams: Sequence[Beam], stream_ptr: int) -> None:
        """Edit all logits in place, or none of them."""
        if logits:
            with on_stream(stream_ptr, logits[0].device):
                together = torch.cat([*logits])
                self._rows.apply(together, beams)
                edited = together.split([len(of_request) for of_request in logits])
                for of_request, result in zip(logits, edited, strict=True):
                    of_request.copy_(result)
