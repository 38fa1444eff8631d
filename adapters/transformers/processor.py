"""The processor that ``generate`` calls."""

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import index
from typing import Any

import torch
from transformers import LogitsProcessor

from ...spec import (
    ForcedTokenSequenceSpec,
    Given,
    LogitsProcessorSpec,
    SamplingSpec,
    SpecError,
    specs_of,
)
from .. import admit_live, check_own_fields
from ..core import Program, Realizer, check_continued, compile_specs, log_failure
from ..detection import Profile
from .backend import BACKEND, check_tokenizer
from .own_fields import eos_token_ids_of, own_fields


class LogitportProcessor(LogitsProcessor):
    """Realizes specs on the rows of one call of ``generate`` of a decoder-only model.

    With several rows for a prompt (beams, ``num_return_sequences``) it normalizes the scores of the
    rows with specs, because beams are compared by the sums of their scores.

    The scores of an assistant that drafts with a tokenizer of its own are not edited. If the two
    vocabularies are equally large, its prompts are refused like wrong prompts.

    Args:
        model: the model that generates. Its ``generation_config`` has the EOS token that ends a row
            whose specs fail, even if ``generate`` is given other EOS tokens.
        specs: the specs of each prompt: one, several, or an empty sequence; also as JSON (see
            ``extra_body``).
        input_ids: ``[prompts, length]``, as passed to ``generate``; padded on the left. Prompts of
            embeddings alone are not supported.
        attention_mask: ``[prompts, length]``, 0 at padding; without a mask, there is no padding.
        generation_config: ``generate``'s, if it is not the model's; other arguments are not seen.
        tokenizer: the model's tokenizer. Only rules about text (``banned_text``) and
            texts in place of token ids need it.
        continued: the number of a prompt's last tokens that count as output, of all prompts or of
            each; see ``Payload``.
        profiles: the profiles of marks, by name; see ``logitport.adapters.detection``.
        sampling: how the text is drawn, with a temperature, which a mark and a ``chain`` need. The
            engine's own sampling comes after: it finds a forced token, or what a chain leaves.
            Pass ``top_k=0`` to ``generate`` beside a ``chain``, because its default is 50.
        others: the tokenizer's other results; not used.

    Raises:
        SpecError: for a spec that cannot be realized, or contradicts a field of the generation
            configuration, with its path ``$[prompt].specs[i]``; if the numbers of ``specs`` and
            prompts differ; if ``input_ids`` is not a tensor of prompts.
    """

    supports_continuous_batching = False

    def __init__(
        self,
        model: Any,
        specs: Sequence[Given],
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        generation_config: Any = None,
        tokenizer: Any = None,
        continued: int | Sequence[int] = 0,
        profiles: Mapping[str, Profile] | None = None,
        sampling: SamplingSpec | None = None,
        **others: Any,
    ) -> None:
        if model.config.is_encoder_decoder:
            raise SpecError("Expected a decoder-only model")
        if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2:
            how = 'as a tokenizer makes it with return_tensors="pt"'
            raise SpecError(f"Expected input_ids to be a tensor [prompts, length], {how}")
        count = len(input_ids)
        is_one = isinstance(specs, LogitsProcessorSpec | Mapping | str | bytes)
        if is_one or len(specs) != count or not count:
            what = f"Expected a sequence with the specs of each of {count} prompts, as `[specs]`"
            raise SpecError(what)
        counts = [*continued] if isinstance(continued, Sequence) else [index(continued)] * count
        if len(counts) != count:
            raise SpecError(f"Expected `continued` of each of {count} prompts, got {len(counts)}")
        self._vocab_size: int = model.config.get_text_config().vocab_size
        self._programs: list[Program | None] = []
        config = generation_config or model.generation_config
        eos_token_ids = eos_token_ids_of(config)
        size = self._vocab_size
        backend = BACKEND.for_tokenizer(tokenizer, size, end_tokens=lambda: eos_token_ids)
        # The keys are identities: equal specs may differ in parameters (1 and True), and live
        # objects need not have a hash. The values hold the specs, so that identities stay unique.
        made: dict[tuple[int, ...], tuple[Any, Program | None]] = {(): ((), None)}
        own = own_fields(config, eos_token_ids, input_ids.shape[1])
        for prompt, (each, earlier) in enumerate(zip(specs, counts, strict=True)):
            try:
                of_prompt = specs_of(each, backend.tokenizer)
                check_own_fields(of_prompt, own)
                check_tokenizer(backend, of_prompt)
                key = (*map(id, of_prompt), earlier) if of_prompt else ()
                if key not in made:
                    size, marking = self._vocab_size, (profiles, sampling)
                    program = admit_live(backend, of_prompt, size, earlier, *marking)
                    made[key] = of_prompt, program
            except SpecError as error:
                raise error.at(prompt) from error.__cause__
            self._programs.append(made[key][1])
        self._padded = input_ids.clone()
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        # The two may be on different devices: from 5.23 on, ``generate`` takes ids on the CPU.
        rows = zip(input_ids.tolist(), mask.tolist(), strict=True)
        self._prompts = [list(compress(ids, present)) for ids, present in rows]
        for prompt, (earlier, ids) in enumerate(zip(counts, self._prompts, strict=True)):
            try:
                check_continued(earlier if specs[prompt] else 0, len(ids))
            except SpecError as error:
                raise error.at(prompt) from None
        self._stop: int | None = next(iter(eos_token_ids), None)
        self._realizer = Realizer(self._vocab_size, self._program_of, self._end)
        self._rows_per_prompt = 1
        self._ended: set[int] = set()
        self._seen = input_ids[:0]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """Return the edited scores, a new tensor.

        Args:
            input_ids: ``[rows, tokens]``: the padded prompts and the outputs so far.
            scores: ``[rows, vocabulary]``, of the next tokens.

        Raises:
            SpecError: if the processor has been made for other prompts.
        """
        more = scores.shape[-1] - self._vocab_size
        if more < 0 or (more > 0 and self._count_rows(input_ids) is None):
            return scores  # of an assistant, which drafts in a vocabulary of its own
        self._sync_rows(input_ids)
        scores = scores.clone()  # `generate` may also return the scores that it passes
        self._realizer.apply(scores)
        if len(scores) > len(self._programs) and (rows := self._realizer.rows):
            scores[rows] = scores[rows].log_softmax(-1)
        return scores

    def _sync_rows(self, input_ids: torch.Tensor) -> None:
        seen, self._seen = self._seen, input_ids.clone()
        if seen.device == input_ids.device and torch.equal(input_ids[:, :-1], seen):
            self._realizer.append(input_ids[:, -1].tolist())
            return
        # This is the first call, or rows have changed places.
        if (rows_per_prompt := self._count_rows(input_ids)) is None:
            raise SpecError(
                "Expected the prompts that this processor has been made for; an assistant model "
                "with another tokenizer of as many tokens has others, and cannot be used beside it"
            )
        if rows_per_prompt > 1 and any(_is_marked(each) for each in self._programs):
            raise SpecError("Expected one row for each prompt, because the text is marked")
        self._rows_per_prompt = rows_per_prompt
        length = self._padded.shape[1]
        if input_ids.shape[1] == length:
            self._ended.clear()
            self._realizer.truncate(0)
        self._realizer.truncate(len(input_ids))
        for row, output_ids in enumerate(input_ids[:, length:].tolist()):
            prompt = row // rows_per_prompt
            if self._programs[prompt] and not self._realizer.sync(row, prompt, output_ids):
                self._realizer.enter(row, prompt, self._prompts[prompt], output_ids, self._stop)

    def _program_of(self, prompt: int) -> Program | None:
        """Return the program for the rows of a prompt. After a failure, it ends them."""
        if prompt not in self._ended:
            return self._programs[prompt]
        if self._stop is None:
            return None
        return compile_specs((ForcedTokenSequenceSpec((self._stop,), self._stop),))

    def _end(self, row: int, error: Exception, ends: bool) -> None:
        """Log a failure and mark its prompt: beams change places, and the specs must not run again.

        The realizer ends the row itself.
        """
        log_failure(f"the request in row {row}", error, ends=ends)
        self._ended.add(row // self._rows_per_prompt)

    def _count_rows(self, input_ids: torch.Tensor) -> int | None:
        """Count the rows of each prompt; ``None`` if these are not the processor's prompts."""
        prompts, length = self._padded.shape
        rows_per_prompt = len(input_ids) // prompts
        expected = self._padded.to(input_ids.device).repeat_interleave(rows_per_prompt, 0)
        return rows_per_prompt if torch.equal(input_ids[:, :length], expected) else None


def _is_marked(program: Program | None) -> bool:
    return program is not None and (bool(program.marks) or _is_marked(program.guard))
