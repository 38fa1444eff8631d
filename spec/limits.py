"""Bounds on everything that a client can send.

They are far above what the kinds are used for and far below what could hurt a server.
"""

MAX_PAYLOAD_BYTES = 1 << 20
"""Size of an encoded payload, in bytes of UTF-8."""

MAX_SPECS = 16
"""Specs on one request."""

MAX_TOKEN_IDS = 32_768
"""Token ids in one field of a spec; where the field holds sequences, in all of them."""

MAX_SEQUENCES = 8192
"""Sequences in one field of a spec."""

MAX_TOKEN_ID = (1 << 31) - 1
"""The largest token id: engines keep them as signed 32-bit integers."""

MAX_COUNT = (1 << 31) - 1
"""The largest number of tokens that a spec can count to."""

MAX_TIMES = 1024
"""How often a trigger can be told to fire, unless it always does."""

MAX_TRIGGER_STATES = 4 * MAX_TOKEN_IDS
"""A trigger's length and its phrase's, together, times how often it fires."""

MAX_CELLS = 1 << 18
"""What all specs of a request compile to, together: states, and tokens that these edit. There are
about as many as token ids in the specs; a trigger's count as often as it fires, and what completes
a banned sequence counts after each token sequence that ends like its beginning.
"""

MAX_PROMPT_BIASES = 4
"""Prompt biases on one request. A device has a bit per token of the vocabulary for each that one
request has, and for as many requests as there can be.
"""

MAX_NGRAM_RULES = 4
"""Different rules about n-grams on one request. There is an index of its history for each n."""

MAX_NGRAM = 64
"""The longest n-gram that can be kept from repeating, in tokens."""

MAX_BIAS = 10_000.0
"""The largest change of a logit, up or down."""

MAX_NAME = 128
"""Characters in the name of a plugin."""

MAX_GRAMMAR = 1 << 18
"""Characters in a grammar: in its text, or in all of its choices."""

MAX_DEPTH = 64
"""How deep the parameters of a plugin, or a JSON schema, may nest: as deep as vLLM lets one."""
