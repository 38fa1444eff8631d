"""How the processor comes into an engine, and what it does there before the first request."""

from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from logitport.adapters import Policy
from logitport.adapters.core import Vocabulary
from logitport.adapters.vllm import LogitportProcessor
from logitport.adapters.vllm.admission import check_free
from logitport.hooks.hello_world import VARIABLES
from logitport.spec import ForcedTokenSequenceSpec, GrammarSpec, PluginSpec
from logitport.spec.kinds import forced_sequence
from vllm import EngineArgs
from vllm.v1.sample.logits_processor import build_logitsprocs

from examples._support.smollm2 import prepare

from .in_process import FLAG, engine, params, v2_takes_processors
from .stand_ins import configuration


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Is set when a vocabulary has been read."""
    has_read, read = Event(), Vocabulary.of_tokenizer

    def noted(tokenizer: Any) -> Vocabulary:
        vocabulary = read(tokenizer)
        has_read.set()
        return vocabulary

    monkeypatch.setattr(Vocabulary, "of_tokenizer", noted)
    return has_read


def test_a_front_end_reads_the_vocabulary_at_a_request_without_specs(model: Path, reads: Event):
    config = EngineArgs(str(model)).create_engine_config()
    check_free(config, params())
    assert reads.wait(60)


@pytest.mark.only("v2", reason="the V1 runner takes processors in every version")
def test_engine_that_takes_no_processors_does_not_start(runner: str):
    """Rather than that it starts without ours, and nobody is told."""
    if v2_takes_processors():
        pytest.skip("this V2 runner takes them")
    refusal = "Model Runner V2 does not yet support: custom logits processors"
    with pytest.raises(ValueError, match=refusal), engine(prepare()):
        pass


@pytest.mark.slow
def test_several_instances_act_once(
    model: Path, tokenizer: Any, reads: Event, monkeypatch: pytest.MonkeyPatch
):
    """From the entry point, by name and as a class; then with the variable that says hello."""
    from vllm.sampling_params import BeamSearchParams

    search = BeamSearchParams(beam_width=2, max_tokens=4)
    prompts: list[Any] = [{"prompt": "My name is"}]
    spec = ForcedTokenSequenceSpec.from_text("My own words.", tokenizer)
    requests = {
        "free": params(max_tokens=20),
        "own": params(spec, max_tokens=20),
        "random": params(max_tokens=20, temperature=1.5),
        "grammar": params(GrammarSpec(choices=("Oslo", "Rome")), max_tokens=20),
        "a read": params(max_tokens=1, logprobs=2, detokenize=False),
        "a reply of one token": params(max_tokens=1, logprobs=2),
    }
    with engine(model, logits_processors=[*FLAG, LogitportProcessor]) as running:
        assert reads.wait(60)  # before a request needs it
        realizers = [processor._realizer for processor in running.processors]
        adds = [patch.object(realizer, "add", wraps=realizer.add).start() for realizer in realizers]
        own, read = running.generate(["My name is"] * 2, [requests["own"], requests["a read"]])
        (free,) = running.llm.beam_search(prompts, search)
    assert [add.call_count for add in adds] == [0, 0, 1]
    assert own.text == "My own words."

    monkeypatch.delenv(VARIABLES[0], raising=False)
    monkeypatch.setenv(VARIABLES[1], "1")
    with (
        patch.object(
            forced_sequence, "token_ids_of", wraps=forced_sequence.token_ids_of
        ) as tokenize,
        engine(model, logits_processors=FLAG) as running,
    ):
        outputs = running.generate(["My name is"] * len(requests), [*requests.values()])
        (beams,) = running.llm.beam_search(prompts, search)

    replies = dict(zip(requests, outputs, strict=True))
    for name in ("free", "random"):
        assert (replies[name].text, replies[name].finish_reason) == ("Hello world!", "stop")
    assert replies["own"].text == "My own words."
    assert replies["grammar"].text in ("Oslo", "Rome")
    assert replies["a read"].token_ids == read.token_ids
    assert "Hello world!".startswith(replies["a reply of one token"].text)
    # Each step of a beam search looks like the first token of a reply.
    assert [beam.tokens for beam in beams.sequences] == [beam.tokens for beam in free.sequences]
    assert tokenize.call_count == 1


def test_a_pooling_model_has_no_processors():
    """So the variable does nothing there."""
    made = build_logitsprocs(configuration(), torch.device("cpu"), False, is_pooling_model=True)
    assert [*made.all] == []


@pytest.mark.only("v1", reason="tokenizers are loaded alike under both")
def test_variable_without_a_tokenizer(
    model: Path, runner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The engine does not start, and says which variable is the reason."""
    monkeypatch.setenv(VARIABLES[0], "1")
    for path in model.iterdir():
        if not path.name.startswith(("tokenizer", "special_tokens", "vocab", "merges")):
            (tmp_path / path.name).symlink_to(path)
    with pytest.raises(ValueError, match=f"^{VARIABLES[0]} is on, and the model's tokenizer"):
        with engine(tmp_path, skip_tokenizer_init=True):
            pass


