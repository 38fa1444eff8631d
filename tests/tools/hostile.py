"""A hostile client against a guard (``python -m tests.tools.hostile --engine vllm-v2``).

A real server has a guard. Clients that have read docs/configuration.md try to get out what it
forbids: with random specs, made of pieces of what is forbidden, with the engine's own fields,
special tokens, grammars, and prompts of broken embeddings. The reference, which knows no automata,
reads each reply.

It prints figures. The status is 1 if a guarded token or text comes, or if the server ends.
"""

import asyncio
import base64
import io
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import torch
import typer
from logitport import spec as s
from logitport.adapters import extra_body
from logitport.adapters.reference import edits
from logitport.adapters.reference.kinds.base import Add, Allow, flat
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from examples._support import ending, v2_on_cpu
from examples._support.server import Server
from examples._support.smollm2 import prepare

EOS, SPECIAL, MODEL_SIZE = 2, 3, 576
TEXT = {"kind": "banned_text", "texts": ["zebra"]}
PAIRS = {"kind": "banned_sequences", "sequences": [[28, 29], [260, 28]]}
GUARDS: list[list[dict[str, Any]]] = [
    [TEXT, {"kind": "banned_tokens", "token_ids": [7585]}, PAIRS],
    [
        {"kind": "no_repeat_ngram", "n": 2, "output_only": True},
        {"kind": "no_loop", "times": 2, "max_period": 4},
        {**TEXT, "ignore_case": True},
    ],
    [
        {"kind": "min_tokens", "n": 4, "stop_token_ids": [EOS, 0]},
        TEXT,
        {
            "kind": "phases",
            "phases": [
                {"specs": [{"kind": "banned_tokens", "token_ids": [28]}], "ends": [{"n": 3}]},
                {"specs": [{"kind": "banned_tokens", "token_ids": [29]}]},
            ],
        },
    ],
]
SPLITS: list[list[str | int]] = [
    *(["ze", "bra"], ["zeb", "ra"], ["z", "ebra"], ["z", "e", "b", "r", "a"], ["zebra"]),
    *([28, 29], [260, 28, 29], [7585], [28], [29], ["ze", "b", "ra"], [28, 28]),
    *(["ze", "bra", "ze", "bra"], ["ze", SPECIAL, "bra"], ["ze", EOS, "bra"]),
    *(["z", SPECIAL, EOS, "ebra"], [28, SPECIAL, 29], ["ZE", "bra"]),
]
"""What is forbidden, in pieces: texts and token ids."""
PROMPTS = "The animal is a ze", "Say ze: ze", "A striped animal is called a", "hello", "x (: (;"
GRAMMARS: list[dict[str, Any]] = [
    *({"choice": ["zebra", "yes"]}, {"choice": ["a zebra"]}, {"json": {"type": "integer"}}),
    *({"regex": "ze(bra|n)"}, {"regex": "(ze)?bra"}),
]
BROKEN = float("nan"), float("inf"), 1e38
"""Values of embeddings of which a model makes NaN."""
TIMEOUT_S = 300.0


