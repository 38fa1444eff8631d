"""``automaton``: states, edges and a timer of one's own."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from ..base import (
    Bias,
    Count,
    LogitsProcessorSpec,
    Sizes,
    TokenFields,
    TokenId,
    TokenIds,
    check_fields,
)
from ..errors import Path, SpecError
from ..limits import MAX_STATES, MAX_TIMEOUTS
from ..suggestions import SpecMeta

STATE = 8
"""What a state counts, in token ids: it takes as long to check and to compile."""

_Index = Annotated[int, msgspec.Meta(ge=0, le=MAX_STATES - 1)]


class AutomatonEdge(msgspec.Struct, metaclass=SpecMeta, frozen=True, forbid_unknown_fields=True):
    """An edge: a token of ``token_set`` leads to ``state``.

    Args:
        token_set: an index in ``token_sets``.
        state: an index in ``states``.

    Raises:
        SpecError: if a field is out of bounds.
    """

    token_set: _Index
    state: _Index

    def __post_init__(self) -> None:
        check_fields(self)


_Edges = Annotated[tuple[AutomatonEdge, ...], msgspec.Meta(max_length=MAX_STATES)]


class AutomatonState(
    msgspec.Struct,
    metaclass=SpecMeta,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """One state: the edit of the next token, and what the token leads to.

    Args:
        force: the token that is chosen.
        allow: the token set that the token is chosen from, as an index in ``token_sets``.
        ban: the token set that it is not chosen from.
        add: the token set to whose logits ``bias`` is added. A state has one of these four at most.
        bias: the value for ``add``.
        edges: where tokens lead. If a token is in several edges, the first of them counts.
        default: the next state after a token without an edge; by default, this state itself.
        timer: entering this state sets the timer to so many tokens. By default the timer, if it
            has been set, runs down by one, as it does with every token.
        counts: false if the token that leads here leaves the timer as it is.
        timeout: the state that takes this one's place if the timer is 0 before a token is chosen.

    Raises:
        SpecError: if a field is out of bounds, or fields contradict each other.
    """

    force: TokenId | None = None
    allow: _Index | None = None
    ban: _Index | None = None
    add: _Index | None = None
    bias: Bias | None = None
    edges: _Edges = ()
    default: _Index | None = None
    timer: Count | None = None
    counts: bool = True
    timeout: _Index | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.force, self.allow, self.ban, self.add).count(None) < 3:
            raise SpecError("Expected at most one of force, allow, ban and add")
        if (self.add is None) != (self.bias is None):
            raise SpecError("Expected both add and bias, or neither")
        if self.timer is not None and not self.counts:
            raise SpecError("Expected no timer where `counts` is false", "timer")


_States = Annotated[tuple[AutomatonState, ...], msgspec.Meta(min_length=1, max_length=MAX_STATES)]
_Sets = Annotated[tuple[TokenIds, ...], msgspec.Meta(max_length=MAX_STATES)]


class AutomatonSpec(LogitsProcessorSpec, frozen=True, tag="automaton", omit_defaults=True):
    """An automaton that reads the output, as data.

    What is finite-state needs no plugin on the server: the automaton begins in state 0, edits the
    logits as its state says, and follows the chosen token to the next state. Only output tokens are
    read. One timer counts tokens for all states; it is not set at first.

    For example, a token of set 0 is followed by one of set 1 within three tokens, or 7 is forced::

        AutomatonSpec(
            (
                AutomatonState(edges=(AutomatonEdge(0, 1),)),
                AutomatonState(edges=(AutomatonEdge(1, 0),), default=2, timer=2),
                AutomatonState(edges=(AutomatonEdge(1, 0),), timeout=3),
                AutomatonState(force=7, default=0),
            ),
            token_sets=((4, 5), (6, 7)),
        )

    A token that a state forces must not be banned by another spec, and an automaton that forces one
    cannot stand beside a grammar. Otherwise it is compared with other specs as each kind is: as far
    as the tokens are determined.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> first = AutomatonState(edges=(AutomatonEdge(0, 1),))
        >>> spec = AutomatonSpec((first, AutomatonState(force=7, default=0)), token_sets=((4, 5),))
        >>> [edit(spec, (), output) for output in ((), (4,), (4, 7))]
        [None, Force(token=7), None]

    Args:
        states: 1 to ``MAX_STATES`` states.
        token_sets: up to ``MAX_STATES`` sets of token ids, each of at least one. The tokens of the
            sets, and those of the set of each edge, count towards ``MAX_TOKEN_IDS``; a state
            counts as 8.

    Raises:
        SpecError: if a field is out of bounds, an index leads nowhere, or more than
            ``MAX_TIMEOUTS`` states in a row may time out before a token is chosen.
    """

    states: _States
    token_sets: _Sets = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        # Lists without a call for each state: a payload may have thousands of states.
        edges = [edge for state in self.states for edge in state.edges]
        states = [edge.state for edge in edges]
        states += [state.default or 0 for state in self.states]
        states += [state.timeout or 0 for state in self.states]
        sets = [edge.token_set for edge in edges]
        used = [index for each in self.states for index in (each.allow, each.ban, each.add)]
        sets += [index for index in used if index is not None]
        if max(states) >= len(self.states) or max(sets, default=-1) >= len(self.token_sets):
            raise next(_out_of_range(self.states, len(self.token_sets)))
        _check_timeouts(self.states)

    def token_fields(self) -> TokenFields:
        for i, token_ids in enumerate(self.token_sets):
            yield ("token_sets", i, "*"), token_ids
        for i, state in enumerate(self.states):
            if state.force is not None:
                yield ("states", i, "force"), (state.force,)

    def sizes(self) -> Sizes:
        sizes = [*map(len, self.token_sets)]
        edges = [sizes[edge.token_set] for state in self.states for edge in state.edges]
        return Sizes(STATE * len(self.states) + sum(sizes) + sum(edges))

    @property
    def breaks_grammar(self) -> bool:
        return any(state.force is not None for state in self.states)

    @property
    def narrows(self) -> bool:
        return any(state.force is not None or state.allow is not None for state in self.states)


def _out_of_range(states: Sequence[AutomatonState], sets: int) -> Iterator[SpecError]:
    """Yield an error for each index that leads nowhere."""
    for i, state in enumerate(states):
        of_sets: dict[Path, int | None]
        of_sets = {("allow",): state.allow, ("ban",): state.ban, ("add",): state.add}
        of_states: dict[Path, int | None]
        of_states = {("default",): state.default, ("timeout",): state.timeout}
        for k, edge in enumerate(state.edges):
            of_sets["edges", k, "token_set"] = edge.token_set
            of_states["edges", k, "state"] = edge.state
        most = {"token sets": (sets, of_sets), "states": (len(states), of_states)}
        for what, (count, fields) in most.items():
            for path, index in fields.items():
                if index is not None and index >= count:
                    message = f"Expected an index of {count} {what}, got {index}"
                    yield SpecError(message, "states", i, *path)


def _check_timeouts(states: Sequence[AutomatonState]) -> None:
    """Refuse states that time out one after the other, more than a few times or in a circle."""
    following = {
        i: state.timeout
        for i, state in enumerate(states)
        if state.timeout is not None and not state.timer
    }
    for i in following:
        at: int | None = i
        for _ in range(MAX_TIMEOUTS + 1):
            at = following.get(at)
            if at is None:
                break
        else:
            what = f"Expected at most {MAX_TIMEOUTS} time-outs in a row"
            raise SpecError(what, "states", i, "timeout")
