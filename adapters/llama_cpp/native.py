"""Native kinds, which llama.cpp realizes by itself, as arguments of a completion."""

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, cast

import llama_cpp
from llama_cpp import Llama, LlamaGrammar, LogitsProcessorList

from ...spec import (
    VERSION,
    ChainSpec,
    Given,
    GrammarSpec,
    InProcessPayload,
    NativeSpec,
    SamplingSpec,
    SpecError,
    specs_of,
)
from ...spec.base import processor_specs, restore_paths
from ..detection import Profile
from ..native import check_grammar, fields_of, native_fields
from .backend import BACKEND
from .json_schema import gbnf
from .processor import LogitportProcessor

_TERMINALS = re.compile(r'"(?:\\[\s\S]|[^"\\])*"|\[(?:\\[\s\S]|[^\]\\])*\]|#.*')
"""The parts of a grammar in which parentheses do not nest."""

MAX_NESTED = 256
"""The maximum depth of a grammar's parentheses. llama.cpp parses them recursively."""


def arguments(
    llm: Llama, specs: Given, profiles: Mapping[str, Profile] | None = None
) -> dict[str, Any]:
    """Make the arguments of ``create_completion`` or ``create_chat_completion`` for specs.

    They serve any number of completions, one after the other. Other arguments may be added, but
    not a grammar: llama.cpp ends the process if it accepts none of the tokens that specs leave.
    Specs may be JSON (see ``extra_body``), with texts for llama.cpp's own tokenizer. A
    ``watermark`` needs ``profiles``. It and a ``chain`` need a ``SamplingSpec`` beside them, with
    the temperature.

    Returns:
        ``logits_processor`` for specs that logitport realizes; other processors may be appended.
        ``grammar``, ``temperature`` and the like for specs that llama.cpp realizes.

    Raises:
        SpecError: for a spec that llama.cpp cannot obey exactly, with its path.
    """
    specs = specs_of(specs, cast("Any", llm))
    if not specs:
        return {}
    payload = InProcessPayload(VERSION, specs)  # pyright: ignore
    BACKEND.check(specs)
    check_grammar(specs, comes_last=True)  # llama.cpp ends the process if no token is left
    payload.check_vocabulary(llm.n_vocab())
    result, _ = native_fields(specs, _fields, llm)
    if realized := processor_specs(specs):
        with restore_paths(specs):
            sampling = next((each for each in specs if isinstance(each, SamplingSpec)), None)
            processor = LogitportProcessor(llm, realized, profiles=profiles, sampling=sampling)
            result["logits_processor"] = _Processors([processor])
            if any(isinstance(each, ChainSpec) for each in realized):
                result = {**_NEUTRAL, **result}
    return result


_NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""What a completion with a chain has instead of the defaults, which would cut what it leaves."""


class _Processors(LogitsProcessorList):
    """A list that ``create_completion(logit_bias=...)`` does not lose.

    It uses the result of ``extend``, which is ``None`` for other lists (``llama_cpp/llama.py``,
    llama-cpp-python 0.3.36). The bias belongs to one completion, so this list does not change.
    """

    def extend(self, others: Any) -> Any:
        return _Processors([*self, *others])


def _fields(spec: NativeSpec, llm: Llama) -> dict[str, Any]:
    if isinstance(spec, GrammarSpec):
        return {"grammar": _grammar(llm, spec)}
    fields = fields_of(spec)
    for name in ("presence_penalty", "frequency_penalty"):
        if fields.get(name) and llm.last_n_tokens_size < llm.n_ctx():
            raise SpecError(
                f"llama_cpp does not support `{name}` on the whole output: it reads the newest "
                f"{llm.last_n_tokens_size} tokens. Expected Llama(last_n_tokens_size=n), "
                f"with n at least {llm.n_ctx()}",
                name,
            )
    if (penalty := fields.pop(name := "repetition_penalty", None)) is not None:
        if penalty != 1:
            what = "its penalty ignores the tokens of the prompt"
            raise SpecError(f"llama_cpp does not support `{name}`: {what}", name)
        fields["repeat_penalty"] = penalty
    return fields


def _grammar(llm: Llama, spec: GrammarSpec) -> LlamaGrammar:
    for name in ("regex", "structural_tag"):
        if getattr(spec, name) is not None:
            raise SpecError(f"llama_cpp does not support a `grammar` by `{name}`", name)
    if spec.json_schema is not None:
        form, text = "json_schema", gbnf(spec.json_schema)
    elif spec.choices is not None:
        # GBNF's terminals have no other escapes that a text needs.
        escaped = (text.replace("\\", "\\\\").replace('"', '\\"') for text in spec.choices)
        form, text = "choices", "root ::= " + " | ".join(f'"{text}"' for text in escaped)
    else:
        assert spec.ebnf is not None  # exactly one form is given
        form, text = "ebnf", spec.ebnf
    # `LlamaGrammar` takes any text; a text that llama.cpp cannot parse ends the process later.
    rules = _TERMINALS.sub("", text)
    if max(accumulate((c == "(") - (c == ")") for c in rules), default=0) > MAX_NESTED:
        raise SpecError(f"Expected at most {MAX_NESTED} nested parentheses", form)
    vocab: Any = llama_cpp.llama_model_get_vocab(llm.model)
    try:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), b"root")
    except UnicodeEncodeError:
        raise SpecError("The grammar is not valid Unicode", form) from None
    if not sampler:
        raise SpecError("llama_cpp cannot parse the grammar; its log says why", form)
    llama_cpp.llama_sampler_free(sampler)
    return LlamaGrammar.from_string(text)
