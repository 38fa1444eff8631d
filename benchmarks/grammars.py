"""Grammars on transformers: logitport beside XGrammar's and outlines' logits processors.

``python -m benchmarks.grammars`` takes one reply in JSON, token by token, through each library's
processor, and writes ``benchmarks/results/grammars.md``. outlines is left out if it is missing.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from logitport.adapters.transformers import LogitportProcessor
from logitport.spec import GrammarSpec
from transformers import AutoConfig, AutoTokenizer

from examples._support.smollm2 import prepare

RESULT = Path(__file__).parent / "results" / "grammars.md"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}, "zip": {"type": "integer"}},
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
REPLY = {
    "name": "Ada Lovelace",
    "age": 36,
    "tags": ["mathematics", "poetry", "machines"],
    "address": {"city": "London", "zip": 10115},
}
Processor = Callable[[Any, Any], Any]
Make = Callable[[torch.Tensor], Processor]
"""Makes a processor for the prompts of one batch: what a library does for each call."""


def peers(tokenizer: Any, config: Any) -> Iterator[tuple[str, Callable[[], Make]]]:
    """Yield each library's name, and what compiles the schema."""

    def logitport() -> Make:
        model: Any = type("Model", (), {"config": config, "generation_config": config})()
        spec = GrammarSpec(json_schema=SCHEMA)
        return lambda ids: LogitportProcessor(model, [spec] * len(ids), ids, tokenizer=tokenizer)

    yield "logitport", logitport
    with suppress(ImportError):
        import xgrammar as xgr
        from xgrammar.contrib.hf import LogitsProcessor

        info = xgr.TokenizerInfo.from_huggingface(tokenizer, vocab_size=config.vocab_size)

        def xgrammar() -> Make:
            compiler = xgr.GrammarCompiler(info, max_threads=1)
            compiled = compiler.compile_json_schema(json.dumps(SCHEMA))
            return lambda ids: LogitsProcessor(compiled)

        yield f"xgrammar {version('xgrammar')}", xgrammar
    with suppress(ImportError):
        core: Any = import_module("outlines.backends.outlines_core")
        models: Any = import_module("outlines.models.transformers")

        model: Any = type("Model", (), {"config": config, "device": torch.device("cpu")})()
        with suppress(Exception):
            backend = core.OutlinesCoreBackend(models.Transformers(model, tokenizer))

            def outlines() -> Make:
                made = backend.get_json_schema_logits_processor(json.dumps(SCHEMA))

                def start(ids: torch.Tensor) -> Processor:
                    made.reset()
                    return made

                return start

            yield "outlines", outlines


def walk(make: Make, tokens: torch.Tensor, rows: int) -> tuple[list[float], int]:
    """Take a reply through a processor; return the seconds of each step, and the wrong ones."""
    prompt = torch.full((rows, 4), 5)
    processor, seconds, wrong = make(prompt), list[float](), 0
    for n in range(len(tokens)):
        ids = torch.cat([prompt, tokens[:n].expand(rows, -1)], 1)
        scores = torch.zeros(rows, 49152)
        begun = time.perf_counter()
        scores = processor(ids, scores)
        seconds.append(time.perf_counter() - begun)
        wrong += not bool(scores[:, tokens[n]].isfinite().all())
    return seconds, wrong


def main(rounds: Annotated[int, typer.Option(help="Replies of each library.")] = 30) -> None:
    """Measure, print, and write the table."""
    torch.set_num_threads(1)
    folder = prepare()
    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    text = json.dumps(REPLY)
    tokens = torch.tensor(tokenizer.encode(text))
    lines = [
        "| library | compile, first | again | a step of 1 row | of 8 rows |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, compile_schema in peers(tokenizer, config):
        of_rows, compiled, make = list[str](), list[float](), compile_schema()
        for _ in range(2):
            begun = time.perf_counter()
            make = compile_schema()
            make(torch.full((1, 4), 5))
            compiled.append(1e3 * (time.perf_counter() - begun))
        for rows in (1, 8):
            taken, wrong = list[float](), 0
            for _ in range(rounds):
                seconds, missed = walk(make, tokens, rows)
                taken.append(sum(seconds[1:]) / (len(seconds) - 1))
                wrong += missed
            of_rows.append(f"{1e6 * median(taken):.0f} µs" + f", {wrong} wrong" * (wrong > 0))
        first, again = compiled
        lines.append(f"| {name} | {first:.1f} ms | {again:.1f} ms | {' | '.join(of_rows)} |")
        typer.echo(lines[-1])
    RESULT.write_text(
        f"# Grammars on transformers\n\nA reply of {len(tokens)} tokens in JSON, 49,152 columns, "
        "one thread. The first time, logitport and outlines read the tokenizer.\n\n"
        + "\n".join(lines)
        + "\n"
    )


if __name__ == "__main__":
    typer.run(main)
