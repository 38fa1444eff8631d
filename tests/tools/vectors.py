"""The language-neutral vectors of ``tests/golden/vectors.json``; ``docs/wire.md`` has the format.

``python -m tests.tools.vectors`` writes the file anew.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
from logitport import spec as s
from logitport.adapters.gateway.receipt import digest_of
from logitport.adapters.reference import edit, edits, permits
from logitport.adapters.reference.kinds import (
    KINDS,
    REALIZED,
    banned_scripts,
    banned_text,
    max_run,
)
from logitport.adapters.reference.kinds.base import (
    BAN,
    Add,
    Allow,
    Edit,
    Force,
    FreeRun,
    Move,
    ban,
    flat,
)
from logitport.spec import WIRE_KINDS, LogitsProcessorSpec, SpecError, Stage, decode, encode
from logitport.spec.base import kind_of
from logitport.spec.kinds.banned_scripts import ScriptsSpec
from logitport.spec.thinking_families import ThinkingTags, find_tags

from tests.conformance.test_reference import COMBINED, ROW
from tests.core.test_contradictions import CONFLICTS
from tests.core.test_follow import BY_HAND, LOSING, NEAR
from tests.spec.test_payload import FORCED
from tests.support.paths import GOLDEN
from tests.support.small_tokenizer import GREEDY, Greedy
from tests.support.transcripts import inputs

Specs = Sequence[LogitsProcessorSpec]
Ids = Sequence[int]
Neutral = dict[str, Any]

FILE = GOLDEN / "vectors.json"
VOCABULARY = 16
FREE = FreeRun((1, 2, 3), (4, 5, 4, 5, 6, 1), (7, 8, 9), eos_token_id=0)
TOGETHER: tuple[tuple[LogitsProcessorSpec, ...], ...] = (
    (s.BannedTokensSpec((4, 7)), s.ForcedEndSpec(2, (5, 6), 0)),
    (s.AllowedTokensSpec((4, 5)), s.AllowedTokensSpec((5, 6))),
    (s.LogitBiasSpec({4: 2.5, 7: -1.0}), s.LogitBiasSpec({4: 1.0}), s.MinTokensSpec(2, (0,))),
    (s.TriggerSpec((4,), (5, 6)), s.ForcedEndSpec(1, (7, 8))),
    (s.ForcedEndSpec(2, (4,), 0), s.AtEndSpec((5, 6), (0,))),
    (s.AllowedTokensSpec((0, 4, 5, 6)), s.AtEndSpec((5, 6), (0, 7), 0.5)),
)
"""Specs of one request."""
CHOSEN = s.Phase((s.ChoiceSpec(((4, 5), (6,))),), (s.PhaseEnd(complete=True),))
ASTRAY: tuple[tuple[LogitsProcessorSpec, Ids], ...] = (
    (s.PhasesSpec((CHOSEN, s.Phase((s.ForcedTokenSequenceSpec((7,)),)))), (9, 4, 9, 7, 4)),
    (
        s.PhasesSpec(
            (
                s.Phase(
                    (s.NoRepeatNgramSpec(2), s.PromptBiasSpec(1.5)), (s.PhaseEnd(token_ids=(9,)),)
                ),
                s.Phase(
                    (s.NoLoopSpec(2, then_token_ids=(7,)), s.PromptBiasSpec(2.5)),
                    (s.PhaseEnd(n=3),),
                ),
                s.Phase(
                    (s.DrySpec(1.0, allowed_length=1), s.NoLoopSpec(2)), (s.PhaseEnd(n=4, phase=0),)
                ),
            )
        ),
        (4, 5, 4, 9, 4, 4, 7, 4, 5, 4, 6, 1, 2, 1),
    ),
    (s.ThinkingBudgetSpec(2, (3,), (8, 9), (), (), ((8, 7),)), (5, 8, 9, 4)),
    (s.ThinkingBudgetSpec(2, (3,), (8, 9), (7,), (), ((8, 4), (8,))), (5, 6, 8, 4)),
)
"""An answer that goes astray in a phase, rules within phases, and end tags that begin alike: specs
and outputs."""
LONGEST = 300
"""Characters of a refused payload. Most of the limits need longer ones."""

LETTERS: tuple[bytes | None, ...] = (
    *(b" Ban", b"anas", b"ana", b"a", b"n", b"Banana", b"k", "\u212a".encode(), None, b"s"),
    *("\u00df".encode(), "\u1e9e".encode(), b"ss", b" ", "\u0130".encode(), b"i"),
)
WORDS: tuple[bytes | None, ...] = (
    *(b"ass", b" ass", b"ess", b"cl", b" ", b"a", b"s", b"ss", b"ss ", "ss\u2014".encode()),
    *("ss\u00e9".encode(), b"ss\xe2", b"ss\xe2\x80", b"ss\xc3", b"\xe2\x80", b"\x94"),
    *(b"\x94ass", b"_ass", b"\xffass", None),
)
CHARACTERS: tuple[bytes | None, ...] = (
    *(b"a", "\u0416".encode(), "\u4e2d\u6587".encode(), b"1!", "\u3042".encode()),
    *("\u0378".encode(), "\ue000".encode(), b"\xd0", b"\x9f", b"\xd2", b"a\xd2", b"\x85", b"\x8a"),
    *(b"\xe4", b"\xb7", b"\xb8", b"\xe5", b"\xff", None, "\u0301".encode()),
)
ENDS: tuple[bytes | None, ...] = (
    *(b"</", b"think", b">", b"</think>", b"nk>\n", b"\n", b"a", b"b", None, b"ok", b"thi"),
)
ACCENTS: tuple[bytes | None, ...] = (
    *(b"a", b"b", b"\xcc\x81", b"\xc3\xa1", b"B", b"b\xcc\x81", b" ", b"\xc3\xa1b", b"b "),
    *(b"b\xcc", b"b\xcd", b"\x81", None),
)
SPACES: tuple[bytes | None, ...] = (
    *(b"{", b" ", b"  ", b"\n \n", b" a", b"a ", b"a", b"\xe3\x80", b"\x80", None),
)
HAN, CYRILLIC = s.BannedScriptsSpec(("Han",)), s.BannedScriptsSpec(("CYRILLIC",))
UNTIL_TAG = s.Phase((s.BannedTokensSpec((6,)),), (s.PhaseEnd(text="</think>"),))
ABOUT_TEXT: tuple[tuple[tuple[LogitsProcessorSpec, ...], Sequence[bytes | None], Ids], ...] = (
    ((s.BannedTextSpec(("Banana", "kk")),), LETTERS, (0, 3, 4, 4, 0, 8, 1, 0, 1, 6)),
    ((s.BannedTextSpec(("BANANA", "\u212a"), True),), LETTERS, (0, 3, 4, 3, 0, 8, 1, 5)),
    ((s.BannedTextSpec(("a\u00df", "ass ", "i"), True),), LETTERS, (3, 9, 9, 3, 12, 13, 14, 3, 10)),
    ((s.BannedTextSpec(("ass",), whole_words=True),), WORDS, (3, 5, 4, 5, 6, 19, 5, 11, 3, 14, 15)),
    ((s.BannedTextSpec(("ass cl", "ass"), True, True),), WORDS, (1, 4, 3, 14, 16, 17, 18, 5, 12)),
    ((s.BannedTextSpec(("AB\u00c1",), True, False, True),), ACCENTS, (0, 2, 1, 3, 2, 1, 4, 5)),
    ((s.BannedTextSpec(("a\u0301b",), False, True, True),), ACCENTS, (6, 2, 0, 2, 2, 1, 6, 0)),
    ((s.MaxRunSpec(2),), SPACES, (0, 1, 1, 6, 2, 9, 1, 4, 3, 5, 2)),
    ((s.MaxRunSpec(1, ("a", "\u3000")),), SPACES, (6, 7, 8, 7, 4, 6, 7, 7, 8, 5)),
    ((CYRILLIC,), CHARACTERS, (9, 10, 11, 9, 18, 7, 8, 1, 9, 0)),
    ((HAN,), CHARACTERS, (13, 14, 13, 15, 16, 16, 17, 2)),
    ((s.AllowedScriptsSpec(("latin", "Han")),), CHARACTERS, (9, 3, 13, 19, 5, 18, 6)),
    (
        (HAN, s.AllowedTokensSpec((0, 2, 3)), s.AllowedScriptsSpec(("Han", "Latin"))),
        CHARACTERS,
        (0, 3),
    ),
    (
        (s.PhasesSpec((UNTIL_TAG, s.Phase((s.ForcedTokenSequenceSpec((9, 5)),)))),),
        ENDS,
        (0, 1, 7, 0, 8, 1, 2, 0, 10, 4, 9, 5, 3),
    ),
    (
        (
            s.PhasesSpec(
                (
                    s.Phase((), (s.PhaseEnd(text="\n"), s.PhaseEnd(n=2, phase=0))),
                    s.Phase((s.BannedTextSpec(("ab",)),), (s.PhaseEnd(n=3),)),
                ),
                eos_token_id=8,
            ),
        ),
        ENDS,
        (6, 7, 4, 7, 6, 7, 8),
    ),
)
"""Specs about text, a vocabulary, and an output."""


def text() -> str:
    """Make the text of the file: one vector a line."""
    tables = {"edits": edited(), "rows": rows(), "refused": refused(), "texts": texts()}
    tables |= {"text_edits": text_edits(), "conflicts": conflicts(), "payloads": payloads()}
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
    for spec, output in ASTRAY:
        yield _vector((spec,), FREE.prompt_ids, output)


def rows() -> Iterator[Neutral]:
    """Yield rows of logits, and what edits make of them together. ``null`` is minus infinity."""
    for acting, expected in COMBINED:
        before, after = (
            [None if value == -np.inf else float(value) for value in row] for row in (ROW, expected)
        )
        yield {"logits": before, "edits": _neutral_edits(acting), "edited": after}


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
    for given, _ in inputs("texts/resolved.txt"):
        tokenizer.asked.clear()
        payload = json.loads(given)
        resolved = json.loads(msgspec.json.encode(decode(payload, tokenizer)))
        yield _with_tokens(payload, tokenizer) | {"resolved": resolved}
    for given, printed in inputs("payloads/texts.txt"):
        tokenizer.asked.clear()
        payload = json.loads(given)
        with suppress(SpecError):
            decode(payload, tokenizer)
        if len(given) <= LONGEST and "\\u" not in given:
            yield _with_tokens(payload, tokenizer) | {"path": printed.partition(": ")[0]}


def text_edits() -> Iterator[Neutral]:
    """Yield the edits of specs about text: the bytes of a vocabulary's tokens decide."""
    for specs, vocabulary, output in ABOUT_TEXT:
        # A token that begins with 0xFF is no text either.
        texts = [None if token is None or token[0] == 0xFF else token for token in vocabulary]
        yield {
            "payload": json.loads(encode(specs)),
            "vocabulary": [None if token is None else token.hex() for token in vocabulary],
            "output_ids": [*output],
            "edits": [
                _neutral_edits(_edits_about_text(specs, texts, tuple(output[:n])))
                for n in range(len(output) + 1)
            ],
        }


