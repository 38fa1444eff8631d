"""Contradictions among the specs of a request that do not depend on the model.

The checks compare claims and do not depend on kinds. Each takes the claims in the order of the
request, costs about as much as looking once at each of their token ids, and raises ``SpecError``.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, compress, count, islice, pairwise, repeat
from operator import lt
from typing import TypeVar

from .base import LogitsProcessorSpec
from .claims import NO_TOKEN, Allows, Bans, Claim, FollowsGrammar, Forces, Sets, Unknown
from .errors import Path, SpecError

Specs = Sequence[LogitsProcessorSpec]
Claims = Sequence[tuple[int, Claim]]
"""What the specs of a request claim, each with the index of its spec."""

C = TypeVar("C", bound=Claim)


def check_conflicts(specs: Specs) -> None:
    """Check that all specs can be obeyed at once, as far as it depends on them alone.

    Raises:
        SpecError: for a spec that contradicts another. The path (``$.specs[i]...``) leads to it,
            and the message names the other.
    """
    if len(specs) > 1:
        claims = [(i, claim) for i, spec in enumerate(specs) for claim in spec.claims()]
        check_one_at_a_time(claims)
        check_something_is_allowed(claims)
        check_forced_is_possible(claims)
        check_forced_avoids_sequences(claims)
        check_end_is_possible(claims)
        check_grammar_is_followed(claims, specs)
        check_settings_agree(claims)


def breaks_grammar(spec: LogitsProcessorSpec) -> bool:
    """Whether a spec forces tokens of the reply, which a grammar may not take.

    An engine ends a request whose next token its grammar does not take.
    """
    return any(isinstance(claim, Forces) and claim.in_reply for claim in spec.claims())


def narrows(spec: LogitsProcessorSpec) -> bool:
    """Whether a spec may leave no token that a grammar accepts after it."""
    return any(isinstance(claim, Forces | Allows | Unknown) for claim in spec.claims())


def check_one_at_a_time(claims: Claims) -> None:
    """Check that no two specs force the same output token. The later one is refused."""
    spans = [
        (i, range(each.first, each.first + min(map(len, each.choices))))
        for i, each in _of_type(Forces, claims)
        if each.in_reply and each.first is not None
    ]
    for k, (i, span) in enumerate(spans):
        for other, other_span in spans[:k]:
            both = max(span.start, other_span.start)
            if both < min(span.stop, other_span.stop):
                which = f"output token {both}" if both else "the first output token"
                raise SpecError(_conflict([other], f": both force {which}"), "specs", i)


def check_something_is_allowed(claims: Claims) -> None:
    """Check that the lists of allowed tokens share a token, and one that is not banned at first.

    The last list that leaves none is refused.
    """
    lists = _of_type(Allows, claims)
    if not lists:
        return
    left = set(lists[0][1].token_ids)
    for k, (i, each) in enumerate(lists[1:], start=1):
        left.intersection_update(each.token_ids)
        if not left:
            others = [other for other, _ in lists[:k]]
            raise SpecError(_conflict(others, ": no token is allowed by all"), "specs", i)
    banning: list[int] = []
    for i, each in _of_type(Bans, claims):
        before = len(left)
        left.difference_update(each.token_ids)
        if len(left) < before:
            banning.append(i)
    if not left:
        what = _conflict(banning, ": every allowed token is banned")
        raise SpecError(what, "specs", lists[-1][0])


def check_forced_is_possible(claims: Claims) -> None:
    """Check that no spec forces or offers a token that another one bans or does not allow."""
    forced = _of_type(Forces, claims)
    if not forced:
        return
    bans = (each.token_ids for _, each in _of_type(Bans, claims) if each.until is None)
    banned = set(chain.from_iterable(bans))
    lists = [each.token_ids for _, each in _of_type(Allows, claims)]
    allowed = set(lists[0]).intersection(*lists[1:]) | {NO_TOKEN} if lists else None
    if not banned and allowed is None:
        return
    for i, each in forced:
        token_ids = each.joined()
        if banned.isdisjoint(token_ids) and (allowed is None or allowed.issuperset(token_ids)):
            continue
        for k, token in enumerate(token_ids):
            if token in banned or (allowed is not None and token not in allowed):
                raise SpecError(_refusal(claims, token), "specs", i, *each.path_of(k))


def _refusal(claims: Claims, token: int) -> list[str | Path]:
    for i, each in claims:
        if isinstance(each, Allows) and token not in each.token_ids:
            return _conflict([i], f", which does not allow token {token}")
        if isinstance(each, Bans) and each.until is None and token in each.token_ids:
            return _conflict([i], f", which bans token {token}")
    raise AssertionError("unreachable: some spec refuses the token")


MAX_COMPARISONS = 512
"""The limit on comparisons of forced tokens with banned sequences, and on the indices compared.

