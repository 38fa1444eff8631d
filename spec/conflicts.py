"""What the specs of one request cannot all mean, whatever the model says.

Each check takes the specs in the order of the request and costs about as much as looking once at
each of their token ids.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, compress, count, islice, pairwise, repeat
from operator import lt
from typing import TypeVar

from .allowed_tokens import AllowedTokensSpec
from .banned_sequences import BannedSequencesSpec
from .banned_tokens import BannedTokensSpec
from .base import LogitsProcessorSpec
from .choice import ChoiceSpec
from .errors import SpecError
from .forced_end import ForcedEndSpec
from .forced_sequence import ForcedTokenSequenceSpec
from .grammar import GrammarSpec
from .min_tokens import MinTokensSpec
from .sampling import SamplingSpec
from .thinking_budget import ThinkingBudgetSpec
from .trigger import TriggerSpec

Specs = Sequence[LogitsProcessorSpec]
S = TypeVar("S", bound=LogitsProcessorSpec)

PLACES = ForcedTokenSequenceSpec | ForcedEndSpec | ChoiceSpec
"""The kinds that force tokens, or offer them in a choice, at known places of the output."""

FORCES = PLACES | TriggerSpec | ThinkingBudgetSpec
"""The kinds that do it anywhere."""

BREAKS_GRAMMAR = PLACES | TriggerSpec
"""The kinds whose tokens a grammar does not know of. An engine ends a request whose next token the
grammar does not take.

A ``ThinkingBudgetSpec`` gets on with one: engines that know a model's thinking begin with the
grammar after it.
"""


def check_conflicts(specs: Specs) -> None:
    """Check that all specs can be obeyed at once, as far as it depends on them alone.

    Raises:
        SpecError: for a spec that contradicts another. The path (``$.specs[i]...``) leads to it,
            and the message names the other.
    """
    if len(specs) > 1:
        check_one_at_a_time(specs)
        check_something_is_allowed(specs)
        check_forced_is_possible(specs)
        check_forced_avoids_sequences(specs)
        check_end_is_possible(specs)
        check_grammar_is_followed(specs)
        check_sampling_agrees(specs)


def check_one_at_a_time(specs: Specs) -> None:
    """No two specs force the same output token.

    Raises:
        SpecError: at the later one.
    """
    spans = [(i, span) for i, spec in enumerate(specs) if (span := _forced_span(spec))]
    for k, (i, span) in enumerate(spans):
        for other, other_span in spans[:k]:
            both = max(span.start, other_span.start)
            if both < min(span.stop, other_span.stop):
                which = f"output token {both}" if both else "the first output token"
                raise SpecError(f"Conflicts with {_at(other)}: both force {which}", f"$.specs[{i}]")


def _forced_span(spec: LogitsProcessorSpec) -> range | None:
    """The output tokens that a spec decides for certain, EOS aside: that may end the reply."""
    match spec:
        case ForcedTokenSequenceSpec():
            return range(len(spec.token_ids))
        case ForcedEndSpec():
            return range(spec.after, spec.after + len(spec.token_ids))
        case ChoiceSpec():
            return range(min(map(len, spec.choices)))
        case _:
            return None


def check_something_is_allowed(specs: Specs) -> None:
    """The lists of allowed tokens have a token in common, and one that is not banned.

    Raises:
        SpecError: at the last list of those that leave none.
    """
    lists = _of_type(specs, AllowedTokensSpec)
    if not lists:
        return
    left = set(lists[0][1].token_ids)
    for k, (i, spec) in enumerate(lists[1:], start=1):
        left.intersection_update(spec.token_ids)
        if not left:
            others = _at(*(other for other, _ in lists[:k]))
            raise SpecError(f"Conflicts with {others}: no token is allowed by all", f"$.specs[{i}]")
    banning: list[int] = []
    for i, spec in enumerate(specs):
        before = len(left)
        # Stop tokens are banned at first, at least.
        left.difference_update(
            spec.stop_token_ids if isinstance(spec, MinTokensSpec) else _banned(spec)
        )
        if len(left) < before:
            banning.append(i)
    if not left:
        what = f"{_at(*banning)}: every allowed token is banned"
        raise SpecError(f"Conflicts with {what}", f"$.specs[{lists[-1][0]}]")


def check_forced_is_possible(specs: Specs) -> None:
    """No spec forces, or offers in a choice, a token that another one bans or does not allow.

    Raises:
        SpecError: at the exact token; for a choice, at the choice.
    """
    forcing = [(i, spec) for i, spec in enumerate(specs) if isinstance(spec, FORCES)]
    if not forcing:
        return
    banned = set(chain.from_iterable(map(_banned, specs)))
    lists = [spec.token_ids for _, spec in _of_type(specs, AllowedTokensSpec)]
    allowed = set(lists[0]).intersection(*lists[1:]) if lists else None
    if not banned and allowed is None:
        return
    for i, spec in forcing:
        for path, token_ids in _forced(spec):
            if banned.isdisjoint(token_ids) and (allowed is None or allowed.issuperset(token_ids)):
                continue
            for k, token in enumerate(token_ids):
                if token in banned or (allowed is not None and token not in allowed):
                    raise SpecError(_refusal(specs, token), _exact(i, spec, path, k))


def _refusal(specs: Specs, token: int) -> str:
    for i, spec in enumerate(specs):
        if isinstance(spec, AllowedTokensSpec) and token not in spec.token_ids:
            return f"Conflicts with {_at(i)}, which does not allow token {token}"
        if token in _banned(spec):
            return f"Conflicts with {_at(i)}, which bans token {token}"
    raise AssertionError("unreachable: some spec refuses the token")


def _banned(spec: LogitsProcessorSpec) -> Sequence[int]:
    """The tokens that a spec bans at every step."""
    match spec:
        case BannedTokensSpec():
            return spec.token_ids
        case BannedSequencesSpec():
            return [sequence[0] for sequence in spec.sequences if len(sequence) == 1]
        case _:
            return ()


def _forced(spec: LogitsProcessorSpec) -> Iterator[tuple[str, Sequence[int]]]:
    """The tokens that a spec may force: their path, ``*`` for one of them, and the tokens."""
    match spec:
        case ForcedTokenSequenceSpec() | ForcedEndSpec():
            yield from spec.token_fields()
        case ThinkingBudgetSpec():
            yield "$.end_token_ids[*]", spec.end_token_ids
            yield "$.message_token_ids[*]", spec.message_token_ids
        case TriggerSpec():
            yield "$.token_ids[*]", spec.token_ids
        case ChoiceSpec():
            yield "$.choices[*]", list(chain.from_iterable(spec.choices))
            yield "$.eos_token_id", (spec.eos_token_id,)
        case _:
            return


MAX_COMPARISONS = 512
"""How many places of forced tokens are compared with banned sequences, and how often in all.