def _edits_about_text(
    specs: Specs, vocabulary: Sequence[bytes | None], output: tuple[int, ...]
) -> Iterator[Edit]:
    of_phases: Any = KINDS[s.PhasesSpec].edit
    of_scripts = [spec for spec in specs if isinstance(spec, ScriptsSpec)]
    if of_scripts:
        yield ban(banned_scripts.completing(of_scripts, vocabulary, output))
    for spec in specs:
        if isinstance(spec, s.PhasesSpec):
            yield of_phases(spec, (), output, vocabulary)
        elif isinstance(spec, s.BannedTextSpec):
            yield ban(banned_text.completing(spec, vocabulary, output))
        elif isinstance(spec, s.MaxRunSpec):
            yield ban(max_run.completing(spec, vocabulary, output))
        elif not isinstance(spec, ScriptsSpec):
            yield edit(spec, (), output)


def conflicts() -> Iterator[Neutral]:
    """Yield payloads, with whether their specs contradict each other whatever the model says.

    ``may_lose`` has the kinds that others of the payload may override.
    """
    for specs, near, _ in CONFLICTS.values():
        yield _compared(specs, 1000, refused=True)
        yield _compared(near, 1000, refused=False)
    for cases, is_refused in ((BY_HAND, True), (NEAR, False)):
        for specs in cases.values():
            yield _compared(specs, VOCABULARY, refused=is_refused)
    for specs, named in LOSING:
        yield _compared(specs, VOCABULARY, refused=False) | {"may_lose": sorted(named)}


