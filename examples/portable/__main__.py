"""One script that runs unchanged on every engine.

``python -m examples.portable run vllm`` runs the requests on an engine, in its environment.
``python -m examples.portable compare`` compares the outputs of all engines that have run.
"""

import os
import traceback
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from fontTools.unicodedata import script, script_name
from logitport.adapters.detection import detect
from logitport.adapters.reference import obeys
from logitport.spec import (
    AllowedScriptsSpec,
    BannedScriptsSpec,
    LogitsProcessorSpec,
    WatermarkSpec,
)
from rich.console import Console
from rich.table import Table

from .._support.ending import CannotRunError
from .._support.ending import run as run_demo
from .._support.smollm2 import prepare
from .engines import ENGINES, Outputs, choose_runner
from .requests import CONFIGURATION, KEY, PROFILES, Request, requests, whole

RESULTS = Path(__file__).resolve().parents[2] / "build" / "portable"

os.environ.setdefault(KEY, "42")

app = typer.Typer(add_completion=False, help=__doc__)
console = Console(markup=False, highlight=False, width=120)


class Said(msgspec.Struct):
    """An engine's outputs by the requests' names, with specs and without."""

    with_specs: dict[str, list[int]]
    free: dict[str, list[int]]

    def obeys(self, request: Request, tokenizer: Any) -> bool:
        """Whether an output obeys the request's specs, and differs from the output without them."""
        output = self.with_specs[request.name]
        text = tokenizer.decode(output)
        return output != self.free[request.name] and all(
            _obeys(spec, text) if spec.needs_vocabulary else _does(spec, request, output)
            for spec in request.specs
        )


def _does(spec: LogitsProcessorSpec, request: Request, output: list[int]) -> bool:
    """Whether an output obeys a spec about tokens; the same detector finds the mark of each."""
    if isinstance(spec, WatermarkSpec):
        return detect(output, PROFILES).is_watermarked
    return obeys(spec, request.prompt_ids, output)


def _obeys(spec: LogitsProcessorSpec, text: str) -> bool:
    """Whether a text obeys a spec about text."""
    if not isinstance(spec, AllowedScriptsSpec | BannedScriptsSpec):
        return not spec.bans_text(text)
    used = {script_name(script(character)) for character in text}
    if isinstance(spec, AllowedScriptsSpec):
        return used <= {*spec.scripts, "Common", "Inherited"}
    return used.isdisjoint(spec.scripts)


@app.command()
def run(engine: Annotated[str, typer.Argument(help=", ".join(ENGINES))]) -> None:
    """Run all requests at once on one engine, with specs and without."""
    if engine not in ENGINES:
        raise typer.BadParameter(f"Expected one of {', '.join(ENGINES)}, got {engine!r}")
    choose_runner(engine)
    RESULTS.mkdir(parents=True, exist_ok=True)
    configuration = RESULTS / "configuration.json"
    configuration.write_bytes(msgspec.json.encode(CONFIGURATION))
    os.environ["LOGITPORT_CONFIG"] = str(configuration)
    asked, tokenizer = _requests()
    free = [replace(request, specs=()) for request in asked]
    outputs = [whole(each, tokenizer.eos_token_id) for each in _ask(engine, [*asked, *free])]
    names = [request.name for request in asked]
    n = len(names)
    said = Said(
        with_specs=dict(zip(names, outputs[:n], strict=True)),
        free=dict(zip(names, outputs[n:], strict=True)),
    )
    _file(engine).write_bytes(msgspec.json.encode(said))
    obeyed = sum(said.obeys(request, tokenizer) for request in asked)
    console.print(f"{engine}: {obeyed} of {n} obeyed")


def _ask(engine: str, asked: list[Request]) -> Outputs:
    """Run requests on an engine; shorten any error to one line, with the traceback in a file.

    Raises:
        CannotRunError: if the engine does not start, or fails.
    """
    try:
        return ENGINES[engine](asked)
    except CannotRunError:
        raise
    except Exception as error:
        log = RESULTS / f"{engine}.log"
        log.write_text(traceback.format_exc(), encoding="utf-8")
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CannotRunError(
            f"{engine} cannot be run ({what}): where it failed is in {log}"
        ) from error


@app.command()
def compare() -> None:
    """Compare the outputs; exit with status 1 if specs are not obeyed, or make engines differ.

    Engines with equal outputs without specs must have equal outputs with specs. Of several
    engines, at least two must have equal outputs without specs.
    """
    said = {
        engine: msgspec.json.decode(_file(engine).read_bytes(), type=Said)
        for engine in ENGINES
        if _file(engine).is_file()
    }
    if not said:
        raise typer.BadParameter(f"Expected an engine that has been asked, in {RESULTS}")
    asked, tokenizer = _requests()
    first = next(iter(said))
    table = Table(*("", *said, f"{first} says"), box=None)
    right = True
    for request in asked:
        obeyed = [each.obeys(request, tokenizer) for each in said.values()]
        right &= all(obeyed)
        text = tokenizer.decode(said[first].with_specs[request.name])
        marks = ("obeys" if each else "DOES NOT" for each in obeyed)
        table.add_row(request.name, *marks, repr(text)[:40])
    console.print(table)
    agree = [(a, b) for a, b in combinations(said, 2) if said[a].free == said[b].free]
    right &= bool(agree) or len(said) == 1
    for a, b in agree:
        one, other = said[a].with_specs, said[b].with_specs
        differ = [name for name in one if one[name] != other[name]]
        right &= not differ
        how = f"but not with them: {', '.join(differ)}" if differ else "and with them"
        console.print(f"{a} and {b} say the same without specs, {how}")
    if not right:
        raise typer.Exit(1)


def _file(engine: str) -> Path:
    return RESULTS / f"{engine}.json"


def _requests() -> tuple[list[Request], Any]:
    model = prepare()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return requests(tokenizer, tokenizer.eos_token_id), tokenizer


if __name__ == "__main__":
    run_demo(app)
