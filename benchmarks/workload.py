"""Batches of requests: their specs, prompts and outputs."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, repeat

import torch
from logitport.adapters.core import Vocabulary
from logitport.spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTextSpec,
    BannedTokensSpec,
    ChoiceSpec,
    DrySpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    NoLoopSpec,
    NoRepeatNgramSpec,
    PromptBiasSpec,
    ThinkingBudgetSpec,
    TriggerSpec,
)

Step = Callable[[torch.Tensor], object]

EOS, THINK, END_THINK, NEWLINE = 2, 10, 11, 12
"""Token ids with a meaning; random tokens are above them."""
BUDGET = 3
"""Tokens of a thinking block."""
FIRST = 100


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of one batch, by row.

    Attributes:
        vocab_size: the number of columns of the logits.
        specs: the spec of each request; ``None`` for no spec.
        prompts: the prompts, all of equal length.
        scripts: the outputs, including the tokens from before the batch.
        already: the number of output tokens from before the batch.
    """

    vocab_size: int
    specs: Sequence[LogitsProcessorSpec | None]
    prompts: Sequence[list[int]]
    scripts: Sequence[list[int]]
    already: int = 0

    def __len__(self) -> int:
        return len(self.specs)

    @property
    def active(self) -> list[int]:
        """The rows whose requests carry a spec."""
        return [row for row, spec in enumerate(self.specs) if spec is not None]


