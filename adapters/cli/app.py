"""The typer application, with all commands."""

from importlib.metadata import version
from typing import Annotated

import typer

from . import tables
from .body import body
from .check import check
from .detect import detect
from .doctor import doctor
from .explain import explain
from .failures import failing_plainly
from .replay import replay
from .serve import serve
from .tags import tags

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"logitport {version('logitport')}")
        raise typer.Exit


@app.callback()
def logitport(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Portable logits processors: specs as data."""


for command in (explain, check, body, replay, detect, tags, doctor):
    app.command()(command)
app.command(context_settings={"ignore_unknown_options": True})(serve)

AsJson = Annotated[bool, typer.Option("--json", help="Print an object.")]


@app.command()
def capabilities(as_json: AsJson = False) -> None:
    """Print what each installed backend can do, as a Markdown table."""
    typer.echo(tables.capabilities(as_json=as_json))


@app.command()
def limits(as_json: AsJson = False) -> None:
    """Print the limits on what clients send, which LOGITPORT_LIMITS sets."""
    typer.echo(tables.limits(as_json=as_json))


@app.command()
@failing_plainly
def schema(
    profiles: Annotated[bool, typer.Option("--profiles", help="Of profiles of marks.")] = False,
    config: Annotated[
        bool, typer.Option("--config", help="Of a server's configuration, for editors.")
    ] = False,
) -> None:
    """Print the JSON Schema of the wire format."""
    typer.echo(tables.schema(of_profiles=profiles, of_configuration=config))
