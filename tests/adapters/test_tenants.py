"""A gateway's middleware with a configuration for each tenant: what reaches the server."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from logitport.adapters import SpecMiddleware
from logitport.spec import SpecError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.support.servers import CHAT, GENERATE, echo

BAN = {"kind": "banned_text", "texts": ["Globex"]}
DRY = {"kind": "dry", "multiplier": 1}
CHOICE = {"kind": "choice", "texts": ["yes", "no"]}
NAMED = {"kind": "plugin", "name": "yes-no"}
MIN = {"kind": "min_tokens", "n": 2, "stop_token_ids": [2]}
BRIEF = {
    "params": {"n": {"min": 2, "max": 4, "default": 3}, "word": {"max_length": 5}},
    "specs": [
        {"kind": "no_repeat_ngram", "n": {"param": "n"}},
        {"kind": "banned_text", "texts": [{"param": "word"}]},
        MIN,
    ],
}


def brief(**params: Any) -> dict[str, Any]:
    return {"kind": "plugin", "name": "brief", "params": params}


TENANTS = {
    "adds": {"default": [BAN], "own": "add", "forbid": ["dry", "continued"]},
    "replaces": {"default": [BAN]},
    "refuses": {"default": [BAN], "own": "refuse", "presets": {"yes-no": [CHOICE, MIN]}},
    "chooses": {"default": [BAN], "own": "add", "presets": {"brief": BRIEF, "yes": [CHOICE]}},
    "effort": {"effort": {"low": 5}},
    "nothing": {"version": 1},
}


def post(body: Any, name: str | None, path: str = CHAT, **arguments: Any) -> Any:
    """Ask a gateway; return the status, and the body that passed or the message."""
    made = {"engine": "vllm", "tenants": TENANTS, **arguments}
    routes = [Route("/{path:path}", echo, methods=["POST"])]
    client = TestClient(Starlette(routes=routes, middleware=[Middleware(SpecMiddleware, **made)]))
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {} if name is None else {"X-Tenant": name}
    reply = client.post(path, content=content, headers=headers)
    if reply.status_code != 200:
        return reply.json()["error"]["message"]
    if content:
        assert int(reply.headers["x-length"]) == len(reply.content)
    return reply.content if reply.content == content else reply.json()


def specs_of(holder: Any) -> list[Any]:
    return json.loads(holder["logitport"])["specs"]


def sent(*specs: Any, **fields: Any) -> dict[str, Any]:
    return {"version": 1, "specs": [*specs], **fields}


# tenant | the client's payload | the specs that reach the server, or the refusal
ACTING: list[tuple[str, Any, Any]] = [
    ("adds", None, [BAN]),
    ("adds", [CHOICE], [BAN, CHOICE]),
    ("adds", json.dumps(sent(CHOICE)), [BAN, CHOICE]),
    ("adds", [DRY], "This server does not admit `dry` - at `$.specs[0]`"),
    ("adds", sent(CHOICE, continued=1), "This server does not admit `continued`"),
    ("adds", [{"kind": "forced_sequence", "text": "a", "eos_token_id": 1}, DRY], "$.specs[1]"),
    ("adds", [DRY | {"x": 1}], "$[0]"),
    ("replaces", None, [BAN]),
    ("replaces", [CHOICE], [CHOICE]),
    ("refuses", None, [BAN]),
    ("refuses", [DRY], "no specs but its presets: yes-no"),
    ("refuses", [NAMED], [BAN, CHOICE, MIN]),
    ("refuses", [NAMED, NAMED], "named twice"),
    (
        "chooses",
        [DRY, brief(word="a", n=4)],
        [BAN, DRY, {"kind": "no_repeat_ngram", "n": 4}, {**BAN, "texts": ["a"]}, MIN],
    ),
    ("chooses", [brief(word="a", n=5)], "an integer from 2 to 4, got 5 - at `$.specs[0].params.n`"),
    ("chooses", [brief()], "Expected a value, which has no default"),
    ("nothing", None, None),
    ("nothing", [DRY], [DRY]),
    ("another", [DRY], "No tenant 'another'"),
    ("*", None, "No tenant '*'"),
]


@pytest.mark.parametrize(("tenant", "payload", "expected"), ACTING)
@pytest.mark.parametrize("path", [CHAT, "/prefix/v1/completions", GENERATE, "/v1/responses"])
def test_what_acts(tenant: str, payload: Any, expected: Any, path: str):
    body: dict[str, Any] = {"model": "m", "x": 1}
    holder = {} if payload is None else {"logitport": payload}
    is_own = path == GENERATE
    if is_own:
        body["sampling_params"] = {"n": 1, **({"extra_args": holder} if holder else {})}
    elif holder:
        body["vllm_xargs"] = holder
    found = post(body, tenant, path)
    if isinstance(expected, str):
        assert isinstance(found, str)
        assert expected in found
        return
    found = json.loads(found) if isinstance(found, bytes) else found
    assert found["model"] == "m"
    within = found["sampling_params"].get("extra_args") if is_own else found.get("vllm_xargs")
    assert (within and specs_of(within)) == expected


def test_settings_of_the_payload_stay():
    payload = sent(CHOICE, continued=3, generation_only=False)
    found = post({"vllm_xargs": {"logitport": payload, "a": 1}}, "replaces")
    assert found["vllm_xargs"].pop("a") == 1
    assert json.loads(found["vllm_xargs"]["logitport"]) == payload


def test_specs_in_a_schema():
    schema = {"type": "object", "x-logitport": json.dumps([CHOICE])}
    body = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    }
    found = post(body, "adds")
    assert specs_of(found["vllm_xargs"]) == [BAN, CHOICE]
    assert found["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_effort():
    assert post({"reasoning_effort": "low"}, "effort")["thinking_token_budget"] == 5


# body | tenant | path | the refusal
REFUSED: list[tuple[Any, str | None, str, str]] = [
    ({}, None, CHAT, "The request names no tenant"),
    (gzip.compress(b"{}", mtime=0), "adds", CHAT, "not compressed"),
    (b"[]", "adds", CHAT, "Expected a JSON object"),
    ({"vllm_xargs": [1]}, "adds", CHAT, "are added - at `vllm_xargs`"),
    ({"sampling_params": [{}]}, "adds", GENERATE, "Expected an object"),
    ({"n": 1}, "adds", "/api/chat", "/api/chat takes no specs"),
    ({"n": 1}, "adds", "/cohere/v2/chat", "the tenant has default specs"),
    ({"n": 1}, "adds", "/v1/systemone", "the tenant has default specs"),
    (b"--a\xff", "adds", "/v1/audio/transcriptions", "the tenant has default specs"),
    (b"--a\xff", "adds", "/v1/audio//translations/", "the tenant has default specs"),
    ({"vllm_xargs": {"logitport": [DRY]}}, "nothing", "/login", "takes no specs"),
]


@pytest.mark.parametrize(("body", "tenant", "path", "message"), REFUSED)
def test_refused(body: Any, tenant: str | None, path: str, message: str):
    found = post(body, tenant, path)
    assert isinstance(found, str)
    assert message in found


def test_sglangs_own_route():
    made = {"path": "/generate", "engine": "sglang"}
    found = post({"text": "a"}, "adds", **made)
    assert specs_of(found["sampling_params"]["custom_params"]) == [BAN]
    assert "Expected an object" in post({"text": ["a"], "sampling_params": [{}]}, "adds", **made)


@pytest.mark.parametrize(
    "path",
    ["/v1//completions", "//v1/./completions//", "/v1/a/../completions", "/v1/completions/."],
)
def test_a_path_that_a_proxy_behind_rewrites(path: str):
    app = SpecMiddleware(echo, tenants=TENANTS)  # pyright: ignore[reportArgumentType]
    scope = {"type": "http", "path": path, "headers": [(b"x-tenant", b"adds")]}
    assert specs_of(json.loads(app.check(scope, b"{}").body)["vllm_xargs"]) == [BAN]


def test_a_body_to_which_nothing_is_added_stays():
    body = b'{"model": "m",   "temperature": 1.50}'
    assert post(body, "nothing") == body


def test_other_routes_need_no_tenant():
    assert post(b'{"user": "a"}', None, "/login") == b'{"user": "a"}'
    assert post(b'{"a": 1}', "nothing", "/api/chat") == b'{"a": 1}'


def test_other_tenants_have_a_default(tmp_path: Path):
    file = tmp_path / "others.yaml"
    file.write_text(yaml.safe_dump({"default": [DRY]}))
    made = {**TENANTS, "*": str(file)}
    for name in ("another", None, "*"):
        assert specs_of(post({}, name, tenants=made)["vllm_xargs"]) == [DRY]
    assert specs_of(post({}, "adds", tenants=made)["vllm_xargs"]) == [BAN]


def test_a_function_names_the_tenant():
    def by_path(scope: Any) -> str | None:
        return scope["path"].split("/")[1]

    found = post({}, None, f"/adds{CHAT}", tenant=by_path)
    assert specs_of(found["vllm_xargs"]) == [BAN]
    assert "No tenant 'v1'" in post({}, "adds", tenant=by_path)


def test_a_header_that_comes_twice_is_refused():
    """A proxy may add its own to a client's; then no other configuration is taken."""
    made = {**TENANTS, "*": {}}
    app = SpecMiddleware(echo, tenants=made)  # pyright: ignore[reportArgumentType]
    headers = [(b"x-tenant", b"adds"), (b"X-Tenant", b"z")]
    with pytest.raises(SpecError, match="Expected the header x-tenant once"):
        app.check({"type": "http", "path": CHAT, "headers": headers}, b"{}")


