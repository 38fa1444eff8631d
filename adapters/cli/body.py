"""``logitport body``: the fields that a client adds to the body of a request."""

import json
from typing import Annotated, Any

import typer

from ...spec import SpecError, Stage
from ..gateway.extra_body import Carrier, extra_body
from .failures import failing_plainly
from .printing import say
from .source import read_specs


@failing_plainly
def body(
    engine: Annotated[str, typer.Argument(help="An engine with a server, such as vllm.")],
    file: Annotated[str, typer.Argument(help="A spec file; - reads stdin.")],
    stage: Annotated[
        Stage, typer.Option(help="The stage of the server that gets the request.")
    ] = Stage.AGGREGATED,
    carrier: Annotated[
        Carrier, typer.Option(help="What has the payload: schema passes gateways that drop fields.")
    ] = "field",
) -> None:
    """Print the JSON fields that send the specs in a file to an engine's server."""
    extra_body(engine, ())  # raises for an engine without a server
    source = read_specs(file)
    if source.wrong:
        for problem in source.wrong:
            say(problem, err=True)
        raise typer.Exit(1)
    specs = [*(dict[int, Any](enumerate(source.entries)) | source.specs).values()]
    try:
        fields = extra_body(
            engine,
            specs,
            stage=stage,
            generation_only=source.generation_only,
            continued=source.continued,
            carrier=carrier,
        )
    except SpecError as error:
        say(error, err=True)
        raise typer.Exit(1) from None
    typer.echo(json.dumps(fields, indent=2))
