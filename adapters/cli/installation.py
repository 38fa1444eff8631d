"""What ``logitport doctor`` finds in an environment. No engine is imported."""

import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import (
    EntryPoint,
    distributions,
    entry_points,
    metadata,
    requires,
    version,
)
from itertools import chain

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ...spec.errors import text_of
from ...spec.limits import LIMITS
from .. import policy
from ..backend import Backend, backend, backends
from ..environment import (
    ADMIT_OTHERS_VARIABLE,
    CONFIGURATION_VARIABLE,
    LIMITS_VARIABLE,
    RECEIPT_VARIABLE,
    ROUTE_VARIABLE,
    STAGE_VARIABLE,
    TEST_VARIABLES,
    VARIABLES,
    is_on,
    stage_from_environment,
    version_of,
)
from ..finding import Finding, Status

NAME = "logitport"
PREFIX = "LOGITPORT_"


def examine(engine: str | None) -> list[Finding]:
    """Examine this environment.

    Args:
        engine: the name of a backend; by default all whose engine is installed.

    Raises:
        ValueError: if there is no such backend.
    """
    chosen = [backend(engine)] if engine else [each for each in backends().values() if _has(each)]
    return [*_versions(), *_variables(), *_entries(), *chain(*map(_of_engine, chosen))]


def _has(engine: Backend) -> bool:
    return any(map(version_of, engine.packages.values()))


def _versions() -> Iterator[Finding]:
    allowed = SpecifierSet(metadata(NAME)["Requires-Python"])
    yield _in_range("Python", platform.python_version(), allowed)
    found = {
        str(each.locate_file("")): each.version
        for each in distributions(name=NAME)
        if each.read_text("RECORD")  # building leaves metadata without it beside the sources
    }
    if len(found) == 1:
        yield Finding(NAME, version(NAME))
    else:
        places = ", ".join(f"{number} in {folder}" for folder, number in found.items())
        advice = "Python reads only the entry points of the first: uninstall the others"
        yield Finding(NAME, f"installed more than once: {places}", Status.WARNING, advice)
    yield from (_of_package(*each, f"pip install {NAME}") for each in _needed("").items())
    if torch := version_of("torch"):
        yield Finding("torch", torch)


def _needed(extra: str) -> dict[str, SpecifierSet]:
    """Return the requirements of an extra, or of logitport itself."""
    found: dict[str, SpecifierSet] = {}
    for each in map(Requirement, requires(NAME) or ()):
        if each.marker.evaluate({"extra": extra}) if each.marker else not extra:
            found[each.name] = each.specifier
    return found


def _of_package(name: str, allowed: SpecifierSet, install: str) -> Finding:
    if found := version_of(name):
        return _in_range(name, found, allowed)
    return Finding(name, "not installed", Status.ERROR, install)


def _in_range(name: str, found: str, allowed: SpecifierSet) -> Finding:
    if allowed.contains(found, prereleases=True):
        return Finding(name, found)
    return Finding(name, found, Status.WARNING, f"This logitport needs {allowed}")


def _variables() -> Iterator[Finding]:
    for name in sorted(os.environ):
        if name in VARIABLES:
            yield _of_variable(name)
        elif name.startswith(PREFIX):
            # Of the whole names, all are close.
            known = {each.removeprefix(PREFIX): each for each in VARIABLES}
            close = get_close_matches(name.removeprefix(PREFIX), known, 1)
            what, status = "Nothing reads it", Status.WARNING
            if close:  # what it was to set is not set
                what, status = f"{what}. Is it {known[close[0]]}?", Status.ERROR
            yield Finding(name, "unknown", status, what)


