"""``"tags": "model"``: a client says the budget, and the server finds the tags of its model."""

import json
import re
from dataclasses import replace
from typing import Any

import jinja2
import pytest
import torch
from logitport.adapters import REALIZABLE, Backend, Policy, admit
from logitport.adapters.core import Realizer
from logitport.spec import SpecError, ThinkingFamily, decode
from tokenizers import Tokenizer

from tests.support.families import FAMILIES, tokenizer_of

# How the templates of some families begin a reply, shortened. Those of the last three families
# have tags of plain text, which only the template tells.
TEMPLATES = {
    "think": "{{ messages }}assistant\n{% if not thinks %}<think>\n\n</think>{% endif %}",
    "gpt-oss": "<|start|>user<|message|>{{ messages }}<|end|><|start|>assistant",
    "seed-oss": "<seed:bos>{{ messages }}<seed:bos>assistant\n<seed:think>",
    "magistral": "[SYSTEM_PROMPT][THINK]Draft[/THINK]answer[/SYSTEM_PROMPT]{{ messages }}",
    "kimi-k2": "<|im_user|>{{ messages }}<|im_assistant|>",
    "olmo-3": "{{ messages }}<|im_start|>assistant\n<think>",
    "hunyuan-a13b": "{{ messages.split('<answer>')[-1] }}<think>\n",
    "granite-3": "Write the thoughts after 'Here is my thought process:' and the answer after "
    "'Here is my response:'. {{ messages }}",
}
BACKEND = Backend("test", REALIZABLE)


class Loaded:
    """A tokenizer as engines load it: with a chat template around that of ``tokenizers``."""

    eos_token_id = None

    def __init__(self, tokenizer: Tokenizer, chat_template: str | None) -> None:
        self.backend_tokenizer, self.chat_template = tokenizer, chat_template

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend_tokenizer, name)


def served(
    name: str, family: ThinkingFamily | None = None, template: str = ""
) -> tuple[Loaded, Backend]:
    """Make a tokenizer as engines have it, and the backend of its server."""
    tokenizer = Loaded(tokenizer_of(name), template or TEMPLATES.get(name))
    backend = BACKEND.for_tokenizer(tokenizer, tokenizer.get_vocab_size())
    return tokenizer, replace(backend, policy=Policy(tags=family))


def reply(
    made: tuple[Loaded, Backend], entries: Any, prompt: str, says: str, length: int = 48
) -> str:
    """What a model replies that says a text, then its last token for ever."""
    (tokenizer, backend), size = made, made[0].get_vocab_size()
    ids = tokenizer.backend_tokenizer
    said, output = ids.encode(says, add_special_tokens=False).ids, list[int]()
    _, program = admit(backend, json.dumps({"version": 1, "specs": entries}), size)
    realizer = Realizer(size)
    realizer.add(0, program, ids.encode(prompt, add_special_tokens=False).ids, output)
    for i in range(length):
        logits = torch.zeros(1, size)
        logits[0, said[min(i, len(said) - 1)]] = 1.0
        realizer.apply(logits)
        output.append(int(logits[0].argmax()))
    return ids.decode(output, skip_special_tokens=False)


BUDGET = {"kind": "thinking_budget", "budget": 3, "tags": "model"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_budget_by_text_alone(name: str):
    """The model opens the block where its template does not, and would think for ever."""
    made, family = served(name), FAMILIES[name]
    prompt = jinja2.Template(TEMPLATES[name]).render(messages="Hi.", thinks=True)
    opens = "" if prompt.rstrip().endswith(family.start[0]) else family.start[0]
    text = reply(made, [BUDGET], prompt, f"{opens}w")
    closed = re.escape(family.end[0] + family.then)
    assert re.fullmatch(rf"{re.escape(opens)}\n?w*{closed}w+", text), text
    thought = text.removeprefix(opens).split(family.end[0])[0]
    assert 1 <= len(thought) <= 3


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_block_that_loops(name: str):
    made, family = served(name), FAMILIES[name]
    entry = {"kind": "no_loop", "times": 4, "tags": "model"}
    text = reply(made, [entry], "Hi.", f"{family.start[0]}kw")
    assert text.startswith(f"{family.start[0]}kwwww{family.end[0]}{family.then}"), text
    text = reply(made, [{**entry, "then_token_ids": []}], "Hi.", f"{family.start[0]}kw")
    assert "wwww" not in text
    assert family.end[0] not in text


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_phase_that_ends_with_the_block(name: str):
    made, family = served(name), FAMILIES[name]
    ids = made[0].encode("Yes", add_special_tokens=False).ids
    after = {"specs": [{"kind": "forced_sequence", "token_ids": ids}]}
    phases = [{"ends": [{"tags": "model", "phase": 1}, {"n": 40}]}, after]
    for end in family.end:
        text = reply(made, [{"kind": "phases", "phases": phases}], "Hi.", f"kk.{end}w")
        assert text.startswith(f"kk.{end}Yesw"), text


STATED = ThinkingFamily("stated", "", ("Thoughts:", "<think>"), ("Reply:", "</think>"), " So")


@pytest.mark.parametrize("name", ["think", "granite-3"])
def test_tags_that_the_operator_states(name: str):
    text = reply(served(name, STATED), [BUDGET], "Hi.", "Thoughts:w")
    assert text.startswith("Thoughts:wwwReply: Sow")


def test_a_model_without_known_tags():
    """The refusal says what a client can do, and what the operator can."""
    _, backend = served("granite-3", template="{{ messages }}")
    for _ in range(2):
        with pytest.raises(SpecError, match=r"send them, as `start_text` .* state them as `tags`"):
            admit(backend, [BUDGET], 400)
    with pytest.raises(SpecError, match="needs the model's tokenizer") as error:
        admit(BACKEND, [BUDGET], 400)
    assert error.value.path == "$[0].tags"
    with pytest.raises(SpecError, match="needs the model's tokenizer"):
        decode([BUDGET])


def test_the_vocabulary_is_read_once(monkeypatch: pytest.MonkeyPatch):
    reads: list[int] = []

    def find(*args: Any) -> Any:
        reads.append(1)
        raise SpecError("None")

    monkeypatch.setattr("logitport.adapters.tokenizer_copy.find_tags", find)
    _, backend = served("think")
    for budget in range(3):
        with pytest.raises(SpecError, match="not known"):
            admit(backend, [{**BUDGET, "budget": budget}], 400)
    assert len(reads) == 1