class Client:
    """One kind of hostile client: random requests, and whether a reply has what is forbidden.

    Args:
        engine: ``vllm`` or ``sglang``.
        guard: as in the configuration.
        tokenizer: the model's.
        chance: what decides.
    """

    def __init__(
        self,
        engine: str,
        guard: Sequence[dict[str, Any]],
        tokenizer: Tokenizer,
        chance: random.Random,
    ) -> None:
        self._engine, self._tokenizer, self._chance = engine, tokenizer, chance
        self._texts = [each for each in guard if each["kind"] == "banned_text"]
        others = [each for each in guard if each["kind"] != "banned_text"]
        self._others = s.decode(json.dumps({"version": 1, "specs": others})).specs

    def _ids(self, pieces: Sequence[str | int]) -> tuple[int, ...]:
        found: list[int] = []
        for each in pieces:
            found += [each] if isinstance(each, int) else self._tokenizer.encode(each).ids
        return tuple(found)

    def _two_parts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        pieces = self._chance.choice(SPLITS)
        cut = self._chance.randrange(1, len(pieces) + 1)
        return self._ids(pieces[:cut]), self._ids(pieces[cut:]) or self._ids(pieces)

    def _spec(self) -> s.LogitsProcessorSpec:
        chance, (a, b) = self._chance, self._two_parts()
        end = chance.choice([None, EOS])
        both, forced = (*a, *b), s.ForcedTokenSequenceSpec
        makers: list[Callable[[], s.LogitsProcessorSpec]] = [
            lambda: forced(chance.choice([both, b]), end),
            lambda: s.ForcedEndSpec(chance.randrange(4), b, end),
            lambda: s.ChoiceSpec(tuple({both, b, a, (500,)}), EOS),
            lambda: s.TriggerSpec(a, b, chance.choice([1, None])),
            lambda: s.AllowedTokensSpec(tuple({*both, chance.randrange(100, 900)})),
            lambda: s.LogitBiasSpec(dict.fromkeys(both, chance.choice([10000.0, 100.0]))),
            lambda: s.PhasesSpec(
                (s.Phase((forced(a),), (s.PhaseEnd(complete=True),)), s.Phase((forced(b),)))
            ),
            lambda: s.PhasesSpec(
                (
                    s.Phase((s.AllowedTokensSpec(tuple({*a})),), (s.PhaseEnd(n=len(a)),)),
                    s.Phase((s.AllowedTokensSpec(tuple({*b})),)),
                )
            ),
            lambda: s.ThinkingBudgetSpec(
                chance.randrange(1, 4), a[:1], b if b != a[:1] else (*b, 300)
            ),
            lambda: s.AutomatonSpec(
                (
                    s.AutomatonState(force=a[0], default=1),
                    s.AutomatonState(force=b[0], default=chance.choice([0, 2])),
                    s.AutomatonState(allow=0),
                ),
                (tuple({*both}),),
            ),
            lambda: s.NoLoopSpec(2, max_period=2, then_token_ids=b),
            lambda: s.BannedTokensSpec(tuple(range(300, 400))),
            lambda: s.MinTokensSpec(chance.randrange(1, 9), (EOS,)),
            lambda: s.PromptBiasSpec(100.0),
        ]
        return chance.choice(makers)()

    def _specs(self) -> list[s.LogitsProcessorSpec]:
        specs: list[s.LogitsProcessorSpec] = []
        for _ in range(self._chance.choice([0, 1, 1, 2, 2, 3])):
            with suppress(s.SpecError):
                specs.append(self._spec())
        return specs

    def _fields(self) -> dict[str, Any]:
        """Draw the engine's own fields, under the names that both engines have."""
        chance, ids = self._chance, self._ids(self._chance.choice(SPLITS))
        likely: list[tuple[float, str, Any]] = [
            (0.3, "logit_bias", {str(each): chance.choice([100, 99.0, 10000]) for each in ids}),
            (0.2, "ignore_eos", True),
            (0.2, "stop_token_ids", [chance.choice(ids)]),
            (0.2, "repetition_penalty", chance.choice([0.1, 2.0, 0.5])),
            (0.2, "presence_penalty", chance.choice([-2.0, 2.0])),
            (0.2, "frequency_penalty", chance.choice([-2.0, 2.0])),
            (0.1, "min_p", 0.5),
            (0.1, "top_k", 1),
        ]
        fields = {name: value for share, name, value in likely if chance.random() < share}
        return {**fields, "temperature": chance.choice([0, 0, 1.0, 2.0, 1e-3])}

    def _of_vllm(self) -> dict[str, Any]:
        chance, ids = self._chance, self._ids(self._chance.choice(SPLITS))
        body: dict[str, Any] = {"prompt": chance.choice(PROMPTS), "return_token_ids": True}
        likely: list[tuple[float, str, Any]] = [
            (0.15, "allowed_token_ids", list({*ids, *chance.sample(range(100, 2000), 2)})),
            (0.1, "allowed_token_ids", [7585, 8000]),
            (0.1, "bad_words", ["hello"]),
            (0.2, "min_tokens", chance.randrange(1, 6)),
            (0.1, "n", 2),
            (0.12, "structured_outputs", chance.choice(GRAMMARS)),
            (0.03, "trace_decode_token_ids", [*ids]),
            (0.03, "use_beam_search", True),
        ]
        body |= {name: value for share, name, value in likely if chance.random() < share}
        if chance.random() < 0.2:
            rows = torch.randn(chance.randrange(1, 6), MODEL_SIZE)
            rows[chance.randrange(len(rows)), :] = chance.choice(BROKEN)
            torch.save(rows, file := io.BytesIO())
            body |= {"prompt": [], "prompt_embeds": base64.b64encode(file.getvalue()).decode()}
        return body

    def request(self) -> tuple[str, dict[str, Any], int]:
        """Draw a request: its route, its body, and what it says to continue."""
        chance, specs = self._chance, self._specs()
        continued = chance.randrange(1, 5) if specs and chance.random() < 0.2 else 0
        carried = extra_body(self._engine, specs, continued=continued) if specs else {}
        fields, tokens = self._fields(), chance.choice([6, 12])
        if self._engine == "vllm":
            body = {**self._of_vllm(), **fields, "max_tokens": tokens, **carried}
            return "/v1/completions", body, continued
        if chance.random() < 0.12:
            grammar = chance.choice(GRAMMARS)
            fields["regex"] = grammar.get("regex") or "|".join(grammar.get("choice", ["[0-9]+"]))
        if chance.random() < 0.2:
            fields["min_new_tokens"] = chance.randrange(1, 6)
        fields |= {"max_new_tokens": tokens}
        fields |= {name: carried.pop(name) for name in ("custom_params",) if name in carried}
        text = chance.choice(PROMPTS)
        body = {"sampling_params": fields, **carried}
        ids = self._tokenizer.encode(text).ids
        return "/generate", {**body, "input_ids": ids}, continued

    def outputs(self, body: Any, reply: Any) -> list[tuple[list[int], list[int]]]:
        """Return the prompts and the outputs of a reply, as token ids."""
        if self._engine == "vllm":
            return [
                (each["prompt_token_ids"] or [], each["token_ids"]) for each in reply["choices"]
            ]
        replies = reply if type(reply) is list else [reply]
        return [(body["input_ids"], each["output_ids"]) for each in replies]

    def hole(self, prompt: list[int], output: list[int], continued: int) -> str | None:
        """Return what a reply has that the guard forbids; the end of a reply is allowed.

        What a client says to continue is its own: the guard reads it, and forbids it no more.
        """
        seam = len(prompt) - continued
        prompt, output = prompt[:seam], [*prompt[seam:], *output]
        before, said = (
            self._tokenizer.decode(ids, skip_special_tokens=True)
            for ids in (output[:continued], output)
        )
        for each in self._texts:
            if each.get("ignore_case"):
                before, said = before.lower(), said.lower()
            if any(said.count(word) > before.count(word) for word in each["texts"]):
                return f"the text {said!r}"
        for i in range(continued, len(output)):
            token = output[i]
            for edit in () if token in (0, EOS) else flat(edits(self._others, prompt, output[:i])):
                is_banned = isinstance(edit, Add) and edit.values.get(token, 0) < -5e8
                if is_banned or (isinstance(edit, Allow) and token not in edit.tokens):
                    return f"token {token} at {i} of {output}"
        return None


