"""What an operator's policy makes of requests, wherever they are admitted."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logitport import spec as s
from logitport.adapters import (
    REALIZABLE,
    Backend,
    Policy,
    admit,
    check_policy,
    policy,
    policy_of,
)
from logitport.adapters.core import Mark, Realizer
from logitport.hooks import configuration

from tests.support.transcripts import check, transcripts

BAN = s.BannedTokensSpec((5,))
BIAS = s.LogitBiasSpec({6: 1.5})
FORCE = s.ForcedTokenSequenceSpec((7,))
CHOICE = s.ChoiceSpec(((1,), (2,)), 0)
FLOOR = s.MinTokensSpec(1, (3,))
BOT = s.PluginSpec("bot")
PRESETS = {"bot": (CHOICE, FLOOR), "quiet": (BAN,)}


def backend(policy: Policy) -> Backend:
    return Backend("tested", REALIZABLE, policy=policy)


def thinking(budget: int) -> s.ThinkingBudgetSpec:
    return s.ThinkingBudgetSpec(budget, (8,), (9,))


def admitted(command: str, text: str) -> Iterator[str]:
    """Run a line of a transcript: ``admit`` specs under a configuration.

    What is printed is the payload that acts, or the path and the message of the refusal.
    """
    made = configuration.policy(None, json.loads(command.removeprefix("admit ")))
    assert made is not None
    found: list[str] = []
    for generation_only in (True, True, False):  # a refusal is remembered, too
        given = s.encode(json.loads(text), generation_only=generation_only)
        try:
            payload, program = admit(backend(made), given, 100)
        except s.SpecError as error:
            found.append(f"{error.path}: {error.message}")
        else:
            assert program.automata
            assert payload.generation_only is generation_only
            found.append(s.encode(payload.specs))
    assert len({*found}) == 1
    yield found[0]


@transcripts("policies")
def test_transcript(file: Path, request: pytest.FixtureRequest):
    check(file, admitted, request)


def forbids(kind: str) -> Policy:
    return Policy(forbid=frozenset({kind}))


FAR = s.BannedTokensSpec((100,))
ADDED = "With a spec that the server adds: "


# a client's spec, which forces tokens within a block, or allows nothing else
@pytest.mark.parametrize(
    "own",
    [
        s.ForcedTokenSequenceSpec((7,) * 50),
        s.ForcedEndSpec(3, (7,) * 50),
        s.TriggerSpec((6,), (6, 6), None),
        s.PhasesSpec((s.Phase((s.ForcedTokenSequenceSpec((7,) * 50),)),)),
        thinking(50),
    ],
    ids=lambda spec: spec.kind,
)
def test_a_clients_tokens_do_not_open_a_default_budget(own: s.LogitsProcessorSpec):
    made = Policy((thinking(4),), "add")
    program = admit(backend(made), s.encode(own), 100)[1]
    realizer, output = Realizer(100), list[int]()
    realizer.add(0, program, [8], output)
    for _ in range(5):
        logits = torch.zeros(1, 100)
        logits[0, 6] = 1
        realizer.apply(logits)
        output.append(int(logits.argmax()))
    assert output[4] == 9, output


def test_policies_are_apart():
    """The cache of admission does not confuse the engines of a process."""
    text = s.encode(BOT)
    first, second = (backend(Policy(presets={"bot": (each,)})) for each in (BAN, BIAS))
    for _ in range(2):
        assert admit(first, text, 100)[0].specs == (BAN,)
        assert admit(second, text, 100)[0].specs == (BIAS,)
        with pytest.raises(s.SpecError, match="No plugin"):
            admit(first.free, text, 100)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Policy((BAN,), "add"), (True, ("bot",))),
        (Policy((BAN,), guard=(FLOOR,)), (False, ("bot",))),
        (Policy((), "add", guard=(FLOOR,)), (False, ("bot",))),
    ],
)
def test_what_joins_a_request(made: Policy, expected: tuple[bool, tuple[str, ...]]):
    """A guard is no default: it acts on every request."""
    assert replace(made, presets=PRESETS).join((BIAS, BOT)) == expected


def test_nothing_to_fill_in_costs_nothing():
    payload = admit(backend(Policy()).free, s.encode(BAN), 100)[0]
    assert Policy((BAN,), presets=PRESETS).resolve(payload) is payload


NOT_FORCED = s.BannedTokensSpec(FORCE.token_ids[:1])


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (Policy(presets=PRESETS), None),
        (Policy(presets={"far": (FAR,)}), "The preset 'far' cannot be realized"),
        (Policy(presets={"far": (s.PluginSpec("absent"),)}), "No plugin 'absent'"),
        (Policy((FORCE,), "add", {"bot": (CHOICE,)}), f"{ADDED}Conflicts with"),
        (Policy((FORCE,), "replace", {"bot": (CHOICE,)}), None),
        (Policy((FORCE, CHOICE)), "$.default["),
        (Policy(guard=(FAR,)), "the server's guard[0]"),
        (Policy((FORCE,), guard=(NOT_FORCED,)), "$.default[0].token_ids[0]"),
    ],
)
def test_policies_are_checked_at_the_start(made: Policy, problem: str | None):
    if problem is None:
        check_policy(backend(made), 100)
        return
    with pytest.raises(ValueError, match=r"preset|default|guard") as raised:
        check_policy(backend(made), 100)
    assert problem in str(raised.value)


def test_two_policies(monkeypatch: pytest.MonkeyPatch):
    def entry(name: str, made: Any) -> Any:
        return SimpleNamespace(name=name, load=lambda: lambda *_: made)

    entries = [entry("a", made := Policy((BAN,))), entry("b", None)]
    defaults: list[Any] = []
    groups = {policy.GROUP: entries, policy.DEFAULTS: defaults}
    monkeypatch.setattr(policy, "entry_points", lambda group: groups[group])
    assert policy_of(list) is made
    defaults += [entry("d", []), entry("e", [FORCE])]
    found = policy_of(list)
    assert found is not None
    assert found.default == (FORCE, BAN)
    assert policy_of(None) is made
    entries.append(entry("c", Policy()))
    with pytest.raises(ValueError, match="Expected one policy, got those of a, c"):
        policy_of(list)


def test_the_token_that_ends_a_reply(caplog: pytest.LogCaptureFixture):
    """The first of the model's that its vocabulary has, beside a guard."""
    caplog.set_level("WARNING", "logitport")
    assert Policy().end_token({2}, 100) is None
    assert not caplog.messages
    assert Policy(guard=(BAN,)).end_token({-1, 7, 100}, 100) == 7
    assert Policy(guard=(BAN,)).end_token({-1, 100}, 100) is None
    (message,) = caplog.messages
    assert "no EOS token of the model is known" in message


