"""How many replies end, with and without rules against loops and endless white space.

``python -m benchmarks.endings vllm`` asks a small model that likes to repeat itself, greedily and
at a temperature, with nothing, with the engine's own means, and with specs. Each engine adds its
rows to ``benchmarks/results/endings.json`` and ``endings.md``. SGLang needs its own environment.
"""

import json
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from logitport.adapters.reference import edit
from logitport.spec import (
    DrySpec,
    GrammarSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MaxRunSpec,
    NoLoopSpec,
    ThinkingBudgetSpec,
)

from examples._support.smollm2 import prepare
from examples.portable.engines import choose_runner

DTYPE = "bfloat16"
RESULTS = Path(__file__).parent / "results"
TASKS = (
    *("Write a long list of", "Tell me everything about", "Write a poem about", "Explain again"),
    *("Write a report on", "Give many examples of", "Describe step by step", "Write a song about"),
    *("Count all", "Repeat what you know about"),
)
SUBJECTS = (
    *("apples", "the sea", "numbers", "old cities", "trains", "birds", "tea", "winter", "maps"),
    *("music", "rivers", "colours", "bread", "the moon", "clocks", "gardens", "horses", "rain"),
    *("letters", "stone"),
)
BAN, RUN = NoLoopSpec(5, min_tokens=96), MaxRunSpec(64)
OWN = "the engine's own"
MODES: dict[str, tuple[LogitsProcessorSpec, ...]] = {
    "nothing": (),
    OWN: (),
    "`dry`": (DrySpec(0.8),),
    "`no_loop`": (BAN,),
    "`guard.yaml`": (BAN, RUN),
}
STANDING = NoLoopSpec(5, min_tokens=96, then_token_ids=(0,))
"""It forces a token where a loop stands."""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

REQUESTS = [f"{task} {subject}." for subject, task in product(SUBJECTS, TASKS)]
Engine = Annotated[str, typer.Argument(help="vllm, vllm-v2 or sglang")]

app = typer.Typer(add_completion=False)


def ask(engine: str, asked: Sequence[tuple[list[int], dict[str, Any], Any]]) -> list[list[int]]:
    """Run prompts with sampling parameters and specs on an engine; return the outputs."""
    if engine == "sglang":
        from logitport.adapters.sglang import attach
        from sglang.srt.entrypoints.engine import Engine

        from examples._support.sglang_server import OPTIONS

        more = {"dtype": DTYPE, "max_total_tokens": 1 << 16, "max_running_requests": 64}
        running = Engine(model_path=str(prepare()), **OPTIONS | more)
        try:
            made = [attach({"sampling_params": {**fields}}, specs) for _, fields, specs in asked]
            results: Any = running.generate(
                input_ids=[prompt for prompt, _, _ in asked],
                sampling_params=[each["sampling_params"] for each in made],
                custom_logit_processor=[each.get("custom_logit_processor") for each in made],
            )
            return [result["output_ids"] for result in results]
        finally:
            running.shutdown()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    from logitport.adapters.vllm import attach as attach_to
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(prepare()),
        dtype=DTYPE,
        enforce_eager=True,
        max_model_len=640,
        kv_cache_memory_bytes=2 << 30,
        logits_processors=["logitport.adapters.vllm:LogitportProcessor"],
    )
    params = [attach_to(SamplingParams(**fields), specs) for _, fields, specs in asked]
    prompts: Any = [{"prompt_token_ids": prompt} for prompt, _, _ in asked]
    return [list(each.outputs[0].token_ids) for each in llm.generate(prompts, params)]


def own_means(engine: str) -> dict[str, Any]:
    """Return the engine's own parameters against loops."""
    if engine == "sglang":
        return {"repetition_penalty": 1.1}
    from vllm.sampling_params import RepetitionDetectionParams

    detection = RepetitionDetectionParams(
        max_pattern_size=BAN.max_period, min_pattern_size=1, min_count=BAN.times
    )
    return {"repetition_detection": detection}


@app.command()
def loops(
    engine: Engine,
    prompts: Annotated[int, typer.Option(help="of 200")] = 200,
    tokens: int = 512,
    temperature: Annotated[list[float], typer.Option()] = [0.0, 0.6],  # noqa: B006
) -> None:
    """Count the replies that end by themselves, and those that end in a loop."""
    choose_runner(engine)
    chats, tokenizer = _chats(REQUESTS[:prompts])
    cases = [(heat, name) for heat in temperature for name in MODES]
    fields = [
        {"temperature": heat} | (own_means(engine) if name == OWN else {}) for heat, name in cases
    ]
    specs = [MODES[name] for _, name in cases]
    outputs, rows = _ask_all(engine, chats, fields, specs, tokens), list[list[Any]]()
    for (heat, name), said in zip(cases, outputs, strict=True):
        ended = sum(tokenizer.eos_token_id in each for each in said)
        lost = sum(edit(STANDING, (), each) is not None for each in said)
        row = [engine, heat, name, len(said)]
        rows.append([*row, ended, lost, len(said) - ended - lost, sum(map(len, said))])
    _keep("loops", engine, rows)


