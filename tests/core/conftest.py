"""What the tests of the core share."""

from typing import Any

import pytest
import torch
from logitport.adapters.core import plugins
from logitport.spec import PluginSpec

from tests.support.triton_process import DEVICES, device_or_skip


@pytest.fixture(params=DEVICES, scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    return device_or_skip(request.param)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a plugin that returns the given part, and returns its spec."""

    def install(part: Any) -> PluginSpec:
        monkeypatch.setattr(plugins, "_plugins", lambda: {"p": lambda: lambda params: part})
        return PluginSpec("p")

    return install