def test_what_a_reply_continues():
    """It stays beside what the server adds, unless the server does not admit it."""
    payload = s.Payload(1, (BIAS,), continued=3)
    added = Policy((BAN,), "add").resolve(payload)
    assert (len(added.specs), added.continued) == (2, 3)
    with pytest.raises(s.SpecError, match="does not admit `continued`") as error:
        forbids("continued").resolve(payload)
    assert error.value.path == "$.continued"
    with pytest.raises(s.SpecError, match="does not admit `continued`"):
        admit(backend(forbids("continued")), s.encode(BIAS, continued=3), 100)
    assert forbids("continued").resolve(s.Payload(1, (BIAS,))).continued == 0


OTHERS: list[dict[str, Any]] = [
    *({"default": (s.DrySpec(1.0),)}, {"default": (s.DrySpec(2.0),)}, {"own": "add"}),
    *({"guard": (s.BannedTokensSpec((1,)),)}, {"guard": (s.BannedTokensSpec((2,)),)}),
    *({"presets": {"a": (s.DrySpec(1.0),)}}, {"presets": {"a": (s.DrySpec(2.0),)}}),
    *({"forbid": frozenset({"dry"})}, {"efforts": {"low": 5}}, {"efforts": {"low": 6}}),
    *({"profiles": {"news": Mark("news", 1)}}, {"profiles": {"news": Mark("news", 1, width=5)}}),
    *({"required": "news"}, {"mark_bounds": {"top_k": 5}}, {"unmarked": frozenset({"json"})}),
]


def test_policies_that_differ_have_different_digests():
    digests = [Policy(**each).digest for each in [{}, *OTHERS]]
    assert len({*digests}) == len(digests)
    assert [Policy(**each).digest for each in [{}, *OTHERS]] == digests
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in digests)


def test_no_key_is_in_a_digest():
    of_keys = {Policy(profiles={"news": Mark("news", key)}).digest for key in (1, 2)}
    assert len(of_keys) == 1
