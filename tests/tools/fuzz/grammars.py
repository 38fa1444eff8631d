"""Climbs towards the grammars that cost the most: to compile, in a step, and to read a text.

``python -m tests.tools.fuzz.grammars SECONDS [SEED]`` changes ``ebnf``, schemas and regular
expressions, alone or several in phases, keeps those that cost more, and prints the costliest. Each
is tried in another process, so one that does not come to an end is reported, too.
"""

import json
import multiprocessing
import random
import re
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from logitport.adapters import admission
from logitport.adapters.core import Realizer
from logitport.spec import SpecError

from . import target

Costs = dict[str, float]
"""Seconds of a thread, by what is measured."""
MEASURED = "compile", "step", "read"
TOKENS, KEPT, PATIENCE = 250, 6, 60

NULLABLE = "root ::= " + "n " * 60 + "r " * 60 + '\nn ::= "x"?\nr ::= ' + '"a" | ' * 60 + '"b"?'
SEEDS: dict[str, list[Any]] = {
    "ebnf": [
        'root ::= a\na ::= a a | "x" | "y"',
        "root ::= " + 'root "a" | ' * 120 + '"b"',
        'root ::= (a "b")*\na ::= a a | "a"',
        'root ::= "x" root "x" | "x"',
        NULLABLE,
        "root ::= r0\n"
        + "".join(f'r{i} ::= "a" r{i + 1} | "b"\n' for i in range(90))
        + 'r90 ::= ""',
        'root ::= ([a-z] | "a" [^b]{0,40} "c"){1,200}',
    ],
    "json_schema": [
        {"type": "array", "items": {"type": "integer", "multipleOf": 999}, "maxItems": 999},
        {"allOf": [{"type": "string", "pattern": f"a{i}.*b"} for i in range(12)]},
        {"properties": {f"p{i}": {"type": ["string", "null"]} for i in range(200)}},
        {"anyOf": [{"properties": {f"p{i}": {"enum": [i, "a"]}}} for i in range(99)]},
        {
            "$defs": {"f": {"anyOf": [{"const": [i]} for i in range(99)]}, "g": {"type": "array"}}
            | {
                f"d{i}": {"anyOf": [{"$ref": "#/$defs/f"}, {"$ref": "#/$defs/g"}]}
                for i in range(99)
            },
            "anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(99)],
        },
        {"items": {"$ref": "#"}, "properties": {"a": {"$ref": "#"}}, "type": ["array", "object"]},
        {"type": "string", "pattern": "(a|ab|b.{3,40}c)*d", "minLength": 20, "format": "email"},
        {"patternProperties": {f"^{i}x": {"minimum": i, "maximum": 10**9} for i in range(9)}},
    ],
    "regex": ["(.*a.{12})|(.*b.{13})", r"(\p{L}|\p{N}){1,200}", "((a|ab|bc){1,40}d?){1,40}"],
}
PIECES = {
    "ebnf": ['"a"', '"x"?', "[a-z]", "a", "root", "r", "|", "(", ")", "*", "{0,90}", '\nb ::= "x"'],
    "regex": [".*", "a", "(", ")", "|", "{0,99}", r"\p{L}", "[^a]", "?", "(ab|ba)*", ".{9}"],
}


def change(form: str, value: Any, numbers: random.Random) -> Any:
    """Change a grammar: repeat, leave out, move or replace a part."""
    if form == "json_schema":
        return change_tree(value, numbers)
    parts = re.findall(r"\s*\S+", value) if form == "ebnf" else list(value)
    at = numbers.randrange(len(parts))
    end = min(len(parts), at + numbers.choice([1, 1, 2, 3, 8, 30]))
    match numbers.randrange(4):
        case 0:
            parts[at:end] = parts[at:end] * numbers.choice([2, 3, 10, 50])
        case 1:
            del parts[at:end]
        case 2:
            parts[at:at] = [" " * (form == "ebnf") + numbers.choice(PIECES[form])]
        case _:
            parts[at:end] = numbers.choices(parts, k=end - at)
    return "".join(parts)[:60_000]


def change_tree(schema: Any, numbers: random.Random) -> Any:
    """Change a part of a schema."""
    schema = json.loads(json.dumps(schema))
    parts: list[tuple[Any, Any]] = []
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        keys: list[Any] = [*each] if isinstance(each, dict) else [*range(len(each))]
        parts += [(each, key) for key in keys]
        waiting += [each[key] for key in keys if isinstance(each[key], dict | list)]
    if not parts:
        return {"type": "string"}
    (holder, key), (other, name) = numbers.choices(parts, k=2)
    value, copied = holder[key], json.loads(json.dumps(other[name]))
    match numbers.randrange(6):
        case 0 if isinstance(value, list):
            value += json.loads(json.dumps(value)) * numbers.choice([1, 3])
        case 0 if isinstance(value, dict):
            value |= {f"{k}{numbers.randrange(999)}": each for k, each in value.items()}
        case 1 if isinstance(value, int):
            holder[key] = value * numbers.choice([2, 3, 10]) + numbers.choice([0, 1])
        case 2 if isinstance(value, str) and len(value) > 3:
            holder[key] = change("regex", value, numbers)
        case 3:
            holder[key] = {numbers.choice(["anyOf", "allOf", "items"]): [value, copied]}
        case 4:
            del holder[key]
        case _:
            holder[key] = copied
    return schema


