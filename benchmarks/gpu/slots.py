"""Batches as vLLM's V2 runner has them: requests in slots, with their tokens on the device."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from logitport.adapters.core import DeviceRealizer, History, LogitsLayout, Program, compile_specs
from logitport.adapters.reference import BAN, edits
from logitport.adapters.reference.kinds.base import Add, Allow, Force, flat

from .. import workload as w
from ..workload import Workload


class Slots:
    """The tokens of a batch on the device, and the layout of the rows of a step.

    Each request has ``1 + drafts`` rows. The drafts are the tokens that come next in its output.
    """

    def __init__(self, workload: Workload, history: w.History, drafts: int = 0) -> None:
        self.workload, self.outputs, self.drafts = workload, history, drafts
        count = len(workload)
        scripts = zip(workload.prompts, workload.scripts, strict=True)
        tokens = [[*prompt, *script] for prompt, script in scripts]
        self.token_ids = torch.tensor(tokens, dtype=torch.int32)
        self.prompt_length = len(workload.prompts[0])
        self.prompt_lengths = torch.full((count,), self.prompt_length, dtype=torch.int32)
        self.lengths = torch.zeros_like(self.prompt_lengths)
        self.slots = np.arange(count)
        self.requests = torch.arange(count).repeat_interleave(1 + drafts)
        self.local = torch.arange(1 + drafts, dtype=torch.int32).repeat(count)
        self.history = History(self.token_ids, self.prompt_lengths, self.lengths)
        row_tokens = torch.empty_like(self.local)
        self.layout = LogitsLayout(self.requests, self.local, row_tokens)
        self._follow()

    @property
    def length(self) -> int:
        """The number of tokens of each request, drafts not included."""
        return self.prompt_length + len(self.outputs.outputs[0])

    def advance(self) -> None:
        """Take the tokens that the outputs have got; not timed."""
        self._follow()

    def _follow(self) -> None:
        self.lengths.fill_(self.length)
        tokens = self.token_ids[self.requests, self.length - 1 + self.local]
        self.layout.token_ids.copy_(tokens)  # in place, as a CUDA graph needs it


class Ours(Slots):
    """``DeviceRealizer``, as vLLM's V2 runner drives it."""

    def __init__(
        self,
        workload: Workload,
        history: w.History,
        drafts: int = 0,
        program: Callable[[Any], Program] = lambda spec: compile_specs([spec]),
    ) -> None:
        super().__init__(workload, history, drafts)
        device = self.token_ids.device
        self.realizer = DeviceRealizer(workload.vocab_size, len(workload), device)
        programs: dict[Any, Program] = {}  # equal specs share one
        for row in workload.active:
            spec = workload.specs[row]
            if id(spec) not in programs:
                programs[id(spec)] = program(spec)
            known = workload.prompts[row], history.outputs[row]
            self.realizer.add(row, programs[id(spec)], *known)

    @property
    def failures(self) -> int:
        """The number of requests that were ended because a step has failed."""
        return self.realizer.failed_requests

    def __call__(self, logits: torch.Tensor) -> None:
        """Edit the logits."""
        longest = self.length + self.drafts
        self.realizer.upload(self.history)
        self.realizer.apply(logits, self.history, self.layout, self.slots, longest)


class PlainTorch(Slots):
    """The same edits by torch's indexed operations, with the indices prepared on the device."""

    def advance(self) -> None:
        """Prepare the indices."""
        self._follow()
        added: list[tuple[int, int, float]] = []
        forced: list[tuple[int, int]] = []
        size = self.workload.vocab_size
        mask: torch.Tensor | None = None
        specs = zip(self.workload.specs, self.workload.prompts, self.outputs.outputs, strict=True)
        for row, (spec, prompt, output) in enumerate(specs):
            for edit in flat(edits([spec] if spec else [], prompt, output)):
                match edit:
                    case Add():
                        values = edit.values.items()
                        added += [(row, token, max(value, BAN)) for token, value in values]
                    case Force():
                        forced.append((row, edit.token))
                    case Allow():
                        if mask is None:
                            mask = torch.zeros(len(self.workload), size, dtype=torch.bool)
                        mask[row] = True
                        mask[row, sorted(edit.tokens)] = False
                    case _:
                        pass
        cells = torch.tensor([cell[:2] for cell in added], dtype=torch.int64).reshape(-1, 2)
        self._added = tuple(cells.T), torch.tensor([value for *_, value in added])
        self._forced = tuple(torch.tensor(forced, dtype=torch.int64).reshape(-1, 2).T)
        self._mask = mask

    def __call__(self, logits: torch.Tensor) -> None:
        """Edit the logits."""
        cells, values = self._added
        if len(values):
            logits.index_put_(cells, values, accumulate=True)
        if self._mask is not None:
            logits.masked_fill_(self._mask, -torch.inf)
        if len(self._forced[0]):
            logits[self._forced] = 1e9


class VllmStates(Slots):
    """One of the state classes of vLLM's V2 sampler.

    Args:
        make: makes the state of the class, given vLLM's states of the requests.
        params: the fields of ``SamplingParams`` for a spec.
    """

    def __init__(
        self,
        make: Callable[[Any], Any],
        params: Callable[[Any], dict[str, Any]],
        workload: Workload,
        history: w.History,
        drafts: int = 0,
    ) -> None:
        from vllm import SamplingParams

        super().__init__(workload, history, drafts)
        prompts = np.full(len(workload), self.prompt_length)
        states = SimpleNamespace(
            max_num_reqs=len(workload),
            vocab_size=workload.vocab_size,
            device=self.token_ids.device,
            all_token_ids=SimpleNamespace(gpu=self.token_ids),
            total_len=SimpleNamespace(gpu=self.lengths),
            prompt_len=SimpleNamespace(gpu=self.prompt_lengths, np=prompts),
        )
        self._state = make(states)
        for slot, spec in enumerate(workload.specs):
            sampling = SamplingParams(max_tokens=None)
            for name, value in (params(spec) if spec else {}).items():
                setattr(sampling, name, value)
            self._state.add_request(slot, sampling)
        self._state.apply_staged_writes()

    def __call__(self, logits: torch.Tensor) -> None:
        """Edit the logits."""
        self._state.apply(logits, self._context)

    def _follow(self) -> None:
        from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext

        super()._follow()
        rows = self.layout
        self._context = LogitsContext(
            expanded_idx_mapping=rows.requests,
            idx_mapping=self.requests[:: 1 + self.drafts],
            idx_mapping_np=self.slots,
            expanded_local_pos=rows.drafts,
            input_ids=rows.token_ids,
            pos=self.lengths[rows.requests] - 1 + rows.drafts,
            seq_lens_upper_bound_np=np.full(len(self.slots), self.length + self.drafts),
        )


def row_bytes(spec: Any, prompt: Sequence[int], output: Sequence[int], vocab: int) -> int:
    """Count the bytes of float32 logits and of lists that the edits of a row must move at least.

    A cell alone is in a sector of 32 bytes, which is read or written as a whole.
    """
    sector, total = 32, 0
    for edit in flat(edits([spec], prompt, output)):
        match edit:
            case Force():
                total += sector
            case Add():
                total += len(edit.values) * (2 * sector + 8)
            case Allow():
                total += 4 * vocab + len(edit.tokens) * (2 * sector + 4)
            case _:
                pass
    if spec.kind in ("no_repeat_ngram", "dry", "no_loop"):
        total += 4 * (len(prompt) + len(output))
    return total
