"""What an admitted request brings to the workers, and what is noted of it."""

from typing import TYPE_CHECKING, Any

import msgspec

from ...spec import InProcessPayload, Payload
from .. import KEY, Policy, admit, note
from .admission import backend_of, default_of
from .engine_config import role_of
from .names import ACTING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def complete(
    vllm_config: "VllmConfig", sampling_params: Any, acting: Payload | None, share: float
) -> None:
    """Note what acts on an admitted request, and send it along where the policy may change.

    The policy of the workers may be another by then. ``acting`` is the request's own payload with
    what the policy fills in, if it acts, and ``share`` the fraction of the request to count.
    """
    backend, role = backend_of(vllm_config), role_of(vllm_config)
    policy, extra_args = backend.policy or Policy(), sampling_params.extra_args or {}
    given, size = extra_args.get(KEY), vllm_config.model_config.get_vocab_size()
    takes_default = default_of(backend, size, role, sampling_params) is not None
    if policy.source is not None:
        sent = policy.default_payload if takes_default else None
        if given is not None:
            sent = admit(backend, given, size)[0]
            if not isinstance(sent, InProcessPayload):
                sent = msgspec.json.encode(sent).decode()
        # A new dict: callers share a dict among requests.
        sampling_params.extra_args = {**extra_args, ACTING: [sent, policy.guard_payload]}
    specs = policy.default if takes_default else () if acting is None else acting.specs
    names = vllm_config.model_config.served_model_name or vllm_config.model_config.model
    model = names if isinstance(names, str) else names[0]
    note(policy, policy.guard if role.stage.generates else (), specs, given, model, share)
