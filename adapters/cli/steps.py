"""The steps of a finished reply: the edits of each spec before each token."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice

from ...spec import (
    AtEndSpec,
    LogitsProcessorSpec,
    NativeSpec,
    PhasesSpec,
    PluginSpec,
    PromptBiasSpec,
    SpecError,
)
from ...spec.errors import Name, path_text
from ..core import Automaton, Program, VocabularyOf, check_continued, compile_specs
from ..core.automaton.automata import along
from ..core.kinds.phases import reachable
from ..core.parts import Chain, Grammar, LoopRule, Mark, PerRequest
from ..reference import DECISIVE, edit, permits
from ..reference.automata import edit_of
from ..reference.kinds.base import Add, Allow, Force, Move, flat
from .reply import ASK, Reply, Step
from .texts import IdsOf

_Edits = list[Force | Allow | Add | Move]
"""The edits of one spec before a token."""
Tokens = tuple[int, ...]
At = tuple[Sequence[int], Sequence[int]]
"""What ``along`` yields: the states of a program's automata, and ``since``."""


@dataclass(frozen=True)
class Replay:
    """A replayed reply.

    Attributes:
        specs: the specs by their paths.
        steps: the steps, one for each token.
        notes: a line for each spec that is not replayed: what is missing, and what to do.
        unreached: the paths of the phases, and of texts at the end, that the reply has not come to.
    """

    specs: Mapping[str, LogitsProcessorSpec]
    steps: list[Step]
    notes: list[str]
    unreached: Sequence[str] = ()

    @property
    def broken(self) -> list[Step]:
        """The steps whose tokens break a spec."""
        return [step for step in self.steps if not step.obeyed]

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 1 if self.broken or self.unreached else 2 if self.notes else 0

    @property
    def verdict(self) -> str:
        """What is to say of all tokens together."""
        if self.broken:
            first = self.broken[0].index
            return f"{len(self.broken)} token(s) break a spec, the first at index {first}."
        if self.unreached:
            return f"No token breaks a spec, but the reply ended before {', '.join(self.unreached)}"
        if not self.notes:
            return "All tokens obey the specs."
        left = len(self.specs) - len(self.notes)
        others = f"all tokens obey the other {left}" if left else "none is checked"
        return f"{len(self.notes)} of {len(self.specs)} spec(s) are not replayed; {others}."


def trace(
    specs: Mapping[str, LogitsProcessorSpec],
    reply: Reply,
    vocabulary: VocabularyOf | None = None,
    ids_of: IdsOf = lambda text: (),
    continued: int = 0,
) -> Replay:
    """Replay a reply, and note the specs that cannot be replayed.

    Args:
        specs: the specs by their paths.
        reply: the reply.
        vocabulary: as for ``compile_specs``.
        ids_of: the token ids of a text, to find which spec refused a likelier token.
        continued: as in ``Payload``.

    Raises:
        ValueError: if a spec reads the prompt, and the reply has none.
        SpecError: as ``check_continued`` does.
    """
    notes: list[str] = []
    unreached: list[str] = []
    ways: dict[str, Iterator[_Edits]] = {}
    for path, spec in specs.items():
        program, why = None, f"the engine realizes it. {LEAVE_OUT}"
        try:
            program = None if isinstance(spec, NativeSpec) else compile_specs((spec,), vocabulary)
        except SpecError as error:
            within = error.location[2:]  # of the one spec
            error = SpecError(error.parts, *((Name(path), *within) if within else ()))
            why = f"{error}. {_advice(spec, vocabulary)}"
        for part, *_ in () if program is None else program.parts:
            if unknown := UNKNOWN.get(type(part)):
                program, why = None, f"{unknown}. {LEAVE_OUT}"
        if program is None:
            notes.append(f"{path} `{spec.kind}` is not replayed: {why}")
            continue
        if (program.reads_prompt or continued) and reply.prompt_ids is None:
            raise ValueError(f"{path} `{spec.kind}` reads the prompt: no token ids of it. {ASK}")
        prompt, output = tuple(reply.prompt_ids or ()), tuple(reply.output_ids)
        check_continued(continued, len(prompt))
        seam = len(prompt) - continued
        prompt, output = prompt[:seam], (*prompt[seam:], *output)
        known = vocabulary() if spec.needs_vocabulary and vocabulary is not None else None
        size = 0 if known is None else known.size
        states = [*along(program.lanes, program.since, prompt, (*output, 0))]
        if isinstance(spec, PhasesSpec):
            indices = [*reachable(spec), len(spec.phases)]
            acted = {number for _, since in states for number, at in enumerate(since) if at >= 0}
            furthest = max(indices[number - 1] for number in acted if number)
            unreached += [f"{path}.phases[{i}]" for i in range(furthest + 1, len(spec.phases))]
        for automaton, state in zip(program.automata, states[-1][0], strict=True):
            if automaton.moves and 0 <= state < automaton.states - 1:
                unreached += _texts_at_end(path, spec)
        every = _along(program, states[:-1], prompt, output, size)
        ways[path] = islice(every, continued, None)
    steps: list[Step] = []
    for i, token in enumerate(reply.output_ids):
        edits = {path: next(way) for path, way in ways.items()}
        logprob = reply.logprobs[i] if reply.logprobs else None
        likeliest = reply.likeliest[i] if reply.likeliest else ()
        step = _step(i, token, edits, logprob, likeliest)
        steps.append(replace(step, displaced=_displaced(step, edits, ids_of)))
    return Replay(specs, steps, notes, unreached)


LEAVE_OUT = "To replay the other specs alone, leave it out of the file"
UNKNOWN: Mapping[type, str] = {
    Grammar: "it has a grammar, whose text is not read here",
    Chain: "what it leaves is a matter of probabilities",
    Mark: "its tokens are drawn with a key",
    PerRequest: "it is code, which the engine runs",
}
"""Parts without edits that the reply's tokens alone decide."""


