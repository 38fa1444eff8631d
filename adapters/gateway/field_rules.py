"""The operator's rules for the engine's own fields of requests, in the middleware."""

from functools import lru_cache

from ...spec import SpecError
from ...spec.suggestions import instead_of
from ..policy import Policy
from .json_body import Fields, join

FIELDS = frozenset(
    """
    add_generation_prompt add_special_tokens allowed_token_ids audio_data background bad_words
    beam_width best_of betas budget_tokens cache_salt chat_template chat_template_kwargs
    continue_final_message custom_logit_processor custom_params data_parallel_rank detokenize
    documents ebnf ebnf_full_assistant ec_transfer_params echo enable_response_messages extra_args
    extra_key flat_logprobs frequency_penalty ignore_eos image_data images_config include
    include_reasoning include_stop_str_in_output input input_embeds input_ids instructions
    json_schema kv_transfer_params length_penalty logit_bias logprob_start_len logprob_token_ids
    logprobs lora_id lora_path max_completion_tokens max_new_tokens max_output_tokens
    max_thinking_tokens max_tokens max_tool_calls media_io_kwargs messages metadata min_new_tokens
    min_p min_tokens mm_payload mm_processor_kwargs modalities model n no_stop_trim num_predict
    nvext output_config parallel_tool_calls presence_penalty previous_input_messages
    previous_response_id priority prompt prompt_cache_key prompt_embeds prompt_logprob_start
    prompt_logprob_token_ids prompt_logprobs reasoning reasoning_effort regex repetition_detection
    repetition_penalty request_id require_reasoning response_format return_cached_tokens_details
    return_entropy return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs
    return_flat_raw_top_logprobs_b64 return_hidden_states return_indexer_topk
    return_input_ids_in_sglext return_logprob return_meta_info return_mm_kwargs
    return_output_ids_in_sglext return_prompt_text return_prompt_token_ids return_routed_experts
    return_sampling_mask return_spec_tokens_details return_text_in_logprobs return_token_ids
    return_token_offsets return_tokens_as_token_ids rid routed_dp_rank routed_experts_prompt_start
    routed_experts_start_len routing_key sampling_logprobs_mode sampling_params sampling_seed seed
    separate_reasoning service_tier session_id session_params skip_reading_prefix_cache
    skip_special_tokens spaces_between_special_tokens stop stop_regex stop_sequences stop_token_ids
    store stream stream_interval stream_options stream_reasoning structural_tag structured_outputs
    suffix system task temperature text thinking thinking_budget thinking_token_budget
    token_ids_logprob tool_choice tools top_k top_logprobs top_logprobs_num top_p
    trace_decode_token_ids truncate_prompt_tokens truncation truncation_side use_audio_in_video
    use_beam_search user video_config video_data vllm_xargs watermark watermarking
    """.split()  # noqa: SIM905
)
"""The fields of requests to vLLM, SGLang and Dynamo, on OpenAI's routes, Anthropic's and their own.
"""

FORMS = {
    "max_tokens": (
        *("max_tokens", "max_completion_tokens", "max_output_tokens"),
        *("max_new_tokens", "num_predict"),
    ),
    "thinking_token_budget": (
        *("thinking_token_budget", "max_thinking_tokens", "thinking_budget", "budget_tokens"),
    ),
    "response_format": ("response_format", "text.format", "output_config.format"),
    "reasoning_effort": ("reasoning_effort", "reasoning.effort", "output_config.effort"),
    "stop": ("stop", "stop_sequences"),
}
"""What a forbidden field is called on other routes: OpenAI's responses, Anthropic's messages, and
the engines' own. A field after a dot is one of an object of the request."""

BEAMS = "use_beam_search"
"""vLLM's field for a beam search, which chooses tokens without logits processors."""


class RuleError(SpecError):
    """A request that a rule for the engine's own fields does not admit.

    Attributes:
        reason: the rule, for the metrics.
    """

    reason = "fields"


def check_name(name: str) -> None:
    """Refuse a name that no engine has: a rule for it would do nothing.

    What is within a field is up to the model: ``chat_template_kwargs.enable_thinking``.

    Raises:
        SpecError: with the nearest name.
    """
    if name.partition(".")[0] not in FIELDS:
        raise SpecError(f"There is no field {name!r}; {instead_of(name, FIELDS)}")


@lru_cache(8)
def names_of(policy: Policy | None) -> frozenset[str]:
    """Return the names of the fields that a policy's rules are about."""
    if policy is None:
        return frozenset()
    names = {BEAMS} if policy.guard else set[str]()
    for name in (*policy.forbid_fields, *(("reasoning_effort",) if policy.efforts else ())):
        names.update(form.rpartition(".")[2] for form in FORMS.get(name, (name,)))
    return frozenset(names)


def check_fields(policy: Policy, path: str, fields: Fields) -> None:
    """Check an object of a request: itself, its sampling parameters, and the like.

    Args:
        policy: the policy.
        path: path of the object; empty for the request itself.
        fields: the object.

    Raises:
        RuleError: for a field that the policy forbids, or a beam search beside a guard.
    """
    for name in policy.forbid_fields:
        for form in FORMS.get(name, (name,)):
            around, _, last = form.rpartition(".")
            if around in ("", path) and fields.get(last) is not None:
                where = join(path, last)
                raise RuleError.of_field(f"This server does not admit the field `{name}`", where)
    if policy.guard and fields.get(BEAMS):
        raise RuleError.of_field(policy.NO_BEAMS, join(path, BEAMS))


def set_budget(policy: Policy, fields: Fields, budget: str) -> bool:
    """Set the thinking budget of a request's effort, unless the request has a budget.

    Args:
        policy: the policy.
        fields: the request, of one of OpenAI's routes.
        budget: the engine's field for a thinking budget, with the object around it.

    Returns:
        Whether the budget was set.
    """
    effort = fields.get("reasoning_effort")
    if not isinstance(effort, str) or effort not in policy.efforts:
        return False
    around, _, name = budget.rpartition(".")
    if around and fields.get(around) is None:
        fields[around] = {}
    target = fields[around] if around else fields
    if not isinstance(target, dict) or target.get(name) is not None:
        return False  # the engine refuses another value than an object
    target[name] = policy.efforts[effort]
    return True
