"""The requests by curl of docs/kinds.md, as a reader sends them."""

import json
import re
import subprocess
from typing import Any

from tests.support.paths import ROOT

ADDRESS = re.compile(r"http://localhost:\d+(?=/)")


def commands() -> list[str]:
    """Return the commands of the page: for vLLM, and for SGLang."""
    page = (ROOT / "docs/kinds.md").read_text(encoding="utf-8")
    return re.findall(r"```sh\n(curl .*?)```", page, re.DOTALL)


def check_choice(command: str, url: str, model: str) -> None:
    """Send a command to a server: the answer is one of the texts, and has a receipt."""
    sent = ADDRESS.sub(url.removesuffix("/").removesuffix("/v1"), command).replace("MODEL", model)
    sent = sent.replace("curl ", "curl --noproxy '*' ", 1)
    made = subprocess.run(["bash", "-c", sent], capture_output=True, timeout=120, check=True)
    answer: dict[str, Any] = json.loads(made.stdout)
    assert answer["choices"][0]["message"]["content"] in ("yes", "no"), answer
    assert answer["logitport"]["kinds"] == ["choice"]