@app.command()
def thinking(engine: Engine, prompts: int = 40, tokens: int = 512) -> None:
    """Count the thinking blocks that are closed, and the answers after them."""
    choose_runner(engine)
    chats, tokenizer = _chats(REQUESTS[:prompts])
    start, end, then = (
        tuple[int](tokenizer.encode(text, add_special_tokens=False))
        for text in ("<think>", "</think>", "\n\nAnswer:")
    )
    stop = (tokenizer.eos_token_id,)
    budget = ThinkingBudgetSpec(384, start, end, then_token_ids=then, stop_token_ids=stop)
    loop = NoLoopSpec.within_thinking(budget, BAN.times, min_tokens=BAN.min_tokens)
    modes = {
        "nothing": (),
        "`thinking_budget` of 384": (budget,),
        "the same, and `no_loop`": (budget, loop),
    }
    rows: list[list[Any]] = []
    fields = [{"temperature": 0.0}] * len(modes)
    opened = [[*chat, *start] for chat in chats]
    outputs = _ask_all(engine, opened, fields, [*modes.values()], tokens)
    for name, said in zip(modes, outputs, strict=True):
        parts = [tokenizer.decode(each, skip_special_tokens=True) for each in said]
        parts = [text.partition("</think>\n\nAnswer:") for text in parts]
        blocks = sum(len(tokenizer.encode(thought)) for thought, _, _ in parts)
        closed = sum(bool(tag) for _, tag, _ in parts)
        answered = sum(bool(answer.strip()) for _, _, answer in parts)
        rows.append([engine, name, len(said), closed, answered, blocks])
    _keep("thinking", engine, rows)


@app.command()
def white_space(engine: Engine, prompts: int = 100, tokens: int = 256) -> None:
    """Count the replies in JSON that are complete, where the model prefers white space."""
    choose_runner(engine)
    ask_for = [f"Invent a person who likes {each}, as JSON." for each in SUBJECTS * 5]
    chats, tokenizer = _chats(ask_for[:prompts])
    spaces = [i for i in range(len(tokenizer)) if not tokenizer.decode([i]).strip(" \t\r\n")]
    spaces = [i for i in spaces if tokenizer.decode([i])]
    likes = LogitBiasSpec(dict.fromkeys(spaces, 8.0)), GrammarSpec(json_schema=SCHEMA)
    modes = {"nothing": (), "`max_run` of 8": (MaxRunSpec(8),), "`guard.yaml`": (BAN, RUN)}
    fields = [{"temperature": 0.0}] * len(modes)
    outputs = _ask_all(engine, chats, fields, [likes + more for more in modes.values()], tokens)
    rows: list[list[Any]] = []
    for name, said in zip(modes, outputs, strict=True):
        texts = [tokenizer.decode(each, skip_special_tokens=True) for each in said]
        rows.append([engine, name, len(said), sum(map(_is_valid, texts)), sum(map(len, said))])
    _keep("white space", engine, rows)


def _ask_all(
    engine: str,
    chats: Sequence[list[int]],
    fields: Sequence[dict[str, Any]],
    specs: Sequence[tuple[LogitsProcessorSpec, ...]],
    tokens: int,
) -> list[list[list[int]]]:
    """Ask all chats with each of the parameters and specs; return the outputs of each."""
    limit = "max_new_tokens" if engine == "sglang" else "max_tokens"
    cases = [(each | {limit: tokens}, more) for each, more in zip(fields, specs, strict=True)]
    outputs = ask(engine, [(chat, *case) for case in cases for chat in chats])
    return [outputs[i : i + len(chats)] for i in range(0, len(outputs), len(chats))]


def _is_valid(text: str) -> bool:
    """Whether the text is whole. Grammars of engines take tabs within JSON's strings."""
    try:
        return json.loads(text, strict=False).keys() == SCHEMA["properties"].keys()  # pyright: ignore
    except ValueError:
        return False


def _chats(texts: Sequence[str]) -> tuple[list[list[int]], Any]:
    """Tokenize user messages."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(prepare())
    messages = [[{"role": "user", "content": text}] for text in texts]
    made = [
        tokenizer.apply_chat_template(each, add_generation_prompt=True, tokenize=False)
        for each in messages
    ]
    return [tokenizer.encode(each, add_special_tokens=False) for each in made], tokenizer


HEADS = {
    "loops": (
        *("engine", "temperature", "with", "replies", "end by themselves", "end in a loop"),
        *("go on without one", "tokens"),
    ),
    "thinking": ("engine", "with", "replies", "blocks closed", "answered", "tokens of the blocks"),
    "white space": ("engine", "with", "replies", "complete JSON", "tokens"),
}


def _keep(what: str, engine: str, rows: list[list[Any]]) -> None:
    """Write an engine's rows beside those of the others."""
    file = RESULTS / "endings.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    others = [row for row in kept.get(what, []) if row[0] != engine]
    kept[what] = [*others, *rows]
    file.write_text(json.dumps(kept, indent=1) + "\n")
    lines = ["# Replies that end", "", "Made by `python -m benchmarks.endings`.", ""]
    for name, head in HEADS.items():
        table = [head, ["---"] * len(head), *kept.get(name, [])]
        lines += [f"## {name.capitalize()}", ""]
        lines += ["| " + " | ".join(map(str, row)) + " |" for row in table] + [""]
    (RESULTS / "endings.md").write_text("\n".join(lines).rstrip() + "\n")
    for row in rows:
        print(*row, sep=" | ")


if __name__ == "__main__":
    app()