Only places are where two tokens stand that begin a sequence. There is hardly one, unless somebody
means it to be; beyond this bound the forced tokens win unrefused.
"""


def check_forced_avoids_sequences(specs: Specs) -> None:
    """No run of tokens that a spec forces contains a banned sequence of several tokens.

    Raises:
        SpecError: at the token that would complete the sequence; for a choice, at the choice.
    """
    banned = _of_type(specs, BannedSequencesSpec)
    runs = [(i, *each) for i, spec in enumerate(specs) for each in _runs(spec)] if banned else []
    if not runs:
        return
    several = [each for _, spec in banned for each in spec.sequences if len(each) > 1]
    pairs = {sequence[:2] for sequence in several}
    found = (
        (i, path, token_ids, k)
        for i, path, token_ids in runs
        for k in compress(count(), map(pairs.__contains__, pairwise(token_ids)))
    )
    places = [*islice(found, MAX_COMPARISONS)]
    pairs = {token_ids[k : k + 2] for _, _, token_ids, k in places}
    beginning_with: defaultdict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for sequence in several if places else ():
        if sequence[:2] in pairs:
            beginning_with[sequence[:2]].append(sequence)
    left = MAX_COMPARISONS
    for i, path, token_ids, k in places:
        for sequence in beginning_with[token_ids[k : k + 2]]:
            left -= 1
            if left < 0:
                return
            end = k + len(sequence)
            if token_ids[k:end] == sequence:
                other = next(j for j, spec in banned if sequence in spec.sequences)
                is_choice = isinstance(specs[i], ChoiceSpec)
                at = str(token_ids[:k].count(_BETWEEN) if is_choice else end - 1)
                what = f"Conflicts with {_at(other)}, which bans {list(sequence)}"
                raise SpecError(what, f"$.specs[{i}]{path}".replace("*", at))


_BETWEEN = -1
"""Between two choices: no token, and so in no sequence."""


def _runs(spec: LogitsProcessorSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tokens that follow one another for certain where a spec forces them: their path, and they."""
    match spec:
        case ForcedTokenSequenceSpec() | ForcedEndSpec() | TriggerSpec():
            yield ".token_ids[*]", spec.token_ids
        case ChoiceSpec():
            each = chain.from_iterable(zip(spec.choices, repeat((_BETWEEN,))))
            yield ".choices[*]", tuple(chain.from_iterable(each))
        case ThinkingBudgetSpec():
            yield ".message_token_ids[*]", spec.message_token_ids
            yield ".end_token_ids[*]", spec.end_token_ids
        case _:
            return


