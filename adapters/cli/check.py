"""``logitport check``: every problem of spec files, or of a configuration, at once."""

import json
import os
from typing import Annotated, Any

import typer

from ..environment import CONFIGURATION_VARIABLE
from ..policy import policy_of
from .failures import failing_plainly
from .printing import say
from .source import read_specs
from .texts import model_tokenizer


@failing_plainly
def check(
    files: Annotated[list[str], typer.Argument(help="Spec files; - reads stdin.")],
    config: Annotated[
        bool, typer.Option("--config", help="The files are configurations of servers.")
    ] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="The model's folder, or its name on the Hugging Face hub."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="For --config: the name under which the model is served.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """List every problem of files, with its place; exit status 1 if there is any."""
    notes: list[str] = []
    problems: list[dict[str, Any]] = []
    for file in files:
        if config:
            problems += _of_configuration(file, tokenizer, model)
            continue
        source = read_specs(file, tokenizer)
        problems += ({**each._asdict(), "text": str(each)} for each in source.problems)
        notes += source.notes
    texts = [problem.pop("text") for problem in problems]
    if as_json:
        typer.echo(json.dumps(problems, indent=2))
    else:
        for text in texts:
            say(text)
    for note in dict.fromkeys(notes):
        say(note, err=True)
    raise typer.Exit(bool(problems))


def _of_configuration(file: str, tokenizer: str | None, model: str | None) -> list[dict[str, Any]]:
    def load() -> Any:
        if tokenizer is None:
            raise ValueError("Use --tokenizer to name the model, whose tokens this needs")
        return model_tokenizer(tokenizer)

    os.environ.pop(CONFIGURATION_VARIABLE, None)  # which names the file of a server here
    try:
        policy_of(load, [each for each in (model, tokenizer) if each], file)
    except ValueError as error:
        found = getattr(error, "problems", [str(error)])
        return [{"file": file, "message": each, "text": f"{file}: {each}"} for each in found]
    return []
