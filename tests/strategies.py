"""Hypothesis strategies for specs over a small vocabulary."""

from collections.abc import Collection, Sequence
from typing import Any

from hypothesis import strategies as st
from logitport.spec import (
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
    Payload,
    PluginSpec,
    PromptBiasSpec,
    SamplingSpec,
    SpecError,
    ThinkingBudgetSpec,
    TriggerSpec,
)
from logitport.spec.limits import MAX_COUNT, MAX_NGRAM_RULES

Spec = LogitsProcessorSpec
Specs = st.SearchStrategy[Spec]

LIST, SEQUENCE, COUNT = 6, 5, 12
"""The longest list of tokens or sequences, the longest sequence, the largest count."""

biases = st.floats(-100, 100)
# What JSON can say and msgspec gives back as it was.
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=4) | biases,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=4), values),
    max_leaves=6,
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
grammars: Specs = st.one_of(
    st.builds(
        lambda schema: GrammarSpec(json_schema=schema),
        st.dictionaries(st.text(max_size=4), json_values, max_size=3),
    ),
    st.builds(lambda text: GrammarSpec(regex=text), texts),
    st.builds(lambda text: GrammarSpec(ebnf=f"root ::= {text}"), texts),
    st.builds(
        lambda choices: GrammarSpec(choices=choices),
        st.lists(texts, min_size=1, max_size=3, unique=True).map(tuple),
    ),
)
penalties = st.floats(-2, 2)
samplings: Specs = (
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0, 2),
            "top_p": st.floats(0, 1, exclude_min=True),
            "top_k": st.integers(0, 100),
            "min_p": st.floats(0, 1),
            "presence_penalty": penalties,
            "frequency_penalty": penalties,
            "repetition_penalty": st.floats(0, 2, exclude_min=True),
        },
    )
    .filter(bool)
    .map(lambda fields: SamplingSpec(**fields))
)


def _strategies(vocab_size: int, most: int, longest: int, count: int) -> dict[type[Spec], Specs]:
    token = st.integers(0, vocab_size - 1)
    tokens = st.lists(token, min_size=1, max_size=most).map(tuple)
    maybe_tokens = st.lists(token, max_size=most).map(tuple)
    sequence = st.lists(token, min_size=1, max_size=longest).map(tuple)
    maybe_sequence = st.lists(token, max_size=longest).map(tuple)
    sequences = st.lists(sequence, min_size=1, max_size=most).map(tuple)
    choices = st.lists(sequence, min_size=1, max_size=most, unique=True).map(tuple)
    counts, positive, eos = st.integers(0, count), st.integers(1, count), st.none() | token
    tags = st.tuples(sequence, sequence).filter(lambda tags: tags[0] != tags[1])
    # n | window
    windows = st.integers(1, longest).flatmap(
        lambda n: st.tuples(st.just(n), st.none() | st.integers(n, min(n + count, MAX_COUNT)))
    )
    names = st.from_regex(r"\A[A-Za-z0-9_.-]{1,8}\Z")
    return {
        ForcedTokenSequenceSpec: st.builds(ForcedTokenSequenceSpec, sequence, eos),
        AllowedTokensSpec: st.builds(AllowedTokensSpec, tokens),
        BannedTokensSpec: st.builds(BannedTokensSpec, tokens),
        BannedSequencesSpec: st.builds(BannedSequencesSpec, sequences),
        LogitBiasSpec: st.builds(
            LogitBiasSpec, st.dictionaries(token, biases, min_size=1, max_size=most)
        ),
        MinTokensSpec: st.builds(MinTokensSpec, positive, tokens),
        ForcedEndSpec: st.builds(ForcedEndSpec, counts, sequence, eos),
        ThinkingBudgetSpec: st.builds(
            lambda budget, tags, message: ThinkingBudgetSpec(budget, tags[0], tags[1], message),
            counts,
            tags,
            maybe_sequence,
        ),
        ChoiceSpec: st.builds(ChoiceSpec, choices, token),
        TriggerSpec: st.builds(TriggerSpec, sequence, sequence, st.none() | st.integers(1, 3)),
        NoRepeatNgramSpec: st.builds(
            lambda window, allowed: NoRepeatNgramSpec(window[0], window[1], allowed),
            windows,
            maybe_tokens,
        ),
        PromptBiasSpec: st.builds(PromptBiasSpec, biases, maybe_tokens),
        GrammarSpec: grammars,
        SamplingSpec: samplings,
        PluginSpec: st.builds(
            PluginSpec, names, st.dictionaries(st.text(max_size=4), json_values, max_size=3)
        ),
    }


KINDS: tuple[type[Spec], ...] = tuple(_strategies(2, 1, 1, 1))
"""Every kind that can travel."""

REALIZED = tuple(kind for kind in KINDS if not issubclass(kind, PluginSpec | NativeSpec))
"""Those that the core realizes with nothing installed."""


def specs(
    vocab_size: int,
    *,
    kinds: Collection[type[Spec]] = REALIZED,
    most: int = LIST,
    longest: int = SEQUENCE,
    count: int = COUNT,
) -> Specs:
    """One valid spec of any of the kinds.

    Args:
        vocab_size: all token ids are below it; at least 2.
        kinds: what to draw from.
        most: the longest list of tokens, and of sequences.
        longest: the longest sequence to match or to force.
        count: the largest number of tokens to count to.
    """
    strategies = _strategies(vocab_size, most, longest, count)
    return st.one_of(*(strategies[kind] for kind in kinds))


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
    """Whether there are no more specs of a kind than one request may have."""
    return len({spec for spec in specs if isinstance(spec, NoRepeatNgramSpec)}) <= MAX_NGRAM_RULES