@pytest.mark.parametrize(
    "is_skipped", [False, True], ids=["as the engine", "skipped by the engine"]
)
def test_tokenizer_is_loaded_as_the_model_says(is_skipped: bool):
    from logitport.adapters.vllm.engine_config import tokenizer_of
    from vllm.tokenizers import registry

    said = {"tokenizer_mode": "slow", "code_revision": "5678", "trust_remote_code": True}
    said["runner_type"] = "generate"
    names = {"model": "somebody/model", "tokenizer": "somebody/model", "tokenizer_revision": "1234"}
    model: Any = SimpleNamespace(**names, **said, hf_config=None, skip_tokenizer_init=is_skipped)
    with patch.object(registry, "cached_get_tokenizer") as load:
        assert tokenizer_of(model) is load.return_value
    passed = load.call_args.kwargs
    passed.setdefault("code_revision", "5678")  # before vLLM 0.33 it is not passed
    assert load.call_args.args == ("somebody/model",)
    assert passed == said | {"revision": "1234"}
    assert model.skip_tokenizer_init is is_skipped


@pytest.mark.slow
@pytest.mark.only("v2", reason="the V1 runner's profile run asks no processors")
def test_default_specs_in_a_profile_run(
    model: Path, tokenizer: Any, runner: str, monkeypatch: pytest.MonkeyPatch
):
    """On a GPU, vLLM 0.33 measures a step in which each slot has default specs and no history."""
    from logitport.adapters.core import plugins
    from logitport.adapters.vllm import admission
    from vllm import SamplingParams
    from vllm.v1.worker.gpu.input_batch import InputBatch

    def after_the_prompt(prompt_ids: list[int], output_ids: list[int], logits: Any) -> None:
        logits[prompt_ids[-1]] -= 1e9

    forced = ForcedTokenSequenceSpec.from_text(" Hi!", tokenizer)
    made = Policy((PluginSpec("no-echo"), forced))
    monkeypatch.setattr(admission, "policy_of", lambda *_: made)
    monkeypatch.setattr(
        plugins, "_plugins", lambda: {"no-echo": lambda: lambda params: after_the_prompt}
    )

    with engine(model, max_num_seqs=4) as running:
        core = running.client.engine_core
        model_runner = core.model_executor.driver_worker.worker.model_runner
        # As ``GPUModelRunner._dummy_sampler_run``, which no CPU runs to this point.
        hidden_states = torch.zeros(4, core.vllm_config.model_config.get_hidden_size())
        for slot in range(4):
            model_runner.sampler.add_request(slot, SamplingParams(temperature=0.5, top_p=0.9))
        model_runner.sampler.apply_staged_writes()
        batch = InputBatch.make_dummy(4, 4, model_runner.input_buffers)
        sampled = model_runner.sampler(model_runner.model.compute_logits(hidden_states), batch)
        assert len(running.acting._realizer) == 4

        (output,) = running.generate(["Hello"], [params(max_tokens=10)])
        failed = running.acting._realizer.failed_requests
    assert sampled.sampled_token_ids.flatten().tolist() == [forced.token_ids[0]] * 4
    assert output.text == " Hi!"
    assert failed == 0
