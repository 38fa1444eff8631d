"""How specs act: one neutral core, and one thin adapter per engine that maps rows and history."""

from typing import TYPE_CHECKING

from ..spec.lazy import lazy
from .acting import note
from .attachment import Attached, Attachment
from .backend import REALIZABLE, Backend, backends, payload_for
from .draws import bind_draw, mark_of
from .environment import (
    ADMIT_OTHERS_VARIABLE,
    STAGE_VARIABLE,
    stage_from_environment,
    version_of,
)
from .finding import Finding, Status
from .first_tokens import first_tokens
from .gateway.add_specs import add_specs
from .gateway.exchange import Scope
from .gateway.extra_body import extra_body
from .gateway.json_body import Fields, inner
from .gateway.key import KEY, check_bare, check_spelling
from .gateway.middleware import App, SpecMiddleware
from .gateway.probe import Support, probe
from .gateway.receipt import Receipt, ReceiptError, receipt
from .metrics import count
from .native import check_grammar, fields_of, grammar_text, native_fields
from .own_fields import OwnFields, check_bounds, check_ends, check_own_fields, same_as
from .policy import Policy, policy_of
from .reload import Live, one_policy
from .tokenizer_copy import TokenizerCopy

if TYPE_CHECKING:
    from .admission import admit, admit_live, check_policy, check_prompt, guard_of, program_of

__all__ = [
    "ADMIT_OTHERS_VARIABLE",
    "KEY",
    "REALIZABLE",
    "STAGE_VARIABLE",
    "App",
    "Attached",
    "Attachment",
    "Backend",
    "Fields",
    "Finding",
    "Live",
    "OwnFields",
    "Policy",
    "Receipt",
    "ReceiptError",
    "Scope",
    "SpecMiddleware",
    "Status",
    "Support",
    "TokenizerCopy",
    "add_specs",
    "admit",
    "admit_live",
    "backends",
    "bind_draw",
    "check_bare",
    "check_bounds",
    "check_ends",
    "check_grammar",
    "check_own_fields",
    "check_policy",
    "check_prompt",
    "check_spelling",
    "count",
    "extra_body",
    "fields_of",
    "first_tokens",
    "grammar_text",
    "guard_of",
    "inner",
    "lazy",
    "mark_of",
    "native_fields",
    "note",
    "one_policy",
    "payload_for",
    "policy_of",
    "probe",
    "program_of",
    "receipt",
    "same_as",
    "stage_from_environment",
    "version_of",
]

# What needs numpy.
__getattr__ = lazy(
    __name__,
    admit=".admission",
    admit_live=".admission",
    check_policy=".admission",
    check_prompt=".admission",
    guard_of=".admission",
    program_of=".admission",
)
