"""How specs act: one neutral core, and one thin adapter per engine that maps rows and history."""

from .attachment import Attached, Attachment
from .backend import REALIZABLE, Backend, backends, extra_body, payload_for
from .environment import ADMIT_OTHERS_VARIABLE, STAGE_VARIABLE, stage_from_environment
from .finding import Finding, Status, of_stage
from .key import KEY, check_spelling
from .lazy import lazy
from .metrics import count
from .middleware import App, Fields, Scope, SpecMiddleware
from .native import check_grammar, fields_of, grammar_text, native_fields
from .own_fields import check_own_fields, same_as
from .policy import Policy, policy_of
from .support import Support, probe

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
    "Policy",
    "Scope",
    "SpecMiddleware",
    "Status",
    "Support",
    "backends",
    "check_grammar",
    "check_own_fields",
    "check_spelling",
    "count",
    "extra_body",
    "fields_of",
    "grammar_text",
    "lazy",
    "native_fields",
    "of_stage",
    "payload_for",
    "policy_of",
    "probe",
    "same_as",
    "stage_from_environment",
]

__getattr__ = lazy(__name__)
