"""What a file in YAML, TOML or JSON holds, and in which lines."""

import json
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..spec.errors import Path, path_text
from .files import read_file

MAX_BYTES = 1 << 20
"""The size of a file. PyYAML takes about ten seconds for it."""

MAX_NUMBER = 100
"""The characters of a number. YAML has numbers to the base of 60, which take PyYAML long."""

_NUMBERS = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class TenantSettings(NamedTuple):
    """What a gateway has for a tenant, in place of an engine's settings.

    Its specs are not compared with each other, which needs numpy: the server behind does that.

    Attributes:
        content: what a file holds.
        lines: the line of each value, by its path.
        name: what errors call it.
    """

    content: Any
    lines: Mapping[Path, int]
    name: str


def read_content(file: str) -> tuple[Any, Mapping[Path, int]]:
    """Read a file: what it holds, and the line of each value, by its path.

    Raises:
        ValueError: in one line, if the file is neither YAML, TOML nor JSON, has more than
            ``MAX_BYTES``, or is a pipe or a device.
        OSError: if it cannot be read.
    """
    try:
        text = read_file(file, MAX_BYTES)
        if file.endswith(".toml"):  # no parser tells the lines
            return tomllib.loads(text), {}
        if file.endswith(".json"):  # YAML 1.1 reads tabs, 1e-5 and pairs of surrogates otherwise
            return json.loads(text), parse_yaml(text.replace("\t", " "))[1]
        return parse_yaml(text)
    except ModuleNotFoundError:
        raise ValueError("PyYAML is missing: pip install pyyaml") from None
    except RecursionError:
        raise ValueError("It is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise ValueError(" ".join(str(error).split())) from None


def parse_yaml(text: str) -> tuple[Any, dict[Path, int]]:
    """Parse YAML; return its content, and the line of each value by its path.

    Raises:
        ValueError: for a text that is not YAML, an object that has a key twice, or an alias. Ten
            aliases of ten aliases each, nine times, stand for a billion values.
        RecursionError: for a text that is nested too deeply.
    """
    import yaml

    lines: dict[Path, int] = {}
    nodes = set[int]()

    def walk(node: Any, path: Path) -> None:
        lines[path] = node.start_mark.line + 1
        if id(node) in nodes:
            where = f"{path_text(path)} is an alias of the value in line {lines[path]}"
            raise ValueError(f"{where}: write the value again")
        nodes.add(id(node))
        if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER:
            where = f"line {lines[path]}: {path_text(path)}"
            raise ValueError(f"{where}: expected a number of {MAX_NUMBER} characters or less")
        if isinstance(node, yaml.SequenceNode):
            for i, each in enumerate(node.value):
                walk(each, (*path, i))
        elif isinstance(node, yaml.MappingNode):
            keys = set[tuple[str, str]]()
            for key, value in node.value:
                where = (*path, str(key.value))
                if (key.tag, str(key.value)) in keys:
                    line = key.start_mark.line + 1
                    raise ValueError(f"line {line}: {path_text(where)} is there twice")
                keys.add((key.tag, str(key.value)))
                walk(value, where)
                lines[where] = key.start_mark.line + 1

    try:
        loader = yaml.SafeLoader(text)
        # lm-format-enforcer, which vLLM imports, makes every loader read times as text.
        times = {"tag:yaml.org,2002:timestamp": yaml.SafeLoader.construct_yaml_timestamp}
        loader.yaml_constructors = {**loader.yaml_constructors, **times}
        node = loader.get_single_node()
        if node is None:
            return None, lines
        walk(node, ())
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}: column {mark.column + 1}: " if mark else ""
        what = ", ".join(filter(None, (error.context, error.problem)))
        raise ValueError(f"{place}{what}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except (
        AttributeError,
        LookupError,
        OverflowError,
    ) as error:  # from PyYAML, for `!!int ""` and the like
        raise ValueError(f"A value does not fit its tag: {error}") from None