class Seen:
    """What became of the requests to one server."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.holes: list[str] = []

    async def ask_on(self, client: Client, http: httpx.AsyncClient, deadline: float) -> None:
        while time.monotonic() < deadline and len(self.holes) < 20:
            route, body, continued = client.request()
            try:
                reply = await http.post(route, json=body)
            except httpx.HTTPError:  # an idle connection was closed, or the server has ended
                self.counts["no answer"] += 1
                await asyncio.sleep(1)
                continue
            self.counts[f"status {reply.status_code}"] += 1
            if not reply.is_success:
                continue
            for prompt, output in client.outputs(body, reply.json()):
                self.counts["outputs"] += 1
                self.counts["outputs that go on"] += continued > 0
                self.counts["ended by EOS"] += bool(output) and output[-1] in (0, EOS)
                if found := client.hole(prompt, output, continued):
                    body.pop("prompt_embeds", None)
                    self.holes.append(f"{found}: {json.dumps(body)[:2000]}")


def server_of(engine: str, configuration: Path, stack: ExitStack) -> Server:
    environment = {"LOGITPORT_CONFIG": str(configuration)}
    if engine == "sglang":
        from examples._support.sglang_server import SglangServer

        return SglangServer(prepare(), env=environment)
    from examples._support.vllm_server import VllmServer

    is_v2 = engine == "vllm-v2"
    environment["VLLM_USE_V2_MODEL_RUNNER"] = str(int(is_v2))
    arguments = ["--logits-processors", "logitport.adapters.vllm:LogitportProcessor"]
    arguments += ["--middleware", "logitport.adapters.vllm.SpecMiddleware"]
    arguments += ["--dtype", "float32", "--enable-prompt-embeds"]
    if is_v2:
        drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
        arguments += ["--speculative-config", json.dumps({**drafts, "prompt_lookup_min": 1})]
        if v2_on_cpu.is_needed():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            environment |= v2_on_cpu.environment_of_children(folder)
            environment["TRITON_INTERPRET"] = "1"
            path = [environment["PYTHONPATH"], *filter(None, [os.environ.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(path)
    return VllmServer(prepare(), *arguments, env=environment)


async def attack(engine: str, seconds: float, clients: int, number: int) -> Seen:
    """Start a server with a guard, and try to get out what it forbids."""
    guard, seen = GUARDS[number % len(GUARDS)], Seen()
    tokenizer = Tokenizer.from_file(str(prepare() / "tokenizer.json"))
    with ExitStack() as stack:
        configuration = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "guard.json"
        configuration.write_text(json.dumps({"guard": guard}))
        server = stack.enter_context(server_of(engine, configuration, stack))
        url, name = server.base_url.removesuffix("/v1"), engine.partition("-")[0]
        async with (
            httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as http,
            asyncio.TaskGroup() as group,
        ):
            deadline = time.monotonic() + seconds
            for i in range(clients):
                client = Client(name, guard, tokenizer, random.Random(number * 1000 + i))
                group.create_task(seen.ask_on(client, http, deadline))
        assert server.process is not None
        if not server.process.is_running():
            seen.holes.append(f"the server has ended; {server.log}")
    return seen


def main(engine: str = "vllm", seconds: float = 1200, clients: int = 16, seed: int = 0) -> None:
    """Attack the guard of one engine: vllm, vllm-v2 (with drafts) or sglang."""
    seen = asyncio.run(attack(engine, seconds, clients, seed))
    table = Table("figure", "value", title=f"{engine}, {seconds:g} s, seed {seed}")
    for what, value in [*sorted(seen.counts.items()), ("holes", len(seen.holes))]:
        table.add_row(what, str(value))
    console = Console()
    console.print(table)
    for what in seen.holes:
        console.print(f"  {what}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(bool(seen.holes))


if __name__ == "__main__":
    ending.run(lambda: typer.run(main))
