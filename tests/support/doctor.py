"""What ``logitport doctor`` finds at a real server."""

import json

from logitport.adapters.cli.app import app
from typer.testing import CliRunner


def examined(url: str) -> list[dict[str, str]]:
    """Of a forced text, a wrong payload, and a payload where the engine does not look."""
    result = CliRunner().invoke(app, ["doctor", url.removesuffix("/v1"), "--json"])
    assert result.exit_code < 2, result.output
    found = json.loads(result.stdout)["findings"]
    assert result.exit_code == any(each["status"] == "error" for each in found)
    return found


def findings(url: str) -> list[str]:
    """As ``examined``, in a few words each, of specs on the route of completions."""
    found = examined(url)[:3]
    words = [each["found"].partition(":")[0] for each in found]
    is_right = words == ["obeyed", "refused", "refused"]
    assert is_right == all(each["status"] == "ok" for each in found)
    return words
