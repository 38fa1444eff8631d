"""What a machine with PyTorch lacks: collected here as wheels, unpacked there without pip.

``python -m benchmarks.gpu.carried FOLDER`` collects, in an environment with vLLM. vLLM's Python
files become a wheel without its compiled parts. They are enough for its sampler's kernels.
"""

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, packages_distributions, version
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "build" / "gpu-wheels"
SITE = ROOT / "build" / "gpu-site"

PYTHON = "3.12"
OURS = ("cachetools", "msgspec")
VLLM = (
    "annotated-types",
    "cbor2",
    "httpcore2",
    "httpx2",
    "jiter",
    "openai",
    "oss-harmony",
    "pybase64",
    "pydantic",
    "pydantic-core",
    "pyzmq",
    "sniffio",
    "truststore",
    "typing-inspection",
)
"""What vLLM's sampler imports and the machine lacks."""


def collect(folder: Path) -> None:
    """Fill a folder with the wheels, in the versions of this environment."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # pip matches each manylinux version exactly.
    platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in (17, 26, 27, 28)]
    platforms += [f"--platform=manylinux{name}_x86_64" for name in ("1", "2014")]
    wanted = [f"{name}=={version(name)}" for name in (*OURS, *VLLM)]
    pip = [sys.executable, "-m", "pip", "--quiet"]
    only = ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
    subprocess.run([*pip, "download", *only, *platforms, f"--dest={folder}", *wanted], check=True)
    vllm = distribution(packages_distributions()["vllm"][0])
    sources = [path for path in vllm.files or () if path.parts[0] == "vllm"]
    python = {str(path): Path(str(path.locate())) for path in sources if path.suffix == ".py"}
    # vLLM asks for its version, in which `cpu` would keep it from Triton.
    _write_wheel(folder, "vllm", vllm.version, python)
    ours = distribution("logitport")  # for its entry points; its code is the checkout's
    _write_wheel(folder, "logitport", ours.version, {}, ours.read_text("entry_points.txt") or "")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 2**20:.1f} MiB")


def _write_wheel(
    folder: Path, name: str, version: str, files: dict[str, Path], entry_points: str = ""
) -> None:
    made = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for path, content in files.items():
            wheel.write(content, path)
        info = f"{name}-{version}.dist-info"
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", entry_points)


def unpack() -> Path:
    """Make a folder for ``PYTHONPATH`` with what is in the wheels, and with the checkout's code."""
    shutil.rmtree(SITE, ignore_errors=True)
    SITE.mkdir(parents=True)
    for wheel in sorted(WHEELS.glob("*.whl")):
        with zipfile.ZipFile(wheel) as content:
            content.extractall(SITE)
    package = SITE / "logitport"
    package.mkdir()
    for room in ("spec", "adapters", "hooks", *(ROOT / "package").glob("*.py")):
        (package / Path(room).name).symlink_to(ROOT / room)
    return SITE


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
