"""``logitport check``: every problem of spec files at once."""

import json
from typing import Annotated

import typer

from .failures import failing_plainly
from .source import read_specs


@failing_plainly
def check(
    files: Annotated[list[str], typer.Argument(help="Spec files; - reads stdin.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """List every problem of spec files, with its line and column; exit status 1 if there is any."""
    sources = [read_specs(file) for file in files]
    problems = [problem for source in sources for problem in source.problems]
    if as_json:
        typer.echo(json.dumps([problem._asdict() for problem in problems], indent=2))
    else:
        for problem in problems:
            typer.echo(problem)
    for note in dict.fromkeys(note for source in sources for note in source.notes):
        typer.echo(note, err=True)
    raise typer.Exit(bool(problems))
