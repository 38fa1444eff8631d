"""Every kind in one batch, in few slots and little memory: requests wait, and are preempted."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from logitport import spec as lp
from logitport.adapters.reference import obeys
from logitport.adapters.reference.kinds import KINDS, REALIZED
from logitport.adapters.reference.kinds.base import FreeRun
from logitport.adapters.vllm import KEY, LogitportProcessor
from logitport.spec.base import kind_of

from tests.adapters.packages import plugin_package
from tests.support.endings import REPLIES, assert_ended, ending
from tests.support.texts import BANNED, is_free_of_banned

from .in_process import Engine, params, refused

LENGTH = 24
"""Tokens of an output, unless its specs end it."""

ARGUMENTS: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 40,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
    "block_size": 32,
    "num_gpu_blocks_override": 24,  # 16 outputs need 32 when they end
}

ECHO = "one two three one two three one two three one two three one two"
FIRST = "one"
"""Of the requests that fail: a single token, so that all of them are in the first step."""
NEIGHBOURS = [f"Tell me about the number {i}." for i in range(6)]


# --- plugins, as a server's owner writes and installs them ---


def ascending(params: Mapping[str, Any]) -> Callable[..., None]:
    """Each token's id is higher than that of the one before, by at most ``params["step"]``."""

    def process(output_ids: Sequence[int], logits: torch.Tensor) -> None:
        last = output_ids[-1] if output_ids else 0
        logits[: last + 1] = -torch.inf
        logits[last + 1 + params["step"] :] = -torch.inf

    return process


def fails_after(params: Mapping[str, Any]) -> Callable[..., None]:
    def process(prompt_ids: Sequence[int], output_ids: Sequence[int], logits: torch.Tensor) -> None:
        if len(output_ids) == params["tokens"]:
            raise RuntimeError("this plugin has had enough")

    return process


def refuses(params: Mapping[str, Any]) -> Any:
    raise ValueError(f"what is {next(iter(params))}?")


PLUGINS = {"ascending": ascending, "fails-after": fails_after, "refuses": refuses}


@contextmanager
def plugins_installed(folder: Path) -> Iterator[None]:
    """Install the plugins, as by a package of their own."""
    entries = {name: f"{__name__}:{made.__name__}" for name, made in PLUGINS.items()}
    with plugin_package(folder, entries):
        yield


# --- code that a request brings ---


class ThreeArguments:
    """The prompt's tokens alone, in a new tensor."""

    def __call__(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int], logits: torch.Tensor
    ) -> torch.Tensor:
        only = torch.full_like(logits, -torch.inf)
        only[prompt_ids] = logits[prompt_ids]
        return only


def raises_at_once() -> Any:
    raise RuntimeError("no processor today")


class RaisesInTheMidst:
    def __call__(self, output_ids: Sequence[int], logits: torch.Tensor) -> None:
        logits.fill_(0.0)
        raise RuntimeError("changed its mind")


# what fails | the tokens that are out by then
FAILING: dict[str, tuple[Any, int]] = {
    "factory raises": (lp.PythonProcessorSpec(raises_at_once), 0),
    "callable raises": (lp.PythonProcessorSpec(RaisesInTheMidst), 0),
    "plugin raises later": (lp.PluginSpec("fails-after", {"tokens": 5}), 5),
    # Past admission, as text and as what it says.
    "beyond the vocabulary": (lp.encode(lp.ForcedTokenSequenceSpec((1 << 20,))), 0),
    "beyond the vocabulary, parsed": (
        {"version": 1, "specs": [{"kind": "forced_sequence", "token_ids": [1 << 20]}]},
        0,
    ),
}


# --- the batch ---


@dataclass(frozen=True)
class Case:
    """A request with specs, and whether an output is as they want it."""

    specs: Sequence[lp.LogitsProcessorSpec]
    is_right: Callable[[list[int]], bool]
    sampling: dict[str, Any] = field(default_factory=dict)  # else every second one is hot


SAMPLINGS: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_p": 0.1},
    {"min_p": 0.5},
    {"frequency_penalty": 2.0, "repetition_penalty": 2.0},
    {"logprobs": 3},
]
SPECIAL = re.compile(r"<\|\w+\|>")


