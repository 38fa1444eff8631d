"""Hypothesis strategies for specs over a small vocabulary, one for each kind."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters.core import compile_specs
from logitport.adapters.reference.kinds import REALIZED
from logitport.spec import LogitsProcessorSpec, Payload, SpecError
from logitport.spec.kinds.no_loop import MAX_REPEATS, repeats
from logitport.spec.kinds.phases import BESIDE
from logitport.spec.limits import (
    MAX_HISTORY_RULES,
    MAX_INT,
    MAX_LOOP_RULES,
    MAX_PHASES,
    MAX_PROMPT_RULES,
)

Spec = LogitsProcessorSpec
Specs = st.SearchStrategy[Any]
Tokens = tuple[int, ...]


class Draws:
    """Strategies for the parts of a spec.

    Args:
        vocab_size: the number of tokens, at least 2.
        most: the maximum length of a list of tokens or of sequences.
        longest: the maximum length of a sequence to match or to force.
        count: the maximum number of tokens to count to.
    """

    def __init__(self, vocab_size: int, most: int = 6, longest: int = 5, count: int = 12) -> None:
        self.longest, self.count = longest, count
        self.token = st.integers(0, vocab_size - 1)
        self.maybe_token = st.none() | self.token
        self.tokens = tuples(self.token, most)
        self.maybe_tokens = tuples(self.token, most, min_size=0)
        self.sequence = tuples(self.token, longest)
        self.maybe_sequence = tuples(self.token, longest, min_size=0)
        self.sequences = tuples(self.sequence, most)
        self.choices = tuples(self.sequence, most, unique=True)
        self.bias = st.floats(-100, 100)
        self.biases = st.dictionaries(self.token, self.bias, min_size=1, max_size=most)
        key = st.text(max_size=4)
        # JSON values that msgspec returns unchanged.
        self.json_value = st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | key | self.bias,
            lambda values: st.lists(values, max_size=3) | st.dictionaries(key, values),
            max_leaves=6,
        )
        self.json_object = st.dictionaries(key, self.json_value, max_size=3)


def tuples(each: Specs, max_size: int, min_size: int = 1, *, unique: bool = False) -> Specs:
    return st.lists(each, min_size=min_size, max_size=max_size, unique=unique).map(tuple)


def at_ends(draw: Draws) -> Specs:
    ends = tuples(draw.token, 3, unique=True)
    parts = st.tuples(draw.sequence, ends).filter(lambda parts: {*parts[0]}.isdisjoint(parts[1]))
    return st.builds(lambda both, t: s.AtEndSpec(*both, t), parts, st.floats(0, 100))


def automata(draw: Draws) -> Specs:
    def made(sets: tuple[Tokens, ...], states: list[dict[str, Any]]) -> s.AutomatonSpec:
        count = len(states)
        for each in states:
            for name in {"default", "timeout"} & each.keys():
                each[name] %= count
            each["edges"] = tuple(s.AutomatonEdge(of, to % count) for of, to in each["edges"])
        try:
            return s.AutomatonSpec(tuple(s.AutomatonState(**each) for each in states), sets)
        except SpecError:  # the time-outs go round in circles
            for each in states:
                each.pop("timeout", None)
            return s.AutomatonSpec(tuple(s.AutomatonState(**each) for each in states), sets)

    def states(sets: tuple[Tokens, ...]) -> Specs:
        free, index = st.just(dict[str, Any]()), st.integers(0, 3)
        edits = free | st.fixed_dictionaries({"force": draw.token})
        edges = st.just(())
        if sets:
            of_set = st.integers(0, len(sets) - 1)
            edits |= st.fixed_dictionaries({"allow": of_set})
            edits |= st.fixed_dictionaries({"ban": of_set})
            edits |= st.fixed_dictionaries({"add": of_set, "bias": draw.bias})
            edges = st.lists(st.tuples(of_set, index), max_size=3)
        timers = free | st.fixed_dictionaries({"timer": st.integers(0, draw.count)})
        timers |= st.just({"counts": False})
        others = {"default": index, "timeout": index}
        ways = st.fixed_dictionaries({"edges": edges}, optional=others)
        state = st.tuples(edits, timers, ways).map(lambda parts: parts[0] | parts[1] | parts[2])
        return st.builds(made, st.just(sets), st.lists(state, min_size=1, max_size=4))

    return tuples(draw.tokens, 3, min_size=0).flatmap(states)


def banned_texts(draw: Draws) -> Specs:
    """Texts of letters that equal others, or look like them."""
    letters = "abAkK\u212aßẞsée\u00e1\u0370"
    letter = st.sampled_from(letters)
    every = f"{letters}\u0301 \u2014"
    inner = st.text(every, max_size=4)
    words = st.builds(lambda a, b, c: a + b + c, letter, inner, letter) | letter
    texts = st.text(every, min_size=1, max_size=6).filter(lambda text: text.strip("\u0301"))
    flag = st.booleans()
    return st.builds(s.BannedTextSpec, tuples(texts, 4), flag, st.just(False), flag) | st.builds(
        s.BannedTextSpec, tuples(words, 4), flag, st.just(True), flag
    )


def scripts(kind: type[Spec], draw: Draws) -> Specs:
    names = ("Latin", "Greek", "Cyrillic", "Han", "Hiragana", "Linear_B", "Thai")
    return st.builds(kind, tuples(st.sampled_from(names), 4))


def choices(draw: Draws) -> Specs:
    def made(choices: tuple[Tokens, ...], eos_token_id: int | None) -> s.ChoiceSpec:
        if eos_token_id is None:  # no choice may begin another
            choices = tuple(a for a in choices if not any(a != b == a[: len(b)] for b in choices))
        return s.ChoiceSpec(choices, eos_token_id)

    return st.builds(made, draw.choices, draw.maybe_token)


def dry(draw: Draws) -> Specs:
    return st.builds(
        s.DrySpec,
        st.floats(0.01, 3),
        st.floats(1, 3),
        st.integers(1, draw.longest),
        st.none() | st.integers(1, min(draw.count, MAX_INT)),
        draw.maybe_tokens,
    )


def grammars(draw: Draws) -> Specs:
    characters = st.characters(codec="utf-8", exclude_characters="\0")
    text = st.text(characters, min_size=1, max_size=6)
    tag = draw.json_object.map(lambda each: {"type": "structural_tag", "format": each})
    return st.one_of(
        st.builds(s.GrammarSpec, json_schema=draw.json_object),
        st.builds(s.GrammarSpec, regex=text),
        st.builds(s.GrammarSpec, ebnf=text.map(lambda text: f"root ::= {text}")),
        st.builds(s.GrammarSpec, choices=tuples(text, 3, unique=True)),
        st.builds(s.GrammarSpec, structural_tag=tag),
    )


def max_runs(draw: Draws) -> Specs:
    texts = (" ", "\n"), ("a",), ("ha", "b"), ("\u3000", " "), ("é", "e", "è"), ("ab", "ac")
    of_texts = st.builds(s.MaxRunSpec, st.integers(1, 5), st.sampled_from(texts))
    return of_texts | st.builds(s.MaxRunSpec, st.integers(1, 64))


def no_loops(draw: Draws) -> Specs:
    period = st.integers(1, min(draw.longest, 5))
    return st.builds(
        lambda times, periods, least, then, tags, output_only: s.NoLoopSpec(
            times,
            max(periods),
            min(periods),
            least,
            then,
            tags[0] if tags else (),
            tags[1] if tags else (),
            tags[2:3],
            tags[3:],
            output_only,
        ),
        st.integers(2, 4),
        st.tuples(period, period),
        st.just(0) | st.integers(0, min(draw.count, 20)),
        draw.maybe_sequence.filter(lambda then: repeats(then) <= MAX_REPEATS),
        st.just(()) | tuples(draw.sequence, 4, min_size=2, unique=True),
        st.booleans(),
    )


def ngrams(draw: Draws) -> Specs:
    def of(n: int) -> Specs:
        window = st.none() | st.integers(n, min(n + draw.count, MAX_INT))
        return st.builds(s.NoRepeatNgramSpec, st.just(n), window, draw.maybe_tokens, st.booleans())

    return st.integers(1, draw.longest).flatmap(of)


def sampling_specs(draw: Draws) -> Specs:
    fields = {
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.integers(0, 100),
        "min_p": st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0, 2, exclude_min=True),
    }
    some = st.fixed_dictionaries({}, optional=fields).filter(bool)
    return some.map(lambda fields: s.SamplingSpec(**fields))


def sequence_biases(draw: Draws) -> Specs:
    eighths = st.integers(-800, 800).map(lambda n: n / 8)  # whose sums are exact
    return st.builds(
        lambda sequences, biases: s.SequenceBiasSpec(sequences, biases[: len(sequences)]),
        draw.choices,
        tuples(eighths, 99, min_size=99),
    )


def thinking_budgets(draw: Draws) -> Specs:
    return st.builds(
        lambda budget, tags, starts, message, then, least, grace, newlines, stop: (
            s.ThinkingBudgetSpec(
                budget,
                tags[0],
                tags[1],
                message,
                other_start_token_ids=tags[2:starts],
                other_end_token_ids=tags[max(starts, 2) :],
                then_token_ids=then,
                min_tokens=min(least, budget),
                grace=grace if newlines else 0,
                newline_token_ids=newlines if grace else (),
                stop_token_ids=tuple(token for token in stop if (token,) not in tags),
            )
        ),
        st.integers(0, draw.count),
        tuples(draw.sequence, 5, min_size=2, unique=True),
        st.integers(2, 5),
        draw.maybe_sequence,
        draw.maybe_sequence,
        st.just(0) | st.integers(0, draw.count),
        st.integers(0, draw.count),
        draw.maybe_tokens,
        draw.maybe_tokens,
    )


def any_phases(draw: Draws) -> Specs:
    """Any valid spec, also of those that the core refuses."""
    within = [kind for kind in REALIZED if not issubclass(kind, (*BESIDE, s.PhasesSpec))]
    any_spec = st.one_of(*(STRATEGIES[kind](draw) for kind in within))
    ends = st.one_of(
        st.builds(lambda n: {"n": n}, st.integers(1, draw.count)),
        st.builds(lambda token_ids: {"token_ids": token_ids}, draw.sequence),
        st.just({"complete": True}),
    )
    parts = st.tuples(
        st.lists(any_spec, max_size=2),
        st.lists(st.tuples(ends, st.none() | st.integers(0, 3)), min_size=1, max_size=3),
    )

    def made(phases: list[Any], last_ends: bool, after: int | None, stops: Tokens) -> s.PhasesSpec:
        found: list[s.Phase] = []
        for specs, drawn in phases:
            kept = tuple(each for each in specs if not isinstance(each, s.AtEndSpec))
            try:  # specs that contradict each other stay out
                s.PhasesSpec((s.Phase(kept),))
            except SpecError:
                kept = kept[:1]
            is_awaited = any(spec.can_complete for spec in kept)
            ends = [
                s.PhaseEnd(**end, phase=None if to is None else min(to, len(phases)))
                for end, to in drawn
                if is_awaited or "complete" not in end
            ]
            found.append(s.Phase(kept, tuple(ends) or (s.PhaseEnd(n=2),)))
        if not last_ends:
            last = [each for each in phases[-1][0] if isinstance(each, s.AtEndSpec)]
            found[-1] = s.Phase((*found[-1].specs, *last[:1]))
        eos = after if after is not None and after >= 0 else None
        count = sum(len(phase.specs) + 1 for phase in found)
        tokens = {token for phase in found for end in phase.ends for token in end.token_ids}
        stops = tuple(token for token in stops if token not in tokens)
        stops = stops if count <= MAX_PHASES else ()
        return s.PhasesSpec(tuple(found), eos, after == -1, stops)

    after = st.none() | st.just(-1) | draw.token
    every = st.lists(parts, min_size=1, max_size=3)
    return st.builds(made, every, st.booleans(), after, st.just(()) | draw.maybe_tokens)


def compiles(spec: Spec) -> bool:
    try:
        compile_specs((spec,))
    except SpecError:
        return False
    return True


_STRATEGIES: dict[type[Spec], Callable[[Draws], Specs]] = {
    s.ForcedTokenSequenceSpec: lambda draw: st.builds(
        s.ForcedTokenSequenceSpec, draw.sequence, draw.maybe_token
    ),
    s.AllowedTokensSpec: lambda draw: st.builds(s.AllowedTokensSpec, draw.tokens),
    s.BannedTokensSpec: lambda draw: st.builds(s.BannedTokensSpec, draw.tokens),
    s.BannedSequencesSpec: lambda draw: st.builds(s.BannedSequencesSpec, draw.sequences),
    s.BannedTextSpec: banned_texts,
    s.MaxRunSpec: max_runs,
    s.BannedScriptsSpec: partial(scripts, s.BannedScriptsSpec),
    s.AllowedScriptsSpec: partial(scripts, s.AllowedScriptsSpec),
    s.LogitBiasSpec: lambda draw: st.builds(s.LogitBiasSpec, draw.biases),
    s.SequenceBiasSpec: sequence_biases,
    s.MinTokensSpec: lambda draw: st.builds(
        s.MinTokensSpec, st.integers(1, draw.count), draw.tokens
    ),
    s.ForcedEndSpec: lambda draw: st.builds(
        s.ForcedEndSpec, st.integers(0, draw.count), draw.sequence, draw.maybe_token
    ),
    s.AtEndSpec: at_ends,
    s.ThinkingBudgetSpec: thinking_budgets,
    s.ChoiceSpec: choices,
    s.TriggerSpec: lambda draw: st.builds(
        s.TriggerSpec, draw.sequence, draw.sequence, st.none() | st.integers(1, 3)
    ),
    s.PhasesSpec: lambda draw: any_phases(draw).filter(compiles),
    s.AutomatonSpec: automata,
    s.NoRepeatNgramSpec: ngrams,
    s.DrySpec: dry,
    s.NoLoopSpec: no_loops,
    s.PromptBiasSpec: lambda draw: st.builds(s.PromptBiasSpec, draw.bias, draw.maybe_tokens),
    s.GrammarSpec: grammars,
    s.SamplingSpec: sampling_specs,
    s.PluginSpec: lambda draw: st.builds(
        s.PluginSpec, st.from_regex(r"\A[A-Za-z0-9_.-]{1,8}\Z"), draw.json_object
    ),
    s.ChainSpec: lambda draw: chains(),
    s.WatermarkSpec: lambda draw: st.builds(
        s.WatermarkSpec, st.from_regex(r"\A[A-Za-z0-9_.-]{1,8}\Z")
    ),
}


class _ByKind(dict[type[Spec], Callable[[Draws], Specs]]):
    def __missing__(self, kind: type[Spec]) -> Callable[[Draws], Specs]:
        raise LookupError(f"tests/support/strategies.py needs a strategy for {kind.__name__}")


STRATEGIES = _ByKind(_STRATEGIES)


@st.composite
def chains(draw: st.DrawFn) -> s.ChainSpec:
    """Any steps, of which xtc comes last, but for a temperature."""
    share, number = st.floats(0, 1, exclude_min=True), st.floats(0, 1000, exclude_min=True)
    values: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("top_p", "min_p", "top_a", "typical", "epsilon", "eta", "top_h"), share),
        **{"top_n_sigma": number, "min_k": number, "p_less": st.just(True)},
        **{"temperature": st.floats(0.01, 100), "top_k": st.integers(1, s.limits.MAX_INT)},
        "smoothing": st.builds(s.Smoothing, number, st.floats(1, 3)),
    }
    names = draw(st.lists(st.sampled_from([*values]), max_size=4, unique=True))
    if not names or draw(st.booleans()):
        last = {"temperature"} & {*names[-1:]}
        names.insert(len(names) - len(last), "xtc")
        values["xtc"] = st.builds(s.Xtc, st.floats(0, 0.5, exclude_min=True), share)
    return s.ChainSpec(tuple(s.ChainStep(**{name: draw(values[name])}) for name in names))


def specs(vocab_size: int, *, kinds: Collection[type[Spec]] = REALIZED, **sizes: int) -> Specs:
    """One valid spec of any of ``kinds``; ``sizes`` as for ``Draws``."""
    draw = Draws(vocab_size, **sizes)
    return st.one_of(*(STRATEGIES[kind](draw) for kind in kinds))


@st.composite
def payload_specs(
    draw: st.DrawFn, vocab_size: int, max_size: int = 4, **sizes: Any
) -> tuple[Spec, ...]:
    """1 to ``max_size`` specs that a payload takes together; ``sizes`` as for ``specs``."""
    kept: tuple[Spec, ...] = ()
    for spec in draw(st.lists(specs(vocab_size, **sizes), min_size=1, max_size=max_size)):
        try:
            Payload(1, (*kept, spec))  # pyright: ignore[reportArgumentType]
        except SpecError:
            continue  # contradicts one that is there already; the first never does
        if within_limits((*kept, spec)):
            kept = (*kept, spec)
    return kept


def within_limits(specs: Sequence[Spec]) -> bool:
    """Whether there are no more specs of a kind than one request may have, in phases too."""
    phases = [spec for spec in specs if isinstance(spec, s.PhasesSpec)]
    inner = [each for spec in phases for _, each in spec.inner_specs()]
    # Of equal rules outside of phases, one acts.
    rules, every = [*dict.fromkeys(specs), *inner], [*specs, *inner]
    loops = [spec for spec in rules if isinstance(spec, s.NoLoopSpec)]
    dry = sum(isinstance(spec, s.DrySpec) for spec in every)
    at_ends = sum(isinstance(spec, s.AtEndSpec) for spec in every)
    of_history = dry + sum(isinstance(spec, s.NoRepeatNgramSpec) for spec in rules)
    readers = sum(isinstance(spec, s.PromptBiasSpec | s.ThinkingBudgetSpec) for spec in every)
    readers += sum(bool(spec.start_token_ids) for spec in loops)
    rules_fit = (
        max(dry, at_ends) <= 1 and of_history <= MAX_HISTORY_RULES and len(loops) <= MAX_LOOP_RULES
    )
    return rules_fit and readers <= MAX_PROMPT_RULES


samplings = specs(2, kinds=[s.SamplingSpec])
