"""The thinking tags of open models, by text, and the family that a tokenizer belongs to."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, Protocol

from .errors import SpecError
from .limits import MAX_PATTERN, MAX_TAGS
from .tokenization import Tokenizer, token_ids_of


class VocabularyTokenizer(Tokenizer, Protocol):
    """A tokenizer that lists its tokens, as any Hugging Face tokenizer does."""

    def get_vocab(self) -> dict[str, int]:
        """Return the token id of each token, special tokens included."""
        ...

    def decode(self, token_ids: Any, /) -> str:
        """Return the text of token ids."""
        ...


class ThinkingFamily(NamedTuple):
    """Models with the same thinking tags.

    Attributes:
        name: the name of the family.
        models: models that belong to it.
        start: the texts that begin a block.
        end: the texts that end a block. The first of them is forced.
        then: the text that is forced after a forced end.
        tokens: the parts of the texts that are tokens of the vocabulary.
    """

    name: str
    models: str
    start: tuple[str, ...]
    end: tuple[str, ...]
    then: str = ""
    tokens: tuple[str, ...] = ()


def _tags(name: str, models: str, start: str, end: str) -> ThinkingFamily:
    """Make a family of two tags that are one token each."""
    return ThinkingFamily(name, models, (start,), (end,), tokens=(start, end))


_THINK, _END = "<think>", "</think>"
_KIMI_TOOLS = "<|tool_calls_section_begin|>"

THINKING_FAMILIES: tuple[ThinkingFamily, ...] = (
    ThinkingFamily(
        "gpt-oss",
        "gpt-oss (harmony)",
        ("<|channel|>analysis<|message|>",),
        ("<|end|>", "<|call|>", "<|return|>"),
        "<|start|>assistant<|channel|>final<|message|>",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    ),
    # The newline after `thought` may be part of a longer token.
    ThinkingFamily(
        "gemma-4",
        "Gemma 4",
        ("<|channel>thought",),
        ("<channel|>",),
        tokens=("<|channel>", "<channel|>"),
    ),
    ThinkingFamily(
        "kimi-k3",
        "Kimi K3",
        ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>",),
        tokens=("<|open|>", "<|sep|>", "<|close|>"),
    ),
    ThinkingFamily(
        "kimi-k2",
        "Kimi K2 Thinking",
        (_THINK,),
        (_END, _KIMI_TOOLS),
        tokens=(_THINK, _END, _KIMI_TOOLS),
    ),
    _tags("kimi-vl", "Kimi-VL", "◁think▷", "◁/think▷"),
    _tags("magistral", "Magistral, Mistral", "[THINK]", "[/THINK]"),
    _tags("cohere", "Command A", "<|START_THINKING|>", "<|END_THINKING|>"),
    _tags("seed-oss", "Seed-OSS", "<seed:think>", "</seed:think>"),
    _tags("minimax-m3", "MiniMax M3", "<mm:think>", "</mm:think>"),
    _tags("k2-horizon", "K2 Horizon", "<ifm|think>", "</ifm|think>"),
    _tags("k2-horizon-fast", "K2 Horizon, fast", "<ifm|think_fast>", "</ifm|think_fast>"),
    _tags("k2-horizon-faster", "K2 Horizon, faster", "<ifm|think_faster>", "</ifm|think_faster>"),
    _tags("plamo-3", "PLaMo 3", "<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    _tags("longcat", "LongCat", "<longcat_think>", "</longcat_think>"),
    _tags("apertus", "Apertus", "<|inner_prefix|>", "<|inner_suffix|>"),
    _tags(
        "think",
        "Qwen3, QwQ, DeepSeek, GLM, Nemotron 3, MiMo, Ling 3, Step, Granite 4.2, MiniMax M2",
        _THINK,
        _END,
    ),
    _tags("hy", "Hy v3, v4", "<think{suffix}>", "</think{suffix}>"),
    # From here on, the tags are plain text: only a chat template tells these families apart.
    ThinkingFamily("hunyuan-a13b", "Hunyuan A13B", (_THINK,), (_END,), "\n<answer>\n"),
    ThinkingFamily("olmo-3", "Olmo 3, Mistral with a v11 tokenizer", (_THINK,), (_END,)),
    ThinkingFamily("kimi-vl-text", "Kimi-VL with tags of text", ("◁think▷",), ("◁/think▷",)),
    ThinkingFamily(
        "granite-3",
        "Granite 3.x",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
)
"""All families. The first whose tokens are in a tokenizer's vocabulary is the tokenizer's; without
such tokens, the first whose texts are in its chat template."""

_BEFORE, _AFTER = ("", " ", "\n", ".", ")"), ("", "\n", "\n\n", " ")
"""What a text stands between while the tokens that it may merge into are looked for."""


class ThinkingTags(NamedTuple):
    """The thinking tags of a model, in its tokens.

    Attributes:
        family: the tags as text.
        start: the tags that begin a block.
        end: the tags that end a block. The first of them is forced.
        then: what is forced after a forced end.
    """

    family: ThinkingFamily
    start: Sequence[tuple[int, ...]]
    end: Sequence[tuple[int, ...]]
    then: tuple[int, ...] = ()

    @property
    def end_tags(self) -> Sequence[Mapping[str, Any]]:
        """The end tags as ends of a phase: by token ids, or by text if it has several spellings."""
        if len(self.end) == len(self.family.end):
            return [{"token_ids": each} for each in self.end]
        return [{"text": each} for each in self.family.end]


def find_tags(
    tokenizer: VocabularyTokenizer, family: ThinkingFamily | None = None, template: Any = None
) -> ThinkingTags:
    """Find the thinking tags of a tokenizer's model.

    Args:
        tokenizer: the model's tokenizer, any Hugging Face tokenizer.
        family: the tags, if an operator states them.
        template: the model's chat template, by default the tokenizer's.

    Raises:
        SpecError: as ``thinking_family`` and ``thinking_tags`` do.
    """
    if family is None or family in THINKING_FAMILIES:
        family = thinking_family(tokenizer, family and family.name, template)
    then = token_ids_of(family.then, tokenizer) if family.then else ()
    return ThinkingTags(family, *thinking_tags(family, tokenizer), then)


def thinking_family(
    tokenizer: VocabularyTokenizer, name: str | None = None, template: Any = None
) -> ThinkingFamily:
    """Find the family of a tokenizer.

    Args:
        tokenizer: the model's tokenizer, any Hugging Face tokenizer.
        name: the name of the family. Without it, families whose tags are plain text are found by
            the chat template only.
        template: the model's chat template, or several by name; by default the tokenizer's.

    Raises:
        SpecError: if there is no such family, or its tokens are not in the vocabulary.
    """
    vocabulary = _vocabulary_of(tokenizer)
    template = str(template or getattr(tokenizer, "chat_template", None) or "")
    for family in THINKING_FAMILIES:
        if name != family.name and (name or not (family.tokens or _is_in(template, family))):
            continue
        family = _with_suffix(family, vocabulary)
        missing = [token for token in family.tokens if token not in vocabulary]
        if not missing:
            return family
        if name:
            raise SpecError(f"The tokenizer has no token {missing[0]!r}, which {name!r} needs")
    names = ", ".join(family.name for family in THINKING_FAMILIES if name or not family.tokens)
    if name:
        raise SpecError(f"Expected a family of thinking tags: {names}; got {name!r}")
    what = "The tokenizer has no known thinking tags. If they are text, name the model's `family`"
    raise SpecError(f"{what}, one of {names}; or pass other tags, to `from_text`")


def thinking_tags(
    family: ThinkingFamily, tokenizer: VocabularyTokenizer
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Tokenize the start tags and the end tags of a family.

    The tokens of plain text may be merged with what is around it, so it has several spellings. The
    first is that of the text alone.

    Raises:
        SpecError: if the tokenizer does not make the family's tokens of the text.
    """
    starts, ends = (_spellings(texts, family, tokenizer) for texts in (family.start, family.end))
    return starts, ends


