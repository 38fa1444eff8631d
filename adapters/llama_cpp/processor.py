"""The processor that llama.cpp's sampler calls."""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spec import Given, NativeSpec, SamplingSpec, SpecError, specs_of
from .. import admit_live
from ..core import Realizer, Vocabulary
from ..detection import Profile
from .backend import BACKEND

HIGHEST = np.float32(1e8)
"""The highest logit. llama.cpp's top_k sorts by ``6.4 * logit`` as an integer of 32 bits, which a
forced token's 1e9 overflows (bucket sort, llama-sampler.cpp)."""


class LogitportProcessor:
    """Realizes specs on completions of one ``Llama``, as part of a ``LogitsProcessorList``.

    It serves any number of completions, one after the other. Each has a sampler of its own, which
    ``Llama.generate`` makes. A loop around ``Llama.sample`` is not supported: it makes a sampler
    for each token.

    Args:
        llm: the ``llama_cpp.Llama`` that generates.
        specs: one or several, also as JSON (see ``extra_body``), with texts for llama.cpp's own
            tokenizer.
        continued: the number of the prompt's last tokens that count as output; see ``Payload``.
        profiles: the profiles of marks, by name; see ``logitport.adapters.detection``.
        sampling: how the text is drawn, with a temperature, which a mark and a ``chain`` need. The
            engine's own sampling comes after: it finds a forced token, or what a chain leaves.

    Raises:
        SpecError: for a spec that cannot be realized, with its path; for a ``Llama`` without the
            ``_sampler`` of llama-cpp-python 0.3.
    """

    def __init__(
        self,
        llm: Any,
        specs: Given,
        continued: int = 0,
        profiles: Mapping[str, Profile] | None = None,
        sampling: SamplingSpec | None = None,
    ) -> None:
        specs = specs_of(specs, llm)
        for i, spec in enumerate(specs):
            if isinstance(spec, NativeSpec):
                what = f"llama_cpp does `{spec.kind}` by itself: use arguments(llm, specs)"
                raise SpecError(what, "specs", i)
        self._vocab_size: int = llm.n_vocab()
        backend = BACKEND.for_tokenizer(llm, self._vocab_size, _vocabulary_of)
        size, marking = self._vocab_size, (profiles, sampling)
        self._program = admit_live(backend, specs, size, continued, *marking)
        if not hasattr(llm, "_sampler"):
            raise SpecError("Expected a Llama that has a _sampler for each generation")
        self._llm = llm
        self._generation: Any = object()  # none of the Llama's
        self._realizer = Realizer(self._vocab_size)
        self._history: npt.NDArray[np.intc] = np.empty(0, np.intc)

    def __call__(
        self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]
    ) -> npt.NDArray[np.single]:
        """Edit the logits of the next token in place, and return ``scores``.

        Args:
            input_ids: ``[tokens]``, the prompt, the output, and drafts of what may follow.
            scores: ``[vocabulary]`` float32; llama.cpp's are 12 bytes apart.

        Raises:
            ValueError: for logits or tokens that are not of this ``Llama``.
        """
        if scores.shape != (self._vocab_size,):
            raise ValueError(f"Expected {self._vocab_size} logits, got {scores.shape}")
        self._sync_rows(input_ids)
        self._realizer.apply(scores[None])
        return np.minimum(scores, HIGHEST, out=scores)

    def _sync_rows(self, input_ids: npt.NDArray[np.intc]) -> None:
        """Take the tokens before the next token.

        The first call of a generation has the prompt. If the ``Llama`` drafts, later calls have the
        drafts too, but each call still chooses just one token.
        """
        generation, known = self._llm._sampler, len(self._history)
        if generation is not self._generation:
            self._generation, self._history = generation, input_ids.copy()
            eos: int = self._llm.token_eos()
            stop_token_id = eos if eos >= 0 else None
            self._realizer.enter(0, self._program, input_ids.tolist(), [], stop_token_id)
            return
        if not np.array_equal(input_ids[:known], self._history):
            raise ValueError("Expected the tokens of the Llama that this processor is made for")
        length = len(input_ids) if self._llm.draft_model is None else known + 1
        for token_id in input_ids[known:length].tolist():
            self._realizer.append([token_id])
        self._history = input_ids[:length].copy()


def _vocabulary_of(llm: Any) -> Vocabulary:
    """Read the bytes of each token. ``Llama.detokenize`` takes tokens of up to 32 bytes alone."""
    import llama_cpp

    vocab: Any = llama_cpp.llama_model_get_vocab(llm.model)
    buffer = ctypes.create_string_buffer(1 << 16)

    def piece(token_id: int) -> bytes:
        size = llama_cpp.llama_token_to_piece(vocab, token_id, buffer, len(buffer), 0, False)
        return bytes(memoryview(buffer)[:size])  # nothing for control tokens

    tokens = [piece(token_id) for token_id in range(llm.n_vocab())]
    return Vocabulary.of_tokens(tokens).ending([llm.token_eos()])
