"""What the tests of the core share."""

from typing import Any

import pytest
from logitport.adapters.core import plugins
from logitport.adapters.core.host import ngram_index, ngrams
from logitport.spec import PluginSpec

from tests.support.histories import TAKEN_BACK


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a plugin that returns the given part, and returns its spec."""

    def install(part: Any) -> PluginSpec:
        monkeypatch.setattr(plugins, "_plugins", lambda: {"p": lambda: lambda params: part})
        return PluginSpec("p")

    return install


_SMALL = {
    "TAKEN_BACK": TAKEN_BACK,
    "ROOM": 4 * TAKEN_BACK,
    "FEW": 4,
    "EARLY": 4,
    "MANY": 2,
    "_NEW": 4,
    "_LAID_OUT": 1,
}


@pytest.fixture(params=["as it is", "small"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs a long history otherwise happens in short ones, too."""
    if request.param == "small":
        for name, value in _SMALL.items():
            for module in (ngrams, ngram_index):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, value)