# a configuration | the message
CONFIGURATIONS: list[tuple[Any, str]] = [
    ({"guard": [BAN]}, r"\$\.guard: A guard is a server's"),
    ({"defaults": []}, "did you mean default"),
    ({"version": 2}, "upgrade logitport"),
    (
        {"default": [{"kind": "choice", "from_text": {"texts": ["a"]}}]},
        r"\$\.default\[0\].*write token ids, or texts as on the wire",
    ),
    (
        {"presets": {"a": [{"kind": "banned_sequences", "from_words": {"words": ["a"]}}]}},
        "presets.a",
    ),
    ({"reload": True}, "The tenant 'acme': .*A gateway reads the file once"),
    ({"tags": "olmo-3"}, "The server knows its model's thinking tags"),
    ({"presets": {"a": {**BRIEF, "params": {}}}}, r"presets\.a\.specs.*There is no parameter"),
    ({"default": [{"kind": "dry"}]}, r"The tenant 'acme' has a problem:\n  \$\.default\[0\]"),
    ("missing.yaml", r"The tenant 'acme' \(missing.yaml\): .*No such file"),
    (None, "The tenant 'acme': Expected the name of a file, or what it would hold, got None"),
    ([BAN], "The tenant 'acme': Expected the name of a file"),
]


@pytest.mark.parametrize(("content", "message"), CONFIGURATIONS)
def test_what_a_gateway_cannot_obey(content: Any, message: str):
    with pytest.raises(ValueError, match=message):
        SpecMiddleware(echo, tenants={"acme": content})  # pyright: ignore[reportArgumentType]


