"""Bounds on everything that a client can send.

They are far above any use of the kinds, and no payload within them costs more than a few
milliseconds at admission. An operator lowers them with an environment variable, which is read once,
when logitport is imported. ``logitport limits`` prints them::

    LOGITPORT_LIMITS="max_specs=4, max_token_ids=1024"
"""

import os
from typing import NamedTuple, TypeVar

VARIABLE = "LOGITPORT_LIMITS"
"""Environment variable with the limits that an operator lowers: names and values, by commas."""


class Limit(NamedTuple):
    """One bound.

    Attributes:
        value: the limit in this process.
        default: the limit if the operator does not lower it, and the highest possible value.
        unit: the unit of both.
        meaning: the rest of the sentence that begins with value and unit.
    """

    value: float
    default: float
    unit: str
    meaning: str


LIMITS: dict[str, Limit] = {}
"""All of them, by the names that ``LOGITPORT_LIMITS`` uses."""

N = TypeVar("N", int, float)


def lowered(text: str) -> dict[str, str]:
    """Split the value of ``LOGITPORT_LIMITS`` into names and values.

    Raises:
        ValueError: for a part that is not ``name=value``, and for a name that comes twice.
    """
    wanted: dict[str, str] = {}
    for part in filter(str.strip, text.split(",")):
        name, equals, value = map(str.strip, part.partition("="))
        if not equals or name in wanted:
            what = "name=value" if not equals else f"{name} once"
            raise ValueError(f"{VARIABLE}: expected {what}, got {part.strip()!r}")
        wanted[name] = value
    return wanted


_wanted = lowered(os.environ.get(VARIABLE, ""))


def _limit(name: str, default: N, unit: str, meaning: str) -> N:
    """Declare a limit. Returns the value that holds: the operator's, or the default."""
    kind, value = type(default), default
    if (text := _wanted.pop(name, None)) is not None:
        try:
            value = kind(text)
        except ValueError:
            value = kind(0)
        if not 1 <= value <= default:
            raise ValueError(f"{VARIABLE}: expected {name} from 1 to {default}, got {text!r}")
    LIMITS[name] = Limit(value, default, unit, meaning)
    return value


# --- the payload ---

MAX_PAYLOAD_BYTES = _limit("max_payload_bytes", 1 << 19, "bytes", "in an encoded payload, as UTF-8")
"""Twice what 16,384 biases with all their digits take, the longest list that there may be."""

MAX_PARTS = _limit(
    "max_parts",
    34_816,
    "parts",
    "in the JSON text of a payload: commas, colons, [ twice, { four times; texts included",
)
"""Each part costs about 0.2 microseconds, in a JSON parser and later. Parts are counted without
parsing: each value has a comma or a bracket before it, each key a colon after it. Those within
texts count, too: a precise count would cost more than it saves.

``MAX_TOKEN_IDS`` token ids fit, in sequences or not, with 2,048 parts for all else; or a JSON
Schema of about 5,000 properties, as many as OpenAI takes.
"""

MAX_CONTAINERS = _limit(
    "max_containers", 10_240, "opening brackets", "in the JSON text of a payload, texts included"
)
"""Arrays and objects cost the most: a parser takes 80 ms for 1 MiB of ``[]``, mostly to collect
garbage. ``MAX_SEQUENCES`` sequences fit, with 2,048 more for all else."""

MAX_EXTREME_NUMBERS = _limit(
    "max_extreme_numbers",
    256,
    "numbers",
    "with an exponent of three digits, or 256 digits in a row",
)
"""``1.2345678901234567e-300`` takes msgspec 200 times as long as ``1.5``, and 1 MiB of such numbers
0.4 s. No field needs one."""

MAX_SPECS = _limit("max_specs", 16, "specs", "on one request")

# --- token ids ---

