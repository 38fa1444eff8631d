"""How a kind's compile function gets the vocabulary of an engine's tokenizer."""

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from time import sleep
from typing import Any

import pytest
from logitport.adapters import REALIZABLE, Backend
from logitport.adapters import backend as backend_module
from logitport.adapters.core import Vocabulary, compile_specs, unsupported
from logitport.adapters.core.kinds import Context, compile_spec
from logitport.adapters.core.kinds.simple import adding
from logitport.adapters.core.parts import Part
from logitport.adapters.core.text import scripts
from logitport.spec import BannedTokensSpec, LogitsProcessorSpec, SpecError

BANNED = BannedTokensSpec((1,))


class FirstByteSpec(LogitsProcessorSpec, frozen=True, tag="first_byte"):
    """Bans the tokens that begin with a byte."""

    byte: int


@compile_spec.register
def _compile(spec: FirstByteSpec, context: Context) -> Iterable[Part]:
    tokens = context.vocabulary_for(spec).tokens()
    yield adding(i for i, token in enumerate(tokens) if token[:1] == bytes([spec.byte]))


def small() -> Vocabulary:
    return Vocabulary.of_tokens([b"ab", b"b", None, b"a"])


def test_a_spec_is_compiled_for_a_vocabulary():
    spec = FirstByteSpec(ord("a"))
    first, second = compile_specs((BANNED, spec), small).automata
    assert (first.set_tokens.tolist(), second.set_tokens.tolist()) == ([1], [0, 3])
    for unknown in (None, lambda: None):
        with pytest.raises(SpecError) as error:
            compile_specs((BANNED, spec), unknown)
        assert error.value.path == "$.specs[1]"
        assert error.value.message == (
            "`first_byte` needs the vocabulary of the engine's tokenizer, which is not known here"
        )
    error = unsupported((BANNED, spec), lambda program: program.cells == 3, "no", small)
    assert error.path == "$.specs[1]"


def test_a_vocabulary_is_loaded_when_a_spec_needs_it_and_once():
    calls: list[str] = []

    def load() -> Vocabulary:
        calls.append("load")
        return small()

    backend = Backend("engine", REALIZABLE, load_vocabulary=load)
    compile_specs((BANNED,), backend.vocabulary)
    assert calls == []
    for _ in range(2):
        compile_specs((FirstByteSpec(1),), backend.vocabulary)
        assert backend.vocabulary() is replace(backend).vocabulary()
    assert calls == ["load"]
    assert Backend("engine", REALIZABLE).vocabulary() is None
    assert backend != replace(backend, load_vocabulary=lambda: small())


def test_a_vocabulary_is_loaded_once_for_several_threads(monkeypatch: pytest.MonkeyPatch):
    """Threads that come while the first one starts to load."""
    started: list[str] = []

    class Slow(ThreadPoolExecutor):
        def __init__(self, *arguments: Any) -> None:
            started.append("load")
            sleep(0.05)
            super().__init__(*arguments)

    monkeypatch.setattr(backend_module, "ThreadPoolExecutor", Slow)
    backend = Backend("engine", REALIZABLE, load_vocabulary=lambda: small())
    with ThreadPoolExecutor(4) as threads:
        found = [each.result() for each in [threads.submit(backend.vocabulary) for _ in range(4)]]
    assert started == ["load"]
    assert len({*map(id, found)}) == 1


def test_a_vocabulary_is_loaded_in_advance_beside_other_work():
    may_go_on = Event()

    def load() -> Vocabulary:
        assert may_go_on.wait(60)
        return small()

    backend = Backend("engine", REALIZABLE, load_vocabulary=load)
    assert backend.preload() is backend
    compile_specs((BANNED,), backend.vocabulary)
    may_go_on.set()
    vocabulary = backend.vocabulary()
    assert vocabulary is not None
    assert "trie" in vocabulary.__dict__
    assert Backend("engine", REALIZABLE).preload().vocabulary() is None


def test_a_vocabulary_is_loaded_without_the_table_of_scripts(monkeypatch: pytest.MonkeyPatch):
    for module in ("fontTools", "fontTools.unicodedata"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(scripts, "script_ranges", scripts.script_ranges.__wrapped__)
    backend = Backend("engine", REALIZABLE, load_vocabulary=lambda: small())
    assert backend.preload().vocabulary() is not None


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
@pytest.mark.parametrize("is_in_advance", [False, True])
def test_a_vocabulary_that_cannot_be_loaded(kind: type[BaseException], is_in_advance: bool):
    calls: list[str] = []

    def load() -> Vocabulary:
        calls.append("load")
        raise kind("no file")

    backend = Backend("engine", REALIZABLE, load_vocabulary=load)
    if is_in_advance:
        backend.preload()
    for _ in range(2):
        with pytest.raises(SpecError) as error:
            compile_specs((FirstByteSpec(1),), backend.vocabulary)
        assert error.value.path == "$.specs[0]"
        assert error.value.message == (
            "The vocabulary of engine's tokenizer cannot be read: no file"
        )
    assert calls == ["load"]


class Tokenizer:
    """A tokenizer whose tokens have bytes."""


@pytest.mark.parametrize("tokenizer", [Tokenizer(), {}], ids=["kept", "takes no weak reference"])
def test_the_vocabulary_of_a_tokenizer(tokenizer: object):
    calls: list[object] = []

    def read(tokenizer: object) -> Vocabulary:
        calls.append(tokenizer)
        return small()

    backend = Backend("engine", REALIZABLE)
    assert backend.for_tokenizer(None, 3) is backend
    of_request = [backend.for_tokenizer(tokenizer, 3, read) for _ in range(2)]
    sizes = [vocabulary.size for each in of_request if (vocabulary := each.vocabulary())]
    assert sizes == [3, 3]  # of four tokens, the engine has three
    is_kept = isinstance(tokenizer, Tokenizer)
    assert (of_request[0] == of_request[1], len(calls)) == (is_kept, 1 if is_kept else 2)
