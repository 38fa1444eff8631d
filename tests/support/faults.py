"""Calls of numpy, torch and kernels that fail, one after the other or by chance."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from logitport.adapters.core import warm_up
from logitport.adapters.core.host.realizer import take_steps
from torch.overrides import TorchFunctionMode

MODULES = (
    *("automaton.arrays", "automaton.automaton", "automaton.automata", "automaton.builder"),
    *("automaton.history", "automaton.pool", "callables"),
    *(
        "host.draw",
        "host.editors",
        "host.history_rules",
        "host.realizer",
        "host.requests",
        "logits",
        "program",
    ),
)
DEVICE_MODULES = (
    *("device.advance_kernel", "device.edit_kernel", "device.history_kernels"),
    *("device.inputs", "device.pool", "device.realizer", "device.requests"),
    *("automaton.automata", "automaton.history", "kinds.prompt_bias"),
)
LOOPS = (
    *(("automaton.automata", each) for each in ("begin", "begin_output", "read_prompt", "step")),
    ("host.editors", "find_edited"),
)
"""Loops whose calls count. Those that write do not: compiled, they cannot fail."""
METHODS = (
    *("__getitem__", "__setitem__", "add_", "amax", "as_strided", "clamp", "clamp_", "clone"),
    *("contiguous", "copy_", "fill_", "index_add_", "index_fill_", "item", "masked_fill_"),
    *("new_empty", "new_zeros", "numpy", "scatter_reduce_", "sum", "to", "view"),
)
"""Of tensors, those that the core calls."""


class Faults:
    """Counts calls of numpy, torch and kernels, and lets some of them fail.

    Attributes:
        calls: how many there have been.
        failing: which of them fail, counted from 0.
        raised: how many have.
        total: the same, ever since.
    """

    def __init__(self) -> None:
        self.calls = self.raised = self.total = 0
        self.failing: frozenset[int] = frozenset()
        self._counts = False

    def start(self, failing: Sequence[int] = ()) -> None:
        self.calls = self.raised = 0
        self.failing = frozenset(failing)

    @contextmanager
    def counting(self, counts: bool = True) -> Iterator[None]:
        """While the core runs: what the test itself calls does not count."""
        before, self._counts = self._counts, counts
        try:
            yield
        finally:
            self._counts = before

    def counted(self, function: Any) -> Any:
        """A function of the core, which calls what counts."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            with self.counting():
                return function(*arguments, **keywords)

        return call

    def wrap(self, function: Any) -> Any:
        """A call that counts; what it calls itself does not."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            if not self._counts:
                return function(*arguments, **keywords)
            self.calls += 1
            if self.calls - 1 in self.failing:
                self.raised += 1
                self.total += 1
                raise MemoryError(f"call {self.calls - 1}")
            with self.counting(False):
                return function(*arguments, **keywords)

        return call

    @contextmanager
    def installed(self, modules: Sequence[str], methods: Sequence[str] = METHODS) -> Iterator[None]:
        """Within it, calls are counted, and fail where they shall."""
        warm_up.run_loops(take_steps)  # compiled now, they refer to one another
        with ExitStack() as stack:

            def put(place: Any, name: str, value: Any) -> None:
                stack.enter_context(patch.object(place, name, value))

            for module in modules:
                place = import_module(f"logitport.adapters.core.{module}")
                for name, value in list(vars(place).items()):
                    if name in ("np", "torch"):
                        put(place, name, Library(self, value))
                    elif (module, name) in LOOPS:
                        put(place, name, self.wrap(value))
                    elif name.endswith("_kernel") and hasattr(value, "warmup"):
                        put(place, name, Kernel(self, value))
            stack.enter_context(Methods(self, methods))
            yield


class Methods(TorchFunctionMode):
    """Counts methods of tensors.

    A method that is replaced in the class leaves a trace there for good: once `__getitem__` has
    been, torch takes a tensor of no dimensions for a sequence, and tests that follow fail.
    """

    def __init__(self, faults: Faults, names: Sequence[str]) -> None:
        super().__init__()
        self._faults, self._names = faults, frozenset(names)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in self._names:
            func = self._faults.wrap(func)
        return func(*args, **(kwargs or {}))


class Library:
    """Stands in for a module whose functions are counted."""

    def __init__(self, faults: Faults, module: Any) -> None:
        self._faults, self._module = faults, module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if callable(value) and not isinstance(value, type):
            function = self._faults.wrap(value)
            for method in ("accumulate", "at"):  # of a ufunc
                if hasattr(value, method):
                    vars(function)[method] = self._faults.wrap(getattr(value, method))
            value = function
            setattr(self, name, value)
        elif type(value).__name__ == "module":
            value = Library(self._faults, value)
            setattr(self, name, value)
        return value


class Kernel:
    """Stands in for a Triton kernel whose launches are counted."""

    def __init__(self, faults: Faults, kernel: Any) -> None:
        self._faults, self._kernel = faults, kernel

    def __getitem__(self, grid: Any) -> Any:
        return self._faults.wrap(self._kernel[grid])
