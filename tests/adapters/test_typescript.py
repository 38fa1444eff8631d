"""``examples/typescript``: its types, and the bodies that it makes, are those of Python.

Its own tests are node's: ``make test-typescript``, which also builds what this file runs.
"""

import json
import shutil
import subprocess
from typing import Any

import pytest
from logitport.adapters import add_specs, extra_body

from examples.typescript.make_types import SOURCES, schema, types

NODE, BUILT = shutil.which("node"), SOURCES.parent / "dist" / "src" / "index.js"

CHOICE = {"kind": "choice", "texts": ["yes", "no"]}
BANNED = {"kind": "banned_text", "texts": ["Acme", "é"]}
ANSWER = {"type": "object", "properties": {"a": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}
OURS = extra_body("vllm", CHOICE, carrier="schema")
SCHEMA = {"carrier": "schema"}
CONTINUED = {"version": 1, "specs": [CHOICE], "generation_only": False, "continued": 3}

MADE: list[tuple[str, Any, dict[str, Any]]] = [
    ("vllm", CHOICE, {}),
    ("sglang", [CHOICE, BANNED], {}),
    ("sglang", [], {}),
    ("vllm", CHOICE, {"stage": "prefill"}),
    ("vllm", CHOICE, {"stage": "prefill", "generation_only": False}),
    ("vllm", CHOICE, {"continued": 3}),
    ("vllm", [BANNED], SCHEMA),
    ("vllm", BANNED, {**SCHEMA, "stage": "prefill"}),
]
ADDED: list[tuple[Any, str, Any, dict[str, Any]]] = [
    ({"prompt": "a"}, "vllm", BANNED, {}),
    ({"vllm_xargs": {"other": 1, "logitport": json.dumps([CHOICE])}}, "vllm", [BANNED], {}),
    ({"custom_params": {"logitport": CONTINUED}}, "sglang", BANNED, {}),
    (OURS, "vllm", BANNED, {}),
    (OURS, "vllm", BANNED, SCHEMA),
    ({"response_format": FORMAT}, "vllm", BANNED, SCHEMA),
    ({"response_format": FORMAT, "vllm_xargs": {"logitport": [CHOICE]}}, "vllm", BANNED, SCHEMA),
]
PROGRAM = """
import {{ addSpecs, extraBody }} from {module};
const text = await new Response(process.stdin).text();
const options = ({{ generation_only, ...others }}) =>
  generation_only === undefined ? others : {{ ...others, generationOnly: generation_only }};
const {{ made, added }} = JSON.parse(text);
console.log(JSON.stringify([
  ...made.map(([engine, specs, how]) => extraBody(engine, specs, options(how))),
  ...added.map(([body, engine, specs, how]) => addSpecs(body, engine, specs, options(how))),
]));
"""


@pytest.mark.parametrize(("name", "text"), [("types.ts", types()), ("schema.ts", schema())])
def test_sources_are_what_the_schema_makes(name: str, text: str):
    assert (SOURCES / name).read_text() == text, "python -m examples.typescript.make_types"


@pytest.mark.needs("node", "examples/typescript/dist")  # make test-typescript builds it
def test_bodies():
    done = subprocess.run(
        [str(NODE), "--input-type=module", "-e", PROGRAM.format(module=json.dumps(str(BUILT)))],
        input=json.dumps({"made": MADE, "added": ADDED}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    python = [extra_body(engine, specs, **how) for engine, specs, how in MADE]
    python += [add_specs(body, engine, specs, **how) for body, engine, specs, how in ADDED]
    for there, here in zip(json.loads(done.stdout), python, strict=True):
        assert in_words(there) == in_words(here)


def in_words(value: Any) -> Any:
    """A body with its payloads parsed: two texts may say the same."""
    if isinstance(value, dict):
        return {name: in_words(each) for name, each in value.items()}
    is_payload = isinstance(value, str) and value.startswith('{"version"')
    return json.loads(value) if is_payload else value
