"""The texts of tokens, from a Hugging Face tokenizer."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from socket import getaddrinfo
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies

from ..files import read_file

if TYPE_CHECKING:
    from ..core import VocabularyOf

TextOf = Callable[[int], str]
"""The text of a token; empty if there is no tokenizer."""


IdsOf = Callable[[str], Sequence[int]]
"""The ids of all tokens with a text; none if it is not known."""

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
"""What may be a name on the Hugging Face hub. Any other is that of a folder."""


def no_text(token_id: int) -> str:
    """Return no text: there is no tokenizer."""
    return ""


def token(token_id: int, text_of: TextOf) -> str:
    """Format a token id with its text, if there is one."""
    text = text_of(token_id)
    return f"{token_id} {quoted(text)}" if text else str(token_id)


def quoted(text: str) -> str:
    """Quote a text as JSON does."""
    return json.dumps(text, ensure_ascii=False)


def texts_of(tokenizer: str | None) -> TextOf:
    """Make a function of the tokenizer that ``load_tokenizer`` loads, if one is named."""
    if tokenizer is None:
        return no_text
    loaded = load_tokenizer(tokenizer)
    return lambda token_id: loaded.decode([token_id], skip_special_tokens=False)


def ids_of(tokenizer: str | None) -> IdsOf:
    """Make a function that finds tokens by their text, as ``texts_of`` and engines have it.

    SGLang, and vLLM if a client asks for ids, answer with ids: ``token_id:7``.
    """
    if tokenizer is None:
        return lambda text: ()

    @cache
    def by_text() -> dict[str, list[int]]:
        found, text_of = defaultdict[str, list[int]](list), texts_of(tokenizer)
        for token_id in load_tokenizer(tokenizer).get_vocab().values():
            found[text_of(token_id)].append(token_id)
            found[f"token_id:{token_id}"].append(token_id)
        return found

    return lambda text: by_text().get(text, ())


def vocabulary_of(tokenizer: str | None) -> "VocabularyOf":
    """Make a function that returns the tokenizer's vocabulary, for specs about text."""

    @cache
    def load() -> Any:
        from ..core import Vocabulary

        return tokenizer and Vocabulary.of_tokenizer(load_tokenizer(tokenizer))

    return load


def load_tokenizer(tokenizer: str) -> Any:
    """Load a tokenizer from a folder, a ``tokenizer.json`` or the Hugging Face hub.

    Raises:
        ModuleNotFoundError: if the package ``tokenizers`` is missing.
        ValueError: if there is no such tokenizer.
    """
    from tokenizers import Tokenizer

    path = Path(tokenizer)
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.exists() and not file.is_file():
        raise ValueError(f"No tokenizer at {tokenizer!r}: expected a regular file or a folder")
    if not path.exists() and not _HUB_NAME.fullmatch(tokenizer):
        raise ValueError(f"No tokenizer at {tokenizer!r}: there is no such folder")
    try:
        if path.exists():
            return Tokenizer.from_file(str(file))
        _ask_no_unknown_host()
        return Tokenizer.from_pretrained(tokenizer)
    except Exception as error:  # the package raises no type of its own
        raise ValueError(f"No tokenizer at {tokenizer!r}: {error}") from error


def _ask_no_unknown_host() -> None:
    """Without a network, have the Hugging Face hub read its cache at once: it tries for 25 s."""
    from huggingface_hub import constants

    if not getproxies():
        try:
            getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
        except OSError:
            constants.HF_HUB_OFFLINE = True


def digest_of(tokenizer: str) -> str:
    """Return the digest of a tokenizer's file, as profiles of marks have it."""
    is_file = Path(tokenizer).is_file()
    text = read_file(tokenizer) if is_file else _read(tokenizer, "tokenizer.json")
    return f"sha256:{sha256(text.encode()).hexdigest()}"


def model_tokenizer(model: str) -> Any:
    """Load the tokenizer of a model, with the model's EOS token as ``eos_token_id``.

    Raises:
        ModuleNotFoundError: if the package ``tokenizers`` is missing.
        ValueError: if there is no such tokenizer.
    """
    tokenizer = load_tokenizer(model)
    eos = _config(model, "tokenizer_config.json").get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    return _WithEos(tokenizer, None if text is None else tokenizer.token_to_id(text))


def vocabulary_size(model: str) -> int:
    """Return the number of columns of a model's logits: tokenizers may have fewer tokens.

    Raises:
        ValueError: as ``load_tokenizer`` does.
    """
    config = _config(model, "config.json")
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return size or load_tokenizer(model).get_vocab_size()


def _config(model: str, name: str) -> dict[str, Any]:
    """Read a file of a model, in its folder or on the Hugging Face hub; empty if there is none.

    Raises:
        ValueError: if it is not an object, or not a file with an end.
    """
    if Path(model).is_file():  # a tokenizer.json alone
        return {}
    try:
        config: Any = json.loads(_read(model, name))
    except OSError:
        return {}
    if not isinstance(config, dict):
        raise ValueError(f"{name} of {model!r}: expected an object")
    return cast("dict[str, Any]", config)


def _read(model: str, name: str) -> str:
    """Read a file of a model, in its folder or on the Hugging Face hub.

    Raises:
        OSError: if there is none.
        ValueError: if it is not a file with an end.
    """
    folder = Path(model)
    if folder.is_dir():
        return read_file(folder / name)
    from huggingface_hub import hf_hub_download

    return read_file(hf_hub_download(model, name))


class _WithEos:
    """A tokenizer of the package ``tokenizers``, which knows no EOS token."""

    def __init__(self, tokenizer: Any, eos_token_id: int | None) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
