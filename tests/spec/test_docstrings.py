"""Each kind has an example in its docstring, and all examples print what they say."""

import doctest
from importlib import import_module
from importlib.util import find_spec
from pkgutil import walk_packages

import logitport.spec
import pytest
from logitport.spec import WIRE_KINDS
from logitport.spec.base import kind_of

FINDER = doctest.DocTestFinder(exclude_empty=True)
MODULES = [
    "logitport.spec",
    *(m.name for m in walk_packages(logitport.spec.__path__, "logitport.spec.")),
]
EXAMPLES = [
    test for name in MODULES for test in FINDER.find(import_module(name), name) if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
def test_example(example: doctest.DocTest):
    if "scripts" in example.name and not find_spec("fontTools"):
        pytest.skip("fonttools is missing")
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(example, out=report.append)
    assert report == []


@pytest.mark.parametrize("kind", WIRE_KINDS, ids=kind_of)
def test_every_kind_has_an_example(kind: type):
    assert any(test.name.endswith(f".{kind.__name__}") for test in EXAMPLES)
