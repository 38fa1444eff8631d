"""The processor that ``generate`` calls."""

from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch
from transformers import LogitsProcessor

from ...spec import LogitsProcessorSpec, SpecError
from ...spec.base import several
from ..core import Program, Realizer, admitted_live
from ..core.compile import forced_chain
from ..own_fields import check_own_fields
from .back_end import BACK_END
from .own_fields import own_fields


class LogitportProcessor(LogitsProcessor):
    """Realizes specs on the rows of one call of ``generate`` of a decoder-only model.

    With several rows for a prompt (beams, ``num_return_sequences``) it normalizes the scores of the
    rows with specs, because beams are compared by the sums of their scores.

    An assistant that drafts with a tokenizer of its own is left alone, unless its vocabulary has
    just as many tokens as the model's: it cannot be told from wrong prompts, and is refused as
    those are.

    Args:
        model: the one that generates. Its ``generation_config`` has the EOS token that ends a row
            whose specs fail, also where ``generate`` is told of others.
        specs: for each prompt its spec, or several, or none (an empty sequence).
        input_ids: ``[prompts, length]``, as they go to ``generate``; padded on the left. Prompts of
            embeddings alone are not known here.
        attention_mask: ``[prompts, length]``, 0 where there is padding; without one, there is none.
        generation_config: what goes to ``generate``, if it is not the model's; what ``generate``
            is given beside it is not seen.
        others: what else the tokenizer made; not used.

    Raises:
        SpecError: for a spec that cannot be realized, or contradicts a field of the generation
            configuration, with its path: ``$[prompt].specs[i]``; for another number of them than of
            prompts; for ids that are no tensor of prompts.
    """

    supports_continuous_batching = False

    def __init__(
        self,
        model: Any,
        specs: Sequence[LogitsProcessorSpec | Sequence[LogitsProcessorSpec]],
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        generation_config: Any = None,
        **others: Any,
    ) -> None:
        if model.config.is_encoder_decoder:
            raise SpecError("Expected a decoder-only model")
        if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2:
            raise SpecError(
                "Expected input_ids to be a tensor [prompts, length], as a tokenizer makes it with "
                'return_tensors="pt"'
            )
        if isinstance(specs, LogitsProcessorSpec) or len(specs) != len(input_ids) or not len(specs):
            raise SpecError(
                f"Expected a sequence with the specs of each of {len(input_ids)} prompts"
            )
        self._vocab_size: int = model.config.get_text_config().vocab_size
        self._programs: list[Program | None] = []
        # By identity: equal specs may hold parameters that are not the same (1 and True), and what
        # is live need not have a hash. With the specs, whose identities are to stay theirs.
        made: dict[tuple[int, ...], tuple[Any, Program | None]] = {(): ((), None)}
        config = generation_config or model.generation_config
        eos = config.eos_token_id
        eos_token_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        own = own_fields(config, eos_token_ids, input_ids.shape[1])
        for prompt, each in enumerate(specs):
            try:
                of_prompt = several(each)
                check_own_fields(of_prompt, own)
                key = tuple(map(id, of_prompt))
                if key not in made:
                    made[key] = of_prompt, admitted_live(BACK_END, of_prompt, self._vocab_size)
            except SpecError as error:
                if not error.path.startswith("$"):  # a field of the configuration, the same for all
                    raise
                raise error.under(f"$[{prompt}]") from error.__cause__
            self._programs.append(made[key][1])
        self._padded = input_ids.clone()
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        # The two may be on different devices: from 5.23 on, ``generate`` takes ids on the CPU.
        rows = zip(input_ids.tolist(), mask.tolist(), strict=True)
        self._prompts = [list(compress(ids, present)) for ids, present in rows]
        self._stop: int | None = next(iter(eos_token_ids), None)
        self._realizer = Realizer(self._vocab_size, on_failure=self._end)
        self._rows_per_prompt = 1
        self._ended: set[int] = set()
        self._outputs: dict[int, list[int]] = {}
        self._seen = input_ids[:0]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """The edited scores, a new tensor.

        Args:
            input_ids: ``[rows, tokens]``: the padded prompts and what has come out.
            scores: ``[rows, vocabulary]``, of the next tokens.

        Raises:
            SpecError: if these are not the prompts that the processor has been made for.
        """
        columns = scores.shape[-1]
        if columns < self._vocab_size or (
            columns > self._vocab_size and self._count_rows(input_ids) is None
        ):
            return scores  # of an assistant, which drafts in a vocabulary of its own
        self._follow(input_ids)
        scores = scores.clone()  # `generate` may be asked for those that it passes, too
        self._realizer.apply(scores)
        if len(scores) > len(self._programs) and (rows := self._realizer.rows):
            scores[rows] = scores[rows].log_softmax(-1)
        return scores

    def _follow(self, input_ids: torch.Tensor) -> None:
        seen, self._seen = self._seen, input_ids.clone()
        if seen.device == input_ids.device and torch.equal(input_ids[:, :-1], seen):
            newest = input_ids[:, -1].tolist()
            for row, output_ids in self._outputs.items():
                output_ids.append(newest[row])
            return
        # The beginning, or rows have changed places.
        rows_per_prompt = self._count_rows(input_ids)
        if rows_per_prompt is None:
            raise SpecError(
                "Expected the prompts that this processor has been made for; an assistant model "
                "with another tokenizer of as many tokens has others, and cannot be used beside it"
            )
        self._rows_per_prompt = rows_per_prompt
        if input_ids.shape[1] == self._padded.shape[1]:
            self._ended.clear()
        for row in [row for row in self._outputs if row >= len(input_ids)]:
            del self._outputs[row]
            self._realizer.remove(row)
        for row, ids in enumerate(input_ids[:, self._padded.shape[1] :].tolist()):
            prompt = row // rows_per_prompt
            program = self._programs[prompt]
            if program is None:
                continue
            output_ids = self._outputs.get(row)
            if output_ids is not None and ids and ids[:-1] == output_ids:
                output_ids.append(ids[-1])
                continue
            self._outputs[row] = ids
            if prompt in self._ended:
                program = _only(self._stop)
            self._realizer.add(row, program, self._prompts[prompt], ids, self._stop)

    def _end(self, row: int, error: Exception) -> None:
        """Beams change places: what has failed in one is not called, and told, again in the next.

        The realizer ends the row itself.
        """
        self._ended.add(row // self._rows_per_prompt)

    def _count_rows(self, input_ids: torch.Tensor) -> int | None:
        """How many there are for each prompt; ``None`` if these are not the processor's prompts."""
        prompts, length = self._padded.shape
        rows_per_prompt = len(input_ids) // prompts
        expected = self._padded.to(input_ids.device).repeat_interleave(rows_per_prompt, 0)
        return rows_per_prompt if torch.equal(input_ids[:, :length], expected) else None


def _only(stop_token_id: int | None) -> Program:
    """Forces a token, if there is one, and nothing else."""
    return Program(() if stop_token_id is None else (forced_chain((), stop_token_id),))
