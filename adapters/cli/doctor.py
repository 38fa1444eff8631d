"""``logitport doctor``: what is wrong with an environment, or with a running server."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from ..finding import Status
from .failures import failing_plainly
from .printing import say
from .server import Server, ask

COLORS = {Status.WARNING: "yellow", Status.ERROR: "red"}


@failing_plainly
def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            help="A running server, http://localhost:8000 for example. By default, this "
            "environment is examined.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="The engine; by default, the server is asked, or all are examined."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The served model; by default, the first that there is.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="The server's API key.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Find out why specs are not obeyed; exit status 1 if something is wrong."""
    if url:
        url = url if "://" in url else f"http://{url}"
        server = Server(url.rstrip("/").removesuffix("/v1"), api_key)
        engine = engine or server.engine()
        where, findings = f"{engine} at {server.url}", ask(server, engine, model)
    else:
        from .installation import examine

        where, findings = sys.prefix, examine(engine)
    if as_json:
        typer.echo(json.dumps({"engine": engine, "findings": [*map(asdict, findings)]}, indent=2))
    else:
        say(where)
        for each in findings:
            say(f"{each.what}: {each.found}", fg=COLORS.get(each.status))
            if each.status is not Status.OK:
                say(f"    {each.status}: {each.advice}")
    raise typer.Exit(any(each.status is Status.ERROR for each in findings))
