"""``logitport tags``: the thinking tags of a model."""

import json
from typing import Annotated, Any

import typer

from ...spec import THINKING_FAMILIES, SpecError, ThinkingBudgetSpec, thinking_family
from .failures import failing_plainly
from .printing import say
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
    if as_json:
        fields = {"family": found.name, "models": found.models, **shown}
        typer.echo(json.dumps(fields, indent=2))
        return
    say(f"family: {found.name} ({found.models})")
    for name, each in shown.items():
        for part in each:
            ids = ", ".join(map(str, part["token_ids"]))
            say(f"{name} {quoted(part['text'])}: {ids}")
