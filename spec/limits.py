"""Bounds on everything that a client can send.

They are far above any use of the kinds. Each is a cap by itself, whatever else a request brings:
the costs of all maxima together are the bound (``docs/security.md``). An operator lowers them, and
raises ``max_body_bytes``, with an environment variable, which is read once, when logitport is
imported. ``logitport limits`` prints them::

    LOGITPORT_LIMITS="max_specs=4, max_token_ids=1024"
"""

import os
from typing import NamedTuple, TypeVar

from .suggestions import nearest

VARIABLE = "LOGITPORT_LIMITS"
"""Environment variable with the limits that an operator lowers: names and values, by commas."""


class Limit(NamedTuple):
    """One bound.

    Attributes:
        value: the limit in this process.
        default: the limit if the operator does not set it.
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


def _limit(name: str, default: N, unit: str, meaning: str, most: N | None = None) -> N:
    """Declare a limit. Returns the value that holds: the operator's, or the default.

    The operator's may be as high as ``most``, or else as the default.
    """
    most = default if most is None else most
    kind, value = type(default), default
    if (text := _wanted.pop(name, None)) is not None:
        try:
            value = kind(text)
        except ValueError:
            value = kind(0)
        if not 1 <= value <= most:
            raise ValueError(f"{VARIABLE}: expected {name} from 1 to {most}, got {text!r}")
    LIMITS[name] = Limit(value, default, unit, meaning)
    return value


# --- the payload ---

MAX_PAYLOAD_BYTES = _limit(
    "max_payload_bytes",
    1 << 18,
    "bytes",
    "in an encoded payload, as UTF-8; a grammar may be half as long",
)
"""As many as ``MAX_TOKEN_IDS`` and their biases take with all digits."""

MAX_PARTS = _limit(
    "max_parts",
    (1 << 14) + (1 << 11),
    "parts",
    "in the JSON text of a payload: commas, colons, [ twice, { four times; texts included",
)
"""Each part costs about 0.2 microseconds, in a JSON parser and later. Parts are counted without
parsing: each value has a comma or a bracket before it, each key a colon after it. Those within
texts count, too: a precise count would cost more than it saves. Arrays and objects cost the most.

