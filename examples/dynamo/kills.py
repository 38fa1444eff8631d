"""Replies that survive their worker: ``make demo-dynamo ARGS="--kills 30"``.

Each round sends one request of each kind, kills workers with SIGKILL in the middle of the replies,
and compares the replies with those without a kill. Dynamo sends the requests of a dead worker to
another one, with the tokens so far as part of the prompt.
"""

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logitport.adapters.dynamo import extra_body
from logitport.spec import (
    AutomatonSpec,
    AutomatonState,
    BannedTextSpec,
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    GrammarSpec,
    LogitsProcessorSpec,
    NoLoopSpec,
    Phase,
    PhaseEnd,
    PhasesSpec,
    ThinkingBudgetSpec,
    TriggerSpec,
)
from logitport.spec.tokenization import token_ids_of
from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient

from ..demo import console
from .deployment import FRONTEND, Deployment

MAX_TOKENS = 120
MIGRATIONS = "dynamo_frontend_model_migration_total"

MODES = {
    "agg": ["agg", "agg", "agg"],
    "pd": ["prefill", "prefill", "decode", "decode"],
}
"""The workers of the deployments, so that one of each is left after the kills of a round."""

_TEXT = {"type": "string", "maxLength": 12}
FOX = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "age": {"type": "integer", "minimum": 0, "maximum": 20},
        "friends": {"type": "array", "items": _TEXT, "minItems": 3, "maxItems": 4},
    },
    "required": ["name", "age", "friends"],
    "additionalProperties": False,
}
"""A schema, whose JSON has room in a reply."""

Kind = tuple[str, Sequence[LogitsProcessorSpec]]


@dataclass
class Tally:
    """What has been seen.

    Attributes:
        kills: how many workers were killed, by the moment.
        equal: how many replies were as without a kill, by kind.
        different: the other replies, by kind.
        migrated: how often a request went to another worker.
    """

    kills: dict[str, int] = field(default_factory=dict[str, int])
    equal: dict[str, int] = field(default_factory=dict[str, int])
    different: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    migrated: int = 0

    def summary(self) -> str:
        """Describe it."""
        kills = ", ".join(f"{count} {moment}" for moment, count in self.kills.items())
        lines = [
            f"{kind}: {self.equal.get(kind, 0)} replies as without a kill, "
            f"{len(self.different.get(kind, ()))} different"
            for kind in {**self.equal, **self.different}
        ]
        total = sum(self.kills.values())
        return "\n".join([f"{total} kills ({kills}), {self.migrated} migrations", *lines])


def kinds(tokenizer: Any) -> dict[str, Kind]:
    """Return a question and specs for each kind. The replies would differ if they began again."""
    sheep = ", ".join(f"{i} sheep" for i in range(1, 25)) + ", good night."
    story = "Tell me a long story about a fox."
    tag, end = token_ids_of("<think>", tokenizer), token_ids_of("</think>", tokenizer)
    opened = ForcedTokenSequenceSpec(tag, None)
    (comma,) = token_ids_of(",", tokenizer)
    every_fourth = (AutomatonState(default=i + 1) for i in range(3))
    with_comma = AutomatonState(force=comma, default=0)
    thirds = [f" the {one}, the second, and the third of all the {one}s" for one in ("fox", "owl")]
    phases = PhasesSpec(
        (
            Phase(ends=(PhaseEnd(n=25),)),
            Phase(
                (ForcedTokenSequenceSpec.from_text(sheep[:60], tokenizer, eos_token_id=None),),
                (PhaseEnd(complete=True),),
            ),
            Phase((ChoiceSpec.from_text(thirds, tokenizer),)),
        )
    )
    return {
        "forced_sequence": ("Count.", [ForcedTokenSequenceSpec.from_text(sheep, tokenizer)]),
        "phases": (story, [phases]),
        "thinking_budget": (story, [opened, ThinkingBudgetSpec(40, tag, end)]),
        "choice": (story, [ChoiceSpec.from_text([sheep, sheep[:80] + "?"], tokenizer)]),
        "trigger": (story, [TriggerSpec.from_text(",", " by the way,", tokenizer, times=3)]),
        "no_loop": ("Say yes, again and again.", [NoLoopSpec(3, min_tokens=6)]),
        "banned_text": (story, [BannedTextSpec(("the", "fox"), ignore_case=True)]),
        "grammar": ("Describe a fox as JSON.", [GrammarSpec(json_schema=FOX)]),
        "automaton": (
            story,
            [AutomatonSpec((*every_fourth, with_comma))],
        ),
    }