def newline_token_ids(tokenizer: VocabularyTokenizer) -> tuple[int, ...]:
    """List the tokens of the vocabulary that have a newline.

    Raises:
        SpecError: if there is none, or ``tokenizer`` is not a tokenizer.
    """
    # Byte-level vocabularies write a newline as Ċ, which is a letter in others.
    written = re.compile("[\nĊ]|<0x0A>")
    found = sorted(
        token_id
        for token, token_id in _vocabulary_of(tokenizer).items()
        if written.search(token) and "\n" in tokenizer.decode([token_id])
    )
    if not found:
        raise SpecError("The tokenizer has no token with a newline")
    return tuple(found)


def _is_in(template: str, family: ThinkingFamily) -> bool:
    """Whether a chat template has a family's tags. Some have the start or the end alone."""
    tags = (family.start[0], family.end[0])
    return any(tag in template for tag in tags) and family.then.strip() in template


def _vocabulary_of(tokenizer: VocabularyTokenizer) -> dict[str, int]:
    if not hasattr(tokenizer, "get_vocab"):
        raise SpecError(f"Expected a tokenizer with a vocabulary, got {type(tokenizer).__name__}")
    return tokenizer.get_vocab()


def _with_suffix(family: ThinkingFamily, vocabulary: dict[str, int]) -> ThinkingFamily:
    """Look the suffix of a family's tags up in the vocabulary, if they have one."""
    start, end = family.start[0], family.end[0]
    if "{suffix}" not in start:
        return family
    before, after = start.split("{suffix}")
    for token in vocabulary:
        suffix = token.removeprefix(before).removesuffix(after)
        tags = start.format(suffix=suffix), end.format(suffix=suffix)
        if suffix and tags[0] == token and tags[1] in vocabulary:
            return family._replace(start=tags[:1], end=tags[1:], tokens=tags)
    return family


def _spellings(
    texts: tuple[str, ...], family: ThinkingFamily, tokenizer: VocabularyTokenizer
) -> list[tuple[int, ...]]:
    if family.tokens:
        vocabulary = tokenizer.get_vocab()
        return [_special(text, family, vocabulary, tokenizer) for text in texts]
    found = dict.fromkeys(token_ids_of(text, tokenizer) for text in texts)
    alone = {*found}
    for before, after, text in product(_BEFORE, _AFTER, texts):
        tokens = token_ids_of(before + text + after, tokenizer)
        if any(tokens[i : i + len(tag)] == tag for tag in alone for i in range(len(tokens))):
            continue
        while text in tokenizer.decode(tokens[1:]):
            tokens = tokens[1:]
        while text in tokenizer.decode(tokens[:-1]):
            tokens = tokens[:-1]
        if len(found) < MAX_TAGS and sum(map(len, found)) + len(tokens) <= MAX_PATTERN:
            found[tokens] = None
    return [*found]


def _special(
    text: str,
    family: ThinkingFamily,
    vocabulary: dict[str, int],
    tokenizer: VocabularyTokenizer,
) -> tuple[int, ...]:
    """Tokenize a text with special tokens."""
    if text in vocabulary:
        return (vocabulary[text],)
    tokens = token_ids_of(text, tokenizer)
    for token in family.tokens:
        if token in text and vocabulary[token] not in tokens:
            raise SpecError(f"The tokenizer does not make the token {token!r} of {text!r}")
    return tokens
