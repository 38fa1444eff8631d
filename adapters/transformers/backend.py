"""What this adapter can do."""

from collections.abc import Sequence

from ...spec import LogitsProcessorSpec, SpecError
from .. import REALIZABLE, Backend

BACKEND = Backend("transformers", realizes=REALIZABLE, packages={"transformers": "transformers"})
"""``generate`` has sampling parameters for a whole batch alone, and no grammars of its own."""


def check_tokenizer(backend: Backend, specs: Sequence[LogitsProcessorSpec]) -> None:
    """Refuse a spec about text without a tokenizer, which ``generate`` does not have."""
    for i, spec in enumerate(specs):
        if spec.needs_vocabulary and backend.load_vocabulary is None:
            what = f"`{spec.kind}` needs the model's tokenizer: pass tokenizer=tokenizer"
            raise SpecError(what, "specs", i)