def payload_of(grammars: Sequence[tuple[str, Any]]) -> str:
    """Write a payload with a phase for each grammar, the last of which does not end."""
    phases: list[Any] = [
        {"specs": [{"kind": "grammar", form: value}], "ends": [{"complete": True}]}
        for form, value in grammars
    ]
    del phases[-1]["ends"]
    return json.dumps({"version": 1, "specs": [{"kind": "phases", "phases": phases}]})


def measure(grammars: Sequence[tuple[str, Any]], seed: int) -> tuple[Costs, str]:
    """Measure a payload; return what it costs, and why it is refused or has ended."""
    text, numbers = payload_of(grammars), random.Random(seed)
    costs: Costs = dict.fromkeys(MEASURED, 0.0)
    errors = list[str]()
    admission.forget()
    begun = time.thread_time()
    try:
        program = admission.admit(target.BACKEND, text, target.VOCAB)[1]
    except SpecError as error:
        return costs | {"compile": time.thread_time() - begun}, str(error)[:80]
    costs["compile"] = time.thread_time() - begun

    def report(row: int, error: Exception, ends: bool) -> None:
        errors.append(str(error)[:80])

    logits = np.zeros((1, target.VOCAB), np.float32)
    realizer, output = Realizer(target.VOCAB, report=report), list[int]()
    realizer.enter(0, program, [1], output, 2)
    for _ in range(TOKENS):
        logits[:] = 0
        begun = time.thread_time()
        realizer.apply(logits)
        costs["step"] = max(costs["step"], time.thread_time() - begun)
        if errors:
            break
        if output and logits[0, output[-1]] == 0 and numbers.random() < 0.7:
            output.append(output[-1])
        else:
            output.append(int(numbers.choice(np.flatnonzero(logits[0] > -1e8).tolist() or [2])))
    for earlier in (output[:-1], output[:-1] * 100):
        again = Realizer(target.VOCAB, report=report)
        begun = time.thread_time()
        again.enter(0, program, [1], earlier, 2)
        again.apply(logits)
        costs["read"] = max(costs["read"], time.thread_time() - begun)
    return costs, errors[0] if errors else ""


def work(pipe: Connection) -> None:
    """Measure what comes."""
    target.install()
    measure([("regex", "a{1,9}")], 0)  # the loops are compiled
    pipe.send(None)
    while True:
        pipe.send(measure(*pipe.recv()))


def start() -> tuple[Any, Connection]:
    ours, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(its,), daemon=True)
    process.start()
    ours.recv()
    return process, ours


def climb(seconds: float, seed: int) -> None:
    """Print each payload that costs more than all before, by what is measured."""
    numbers, until = random.Random(seed), time.monotonic() + seconds
    seeds = [[(form, value)] for form, values in SEEDS.items() for value in values]
    best: dict[str, list[tuple[float, Any]]] = {name: [] for name in MEASURED}
    process, pipe = start()
    tried = 0
    while time.monotonic() < until:
        tried += 1
        grammars = seeds[tried - 1] if tried <= len(seeds) else None
        if grammars is None:
            kept = best[numbers.choice(MEASURED)]
            grammars = list(
                numbers.choice(kept)[1] if kept and tried % 4 else numbers.choice(seeds)
            )
            for _ in range(numbers.choice([1, 1, 2, 4])):
                at = numbers.randrange(len(grammars))
                form, value = grammars[at]
                grammars[at] = form, change(form, value, numbers) or value
            if len(grammars) < 8 and numbers.random() < 0.1:
                grammars.append(numbers.choice(seeds)[0])
        costs, why = dict.fromkeys(MEASURED, np.inf), ""
        for _ in range(2):  # what comes once is the machine's
            pipe.send((grammars, tried))
            if not pipe.poll(PATIENCE):
                print(f"does not end: {payload_of(grammars)}", flush=True)
                process.kill()
                process, pipe = start()
                costs = {}
                break
            again, why = pipe.recv()
            costs = {name: min(cost, again[name]) for name, cost in costs.items()}
        for name, cost in costs.items():
            kept = best[name]
            if len(kept) < KEPT or cost > kept[-1][0]:
                if not kept or cost > kept[0][0]:
                    text = payload_of(grammars)
                    print(
                        f"{tried}: {name} {1e3 * cost:.1f} ms, {len(text):,} bytes: {why}\n  {text}"
                    )
                    sys.stdout.flush()
                kept.append((cost, grammars))
                kept.sort(key=lambda each: -each[0])
                del kept[KEPT:]
    process.kill()
    print(f"tried {tried:,}", {name: f"{1e3 * kept[0][0]:.1f} ms" for name, kept in best.items()})


if __name__ == "__main__":
    climb(float(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0)