WITHOUT_CORE = """
import sys
for name in ("numpy", "numba", "torch", "yaml"):
    sys.modules[name] = None
from logitport.adapters import SpecMiddleware
profiles = {"a": {"scheme": "vllm-gumbel", "key": {"env": "KEY"}}}
for each in {"guard": []}, {"profiles": profiles}, {"require": {}}:
    try:
        SpecMiddleware(None, tenants={"acme": each})
    except ValueError as error:
        print(str(error).partition(": A")[0].partition(": K")[0].partition(": O")[0])
default = [{"kind": "banned_tokens", "token_ids": [3]}, {"kind": "choice", "texts": ["a"]}]
app = SpecMiddleware(None, tenants={"acme": {"default": default}, "b": sys.argv[1]})
for name in b"acme", b"b":
    scope = {"type": "http", "path": "/v1/completions", "headers": [(b"x-tenant", name)]}
    print(app.check(scope, b"{}").body.decode())
"""


def test_a_gateway_needs_no_core(tmp_path: Path):
    """The package without an extra has msgspec alone; TOML needs no PyYAML."""
    file = tmp_path / "b.toml"
    file.write_text('presets.yes = [{kind = "choice", texts = ["yes"]}]')
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_CORE, file], capture_output=True, text=True, check=False
    )
    assert found.stderr == ""
    *refused, filled, same = found.stdout.splitlines()
    assert refused == [f"The tenant 'acme': $.{name}" for name in ("guard", "profiles", "require")]
    kinds = [each["kind"] for each in specs_of(json.loads(filled)["vllm_xargs"])]
    assert kinds == ["banned_tokens", "choice"]
    assert same == "{}"


def test_a_mark_is_the_servers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEWS_KEY", "5")
    content = {"profiles": {"news": {"scheme": "vllm-gumbel", "key": {"env": "NEWS_KEY"}}}}
    with pytest.raises(ValueError, match="Keys of marks are for the server"):
        SpecMiddleware(echo, tenants={"acme": content})  # pyright: ignore[reportArgumentType]


def test_a_server_has_no_tenants():
    with pytest.raises(SpecError, match="one configuration"):
        SpecMiddleware(echo, is_server=True, tenants=TENANTS)  # pyright: ignore[reportArgumentType]
