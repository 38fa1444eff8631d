"""Specs compiled to what the core runs: automata, history rules, live callables.

One function per kind. A *program* is what a request's whole payload compiles to; requests that
carry the same payload share it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from ...spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    GrammarSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    NativeSpec,
    NoRepeatNgramSpec,
    PluginSpec,
    PromptBiasSpec,
    PythonProcessorSpec,
    SamplingSpec,
    SpecError,
    ThinkingBudgetSpec,
    TriggerSpec,
)
from ...spec.limits import MAX_CELLS, MAX_NGRAM_RULES, MAX_PROMPT_BIASES
from .automaton import (
    CARRY,
    CLEAR,
    KEEP,
    Automaton,
    AutomatonBuilder,
    TooManyEdgesError,
    distinct,
    token_array,
)
from .plugins import PluginPart, resolve_plugin
from .tries import Flat, banned, choice


@dataclass(frozen=True, slots=True, eq=False)
class PerRequest:
    """Something that is made anew for each request.

    Attributes:
        make: returns what is to be run.
    """

    make: Callable[[], PluginPart]


Part = Automaton | NoRepeatNgramSpec | PromptBiasSpec | PerRequest


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What the specs of one payload compile to.

    Attributes:
        automata: tables, shared by all requests that have this program.
        ngrams: the history rules that are batched.
        prompt_biases: what depends on the request's prompt alone.
        per_request: what each request gets its own of.
    """

    automata: tuple[Automaton, ...] = ()
    ngrams: tuple[NoRepeatNgramSpec, ...] = ()
    prompt_biases: tuple[PromptBiasSpec, ...] = ()
    per_request: tuple[PerRequest, ...] = ()

    @property
    def cells(self) -> int:
        """Size of the automata's tables: states, and tokens in their sets."""
        return sum(automaton.cells for automaton in self.automata)

    @property
    def needs_history(self) -> bool:
        """Whether what it does depends on the output so far, or on its length alone."""
        return bool(self.ngrams or self.per_request) or any(
            automaton.states > 1 for automaton in self.automata
        )

    @property
    def reads_prompt(self) -> bool:
        """Whether a batched part of it depends on the prompt's token ids; callables may, too."""
        return bool(self.ngrams or self.prompt_biases) or any(
            automaton.reads_prompt for automaton in self.automata
        )

    @property
    def needs_output_ids(self) -> bool:
        """Whether it is not enough to know how many tokens are out, and which were forced."""
        return bool(self.ngrams or self.per_request) or any(
            automaton.needs_output_ids for automaton in self.automata
        )


def compile_specs(specs: Sequence[LogitsProcessorSpec]) -> Program:
    """Compile the specs of a request.

    Raises:
        SpecError: for a plugin that is not installed or refuses its parameters, for a kind that
            the engine does by itself, and beyond ``MAX_CELLS``, ``MAX_PROMPT_BIASES`` and
            ``MAX_NGRAM_RULES``, with the path.
    """
    parts: list[Part] = []
    allowed: list[Sequence[int]] = []
    sequences: list[Sequence[int]] = []
    last = max((i for i, s in enumerate(specs) if isinstance(s, BannedSequencesSpec)), default=None)
    ngrams: dict[NoRepeatNgramSpec, None] = {}  # of equal ones, one acts
    for i, spec in enumerate(specs):
        if isinstance(spec, AllowedTokensSpec):
            allowed.append(spec.token_ids)
            if len(allowed) > 1:
                continue
        if isinstance(spec, BannedSequencesSpec):
            sequences.extend(spec.sequences)
            if i != last:  # all of them are looked for at once
                continue
        try:
            try:
                compiled = _banned(sequences) if i == last else COMPILERS[type(spec)](spec)
                made = list(compiled)
            except TooManyEdgesError as error:
                raise SpecError(f"Expected a simpler spec: {error}") from None
            parts.extend(made)
            ngrams.update((part, None) for part in made if isinstance(part, NoRepeatNgramSpec))
            _check_size(sum(part.cells for part in parts if isinstance(part, Automaton)))
            if sum(isinstance(part, PromptBiasSpec) for part in parts) > MAX_PROMPT_BIASES:
                raise SpecError(f"Expected at most {MAX_PROMPT_BIASES} prompt biases on a request")
            if len(ngrams) > MAX_NGRAM_RULES:
                raise SpecError(
                    f"Expected at most {MAX_NGRAM_RULES} different `no_repeat_ngram` on a request"
                )
        except SpecError as error:
            raise error.under(f"$.specs[{i}]") from error.__cause__
    # Two automata do what any number of lists do, whatever else the request has.
    if len(allowed) > 1 and (refused := _banned_by_others(allowed)):
        parts.append(_added(refused))
    return Program(
        automata=tuple(part for part in parts if isinstance(part, Automaton)),
        ngrams=tuple(ngrams),
        prompt_biases=tuple(part for part in parts if isinstance(part, PromptBiasSpec)),
        per_request=tuple(part for part in parts if isinstance(part, PerRequest)),
    )


