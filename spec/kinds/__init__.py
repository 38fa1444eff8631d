"""One module per kind of spec."""

# ruff: noqa: I001  The order is that of the kinds in messages, in tables and in the JSON Schema.

from typing import TYPE_CHECKING, Union

from .. import base

# A new kind needs a line here, and nothing else in this package or in `logitport.spec`.
from .forced_sequence import ForcedTokenSequenceSpec as ForcedTokenSequenceSpec
from .allowed_tokens import AllowedTokensSpec as AllowedTokensSpec
from .banned_tokens import BannedTokensSpec as BannedTokensSpec
from .banned_sequences import BannedSequencesSpec as BannedSequencesSpec
from .banned_text import BannedTextSpec as BannedTextSpec
from .max_run import MaxRunSpec as MaxRunSpec
from .banned_scripts import BannedScriptsSpec as BannedScriptsSpec
from .allowed_scripts import AllowedScriptsSpec as AllowedScriptsSpec
from .logit_bias import LogitBiasSpec as LogitBiasSpec
from .sequence_bias import SequenceBiasSpec as SequenceBiasSpec
from .min_tokens import MinTokensSpec as MinTokensSpec
from .forced_end import ForcedEndSpec as ForcedEndSpec
from .at_end import AtEndSpec as AtEndSpec
from .thinking_budget import ThinkingBudgetSpec as ThinkingBudgetSpec
from .choice import ChoiceSpec as ChoiceSpec
from .trigger import TriggerSpec as TriggerSpec
from .phases import Phase as Phase, PhaseEnd as PhaseEnd, PhasesSpec as PhasesSpec
from .automaton import (
    AutomatonEdge as AutomatonEdge,
    AutomatonSpec as AutomatonSpec,
    AutomatonState as AutomatonState,
)
from .no_repeat_ngram import NoRepeatNgramSpec as NoRepeatNgramSpec
from .dry import DrySpec as DrySpec
from .no_loop import NoLoopSpec as NoLoopSpec
from .prompt_bias import PromptBiasSpec as PromptBiasSpec
from .grammar import GrammarSpec as GrammarSpec
from .sampling import SamplingSpec as SamplingSpec
from .plugin import PluginSpec as PluginSpec
from .chain import (
    ChainSpec as ChainSpec,
    ChainStep as ChainStep,
    Smoothing as Smoothing,
    Xtc as Xtc,
)
from .watermark import WatermarkSpec as WatermarkSpec

WIRE_KINDS: tuple[type[base.LogitsProcessorSpec], ...] = tuple(
    each
    for each in vars().copy().values()
    if isinstance(each, type) and issubclass(each, base.LogitsProcessorSpec)
)
"""The classes imported above: every kind that can travel."""

if TYPE_CHECKING:
    WireSpec = base.LogitsProcessorSpec
else:  # what msgspec makes a decoder of: any of them, told apart by the field `kind`
    WireSpec = Union[WIRE_KINDS]  # noqa: UP007

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    "WIRE_KINDS",
    "AutomatonEdge",
    "AutomatonState",
    "ChainStep",
    "Phase",
    "PhaseEnd",
    "Smoothing",
    "Xtc",
    *(kind.__name__ for kind in WIRE_KINDS),
]
