"""Admission to a vLLM engine: a payload is checked against the engine and the request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import ref

from ...spec import InProcessPayload, LogitsProcessorSpec, Payload, SpecError, Stage
from .. import (
    KEY,
    Backend,
    Live,
    Policy,
    TokenizerCopy,
    admit,
    bind_draw,
    check_bounds,
    check_grammar,
    check_own_fields,
    check_policy,
    check_prompt,
    count,
    first_tokens,
    guard_of,
    policy_of,
)
from ..core import Program, Vocabulary, unsupported
from .backend import BACKEND
from .callers import caller_frame
from .engine_config import (
    Role,
    begins_with_grammar,
    configured_eos,
    eos_token_ids_of,
    once_per_engine,
    role_of,
    tokenizer_of,
    why_dropped,
)
from .marks import own_mark
from .native import GRAMMARS
from .own_fields import own_fields
from .placeholders import PROVIDE_IDS, provides_output_ids

if TYPE_CHECKING:
    from vllm.config import VllmConfig

REPLAY = "trace_decode_token_ids"


def backend_of(vllm_config: "VllmConfig") -> Backend:
    """Return the backend with the engine's tokenizer, its vocabulary, and the policy.

    From then on, its vocabulary is loaded: from the start of a worker, and from the first request
    to a front end. A request sees one policy, see ``one_policy``.

    The policy's settings are ``additional_config["logitport"]``, if vLLM has any.

    Raises:
        ValueError: if the policy's configuration is wrong.
    """
    return _live(vllm_config).current()


@once_per_engine
def _live(vllm_config: "VllmConfig") -> Live[Backend]:
    model_config = vllm_config.model_config  # a loader that kept the whole would keep the engine
    others = vllm_config.additional_config
    settings = others.get(KEY) if isinstance(others, Mapping) else None

    def load() -> Vocabulary:
        vocabulary = Vocabulary.of_tokenizer(tokenizer_of(model_config))
        vocabulary = vocabulary.first(model_config.get_vocab_size())
        return vocabulary.ending(configured_eos(model_config))

    tokenizer, engine = TokenizerCopy(lambda: tokenizer_of(model_config)), ref(vllm_config)
    free = replace(BACKEND, load_vocabulary=load, tokenizer=tokenizer)

    def make() -> Backend:
        policy = policy_of(lambda: tokenizer_of(model_config), settings)
        return replace(free, policy=policy).preload()

    def check(backend: Backend) -> None:
        if (config := engine()) is not None:
            check_backend(config, backend)
            if why := why_no_efforts(config, backend.policy):
                raise ValueError(why)

    return Live(make, attrgetter("policy"), check)


def check_backend(vllm_config: "VllmConfig", backend: Backend) -> None:
    """Refuse, with a ``ValueError``, a policy of a backend that an engine cannot realize."""
    check = partial(check_engine, vllm_config)
    generates = role_of(vllm_config).stage.generates  # where default specs act, and the guard
    size = vllm_config.model_config.get_vocab_size()
    check_policy(backend, size, *([check] if generates else ()))


def why_no_efforts(vllm_config: "VllmConfig | None", policy: Policy | None) -> str | None:
    """Explain why vLLM refuses what ``efforts`` of the policy set, if that is so."""
    reasoning = getattr(vllm_config, "reasoning_config", None)
    thinks = reasoning is not None and getattr(reasoning, "enabled", True)
    if policy is None or not policy.efforts or thinks:
        return None
    return (
        "`effort` sets thinking_token_budget, which vLLM refuses: add --reasoning-parser or "
        "--reasoning-config"
    )


@dataclass(frozen=True)
class Admitting:
    """The facts about the engine and the request that are known at admission.

    Attributes:
        vllm_config: the engine's configuration; ``None`` outside of an engine.
        tokenizer: the engine's tokenizer, if it is loaded.
        has_prompt_ids: whether the prompt has token ids; a prompt of embeddings has none.
        prompt_length: the number of these, if it is known.
        share: the fraction of the request to count, if it is admitted several times; 0 for none.
    """

    vllm_config: "VllmConfig | None" = None
    tokenizer: Any = None
    has_prompt_ids: bool = True
    prompt_length: int | None = None
    share: float = 1

    def stage(self, sampling_params: Any) -> Stage:
        """Return the stage that a request is at in this engine."""
        config = self.vllm_config
        return Stage.AGGREGATED if config is None else role_of(config).stage_for(sampling_params)


def admit_request(
    admitting: Admitting, sampling_params: Any, payload: Any, *, in_process: bool = False
) -> Payload | None:
    """Check a request's payload, as far as the engine is known, and count it unless it is refused.

    Args:
        admitting: the facts about the engine and the request.
        sampling_params: the request's parameters, or an object with their fields, such as a body.
        payload: the request's payload.
        in_process: whether the engine's workers are in this process, so that live callables work.

    Returns:
        The payload with what the policy fills in; ``None`` if it does not act.

    Raises:
        SpecError: with the error and its path.
    """
    config = admitting.vllm_config
    stage = admitting.stage(sampling_params)
    vocab_size = None if config is None else config.model_config.get_vocab_size()
    backend = BACKEND if config is None else backend_of(config)
    checked, program = admit(backend, payload, vocab_size)
    acts = checked.is_active(stage)
    with (backend.policy or Policy()).restoring(payload):
        is_continued = checked.continued > 0
        check_grammar(checked.specs, sampling_params, GRAMMARS, is_continued=is_continued)
        if acts:
            if config is not None:
                check_engine(config, checked, program)
            length = admitting.prompt_length
            if length is not None or not admitting.has_prompt_ids:
                check_prompt(backend, checked.specs, program, length)
            _check_own_fields(admitting, backend, sampling_params, checked.specs, program)
            _check_mark(admitting, backend, sampling_params, program)
    if isinstance(checked, InProcessPayload) and not in_process:
        raise SpecError("A live callable cannot reach an engine in another process")
    if admitting.share:
        losing = program.may_lose if acts else ()
        count("admitted" if acts else "gated", stage, admitting.share, may_lose=losing)
    return checked if acts else None


def _check_own_fields(
    admitting: Admitting,
    backend: Backend,
    sampling_params: Any,
    specs: Sequence[LogitsProcessorSpec],
    program: Program,
) -> None:
    """Refuse a request's own fields that contradict its specs, or what the guard never leaves."""
    check_bounds(sampling_params, specs)
    check_replay(sampling_params)
    config, eos, vocab_size = admitting.vllm_config, (), None
    if config is not None:
        eos = eos_token_ids_of(config, admitting.tokenizer)
        vocab_size = config.model_config.get_vocab_size()
    fields = own_fields(sampling_params, eos, admitting.tokenizer)
    if config is not None and begins_with_grammar(config):
        fields = {**fields, **first_tokens(sampling_params, GRAMMARS, backend.vocabulary)}
    policy = backend.policy or Policy()
    guard = policy.guard
    guarding = guard_of(backend, vocab_size)
    with policy.naming_guard():
        check_grammar(guard, sampling_params, GRAMMARS)
        if guarding is not None and not admitting.has_prompt_ids:
            check_prompt(backend.free, guard, guarding, None)
    check_own_fields(specs, fields, program, guard, guarding)


