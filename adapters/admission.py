"""Admission: a request's payload is checked and compiled, and its program is cached."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
from cachetools import LRUCache

from ..spec import (
    VERSION,
    GrammarSpec,
    InProcessPayload,
    LogitsProcessorSpec,
    Payload,
    PhasesSpec,
    PluginSpec,
    SpecError,
    Stage,
    decode,
)
from ..spec.limits import MAX_PAYLOAD_BYTES
from ..spec.payload import decode_texts, specs_of
from ..spec.texts import Given, TextResolver
from .backend import Backend
from .core import Automaton, Program, check_continued, compile_specs, unsupported
from .core.contradictions import check_contradictions, check_guard, may_lose, may_stop
from .core.text.special_tokens import across_special_tokens
from .draws import bind_live
from .own_fields import check_ends
from .policy import Policy
from .presets import Preset

CACHE_BYTES = 1 << 28
"""The memory that cached programs of earlier requests and their payloads may take. Those with
grammars may take as much again, and put out no others."""

GRAMMAR_STATES = 1 << 23
"""The memory that the states of a grammar may come to take."""

Key = tuple[Backend, str, int | None]


class _Admitted(NamedTuple):
    payload: Payload
    program: Program
    size: int


class _Refused(NamedTuple):
    error: SpecError
    size: int


_lock = Lock()
"""Held to read or write the cache, never while a payload is decoded or compiled."""


def admit(backend: Backend, payload: Any, vocab_size: int | None) -> tuple[Payload, Program]:
    """Check and compile a request's payload.

    Programs are cached by the payload's text. Requests that carry the same text share one program,
    and so one set of tables. A refusal is cached for a grammar, which may have been compiled; any
    other costs no more than that of another text.

    Args:
        backend: the engine's backend.
        payload: a decoded payload, or an argument for ``decode``.
        vocab_size: the number of the engine's tokens, if it is known.

    Returns:
        The payload, with what the backend's policy has filled in, and its program.

    Raises:
        SpecError: if the payload cannot be realized, or the policy does not admit it.
    """
    if isinstance(payload, Payload):
        return _compiled(backend, payload, vocab_size)[:2]
    if isinstance(payload, bytes):
        try:
            payload = payload.decode()
        except UnicodeDecodeError:
            raise SpecError("The payload is not valid Unicode") from None
    decoded = resolver = None
    if isinstance(payload, str):
        text = payload
        if len(text) > MAX_PAYLOAD_BYTES:  # raises; such a text is not even hashed
            decode(text)
    else:
        resolver = backend.resolver()
        decoded = decode_texts(payload, resolver)
        text = msgspec.json.encode(decoded).decode()
    key = backend, text, vocab_size
    with _lock:
        found = _programs.get(key) or _grammars.get(key)
    if found is None:
        found = _admitted(key, decoded, resolver)
    if isinstance(found, _Refused):
        raise found.error.at()  # a copy, without the traceback of another request
    return found.payload, found.program


def program_of(
    backend: Backend, vocab_size: int | None, stage: Stage, payload: Any
) -> Program | None:
    """Return the program that acts on a request in a worker of a stage; ``None`` if none acts.

    The other arguments are those of ``admit``; a request without specs has no ``payload``.

    Raises:
        SpecError: if the payload cannot be realized.
    """
    if payload is None:
        return None
    decoded, program = admit(backend, payload, vocab_size)
    return program if decoded.is_active(stage) else None


def guard_of(
    backend: Backend, vocab_size: int | None, payload: str | None = None
) -> Program | None:
    """Return the program of the guard of a backend's policy; ``None`` if there is none.

    Args:
        backend: the engine's backend.
        vocab_size: as for ``admit``.
        payload: the guard's payload, where the backend has no policy.
    """
    payload = payload or (backend.policy and backend.policy.guard_payload)
    if not payload:
        return None
    with (backend.policy or Policy()).naming_guard():
        guard, program = admit(backend.free, payload, vocab_size)
    if (found := _guards.get(program)) is None:
        found = _guards[program] = _across_special_tokens(backend, guard.specs, program)
    return found


_guards: "WeakKeyDictionary[Program, Program]" = WeakKeyDictionary()
"""The programs of guards, by what is compiled of their payloads."""


def _across_special_tokens(
    backend: Backend, specs: Sequence[LogitsProcessorSpec], program: Program
) -> Program:
    """Let the texts of a guard go on across special tokens."""
    vocabulary, parts = None, list(program.parts)
    for i, acting in enumerate(parts):
        part, spec = acting.part, specs[acting.specs[0]]
        if not isinstance(part, Automaton) or isinstance(spec, PhasesSpec):
            continue
        if spec.needs_vocabulary and part.states > 1:
            vocabulary = vocabulary or backend.vocabulary()
            assert vocabulary is not None  # otherwise, the guard would not have been admitted
            parts[i] = acting._replace(part=across_special_tokens(part, vocabulary))
    return replace(program, parts=tuple(parts))


def admit_live(
    backend: Backend,
    specs: Given,
    vocab_size: int,
    continued: int = 0,
    profiles: Mapping[str, Any] | None = None,
    sampling: Any = None,
) -> Program:
    """Compile specs without encoding them: the engine is in this process.

    Texts of objects of the wire are for the backend's tokenizer. For ``continued``, see
    ``Payload``; for a mark's ``profiles`` and ``sampling``, see ``bind_live``. ``check_ends`` reads
    ``sampling``, too.

    Raises:
        SpecError: if the specs cannot be realized.
    """
    live: Any = specs_of(specs, backend.tokenizer)
    check_ends(sampling, live)
    payload = InProcessPayload(VERSION, live, continued=continued)
    return bind_live(admit(backend, payload, vocab_size)[1], profiles, sampling)


def check_policy(
    backend: Backend,
    vocab_size: int,
    check: Callable[[Payload, Program], None] = lambda payload, program: None,
) -> None:
    """Check that a backend's policy can be realized, before a request comes.

    Args:
        backend: the engine's backend.
        vocab_size: as for ``admit``.
        check: checks what acts on requests without specs: the guard, the default specs, and the
            required mark.

    Raises:
        ValueError: for one of these or a preset that cannot be realized.
    """
    policy = backend.policy or Policy()
    if policy.guard_payload:
        with policy.naming_guard():
            check(*admit(backend.free, policy.guard_payload, vocab_size))
    for name, payload in (("default", policy.default_payload), ("require", policy.mark_payload)):
        if payload:
            try:
                check(*(admitted := admit(backend.free, payload, vocab_size)))
                _check_guard(backend, vocab_size, *admitted)
            except SpecError as error:
                raise error.moved(lambda path, name=name: (name, *path[1:])) from error
    for name, preset in policy.presets.items():
        examples = preset.examples() if isinstance(preset, Preset) else ({},)
        try:
            for params in examples:
                admit(backend, Payload(VERSION, (PluginSpec(name, params),)), vocab_size)
        except SpecError as error:
            raise ValueError(f"The preset {name!r} cannot be realized: {error}") from error


def check_prompt(
    backend: Backend, specs: Sequence[LogitsProcessorSpec], program: Program, length: int | None
) -> None:
    """Refuse specs that a request's prompt rules out.

    Args:
        backend: the engine's backend.
        specs: the specs of the request, or of the guard.
        program: what they compile to.
        length: the number of the prompt's tokens; ``None`` for a prompt of embeddings alone.

    Raises:
        SpecError: if the prompt has no tokens and a spec reads them, or fewer than ``continued``.
    """
    check_continued(program.continued, length)
    if length is None and program.reads_prompt:
        raise unsupported(
            specs,
            lambda program: program.reads_prompt,
            "looks at the token ids of the prompt, and a prompt of embeddings has none",
            backend.vocabulary,
        )


def forget() -> None:
    """Forget all programs."""
    with _lock:
        _programs.clear()
        _grammars.clear()


def _compiled(backend: Backend, payload: Payload, vocab_size: int | None) -> _Admitted:
    policy = backend.policy
    if policy is not None:
        resolved = policy.resolve(payload)
        with policy.restoring(payload):
            admitted = _compiled(backend.free, resolved, vocab_size)
            stopped = _check_guard(backend, vocab_size, resolved, admitted.program)
            losing = tuple(dict.fromkeys((*admitted.program.may_lose, *stopped)))
            return admitted._replace(program=replace(admitted.program, may_lose=losing))
    backend.check(payload.specs)
    if vocab_size is not None:
        payload.check_vocabulary(vocab_size)
    program = compile_specs(payload.specs, backend.vocabulary)
    check_contradictions(payload.specs, program, vocab_size)
    losing = may_lose(payload.specs, program, vocab_size)
    program = replace(program, may_lose=losing, continued=payload.continued)
    grown = GRAMMAR_STATES * len(program.grammars)  # as requests lead to them
    return _Admitted(payload, program, program.memory + grown)


def _check_guard(
    backend: Backend, vocab_size: int | None, payload: Payload, program: Program
) -> tuple[str, ...]:
    """Compare a payload with the policy's guard; return the kinds that this may stop."""
    policy, guard = backend.policy, guard_of(backend, vocab_size)
    if policy is None or guard is None:
        return ()
    check_guard(payload.specs, program, policy.guard, guard)
    return may_stop(payload.specs, program, guard)


