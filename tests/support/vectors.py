"""The language-neutral vectors of ``tests/golden/vectors.json``; ``docs/wire.md`` has the format.

``python -m tests.support.vectors`` writes the file anew.
"""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
from logitport import spec as s
from logitport.adapters.conformance.kinds import KINDS, REALIZED
from logitport.adapters.conformance.kinds.base import BAN, Add, Allow, Force, FreeRun, flat
from logitport.adapters.conformance.reference import edits, permits
from logitport.spec import WIRE_KINDS, LogitsProcessorSpec, SpecError, decode, encode
from logitport.spec.base import kind_of

from tests.conformance.test_reference import COMBINED, ROW
from tests.kinds.test_texts import Greedy
from tests.spec.test_client_texts import REFUSED, RESOLVED
from tests.support.paths import GOLDEN

FILE = GOLDEN / "vectors.json"
VOCABULARY = 16
FREE = FreeRun((1, 2, 3), (4, 5, 4, 5, 6, 1), (7, 8, 9), eos_token_id=0)
TOGETHER: tuple[tuple[LogitsProcessorSpec, ...], ...] = (
    (s.BannedTokensSpec((4, 7)), s.ForcedEndSpec(2, (5, 6), 0)),
    (s.AllowedTokensSpec((4, 5)), s.AllowedTokensSpec((5, 6))),
    (s.LogitBiasSpec({4: 2.5, 7: -1.0}), s.LogitBiasSpec({4: 1.0}), s.MinTokensSpec(2, (0,))),
    (s.TriggerSpec((4,), (5, 6)), s.ForcedEndSpec(1, (7, 8))),
)
"""Specs of one request."""
LONGEST = 300
"""Characters of a refused payload. Most of the limits need longer ones."""

Specs = Sequence[LogitsProcessorSpec]
Ids = Sequence[int]
Neutral = dict[str, Any]


def text() -> str:
    """Make the text of the file: one vector a line."""
    tables = {"edits": edited(), "rows": rows(), "refused": refused(), "texts": texts()}
    lines = [
        f'"{name}":[\n' + ",\n".join(json.dumps(each, separators=(",", ":")) for each in vectors)
        for name, vectors in tables.items()
    ]
    return "{" + "\n],\n".join(lines) + "\n]}\n"


def edited() -> Iterator[Neutral]:
    """Yield the edits of all kinds: on the histories of their tests, and for their examples."""
    for kind in REALIZED:
        if kind not in WIRE_KINDS:
            continue
        for spec, prompt, steps in _rows(kind).histories:
            yield _vector((spec,), prompt, steps[1::2])
        numbers = random.Random(kind_of(kind))  # a new kind changes no other kind's
        for spec in KINDS[kind].examples(FREE):
            yield from _runs((spec,), numbers)
    for specs in TOGETHER:
        yield from _runs(specs, random.Random(encode(specs)))


def rows() -> Iterator[Neutral]:
    """Yield rows of logits, and what edits make of them together. ``null`` is minus infinity."""
    for acting, expected in COMBINED:
        before, after = (
            [None if value == -np.inf else float(value) for value in row] for row in (ROW, expected)
        )
        yield {"logits": before, "edits": [*map(_neutral, flat(acting))], "edited": after}


def refused() -> Iterator[Neutral]:
    """Yield payloads that are refused, with the path of what is wrong."""
    for kind in WIRE_KINDS:
        table = _rows(kind)
        for fields, _, path in table.refused:
            payload = {"version": 1, "specs": [{"kind": kind_of(kind), **fields}]}
            if len(json.dumps(payload)) <= LONGEST:
                yield {"payload": payload, "path": ".".join(filter(None, ["$.specs[0]", path]))}
        for spec, path in getattr(table, "beyond", ()):
            payload = json.loads(encode(spec))
            yield {"payload": payload, "vocab_size": 9, "path": f"$.specs[0].{path}"}


def texts() -> Iterator[Neutral]:
    """Yield payloads with texts: the tokens of these, and the payload with token ids or the path.

    ``tokens`` has the texts that the tokenizer is asked for, and no others.
    """
    tokenizer = _Asked()
    for fields, _ in RESOLVED:
        tokenizer.asked.clear()
        payload = {"version": 1, "specs": [fields]}
        resolved = json.loads(msgspec.json.encode(decode(payload, tokenizer)))
        yield _with_tokens(payload, tokenizer) | {"resolved": resolved}
    for fields, _, path in REFUSED:
        tokenizer.asked.clear()
        payload = {"version": 1, "specs": [fields]}
        with suppress(SpecError):
            decode(payload, tokenizer)
        if len(json.dumps(payload)) <= LONGEST and "\\u" not in json.dumps(payload):
            yield _with_tokens(payload, tokenizer) | {"path": f"$.specs[0]{path}"}


def _with_tokens(payload: Neutral, tokenizer: "_Asked") -> Neutral:
    return {
        "payload": payload,
        "tokens": {**tokenizer.asked},
        "eos_token_id": tokenizer.eos_token_id,
    }


class _Asked(Greedy):
    """A tokenizer that keeps what it has been asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, list[int]] = {}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        token_ids = super().encode(text, add_special_tokens=add_special_tokens)
        return self.asked.setdefault(text, token_ids)


def read_edit(neutral: Neutral) -> Force | Allow | Add:
    """Read an edit of the file."""
    ((name, value),) = neutral.items()
    if name == "force":
        return Force(value)
    if name == "allow":
        return Allow(frozenset(value))
    return Add(dict.fromkeys(value, BAN) if name == "ban" else {int(t): v for t, v in value})


def _rows(kind: type[LogitsProcessorSpec]) -> Any:
    return import_module(f"tests.kinds.test_{kind_of(kind)}").TestRows


def _runs(specs: Specs, numbers: random.Random) -> Iterator[Neutral]:
    """Yield an output that obeys the specs, and one of any tokens."""
    listed = {token for spec in specs for _, tokens in spec.token_fields() for token in tokens}
    pool = sorted({*listed, FREE.prompt_ids[-1], FREE.output_ids[0], 10})
    for obedient in (True, False):
        output: list[int] = []
        while len(output) < 8:
            acting = flat(edits(specs, FREE.prompt_ids, output)) if obedient else ()
            forces = [each for each in acting if isinstance(each, Force)]
            may = [token for token in pool if all(permits(each, token) for each in acting)]
            tokens = [forces[0].token] if forces else may or pool
            output.append(tokens[int(numbers.random() * len(tokens))])
        yield _vector(specs, FREE.prompt_ids, output)


def _vector(specs: Specs, prompt: Ids, output: Ids) -> Neutral:
    return {
        "payload": json.loads(encode(specs)),
        "vocab_size": VOCABULARY,
        "prompt_ids": [*prompt],
        "output_ids": [*output],
        "edits": [
            [*map(_neutral, flat(edits(specs, prompt, output[:n])))] for n in range(len(output) + 1)
        ],
    }


def _neutral(edit: Force | Allow | Add) -> Neutral:
    match edit:
        case Force():
            return {"force": edit.token}
        case Allow():
            return {"allow": sorted(edit.tokens)}
        case Add():
            if {*edit.values.values()} == {BAN}:
                return {"ban": sorted(edit.values)}
            # Powers differ in their last digit from one machine to another.
            return {"add": [[t, float(f"{value:.6g}")] for t, value in sorted(edit.values.items())]}


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