class History:
    """The output ids of a batch, as lists that grow and as a tensor of prompt and output."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._everything: torch.Tensor | None = None
        self.outputs = [script[: workload.already] for script in workload.scripts]

    def grow(self) -> None:
        """Add a token to each output."""
        at = len(self.outputs[0])
        for output, script in zip(self.outputs, self._workload.scripts, strict=True):
            output.append(script[at])

    def tensor(self) -> torch.Tensor:
        """Return prompts and outputs, ``[rows, tokens]``; only the first call makes the tensor."""
        if self._everything is None:
            work = self._workload
            both = zip(work.prompts, work.scripts, strict=True)
            self._everything = torch.tensor([[*prompt, *script] for prompt, script in both])
        return self._everything[:, : len(self._workload.prompts[0]) + len(self.outputs[0])]


def workload(
    makers: Sequence[Callable[[random.Random, int], LogitsProcessorSpec]],
    rows: int,
    vocab_size: int,
    *,
    active: int | None = None,
    prompt_length: int = 200,
    already: int = 0,
    steps: int = 16,
) -> Workload:
    """Make a batch whose first ``active`` rows carry specs, made by ``makers`` in turn.

    Args:
        makers: functions that make a spec, given a random generator and the vocabulary size.
        rows: the number of requests in the batch.
        vocab_size: the number of columns of the logits.
        active: the number of requests with a spec; all by default.
        prompt_length: the number of tokens of each prompt.
        already: the number of output tokens from before the batch.
        steps: the number of tokens to come.
    """
    rng = random.Random(0)
    acting = rows if active is None else active
    specs = [make(rng, vocab_size) for make in islice(cycle(makers), acting)]
    length = already + steps
    return Workload(
        vocab_size,
        [*specs, *repeat(None, rows - acting)],
        [tokens(rng, vocab_size, prompt_length) for _ in range(rows)],
        [_script(spec, rng, vocab_size, length) for spec in specs]
        + [tokens(rng, vocab_size, length) for _ in range(rows - acting)],
        already,
    )


def tokens(rng: random.Random, vocab_size: int, n: int) -> list[int]:
    """Draw random tokens, with repetitions."""
    return rng.choices(range(FIRST, vocab_size), k=n)


def different(rng: random.Random, vocab_size: int, n: int) -> tuple[int, ...]:
    """Draw random tokens without repetitions."""
    return tuple(rng.sample(range(FIRST, vocab_size), n))


def _script(
    spec: LogitsProcessorSpec, rng: random.Random, vocab_size: int, length: int
) -> list[int]:
    """Write an output that obeys the spec and, where it is free, gives the spec work to do."""
    noise = iter(lambda: rng.randrange(FIRST, vocab_size), None)
    match spec:
        case ForcedTokenSequenceSpec():
            said = chain(spec.token_ids, repeat(EOS))
        case ForcedEndSpec():
            said = chain(islice(noise, spec.after), spec.token_ids, noise)
        case AllowedTokensSpec():
            said = cycle(spec.token_ids)
        case ChoiceSpec():
            said = chain(max(spec.choices, key=len), repeat(EOS))
        case ThinkingBudgetSpec():
            block = [*spec.start_token_ids, *tokens(rng, vocab_size, spec.budget)]
            said = cycle([*block, *spec.message_token_ids, *spec.end_token_ids, FIRST])
        case TriggerSpec():
            said = cycle([FIRST, *spec.trigger_token_ids, *spec.token_ids])
        case BannedSequencesSpec():  # always begins one, and never ends it
            said = cycle([*spec.sequences[0][:-1], FIRST])
        case NoRepeatNgramSpec() | DrySpec():
            said = cycle(tokens(rng, vocab_size, 50))
        case _:
            said = noise
    return list(islice(said, length))


def forced_sequence(n: int) -> Callable[[random.Random, int], LogitsProcessorSpec]:
    return lambda rng, size: ForcedTokenSequenceSpec(tuple(tokens(rng, size, n)), EOS)


def allowed_tokens(n: int) -> Callable[[random.Random, int], LogitsProcessorSpec]:
    return lambda rng, size: AllowedTokensSpec(different(rng, size, n))


def banned_tokens(n: int) -> Callable[[random.Random, int], LogitsProcessorSpec]:
    return lambda rng, size: BannedTokensSpec(different(rng, size, n))


def banned_sequences(n: int) -> Callable[[random.Random, int], LogitsProcessorSpec]:
    return lambda rng, size: BannedSequencesSpec(
        tuple(tuple(tokens(rng, size, 3)) for _ in range(n))
    )


def vocabulary(rng: random.Random, size: int) -> Vocabulary:
    """Make a vocabulary of the bytes, and of words and their parts, with a space before or not.

    As in a real one, most tokens go on from another one: a trie has about two nodes a token.
    """
    syllables = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "s")]
    pieces = {bytes([byte]): None for byte in range(256)}
    words = ["", " "]
    while len(pieces) < size:
        stem = words[int(rng.random() ** 4 * len(words))]  # more often a short one
        end = rng.choice(syllables)
        word = stem + (end if stem.strip() else rng.choice((end, end, end.title(), end.upper())))
        words.append(word)
        pieces[word.encode()] = None
    return Vocabulary.of_tokens([*pieces])


def banned_text(rng: random.Random, vocabulary: Vocabulary, n: int) -> LogitsProcessorSpec:
    """Ban words that are tokens of a vocabulary."""
    texts = (token.decode() for token in vocabulary.tokens()[256:])
    words = [text for text in texts if text.isalpha() and len(text) < 10]
    return BannedTextSpec(tuple(rng.sample(words, n)), ignore_case=True, whole_words=True)


def logit_bias(n: int) -> Callable[[random.Random, int], LogitsProcessorSpec]:
    return lambda rng, size: LogitBiasSpec(
        {token: rng.uniform(-5, 5) for token in different(rng, size, n)}
    )


def min_tokens(rng: random.Random, size: int) -> LogitsProcessorSpec:
    return MinTokensSpec(1_000_000, (EOS, *different(rng, size, 1)))


def forced_end(rng: random.Random, size: int) -> LogitsProcessorSpec:
    return ForcedEndSpec(4, different(rng, size, 8))


def thinking_budget(rng: random.Random, size: int) -> LogitsProcessorSpec:
    return ThinkingBudgetSpec(BUDGET, (THINK,), (END_THINK,), (NEWLINE,))


def trigger(rng: random.Random, size: int) -> LogitsProcessorSpec:
    return TriggerSpec(different(rng, size, 2), different(rng, size, 4), times=None)


def prompt_bias(rng: random.Random, size: int) -> LogitsProcessorSpec:
    return PromptBiasSpec(2.0, (EOS,))


def no_repeat_ngram(rng: random.Random, size: int) -> LogitsProcessorSpec:
    return NoRepeatNgramSpec(3, window=1000)


def dry(rng: random.Random, size: int) -> LogitsProcessorSpec:
    return DrySpec(1.0, range=1000)


def no_loop(rng: random.Random, size: int) -> LogitsProcessorSpec:
    return NoLoopSpec(2, 512)


def choice(n: int) -> Callable[[random.Random, int], LogitsProcessorSpec]:
    """Make ``n`` choices with more than one possible token at each of the first ``n`` steps."""

    def make(rng: random.Random, size: int) -> LogitsProcessorSpec:
        path, ends = different(rng, size, n), different(rng, size, n)
        return ChoiceSpec(tuple((*path[:i], end) for i, end in enumerate(ends)), EOS)

    return make


RAISING_OR_ADDING = (
    forced_sequence(1000),
    banned_tokens(100),
    banned_sequences(20),
    logit_bias(100),
    min_tokens,
    forced_end,
    thinking_budget,
    trigger,
    prompt_bias,
)
"""All kinds that are automata and edit only their own tokens."""

ALLOWING = (allowed_tokens(100), choice(20))
"""The kinds that leave only their own tokens of a row."""
