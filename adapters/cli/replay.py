"""``logitport replay``: which spec acted on each token of a finished reply."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated

import typer

from .failures import failing_plainly
from .printing import say
from .reply import Step, chance, read_reply
from .source import read_specs
from .texts import ids_of, quoted, texts_of, token, vocabulary_of


@failing_plainly
def replay(
    file: Annotated[
        str, typer.Argument(help="A spec file, or a server's configuration in YAML or TOML.")
    ],
    reply: Annotated[str, typer.Option(help="The server's answer, as JSON.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer's folder, or its name on the Hugging Face hub.")
    ] = None,
    choice: Annotated[int, typer.Option(help="The index of the reply in the answer.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Say why a reply has its tokens, with no engine.

    The exit status is 1 if a token breaks a spec or the reply ended too early, and 2 if a spec is
    not replayed.
    """
    from .steps import trace

    source = read_specs(file, tokenizer)
    if source.problems:
        for problem in source.problems:
            say(problem, err=True)
        raise typer.Exit(2)
    answer, text_of = read_reply(reply, choice), texts_of(tokenizer)
    specs = {source.paths[i]: spec for i, spec in source.specs.items()}
    known = vocabulary_of(tokenizer), ids_of(tokenizer)
    found = trace(specs, answer, *known, source.continued)
    steps, notes, always = found.steps, found.notes, standing(found.steps)
    if as_json:
        texts = [
            {**asdict(step), "text": text_of(step.token_id), "why": without(step, always).why}
            for step in steps
        ]
        said = {"steps": texts, "notes": notes, "unreached": found.unreached}
        typer.echo(json.dumps(said | {"verdict": found.verdict, "always": always}, indent=2))
    else:
        for path, what in always.items():
            say(f"Unless noted, at each token: {path} {what}")
        for step in steps:
            why = without(step, always).why
            what = f"{step.index}: {token(step.token_id, text_of)}: {why}"
            if step.logprob is not None:
                what += f", probability {chance(step.logprob)}"
            for text, logprob in step.likelier[:1]:
                what += f", likeliest {quoted(text)} {chance(logprob)}"
            say(what, fg=None if step.obeyed else "red")
        say(found.verdict)
        for last, advice in UNREACHED.items():
            if any(path.endswith(last) for path in found.unreached):
                say(advice)
        for note in notes:
            say(note, err=True)
    raise typer.Exit(found.status)


UNREACHED = {
    "]": "`stop_tokens` of `phases` bans what ends a reply, in every phase but the last.",
    "token_ids": "`max_tokens`, a stop text and an end token that `at_end` does not name end a "
    "reply without its text.",
}
"""What to do about a reply that ended before a phase, or before a text, by its path's end."""


def standing(steps: Sequence[Step]) -> dict[str, str]:
    """Find the specs that act at each of several tokens, and what they do at most of them."""
    found: dict[str, str] = {}
    for path in steps[0].acting if len(steps) > 1 else ():
        counts = Counter(step.acting.get(path, "") for step in steps)
        what = max(counts, key=lambda each: counts[each])
        is_standing = "" not in counts and counts[what] > len(steps) / 2
        if is_standing and what.startswith(("banned", "added", "moved")):
            found[path] = what
    return found


def without(step: Step, always: Mapping[str, str]) -> Step:
    """Leave out what stands, except where a token breaks a spec or a spec displaces another."""
    if not step.obeyed:
        return step
    left = {
        path: what
        for path, what in step.acting.items()
        if always.get(path) != what or path in step.displaced
    }
    return replace(step, acting=left)
