"""A configuration that marks each text, and what its texts show."""

from collections.abc import Sequence
from typing import Any

from logitport import spec as lp
from logitport.adapters.detection import KeySource, Profile, VllmGumbel, detect

KEY = {"NEWS_KEY": "0x1234567890abcdef", "OTHER_KEY": "7"}
"""The environment of a server."""
NEWS = VllmGumbel(key=KeySource(env="NEWS_KEY"))
PROFILES: dict[str, Profile] = {"news": NEWS, "other": VllmGumbel(key=KeySource(env="OTHER_KEY"))}
CONFIGURATION: dict[str, Any] = {
    "profiles": {
        "news": {"scheme": "vllm-gumbel", "key": {"env": "NEWS_KEY"}},
        "other": {"scheme": "vllm-gumbel", "key": {"env": "OTHER_KEY"}},
    }
}
REQUIRED = {"require": {"watermark": {"profile": "news", "unless": ["grammar"]}}}
MARK = lp.WatermarkSpec("news")

TOPICS = (
    *("a dog and a ship", "bread", "the sea in winter", "a river", "an old clock", "the moon"),
    *("a market", "two brothers", "a lost key", "music", "snow", "a long train journey"),
    *("a garden", "an island", "a lighthouse", "rain", "a library", "a king", "a bird", "tea"),
)


def prompts(count: int) -> list[str]:
    """Prompts of a chat, each another one."""
    how = (
        "Tell a story about",
        "Write a letter about",
        "Explain to a child",
        "Argue for",
        "Describe",
    )
    asked = [f"{begin} {topic}." for begin in how for topic in TOPICS]
    return [
        f"<|im_start|>user\n{each}<|im_end|>\n<|im_start|>assistant\n" for each in asked[:count]
    ]


def p_values(token_ids: Sequence[Sequence[int]], profile: str = "news") -> list[float]:
    """The p-value of each text, with one profile."""
    return [detect(each, {profile: PROFILES[profile]}).findings[0].p_value for each in token_ids]


# the fields of a request | the field where it is refused, because its text would have no mark
UNMARKED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0}, "temperature"),
    ({"top_k": 1}, "top_k"),
    ({"n": 2}, "n"),
]
