"""A package of plugins, installed for a test."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from logitport.adapters.core import plugins


@contextmanager
def plugin_package(
    folder: Path, entries: Mapping[str, str], modules: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Install a package in a folder, which is on the path of this process meanwhile.

    Args:
        folder: of the package; other processes can have it in their ``PYTHONPATH``.
        entries: what each plugin is made by, as ``module:function``.
        modules: the source of each module that the package brings.
    """
    for name, source in (modules or {}).items():
        (folder / f"{name}.py").write_text(source)
    information = folder / "logitport_test_plugins-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: p\nVersion: 1\n")
    lines = [f"[{plugins.GROUP}]", *(f"{name} = {made}" for name, made in entries.items())]
    (information / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        plugins._plugins.cache_clear()
        yield
    plugins._plugins.cache_clear()