def check_engine(vllm_config: "VllmConfig", payload: Payload, program: Program) -> None:
    """Refuse a payload that acts in this engine, but cannot be realized.

    Raises:
        SpecError: with the change that the engine needs.
    """
    if why := why_dropped(vllm_config):
        raise SpecError(f"The request has specs, but {why}")
    if program.needs_output_ids and not provides_output_ids(vllm_config):
        raise unsupported(
            payload.specs,
            lambda program: program.needs_output_ids,
            "needs the sampled token ids; with asynchronous scheduling, vLLM passes them only to "
            f"processors named on the command line: {PROVIDE_IDS}",
            backend_of(vllm_config).vocabulary,
        )


def check_free(vllm_config: "VllmConfig", sampling_params: Any) -> None:
    """Refuse a request without specs if the server adds specs that this engine drops.

    Raises:
        SpecError: with the change that the engine needs.
    """
    backend_of(vllm_config)  # loads the vocabulary beside this request, which needs none
    try:
        if why := why_dropped(vllm_config):
            raise SpecError(f"The server adds specs, but {why}")
        check_replay(sampling_params)
    except SpecError:
        policy = backend_of(vllm_config).policy or Policy()
        if role_of(vllm_config).stage.generates and policy.acts_always:
            raise


def check_replay(sampling_params: Any) -> None:
    """Refuse the replay of a trace: vLLM replaces the tokens that specs have chosen.

    See ``vllm/v1/worker/gpu/sample/trace_replay.py``.

    Raises:
        SpecError: at the field.
    """
    if getattr(sampling_params, REPLAY, None):
        raise SpecError.of_field("A replay replaces the tokens that specs choose", REPLAY)