MAX_TOKEN_IDS = _limit(
    "max_token_ids",
    1 << 15,
    "token ids",
    "in all specs of a request, together; with a bias or in a choice, each counts twice; in a "
    "sequence that is banned, has a bias or ends a phase, three times",
)
"""Each costs about 100 ns at admission and 60 bytes of memory. With a bias it is text as a key, and
a number; in a choice it becomes a node of a trie, and in a sequence that is looked for, a node with
a failure link. A language has as many in a large vocabulary; so have 4,096 choices of four tokens,
or 2,700 banned words in two forms of two tokens.
"""

MAX_WORK = _limit(
    "max_work",
    17 << 11,
    "units of work",
    "to compile the specs of a request: a token id is one or more, as `max_token_ids` counts it",
)
"""Each takes up to 0.25 microseconds on a slow server. There may be as many token ids as
``MAX_TOKEN_IDS``, or as many parts of a plugin's parameters as ``MAX_PARTS``, and little else. The
other weights are below.
"""

SPEC_WORK = 512
"""Units for each spec but the first."""

TEXT_RULE_WORK = 3 << 12
"""Units for each rule about text, which is a pass over the vocabulary: 3 ms with 151,936 tokens.
Bans of texts with equal options are one rule, and so are all scripts.
"""

TEXT_BYTE_WORK = 24
"""Units for each byte of a text, which becomes a state, or several where case is ignored."""

TEXT_TABLE_BYTES = 192
"""So many bytes of the tables of rules about text are one unit. They are counted before the tables
are made: what the other units leave of ``MAX_WORK`` is room for them."""

SCRIPTS_WORK = 1 << 13
"""Units for a spec with scripts, besides those of a rule about text."""

TRIGGER_WORK = 4
"""Units for each token of a trigger."""

END_TEXT_WORK = 1 << 13
"""Units for each text that ends a phase, besides those of its bytes."""

PHASE_WORK = 1 << 11
"""Units for each phase, times the most specs of one phase."""

MAX_SEQUENCES = _limit(
    "max_sequences",
    8192,
    "sequences",
    "in all specs of a request, together; a choice counts twice; texts that a grammar chooses from",
)

MAX_PATTERN = _limit(
    "max_pattern",
    64,
    "token ids",
    "in a sequence that is looked for: trigger, tag, banned sequence",
)
"""Each token of a pattern becomes a state with a failure link. 64 tokens are about 3 sentences."""

MAX_TAGS = _limit("max_tags", 16, "tags", "that each may begin or end a thinking block")

MAX_TOKEN_ID = _limit("max_token_id", (1 << 31) - 1, "", "the largest token id")
"""Engines keep token ids as signed 32-bit integers."""

MAX_COUNT = _limit("max_count", (1 << 31) - 1, "tokens", "the most that a spec can count to")

MAX_TIMES = _limit("max_times", 1024, "times", "that a trigger fires, unless it always does")

MAX_STATES = _limit("max_states", 1024, "states", "of an `automaton`, and as many token sets")

MAX_TIMEOUTS = _limit("max_timeouts", 4, "time-outs", "of an `automaton` in a row")

MAX_PHASES = _limit("max_phases", 16, "phases", "of an output")

MAX_PHASE_SPECS = _limit(
    "max_phase_specs", 16, "specs", "of an output: the number of phases times the most of one phase"
)
"""A phase without a spec takes as long at admission as one with a spec, where others have one."""

MAX_PHASE_CELLS = _limit(
    "max_phase_cells",
    3 << 13,
    "states and edges",
    "of an output's phases: those of each spec times those of what ends its phase",
)

MAX_ENDS = _limit("max_ends", 8, "ends", "of a phase")

MAX_END_TEXTS = _limit("max_end_texts", 2, "texts", "that end phases of an output")

MAX_TEXT_SPECS = _limit("max_text_specs", 1, "spec", "about text within the phases of an output")

MAX_CELLS = _limit(
    "max_cells", 3 << 14, "cells", "in the tables of a request: states, and tokens that they edit"
)
"""There are about as many as token ids in the specs, as ``MAX_TOKEN_IDS`` counts them. The token
that completes a banned sequence counts after each token sequence that ends like its beginning. A
cell takes up to 82 bytes.
"""