``MAX_TOKEN_IDS`` token ids fit, in sequences or not, with 2,048 parts for all else.
"""

MAX_DEPTH = _limit(
    "max_depth",
    64,
    "levels",
    "in a plugin's parameters, or in a JSON schema; the payload around it may have 16 more",
)
"""As deep as vLLM lets a JSON schema nest."""

MAX_LEVELS = MAX_DEPTH + 16
"""Levels of arrays and objects in a payload. Parameters within a phase begin at level 8."""

MAX_NAME = _limit("max_name", 128, "characters", "in the name of a plugin or of a script")

MAX_SPECS = _limit("max_specs", 16, "specs", "on one request")

# --- token ids ---

MAX_TOKEN_IDS = _limit(
    "max_token_ids",
    1 << 14,
    "token ids",
    "in all specs of a request, together; with a bias or in a choice, each counts twice; in a "
    "sequence that is looked for, three times; each part of a plugin's parameters counts once",
)
"""Each costs about 200 ns at admission and 60 bytes of memory. With a bias it is text as a key, and
a number; in a choice it becomes a node of a trie, and in a sequence that is looked for, a node with
a failure link. So there are 2,048 choices of four tokens, or 2,700 banned words of two.
"""

MAX_CELLS = _limit(
    "max_cells",
    3 << 13,
    "cells",
    "in the tables of a request: states, and tokens that they edit",
)
"""There are about as many as token ids in the specs, as ``MAX_TOKEN_IDS`` counts them. The token
that completes a banned sequence counts after each token sequence that ends like its beginning. A
cell takes up to 82 bytes.
"""

MAX_PATTERN = _limit(
    "max_pattern",
    64,
    "token ids",
    "in a sequence that is looked for: trigger, tag, banned sequence, n-gram; bytes in a text",
)
"""Each token of a pattern becomes a state with a failure link. 64 tokens are about 3 sentences."""

MAX_BIAS = _limit("max_bias", 10_000.0, "", "the largest change of a logit, up or down")

# --- automata ---

MAX_TAGS = _limit("max_tags", 16, "tags", "that each may begin or end a thinking block")

MAX_TIMES = _limit("max_times", 1024, "times", "that a trigger fires, unless it always does")

MAX_STATES = _limit("max_states", 1024, "states", "of an `automaton`, and as many token sets")

MAX_TIMEOUTS = _limit("max_timeouts", 4, "time-outs", "of an `automaton` in a row")

MAX_PHASES = _limit(
    "max_phases",
    8,
    "specs",
    "in all phases of a request, where a phase without any counts as one; and ends of a phase",
)

# --- texts ---

MAX_TEXT_BYTES = _limit(
    "max_text_bytes", 192, "bytes", "in all texts of a request that are looked for, as UTF-8"
)

MAX_TEXT_RULES = _limit(
    "max_text_rules",
    2,
    "rules",
    "about text on a request: texts with equal options are one, all scripts are one, and so are "
    "texts that end a phase and lead to the same one",
)
"""Each is a pass over the vocabulary: 2 ms with 151,936 tokens."""

MAX_SCRIPTS = _limit("max_scripts", 32, "scripts", "that a spec names")

# --- what runs ---

MAX_PROGRAM_BYTES = _limit(
    "max_program_bytes", 1 << 23, "bytes", "in the tables of a request, all copies included"
)

MAX_HISTORY_RULES = _limit(
    "max_history_rules",
    2,
    "rules",
    "about the history on a request: `no_repeat_ngram`, of which equal ones count once, and one "
    "`dry`",
)
"""Each scans the request's history at each step. That takes 27 us for 16k tokens of a text, and 85
us where one token comes again and again."""

MAX_LOOP_RULES = _limit("max_loop_rules", 2, "rules", "`no_loop` on a request")

MAX_LOOP = _limit("max_loop", 1024, "tokens", "in the copies of a loop")
"""So many tokens are compared with those a period earlier, at most, for each of 512 periods. That
takes 20 us where all of them nearly match, and 0.3 us otherwise."""

MAX_PROMPT_RULES = _limit(
    "max_prompt_rules",
    4,
    "rules",
    "on a request that read its prompt: thinking budgets and prompt biases",
)
"""Each takes up to 1.6 ms for a prompt of 128k tokens, which takes another 1.2 ms to be copied."""

MAX_CLIENT_TEXT_BYTES = _limit(
    "max_client_text_bytes",
    1 << 11,
    "bytes",
    "in all texts of a request in place of token ids, 8 more for each text",
)
"""Tokenizers take up to 0.8 microseconds for a byte, and 7 for each text besides."""

# --- the request ---

MAX_BODY_BYTES = _limit(
    "max_body_bytes",
    1 << 23,
    "bytes",
    "in the body of an HTTP request that names logitport, images included",
    1 << 30,
)
"""Python's JSON parser takes up to 0.8 s for so many, and so it does in the server. An operator
whose clients send larger images with specs raises it."""

# --- what is no limit: the range of a number, and what no field needs ---

MAX_INT = (1 << 31) - 1
"""The largest token id, and the most that a spec can count to: a signed 32-bit integer."""

MAX_EXTREME_NUMBERS = 32
"""Numbers with an exponent of three digits, or 256 digits in a row. ``1.2345678901234567e-300``
takes msgspec 200 times as long as ``1.5``, and 1 MiB of such numbers 0.4 s. No field needs one."""

# --- what is said about it ---

MAX_MESSAGE = 400
"""Characters of an error's message that are shown."""

MAX_PATH = 160
"""Characters of an error's path that are shown."""

for _name in _wanted:
    raise ValueError(
        f"{VARIABLE}: there is no limit {_name!r}; "
        + (nearest(_name, LIMITS) or f"the limits are {', '.join(LIMITS)}")
    )