def _texts_at_end(path: str, spec: LogitsProcessorSpec) -> Iterator[str]:
    """Yield the paths of the texts at the end of a spec."""
    within = spec.inner_specs() if isinstance(spec, PhasesSpec) else [((), spec)]
    for below, each in within:
        if isinstance(each, AtEndSpec):
            yield f"{path}{path_text((*below, 'token_ids'))[1:]}"


def _advice(spec: LogitsProcessorSpec, vocabulary: VocabularyOf | None) -> str:
    """Say what to do about a spec that cannot be compiled here."""
    if spec.needs_vocabulary and (vocabulary is None or vocabulary() is None):
        return "Use --tokenizer to name the served model"
    if isinstance(spec, PluginSpec):
        return "Replay it where the plugin's package is installed"
    return LEAVE_OUT


def _along(
    program: Program, states: Sequence[At], prompt: Tokens, output: Tokens, vocab_size: int
) -> Iterator[_Edits]:
    """Yield the program's edits before each output token, where its automata are in ``states``."""
    of_loops = [rule.forcing for rule in program.loops]  # the rules themselves are replayed
    shown = [k for k, each in enumerate(program.automata) if each not in of_loops]
    of_state = cache(lambda k, state: flat([edit_of(program.automata[k], state, vocab_size)]))
    rules = [
        (part.spec if isinstance(part, LoopRule) else part, phase)
        for part, phase, *_ in program.parts
        if not isinstance(part, Automaton | PerRequest | Chain | Grammar | Mark)
    ]
    seam = len(prompt)
    for i, (at, since) in enumerate(states):
        edits = [of_state(k, at[k]) for k in shown if at[k] >= 0]
        for rule, phase in rules:
            if (begun := since[phase]) >= 0:
                of_phase = prompt if begun == 0 or isinstance(rule, PromptBiasSpec) else ()
                edits.append(flat([edit(rule, of_phase, output[max(begun - seam, 0) : i])]))
        yield [*chain(*edits)]


RULES = ("forced", "allowed", "banned", "added", "moved")
"""The rules, the strongest first."""


def _step(
    index: int,
    token: int,
    edits: Mapping[str, _Edits],
    logprob: float | None,
    likeliest: Sequence[tuple[str, float]],
) -> Step:
    acting = {path: words for path, each in edits.items() if (words := _words(each, token))}
    rules = {words.split()[0] for words in acting.values()}
    rule = next((each for each in RULES if each in rules), "free")
    obeyed, broken = permits([*chain(*edits.values())], token), list[str]()
    if obeyed:
        broken = _overridden(*_in_place_of(edits, token))
        obeyed = not broken
    else:
        forcing = [path for path, words in acting.items() if words.startswith("forced")]
        each_alone = (path for path, each in edits.items() if not permits(each, token))
        broken = forcing[:1] or [*each_alone] or [*acting]
    return Step(index, token, rule, acting, obeyed, broken, logprob, likeliest)


def _displaced(step: Step, edits: Mapping[str, _Edits], ids_of: IdsOf) -> dict[str, str]:
    """Find the likeliest token that each spec refuses, if the token that came obeys the specs.

    Several tokens may have one text, for example a part of a character: all have to be refused.
    """
    found: dict[str, str] = {}
    for text, _ in step.likelier if step.obeyed else ():
        ids = ids_of(text)
        for path, each in edits.items():
            if ids and all(_refused(each, token) for token in ids):
                found.setdefault(path, text)
    return found


def _words(edits: _Edits, token: int) -> str:
    """Say what the edits of a spec did, with what they did to this token."""
    found: list[str] = []
    for each in edits:
        match each:
            case Force():
                found.append(f"forced {each.token}")
            case Move():
                found.append(f"moved {len(each.ends)} end token(s) to {each.first}")
            case Allow():
                found.append(f"allowed {len(each.tokens)} token(s)")
            case Add():
                if each.banned:
                    found.append(f"banned {each.banned} token(s)")
                if each.values.get(token, -DECISIVE) > -DECISIVE:
                    found.append(f"added {each.values[token]:+g} to this token")
                elif others := len(each.values) - each.banned:
                    found.append(f"added to {others} other token(s)")
    return ", ".join(sorted(found, key=lambda words: RULES.index(words.split()[0])))


def _in_place_of(edits: Mapping[str, _Edits], token: int) -> tuple[Mapping[str, _Edits], int]:
    """Return the end in whose place a token has come, and the edits but those that moved it."""
    for each in chain(*edits.values()):
        if isinstance(each, Move) and token == each.first:
            edits = {path: [e for e in of if e is not each] for path, of in edits.items()}
            return edits, next(end for end in each.ends if permits([*chain(*edits.values())], end))
    return edits, token


def _overridden(edits: Mapping[str, _Edits], token: int) -> list[str]:
    """List the specs that refuse a token which comes because another spec forces or offers it."""
    if not _refused([*chain(*edits.values())], token):
        return []
    return [
        path for path, each in edits.items() if _refused(each, token) and not permits(each, token)
    ]


def _refused(edits: _Edits, token: int) -> bool:
    """Whether another forced token, a list of allowed tokens or a sum of biases excludes one."""
    if any(isinstance(each, Force) and each.token != token for each in edits):
        return True
    if any(isinstance(each, Move) and token in each.ends for each in edits):
        return True
    bias = sum(each.values.get(token, 0) for each in edits if isinstance(each, Add))
    allows = (each.tokens for each in edits if isinstance(each, Allow))
    return bias <= -DECISIVE or any(token not in tokens for tokens in allows)
