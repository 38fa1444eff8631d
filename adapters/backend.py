"""Backends: the capabilities of engines, and the request bodies with which clients use them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from importlib.metadata import entry_points
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, ref

from ..spec import (
    VERSION,
    WIRE_KINDS,
    GrammarSpec,
    InProcessPayload,
    LogitsProcessorSpec,
    NativeSpec,
    Phase,
    PhasesSpec,
    PythonProcessorSpec,
    SamplingSpec,
    SpecError,
    Stage,
    StandIn,
    Tokenizer,
    encode,
)
from ..spec.base import kind_of
from ..spec.conflicts import BEGINS_ANEW, check_thinking
from ..spec.errors import text_of
from ..spec.payload import as_given, decode_texts, specs_of
from ..spec.suggestions import nearest
from ..spec.texts import Entry, Given, TextResolver
from .finding import Finding
from .policy import Policy
from .tokenizer_copy import TokenizerCopy

if TYPE_CHECKING:
    from .core.text.vocabulary import Vocabulary

GROUP = "logitport.adapters"
"""The entry-point group of installed backends. Each entry is a name and a ``Backend``."""

Kinds = frozenset[type[LogitsProcessorSpec]]

Specs = LogitsProcessorSpec | Sequence[LogitsProcessorSpec]
"""One spec, or several."""

REALIZABLE: Kinds = frozenset(
    kind for kind in (*WIRE_KINDS, PythonProcessorSpec) if kind is not SamplingSpec
)
"""The kinds that the core realizes for any engine."""


@dataclass(frozen=True)
class Backend:
    """An adapter's declaration of the kinds that its engine supports. Other kinds are refused.

    Args:
        name: the engine's name, as in the entry-point group.
        realizes: the kinds that the adapter's logits processor realizes: classes of specs. Any
            collection of them becomes a frozenset.
        lowers: the kinds that the engine realizes by itself, from its own request fields.
        body: converts specs and ``generation_only`` to the fields that an OpenAI client sends
            beside the standard fields; ``None`` for an engine without such a server.
        routes: the server's routes that take specs. Each route has the path in the request body to
            the object with the payload: ``{"/v1/completions": "vllm_xargs"}``. A route matches the
            end of a URL's path, and the longest match counts; ``None`` excludes a route.
        budget_field: the request field for a thinking budget, as a path like those of ``routes``.
        prefill_samples: whether prefill workers choose the first token, and so need native specs.
        serve: makes the command line of the engine's own server, with all that logitport needs, of
            the model and the engine's arguments; ``None`` for an engine without such a server.
        load_vocabulary: reads the vocabulary of the engine's tokenizer, for kinds that need it. See
            ``for_tokenizer``.
        tokenizer: the tokenizer of the engine, for texts of clients in place of token ids;
            ``None`` for an engine without one, which refuses such texts. See ``for_tokenizer``.
        policy: what the operator fills in, bounds and forbids in requests.
        packages: the distributions of the engine, by the extras of logitport that go with them.
        group: the entry-point group from which the engine loads the adapter, if it does.
        examine: examines the environment of the engine, for ``logitport doctor``.

    Raises:
        TypeError: if a kind is not a class of specs.
    """

    name: str
    realizes: Kinds
    lowers: Kinds = frozenset()
    body: Callable[[Sequence[LogitsProcessorSpec], bool], dict[str, Any]] | None = None
    routes: Mapping[str, str | None] = field(default_factory=dict[str, str | None], hash=False)
    budget_field: str | None = None
    prefill_samples: bool = False
    serve: Callable[[str, Sequence[str]], list[str]] | None = None
    load_vocabulary: "Callable[[], Vocabulary] | None" = None
    tokenizer: Tokenizer | None = None
    policy: Policy | None = None
    packages: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    group: str | None = None
    examine: Callable[[], Iterable[Finding]] | None = None

    def __post_init__(self) -> None:
        for where in ("realizes", "lowers"):
            given: object = getattr(self, where)
            object.__setattr__(self, where, _kinds(given, f"`{where}` of Backend {self.name!r}"))

    def check(self, specs: Sequence[LogitsProcessorSpec]) -> None:
        """Refuse kinds that this backend does not support. Other objects are refused elsewhere.

        Raises:
            SpecError: for the first spec of such a kind, with its path.
        """
        if GrammarSpec not in self.lowers and any(isinstance(each, GrammarSpec) for each in specs):
            check_thinking(specs)
        able = self.realizes | self.lowers
        for i, spec in enumerate(specs):
            for path, inner in spec.inner_specs() if isinstance(spec, PhasesSpec) else ():
                if type(inner) not in self.realizes:
                    what = f"{self.name} does not support `{inner.kind}` in a phase"
                    raise SpecError(what, "specs", i, *path)
            if isinstance(spec, LogitsProcessorSpec) and type(spec) not in able:
                kinds = ", ".join(sorted(map(kind_of, able)))
                raise SpecError(
                    f"{self.name} does not support `{spec.kind}`; supported: {kinds}", "specs", i
                )

    @cached_property
    def free(self) -> "Backend":
        """This backend without a policy, for the operator's own specs."""
        return replace(self, policy=None)

    def resolver(self) -> TextResolver:
        """Make what resolves the texts of one request, and the model's thinking tags."""
        return TextResolver(self.tokenizer, self.policy and self.policy.tags)

    def tags_in(self, payload: str) -> tuple[str, ...]:
        """Return the texts for which ``tags`` of an admitted payload stand, if it has any."""
        resolver = self.resolver()
        if '"tags"' in payload:
            decode_texts(payload, resolver)
        found = resolver.tags
        return (*found.family.start, *found.family.end) if found else ()

    def for_tokenizer(
        self,
        tokenizer: Any,
        vocab_size: int,
        read: "Callable[[Any], Vocabulary] | None" = None,
        end_tokens: Callable[[], Iterable[int]] = tuple,
    ) -> "Backend":
        """Return this backend with an engine's tokenizer, and with its vocabulary.

        The tokenizer is read when a request first needs its vocabulary, or at ``preload``. It is
        read once, although an adapter may call this for each request. The result does not keep the
        tokenizer alive, but a request with texts makes it keep a copy.

        Args:
            tokenizer: the tokenizer, or an object that has it; ``None`` if the engine has none.
            vocab_size: the number of the engine's tokens. A tokenizer may have more.
            read: makes the vocabulary of the object; by default ``Vocabulary.of_tokenizer``.
            end_tokens: lists the tokens that end the model's replies, beside the tokenizer's own.
        """
        if tokenizer is None:
            return self
        try:
            loaders = _loaders.setdefault(tokenizer, {})
            get = ref(tokenizer)
        except TypeError:  # it takes no weak reference: its vocabulary is not kept
            loaders, get = {}, lambda: tokenizer
        made = partial(_read, get, vocab_size, read, end_tokens), TokenizerCopy(get)
        load, copy = loaders.setdefault(vocab_size, made)
        return replace(self, load_vocabulary=load, tokenizer=copy)

    def preload(self) -> "Backend":
        """Start to load the vocabulary and to compile admission's loops, each in a thread.

        A server does so at its start, so that no request has to wait. An error is raised when a
        request needs the vocabulary.
        """
        if self.load_vocabulary is not None:
            _loading_once(self.load_vocabulary)
        with _STARTS:
            _compile_loops()
        return self

    def vocabulary(self) -> "Vocabulary | None":
        """Return the vocabulary of the engine's tokenizer, which is loaded once.

        Raises:
            SpecError: if it cannot be loaded.
        """
        if self.load_vocabulary is None:
            return None
        loading = _loading_once(self.load_vocabulary)
        if (error := loading.exception()) is not None:
            what = f"The vocabulary of {self.name}'s tokenizer cannot be read: {text_of(error)}"
            raise SpecError(what) from error
        return loading.result()


