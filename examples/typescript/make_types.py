"""Write ``src/types.ts`` and ``src/schema.ts``, from the JSON Schema of the wire.

``python -m examples.typescript.make_types``
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from logitport.spec import json_schema

SOURCES = Path(__file__).parent / "src"
HEAD = "// Made by make_types.py from `logitport schema`. Change that instead.\n"


def types() -> str:
    """Write a type for each definition of the schema."""
    definitions = json_schema()["$defs"]
    kinds = definitions.pop("Spec")["allOf"]
    specs = " |\n  ".join(_type(case["then"]) for case in kinds)
    parts = [_definition(name, schema) for name, schema in definitions.items()]
    parts.append(f"/** A spec of any kind. */\nexport type Spec =\n  {specs};\n")
    return "\n".join([HEAD, *parts])


def schema() -> str:
    """Write the schema without its descriptions, a definition a line."""
    made = _without_descriptions(json_schema())
    definitions = made.pop("$defs")
    lines = [f"  {json.dumps(name)}: {json.dumps(each)}," for name, each in definitions.items()]
    rest = "".join(f"  {json.dumps(name)}: {json.dumps(each)},\n" for name, each in made.items())
    defs = "\n".join(f"  {line}" for line in lines)
    return f'{HEAD}\nexport const schema = {{\n{rest}  "$defs": {{\n{defs}\n  }},\n}} as const;\n'


def _definition(name: str, schema: dict[str, Any]) -> str:
    fields, required = schema["properties"], schema["required"]
    choices = [*_choices(schema)]
    chosen = {each for names, _ in choices for each in names}
    lines = [
        f"  {each}{'' if each in required else '?'}: {_type(value)};"
        for each, value in fields.items()
        if each not in chosen
    ]
    parts = ["{\n" + "\n".join(lines) + "\n}" if lines else "{}"]
    for names, is_required in choices:
        forms = (_form(one, names, fields, is_required) for one in names)
        parts.append("(\n  " + " |\n  ".join(forms) + "\n)")
    first = re.split(r"(?<=\.)\s|\n\n", schema.get("description", ""))[0]
    says = f"/** {' '.join(first.split())} */\n" if first else ""
    return f"{says}export type {name} = {' & '.join(parts)};\n"


def _choices(schema: dict[str, Any]) -> Iterator[tuple[list[str], bool]]:
    """Yield the fields of which exactly one is given (``True``), or at most one."""
    for rule in schema.get("allOf", ()):
        is_required = "oneOf" in rule
        alternatives = rule["oneOf"] if is_required else rule["not"]["allOf"]
        yield [each["required"][0] for each in alternatives], is_required


def _form(one: str, names: list[str], fields: dict[str, Any], is_required: bool) -> str:
    others = "; ".join(f"{name}?: never" for name in names if name != one)
    return f"{{ {one}{'' if is_required else '?'}: {_type(fields[one])}; {others} }}"


def _type(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": str(ref)}:
            return ref.removeprefix("#/$defs/")
        case {"anyOf": list(alternatives)}:
            return " | ".join(map(_type, alternatives))
        case {"const": value}:
            return json.dumps(value)
        case {"enum": list(values)}:
            return " | ".join(map(json.dumps, values))
        case {"type": "array", "items": dict(items)}:
            return f"ReadonlyArray<{_type(items)}>"
        case {"type": "object"}:
            value = _type(schema.get("additionalProperties", {}))
            return f"Readonly<Record<string, {value}>>"
        case {"type": "integer" | "number"}:
            return "number"
        case {"type": str(name)}:
            return name
        case _:
            return "unknown"


def _without_descriptions(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_descriptions(each)
            for name, each in value.items()
            if name not in ("description", "title") or not isinstance(each, str)
        }
    return [_without_descriptions(each) for each in value] if isinstance(value, list) else value


def main() -> None:
    """Write both files."""
    (SOURCES / "types.ts").write_text(types())
    (SOURCES / "schema.ts").write_text(schema())


if __name__ == "__main__":
    main()