def _exact(index: int, spec: LogitsProcessorSpec, path: str, k: int) -> str:
    """The path of token ``k`` of those that ``_forced`` has under ``path``."""
    if isinstance(spec, ChoiceSpec):
        k = bisect_right(list(accumulate(map(len, spec.choices))), k)
    return f"$.specs[{index}]" + path.removeprefix("$").replace("*", str(k))


def check_end_is_possible(specs: Specs) -> None:
    """No spec forces a stop token, or offers it in a choice, before ``min_tokens`` allows one.

    Raises:
        SpecError: at the exact token; for a choice, at the choice.
    """
    placing = [(i, spec) for i, spec in enumerate(specs) if isinstance(spec, PLACES)]
    minimums = sorted(_of_type(specs, MinTokensSpec), key=lambda each: each[1].n) if placing else []
    held: dict[int, int] = {}  # how many tokens must be out
    for _, minimum in minimums:
        held.update(dict.fromkeys(minimum.stop_token_ids, minimum.n))
    for i, spec in placing if held else ():
        if isinstance(spec, ChoiceSpec) and not _any_stops_early(spec, held):
            continue
        for path, which, start, token_ids in _placed(spec):
            if held.keys().isdisjoint(token_ids):
                continue
            for k, token in enumerate(token_ids):
                if start + k < (n := held.get(token, 0)):
                    holding = (j for j, m in minimums if m.n == n and token in m.stop_token_ids)
                    raise SpecError(
                        f"Conflicts with {_at(next(holding))}, which bans token {token} "
                        f"before {n} tokens are out",
                        f"$.specs[{i}]{path}".replace("*", str(k if which is None else which)),
                    )


def _any_stops_early(spec: ChoiceSpec, held: Mapping[int, int]) -> bool:
    """Whether any choice does. There may be thousands, so this calls nothing for each of them."""
    lengths = [*map(len, spec.choices)]
    least = map(held.get, chain.from_iterable(spec.choices), repeat(0))
    early = map(lt, chain.from_iterable(map(range, lengths)), least)
    return min(lengths) < held.get(spec.eos_token_id, 0) or any(early)


def _placed(
    spec: ForcedTokenSequenceSpec | ForcedEndSpec | ChoiceSpec,
) -> Iterator[tuple[str, int | None, int, Sequence[int]]]:
    """The tokens that a spec forces at known places.

    Yields:
        Their path; what ``*`` in it stands for, ``None`` for the index of a token; the output index
        of the first; the tokens.
    """
    if isinstance(spec, ChoiceSpec):
        for i, choice in enumerate(spec.choices):
            yield ".choices[*]", i, 0, (*choice, spec.eos_token_id)
        return
    start = spec.after if isinstance(spec, ForcedEndSpec) else 0
    yield ".token_ids[*]", None, start, spec.token_ids
    if spec.eos_token_id is not None:
        yield ".eos_token_id", None, start + len(spec.token_ids), (spec.eos_token_id,)


def check_grammar_is_followed(specs: Specs) -> None:
    """There is one grammar at most, and no spec beside it that forces tokens of its own.

    Raises:
        SpecError: at the second grammar, or at the spec that forces.
    """
    grammars = [i for i, _ in _of_type(specs, GrammarSpec)]
    if not grammars:
        return
    if len(grammars) > 1:
        first, second = grammars[:2]
        raise SpecError(f"Conflicts with {_at(first)}: both are a grammar", f"$.specs[{second}]")
    for i, spec in enumerate(specs):
        if isinstance(spec, BREAKS_GRAMMAR):
            what = f"a grammar, which may not take the tokens that `{spec.kind}` forces"
            raise SpecError(f"Conflicts with {_at(*grammars)}, {what}", f"$.specs[{i}]")


def check_sampling_agrees(specs: Specs) -> None:
    """No two specs set a sampling parameter to different values.

    Raises:
        SpecError: at the parameter of the later one.
    """
    first_of: dict[str, tuple[int, float]] = {}
    for i, spec in _of_type(specs, SamplingSpec):
        for name in spec.__struct_fields__:
            if (value := getattr(spec, name)) is None:
                continue
            first, other = first_of.setdefault(name, (i, value))
            if other != value:
                what = f"Conflicts with {_at(first)}, which sets {name} to {other}"
                raise SpecError(what, f"$.specs[{i}].{name}")


def _of_type(specs: Specs, kind: type[S]) -> list[tuple[int, S]]:
    return [(i, spec) for i, spec in enumerate(specs) if isinstance(spec, kind)]


def _at(*indices: int) -> str:
    return " and ".join(f"`$.specs[{i}]`" for i in indices)