def _admitted(key: Key, decoded: Payload | None, resolver: TextResolver | None) -> _Admitted:
    """Admit a new text. If two threads do so at once, the first thread's program is kept."""
    backend, text, vocab_size = key
    resolver = resolver or backend.resolver()
    decoded = decoded or decode_texts(text, resolver)
    count = decoded.continued
    try:
        if count:  # the programs of all counts share their parts
            (backend.policy or Policy()).check_continued(decoded)
            bare = msgspec.json.encode(msgspec.structs.replace(decoded, continued=0)).decode()
            payload, program = admit(backend, bare, vocab_size)
            payload = msgspec.structs.replace(payload, continued=count)
            found = _Admitted(payload, replace(program, continued=count), 0)
        else:
            found = _compiled(backend, decoded, vocab_size)
    except SpecError as error:
        refusal = resolver.restore(error)
        if error.location and error.location[-1] in GrammarSpec.FORMS:
            with _lock:
                _grammars[key] = _Refused(refusal, _bytes_of(text))
        raise refusal from error.__cause__
    found = found._replace(size=found.size + _bytes_of(text))
    cache = _grammars if found.program.grammars else _programs
    with _lock:
        return cache.setdefault(key, found)


def _bytes_of(text: str) -> int:
    """Estimate the memory of a cache entry, tables aside: its text and its payload's values.

    Values are counted by the characters before them in the text. For a text full of commas, the
    estimate is too high.
    """
    per_value = {",": 48, ":": 100, "[": 96, "{": 96}
    payload = sum(size * text.count(before) for before, size in per_value.items())
    return 2048 + sys.getsizeof(text) + payload


_programs: LRUCache[Key, Any] = LRUCache(CACHE_BYTES, lambda entry: entry.size)
_grammars: LRUCache[Key, Any] = LRUCache(CACHE_BYTES, lambda entry: entry.size)