MAX_STEP_CELLS = _limit(
    "max_step_cells",
    1 << 16,
    "logits",
    "that the specs of a request may change in one step; an n-gram rule counts as 28,672, a `dry` "
    "as 14,336, and so do all prompt biases",
)
"""Beside the pass over a whole row that a list of allowed tokens needs."""

NGRAM_CELLS = 7 << 12
"""An n-gram rule may ban thousands of tokens, and others in each step. Two of them leave room for
a list of 8,190 allowed tokens, and one of them for any list."""

DRY_CELLS = 7 << 11
"""A `dry` changes few logits, but takes time to find them."""

PROMPT_BIAS_CELLS = 7 << 11
"""Prompt biases change the logits of thousands of tokens, which differ from row to row."""

MAX_ENTRY_WORK = _limit(
    "max_entry_work",
    6,
    "units of work",
    "to read a request's prompt: 3 for an n-gram rule (1 with a window of at most 16,384 tokens), "
    "2 for a thinking budget or a prompt bias",
)
"""Before the first step, each takes up to 1.5 ms for a prompt of 128k tokens, which takes another
1.4 ms to be copied."""

NGRAM_READING_WORK = 3
"""Units for an n-gram rule, `dry` among them, which sorts the positions of the history."""

SHORT_WINDOW = 1 << 14
"""The most tokens of a window for which an n-gram rule has one unit."""

READING_WORK = 2
"""Units for a prompt bias, and for an automaton that follows the prompt (a thinking budget)."""

MAX_PROGRAM_BYTES = _limit(
    "max_program_bytes", 1 << 23, "bytes", "in the tables of a request, all copies included"
)

MAX_PROMPT_BIASES = _limit("max_prompt_biases", 3, "prompt biases", "on one request")
"""A device has a bit per token of the vocabulary for each of them, times the most requests."""

MAX_NGRAM_RULES = _limit(
    "max_ngram_rules", 2, "n-gram rules", "on one request, `dry` among them; equal ones count once"
)
"""Each scans the request's history at each step. That takes 27 us for 16k tokens of a text, and 85
us where one token comes again and again."""

MAX_DRY_RULES = _limit("max_dry_rules", 1, "`dry`", "on one request")
"""It compares up to 32 earlier positions with the newest tokens at each step."""

MAX_NGRAM = _limit("max_ngram", 64, "tokens", "in an n-gram that is kept from repeating")

MAX_BIAS = _limit("max_bias", 10_000.0, "", "the largest change of a logit, up or down")

# --- texts and JSON ---

MAX_NAME = _limit("max_name", 128, "characters", "in the name of a plugin")

MAX_GRAMMAR = _limit(
    "max_grammar", 1 << 18, "characters", "in a grammar: in its text, or in all of its choices"
)

MAX_TEXTS = _limit("max_texts", 128, "texts", "of a request that are looked for")

MAX_TEXT = _limit("max_text", 64, "bytes", "in a text that is looked for, as UTF-8")

MAX_TEXT_BYTES = _limit(
    "max_text_bytes",
    768,
    "bytes",
    "in all texts of a request that are looked for",
)

MAX_SCRIPTS = _limit("max_scripts", 32, "scripts", "that a spec names")

MAX_SCRIPT_NAME = _limit("max_script_name", 64, "characters", "in the name of a script")

MAX_DEPTH = _limit("max_depth", 64, "levels", "in a plugin's parameters, or in a JSON schema")
"""As deep as vLLM lets a JSON schema nest."""

# --- what is said about it ---

MAX_MESSAGE = 400
"""Characters of an error's message that are shown."""

MAX_PATH = 160
"""Characters of an error's path that are shown."""

if _wanted:
    raise ValueError(
        f"{VARIABLE}: there is no limit {', '.join(map(repr, _wanted))}; "
        f"the limits are {', '.join(LIMITS)}"
    )