def _banned_by_others(lists: Sequence[Sequence[int]]) -> list[int]:
    """What further lists of allowed tokens ban of the first one, which is strict."""
    first, *others = (distinct(token_array(token_ids)) for token_ids in lists)
    is_banned = np.zeros(len(first), np.bool_)
    for other in others:
        is_banned |= ~np.isin(first, other, assume_unique=True)
    return first[is_banned].tolist()


def refusal(
    specs: Sequence[LogitsProcessorSpec], asks: Callable[[Program], bool], why: str
) -> SpecError:
    """The error for what an engine cannot give, at the spec that asks for it.

    Args:
        specs: a request's, of which some does.
        asks: whether a program asks for it.
        why: what follows the spec's kind in the message.
    """
    for i, spec in enumerate(specs):
        if not isinstance(spec, NativeSpec) and asks(compile_specs((spec,))):
            return SpecError(f"`{spec.kind}` {why}", f"$.specs[{i}]")
    raise AssertionError("unreachable: what the whole asks for, one of the specs does")


def _check_size(cells: int) -> None:
    if cells > MAX_CELLS:
        raise SpecError(
            f"Expected specs that compile to at most {MAX_CELLS} states and edited tokens in all; "
            "this one goes beyond"
        )


def forced_chain(
    token_ids: Sequence[int], eos_token_id: int | None, *, after: int = 0
) -> Automaton:
    """Force ``token_ids`` from output index ``after`` on, then EOS for ever, or nothing more."""
    builder = AutomatonBuilder()
    if after:
        counting, waiting = builder.free(timer=after), builder.free(timer=CARRY)
        builder.otherwise(counting, waiting)
        builder.timeout(counting, len(builder))
        builder.timeout(waiting, len(builder))
    builder.chain(token_ids)
    _end(builder, eos_token_id)
    return builder.build()


@lru_cache(maxsize=64)
def ending(eos_token_id: int) -> Automaton:
    """What ends a request whose specs have failed."""
    return forced_chain((), eos_token_id)


def _end(builder: AutomatonBuilder, eos_token_id: int | None) -> int:
    return builder.free() if eos_token_id is None else builder.force(eos_token_id)


def _forced_sequence(spec: ForcedTokenSequenceSpec) -> Iterable[Part]:
    yield forced_chain(spec.token_ids, spec.eos_token_id)


def _forced_end(spec: ForcedEndSpec) -> Iterable[Part]:
    yield forced_chain(spec.token_ids, spec.eos_token_id, after=spec.after)


def _allowing() -> Automaton:
    builder = AutomatonBuilder()
    builder.allow(builder.token_set((0,)))
    return builder.build()


def _adding() -> Automaton:
    builder = AutomatonBuilder()
    builder.add(builder.token_set((0,)))
    return builder.build()


def _holding_back() -> Automaton:
    builder = AutomatonBuilder()
    stops = builder.token_set((0,))
    counting, waiting = builder.add(stops, timer=1), builder.add(stops, timer=CARRY)
    enough = builder.free()
    builder.otherwise(counting, waiting)
    builder.timeout(counting, enough)
    builder.timeout(waiting, enough)
    return builder.build()


ALLOWING, ADDING, HOLDING_BACK = _allowing(), _adding(), _holding_back()
"""What differs from one request to another only in the tokens, is made once."""


def _allowed_tokens(spec: AllowedTokensSpec) -> Iterable[Part]:
    yield ALLOWING.of_tokens(spec.token_ids)


def _added(token_ids: Iterable[int], *values: Iterable[float] | float) -> Automaton:
    return ADDING.of_tokens(token_ids, *values)


def _banned_tokens(spec: BannedTokensSpec) -> Iterable[Part]:
    yield _added(spec.token_ids)


def _logit_bias(spec: LogitBiasSpec) -> Iterable[Part]:
    yield _added(spec.bias.keys(), spec.bias.values())


def _prompt_bias(spec: PromptBiasSpec) -> Iterable[Part]:
    yield spec


def _min_tokens(spec: MinTokensSpec) -> Iterable[Part]:
    timer = HOLDING_BACK.timer.copy()
    timer[0] = spec.n
    yield HOLDING_BACK.of_tokens(spec.stop_token_ids, timer=timer)


def _banned(sequences: Sequence[Sequence[int]]) -> Iterable[Part]:
    """Single tokens are banned in every state, so they are an automaton of their own."""
    flat = Flat.of(sequences)
    is_single = flat.lengths == 1
    if is_single.any():
        yield _added(flat.where(is_single).last.tolist())
    if not is_single.all():
        yield banned(flat.where(~is_single), _check_size)


def _choice(spec: ChoiceSpec) -> Iterable[Part]:
    yield choice(spec.choices, spec.eos_token_id)


