"""Request bodies of all sorts of JSON, through the middleware, to a server that takes what it can.

The server reads a body with Python's parser, as engines do, and looks by itself for specs. What
reaches it must have been checked: no bad payload, no payload in another place, no misspelt key.
"""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from logitport.adapters import SpecMiddleware
from logitport.adapters.gateway.key import KEY
from logitport.adapters.gateway.schema_carrier import KEYWORD
from logitport.spec import BannedTextSpec, ChoiceSpec, ForcedTokenSequenceSpec, decode, encode

CHAT, GENERATE, TOKENIZE = "/v1/chat/completions", "/inference/v1/generate", "/tokenize"
PLACES = {CHAT: "vllm_xargs", GENERATE: "sampling_params.extra_args", TOKENIZE: None}
GOOD = [
    encode(ForcedTokenSequenceSpec((1, 2, 3))),
    encode([BannedTextSpec(("abc", "x y"), ignore_case=True)]),
    encode(ChoiceSpec(((1,), (2, 3)), eos_token_id=0)),
]
BAD = ['{"version":1,"specs":[{"kind":"mind_reader"}]}', '{"version":9,"specs":[]}', "", "\ud800"]
CONTAINERS = (
    *("vllm_xargs", "sampling_params", "extra_args", "custom_params", "extra_body", "parameters"),
)
FULL_WIDTH = "".join(chr(ord(letter) + 0xFEE0) for letter in KEY)
MISSPELT = {"logit_port", "logitprot", "logitport_spec", "logipt", "lgoitprot", FULL_WIDTH}
BARE = {"specs", "payload"}
NAMES = [
    *(KEY, *CONTAINERS, *sorted(MISSPELT), *sorted(BARE), "vllm_xarg", "nvext"),
    *("messages", "temperature", "x", "logprobs", "\ud800", "é", ""),
]
SCHEMAS = ("response_format", "json_schema", "schema"), ("text", "format", "schema")
LIMIT = 0.010
"""Seconds for which a body may hold the event loop, besides those of Python's parser."""


def value(random: Random, depth: int = 3) -> Any:
    """Any JSON value, often with a payload or a name that matters."""
    match random.randrange(12 if depth else 8):
        case 0 | 1:
            return random.choice(GOOD + BAD)
        case 2:
            return random.choice([0, -1, 1e300, 1 << 70, math.nan, math.inf, 0.1])
        case 3:
            return random.choice([True, False, None])
        case 4:
            return json.loads(random.choice(GOOD))
        case 5 | 6 | 7:
            return random.choice(["", "Hi", "\ud83d", "\x00", "a" * 50, f"{KEY}:{GOOD[0]}"])
        case 8:
            return [value(random, depth - 1) for _ in range(random.randrange(4))]
        case _:
            return request(random, depth - 1)


def request(random: Random, depth: int = 3) -> dict[str, Any]:
    """An object with fields that matter."""
    return {random.choice(NAMES): value(random, depth) for _ in range(random.randrange(5))}


