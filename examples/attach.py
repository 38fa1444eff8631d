"""Three requests of one batch, steered in three ways: ``python -m examples.attach``."""

from logitport.adapters.vllm import attach
from logitport.spec import BannedSequencesSpec, ChoiceSpec, ForcedTokenSequenceSpec
from vllm import LLM, SamplingParams

from ._support.smollm2 import prepare

if __name__ == "__main__":  # vLLM starts processes that import this file
    llm = LLM(str(prepare()), max_model_len=256, enforce_eager=True)
    tokenizer = llm.get_tokenizer()
    specs = [
        ForcedTokenSequenceSpec.from_text(" wherever you look.", tokenizer),
        ChoiceSpec.from_text([" Rome", " Oslo"], tokenizer),
        BannedSequencesSpec.from_words(["Paris"], tokenizer),
    ]
    params = [attach(SamplingParams(temperature=0, max_tokens=8), spec) for spec in specs]
    replies = llm.generate(["The capital of France is"] * 3, params)
    for spec, reply in zip(specs, replies, strict=True):
        print(f"{spec.kind}:{reply.outputs[0].text!r}")
