"""The wiring check: set an environment variable, and any model answers "Hello world!".

The check acts on models that generate text. For pooling models (embeddings, scores), vLLM loads no
logits processors, so the check does nothing.
"""

import logging
from collections.abc import Callable, Sequence

from ..adapters.environment import TEST_VARIABLES as VARIABLES
from ..adapters.environment import is_on
from ..spec import ForcedTokenSequenceSpec, LogitsProcessorSpec, Tokenizer

logger = logging.getLogger(__name__)

TEXT = "Hello world!"


def default_specs(tokenizer: Callable[[], Tokenizer]) -> Sequence[LogitsProcessorSpec]:
    """Return a spec that forces ``TEXT`` if one of ``VARIABLES`` is on, otherwise no spec.

    The tokenizer's EOS token follows the text. If there is none, the model continues freely.

    Raises:
        ValueError: if a variable is neither on nor off, or if the tokenizer cannot be loaded or
            cannot encode the text.
    """
    name = next((name for name in VARIABLES if is_on(name)), None)
    if name is None:
        return ()
    try:
        loaded = tokenizer()
        eos_token_id = getattr(loaded, "eos_token_id", None)
        spec = ForcedTokenSequenceSpec.from_text(TEXT, loaded, eos_token_id=eos_token_id)
    except Exception as error:  # the loader of tokenizers may raise any error
        raise ValueError(
            f"{name} is on, and the model's tokenizer makes no tokens of {TEXT!r}: {error}. "
            "Start the engine with a tokenizer, or without the variable"
        ) from error
    logger.warning(
        "%s is on: every request without specs or a grammar of its own replies %r%s.",
        name,
        TEXT,
        "" if eos_token_id is not None else " and continues: the tokenizer has no EOS token",
    )
    return (spec,)