def cases(free: list[int], tokenizer: Any) -> dict[str, Case]:
    """Make a request of each kind, for what the model says after ``ECHO`` without specs."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    def text(output: list[int]) -> str:
        # A special token has no text, and what is before it does not go on after it.
        return SPECIAL.sub("\n", tokenizer.decode(output))

    prompt, eos = ids(ECHO), tokenizer.eos_token_id
    unused = ids("{") + ids("#") + ids("@")
    assert not {*unused} & {*prompt, *free}
    run = FreeRun(prompt, tuple(free), unused, eos)
    made: dict[str, Case] = {}
    for kind in REALIZED:
        for i, spec in enumerate(KINDS[kind].examples(run)):
            sampling = {"ignore_eos": False} if kind is lp.AtEndSpec else {}
            made[f"{kind_of(kind)} {i}"] = Case([spec], partial(obeys, spec, prompt), sampling)
    step = len(tokenizer) // 100
    made |= {
        "plugin, callable": Case(
            [lp.PluginSpec("ascending", {"step": step})],
            lambda output: all(0 < b - a <= step for a, b in pairwise([0, *output])),
        ),
        "callable of three arguments": Case(
            [lp.PythonProcessorSpec(ThreeArguments), lp.BannedTokensSpec(free[:1])],
            lambda output: {*output} <= {*prompt} - {*free[:1]},
        ),
        "banned text": Case([BANNED], lambda output: is_free_of_banned(text(output))),
        "max run": Case(
            [once := lp.MaxRunSpec(1)],
            lambda output: not any(map(once.bans_text, SPECIAL.split(tokenizer.decode(output)))),
        ),
        "banned scripts": Case(
            [lp.BannedScriptsSpec(("Latin",))],
            lambda output: not re.search("[A-Za-z]", text(output)),
        ),
    }
    several = [lp.ForcedEndSpec(18, unused), lp.BannedTokensSpec(free[:2])]
    several += [lp.MinTokensSpec(17, (free[2], eos)), lp.NoRepeatNgramSpec(2, 30)]
    made["several"] = Case(several, lambda out: all(obeys(each, prompt, out) for each in several))
    forced = lp.ForcedTokenSequenceSpec(ids(" nothing at all."), eos)
    for sampling in SAMPLINGS:
        made[f"forced, {', '.join(sampling)}"] = Case(
            [forced],
            lambda output: [*output[:-1]] == [*forced.token_ids],
            {"temperature": 1.5, "ignore_eos": False, **sampling},
        )
    return made


def check(
    running: Engine,
    tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
    *,
    drafts: int = 0,
    every: slice = slice(None),
    unseen: Callable[[str, Case], bool] | None = None,
) -> None:
    """Run the batch: each output obeys its specs, failures end their own requests only.

    ``every`` takes a part of the kinds, for interpreted kernels.

    Requests that need tokens which the engine does not show (``unseen``) come past admission, and
    end with the first token that they would have to know. Then nothing else fails.
    """
    greedy = params(max_tokens=LENGTH, ignore_eos=True)
    texts = [ECHO, *NEIGHBOURS]
    free, *expected = (
        [*output.token_ids] for output in running.generate(texts, [greedy] * len(texts))
    )
    named = dict([*cases(free, tokenizer).items()][every])
    if drafts:
        del named["forced, min_p"]  # which vLLM does not take beside drafts
    failing = {} if unseen else FAILING
    ended = {name for name, case in named.items() if unseen and unseen(name, case)}
    realizer = running.acting._realizer
    failed_before = realizer.failed_requests
    running.preempted.clear()
    running.steps.clear()

    # No seeds: on a CPU, vLLM's generators do not go with prompts in chunks.
    hot = {"temperature": 1.0, "max_tokens": LENGTH}
    asked = [
        params(extra_args={KEY: spec}, **hot)
        if isinstance(spec, str | dict)
        else params(spec, **hot)
        for spec, _ in failing.values()
    ]
    for i, (name, case) in enumerate(named.items()):
        hot = {"temperature": i % 2, "max_tokens": LENGTH, "ignore_eos": name not in ended}
        asked.append(params(case.specs, **hot | case.sampling))
    prompts = [FIRST] * len(failing) + [ECHO] * len(named) + NEIGHBOURS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogitportProcessor, "validate_params", lambda params: None)
        outputs = running.generate(prompts, [*asked, *[greedy] * len(NEIGHBOURS)])

    said = [[*output.token_ids] for output in outputs]
    assert said[len(asked) :] == expected  # the neighbours
    wrong: dict[str, Any] = {}
    eos = tokenizer.eos_token_id
    with_specs, failed = said[len(failing) : len(asked)], said[: len(failing)]
    for (name, case), output in zip(named.items(), with_specs, strict=True):
        if name in ended:
            *output, end = output
            if end != eos:
                wrong[name] = "not ended"
        if not case.is_right(output):
            wrong[name] = tokenizer.decode(output), output, case.specs
        elif case.is_right(free):
            wrong[name] = "the model does it by itself"
    for (name, (_, tokens)), output in zip(failing.items(), failed, strict=True):
        # Code that fails for a draft ends the request before it is known whether the draft is kept.
        if output[-1] != eos or not tokens - drafts < len(output) <= tokens + 1:
            wrong[name] = output
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())

    numbers = running.numbers[: len(failing)]
    of_named = running.numbers[len(failing) : len(asked)]
    numbers += [number for number, name in zip(of_named, named, strict=True) if name in ended]
    logged = re.findall(r"The specs of request (\d+)-\S+ cannot be realized", caplog.text)
    assert sorted(logged) == sorted(numbers)
    assert realizer.failed_requests == failed_before + len(numbers)
    if drafts:
        of_specs = running.drafts[len(failing) : len(asked)]
        assert sum(of.accepted > 0 for of in of_specs) > len(of_specs) / 3
        assert sum(of.rejected > 0 for of in of_specs) > len(of_specs) / 3
    else:
        assert any(1 < tokens < 14 for step in running.steps for tokens in step.values()), "chunks"
    # Drafts end the requests in fewer steps, and what fails ends at once.
    assert drafts or ended or any(running.preempted)
    assert running.held_requests() == 0
    if not ended:
        check_continued(running, tokenizer, named, with_specs)


def check_texts_at_the_end(running: Engine, tokenizer: Any) -> None:
    """Replies that are sampled end by themselves, with a text; where an end is forced, too."""
    text, eos = tokenizer.encode(" \u00a7 Said by a machine."), tokenizer.eos_token_id
    specs = ending(17.5, text, eos)
    asked = [params(specs, temperature=1.0, max_tokens=100) for _ in range(REPLIES)]
    replies = running.generate(["Hello"] * REPLIES, asked)
    assert not [each.token_ids for each in replies if each.finish_reason != "stop"]
    assert_ended([each.token_ids for each in replies], text, eos)
    both = [lp.ForcedEndSpec(3, (5, 6), eos), lp.AtEndSpec(tuple(text), (eos,))]
    asked = [
        params(both, max_tokens=40),
        params(ending(90.0, text, eos), max_tokens=40, min_tokens=6),
    ]
    forced, held_back = running.generate(["Hello"] * 2, asked)
    assert [*forced.token_ids[3:]] == [5, 6, *text, eos]
    assert [*held_back.token_ids[6:]] == [*text, eos]
    for fields, message in (
        ({"ignore_eos": True}, "`at_end` acts where a reply ends"),
        ({"temperature": 0.7}, "Expected the request's temperature, 0.7, by which"),
    ):
        payload = lp.encode(lp.AtEndSpec((5,), (eos, 7)))
        with refused(message):
            running.generate(["Hello"], [params(extra_args={KEY: payload}, **fields)])


def check_continued(
    running: Engine,
    tokenizer: Any,
    named: Mapping[str, Case],
    outputs: Sequence[list[int]],
    every: int = 5,
) -> None:
    """Cut the outputs, and let other requests go on: as before if they are greedy."""
    prompt = tokenizer.encode(ECHO)
    cuts = [
        (name, output, cut)
        for i, (name, output) in enumerate(zip(named, outputs, strict=True))
        for cut in range(1 + i % every, len(output), every)
    ]
    is_greedy = {name: i % 2 == 0 and not named[name].sampling for i, name in enumerate(named)}
    asked = [
        params(
            named[name].specs,
            continued=cut,
            temperature=float(not is_greedy[name]),
            max_tokens=len(output) - cut,
            ignore_eos=named[name].sampling.get("ignore_eos", True),
        )
        for name, output, cut in cuts
    ]
    prompts = [{"prompt_token_ids": [*prompt, *output[:cut]]} for _, output, cut in cuts]
    rests = [[*each.token_ids] for each in running.generate(prompts, asked)]
    assert len(cuts) > 2 * len(named)
    for (name, output, cut), rest in zip(cuts, rests, strict=True):
        whole = [*output[:cut], *rest]
        assert named[name].is_right(whole), (name, cut, whole, output)
        assert whole == output or not is_greedy[name], (name, cut, whole, output)
