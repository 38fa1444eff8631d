"""Holds grammars for JSON to schemas with instances: the JSON-Schema-Test-Suite, or MaskBench.

``python -m tests.tools.json_schemas FOLDER [--native]`` reads all files of JSON below a folder. A
file of the suite is a list of schemas with tests, as in the sdist of jsonschema
(``json/tests/draft2020-12``); one of MaskBench is an object with the schema and its tests
(``guidance-ai/jsonschemabench``, ``maskbench/data``). With ``--native`` it prints the figures of
XGrammar, too, the backend that vLLM chooses first.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from logitport.adapters.core import Vocabulary, compile_specs
from logitport.spec import GrammarSpec, SpecError
from transformers import AutoTokenizer

from tests.support.paths import ROOT

Accepts = Callable[[Sequence[int]], bool]


def cases(folder: Path) -> Iterator[tuple[str, Any, list[tuple[Any, bool]]]]:
    """Yield schemas, each with instances and whether these are valid."""
    for file in sorted(folder.rglob("*.json")):
        content = json.loads(file.read_text("utf-8"))
        for group in content if isinstance(content, list) else [content]:
            if isinstance(group, dict) and "schema" in group and "tests" in group:
                tests = [(each["data"], each["valid"]) for each in group["tests"]]
                yield f"{file.stem}: {group.get('description', '')}", group["schema"], tests


class Ours:
    """logitport's matcher, without an engine."""

    name = "logitport"

    def __init__(self, tokenizer: Any) -> None:
        self._vocabulary = Vocabulary.of_tokenizer(tokenizer).ending([tokenizer.eos_token_id])

    def compile(self, schema: Any) -> Accepts:
        spec = GrammarSpec(json_schema=schema)
        (grammar,) = compile_specs((spec,), lambda: self._vocabulary).grammars

        def accepts(token_ids: Sequence[int]) -> bool:
            matcher = grammar.start.copy()
            for token in token_ids:
                words = np.frombuffer(matcher.compute_bitmask(), np.uint32)
                if not words[token >> 5] >> (token & 31) & 1 or not matcher.consume_token(token):
                    return False
            return matcher.is_accepting()

        return accepts


class Native:
    """XGrammar, as vLLM compiles it."""

    name = "xgrammar"

    def __init__(self, tokenizer: Any) -> None:
        import xgrammar as xgr

        info = xgr.TokenizerInfo.from_huggingface(tokenizer)
        self._xgr, self._compiler = xgr, xgr.GrammarCompiler(info, max_threads=1)

    def compile(self, schema: Any) -> Accepts:
        grammar = self._compiler.compile_json_schema(json.dumps(schema), any_whitespace=True)

        def accepts(token_ids: Sequence[int]) -> bool:
            matcher = self._xgr.GrammarMatcher(grammar, terminate_without_stop_token=True)
            return all(map(matcher.accept_token, token_ids)) and matcher.is_terminated()

        return accepts


def measure(backend: Any, tokenizer: Any, folder: Path, show: bool) -> dict[str, Any]:
    """Count schemas and instances by what becomes of them."""
    counts, seconds, slowest = Counter[str](), 0.0, 0.0
    for name, schema, tests in cases(folder):
        counts["schemas"] += 1
        begun = time.perf_counter()
        try:
            accepts = backend.compile(schema)
        except (SpecError, RuntimeError, ValueError, TypeError) as error:
            counts["refused"] += 1
            if show:
                print("refused", name, str(error)[:120])
            continue
        finally:
            took = time.perf_counter() - begun
            seconds, slowest = seconds + took, max(slowest, took)
        for instance, is_valid in tests:
            text = json.dumps(instance, ensure_ascii=False)
            got = accepts(tokenizer.encode(text, add_special_tokens=False))
            counts[f"{'valid' if is_valid else 'invalid'}, {'accepted' if got else 'refused'}"] += 1
            if show and got != is_valid:
                print("accepted" if got else "refused", name, text[:90])
    mean = round(1e3 * seconds / max(counts["schemas"], 1), 2)
    return {**counts, "compile, ms": mean, "slowest, ms": round(1e3 * slowest, 1)}


def main(folder: str, *options: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(ROOT / ".models" / "SmolLM2-135M-Instruct")
    for backend in (Ours, Native) if "--native" in options else (Ours,):
        made = measure(backend(tokenizer), tokenizer, Path(folder), "--show" in options)
        print(backend.name, json.dumps(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
