"""The conformance suite, as most engines here run it: with a model of chance, to start at once."""

from functools import partial
from typing import Any, ClassVar

import pytest
from logitport.adapters.conformance import ConformanceSuite, Generate, Output, Request

from tests.support.forms import forms
from tests.support.tiny_model import EOS

FORCED = {"kind": "forced_sequence", "token_ids": [7, 8, 9]}


class TinySuite(ConformanceSuite):
    """Subclass it with a ``backend``, ``uses`` and ``run``."""

    vocab_size = 512
    eos_token_id = EOS
    slots = 4
    long_prompt = 100
    resumes = False
    has_stages = False
    attaches = False
    shows_scores = True
    dtypes = ("float32",)

    uses: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Name the fixtures, by which ``--runner v2`` selects, before they are asked for."""
        cls.pytestmark = [pytest.mark.usefixtures(*cls.uses)] if cls.uses else []

    @pytest.fixture
    def generate(self, request: pytest.FixtureRequest) -> Generate:
        return partial(self.run, *map(request.getfixturevalue, self.uses))

    def run(self, *arguments: Any) -> list[Output]:
        """Run requests, the last argument, on what the fixtures in ``uses`` have made."""
        raise NotImplementedError

    @pytest.mark.parametrize("form", forms(FORCED))
    def test_json_of_the_wire(self, generate: Generate, form: str):
        """An adapter takes specs as over HTTP: objects, lists and texts of JSON."""
        given: Any = forms(FORCED)[form]
        (output,) = generate([Request((5, 6), given, max_tokens=3)])
        assert output.token_ids == [7, 8, 9]
