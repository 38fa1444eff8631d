"""``no_loop``."""

from ....spec import NoLoopSpec
from ....spec.tags import end_tags, start_tags
from .base import Add, Edit, Force, FreeRun, Kind, Tokens, ban, first_end


def _edit(spec: NoLoopSpec, prompt: Tokens, output: Tokens) -> Edit:
    is_open = not spec.start_token_ids or _is_open(spec, prompt + output)
    history, then = output if spec.output_only else prompt + output, spec.then_token_ids
    if not then:
        return ban(_completing(spec, history)) if is_open else None
    closes = first_end(end_tags(spec), then) or len(then) if spec.start_token_ids else len(then)
    for said in reversed(range(min(len(then), len(history)) + 1)):
        before, after = history[: len(history) - said], history[len(history) - said :]
        if (is_open or said >= closes) and after == then[:said] and _is_loop(spec, before):
            return Force(then[said]) if said < len(then) else None
    return None


def _completing(spec: NoLoopSpec, history: Tokens) -> set[int]:
    """Find the tokens that would complete a loop."""
    found: set[int] = set()
    for period in range(spec.min_period, spec.max_period + 1):
        if period <= len(history):
            token = history[len(history) - period]
            if _is_loop(spec, (*history, token), period):
                found.add(token)
    return found


def _is_loop(spec: NoLoopSpec, history: Tokens, *periods: int) -> bool:
    """Whether enough copies of a text stand at the end, of any period or of the given ones."""
    for period in periods or range(spec.min_period, spec.max_period + 1):
        copies = max(spec.times, -(-spec.min_tokens // period))
        loop = history[-copies * period :]
        if len(loop) == copies * period and loop == loop[:period] * copies:
            return True
    return False


def _is_open(spec: NoLoopSpec, history: Tokens) -> bool:
    """Whether a block has begun and not ended."""
    position = 0
    while (opened := first_end(start_tags(spec), history, position)) is not None:
        closed = first_end(end_tags(spec), history, opened)
        if closed is None:
            return True
        position = closed
    return False


def _examples(free: FreeRun) -> list[NoLoopSpec]:
    """Ban and interrupt loops, if the reply has some."""
    a, b, c = free.unused
    within = NoLoopSpec(2, 4, 1, 0, (a, b), free.prompt_ids[:1], (a,), output_only=False)
    specs = NoLoopSpec(2, output_only=False), NoLoopSpec(2, then_token_ids=(c, a)), within
    return [spec for spec in specs if _acts(spec, free.prompt_ids, free.output_ids)]


def _acts(spec: NoLoopSpec, prompt: Tokens, output: Tokens) -> bool:
    """Whether an output would be another with the spec."""
    for i, token in enumerate(output):
        acting = _edit(spec, prompt, output[:i])
        banned = acting.values if isinstance(acting, Add) else ()
        if token in banned or isinstance(acting, Force):
            return True
    return False


KIND = Kind(NoLoopSpec(2), _edit, _examples)
