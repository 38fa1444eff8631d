"""The requests by curl of docs/http.md, as a reader sends them."""

import json
import re
import subprocess
from typing import Any

from tests.support.paths import ROOT

ADDRESS = re.compile(r"http://localhost:\d+(?=/)")


def commands() -> list[str]:
    """Return the commands of the page: a choice from vLLM, one from SGLang, and others."""
    return re.findall(r"```sh\n(curl .*?)```", page(), re.DOTALL)


def page() -> str:
    """Return the page."""
    return (ROOT / "docs/http.md").read_text(encoding="utf-8")


def request_of(command: str) -> tuple[str, Any]:
    """Return the path and the body of a command; without a body, ``None``."""
    path = re.search(r"http://localhost:\d+(/\S+)", command)
    assert path is not None
    _, has_body, body = command.partition(" -d '")
    return path[1], json.loads(body.rpartition("'")[0]) if has_body else None


def check_choice(command: str, url: str, model: str) -> None:
    """Send a command to a server: the answer is one of the texts, and has a receipt."""
    sent = ADDRESS.sub(url.removesuffix("/").removesuffix("/v1"), command).replace("MODEL", model)
    sent = sent.replace("curl ", "curl --noproxy '*' ", 1)
    made = subprocess.run(["bash", "-c", sent], capture_output=True, timeout=600, check=True)
    answer: dict[str, Any] = json.loads(made.stdout)
    assert answer["choices"][0]["message"]["content"] in ("yes", "no"), answer
    assert answer["logitport"]["kinds"] == ["choice"]
