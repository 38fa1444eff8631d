"""``prompt_bias``: make the prompt's tokens more or less likely."""

from ..base import Bias, LogitsProcessorSpec, MaybeTokenIds


class PromptBiasSpec(LogitsProcessorSpec, frozen=True, tag="prompt_bias"):
    """Add ``bias`` to the logits of all tokens that occur in the prompt, at every step.

    A token that occurs often gets no more than one that occurs once.

    Like the ``CiteFromPromptLogitsProcessor`` of NVIDIA's logits-processor-zoo.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> edit(PromptBiasSpec(2.0, excluded_token_ids=(0,)), (0, 4, 4), ())
        Add(values={4: 2.0})

    Args:
        bias: a finite value from ``-MAX_BIAS`` to ``MAX_BIAS``, in units of logits.
        excluded_token_ids: up to ``MAX_TOKEN_IDS`` token ids to leave as they are, such as the
            special tokens of a chat template.

    Raises:
        SpecError: if a field is out of bounds.
    """

    bias: Bias
    excluded_token_ids: MaybeTokenIds = ()
