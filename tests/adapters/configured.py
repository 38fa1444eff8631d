"""A configuration, and requests with what becomes of them, for any engine."""

from typing import Any

from logitport import spec as lp

CONFIGURATION: dict[str, Any] = {
    "default": [{"kind": "forced_sequence", "from_text": {"text": " by default"}}],
    "guard": [{"kind": "banned_text", "texts": ["Oslo"]}],
    "presets": {
        "rome": [{"kind": "choice", "from_text": {"texts": [" Rome"]}}],
        "calm": [
            {"kind": "banned_text", "texts": ["!"]},
            {"kind": "banned_tokens", "token_ids": [5]},
        ],
    },
    "forbid": ["prompt_bias"],
}

WRONG = "own: ad\nforbid: [plugins]\ndefault:\n- kind: choice\n  from_text: {texts: ['']}\n"
PROBLEMS = (
    "line 1: $.own: There is no value 'ad'; did you mean add?",
    "line 2: $.forbid[0]: There is no kind 'plugins'; did you mean plugin?",
    "line 5: $.default[0].from_text: The tokenizer makes no tokens of ''",
)

BANNED = "[ ]Oslo"
"""A grammar whose only text the guard bans, and which nobody reads: the reply ends before it."""
SEEN = " Oslo"
"""The same as a literal, which is refused."""

BAN = lp.BannedTokensSpec((5,))

ACTS: list[tuple[tuple[lp.LogitsProcessorSpec, ...], str]] = [
    ((), " by default"),
    ((lp.PluginSpec("rome"),), " Rome"),
    ((lp.PluginSpec("rome"), lp.PluginSpec("calm")), " Rome"),
    ((lp.PluginSpec("rome"), BAN), " Rome"),
]
"""Specs, and the whole output."""

REFUSED: list[tuple[tuple[lp.LogitsProcessorSpec, ...], str]] = [
    ((lp.PromptBiasSpec(1),), "does not admit `prompt_bias`"),
    ((lp.PluginSpec("paris"),), "No plugin 'paris'"),
]
"""Specs, and a part of the message."""
