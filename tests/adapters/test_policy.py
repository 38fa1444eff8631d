"""What an operator's policy makes of requests, wherever they are admitted."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logitport.adapters import (
    REALIZABLE,
    Backend,
    Policy,
    admit,
    check_policy,
    policy,
    policy_of,
)
from logitport.adapters.core import Realizer
from logitport.spec import (
    AllowedTokensSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    Payload,
    Phase,
    PhaseEnd,
    PhasesSpec,
    PluginSpec,
    SpecError,
    ThinkingBudgetSpec,
    TriggerSpec,
    encode,
)

BAN = BannedTokensSpec((5,))
BIAS = LogitBiasSpec({6: 1.5})
FORCE = ForcedTokenSequenceSpec((7,))
CHOICE = ChoiceSpec(((1,), (2,)), 0)
FLOOR = MinTokensSpec(1, (3,))
BOT = PluginSpec("bot")
PRESETS = {"bot": (CHOICE, FLOOR), "quiet": (BAN,)}

Specs = tuple[LogitsProcessorSpec, ...]


def backend(policy: Policy) -> Backend:
    return Backend("tested", REALIZABLE, policy=policy)


def thinking(budget: int, grace: int = 0) -> ThinkingBudgetSpec:
    newlines = (3,) if grace else ()
    return ThinkingBudgetSpec(budget, (8,), (9,), grace=grace, newline_token_ids=newlines)


def phases(spec: LogitsProcessorSpec) -> PhasesSpec:
    return PhasesSpec((Phase((BIAS, spec), (PhaseEnd(n=5),)), Phase()))


NAMED = Policy(presets=PRESETS)


# policy | what a request brings | what acts
@pytest.mark.parametrize(
    ("made", "given", "acting"),
    [
        (Policy(), (BIAS,), (BIAS,)),
        (Policy((BAN,)), (BIAS,), (BIAS,)),
        (Policy((BAN,), "add"), (BIAS,), (BAN, BIAS)),
        (Policy((BAN,), guard=(FLOOR,)), (BIAS,), (BIAS,)),
        (Policy((BAN,), "add", guard=(FLOOR,)), (BIAS,), (BAN, BIAS)),
        (Policy((), "add"), (BIAS,), (BIAS,)),
        (NAMED, (BOT,), (CHOICE, FLOOR)),
        (NAMED, (BOT, BIAS), (CHOICE, BIAS, FLOOR)),
        (NAMED, (BIAS, BOT, PluginSpec("quiet")), (BIAS, CHOICE, BAN, FLOOR)),
        (Policy((BAN,), "add", PRESETS), (BOT,), (BAN, CHOICE, FLOOR)),
        (Policy((BAN,), "refuse", PRESETS), (BOT,), (BAN, CHOICE, FLOOR)),
        (Policy((BAN,), presets=PRESETS), (BOT,), (CHOICE, FLOOR)),
        (Policy(presets=PRESETS, forbid=frozenset({"choice", "plugin"})), (BOT,), (CHOICE, FLOOR)),
    ],
)
@pytest.mark.parametrize("generation_only", [True, False])
def test_what_acts(made: Policy, given: Specs, acting: Specs, generation_only: bool):
    payload, program = admit(backend(made), encode(given, generation_only=generation_only), 100)
    assert payload.specs == acting
    assert payload.generation_only is generation_only
    assert bool(program.automata)


def forbids(kind: str) -> Policy:
    return Policy(forbid=frozenset({kind}))


ONLY = Policy(own="refuse", presets=PRESETS)
NO_PLUGIN = Policy(presets=PRESETS, forbid=frozenset({"plugin"}))
OF_BOTS = "No plugin 'bots' is installed on the server; installed: none; presets: bot, quiet"
NO_BOTS = "does not admit `plugin`, and has no preset 'bots'; presets: bot, quiet"
FAR = BannedTokensSpec((100,))
SIXTEEN = Policy(presets={"a": (BAN,) * 16, "b": (BIAS,)})
ADDED = "With a spec that the server adds: "
TOKEN, IN_PHASE = "$.specs[0].token_ids[0]", "$.specs[0].phases[0].specs[1]"
NONE_LEFT = "Conflicts with the server's guard[0]: no token is left"


# policy | what a request brings | where it is refused, and why
@pytest.mark.parametrize(
    ("made", "given", "path", "message"),
    [
        (ONLY, (BOT, BIAS), "$.specs[1]", "no specs but its presets: bot, quiet"),
        (Policy(own="refuse"), (BIAS,), "$.specs[0]", "no specs but its presets: it has none"),
        (NAMED, (PluginSpec("bots"),), "$.specs[0].name", OF_BOTS),
        (NAMED, (PluginSpec("bot", {"a": 1}),), "$.specs[0].params", "takes no parameters"),
        (NAMED, (BOT, BAN, BOT), "$.specs[2]", "'bot' is named twice"),
        (forbids("choice"), (BAN, CHOICE), "$.specs[1]", "does not admit `choice`"),
        (forbids("choice"), (phases(CHOICE),), IN_PHASE, "`choice`"),
        (forbids("phases"), (phases(CHOICE),), "$.specs[0]", "does not admit `phases`"),
        (forbids("plugin"), (PluginSpec("a"),), "$.specs[0]", "`plugin`"),
        (NO_PLUGIN, (PluginSpec("bots"),), "$.specs[0]", NO_BOTS),
        # What is filled in has no index in the request.
        (
            *(Policy((FORCE,), "add"), (BIAS, CHOICE), "$.specs"),
            f"{ADDED}Conflicts with `$.specs[1]`, which refuses token 7",
        ),
        (
            *(Policy((BIAS, FORCE), "add"), (BIAS, BannedTokensSpec((7,))), "$.specs"),
            f"{ADDED}Conflicts with `$.specs[1]`, which bans token 7",
        ),
        (
            *(Policy((BAN,), "add"), (FORCE, CHOICE), TOKEN),
            "Conflicts with `$.specs[1]`, which refuses token 7",
        ),
        # What a guard never leaves is refused early. It is apart, and has a name.
        *(
            (
                *(Policy((BIAS,), own, guard=(BIAS, BAN)), (ForcedTokenSequenceSpec((6, 5)),)),
                *("$.specs[0].token_ids[1]", "the server's guard[1], which bans token 5"),
            )
            for own in ("replace", "add")
        ),
        (
            *(Policy(guard=(AllowedTokensSpec((1, 2)),)), (BIAS, AllowedTokensSpec((3,)))),
            *("$.specs[1]", NONE_LEFT),
        ),
        (Policy((BAN,), "add"), (BIAS, FAR), "$.specs[1].token_ids[0]", "100"),
        (Policy((FAR,), "add"), (BIAS,), "$.specs", ADDED),
        (NAMED, (FORCE, BOT), TOKEN, "Conflicts with `$.specs[1]`"),
        (Policy((BAN,), "add"), (BIAS,) * 16, "$.specs", "at most 16 specs, with those that the "),
        (SIXTEEN, (PluginSpec("a"), PluginSpec("b")), "$.specs", "server adds, got 17"),
    ],
)
def test_refused(made: Policy, given: Specs, path: str, message: str):
    for _ in range(2):  # a refusal is remembered, too
        with pytest.raises(SpecError) as raised:
            admit(backend(made), encode(given), 100)
        assert raised.value.path == path
        assert message in raised.value.message


# a client's spec, which forces tokens within a block, or allows nothing else
@pytest.mark.parametrize(
    "own",
    [
        ForcedTokenSequenceSpec((7,) * 50),
        ForcedEndSpec(3, (7,) * 50),
        TriggerSpec((6,), (6, 6), None),
        PhasesSpec((Phase((ForcedTokenSequenceSpec((7,) * 50),)),)),
        thinking(50),
    ],
    ids=lambda spec: spec.kind,
)
def test_a_clients_tokens_do_not_open_a_default_budget(own: LogitsProcessorSpec):
    made = Policy((thinking(4),), "add")
    program = admit(backend(made), encode(own), 100)[1]
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
    text = encode(BOT)
    first, second = (backend(Policy(presets={"bot": (each,)})) for each in (BAN, BIAS))
    for _ in range(2):
        assert admit(first, text, 100)[0].specs == (BAN,)
        assert admit(second, text, 100)[0].specs == (BIAS,)
        with pytest.raises(SpecError, match="No plugin"):
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
    payload = admit(backend(Policy()).free, encode(BAN), 100)[0]
    assert Policy((BAN,), presets=PRESETS).resolve(payload) is payload


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (NAMED, None),
        (Policy(presets={"far": (FAR,)}), "The preset 'far' cannot be realized"),
        (Policy(presets={"far": (PluginSpec("absent"),)}), "No plugin 'absent'"),
        (Policy((FORCE,), "add", {"bot": (CHOICE,)}), f"{ADDED}Conflicts with"),
        (Policy((FORCE,), "replace", {"bot": (CHOICE,)}), None),
        (Policy((FORCE, CHOICE)), "$.default["),
        (Policy(guard=(FAR,)), "the server's guard[0]"),
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
    payload = Payload(1, (BIAS,), continued=3)
    added = Policy((BAN,), "add").resolve(payload)
    assert (len(added.specs), added.continued) == (2, 3)
    with pytest.raises(SpecError, match="does not admit `continued`") as error:
        forbids("continued").resolve(payload)
    assert error.value.path == "$.continued"
    with pytest.raises(SpecError, match="does not admit `continued`"):
        admit(backend(forbids("continued")), encode(BIAS, continued=3), 100)
    assert forbids("continued").resolve(Payload(1, (BIAS,))).continued == 0