Only pairs of tokens that begin a sequence are compared. Beyond this bound the forced tokens win.
"""


def check_forced_avoids_sequences(claims: Claims) -> None:
    """Check that no forced run of tokens contains a banned sequence of several tokens.

    The token that would complete the sequence is refused.
    """
    banned = [(i, each.sequences) for i, each in _of_type(Bans, claims) if each.sequences]
    forced = _of_type(Forces, claims) if banned else []
    if not forced:
        return
    pairs = {sequence[:2] for _, sequences in banned for sequence in sequences}
    found = (
        (i, each, token_ids, k)
        for i, each in forced
        for token_ids in (each.joined(),)
        for k in compress(count(), map(pairs.__contains__, pairwise(token_ids)))
    )
    places = [*islice(found, MAX_COMPARISONS)]
    pairs = {token_ids[k : k + 2] for _, _, token_ids, k in places}
    beginning_with: defaultdict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for sequence in chain.from_iterable(each for _, each in banned) if places else ():
        if sequence[:2] in pairs:
            beginning_with[sequence[:2]].append(sequence)
    left = MAX_COMPARISONS
    for i, each, token_ids, k in places:
        for sequence in beginning_with[token_ids[k : k + 2]]:
            left -= 1
            if left < 0:
                return
            end = k + len(sequence)
            if token_ids[k:end] == sequence:
                other = next(j for j, sequences in banned if sequence in sequences)
                what = _conflict([other], f", which bans {list(sequence)}")
                raise SpecError(what, "specs", i, *each.path_of(end - 1))


def check_end_is_possible(claims: Claims) -> None:
    """Check that no spec forces or offers a stop token before the end of its ban."""
    placed = [(i, each) for i, each in _of_type(Forces, claims) if each.first is not None]
    bans = _of_type(Bans, claims) if placed else []
    delays = sorted((each.until, i, each.token_ids) for i, each in bans if each.until is not None)
    held: dict[int, int] = {}  # how many tokens must be out
    for until, _, token_ids in delays:
        held.update(dict.fromkeys(token_ids, until))
    for i, each in placed if held else ():
        token_ids = each.joined(each.stop)
        if held.keys().isdisjoint(token_ids):
            continue
        early = [*map(lt, each.positions(), map(held.get, token_ids, repeat(0)))]
        if True in early:
            k = early.index(True)
            token, until = token_ids[k], held[token_ids[k]]
            other = next(i for n, i, banned in delays if n == until and token in banned)
            what = f", which bans token {token} before {until} tokens are out"
            raise SpecError(_conflict([other], what), "specs", i, *each.path_of(k))


def check_grammar_is_followed(claims: Claims, specs: Specs) -> None:
    """Check that there is one grammar at most, and no spec beside it that forces tokens."""
    grammars = [i for i, _ in _of_type(FollowsGrammar, claims)]
    if not grammars:
        return
    if len(grammars) > 1:
        first, second = grammars[:2]
        raise SpecError(_conflict([first], ": both are a grammar"), "specs", second)
    for i, spec in enumerate(specs):
        if breaks_grammar(spec):
            what = f", a grammar, which may not take the tokens that `{spec.kind}` forces"
            raise SpecError(_conflict(grammars, what), "specs", i)


def check_settings_agree(claims: Claims) -> None:
    """Check that no two specs set a parameter to different values. The later one is refused."""
    first_of: dict[str, tuple[int, float]] = {}
    for i, (name, value) in _of_type(Sets, claims):
        first, other = first_of.setdefault(name, (i, value))
        if other != value:
            what = _conflict([first], f", which sets {name} to {other}")
            raise SpecError(what, "specs", i, name)


def _of_type(kind: type[C], claims: Claims) -> list[tuple[int, C]]:
    return [(i, claim) for i, claim in claims if isinstance(claim, kind)]


def _conflict(others: Sequence[int], what: str) -> list[str | Path]:
    """Return the message of a conflict with other specs, whose paths move with the error."""
    first, *more = (("specs", i) for i in others)
    return ["Conflicts with ", first, *chain(*((" and ", each) for each in more)), what]