def _kinds(given: object, where: str) -> Kinds:
    """Check what an adapter declares, and make it hashable, as ``admit`` needs it."""
    expected = f"{where}: expected classes of specs, such as {{ForcedTokenSequenceSpec}}"
    if not isinstance(given, Iterable):
        raise TypeError(f"{expected}, got {given!r}")
    kinds = tuple(cast("Iterable[Any]", given))
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, LogitsProcessorSpec)):
            raise TypeError(f"{expected}, got {kind!r} in it")
    return frozenset(kinds)


_Loaded = tuple["Callable[[], Vocabulary]", TokenizerCopy]

_loaders: "WeakKeyDictionary[Any, dict[int, _Loaded]]" = WeakKeyDictionary()
"""By tokenizer and size. A loader is part of the key of cached programs, so there is just one."""


def _read(
    tokenizer: Callable[[], Any],
    vocab_size: int,
    read: "Callable[[Any], Vocabulary] | None",
    end_tokens: Callable[[], Iterable[int]],
) -> "Vocabulary":
    from .core import Vocabulary

    made = (read or Vocabulary.of_tokenizer)(tokenizer())
    return made.first(vocab_size).ending(end_tokens())


_STARTS = Lock()
"""Held while a thread is started: a cache does not keep two threads from the same call."""


