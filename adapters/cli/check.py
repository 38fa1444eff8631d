"""``logitport check``: every problem of spec files, or of a configuration, at once."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from ...spec import LogitsProcessorSpec, SpecError
from ...spec.errors import path_text
from ..backend import backend
from ..policy import Policy
from .failures import failing_plainly
from .printing import say
from .source import is_configuration, read_policy, read_specs
from .texts import load_tokenizer, model_tokenizer, vocabulary_size

_PLACE = re.compile(r":(?:(\d+):(\d+):)? (?:line (\d+): )?")
"""What is between the file and the problem in a line, for spec files and for configurations."""


@failing_plainly
def check(
    files: Annotated[list[str], typer.Argument(help="Spec files; - reads stdin.")],
    config: Annotated[
        bool,
        typer.Option(
            "--config", help="The files are configurations of servers, whatever they hold."
        ),
    ] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="The model's folder, or its name on the Hugging Face hub."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
    output: Annotated[
        Literal["text", "json", "github"],
        typer.Option(help="json is --json; github prints annotations of a workflow."),
    ] = "text",
    request: Annotated[
        str | None,
        typer.Option(help="The JSON body of a request to the server that has the configuration."),
    ] = None,
    engine: Annotated[str, typer.Option(help="That server's engine.")] = "vllm",
) -> None:
    """List every problem of files, with its place; exit status 1 if there is any."""
    if request is not None:
        _answer(files, request, tokenizer, engine)
        return
    notes: list[str] = []
    problems: list[dict[str, Any]] = []
    eos = None if tokenizer is None else model_tokenizer(tokenizer).eos_token_id
    for file in files:
        if config or is_configuration(file):
            found, digest = _of_configuration(file, tokenizer)
            notes += [f"{file}: policy {digest}"] if digest else ()
            problems += (
                {"file": file, "message": each, "text": f"{file}: {each}"} for each in found
            )
            if tokenizer is None and not found:
                what = "Token ids, and texts in place of them, are not checked"
                notes.append(f"{what}: use --tokenizer to name the model")
            continue
        source = read_specs(file, tokenizer)
        for i, spec in source.specs.items():
            notes += (f"{file}: {source.paths[i]}{what}" for what in _after_eos(spec, eos))
        problems += ({**each._asdict(), "text": str(each)} for each in source.wrong)
        if source.problems and not source.wrong:
            what = "Texts in place of token ids are not compared"
            notes.append(f"{file}: {what}: use --tokenizer to name the model")
    texts = [problem.pop("text") for problem in problems]
    if as_json or output == "json":
        typer.echo(json.dumps(problems, indent=2))
    else:
        for text, problem in zip(texts, problems, strict=True):
            say(_annotation(problem["file"], text) if output == "github" else text)
    for note in dict.fromkeys(notes):
        say(note, err=True)
    raise typer.Exit(bool(problems))


def _annotation(file: str, text: str) -> str:
    """Make the line by which a workflow of GitHub shows a problem in its file."""
    found = _PLACE.match(text.removeprefix(file))
    line, column, of_configuration = found.groups() if found else (None, None, None)
    where = {
        "file": _escaped(file).replace(":", "%3A").replace(",", "%2C"),
        "line": line or of_configuration,
        "col": column,
    }
    fields = ",".join(f"{name}={value}" for name, value in where.items() if value)
    what = text.removeprefix(file)[found.end() if found else 0 :]
    return f"::error {fields}::{_escaped(what)}"


def _escaped(text: str) -> str:
    """Escape what would end or change a command of a workflow."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _answer(files: list[str], request: str, tokenizer: str | None, engine: str) -> None:
    """Print what acts on a request, or why the server refuses it."""
    from .request import answer_to

    if tokenizer is None or len(files) != 1:
        raise typer.BadParameter("--request takes one configuration, and --tokenizer MODEL")
    model_tokenizer(tokenizer)
    try:
        policy = read_policy(files[0], tokenizer)
    except ValueError as error:
        for each in _problems(error):
            say(f"{files[0]}: {each}")
        raise typer.Exit(1) from None
    try:
        found = answer_to(request, policy, engine, tokenizer)
    except SpecError as error:
        say(f"{request}: HTTP 400: {error}")
        raise typer.Exit(1) from None
    typer.echo(json.dumps(found))


def _after_eos(spec: LogitsProcessorSpec, eos: int | None) -> Iterator[str]:
    """Yield the places of what waits for the token that ends the reply."""
    for (*path, _), token_ids in spec.token_fields():
        if eos in token_ids and ("ends" in path or "trigger_token_ids" in path):
            what = f"waits for the model's EOS, {eos}, which ends the reply"
            yield f"{path_text(tuple(path))[1:]}: {what}, unless the request has `ignore_eos`"


def _of_configuration(file: str, tokenizer: str | None) -> tuple[Sequence[str], str | None]:
    """List what is wrong with a configuration; without a tokenizer, what is found without one.

    With one, the digest of its policy comes second.
    """
    try:
        policy = read_policy(file, tokenizer, checks_only=True)
        if not policy or not tokenizer:
            return (), None
        _realize(policy, tokenizer)
    except ValueError as error:
        return _problems(error), None
    return (), policy.digest


def _problems(error: ValueError) -> Sequence[str]:
    """List the problems of an error about a configuration, each in a line."""
    return getattr(error, "problems", [str(error)])


def _realize(policy: Policy, model: str) -> None:
    """Compile all specs of a policy, as a server does at its start."""
    from ..admission import check_policy

    tokenizer, size = load_tokenizer(model), vocabulary_size(model)
    served = replace(backend("vllm"), policy=policy)  # vLLM realizes every kind
    check_policy(served.for_tokenizer(tokenizer, size), size)
