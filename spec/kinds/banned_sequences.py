"""``banned_sequences``: ban some token sequences."""

from collections.abc import Iterable

from ..base import (
    LogitsProcessorSpec,
    Sizes,
    TokenFields,
    TokenSequences,
    check_pattern,
    check_total,
)
from ..limits import MAX_PATTERN, MAX_TOKEN_IDS
from ..tokenization import LeadingSpace, Tokenizer, minimal_word_forms


class SequencesSpec(LogitsProcessorSpec, frozen=True):
    """The base of the kinds that look for token sequences in the output.

    Args:
        sequences: non-empty sequences of token ids, at least one. There are at most a third of
            ``MAX_TOKEN_IDS`` token ids in all, and ``MAX_PATTERN`` in each.
    """

    sequences: TokenSequences

    def __post_init__(self) -> None:
        super().__post_init__()
        check_total(sum(map(len, self.sequences)), MAX_TOKEN_IDS // 3, "token ids", "sequences")
        if max(map(len, self.sequences)) > MAX_PATTERN:
            for i, sequence in enumerate(self.sequences):
                check_pattern(sequence, "sequences", i)

    def token_fields(self) -> TokenFields:
        for i, sequence in enumerate(self.sequences):
            yield ("sequences", i, "*"), sequence

    def sizes(self) -> Sizes:
        return Sizes(3 * sum(map(len, self.sequences)))


class BannedSequencesSpec(SequencesSpec, frozen=True, tag="banned_sequences"):
    """The output never contains one of ``sequences``.

    When the last output tokens are all but the last of a sequence, that last token is banned; a
    sequence of one token is banned at every step. Only output tokens are matched: a sequence that
    the prompt begins is not completed by the output.

    Like vLLM's ``bad_words``, and transformers' ``NoBadWordsLogitsProcessor``, which matches the
    prompt as well.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> spec = BannedSequencesSpec(((4, 5),))
        >>> [edit(spec, (), output) for output in ((), (4,))]
        [None, Add(values={5: -1000000000.0})]

    Args:
        sequences: non-empty sequences of token ids, with
            a third of ``MAX_TOKEN_IDS`` token ids in all, and at most ``MAX_PATTERN`` in each.

    Raises:
        SpecError: if a field is out of bounds.
    """

    @classmethod
    def from_words(
        cls, words: Iterable[str], tokenizer: Tokenizer, *, leading_space: LeadingSpace = "both"
    ) -> "BannedSequencesSpec":
        """Ban words or phrases, whatever number of tokens they are.

        A text has other tokenizations than the tokenizer's own; those are not banned.

        Args:
            words: what must not be said.
            tokenizer: any Hugging Face tokenizer, that of the model.
            leading_space: ban ``" word"``, ``"word"``, or both. (vLLM bans both, but leaves out
                ``" word"`` where it is another number of tokens.)

        Raises:
            SpecError: if a word makes no tokens.
        """
        forms = minimal_word_forms(words, tokenizer, leading_space)
        return cls(tuple(dict.fromkeys(token_ids for _, token_ids in forms)))
