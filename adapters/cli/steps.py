"""The steps of a finished reply: the edits of each spec before each token."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ...spec import LogitsProcessorSpec, NativeSpec, SpecError
from ..conformance.kinds.base import Add, Allow, Edit, Force, Several, flat
from ..conformance.reference import DECISIVE, edit, permits
from ..core import Automaton, compile_specs
from .reply import ASK, Reply


class Step(NamedTuple):
    """One token of a reply.

    Attributes:
        index: the index in the output.
        token_id: the token.
        rule: the strongest edit: forced, allowed, banned, added or free.
        acting: what each spec did that acted, by its path.
        obeyed: whether the token obeys the specs.
        broken: the paths of the specs that the token breaks.
        logprob: the token's log probability, if the answer has it.
    """

    index: int
    token_id: int
    rule: str
    acting: dict[str, str]
    obeyed: bool
    broken: list[str]
    logprob: float | None

    @property
    def why(self) -> str:
        """The acting specs and the broken ones, in words."""
        parts = [f"{path} {what}" for path, what in self.acting.items()] or ["free"]
        return "; ".join(parts) + (f"; breaks {' and '.join(self.broken)}" if self.broken else "")


def steps_of(
    specs: Mapping[str, LogitsProcessorSpec], reply: Reply, notes: list[str]
) -> list[Step]:
    """Replay a reply, and note the specs that cannot be replayed.

    Args:
        specs: the specs by their paths.
        reply: the reply.
        notes: gets a line for each spec that an engine or code of the server realizes.

    Raises:
        ValueError: if a spec reads the prompt, and the reply has none.
    """
    ways: dict[str, Iterator[Edit]] = {}
    for path, spec in specs.items():
        why = "the engine realizes it"
        try:
            program = None if isinstance(spec, NativeSpec) else compile_specs((spec,))
        except SpecError as error:
            program, why = None, str(error)
        if program is None or program.per_request:
            notes.append(
                f"{path} `{spec.kind}` is not replayed: {why if program is None else 'it is code'}"
            )
            continue
        if program.reads_prompt and reply.prompt_ids is None:
            raise ValueError(f"{path} `{spec.kind}` reads the prompt: no token ids of it. {ASK}")
        prompt, output = tuple(reply.prompt_ids or ()), tuple(reply.output_ids)
        parts = [_along(automaton, prompt, output) for automaton in program.automata]
        parts += [
            (edit(rule, prompt, output[:i]) for i in range(len(output)))
            for rule in (*program.ngrams, *program.prompt_biases)
        ]
        ways[path] = (Several(tuple(flat(edits))) for edits in zip(*parts, strict=True))
    steps: list[Step] = []
    for i, token in enumerate(reply.output_ids):
        edits = {path: next(way) for path, way in ways.items()}
        logprob = reply.logprobs[i] if reply.logprobs else None
        steps.append(_step(i, token, edits, logprob))
    return steps


def _along(automaton: Automaton, prompt: Sequence[int], output: Sequence[int]) -> Iterator[Edit]:
    """Yield the automaton's edit before each output token."""
    edits: dict[int, Edit] = {}
    for state in automaton.states_along(prompt, output):
        if state not in edits:
            edits[state] = _edit(automaton, state)
        yield edits[state]


def _edit(automaton: Automaton, state: int) -> Edit:
    name, operand = automaton.edit[state], int(automaton.operand[state])
    if name == 0:
        return None
    if name == 1:
        return Force(operand)
    end = int(automaton.set_ends[operand])
    part = slice(end - int(automaton.set_sizes[operand]), end)
    tokens = automaton.set_tokens[part].tolist()
    if name == 2:
        return Allow(frozenset(tokens))
    return Add(dict(zip(tokens, automaton.set_values[part].tolist(), strict=True)))


def _step(index: int, token: int, edits: Mapping[str, Edit], logprob: float | None) -> Step:
    said = {path: words for path, each in edits.items() if (words := _words(each, token))}
    rules = {words.split()[0] for words in said.values()}
    order = ("forced", "allowed", "banned", "added")
    rule = next((each for each in order if each in rules), "free")
    every = flat(edits.values())
    obeyed = _permitted(every, token)
    forces = [path for path, each in edits.items() if _words(each, token).startswith("forced")]
    blamed = forces[:1] or [path for path, each in edits.items() if not permits(each, token)]
    broken = [] if obeyed else blamed
    return Step(index, token, rule, said, obeyed, broken, logprob)


def _words(acting: Edit, token: int) -> str:
    """Say what the edits of a spec did, with what they did to this token."""
    found: list[str] = []
    for each in flat([acting]):
        match each:
            case Force():
                found.append(f"forced {each.token}")
            case Allow():
                found.append(f"allowed {len(each.tokens)} token(s)")
            case Add():
                banned = sum(value <= -DECISIVE for value in each.values.values())
                if banned:
                    found.append(f"banned {banned} token(s)")
                if token in each.values:
                    found.append(f"added {each.values[token]:+g} to this token")
                elif others := len(each.values) - banned:
                    found.append(f"added to {others} other token(s)")
    order = ("forced", "allowed", "banned", "added")
    return ", ".join(sorted(found, key=lambda words: order.index(words.split()[0])))


def _permitted(edits: Sequence[Force | Allow | Add], token: int) -> bool:
    """Whether a token may follow all edits together.

    Biases add up. A forced token beats all else, and a token that is not allowed never comes; of
    the allowed tokens, one comes even if all of them are banned.
    """
    total: Counter[int] = Counter()
    for each in edits:
        if isinstance(each, Add):
            total.update(each.values)  # pyright: ignore
    others = [each for each in edits if not isinstance(each, Add)]
    together = Several((Add(total), *others))
    if permits(together, token):
        return True
    allows = [each.tokens for each in others if isinstance(each, Allow)]
    if not allows or any(isinstance(each, Force) for each in others):
        return False
    return token in allows[0] and not any(permits(together, each) for each in allows[0])