def survive(deployment: Deployment, tokenizer: Any, kills: int, seed: int = 0) -> Tally:
    """Kill ``kills`` workers, some in each round, and start them again; return what was seen.

    In turn, a worker dies before the first token, one dies at a random moment, or two die one after
    the other. In a deployment with prefill workers, one of them dies while it has prompts.
    """
    rng, asked, tally = random.Random(seed), kinds(tokenizer), Tally()
    asyncio.run(ask(deployment, asked))  # compiles
    start, progress = time.monotonic(), Progress()
    expected = asyncio.run(ask(deployment, asked, progress))
    json.loads(expected["grammar"])
    console.print(f"    without a kill: {time.monotonic() - start:.1f} s, {progress.chunks} chunks")
    generating = [name for name in deployment.names if not name.startswith("prefill")]
    prefilling = [name for name in deployment.names if name.startswith("prefill")]
    plans = [("any moment", 1), ("first token", 1), ("twice", 2)]
    if prefilling:
        plans = [("any moment", 1), ("in prefill", 1), ("first token", 1)]
    for i in range(kills):
        if sum(tally.kills.values()) >= kills:
            break
        moment, count = plans[i % len(plans)]
        count = min(count, kills - sum(tally.kills.values()))
        killed = rng.sample(prefilling if moment == "in prefill" else generating, count)
        most = {"in prefill": 0, "first token": 8}.get(moment, int(0.7 * progress.chunks))
        kills_at = dict(zip(killed, sorted(rng.randint(0, most) for _ in killed), strict=True))
        migrated = deployment.metric("frontend", MIGRATIONS)
        replies = asyncio.run(ask(deployment, asked, Progress(kills_at)))
        migrated = int(deployment.metric("frontend", MIGRATIONS) - migrated)
        tally.migrated += migrated
        tally.kills[moment] = tally.kills.get(moment, 0) + count
        for kind, reply in replies.items():
            if reply == expected[kind]:
                tally.equal[kind] = tally.equal.get(kind, 0) + 1
            else:
                tally.different.setdefault(kind, []).append(f"{moment}: {reply}")
        wrong = [kind for kind, reply in replies.items() if reply != expected[kind]]
        console.print(
            f"    killed {', '.join(killed)} ({moment}, after "
            f"{', '.join(map(str, kills_at.values()))} chunks): "
            f"{migrated} migrations, "
            f"{len(replies) - len(wrong)} of {len(replies)} replies as without a kill"
        )
        for kind in wrong:
            console.print(f"       WRONG {kind}: {replies[kind]!r}", style="red")
            console.print(f"       expected: {expected[kind]!r}", style="dim")
        if sum(tally.kills.values()) < kills:
            deployment.replace(*killed)
    return tally


@dataclass
class Progress:
    """How far replies have come.

    Attributes:
        kills_at: after how many chunks of all replies which worker is killed.
        chunks: how many have come.
        is_over: whether no more will.
    """

    kills_at: dict[str, int] = field(default_factory=dict[str, int])
    chunks: int = 0
    is_over: bool = False

    async def kill(self, deployment: Deployment) -> None:
        """Kill the workers, each when its time has come."""
        for name, chunks in self.kills_at.items():
            while self.chunks < chunks and not self.is_over:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)  # the requests are under way, also before the first chunk
            deployment.kill(name)


async def ask(
    deployment: Deployment, asked: Mapping[str, Kind], progress: Progress | None = None
) -> dict[str, str]:
    """Send all requests at the same time; return the replies by kind."""
    progress = progress or Progress()
    async with AsyncOpenAI(
        base_url=f"{FRONTEND}/v1",
        api_key="not needed",
        max_retries=0,
        timeout=300,
        http_client=DefaultAsyncHttpxClient(trust_env=False),
    ) as client:

        async def reply(question: str, specs: Sequence[LogitsProcessorSpec]) -> str:
            try:
                stream = await client.chat.completions.create(
                    model=deployment.model_name,
                    messages=[{"role": "user", "content": question}],
                    temperature=0,
                    stream=True,
                    extra_body=extra_body(specs, max_tokens=MAX_TOKENS),
                )
                chunks: list[Any] = []
                async for chunk in stream:
                    chunks.append(chunk)
                    progress.chunks += 1
            except APIError as error:
                return f"{type(error).__name__}: {error}"
            return "".join(each.delta.content or "" for chunk in chunks for each in chunk.choices)

        killing = asyncio.create_task(progress.kill(deployment))
        replies = await asyncio.gather(*(reply(*each) for each in asked.values()))
        progress.is_over = True
        await killing
        return dict(zip(asked, replies, strict=True))
