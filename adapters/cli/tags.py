"""``logitport tags``: the thinking tags of a model."""

import json
from typing import Annotated, Any

import typer

from ...spec import THINKING_FAMILIES, SpecError, ThinkingBudgetSpec, thinking_family
from .failures import failing_plainly
from .printing import say
from .source import missing
from .texts import load_tokenizer, quoted


@failing_plainly
def tags(
    model: Annotated[
        str, typer.Argument(help="A model's folder, or its name on the Hugging Face hub.")
    ],
    family: Annotated[
        str | None, typer.Option(help="The family, which tags of plain text need.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Print the thinking tags of a model's tokenizer; exit status 1 if it has none that we know."""
    names = [each.name for each in THINKING_FAMILIES]
    if family not in (None, *names):
        raise ValueError(f"Expected a family of thinking tags: {', '.join(names)}; got {family!r}")
    tokenizer = load_tokenizer(model)
    try:
        found = thinking_family(tokenizer, family)
        spec = ThinkingBudgetSpec.for_tokenizer(0, tokenizer, family=family)
    except SpecError as error:
        say(error, err=True)
        raise typer.Exit(1) from None

    def tag(token_ids: tuple[int, ...]) -> dict[str, Any]:
        text = tokenizer.decode(token_ids, skip_special_tokens=False)
        return {"text": text, "token_ids": token_ids}

    shown = {
        "start": [*map(tag, (spec.start_token_ids, *spec.other_start_token_ids))],
        "end": [*map(tag, (spec.end_token_ids, *spec.other_end_token_ids))],
        "then": [tag(spec.then_token_ids)] if spec.then_token_ids else [],
    }
    opens = _opens_block(model, found.start, found.end)
    if as_json:
        fields = {"family": found.name, "models": found.models, **shown, "template_opens": opens}
        typer.echo(json.dumps(fields, indent=2))
        return
    say(f"family: {found.name} ({found.models})")
    for name, each in shown.items():
        for part in each:
            ids = ", ".join(map(str, part["token_ids"]))
            say(f"{name} {quoted(part['text'])}: {ids}")
    answer = "unknown" if opens is None else "yes" if opens else "no"
    say(f"the chat template opens a block: {answer}")


def _opens_block(model: str, starts: tuple[str, ...], ends: tuple[str, ...]) -> bool | None:
    """Whether the prompt of a chat leaves a block open; ``None`` if it cannot be rendered."""
    try:
        from .template import QUESTION, prompt_of

        prompt = prompt_of(model).rpartition(QUESTION)[2]
    except Exception as error:  # a template may raise anything
        why = missing(error) if isinstance(error, ModuleNotFoundError) else str(error)
        say(f"The chat template is not rendered: {why}", err=True)
        return None
    return max(map(prompt.rfind, starts)) > max(map(prompt.rfind, ends))