def _compared(specs: Specs, vocab_size: int, *, refused: bool) -> Neutral:
    entries = json.loads(msgspec.json.encode(specs))
    payload = {"version": 1, "specs": entries}
    return {"payload": payload, "vocab_size": vocab_size, "refused": refused}


def payloads() -> Iterator[Neutral]:
    """Yield texts of payloads: the stages where the specs act, or the path of what is wrong.

    ``digest`` is that of a receipt.
    """
    for text in TAKEN:
        stages = [stage.value for stage in Stage if decode(text).is_active(stage)]
        yield {"text": text, "stages": stages, "digest": digest_of(text)}
    refused = [
        (given, printed.partition(": ")[0])
        for name in ("refused", "entries", "beyond_schema")
        for given, printed in inputs(f"payloads/{name}.txt")
    ]
    for text, path in (*refused, *NO_PAYLOADS):
        if len(text) <= LONGEST:
            yield {"text": text, "path": path}


_SPECS = json.dumps([FORCED])
TAKEN = (
    f'{{"version":1,"specs":{_SPECS}}}',
    f'{{"version":1,"specs":{_SPECS},"generation_only":true}}',
    f'{{"version":1,"specs":{_SPECS},"generation_only":false}}',
    f' {{ "specs" : {_SPECS} ,\n"version" : 1 }} ',
    _SPECS,
    f'{{"version":1,"specs":{_SPECS},"continued":0}}',
    f'{{"version":1,"specs":{_SPECS},"continued":12}}',
    '{"version":1,"specs":[{"kind":"banned_text","texts":["\\u00e9\\/\\u001F"],"ignore_case":false}]}',
    '[{"texts":["\u00e9/\\u001f"],"ignore_case":false,"kind":"banned_text"}]',
    '{"version":1,"specs":[{"kind":"logit_bias","bias":{"10":-2,"9":0.00001,"7":1e-6,"8":250}}]}',
    '[{"kind":"logit_bias","bias":{"7":0.000001,"8":2.5e2,"9":1E-5,"10":-2.0}}]',
)
"""Texts that are payloads. The fifth is Dynamo's list; the last four are two in two forms."""
NO_PAYLOADS = (
    *(("", "$"), ("Hello", "$"), ('{"version":1', "$"), ("null", "$"), ('"text"', "$"), ("1", "$")),
    (f'{{"version":1,"specs":{_SPECS}}} {{}}', "$"),
    (f'{{"version":1,"specs":{_SPECS},}}', "$"),
    (f"{{'version':1,'specs':{_SPECS}}}", "$"),
    ('{"version":1,"specs":[{"kind":"prompt_bias","bias":NaN}]}', "$"),
    ('{"version":1,"specs":[{"kind":"prompt_bias","bias":1e999}]}', "$.specs[0].bias"),
    ('{"version":2,"specs":"a newer one","more":{}}', "$.version"),
    ('{"version":2}', "$.version"),
    (f'{{"version":1.0,"specs":{_SPECS}}}', "$.version"),
    (f'{{"version":1,"specs":{_SPECS},"generation_only":null}}', "$.generation_only"),
    (f'{{"version":1,"specs":{_SPECS},"generation_only":"true"}}', "$.generation_only"),
    (f'{{"version":1,"specs":{_SPECS},"continued":-1}}', "$.continued"),
    (f'{{"version":1,"specs":{_SPECS},"continued":true}}', "$.continued"),
)
"""Texts that are none, with paths."""