def _of_variable(name: str) -> Finding:
    value = os.environ[name]
    if name == LIMITS_VARIABLE:  # the import of logitport has read it, or failed
        lowered = (
            f"{key} {each.value:,}" for key, each in LIMITS.items() if each.value != each.default
        )
        return Finding(name, ", ".join(lowered) or "no limit is lowered")
    if name == CONFIGURATION_VARIABLE and value:
        return _of_configuration(name, value)
    try:
        if name == STAGE_VARIABLE and (stage := stage_from_environment()):
            found = Finding("Stage", f"{stage} ({name})")
            advice = "Specs act here only if their payload has generation_only=false"
            return found if stage.generates else replace(found, status=Status.NOTE, advice=advice)
        if name in TEST_VARIABLES and is_on(name):
            advice = "Every request without specs of its own gets one answer, the check's"
            return Finding(name, "on", Status.NOTE, advice)
        if name in (RECEIPT_VARIABLE, ROUTE_VARIABLE):
            if is_on(name, default=True, other="all" if name == RECEIPT_VARIABLE else None):
                return Finding(name, "on")
            advice = "Clients cannot tell whether their specs act"
            return Finding(name, "off", Status.NOTE, advice)
    except ValueError as error:
        why = str(error).removeprefix(name).lstrip(":= ")
        advice = "The engine does not start: correct the variable, or unset it"
        return Finding(name, why, Status.ERROR, advice)
    if name == ADMIT_OTHERS_VARIABLE and value == "1":
        return Finding(name, "on", Status.WARNING, "Clients of SGLang can send code")
    return Finding(name, f"off ({value!r})")


def _of_configuration(name: str, file: str) -> Finding:
    try:
        policy.policy_of(None)
    except OSError as error:
        advice = "The engine does not start: name a file that is there"
        return Finding(name, f"{file}: {error.strerror}", Status.ERROR, advice)
    except ValueError as error:
        problems = "; ".join(getattr(error, "problems", [str(error)]))
        advice = f"The engine does not start: `{NAME} check --config {file}` lists them"
        return Finding(name, f"{file}: {problems}", Status.ERROR, advice)
    return Finding(name, file)


def _entries() -> Iterator[Finding]:
    """Load the plugins and the default specs that are installed."""
    try:
        from ..core import plugins
    except ModuleNotFoundError as error:
        advice = f"pip install '{NAME}[core]' brings what plugins and backends need"
        yield Finding("core", f"{error.name} is not installed", Status.NOTE, advice)
        return
    yield _of_loops()
    groups = {"Plugin": plugins.GROUP, "Default specs": policy.DEFAULTS, "Policy": policy.GROUP}
    for what, group in groups.items():
        for entry in entry_points(group=group):
            loaded, name = plugins.load_once(entry.load), f"{what} {entry.name}"
            if isinstance(loaded, BaseException):
                advice = f"Repair or uninstall the package {_package_of(entry)}"
                yield Finding(name, f"not loaded: {text_of(loaded)}", Status.ERROR, advice)
            else:
                yield Finding(name, entry.value)


def _of_loops() -> Finding:
    """Find out whether the loops of the core are compiled, and kept."""
    from ..core.loops import why_slow, why_uncached

    if why := why_slow():
        return Finding("Loops", "plain Python, which is slow", Status.WARNING, why)
    if why := why_uncached():
        return Finding("Loops", "compiled at each start", Status.WARNING, why)
    return Finding("Loops", "compiled, and kept in a cache")


def _package_of(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "that has it"


def _of_engine(engine: Backend) -> Iterator[Finding]:
    for extra, package in engine.packages.items():
        if not version_of(package):
            continue
        needed = {package: SpecifierSet(), **_needed(extra)}
        for name, allowed in needed.items():
            finding = _of_package(name, allowed, f"pip install '{NAME}[{extra}]'")
            if name == package or finding.status is not Status.OK:
                yield finding
    if not _has(engine):
        extra = next(iter(engine.packages), engine.name)
        advice = f"pip install '{NAME}[{extra}]', or use the environment that has it"
        yield Finding(engine.name, "not installed", Status.ERROR, advice)
    if engine.group:
        yield _of_entry_point(engine.group)
    for each in engine.examine() if engine.examine else ():
        yield replace(each, what=f"{engine.name}: {each.what}")


def _of_entry_point(group: str) -> Finding:
    """Look for the entry point from which an engine loads logitport."""
    found = [each for each in entry_points(group=group) if each.module.startswith(f"{NAME}.")]
    what = f"Entry point in {group}"
    if not found:
        advice = f"The engine does not find {NAME}: install it again"
        return Finding(what, "missing", Status.ERROR, advice)
    if len(found) > 1:
        packages = " and ".join(map(_package_of, found))
        advice = "Uninstall one of them; only the newest instance acts"
        return Finding(what, f"{len(found)} times, of {packages}", Status.WARNING, advice)
    return Finding(what, found[0].value)
