"""Programs: the compiled form of all specs of a request.

Requests that carry the same payload share a program.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec.structs import replace

from ...spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTextSpec,
    DrySpec,
    LogitsProcessorSpec,
    NativeSpec,
    NoRepeatNgramSpec,
    PromptBiasSpec,
    SpecError,
)
from ...spec.kinds.banned_scripts import ScriptsSpec
from ...spec.limits import (
    MAX_DRY_RULES,
    MAX_NGRAM_RULES,
    MAX_PROMPT_BIASES,
    MAX_WORK,
    SPEC_WORK,
    TEXT_BYTE_WORK,
    TEXT_RULE_WORK,
    TEXT_TABLE_BYTES,
)
from .automaton import Automaton
from .automaton.arrays import distinct, token_array
from .automaton.failure_links import TooManyEdgesError
from .kinds import Part, PerRequest, VocabularyOf, compile_spec, compiling_for
from .kinds.banned_scripts import banned_by, banning
from .kinds.banned_sequences import adding_at_ends
from .kinds.banned_tokens import adding
from .kinds.base import check_size, set_text_room
from .scripts import Kinds


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The compiled form of the specs of one payload.

    Attributes:
        automata: tables, shared by all requests that have this program.
        ngrams: the rules against n-grams, which are batched.
        dry: the rules against repetitions, which are batched.
        prompt_biases: the biases that depend on the request's prompt alone.
        per_request: the parts that are made anew for each request.
    """

    automata: tuple[Automaton, ...] = ()
    ngrams: tuple[NoRepeatNgramSpec, ...] = ()
    dry: tuple[DrySpec, ...] = ()
    prompt_biases: tuple[PromptBiasSpec, ...] = ()
    per_request: tuple[PerRequest, ...] = ()

    @property
    def cells(self) -> int:
        """The size of the automata's tables: states, plus the tokens in their token sets."""
        return sum(automaton.cells for automaton in self.automata)

    @property
    def history_rules(self) -> tuple[NoRepeatNgramSpec | DrySpec, ...]:
        """All rules that look up the newest tokens in the history."""
        return self.ngrams + self.dry

    @property
    def needs_history(self) -> bool:
        """Whether the edits depend on the output so far, be it only on its length."""
        return bool(self.history_rules or self.per_request) or any(
            automaton.states > 1 for automaton in self.automata
        )

    @property
    def reads_prompt(self) -> bool:
        """Whether a batched part depends on the prompt's token ids; callables may, too."""
        return (
            bool(self.dry or self.prompt_biases)
            or any(automaton.reads_prompt for automaton in self.automata)
            or not all(spec.output_only for spec in self.ngrams)
        )

    @property
    def needs_output_ids(self) -> bool:
        """Whether the edits depend on more than the output's length and the forced tokens."""
        return bool(self.history_rules or self.per_request) or any(
            automaton.needs_output_ids for automaton in self.automata
        )


ProgramOf = Callable[[Any], Program | None]
"""A function from a request, as its adapter has it, to its program; ``None`` if it has none."""


_options = attrgetter("ignore_case", "whole_words")
"""What a `banned_text` has besides its texts."""


def compile_specs(
    specs: Sequence[LogitsProcessorSpec], vocabulary: VocabularyOf | None = None
) -> Program:
    """Compile the specs of a request.

    Args:
        specs: the specs of a payload.
        vocabulary: returns the vocabulary of the engine's tokenizer. It is called only if a spec
            needs one.

    Raises:
        SpecError: with the path, for a plugin that is not installed or refuses its parameters, for
            a kind that the engine implements itself or that needs a vocabulary where none is known,
            and beyond ``MAX_WORK``, ``MAX_CELLS``, ``MAX_PROMPT_BIASES`` and ``MAX_NGRAM_RULES``.
    """
    with compiling_for(vocabulary):
        return _compiled(specs)


