"""Contradictions with the specs that an engine realizes by itself, which are never compiled.

What the other specs of a request force, allow and ban is compared when they are admitted, as
automata: see ``logitport.adapters.core.contradictions``.
"""

from collections.abc import Mapping, Sequence

from .base import LogitsProcessorSpec
from .errors import SpecError
from .kinds import GrammarSpec, MaxRunSpec, SamplingSpec
from .limits import MAX_TEXT_RULES

Specs = Sequence[LogitsProcessorSpec]


def check_native(specs: Specs) -> None:
    """Check grammars and sampling parameters beside each other and beside all other specs.

    Raises:
        SpecError: for a spec that contradicts another. The path (``$.specs[i]...``) leads to it,
            and the message names the other.
    """
    _check_grammar(specs)
    _check_sampling(specs)


def _check_grammar(specs: Specs) -> None:
    """Check that there is one grammar at most, and that the others leave what it generates."""
    grammars = [(i, spec) for i, spec in enumerate(specs) if isinstance(spec, GrammarSpec)]
    if not grammars:
        return
    first, grammar = grammars[0]
    beside = "Conflicts with ", ("specs", first)
    if len(grammars) > 1:
        raise SpecError((*beside, ": both are a grammar"), "specs", grammars[1][0])
    texts, runs = _necessary_texts(grammar), 0
    for i, spec in enumerate(specs):
        if spec.breaks_grammar:
            what = f", a grammar, which may not take the tokens that `{spec.kind}` forces"
            raise SpecError((*beside, what), "specs", i)
        runs += isinstance(spec, MaxRunSpec)
        for text in texts if runs <= MAX_TEXT_RULES else ():  # admission refuses more
            if spec.bans_text(text):
                what = f", a grammar whose replies contain {text!r}"
                raise SpecError((*beside, what), "specs", i)


def _necessary_texts(grammar: GrammarSpec) -> Sequence[str]:
    """List texts that the grammar offers or needs, as far as they are easily seen."""
    schema: Mapping[str, object] = grammar.json_schema or {}
    return grammar.choices or {"object": "{}", "array": "[]"}.get(str(schema.get("type")), "")


def _check_sampling(specs: Specs) -> None:
    """Check that no two specs set a parameter to different values. The later one is refused."""
    first_of: dict[str, tuple[int, float]] = {}
    for i, spec in enumerate(specs):
        for name in spec.__struct_fields__ if isinstance(spec, SamplingSpec) else ():
            if (value := getattr(spec, name)) is None:
                continue
            first, other = first_of.setdefault(name, (i, value))
            if other != value:
                what = f", which sets {name} to {other}"
                raise SpecError(("Conflicts with ", ("specs", first), what), "specs", i, name)
