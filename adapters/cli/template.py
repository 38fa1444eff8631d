"""The prompt that a model's chat template makes."""

import json
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..files import read_file
from .texts import model_file, text_of_special, tokenizer_config

QUESTION = "Where is the treasure?"
"""The only message of the chat, which the user has written."""


class _Generation(Extension):
    """The tag around an assistant's answer, by which transformers finds the answer's tokens."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def prompt_of(model: str) -> str:
    """Render a model's chat template for one question, in the environment that transformers makes.

    Raises:
        Exception: if there is no template, or it cannot be rendered.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": datetime.now().strftime}
    config = tokenizer_config(model)
    return environment.from_string(_template(model, config)).render(
        {name: text_of_special(value) for name, value in config.items() if name.endswith("_token")},
        messages=[{"role": "user", "content": QUESTION}],
        add_generation_prompt=True,
    )


def _template(model: str, config: dict[str, Any]) -> str:
    """Return the template: in a file of its own, or one or several in the configuration."""
    try:
        return read_file(model_file(model, "chat_template.jinja"))
    except OSError:
        found: Any = config.get("chat_template")
    if isinstance(found, list):
        named = cast("list[dict[str, str]]", found)
        found = {each["name"]: each["template"] for each in named}.get("default")
    if not found:
        raise ValueError("the model has none")
    return found


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
