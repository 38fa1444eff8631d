"""``sequence_bias``: add a bias to the token that completes a sequence."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from ..base import Bias, check_different
from ..errors import SpecError
from ..limits import MAX_TOKEN_IDS
from ..tokenization import LeadingSpace, Tokenizer, minimal_word_forms, text_fields
from .banned_sequences import SequencesSpec

_Biases = Annotated[tuple[Bias, ...], msgspec.Meta(min_length=1, max_length=MAX_TOKEN_IDS)]


class SequenceBiasSpec(SequencesSpec, frozen=True, tag="sequence_bias"):
    """Add ``biases[i]`` to the logit of a token that would complete ``sequences[i]``.

    When the last output tokens are all but the last of a sequence, its bias is added to the logit
    of that last token; a sequence of one token has its bias added at every step. The biases of
    several sequences that a token would complete add up. Only output tokens are matched: a
    sequence that the prompt begins is not completed by the output.

    Like transformers' ``SequenceBiasLogitsProcessor``, which matches the prompt as well.

    ``SequenceBiasSpec(sequences=((7, 8), (9,)), biases=(-5.0, 2.0))`` makes token 8 less likely
    after token 7, and token 9 more likely everywhere.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> spec = SequenceBiasSpec(sequences=((7, 8),), biases=(-5.0,))
        >>> [edit(spec, (), output) for output in ((), (7,))]
        [None, Add(values={8: -5.0})]

    Args:
        sequences: different non-empty sequences of token ids, with
            a third of ``MAX_TOKEN_IDS`` token ids in all, and at most ``MAX_PATTERN`` in each.
        biases: a finite value from ``-MAX_BIAS`` to ``MAX_BIAS`` for each sequence, in units of
            logits: +1 makes the token e times as likely, compared to others, at temperature 1.

    Raises:
        SpecError: if a field is out of bounds, two sequences are equal, or there are not as many
            biases as sequences.
    """

    TEXTS = text_fields(texts="sequences")

    biases: _Biases

    def __post_init__(self) -> None:
        super().__post_init__()
        expected, given = len(self.sequences), len(self.biases)
        if expected != given:
            raise SpecError(
                f"Expected a bias for each of {expected} sequences, got {given}", "biases"
            )
        check_different(self.sequences, "sequences")

    @classmethod
    def from_words(
        cls,
        biases: Mapping[str, float],
        tokenizer: Tokenizer,
        *,
        leading_space: LeadingSpace = "both",
    ) -> "SequenceBiasSpec":
        """Bias words or phrases of any number of tokens.

        A text has other tokenizations than the tokenizer's own; those get no bias.

        Args:
            biases: words or phrases, each with its value.
            tokenizer: any Hugging Face tokenizer, that of the model.
            leading_space: bias ``" word"``, ``"word"``, or both.

        Raises:
            SpecError: if a word makes no tokens, or two words with different values make the same.
        """
        by_sequence: dict[tuple[int, ...], float] = {}
        for word, value in biases.items():
            for form, token_ids in minimal_word_forms((word,), tokenizer, leading_space):
                if by_sequence.setdefault(token_ids, value) != value:
                    raise SpecError(f"Tokens {[*token_ids]} of {form!r} have another bias already")
        return cls(tuple(by_sequence), tuple(by_sequence.values()))
