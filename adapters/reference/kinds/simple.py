"""Kinds that are a line or two."""

from typing import Any

from ....spec import (
    AllowedScriptsSpec,
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ChainSpec,
    ChainStep,
    GrammarSpec,
    LogitBiasSpec,
    MinTokensSpec,
    PluginSpec,
    PythonProcessorSpec,
    SamplingSpec,
    WatermarkSpec,
)
from .base import Add, Allow, Edit, Kind, Tokens, ban


def _banned_sequences(spec: BannedSequencesSpec, prompt: Tokens, output: Tokens) -> Edit:
    return ban({each[-1] for each in spec.sequences if (*output, each[-1])[-len(each) :] == each})


KINDS: tuple[Kind[Any], ...] = (
    Kind(
        AllowedTokensSpec((1,)),
        edit=lambda spec, prompt, output: Allow(frozenset(spec.token_ids)),
        examples=lambda free: [AllowedTokensSpec(free.unused)],
    ),
    Kind(
        BannedSequencesSpec(((1, 2),)),
        edit=_banned_sequences,
        examples=lambda free: [BannedSequencesSpec((free.output_ids[:2], free.unused))],
    ),
    Kind(
        BannedTokensSpec((1,)),
        edit=lambda spec, prompt, output: ban(spec.token_ids),
        examples=lambda free: [BannedTokensSpec(free.output_ids[:2])],
    ),
    Kind(
        LogitBiasSpec({1: 1.0}),
        edit=lambda spec, prompt, output: Add(dict(spec.bias)),
        examples=lambda free: [
            LogitBiasSpec({free.output_ids[0]: -1000}),
            LogitBiasSpec(dict.fromkeys(free.unused[:2], 1000)),
        ],
    ),
    Kind(
        MinTokensSpec(1, (1,)),
        edit=lambda spec, prompt, output: (
            ban(spec.stop_token_ids) if len(output) < spec.n else None
        ),
        examples=lambda free: [MinTokensSpec(4, (free.output_ids[0], free.eos_token_id))],
    ),
    Kind(AllowedScriptsSpec(("Latin",))),  # see ``banned_scripts``
    Kind(ChainSpec((ChainStep(top_k=1),))),  # checked against other engines' samplers
    Kind(GrammarSpec(regex="a")),
    Kind(PluginSpec("any")),
    Kind(PythonProcessorSpec(lambda: lambda output_ids, logits: None)),
    Kind(SamplingSpec(temperature=0)),
    Kind(WatermarkSpec("any")),  # checked against the engines' own detectors
)
