"""A hook of LiteLLM's proxy: the team of an API key decides what is added to its requests.

In LiteLLM's configuration, beside which this file lies, for models of ``hosted_vllm``::

    litellm_settings:
      callbacks: litellm_hook.hook
"""

# pyright: reportMissingImports=false
from typing import Any

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger
from logitport.adapters import add_specs
from logitport.spec import SpecError

TEAMS: dict[str, list[dict[str, Any]]] = {
    "acme": [{"kind": "banned_text", "texts": ["Globex", "Initech"], "ignore_case": True}],
    "globex": [],
}
"""The specs of each team. Other teams are refused."""

CALLS = "completion", "acompletion", "text_completion", "atext_completion"
"""Chats and completions. Other calls that generate text take no specs."""

OTHERS = "embedding", "aembedding", "moderation", "amoderation", "rerank", "arerank"

CARRIERS = "vllm_xargs", "response_format"
"""The fields that have a client's specs. The rest of the data is LiteLLM's, and no JSON."""

REPLACING = {"extra_body", "additional_drop_params"}
"""Fields by which a client of LiteLLM can replace others, or have them dropped."""


class Specs(CustomLogger):
    """Adds the specs of a team to those that its clients have sent."""

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        """Return the data of a request with the specs of its team.

        Raises:
            HTTPException: 403 for an unknown team, 400 for specs that cannot act.
        """
        if call_type in OTHERS:
            return data
        specs = TEAMS.get(user_api_key_dict.team_id)
        if specs is None:
            raise HTTPException(403, "There are no specs for the team of this key")
        beside = ", ".join(sorted(REPLACING & data.keys()))
        if specs and (call_type not in CALLS or beside):
            what = beside or call_type
            raise HTTPException(400, f"The specs of this key's team cannot act beside: {what}")
        own = {name: data[name] for name in CARRIERS if name in data}
        try:
            added = add_specs(own, "vllm", specs)
        except SpecError as error:
            raise HTTPException(400, f"logitport: {error}") from error
        return {**{name: data[name] for name in data.keys() - own.keys()}, **added}


hook = Specs()
