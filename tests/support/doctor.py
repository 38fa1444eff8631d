"""What ``logitport doctor`` finds at a real server."""

import json

from logitport.adapters.cli.app import app
from typer.testing import CliRunner


def findings(url: str) -> list[str]:
    """Of a forced text, a wrong payload, and a payload where the engine does not look."""
    result = CliRunner().invoke(app, ["doctor", url.removesuffix("/v1"), "--json"])
    assert result.exit_code < 2, result.output
    found = [each["found"].partition(":")[0] for each in json.loads(result.stdout)["findings"]]
    assert result.exit_code == (found != ["obeyed", "refused", "refused"])
    return found
