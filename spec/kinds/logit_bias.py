"""``logit_bias``: make some tokens more likely, and other tokens less likely."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import msgspec

from ..base import Bias, LogitsProcessorSpec, Sizes, TokenFields, TokenId, spec_error
from ..errors import Key, SpecError
from ..json_values import FrozenDict
from ..limits import MAX_TOKEN_IDS
from ..tokenization import LeadingSpace, Tokenizer, one_token_words

# Keys in JSON are text. This adds to the schema what msgspec checks by itself.
_Biases = Annotated[
    Mapping[TokenId, Bias],
    msgspec.Meta(
        min_length=1,
        max_length=MAX_TOKEN_IDS // 2,
        extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]*)$"}},
    ),
]


class LogitBiasSpec(LogitsProcessorSpec, frozen=True, tag="logit_bias"):
    """Add ``bias[t]`` to the logit of token ``t``, at every step.

    On the wire, ``bias`` is an object whose keys are token ids as decimal text. Several specs of
    this kind on a request add up.

    The kind is like OpenAI's and vLLM's ``logit_bias``, which are limited to -100 to 100, and like
    transformers' ``SequenceBiasLogitsProcessor`` for sequences of one token.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> edit(LogitBiasSpec({4: 2.5, 5: -1.0}), (), ())
        Add(values={4: 2.5, 5: -1.0})

    Args:
        bias: 1 to half of ``MAX_TOKEN_IDS`` token ids, each with a finite value from
            ``-MAX_BIAS`` to ``MAX_BIAS``, in units of logits: +1 makes a token e times as likely,
            compared to others, at temperature 1. The mapping is copied and never changes.

    Raises:
        SpecError: if a field is out of bounds.
    """

    bias: _Biases

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except SpecError as error:
            raise wrong_entry(self.bias) or error from None
        msgspec.structs.force_setattr(self, "bias", FrozenDict(self.bias))

    @classmethod
    def from_words(
        cls,
        bias: Mapping[str, float],
        tokenizer: Tokenizer,
        *,
        leading_space: LeadingSpace = "both",
    ) -> "LogitBiasSpec":
        """Bias words that are one token each.

        Args:
            bias: words, each with its value.
            tokenizer: the model's tokenizer, any Hugging Face tokenizer.
            leading_space: bias ``" word"``, ``"word"``, or both.

        Raises:
            SpecError: if a form of a word is not one token, or two words with different values
                are the same token.
        """
        by_token: dict[int, float] = {}
        for word, value in bias.items():
            forms = one_token_words(
                (word,), tokenizer, leading_space, advice="a bias needs words of one token"
            )
            for form, token_id in forms:
                if by_token.setdefault(token_id, value) != value:
                    raise SpecError(f"Token {token_id} of {form!r} has another bias already")
        return cls(by_token)

    def token_fields(self) -> TokenFields:
        yield ("bias", Key("...")), tuple(self.bias)

    def sizes(self) -> Sizes:
        return Sizes(2 * len(self.bias))


def wrong_entry(bias: object) -> SpecError | None:
    """Find the error of the first token id or value that is wrong by itself; msgspec names none."""
    if not isinstance(bias, Mapping) or len(cast("Mapping[Any, Any]", bias)) > MAX_TOKEN_IDS // 2:
        return None
    entries = cast("Mapping[Any, Any]", bias)
    wrong = list(entries)
    while len(wrong) > 1:  # by halves: in all, each entry is checked about once
        half = len(wrong) // 2
        wrong = wrong[:half] if _error_in(entries, wrong[:half]) else wrong[half:]
    if not wrong or not (error := _error_in(entries, wrong)):
        return None
    token_id = wrong[0]
    is_short = isinstance(token_id, str) or (isinstance(token_id, int) and abs(token_id) < 1 << 64)
    key = reprlib.repr(token_id).strip("'") if is_short else "..."
    return SpecError(error.message, "bias", Key(key))


def _error_in(entries: Mapping[Any, Any], keys: Sequence[Any]) -> SpecError | None:
    try:
        msgspec.convert({key: entries[key] for key in keys}, _Biases, str_keys=True)
    except msgspec.ValidationError as error:
        return spec_error(error)
    except UnicodeEncodeError:
        return SpecError("Expected valid Unicode")
    return None