def inner(made: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The object in an object at a path, made where there is none."""
    for name in names:
        made[name] = made[name] if isinstance(made.get(name), dict) else {}
        made = made[name]
    return made


def body(random: Random, path: str) -> bytes:
    """The bytes of a body: one that may be good, written or broken in some way."""
    made: Any = request(random)
    if random.random() < 0.5:  # in the right place
        payload = random.choice(GOOD) if random.random() < 0.7 else value(random)
        inner(made, (PLACES[path] or "vllm_xargs").split("."))[KEY] = payload
    if random.random() < 0.2:  # in the other carrier
        key = random.choice([KEYWORD] * 4 + [KEY])
        inner(made, random.choice(SCHEMAS))[key] = random.choice([*GOOD, value(random)])
    text = json.dumps(made, ensure_ascii=random.random() < 0.5)
    for _ in range(random.randrange(3)):
        text = broken(random, text)
    encoding = random.choice(["utf-8"] * 12 + ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
    data = text.encode(encoding, "surrogatepass")
    if random.random() < 0.1:
        at = random.randrange(len(data) + 1)
        data = data[:at] + random.randbytes(random.randrange(3)) + data[at + random.randrange(3) :]
    return data


def broken(random: Random, text: str) -> str:
    """Write a body otherwise, or break it."""
    at = random.randrange(len(text) + 1)
    match random.randrange(10):
        case 0:
            return text.replace('"', '"\\ud800', 1)
        case 1:
            return text.replace(KEY, f"\\u{ord(KEY[0]):04x}{KEY[1:]}")
        case 2:  # the same names again
            return text[:-1] + ("," if len(text) > 2 else "") + text[1:]
        case 3:
            return text[:at]
        case 4:
            return random.choice([" ", "\n", "\ufeff", "\0"]) + text
        case 5:
            return text.replace("{", "{ \t", 3).replace(":", " :\n", 3)
        case 6:
            n = random.choice([3, 30, 300] * 10 + [3000])
            return text.replace(":", ":" + "[" * n + "]" * n + ',"y":', 1)
        case 7:
            return text.replace("{", random.choice(["[", "{{", '"', '{"x":NaN,']), 1)
        case 8:
            return f"[{text}]"
        case _:
            return text[:at] + random.choice('"\\{}[],:0n ') + text[at:]


def large(random: Random) -> bytes:
    """Megabytes of one sort, with a payload somewhere."""
    filler = random.choice(["[],", "{},", "1,", '"",', '"\\\\",', '"\\u0041",', '{"a":[]},'])
    n = random.randrange(1, 3 << 20) // len(filler)
    payload = json.dumps(random.choice(GOOD + BAD))
    names = ",".join(f'"k{i}":{i}' for i in range(random.choice([0, 0, 1, 200_000])))
    array = f"[{filler * n}0]"
    hidden = random.choice(["\\u2019", "\\u0078", "\\u0085", f'","{KEYWORD}', f'\\"{KEYWORD}'])
    tools = f'[["{hidden * random.choice([1, n // 8])}"],{array}]'
    place = random.choice(["messages", "vllm_xargs", "sampling_params", "x"])
    return random.choice(
        [
            f'{{"{place}":{array},"vllm_xargs":{{"{KEY}":{payload}}}}}',
            f'{{"vllm_xargs":{{"{KEY}":{array}}}}}',
            f'{{"vllm_xargs":{{"x":{array},"{KEY}":{payload}}}}}',
            f'{{{names or chr(34) + "a" + chr(34) + ":1"},"vllm_xargs":{{"{KEY}":{payload}}}}}',
            f'{{"x":"\\ud800","{place}":{array},"vllm_xargs":{{"{KEY}":{payload}}}}}',
            f'{{"{random.choice(["tools", "structural_tag"])}":{tools}}}',
            f'{{"vllm_xargs":[{",".join([f"{{{json.dumps(KEY)}:{payload}}}"] * 500)}]}}',
        ]
    ).encode()


def unchecked(text: bytes, path: str) -> str | None:
    """What is in a body that reached the server and should not have."""
    try:
        made = json.loads(text)
    except (ValueError, RecursionError):
        return None  # the server refuses it
    if not isinstance(made, dict):
        return None
    for names in SCHEMAS:
        part: Any = made
        for name in names:
            part = part.get(name) if isinstance(part, dict) else None
        if isinstance(part, dict) and {KEY, KEYWORD} & part.keys():
            return f"specs in {'.'.join(names)}"
    return next(_wrong(made, "", PLACES[path]), None)


def _wrong(made: dict[str, Any], at: str, place: str | None) -> Iterator[str]:
    if found := MISSPELT & made.keys():
        yield f"{found} in {at!r}"
    if (place is not None or at) and KEY not in made:
        yield from (f"bare specs in {at!r}" for name in BARE if made.get(name) in GOOD)
    if KEY in made:
        if at != place:
            yield f"specs in {at!r}"
        elif not isinstance(made[KEY], str):
            yield f"specs that are {made[KEY]!r}"
        else:
            try:
                decode(made[KEY])
            except ValueError as error:
                yield f"bad specs: {error}"
    for name, part in made.items():
        where = f"{at}.{name}".lstrip(".")
        if isinstance(part, dict) and (not at or name in CONTAINERS) and at.count(".") < 3:
            if name in CONTAINERS:
                yield from _wrong(part, where, place)
            elif {*MISSPELT, KEY} & part.keys():
                yield f"specs in {where!r}"
        for each in part if isinstance(part, list) and not at and name not in CONTAINERS else ():
            if isinstance(each, dict) and {*MISSPELT, KEY} & each.keys():
                yield f"specs in an object of {where!r}"


def parsing(text: bytes) -> float:
    """Seconds for which Python's parser reads a body, as the server does on its event loop."""
    started = time.process_time()
    with suppress(ValueError, RecursionError):
        json.loads(text)
    return time.process_time() - started


class Held(NamedTuple):
    """A body, and the seconds for which it held the event loop, besides those of the parser."""

    seconds: float
    path: str
    body: bytes


class Server:
    """The middleware before an application that reads the body."""

    def __init__(self) -> None:
        self.received: bytes | None = None
        self.middleware = SpecMiddleware(self.application, is_server=True)

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        self.received = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def post(self, path: str, text: bytes) -> int:
        """Send a body; return the status."""
        statuses: list[int] = []
        self.received = None

        async def receive() -> Any:
            return {"type": "http.request", "body": text, "more_body": False}

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await self.middleware(scope, receive, send)
        return statuses[0]

    async def held(self, path: str, text: bytes) -> float:
        """Seconds for which a body holds the event loop at a stretch.

        The process's time on the cores is counted: it stands still while other processes run.
        """
        longest, before = 0.0, time.process_time()

        async def tick() -> None:
            nonlocal longest, before
            while True:
                await asyncio.sleep(0)
                now = time.process_time()
                longest, before = max(longest, now - before), now

        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        await self.post(path, text)
        await asyncio.sleep(0)
        ticking.cancel()
        return longest


Found = tuple[Counter[str], list[str], list[Held]]


def fuzz(number: int, most: int, seconds: float) -> Found:
    """Send bodies: the counts, what passed unchecked, and those that held the loop too long."""
    return asyncio.run(_fuzz(Random(number), most, seconds))


async def _fuzz(random: Random, most: int, seconds: float) -> Found:
    server, counts = Server(), Counter[str]()
    wrong, held = list[str](), list[Held]()
    started = time.monotonic()
    while counts["tried"] < most and time.monotonic() - started < seconds:
        path = random.choice([CHAT, CHAT, GENERATE, TOKENIZE])
        is_large = counts["tried"] % 20_000 == 0
        text = large(random) if is_large else body(random, path)
        before = time.perf_counter()
        try:
            status = await server.post(path, text)
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error} for {text[:300]!r}")
            status = 500
        if time.perf_counter() - before > LIMIT:
            # A shared machine has slow moments: what holds the loop does so each time.
            holds = min([await server.held(path, text) for _ in range(10)])
            holds -= min(parsing(text) for _ in range(10))
            held = sorted([*held, Held(holds, path, text)], key=lambda h: -h.seconds)[:5]
        counts["tried"] += 1
        counts[f"status {status}"] += 1
        if status == 200 and (why := unchecked(server.received or b"", path)):
            wrong.append(f"{why}: {text[:300]!r} to {path}")
    return counts, wrong[:20], held


def report(results: list[Found]) -> int:
    """Print what came of it; return 1 if a body passed unchecked, or held the loop too long."""
    counts = sum((counts for counts, _, _ in results), Counter[str]())
    wrong = [line for _, lines, _ in results for line in lines]
    held = sorted((h for _, _, each in results for h in each), key=lambda h: -h.seconds)[:5]
    print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    print(f"passed unchecked, or raised: {len(wrong)}")
    for line in wrong:
        print(f"    {line}")
    for seconds, path, text in held:
        print(f"held the loop for {seconds * 1e3:.2f} ms: {len(text):,} bytes {text[:80]!r} {path}")
    return 1 if wrong or any(h.seconds > LIMIT for h in held) else 0
