"""``logitport replay``: which spec acted on each token of a finished reply."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .failures import failing_plainly
from .page import UNLESS_NOTED, page, standing, without
from .printing import say
from .reply import chance, read_reply
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
    html: Annotated[Path | None, typer.Option(help="Write a page with coloured tokens.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Say why a reply has its tokens, with no engine.

    The exit status is 1 if a token breaks a spec, and 2 if a spec is not replayed.
    """
    from .steps import trace

    source = read_specs(file, tokenizer)
    if source.problems:
        for problem in source.problems:
            say(problem, err=True)
        raise typer.Exit(2)
    if html and html.is_fifo():
        raise ValueError(f"{html}: expected the name of a file, got a pipe")
    answer, text_of = read_reply(reply, choice), texts_of(tokenizer)
    specs = {source.paths[i]: spec for i, spec in source.specs.items()}
    known = vocabulary_of(tokenizer), ids_of(tokenizer)
    found = trace(specs, answer, text_of, *known, source.continued)
    steps, notes = found.steps, found.notes
    if html:
        html.write_text(page(found._repr_html_()), encoding="utf-8", errors="replace")
    if as_json:
        texts = [{**asdict(step), "text": text_of(step.token_id)} for step in steps]
        said = {"steps": texts, "notes": notes, "unreached": found.unreached}
        typer.echo(json.dumps(said, indent=2))
    else:
        always = standing(steps)
        for path, what in always.items():
            say(f"{UNLESS_NOTED}: {path} {what}")
        for step in steps:
            why = without(step, always).why
            what = f"{step.index}: {token(step.token_id, text_of)}: {why}"
            if step.logprob is not None:
                what += f", probability {chance(step.logprob)}"
            for text, logprob in step.likelier[:1]:
                what += f", likeliest {quoted(text)} {chance(logprob)}"
            say(what, fg=None if step.obeyed else "red")
        say(found.verdict)
        if found.unreached:
            say("`stop_tokens` of `phases` bans what ends a reply, in every phase but the last.")
        for note in notes:
            say(note, err=True)
    raise typer.Exit(1 if found.broken or found.unreached else 2 if notes else 0)
