"""Native kinds: what llama.cpp does by itself, asked for in the arguments of a completion."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import llama_cpp
import msgspec
from llama_cpp import Llama, LlamaGrammar, LogitsProcessorList

from ...spec import (
    VERSION,
    AllowedTokensSpec,
    GrammarSpec,
    LivePayload,
    LogitsProcessorSpec,
    PluginSpec,
    PythonProcessorSpec,
    SamplingSpec,
    SpecError,
    ThinkingBudgetSpec,
)
from ...spec.base import places_among, several, without_native
from .back_end import BACK_END
from .json_schema import gbnf
from .processor import LogitportProcessor

NOT_BESIDE_GRAMMAR = (AllowedTokensSpec, ThinkingBudgetSpec, PluginSpec, PythonProcessorSpec)
"""The kinds that may leave no token which a grammar takes. llama.cpp ends the process then."""

_TERMINALS = re.compile(r'"(?:\\[\s\S]|[^"\\])*"|\[(?:\\[\s\S]|[^\]\\])*\]|#.*')
"""What parentheses in a grammar may stand in without nesting anything."""

MAX_NESTED = 256
"""How deep a grammar's parentheses may nest. llama.cpp parses them recursively."""


def arguments(
    llm: Llama, specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec]
) -> dict[str, Any]:
    """What to pass to ``create_completion`` or ``create_chat_completion`` to ask for specs.

    Args:
        llm: the one that generates.
        specs: one or several; with none there is nothing to pass.

    Returns:
        ``logits_processor`` for what logitport realizes, to which others may be appended;
        ``grammar``, ``temperature`` and the like for what llama.cpp does. They serve any number of
        completions, one after the other. Other arguments may stand beside them, but no grammar
        where there is none here: llama.cpp ends the process where it takes none of the tokens that
        specs leave.

    Raises:
        SpecError: for a spec that llama.cpp cannot obey exactly, with its path.
    """
    specs = several(specs)
    if not specs:
        return {}
    payload = LivePayload(VERSION, specs)  # pyright: ignore
    BACK_END.check(specs)
    payload.check_vocabulary(llm.n_vocab())
    has_grammar = any(isinstance(spec, GrammarSpec) for spec in specs)
    result: dict[str, Any] = {}
    for i, spec in enumerate(specs):
        try:
            if isinstance(spec, GrammarSpec):
                result["grammar"] = _grammar(llm, spec)
            elif isinstance(spec, SamplingSpec):
                result.update(_sampling(llm, spec))
            elif has_grammar and isinstance(spec, NOT_BESIDE_GRAMMAR):
                raise SpecError(f"llama_cpp cannot do `{spec.kind}` beside a grammar")
        except SpecError as error:
            raise error.under(f"$.specs[{i}]") from error.__cause__
    if realized := without_native(specs):
        with places_among(specs):
            result["logits_processor"] = _Processors([LogitportProcessor(llm, realized)])
    return result


class _Processors(LogitsProcessorList):
    """A list that ``create_completion(logit_bias=...)`` does not lose.

    It goes on with what ``extend`` returns, which for any other list is ``None``
    (``llama_cpp/llama.py``, llama-cpp-python 0.3.36). The bias is that completion's alone, so the
    list stays as it is.
    """

    def extend(self, others: Any) -> Any:
        return _Processors([*self, *others])


def _sampling(llm: Llama, spec: SamplingSpec) -> Iterator[tuple[str, float]]:
    for name, value in msgspec.structs.asdict(spec).items():
        if value is None:
            continue
        if name in ("presence_penalty", "frequency_penalty"):
            if value and llm.last_n_tokens_size < llm.n_ctx():
                raise SpecError(
                    f"llama_cpp cannot do `{name}` on the whole output: it looks at the newest "
                    f"{llm.last_n_tokens_size} tokens. Expected Llama(last_n_tokens_size=n), "
                    f"with n at least {llm.n_ctx()}",
                    f"$.{name}",
                )
        elif name == "repetition_penalty":
            if value != 1:
                what = "llama.cpp leaves the prompt's tokens alone"
                raise SpecError(f"llama_cpp cannot do `{name}`: {what}", f"$.{name}")
            name = "repeat_penalty"
        yield name, value


def _grammar(llm: Llama, spec: GrammarSpec) -> LlamaGrammar:
    if spec.regex is not None:
        raise SpecError("llama_cpp cannot do a `grammar` by `regex`", "$.regex")
    if spec.json_schema is not None:
        form, text = "json_schema", gbnf(spec.json_schema)
    elif spec.choices is not None:
        form, text = "choices", "root ::= " + " | ".join(map(_literal, spec.choices))
    else:
        assert spec.ebnf is not None  # exactly one of them is given
        form, text = "ebnf", spec.ebnf
    # `LlamaGrammar` takes anything; what llama.cpp cannot parse ends the process later on.
    rules = _TERMINALS.sub("", text)
    if max(accumulate((c == "(") - (c == ")") for c in rules), default=0) > MAX_NESTED:
        raise SpecError(f"Expected at most {MAX_NESTED} nested parentheses", f"$.{form}")
    vocab: Any = llama_cpp.llama_model_get_vocab(llm.model)
    try:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), b"root")
    except UnicodeEncodeError:
        raise SpecError("The grammar is not valid Unicode", f"$.{form}") from None
    if not sampler:
        raise SpecError("llama_cpp cannot parse the grammar; its log says why", f"$.{form}")
    llama_cpp.llama_sampler_free(sampler)
    return LlamaGrammar.from_string(text)


def _literal(text: str) -> str:
    """A terminal of GBNF."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
