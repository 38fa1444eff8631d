"""``logit_bias``: make some tokens more likely, and other tokens less likely."""

import reprlib
from collections.abc import Mapping
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
    entries, wrong = cast("Mapping[Any, Any]", bias if isinstance(bias, Mapping) else {}), None
    keys = [*entries][: MAX_TOKEN_IDS // 2]
    for size in (128, 1):  # one by one, all would cost six times as much
        for part in (keys[i : i + size] for i in range(0, len(keys), size)):
            try:
                msgspec.convert({key: entries[key] for key in part}, _Biases, str_keys=True)
            except msgspec.ValidationError as error:
                wrong, keys = spec_error(error).message, part
                break
            except UnicodeEncodeError:
                wrong, keys = "Expected valid Unicode", part
                break
    if wrong is None:
        return None
    is_long = isinstance(keys[0], int) and abs(keys[0]) >> 64
    return SpecError(wrong, "bias", Key("..." if is_long else reprlib.repr(keys[0]).strip("'")))
