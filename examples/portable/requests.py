"""The requests to every engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from logitport.adapters.detection import KeySource, Profile, VllmGumbel
from logitport.spec import (
    AllowedScriptsSpec,
    AllowedTokensSpec,
    AutomatonSpec,
    AutomatonState,
    BannedScriptsSpec,
    BannedSequencesSpec,
    BannedTextSpec,
    BannedTokensSpec,
    ChoiceSpec,
    DrySpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MaxRunSpec,
    MinTokensSpec,
    NoLoopSpec,
    NoRepeatNgramSpec,
    PhasesSpec,
    PromptBiasSpec,
    SamplingSpec,
    SequenceBiasSpec,
    ThinkingBudgetSpec,
    Tokenizer,
    TriggerSpec,
    WatermarkSpec,
)

MAX_TOKENS = 20
FRANCE = "The capital of France is"
KEY = "PORTABLE_KEY"
"""The variable with the key of the mark."""
PROFILES: dict[str, Profile] = {"portable": VllmGumbel(key=KeySource(env=KEY))}
CONFIGURATION = {"profiles": {"portable": {"scheme": "vllm-gumbel", "key": {"env": KEY}}}}
"""The same, as a server reads it."""
SAMPLING = SamplingSpec(temperature=1.0)
"""How a marked text is drawn."""


@dataclass(frozen=True)
class Request:
    """A prompt, and the specs that act on its output."""

    name: str
    prompt_ids: list[int]
    specs: tuple[LogitsProcessorSpec, ...]

    @property
    def temperature(self) -> float:
        """All texts are greedy, but one with a mark is drawn."""
        return float(any(isinstance(spec, WatermarkSpec) for spec in self.specs))


def requests(tokenizer: Tokenizer, eos_token_id: int) -> list[Request]:
    """Make a request with each kind, and one with a mixture."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    def request(name: str, *specs: LogitsProcessorSpec, prompt: str = FRANCE) -> Request:
        return Request(name, list(ids(prompt)), specs)

    digits = tuple(token for digit in "0123456789" for token in ids(digit))
    return [
        request(
            "forced sequence",
            ForcedTokenSequenceSpec.from_text("Hello world!", tokenizer),
        ),
        request("allowed tokens", AllowedTokensSpec(digits), prompt="My telephone number is"),
        request("banned tokens", BannedTokensSpec(ids(" Paris"))),
        request(
            "banned sequences",
            BannedSequencesSpec.from_words(["New York"], tokenizer),
            prompt="The largest city of the United States is",
        ),
        request("banned text", BannedTextSpec(("paris", "capital"), ignore_case=True)),
        request("max run", MaxRunSpec(1), prompt="Here is a list:"),
        request("banned scripts", BannedScriptsSpec(("Latin",))),
        request("allowed scripts", AllowedScriptsSpec(("Greek",))),
        request("logit bias", LogitBiasSpec(dict.fromkeys(ids(" Rome"), 1000.0))),
        request(
            "sequence bias",
            SequenceBiasSpec((ids(" Paris"), ids(" New York")), (-1000.0, 5.0)),
        ),
        request("min tokens", MinTokensSpec(10, (eos_token_id, *ids(".")))),
        request("forced end", ForcedEndSpec(6, ids(" The end."), eos_token_id)),
        request(
            "thinking budget",
            ThinkingBudgetSpec.from_text(
                12, tokenizer, start="<think>", end="</think>", message="Enough."
            ),
            prompt="<think>Well, 2 + 2 is",
        ),
        request("choice", ChoiceSpec.from_text([" Rome", " Berlin", " Berne"], tokenizer)),
        request("trigger", TriggerSpec(ids(" Paris"), ids(", or so they say,"))),
        request(
            "phases",
            PhasesSpec.think_then(
                ThinkingBudgetSpec.from_text(8, tokenizer),
                ForcedTokenSequenceSpec(ids(" Answer:")),
                ChoiceSpec.from_text([" Rome", " Berlin", " Berne"], tokenizer),
            ),
            prompt="The capital of Italy?\n<think>",
        ),
        request(
            "automaton",  # every third token is a comma
            AutomatonSpec(
                (
                    AutomatonState(default=1, timer=2),
                    AutomatonState(timeout=2),
                    AutomatonState(force=ids(",")[0], default=0),
                )
            ),
        ),
        request("no repeat n-gram", NoRepeatNgramSpec(2), prompt="one two three one two three one"),
        request("dry", DrySpec(1000.0, 1.0), prompt="one two three one two three one"),
        request(
            "no loop",
            NoLoopSpec(2, output_only=False),
            prompt="one two three one two three one",
        ),
        request(
            "prompt bias", PromptBiasSpec(1000.0), prompt="Repeat after me: the cat sat on the mat"
        ),
        request("watermark", WatermarkSpec("portable"), prompt="Once upon a time"),
        request(
            "a mixture",
            BannedTokensSpec(ids(" Paris")),
            MinTokensSpec(4, (eos_token_id,)),
            ForcedEndSpec(12, ids(" Goodbye."), eos_token_id),
        ),
    ]


def whole(output_ids: Sequence[int], eos_token_id: int) -> list[int]:
    """Cut an output after its EOS. Some engines go on after EOS, or leave it out."""
    output = list(output_ids)
    return output[: output.index(eos_token_id) + 1] if eos_token_id in output else output
