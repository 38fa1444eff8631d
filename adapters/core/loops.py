"""The decorator for plain loops, which numba compiles to machine code.

A loop is a function over numpy arrays, in the part of Python that numba knows. Compiled, it checks
no bounds and holds no lock. Without numba the same function runs as Python: exact, and slow.
``NUMBA_DISABLE_JIT=1`` asks for that; ``NUMBA_BOUNDSCHECK=1`` has the bounds checked.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Loop = TypeVar("Loop", bound=Callable[..., Any])

CACHE = "set NUMBA_CACHE_DIR to a folder that can be written"
INSTALL = "install numba (`pip install 'numba>=0.60'`)"


def loop(function: Loop) -> Loop:
    """Compile a function at its first call for each combination of argument types.

    Machine code is kept in numba's cache where one can be written. The cache is read again only
    while all loops are as they were, because they call one another.
    """
    return _compile(function)


def part_of_loops(function: Loop) -> Loop:
    """Compile a function into each loop that calls it: a call with arrays would take 20 ns."""
    return _compile(function, inline="always")


def _compile(function: Any, **options: Any) -> Any:
    if why_slow() is not None:
        return function
    import numba

    try:
        made: Any = numba.njit(nogil=True, cache=True, **options)(function)
        made._cache._cache_file._source_stamp = _stamp()  # of all loops, not of one file
        return made
    except Exception as error:  # no folder can be written, or another release of numba
        _say_once(f"Loops are compiled at each start, because they cannot be cached: {error}")
        return numba.njit(nogil=True, **options)(function)


def _is_python() -> bool:
    """Whether the operator has asked for plain Python."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def why_uncached() -> str | None:
    """Return why loops are compiled at each start, and what to do; ``None`` if they are cached."""
    import numba

    try:
        numba.njit(cache=True)(_probe)
    except Exception as error:
        return f"{error}; {CACHE}"
    return None


@lru_cache(maxsize=1)
def why_slow() -> str | None:
    """Return why loops are not compiled here, and what to do; ``None`` if they are.

    What it returns is logged once.
    """
    if _is_python():
        why = "NUMBA_DISABLE_JIT is set; unset it"
    elif find_spec("numba") is None:
        why = f"numba is not installed; {INSTALL}"
    else:
        try:
            import numba

            _give_llvmlite_a_dict()
            numba.njit(_probe)(1)
            return None
        except Exception as error:
            why = f"numba does not work here: {type(error).__name__}: {error}; {INSTALL}"
    logger.warning("Loops run as plain Python, which is slow: %s", why)
    return why


def _give_llvmlite_a_dict() -> None:
    """Have llvmlite's library answer for ``__dict__``, which it takes for a C function's name.

    Code that goes through the objects of all modules fails otherwise, and some engines do so while
    they start.
    """
    with suppress(Exception):
        from llvmlite.binding import ffi

        ffi.lib._fntab.setdefault("__dict__", {})


def _probe(number: int) -> int:
    return number + 1


@lru_cache(maxsize=1)
def _stamp() -> tuple[int, int]:
    """Return the newest time and the total size of the core's files."""
    files = [path.stat() for path in Path(__file__).parent.rglob("*.py")]
    return max(each.st_mtime_ns for each in files), sum(each.st_size for each in files)


@lru_cache(maxsize=1)
def _say_once(what: str) -> None:
    logger.warning("%s; %s", what, CACHE)