def _with_tokens(payload: Neutral, tokenizer: "_Asked") -> Neutral:
    return {
        "payload": payload,
        "tokens": {**tokenizer.asked},
        "eos_token_id": tokenizer.eos_token_id,
        **({"tags": MODEL_TAGS} if '"tags": "model"' in json.dumps(payload) else {}),
    }


MODEL_TAGS = {"start": [[8]], "end": [[9]], "then": []}
"""The thinking tags of the small tokenizer's model."""


class _Asked(Greedy):
    """A tokenizer that keeps what it has been asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, list[int]] = {}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        token_ids = super().encode(text, add_special_tokens=add_special_tokens)
        return self.asked.setdefault(text, token_ids)

    def thinking_tags(self, family: s.ThinkingFamily | None) -> ThinkingTags:
        return find_tags(GREEDY, family)


def read_edit(neutral: Neutral) -> Force | Allow | Add | Move:
    """Read an edit of the file."""
    ((name, value),) = neutral.items()
    if name == "force":
        return Force(value)
    if name == "allow":
        return Allow(frozenset(value))
    if name == "move":
        return Move(value["first"], tuple(value["ends"]), value["temperature"])
    return Add(dict.fromkeys(value, BAN) if name == "ban" else {int(t): v for t, v in value})


def _rows(kind: type[LogitsProcessorSpec]) -> Any:
    return import_module(f"tests.kinds.test_{kind_of(kind)}").TestRows


def _runs(specs: Specs, numbers: random.Random) -> Iterator[Neutral]:
    """Yield an output that obeys the specs, the same continued, and one of any tokens."""
    listed = {token for spec in specs for _, tokens in spec.token_fields() for token in tokens}
    pool = sorted({*listed, FREE.prompt_ids[-1], FREE.output_ids[0], 10})
    for obedient in (True, False):
        output: list[int] = []
        while len(output) < 8:
            acting = flat(edits(specs, FREE.prompt_ids, output)) if obedient else ()
            forces = [each for each in acting if isinstance(each, Force)]
            may = [token for token in pool if all(permits([each], token) for each in acting)]
            tokens = [forces[0].token] if forces else may or pool
            output.append(tokens[int(numbers.random() * len(tokens))])
        yield _vector(specs, FREE.prompt_ids, output)
        if obedient:
            yield _vector(specs, FREE.prompt_ids, output, 5)


def _vector(specs: Specs, prompt: Ids, output: Ids, continued: int = 0) -> Neutral:
    return {
        "payload": json.loads(encode(specs, continued=continued)),
        "vocab_size": VOCABULARY,
        "prompt_ids": [*prompt, *output[:continued]],
        "output_ids": [*output[continued:]],
        "edits": [
            _neutral_edits(edits(specs, prompt, output[:n]))
            for n in range(continued, len(output) + 1)
        ],
    }


def _neutral_edits(acting: Iterable[Edit]) -> list[Neutral]:
    """Write edits, in an order in which the first of several forced tokens counts."""
    listed = sorted(flat(acting), key=lambda each: not getattr(each, "is_last", False))
    return [*map(_neutral, listed)]


def _neutral(edit: Force | Allow | Add | Move) -> Neutral:
    match edit:
        case Force():
            return {"force": edit.token}
        case Allow():
            return {"allow": sorted(edit.tokens)}
        case Move(first, ends, temperature):
            return {"move": {"first": first, "ends": [*ends], "temperature": temperature}}
        case Add():
            if {*edit.values.values()} == {BAN}:
                return {"ban": sorted(edit.values)}
            # Powers differ in their last digit from one machine to another.
            return {"add": [[t, float(f"{value:.6g}")] for t, value in sorted(edit.values.items())]}


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
