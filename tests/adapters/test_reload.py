"""A policy whose file changes: what requests see, and what becomes of a file that is wrong."""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from logitport.adapters import REALIZABLE, Backend, Policy, check_policy, reload
from logitport.adapters.reload import Live, one_policy, reload_of
from logitport.hooks import configuration

from tests.hooks.test_hello_world import Characters

FIRST = "reload: true\nguard: [{kind: banned_tokens, token_ids: [5]}]\n"
SECOND = FIRST.replace("[5]", "[6]")
MARKS = "profiles: {news: {scheme: vllm-gumbel, key: {env: NEWS_KEY}}}\n"


class Server:
    """The part of a server that has a policy; a look at the file is a second later."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.now = file, 0.0
        monkeypatch.setattr(reload, "monotonic", lambda: self.now)
        self.live = Live(self._make, lambda policy: policy, self._check)

    def _make(self) -> Policy:
        made = configuration.policy(Characters, str(self.file))
        assert made is not None
        return made

    def _check(self, policy: Policy) -> None:
        check_policy(Backend("tested", REALIZABLE, policy=policy), 100)

    def write(self, text: str) -> None:
        other = self.file.with_suffix(".new")
        other.write_text(text)
        os.replace(other, self.file)

    def looks(self, times: int = 2) -> Policy:
        """What a request sees after some looks, and when any reading has ended."""
        for _ in range(times):
            self.now += reload.EVERY_S
            self.live.current()
        if self.live._loading.ident is not None:
            self.live._loading.join()
        return self.live.current()

    @property
    def banned(self) -> Any:
        return banned(self.live.current())


def banned(policy: Policy) -> Any:
    return [getattr(spec, "token_ids", None) for spec in policy.guard]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Server]:
    monkeypatch.setenv("NEWS_KEY", "7")
    monkeypatch.setenv("OTHER_KEY", "8")

    def start(text: str) -> Server:
        file = tmp_path / "logitport.yaml"
        file.write_text(text)
        return Server(file, monkeypatch)

    return start


Start = Callable[[str], Server]


def test_a_change_takes_effect(start: Start, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "logitport")
    server = start(FIRST)
    before = server.looks()
    server.write(SECOND)
    assert server.looks(1) is before  # an editor may still be writing
    after = server.looks(1)
    assert (banned(before), banned(after)) == ([(5,)], [(6,)])
    assert f"policy {after.digest} replaces {before.digest}" in caplog.text
    server.write(FIRST)
    assert server.looks().digest == before.digest


def test_without_reload_nothing_changes(start: Start):
    server = start(FIRST.replace("true", "false"))
    server.write(SECOND)
    assert banned(server.looks()) == [(5,)]


def test_the_same_policy_keeps_what_was_compiled(start: Start):
    server = start(FIRST)
    before = server.looks()
    server.write("# touched\n" + FIRST)
    assert server.looks() is before


def test_a_file_that_is_being_written_is_not_read(start: Start):
    server = start(FIRST)
    for i in range(5):
        server.write(SECOND[: 20 + i])
        assert banned(server.looks(1)) == [(5,)]
    assert server.live._loading.ident is None


FORCES = "`forced_sequence` forces tokens into a reply"


# the file instead | what the log has
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FIRST + "forbid: [plugins]", "line 3: $.forbid[0]: There is no kind 'plugins'"),
        (FIRST + "own: ad\neffort: {low: x}", "line 4: $.effort.low: Expected `int`"),
        (FIRST.replace("banned_tokens, token_ids: [5]", "forced_sequence, text: a"), FORCES),
        (FIRST.replace("[5]", "[100]"), "beyond the vocabulary"),
        (FIRST + "presets: {a: [{kind: plugin, name: b}]}", "The preset 'a' cannot be realized"),
        (FIRST + "default: [", "line 3: column 11: while parsing"),
        ("", "Expected an object with version, default"),
        (None, "No such file"),
        ("guard: []", "Restart the server to change `reload`"),
        (SECOND + MARKS, "Restart the server to change `profiles`"),
        (
            SECOND + MARKS + "require: {watermark: {profile: news}}",
            "Restart the server to change `profiles`, `require`",
        ),
    ],
)
def test_a_bad_file_changes_nothing(
    start: Start, text: str | None, message: str, caplog: pytest.LogCaptureFixture
):
    server = start(FIRST)
    before = server.looks()
    if text is None:
        server.file.unlink()
    else:
        server.write(text)
    assert server.looks(6) is before
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]  # once, not always
    said = record.getMessage()
    assert message in said
    assert f"has changed, and the server goes on with the policy {before.digest}" in said
    server.write(SECOND)
    assert banned(server.looks()) == [(6,)]


# what is behind a name | whether it needs a restart
@pytest.mark.parametrize(
    ("change", "needs"),
    [
        (("NEWS_KEY", "OTHER_KEY"), True),
        (("env: NEWS_KEY}", "env: NEWS_KEY}, width: 5"), True),
        (("[5]", "[6]"), False),
    ],
)
def test_marks_are_fixed(start: Start, change: tuple[str, str], needs: bool):
    server = start(FIRST + MARKS)
    before = server.looks()
    server.write((FIRST + MARKS).replace(*change))
    assert (server.looks() is before) is needs


def test_a_request_sees_one_policy(start: Start):
    """Whatever changes meanwhile, in the tasks and threads of the request, too."""
    server = start(FIRST)

    async def ask() -> list[Any]:
        with one_policy():
            seen = [server.banned]
            server.write(SECOND)
            seen.append(banned(server.looks()))
            Context().run(server.looks)  # in other requests
            with one_policy():  # the engine's own check, within that of the middleware
                seen.append(server.banned)
            seen.append(await asyncio.to_thread(lambda: server.banned))
            with ThreadPoolExecutor() as pool:
                run = copy_context().run
                seen.append(pool.submit(run, lambda: server.banned).result())
            seen.append(await asyncio.create_task(asyncio.to_thread(lambda: server.banned)))
        return seen

    assert asyncio.run(ask()) == [[(5,)]] * 6
    assert server.banned == [(6,)]


def test_settings_without_a_file():
    with pytest.raises(configuration.ConfigurationError, match=r"\$.reload: Only a file is read"):
        configuration.policy(None, {"reload": True})


def test_the_gauge_shows_the_latest(start: Start, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "logitport")
    client = pytest.importorskip("prometheus_client")
    from logitport.adapters.metrics import show_policy

    def shown(policy: Policy) -> Any:
        return client.REGISTRY.get_sample_value("logitport_policy", {"digest": policy.digest})

    def count(result: str) -> float:
        sample = client.REGISTRY.get_sample_value
        return sample("logitport_reloads_total", {"result": result}) or 0

    def is_successful() -> Any:
        return client.REGISTRY.get_sample_value("logitport_last_reload_successful")

    counts = SimpleNamespace(changed=count("changed"), refused=count("refused"))
    server = start(FIRST)
    first = server.looks()
    for result in ("changed", "refused"):
        labels = {"result": result}
        assert client.REGISTRY.get_sample_value("logitport_reloads_total", labels) >= 0
    show_policy(first.digest)
    server.write(SECOND)
    second = server.looks()
    show_policy(first.digest)  # by a request that began before
    assert (shown(first), shown(second)) == (0, 1)
    server.write(FIRST)
    server.looks()
    assert (shown(first), shown(second)) == (1, 0)
    assert (is_successful(), reload_of(second)) == (1, {"reload": "on"})
    server.write("")
    server.looks()
    assert (is_successful(), reload_of(second)) == (0, {"reload": "refused"})
    server.write(FIRST)  # as before, so that the policy stays
    server.looks()
    assert (is_successful(), reload_of(second)) == (1, {"reload": "on"})
    assert caplog.messages[-1].endswith(f" is right again: policy {first.digest} stays")
    assert reload_of(Policy()) == {}
    assert count("changed") == counts.changed + 2
    assert count("refused") == counts.refused + 1