def _compiled(specs: Sequence[LogitsProcessorSpec]) -> Program:
    parts: list[Part] = []
    allowed: list[Sequence[int]] = []
    sequences: list[Sequence[int]] = []
    last = max((i for i, s in enumerate(specs) if isinstance(s, BannedSequencesSpec)), default=None)
    scripts: list[Kinds] = []
    last_scripts = max((i for i, s in enumerate(specs) if isinstance(s, ScriptsSpec)), default=None)
    cells = 0
    room = TEXT_TABLE_BYTES * (MAX_WORK - _check_work(specs))
    set_text_room(room)
    ngrams: dict[NoRepeatNgramSpec, None] = {}  # of equal rules, one acts
    for i, spec in enumerate(specs):
        if isinstance(spec, AllowedTokensSpec):
            allowed.append(spec.token_ids)
            if len(allowed) > 1:
                continue
        if isinstance(spec, BannedSequencesSpec):
            sequences.extend(spec.sequences)
            if i != last:  # one automaton looks for all sequences
                continue
        try:
            if isinstance(spec, BannedTextSpec):  # one automaton looks for all texts
                every = (each for each in specs if isinstance(each, BannedTextSpec))
                same = [each for each in every if _options(each) == _options(spec)]
                if spec is not same[-1]:
                    continue
                spec = replace(spec, texts=tuple(chain(*(each.texts for each in same))))
            if isinstance(spec, ScriptsSpec):  # one automaton bans the characters of all
                scripts.append(banned_by(spec))
                if i != last_scripts:
                    continue
            if isinstance(spec, ScriptsSpec):
                made = list(banning(spec, scripts))
            else:
                made = list(adding_at_ends(sequences) if i == last else compile_spec(spec))
            parts.extend(made)
            # The sizes of these depend on the vocabulary, and are bounded by their memory.
            if spec.needs_vocabulary:
                room -= sum(part.table_bytes for part in made if isinstance(part, Automaton))
                set_text_room(max(room, 0))
            else:
                cells += sum(part.cells for part in made if isinstance(part, Automaton))
            ngrams.update((part, None) for part in made if isinstance(part, NoRepeatNgramSpec))
            check_size(cells)
            if sum(isinstance(part, PromptBiasSpec) for part in parts) > MAX_PROMPT_BIASES:
                raise SpecError(f"Expected at most {MAX_PROMPT_BIASES} prompt biases on a request")
            dry = sum(isinstance(part, DrySpec) for part in parts)
            if dry > MAX_DRY_RULES:
                raise SpecError(f"Expected at most {MAX_DRY_RULES} `dry` on a request")
            if dry + len(ngrams) > MAX_NGRAM_RULES:
                raise SpecError(
                    f"Expected at most {MAX_NGRAM_RULES} different `no_repeat_ngram` and `dry` "
                    "on a request"
                )
        except TooManyEdgesError as error:
            raise SpecError(f"Expected a simpler spec: {error}", "specs", i) from None
        except SpecError as error:
            raise error.at("specs", i) from error.__cause__
    # Two automata replace any number of lists, whatever else the request has.
    if len(allowed) > 1 and (refused := _banned_by_others(allowed)):
        parts.append(adding(refused))
    return Program(
        automata=tuple(part for part in parts if isinstance(part, Automaton)),
        ngrams=tuple(ngrams),
        dry=tuple(part for part in parts if isinstance(part, DrySpec)),
        prompt_biases=tuple(part for part in parts if isinstance(part, PromptBiasSpec)),
        per_request=tuple(part for part in parts if isinstance(part, PerRequest)),
    )


def _check_work(specs: Sequence[LogitsProcessorSpec]) -> int:
    """Bound the work to compile specs, before any of it is done. Return its units."""
    sizes = [spec.sizes() for spec in specs]
    rules: dict[object, LogitsProcessorSpec] = {}  # of those that are compiled as one, the last
    for i, spec in enumerate(specs):
        one = _options(spec) if isinstance(spec, BannedTextSpec) else i
        rules["scripts" if isinstance(spec, ScriptsSpec) else one] = spec
    parts = {
        "token ids": sum(each.token_ids for each in sizes),
        "rules about text": TEXT_RULE_WORK * sum(spec.text_rules for spec in rules.values()),
        "bytes of texts": TEXT_BYTE_WORK * sum(each.text_bytes for each in sizes),
        "the rest": SPEC_WORK * (len(specs) - 1) + sum(spec.work for spec in rules.values()),
    }
    if (work := sum(parts.values())) > MAX_WORK:
        of = ", ".join(f"{units} for {what}" for what, units in parts.items() if units)
        raise SpecError(
            f"Expected specs that take at most {MAX_WORK} units of work, got {work}: {of}",
            "specs",
        )
    return work


def _banned_by_others(lists: Sequence[Sequence[int]]) -> list[int]:
    """List the tokens of the first list, which is strict, that another list does not contain."""
    first, *others = (distinct(token_array(token_ids)) for token_ids in lists)
    is_banned = np.zeros(len(first), np.bool_)
    for other in others:
        is_banned |= ~np.isin(first, other, assume_unique=True)
    return first[is_banned].tolist()


def unsupported(
    specs: Sequence[LogitsProcessorSpec],
    asks: Callable[[Program], bool],
    why: str,
    vocabulary: VocabularyOf | None = None,
) -> SpecError:
    """Make the error for a feature that an engine lacks, at the spec whose program ``asks`` for it.

    Args:
        specs: specs that have been compiled together.
        asks: whether a program needs the feature.
        why: the text after the spec's kind in the message.
        vocabulary: as for ``compile_specs``.
    """
    for i, spec in enumerate(specs):
        if not isinstance(spec, NativeSpec) and asks(compile_specs((spec,), vocabulary)):
            return SpecError(f"`{spec.kind}` {why}", "specs", i)
    raise AssertionError("unreachable: what the whole asks for, one of the specs does")
