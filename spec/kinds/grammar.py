"""``grammar``: restrict the output, or a phase, to a grammar."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

import msgspec

from ..base import NativeSpec, check_different, check_total
from ..errors import SpecError
from ..json_values import frozen_json
from ..limits import MAX_PAYLOAD_BYTES, MAX_TOKEN_IDS

MAX_GRAMMAR = MAX_PAYLOAD_BYTES // 2
"""Characters in a grammar: in its text, or in all of its choices."""

# Engines hand these to native code, which takes NUL for the end.
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_GRAMMAR, pattern=r"^[^\x00]+$")]
_Pattern = Annotated[str, msgspec.Meta(max_length=MAX_GRAMMAR, pattern=r"^[^\x00]*$")]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1, max_length=MAX_TOKEN_IDS)]


class GrammarSpec(NativeSpec, frozen=True, tag="grammar", kw_only=True):
    r"""The output, as text, is what a grammar generates, whole unless ``max_tokens`` cuts it off.

    Exactly one of the five forms is given. ``{"type": "object"}`` is OpenAI's ``json_object``.

    Where the engine has structured outputs, these realize it, with the server's grammar backend.
    The server decides at admission which schemas and regular expressions it supports.
    logitport realizes it by llguidance where the engine has none (transformers, MLX), in a phase
    of ``phases``, with ``whitespace_pattern``, and where it continues an earlier output. It refuses
    what llguidance does not know.

    The fields are vLLM's ``structured_outputs``; SGLang's ``json_schema``, ``regex``, ``ebnf`` and
    ``structural_tag``; TensorRT-LLM's ``guided_decoding``. Free text, and JSON after a tag::

        schema = {"type": "object"}
        tag = {"begin": "<answer>", "content": {"type": "json_schema", "json_schema": schema}}
        tag |= {"end": "</answer>"}
        tags = {"type": "triggered_tags", "triggers": ["<answer>"], "tags": [tag]}
        GrammarSpec(structural_tag={"type": "structural_tag", "format": tags})

    Examples:
        >>> from logitport.adapters import extra_body
        >>> extra_body("vllm", GrammarSpec(choices=("yes", "no")))
        {'structured_outputs': {'choice': ['yes', 'no']}}

    Args:
        json_schema: a JSON Schema, ``MAX_DEPTH`` levels deep at most; its size is bounded by that
            of the payload. Copied, its arrays as tuples, and never changed again. Properties come
            out in its order.
        regex: a regular expression that matches the whole output, 1 to ``MAX_GRAMMAR``
            characters.
        ebnf: rules ``name ::= ...``, the first of which is ``root``, as llama.cpp's GBNF and
            XGrammar write them, 1 to ``MAX_GRAMMAR`` characters.
        choices: different non-empty texts, with ``MAX_GRAMMAR`` characters
            in all; see ``ChoiceSpec`` for the same in token ids, without a grammar.
        structural_tag: XGrammar's format for texts with parts of different grammars, for example
            thinking and then JSON, or tools behind triggers: an object with ``type``
            ``"structural_tag"`` and ``format``. Bounded and copied as ``json_schema``. Of the
            grammar backends, it takes XGrammar.
        whitespace_pattern: a regular expression for the white space between two tokens of JSON,
            which may come again and again; without any characters, there is no white space. By
            default, logitport's JSON is that of ``json.dumps``, and the white space of an engine's
            own is the engine's.

    Raises:
        SpecError: if a field is out of bounds, not exactly one form is given, ``json_schema`` holds
            what JSON cannot say, ``ebnf`` has no rule, ``structural_tag`` has another ``type`` or
            no ``format``, or two choices are equal.
    """

    FORMS: ClassVar = ("json_schema", "regex", "ebnf", "choices", "structural_tag")

    json_schema: Mapping[str, Any] | None = None
    regex: _Text | None = None
    ebnf: _Text | None = None
    choices: _Texts | None = None
    structural_tag: Mapping[str, Any] | None = None
    whitespace_pattern: _Pattern | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in self.FORMS if getattr(self, name) is not None]
        if len(given) != 1:
            forms = ", ".join(self.FORMS)
            raise SpecError(f"Expected one of {forms}, got {' and '.join(given) or 'none'}")
        for name in ("json_schema", "structural_tag"):
            try:
                frozen = frozen_json(getattr(self, name))
            except SpecError as error:
                raise error.at(name) from None
            msgspec.structs.force_setattr(self, name, frozen)
        if (tag := self.structural_tag) is not None:
            if tag.get("type") != "structural_tag":
                raise SpecError("Expected `structural_tag`", "structural_tag", "type")
            if not isinstance(tag.get("format"), Mapping):
                raise SpecError("Expected `object`", "structural_tag", "format")
        if self.whitespace_pattern is not None and self.json_schema is None:
            raise SpecError("Expected json_schema beside it", "whitespace_pattern")
        if self.ebnf is not None and "::=" not in self.ebnf:  # vLLM would take it for Lark
            raise SpecError("Expected rules `name ::= ...`", "ebnf")
        choices = self.choices or ()
        check_different(choices, "choices")
        check_total(sum(map(len, choices)), MAX_GRAMMAR, "characters", "choices")

    @property
    def can_complete(self) -> bool:
        return True

    @property
    def needs_vocabulary(self) -> bool:
        return True

    @classmethod
    def from_type(cls, kind: Any, *, whitespace_pattern: str | None = None) -> "GrammarSpec":
        """Make the grammar of a type's JSON: its fields, and no others.

        Args:
            kind: what msgspec makes a schema of, a ``msgspec.Struct``, dataclass, ``TypedDict``,
                ``list[int]`` and so on; or a model of pydantic.
            whitespace_pattern: see ``GrammarSpec``.

        Raises:
            SpecError: for a type without a schema, and as ``GrammarSpec`` does.

        Examples:
            >>> from typing import TypedDict
            >>> Person = TypedDict("Person", {"name": str})
            >>> GrammarSpec.from_type(Person).json_schema["$defs"]["Person"]["properties"]
            {'name': {'type': 'string'}}
        """
        made = getattr(kind, "model_json_schema", None)
        try:
            schema = msgspec.json.schema(kind) if made is None else made()
        except Exception as error:  # of msgspec or pydantic
            raise SpecError(f"Expected a type that has a JSON Schema: {error}") from error
        return cls(json_schema=_closed(schema), whitespace_pattern=whitespace_pattern)


def _closed(schema: Any) -> Any:
    """Return a schema whose objects have no fields but those that it names."""
    if isinstance(schema, list):
        return [_closed(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = {name: _closed(each) for name, each in cast("dict[str, Any]", schema).items()}
    is_object = isinstance(fields.get("properties"), dict) and fields.get("type") == "object"
    return {"additionalProperties": False, **fields} if is_object else fields