@lru_cache(maxsize=1)
def _compile_loops() -> None:
    from .core.warm_up import prepare

    Thread(target=prepare, name="logitport-loops-of-admission").start()


@lru_cache(maxsize=8)
def _loading(load_vocabulary: "Callable[[], Vocabulary]") -> "Future[Vocabulary]":
    """Load a vocabulary in a thread. An error is kept: the next call would fail as well."""
    return ThreadPoolExecutor(1, "logitport-vocabulary").submit(_load, load_vocabulary)


def _loading_once(load_vocabulary: "Callable[[], Vocabulary]") -> "Future[Vocabulary]":
    with _STARTS:
        return _loading(load_vocabulary)


def _load(load_vocabulary: "Callable[[], Vocabulary]") -> "Vocabulary":
    from .core.warm_up import prepare

    vocabulary = load_vocabulary()
    prepare(vocabulary)
    return vocabulary


def with_grammars(
    backend: Backend, given: Sequence[LogitsProcessorSpec | Entry], continued: int = 0
) -> tuple[LogitsProcessorSpec | Entry, ...]:
    """Put grammars that the engine's own cannot follow into a phase, where logitport follows them.

    The engine's own begins anew where an output is continued, and has white space of its own.

    Raises:
        SpecError: if logitport follows none on this engine.
    """
    if GrammarSpec not in backend.lowers | backend.realizes:
        return tuple(given)  # the backend refuses it
    is_ours = continued > 0 or GrammarSpec not in backend.lowers
    made = tuple(_in_phase(each, is_ours) for each in given)
    for i, (one, other) in enumerate(zip(given, made, strict=True)):
        if one is not other and GrammarSpec not in backend.realizes:
            what = "and has white space of its own: logitport has none there"
            raise SpecError(f"{BEGINS_ANEW}, {what}", "specs", i)
    return made


def _in_phase(given: LogitsProcessorSpec | Entry, is_ours: bool) -> LogitsProcessorSpec | Entry:
    if isinstance(given, GrammarSpec):
        is_ours = is_ours or given.whitespace_pattern is not None
        return PhasesSpec((Phase((given,)),)) if is_ours else given
    if isinstance(given, Mapping) and given.get("kind") == "grammar":
        is_ours = is_ours or given.get("whitespace_pattern") is not None
        return {"kind": "phases", "phases": [{"specs": [given]}]} if is_ours else given
    return given


def payload_for(
    backend: Backend,
    specs: Given,
    stage: Stage,
    generation_only: bool = True,
    continued: int = 0,
) -> str | InProcessPayload | None:
    """Make the payload of a request, without native kinds; ``None`` if none acts in ``stage``.

    It is JSON text, or live objects if a ``PythonProcessorSpec`` is among the specs.

    Raises:
        SpecError: if the backend does not support the specs, or ``encode`` refuses them, in any
            stage.
    """
    given, stage = as_given(specs), Stage(stage)
    if not given:
        return None
    checked = specs_of(given, StandIn())
    backend.check(checked)
    payload = _payload(given, generation_only, continued)
    pairs = zip(given, checked, strict=True)
    carried = [each for each, spec in pairs if not isinstance(spec, NativeSpec)]
    if not carried or not stage.is_active(generation_only):
        return None
    return payload if len(carried) == len(given) else _payload(carried, generation_only, continued)


def _payload(
    given: Sequence[LogitsProcessorSpec | Entry], generation_only: bool, continued: int
) -> str | InProcessPayload:
    if any(isinstance(spec, PythonProcessorSpec) for spec in given):
        return InProcessPayload(VERSION, tuple(given), generation_only, continued)  # pyright: ignore
    return encode(given, generation_only=generation_only, continued=continued)


def backends() -> dict[str, Backend]:
    """Load the installed backends, sorted by name. Their engines need not be installed."""
    return {name: backend(name) for name in sorted(entry_points(group=GROUP).names)}


@lru_cache
def backend(name: str) -> Backend:
    """Load one installed backend, and import no other.

    Raises:
        SpecError: if the backend is not installed.
    """
    entry_point = next(iter(entry_points(group=GROUP, name=name)), None)
    if entry_point is None:
        installed = sorted(entry_points(group=GROUP).names)
        hint = nearest(name, installed)
        what = f"Expected an installed backend ({', '.join(installed)}), got {name!r}"
        raise SpecError(f"{what}{hint and f'; {hint}'}")
    return entry_point.load()
