"""Clients that stream replies from a server while its policy changes, for any engine."""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from logitport import spec as lp
from logitport.adapters import Receipt, extra_body
from logitport.adapters.gateway.receipt import find

from examples._support.server import Server

CLIENTS = 64
PROMPT = "Once upon a time"
WORDS = {"first": (" the", " of"), "second": (" and", " to")}
"""The words that a policy leaves; its default begins with one, its preset with the other."""


def content(name: str, tokenizer: Any) -> dict[str, Any]:
    """A configuration whose guard admits nothing of what that of another name says or forces."""
    default, preset = (tokenizer.encode(word, add_special_tokens=False) for word in WORDS[name])
    return {
        "reload": True,
        "guard": [{"kind": "allowed_tokens", "token_ids": [*default, *preset]}],
        "default": [{"kind": "forced_sequence", "token_ids": default}],
        "presets": {"p": [{"kind": "forced_sequence", "token_ids": preset}]},
    }


ASKED: Mapping[str, Any] = {
    "default": (),
    "preset": lp.PluginSpec("p"),
    "guard alone": lp.LogitBiasSpec({5: -1.0}),
}


class Reply(NamedTuple):
    """What a client got: the specs by their name in ``ASKED``, the whole text and the receipt."""

    asked: str
    text: str
    receipt: Receipt | None


class Load:
    """``CLIENTS`` clients of a server, each with one request at a time.

    Attributes:
        replies: all that have ended.
    """

    def __init__(self, server: Server, file: Path, tokenizer: Any, front_ends: int = 1) -> None:
        self.server, self.file, self.front_ends = server, file, front_ends
        self.contents = {name: content(name, tokenizer) for name in WORDS}
        self.replies: list[Reply] = []
        self._ends = False
        self.url = server.base_url.removesuffix("/v1")

    def write(self, text: str) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.file)

    async def _client(self, index: int, http: httpx.AsyncClient) -> None:
        names = [*ASKED]
        while not self._ends:
            index += 1
            self.replies.append(await self._ask(http, names[index % len(names)], index))

    async def _ask(self, http: httpx.AsyncClient, asked: str, index: int) -> Reply:
        body = {"model": self.server.model_name, "prompt": PROMPT, "stream": True, "temperature": 0}
        body |= {"max_tokens": 6 - index % 5}
        body |= extra_body(self.server.engine.lower(), ASKED[asked])
        text, receipt = "", None
        async with http.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
            lines = [line async for line in answer.aiter_lines()]
            assert answer.status_code == 200, lines
        assert lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]", lines[-3:]
        for line in lines:
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                receipt = receipt or find(event)
                text += "".join(choice["text"] for choice in event["choices"])
        return Reply(asked, text, receipt)

    async def digests(self, http: httpx.AsyncClient, times: int = 6) -> set[str]:
        """The digests of the policies of a server's processes."""
        answers = [await http.get(f"{self.url}/logitport") for _ in range(times)]
        return {answer.json()["policy"]["digest"] for answer in answers}

    async def metrics(self, http: httpx.AsyncClient) -> str:
        answer = await http.get(f"{self.url}/metrics", follow_redirects=True)
        return answer.text

    async def run(self) -> dict[str, str]:
        """Change the policy there and back, with a wrong file between; return the digests."""
        found: dict[str, str] = {}
        limits = httpx.Limits(max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(timeout=900, trust_env=False, limits=limits) as http,
            asyncio.TaskGroup() as group,
        ):
            assert 'logitport_policy{digest="' in await self.metrics(http)  # of a new server, too
            (found["first"],) = await self.digests(http)
            for i in range(CLIENTS):
                group.create_task(self._client(i, http))

            async def served(*others: str) -> None:
                """Wait until there is another digest everywhere, and each client has had it."""
                while len(now := await self.digests(http)) > 1 or now & {*others}:
                    await asyncio.sleep(0.1)
                count = len(self.replies)
                while len(self.replies) < count + 2 * CLIENTS:
                    await asyncio.sleep(0.1)

            await served()
            self.write(json.dumps(self.contents["second"]))
            await served(found["first"])
            (found["second"],) = await self.digests(http)
            self.write(json.dumps(self.contents["first"] | {"own": "ad"}))
            wrong = "$.own: There is no value 'ad'"
            while self.server.log.read_text().count(wrong) < self.front_ends:
                await asyncio.sleep(0.1)
            await served(found["first"])
            assert "logitport_last_reload_successful 0.0" in await self.metrics(http)
            self.write(json.dumps(self.contents["first"]))
            await served(found["second"])
            self._ends = True
        return found

    def check(self, digests: Mapping[str, str]) -> None:
        """Each reply obeys one policy, that of its receipt; and a process has one."""
        seen = set[tuple[str, str]]()
        for reply in self.replies:
            (name,) = (
                name
                for name, words in WORDS.items()
                if re.fullmatch(f"({'|'.join(words)})+", reply.text)
            )
            default, preset = WORDS[name]
            begins = {"default": default, "preset": preset, "guard alone": " "}[reply.asked]
            assert reply.text.startswith(begins), reply
            assert reply.receipt is not None
            assert reply.receipt.policy == digests[name], reply
            kinds = "logit_bias" if reply.asked == "guard alone" else "forced_sequence"
            assert reply.receipt.kinds == ("allowed_tokens", kinds)
            assert reply.receipt.default is (reply.asked == "default")
            seen.add((reply.asked, name))
        assert len(seen) == len(ASKED) * len(WORDS), seen
        metrics = httpx.get(
            f"{self.url}/metrics", timeout=600, trust_env=False, follow_redirects=True
        ).text
        shown = dict(re.findall(r'^logitport_policy{digest="(\w+)".*} (.*)$', metrics, re.M))
        assert shown == {digests["first"]: "1.0", digests["second"]: "0.0"}
        assert "logitport_last_reload_successful 1.0" in metrics
        asked = Counter(reply.asked for reply in self.replies)
        for series, name in {
            'presets_total{model="(.*)",preset="p"}': "preset",
            'kinds_total{kind="logit_bias",model="(.*)"}': "guard alone",
        }.items():
            ((model, value),) = re.findall(rf"^logitport_{series} (.*)$", metrics, re.M)
            assert (model, float(value)) == (self.server.model_name, asked[name])
        counted = dict(re.findall(r'^logitport_reloads_total{result="(\w+)"} (.*)$', metrics, re.M))
        assert counted == {"changed": f"{2 * self.front_ends}.0", "refused": f"{self.front_ends}.0"}
