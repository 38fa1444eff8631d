"""Bounds on everything that a client can send.

They are far above what the kinds are used for and far below what could hurt a server.
"""

MAX_PAYLOAD_BYTES = 1 << 20
"""Size of an encoded payload, in bytes of UTF-8."""

MAX_SPECS = 16
"""Specs on one request."""

MAX_TOKEN_IDS = 32_768
"""Token ids in one field of a spec."""

MAX_TOKEN_ID = (1 << 31) - 1
"""The largest token id: engines keep them as signed 32-bit integers."""
