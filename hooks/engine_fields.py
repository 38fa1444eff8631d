"""The engines' own fields that a configuration may name, and the bounds of their values."""

import json
from typing import Annotated, Any

import msgspec

from ..adapters.gateway.field_rules import NAMES
from ..spec import SamplingSpec, SpecError
from ..spec.suggestions import instead_of

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

LEAST = {"max_tokens": 1, "thinking_token_budget": 0}
"""The least value of a field, under each of its ``NAMES``."""

_INTEGERS = {
    name: msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=LEAST[field])])
    for field, names in NAMES.items()
    for name in names
}


def check_name(name: str) -> None:
    """Refuse a name that no engine has: a rule for it would do nothing.

    What is within a field is up to the model: ``chat_template_kwargs.enable_thinking``.

    Raises:
        SpecError: with the nearest name.
    """
    if name.partition(".")[0] not in FIELDS:
        raise SpecError(f"There is no field {name!r}; {instead_of(name, FIELDS)}")


def check_value(name: str, value: Any) -> None:
    """Refuse a value that an engine would refuse in each request that leaves the field out.

    Raises:
        SpecError: for a value out of the bounds of ``sampling``; for what JSON does not have.
        msgspec.ValidationError: for a number below ``LEAST``.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(f"Expected a value of JSON: {error}") from None
    if name in _INTEGERS:
        _INTEGERS[name].decode(text)
    elif name in SamplingSpec.__struct_fields__ and (name, value) != ("top_k", -1):  # all
        try:
            SamplingSpec(**{name: value})
        except SpecError as error:
            raise SpecError(error.message) from None