def check_beside_policy(admitting: Admitting, backend: Backend, sampling_params: Any) -> None:
    """Refuse a request on which no specs of its own act, if its fields leave the policy no effect.

    They may contradict the guard, or leave a text without the mark that is required, or that the
    default specs have.

    Raises:
        SpecError: at the field.
    """
    config, policy = admitting.vllm_config, backend.policy
    if config is None or policy is None:
        return
    if policy.guard:
        _check_own_fields(admitting, backend, sampling_params, (), Program())
    if not needs_no_mark(sampling_params):
        size, role = config.model_config.get_vocab_size(), role_of(config)
        program = default_of(backend, size, role, sampling_params)
        _check_mark(admitting, backend, sampling_params, program)


def _check_mark(
    admitting: Admitting, backend: Backend, sampling_params: Any, program: Program | None
) -> None:
    """Refuse a request whose text could not be marked as it has to be."""
    own = own_mark(getattr(admitting.vllm_config, "watermark_config", None), sampling_params)
    bound = bind_draw(program, backend.policy, sampling_params, own, grammars=GRAMMARS)
    if bound is not None and not admitting.has_prompt_ids and bound.reads_prompt:
        raise SpecError("A mark reads the token ids of the prompt, and one of embeddings has none")


def default_of(
    backend: Backend, vocab_size: int, role: Role, sampling_params: Any
) -> Program | None:
    """Return the program of the default specs, if they act on a request.

    They act on none that brings a payload, that vLLM has made to read probabilities (default specs
    would take each token for the first of a reply), or whose grammar they do not fit.
    """
    payload = backend.policy and backend.policy.default_payload
    given = (sampling_params.extra_args or {}).get(KEY)
    if payload is None or given is not None:
        return None
    if scores_labels(sampling_params) or is_beam(sampling_params):
        return None
    decoded, program = admit(backend.free, payload, vocab_size)
    try:
        check_grammar(decoded.specs, sampling_params, GRAMMARS)
    except SpecError:  # default specs are no reason to refuse a request
        return None
    return program if decoded.is_active(role.stage_for(sampling_params)) else None


def check_beams(policy: Policy | None, sampling_params: Any) -> None:
    """Refuse a step of a beam search, which would pass by the policy's guard.

    The middleware refuses the whole search, where it is in place. vLLM gives its steps no
    ``extra_args``, which a request to a prefill worker has.

    Raises:
        SpecError: if the policy has one.
    """
    is_step = is_beam(sampling_params) and not sampling_params.extra_args
    if is_step and policy is not None and policy.forbids_beams:
        raise SpecError(policy.NO_BEAMS)


def is_beam(params: Any) -> bool:
    """Whether a request looks like a step of vLLM's beam search, which asks for no text.

    See ``vllm/entrypoints/generate/beam_search``.
    """
    return params.max_tokens == 1 and bool(params.logprobs) and not params.detokenize


def scores_labels(params: Any) -> bool:
    """Whether a request asks for the probabilities of labels, and for no text.

    See ``generative_scoring`` and ``structured_decisions`` in ``vllm/entrypoints/generate``.
    """
    return params.max_tokens == 1 and getattr(params, "logprob_token_ids", None) is not None


def needs_no_mark(params: Any) -> bool:
    """Whether vLLM itself has made a request, for the probabilities of labels and for no text."""
    return scores_labels(params) and KEY not in (params.extra_args or {})


def admitting_engine() -> Admitting:
    """Find the engine that is admitting a request, from within ``validate_params``.

    vLLM passes only the parameters (``vllm/v1/engine/input_processor.py``), and a process may have
    several engines. So the vocabulary comes from the nearest calling method whose object has a
    ``vllm_config``, and the prompt from the variables of this method or of its own caller. Without
    such a method, only the worker checks the request.
    """
    frame = caller_frame("vllm_config", frames=8)
    if frame is None:
        return Admitting()
    caller = frame.f_locals["self"]
    both = [each.f_locals for each in (frame, frame.f_back) if each is not None]
    prompts = [variables["prompt"] for variables in both if "prompt" in variables]
    has_ids, length = all(map(_has_ids, prompts)), _length(*prompts[:1])
    return Admitting(caller.vllm_config, getattr(caller, "tokenizer", None), has_ids, length)


def _has_ids(prompt: Any) -> bool:
    """Whether a prompt has token ids, or gets some: text, and not embeddings alone."""
    if not isinstance(prompt, Mapping):
        return True
    return "prompt_embeds" not in prompt or prompt.get("prompt_token_ids") is not None


def _length(prompt: Any = None) -> int | None:
    """Return the length of a prompt that vLLM has rendered: others may still change."""
    is_rendered = isinstance(prompt, Mapping) and "type" in prompt
    ids = prompt.get("prompt_token_ids") if is_rendered else None
    return None if ids is None else len(ids)