def _match(
    builder: AutomatonBuilder, states: Sequence[int], pattern: Sequence[int], found: int
) -> None:
    """Make ``states[i]`` that of ``i`` matched tokens; the whole pattern leads to ``found``.

    The states are ``builder.watching``: whatever goes on with no beginning leads to the first.

    Each state has the edges of the state that its longest proper end is in, too (Knuth, Morris and
    Pratt, "Fast pattern matching in strings", SIAM J. Comput. 6(2), 1977): no token is looked up
    twice. There are no more than two edges for each token of the pattern (Simon, "String matching
    algorithms and automata", LNCS 812, 1994).
    """
    edges_of: list[dict[int, int]] = []  # those that do not lead to the first state
    end = 0
    for i, token in enumerate(pattern):
        of_end = edges_of[end] if i else {}
        edges_of.append({**of_end, token: i + 1})
        for token_id, matched in edges_of[i].items():
            target = states[matched] if matched < len(pattern) else found
            builder.edge(states[i], token_id, target)
        end = of_end.get(token, 0)


def _trigger(spec: TriggerSpec) -> Iterable[Part]:
    """One round of watching and saying; a timer that only its end runs down counts the rounds."""
    builder = AutomatonBuilder()
    counts = spec.times is not None and spec.times > 1
    timer = KEEP if counts else CLEAR
    start = builder.free(timer=spec.times or 0) if counts else None
    watching = builder.watching(len(spec.trigger_token_ids), timer=timer)
    _match(builder, watching, spec.trigger_token_ids, found=len(builder))
    then = watching[0] if spec.times is None else None
    builder.chain(spec.token_ids, then=then, timer=timer)
    if start is not None:
        again = builder.free(timer=CARRY)
        for state in (start, again):
            builder.otherwise(state, watching[0], consumes=False)
        builder.timeout(again, len(builder))
    if spec.times is not None:
        builder.free()
    yield builder.build()


def _thinking_budget(spec: ThinkingBudgetSpec) -> Iterable[Part]:
    builder = AutomatonBuilder(reads_prompt=True)
    start, end = spec.start_token_ids, spec.end_token_ids
    outside = builder.watching(len(start))
    opened = builder.free(timer=spec.budget)  # like inside[0], but that the count starts
    inside = builder.watching(len(end), timer=CARRY)
    closing = builder.chain(end, then=outside[0])
    message = builder.chain(spec.message_token_ids, then=closing)
    if next(iter(spec.message_token_ids), end[0]) != end[0]:
        # Another token may come in place of the message's first, and be the end tag's.
        after_each = [*range(closing + 1, closing + len(end)), outside[0]]
        builder.edge(message, end[0], after_each[0])
    _match(builder, outside, start, found=opened)
    _match(builder, inside, end, found=outside[0])
    builder.edge(opened, end[0], inside[1] if len(end) > 1 else outside[0])
    builder.otherwise(opened, inside[0])
    builder.timeout(opened, message)
    builder.timeout(inside[0], message)
    for i in range(1, len(end)):  # half an end tag is out: go on with it
        builder.timeout(inside[i], closing + i)
    yield builder.build()


def _no_repeat_ngram(spec: NoRepeatNgramSpec) -> Iterable[Part]:
    yield spec


def _plugin(spec: PluginSpec) -> Iterable[Part]:
    part = resolve_plugin(spec.name, spec.params)
    if isinstance(part, Automaton):
        yield part
    else:
        yield PerRequest(lambda: resolve_plugin(spec.name, spec.params))


def _python(spec: PythonProcessorSpec) -> Iterable[Part]:
    yield PerRequest(spec.factory)


def _native(spec: GrammarSpec | SamplingSpec) -> NoReturn:
    grammar = isinstance(spec, GrammarSpec)
    fields = "response_format or structured_outputs" if grammar else "temperature, top_p, ..."
    raise SpecError(
        f"The engine does `{spec.kind}` by itself, and not from a payload: "
        f"use attach(), or the request's own fields ({fields})"
    )


COMPILERS: dict[type[LogitsProcessorSpec], Callable[[Any], Iterable[Part]]] = {
    AllowedTokensSpec: _allowed_tokens,
    BannedTokensSpec: _banned_tokens,
    ChoiceSpec: _choice,
    ForcedEndSpec: _forced_end,
    ForcedTokenSequenceSpec: _forced_sequence,
    GrammarSpec: _native,
    LogitBiasSpec: _logit_bias,
    MinTokensSpec: _min_tokens,
    NoRepeatNgramSpec: _no_repeat_ngram,
    PluginSpec: _plugin,
    PromptBiasSpec: _prompt_bias,
    PythonProcessorSpec: _python,
    SamplingSpec: _native,
    ThinkingBudgetSpec: _thinking_budget,
    TriggerSpec: _trigger,
}
