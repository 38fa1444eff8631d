"""What may import what, what an import costs, and what is in the wheel."""

import ast
import builtins
import importlib.util
import keyword
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import distributions
from itertools import pairwise
from pathlib import Path

import logitport
import msgspec
import pytest
from logitport.adapters.cli import capabilities
from logitport.spec import WIRE_KINDS

from tests.support.pages import text
from tests.support.paths import ROOT

ROOMS = ("package", "spec", "adapters", "hooks")
LAYERS = (
    *("loops", "automaton", "text", "logits", "plugins", "parts", "kinds", "program", "tensors"),
    *("contradictions", "warm_up", "callables", "layer", "device", "host", "on_host"),
)
"""Of the core, from the ground up: each imports what is before it."""
GROUND = ("logitport.spec", "logitport.adapters.core")
"""All of ours that the core may import."""
ENGINES = ("dynamo", "llama_cpp", "mlx", "sglang", "tensorrt_llm", "transformers", "vllm")
"""Imported by their own adapters alone."""


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> str:
    result = subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def source_files(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "package" else parts
    return ".".join(("logitport", *(parts[:-1] if parts[-1] == "__init__" else parts)))


class TestImportsOfAProcess:
    @pytest.mark.parametrize(
        ("statement", "absent"),
        [
            ("import logitport.hooks.hello_world", {"torch", "vllm", "numpy", "transformers"}),
            (
                "from logitport.adapters.cli.installation import examine\nexamine(None)",
                {"torch", "vllm", "sglang", "transformers", "mlx", "llama_cpp"},
            ),
            (
                "from logitport.adapters.cli.app import app\n"
                "import json, pathlib, tempfile\n"
                "file = pathlib.Path(tempfile.mkdtemp()) / 'spec.json'\n"
                "spec = {'kind': 'forced_sequence', 'token_ids': [1]}\n"
                "_ = file.write_text(json.dumps([spec, spec]))\n"
                "app(['check', str(file)], standalone_mode=False)",
                {"torch", "vllm", "transformers", "tokenizers"},
            ),
            (
                "from logitport.adapters.cli.app import app\n"
                "import json, pathlib, tempfile\n"
                "file = pathlib.Path(tempfile.mkdtemp()) / 'marks.json'\n"
                "marks = {'a': {'scheme': 'synthid', 'key': {'file': str(file) + '.key'}}}\n"
                "_ = file.write_text(json.dumps(marks))\n"
                "_ = pathlib.Path(f'{file}.key').write_text('1 2')\n"
                "(ids := file.with_name('ids')).write_text('[1, 2]')\n"
                "arguments = ['detect', '--profiles', str(file), '--tokens', str(ids)]\n"
                "app(arguments, standalone_mode=False)",
                {"torch", "numba", "cachetools", "packaging", "tokenizers", "starlette"},
            ),
            (
                "from logitport.adapters.conformance import ConformanceSuite",
                {"hypothesis", "torch"},
            ),
            ("from examples.new_backend.conformance import ToySuite", {"torch"}),
            ("import logitport.adapters.llama_cpp.processor", {"torch"}),
            ("import logitport.adapters.dynamo", {"dynamo", "vllm", "torch"}),
            ("import logitport.adapters.sglang", {"sglang", "torch"}),
            (
                "import numpy\n"
                "from logitport.adapters.core import Realizer, compile_specs\n"
                "from logitport.spec import DrySpec, ForcedTokenSequenceSpec\n"
                "specs = ForcedTokenSequenceSpec((2,)), DrySpec(1.0)\n"
                "for dtype in ('float32', 'float16'):\n"
                "    realizer, logits = Realizer(4), numpy.zeros((1, 4), dtype)\n"
                "    realizer.add(0, compile_specs(specs), [1], [])\n"
                "    realizer.apply(logits)\n"
                "    assert logits.argmax() == 2",
                {"torch"},
            ),
            (
                "from types import SimpleNamespace\n"
                "from logitport.adapters.vllm import attach\n"
                "from logitport.spec import SamplingSpec\n"
                "params = SimpleNamespace(extra_args=None, temperature=None)\n"
                "attach(params, SamplingSpec(temperature=0))",
                {"torch", "vllm"},
            ),
        ],
    )
    def test_light(self, statement: str, absent: set[str]):
        out = run(sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)")
        assert "logitport.spec" in out.split()
        assert not absent & set(out.split())

    def test_what_needs_torch_says_so(self):
        code = "import sys; sys.modules['torch'] = None; from logitport.adapters import core\n"
        code += "try: core.DeviceRealizer\nexcept ModuleNotFoundError as error: print(error)"
        what = "logitport.adapters.core.DeviceRealizer needs torch, which is not installed"
        assert run(sys.executable, "-c", code).strip() == what

    def test_a_front_end_loads_the_processor_and_no_more_of_an_engine(self):
        """vLLM's own interface brings torch; what realizes is for workers alone."""
        out = run(
            sys.executable,
            "-c",
            "import sys, vllm.v1.sample.logits_processor.interface\n"
            "from vllm import SamplingParams\n"
            "there = set(sys.modules)\n"
            "from logitport.adapters.vllm import LogitportProcessor, attach\n"
            "from logitport.spec import ForcedTokenSequenceSpec\n"
            "params = attach(SamplingParams(), ForcedTokenSequenceSpec((1, 2)))\n"
            "LogitportProcessor.validate_params(params)\n"
            "print(*{name.partition('.')[0] for name in set(sys.modules) - there})\n"
            "print(*(name for name in sys.modules if name.startswith('logitport')))\n"
            "import torch; print(torch.cuda.is_initialized())",
        )
        packages, ours, cuda = (line.split() for line in out.splitlines()[-3:])
        assert not {"torch", "triton", "transformers"} & set(packages)
        assert "logitport.adapters.core.program" in ours
        core = [name.removeprefix("logitport.adapters.core.") for name in ours]
        assert not [name for name in core if name.startswith(("host", "device"))]
        assert cuda == ["False"]


def imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """Absolute names of all that a module imports, be it in a function or for types alone."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # The package that the dots start from, then one step up for each dot after the first.
            up = node.level - is_package
            base = module.split(".")[: -up or None] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from . import a` may name a module or what is in one: take it for a module.
            found += (f"{name}.{alias.name}" for alias in node.names)
    return found


IMPORTS = {
    (name := module_of(path)): imports(path.read_text("utf-8"), name, path.stem == "__init__")
    for path in source_files(*ROOMS)
}
"""Of each of our modules."""


def is_below(name: str, *packages: str) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


SUITE = "logitport.adapters.conformance"


def upward(module: str, found: Iterable[str]) -> list[str]:
    """What a module imports from above itself, or of another engine's."""
    ours = [name for name in found if is_below(name, "logitport")]
    forbidden: list[str] = []
    if is_below(module, "logitport.spec"):
        forbidden += [name for name in ours if not is_below(name, "logitport.spec")]
        others = {name for name in found if not is_below(name, "logitport", "msgspec")}
        forbidden += [name for name in others if name.split(".")[0] not in sys.stdlib_module_names]
    if is_below(module, "logitport.adapters"):
        forbidden += ["logitport.hooks"]
    if not is_below(module, SUITE):  # which needs pytest
        forbidden += [SUITE]
    for engine in ENGINES:
        if not module.startswith(f"logitport.adapters.{engine}"):  # `dynamo_worker`, too
            forbidden += [engine]
            # Dynamo's adapter runs on vLLM's.
            if not (engine == "vllm" and module.startswith("logitport.adapters.dynamo")):
                forbidden += [f"logitport.adapters.{engine}"]
    core, _, rest = module.partition("logitport.adapters.core.")
    if not core and rest:
        layer = LAYERS.index(rest.partition(".")[0])
        forbidden += [f"logitport.adapters.core.{above}" for above in LAYERS[layer + 1 :]]
    if is_below(module, "logitport.adapters.core"):
        forbidden += [name for name in ours if not is_below(name, *GROUND)]
    return [name for name in found if is_below(name, *forbidden)]


FAST = ("spec", "core", "kinds", "conformance")
"""The tests that run with no engine installed (`make test-fast`)."""


def engines_at_once(source: str) -> set[str]:
    """The engines that a module imports when it is loaded, unless it is skipped without them."""
    loaded = ast.parse(source.partition("\npytest.importorskip(")[0]).body
    statements = [node for node in loaded if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = imports("\n".join(map(ast.unparse, statements)), "tests")
    return {name.split(".")[0] for name in names} & {*ENGINES, "triton"}


def test_fast_tests_need_no_engine():
    assert engines_at_once("import a\nfrom transformers import b") == {"transformers"}
    files = [path for room in FAST for path in sorted((ROOT / "tests" / room).rglob("*.py"))]
    assert [path for path in files if engines_at_once(path.read_text("utf-8"))] == []


REAL_ENGINES = tuple(f"logitport.adapters.{engine}" for engine in ENGINES if engine != "dynamo")
PUBLIC = (
    "logitport.spec",
    "logitport.adapters",
    "logitport.adapters.detection",
    "logitport.adapters.core",
)
"""All that the adapter of an engine may import of ours, besides its own modules."""
NOT_YET = ("logitport.spec.base", "logitport.spec.conflicts")
NOT_YET_IN = ("params", "native", "own_fields")
"""These modules still import ``logitport.adapters.backend`` and the like."""


def private(module: str, found: Iterable[str]) -> list[str]:
    """What the adapter of an engine imports of ours that is not public."""
    own = ".".join(module.split(".")[:3])
    public = {f"{each}.{name}" for each in PUBLIC for name in importlib.import_module(each).__all__}
    return [
        name
        for name in found
        if is_below(name, "logitport")
        and name not in public
        and not is_below(name, own, *NOT_YET)
        and not (module.split(".")[-1] in NOT_YET_IN and not is_below(name, PUBLIC[-1]))
    ]


CIRCLES = {
    # A phase has specs of any kind.
    ("logitport.spec.kinds", "logitport.spec.kinds.phases"),
}
"""The modules that still import one another. An entry goes as soon as its modules are apart."""


def circles(found: Mapping[str, Iterable[str]]) -> set[tuple[str, ...]]:
    """The modules that import one another."""
    imported = {
        module: {name if name in found else name.rpartition(".")[0] for name in names}
        & found.keys() - {module}
        for module, names in found.items()
    }

    def reach(module: str) -> set[str]:
        seen, front = set[str](), [module]
        while front:
            new = imported[front.pop()] - seen
            seen |= new
            front += new
        return seen

    reached = {module: reach(module) for module in found}
    return {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in found
        if module in reached[module]
    }


class TestImportDirection:
    def test_an_adapter_lives_on_the_public_surface(self):
        adapters = [each for each in IMPORTS if is_below(each, *REAL_ENGINES)]
        found = {module: private(module, IMPORTS[module]) for module in adapters}
        assert {module: names for module, names in found.items() if names} == {}

    def test_downwards_only(self):
        found = {module: upward(module, names) for module, names in IMPORTS.items()}
        assert {module: names for module, names in found.items() if names} == {}

    def test_a_program_names_no_kind(self):
        named = {name.rpartition(".")[2] for name in IMPORTS["logitport.adapters.core.program"]}
        assert not named & {kind.__name__ for kind in WIRE_KINDS}

    def test_no_circles(self):
        assert circles(IMPORTS) == CIRCLES

    @pytest.mark.parametrize(
        ("b", "found"),
        [
            ("from .a import f", {("p.a", "p.b")}),
            ("from . import f", {("p", "p.a", "p.b")}),
            ("from .c import f", set()),
        ],
    )
    def test_the_rule_about_circles_bites(self, b: str, found: set[tuple[str, ...]]):
        others = {"p": ["p.a.f"], "p.a": ["p.b"], "p.c": []}
        assert circles(others | {"p.b": imports(b, "p.b")}) == found

    @pytest.mark.parametrize(
        ("rule", "module", "source"),
        [
            (private, "vllm.v1_batch", "from ..core.callables import log_failure"),
            (private, "vllm.params", "from ..core.callables import log_failure"),
            (private, "vllm", "from ..metrics import count"),
            (private, "sglang.worker", "from ...spec.payload import decode"),
            (upward, "core.parts", "from ...hooks import hello_world"),
            (upward, "core.parts", "if TYPE_CHECKING:\n    from vllm import LLM"),
            (upward, "core.parts", "from ..vllm.params import KEY"),
            (upward, "core", "from .. import lazy"),
            (upward, "cli.steps", "from ..conformance.base import Request"),
            (upward, "core.kinds.trigger", "def f():\n    from ..program import Program"),
        ],
    )
    def test_the_rules_bite(self, rule: Callable[..., list[str]], module: str, source: str):
        found = imports(source, f"logitport.adapters.{module}", module in ("core", "vllm"))
        assert rule(f"logitport.adapters.{module}", found)

    @pytest.mark.parametrize("name", ["logitport.adapters.core", "logitport.hooks", "numpy"])
    def test_the_rule_of_specs_bites(self, name: str):
        assert upward(
            "logitport.spec.base", [name, "logitport.spec.errors", "json", "msgspec"]
        ) == [name]


WORD = re.compile(r"[A-Za-z_]\w*")
QUOTED = re.compile(r"``([A-Za-z_][\w.]*)(?:\([^`]*\))?``")
"""A name or a call, in docstrings and comments; not a literal, an option or a path."""
SOURCES = {"mlx": "mlx_lm"}
"""The package of an engine, where it has another name."""


def names_in(tree: ast.AST) -> set[str]:
    """Return the names in a tree, but for its docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: set[str] = set()
    for node in ast.walk(tree):
        for value in vars(node).values() if id(node) not in prose else ():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str):
                    # A message has other words as well: its names have underscores or backticks.
                    names = each if " " not in each else " ".join(re.findall("`.+?`", each))
                    found.update(WORD.findall(names))
                    found.update(word for word in WORD.findall(each) if "_" in word)
    return found


@cache
def names() -> set[str]:
    """Return all names in our code, and in that of tests, which call other packages."""
    found = {*dir(builtins), *keyword.kwlist, *WORD.findall(text("pyproject.toml"))}
    files = {*source_files(*ROOMS, "tests", "examples", "benchmarks")} - {Path(__file__)}
    for path in files:
        found |= {
            *WORD.findall(str(path.relative_to(ROOT))),
            *names_in(ast.parse(path.read_text())),
        }
    return found


@cache
def members() -> dict[str, set[str]]:
    """Return the names in each of our modules and classes, and the bases of the latter."""
    found: dict[str, set[str]] = {}
    for path in source_files(*ROOMS):
        tree = ast.parse(path.read_text("utf-8"))
        classes = [(node.name, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        module = [(path.stem, tree)] if path.stem != "__init__" else []
        for name, node in [*module, *classes]:
            found.setdefault(name, set()).update(names_in(node))
    return found


@cache
def words_of(package: str) -> set[str]:
    """Return all words in the source of an engine, which is not imported; none if it is lacking."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return set()
    files = Path(spec.origin).parent.rglob("*.py")
    return {word for path in files for word in WORD.findall(path.read_text(errors="ignore"))}


def is_member(name: str, owner: str) -> bool:
    """Whether a class or module of ours, or a class that it inherits from, has a name."""
    inside = members()[owner]
    bases = (each for each in inside & members().keys() if each[0].isupper() and each != owner)
    return name in inside or any(name in members()[each] for each in bases)


def unknown(source: str) -> set[str]:
    """The names in double backticks that nothing has."""
    found: set[str] = set()
    for quoted in QUOTED.findall(source):
        parts = quoted.split(".")
        found |= {*parts} - names()
        found |= {
            f"{owner}.{name}"
            for owner, name in pairwise(parts)
            if owner in members() and owner not in (*ENGINES, "mlx") and name not in ("py", "")
            if not is_member(name, owner)
        }
    return found


class TestNames:
    def test_in_backticks_exist(self):
        """The engine's own are looked for in its source, if it is installed."""
        missing: dict[str, set[str]] = {}
        for path in source_files(*ROOMS):
            found, engine = unknown(path.read_text("utf-8")), path.parent.name
            if found and engine in ENGINES:
                found -= words_of(SOURCES.get(engine, engine)) or found
            if found:
                missing[module_of(path)] = found
        assert missing == {}

    @pytest.mark.parametrize(
        ("source", "found"),
        [
            ("``Realizer.add`` takes ``stop_token_ids`` and ``None``", set()),
            ("``Realizer.fold``, ``MAX_STEPS``", {"Realizer.fold", "MAX_STEPS"}),
            ("``yonder.Nothing`` of ``Nowhere(1)``", {"yonder", "Nothing", "Nowhere"}),
            ('``"Nowhere"``, ``--nowhere``, ``no where``', set()),
        ],
    )
    def test_the_rule_bites(self, source: str, found: set[str]):
        assert unknown(source) == found


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources: setuptools leaves its traces where it builds."""
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    for path in [*source_files(*ROOMS), *ROOT.glob("*/py.typed")]:
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as an installer does where there is no wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    # Without isolation, that is with the setuptools of this environment: no package index needed.
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"),
        *("--no-build-isolation", "--check-build-dependencies", "--wheel-dir", folder, sdist),
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_version_is_that_of_the_changelog():
    heading = re.search(r"^## (\S+?)(, not yet released)?$", text("CHANGELOG.md"), re.MULTILINE)
    assert heading
    assert logitport.__version__ == heading[1] + (".dev0" if heading[2] else "")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        logitport.nothing  # noqa: B018  # pyright: ignore


class TestWheel:
    def test_what_a_package_index_renders(self, wheel: Path):
        (found,) = distributions(path=[str(wheel)])
        metadata = found.metadata
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert metadata["Description"] == text("README.md")

    def test_content(self, wheel: Path):
        names = zipfile.ZipFile(wheel).namelist()
        sources = [*source_files(*ROOMS), *(ROOT / room / "py.typed" for room in ROOMS)]
        modules = {
            "logitport/" + path.relative_to(ROOT).as_posix().removeprefix("package/")
            for path in sources
        }
        (info,) = {name.split("/")[0] for name in names if not name.startswith("logitport/")}
        metadata = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}
        metadata.add("licenses/LICENSE")
        assert set(names) == modules | {f"{info}/{name}" for name in metadata}

    def test_entry_points(self, wheel: Path):
        (found,) = distributions(path=[str(wheel)])
        points = {(point.group, point.name): point.value for point in found.entry_points}
        processor = "logitport.adapters.vllm:LogitportProcessor"
        assert points["vllm.logits_processors", "logitport"] == processor
        hello_world = "logitport.hooks.hello_world:default_specs"
        assert points["logitport.default_specs", "hello_world"] == hello_world

    def test_installs(self, wheel: Path, tmp_path: Path):
        """In an environment that has nothing but msgspec, the one dependency."""
        venv.create(tmp_path / "venv")
        python = tmp_path / "venv" / "bin" / "python"
        run(
            *(sys.executable, "-m", "pip", "--python", python),
            *("install", "--quiet", "--no-deps", "--no-index", wheel),
        )
        dependencies = tmp_path / "dependencies"
        dependencies.mkdir()
        (dependencies / "msgspec").symlink_to(Path(msgspec.__file__).parent)
        code = (
            "from logitport.adapters.vllm import attach\n"
            "from logitport.spec import ForcedTokenSequenceSpec, decode, encode\n"
            "import logitport.hooks.hello_world, logitport.spec\n"
            "spec = ForcedTokenSequenceSpec((1, 2), 3)\n"
            "assert decode(encode(spec)).specs == (spec,)\n"
            "print(logitport.spec.__file__)"
        )
        out = run(python, "-c", code, cwd=tmp_path, PYTHONPATH=str(dependencies))
        assert Path(out.strip()).is_relative_to(tmp_path / "venv")
        code = "from logitport.adapters.cli import capabilities; print(capabilities())"
        table = run(python, "-c", code, cwd=tmp_path, PYTHONPATH=str(dependencies))
        assert table == f"{capabilities()}\n"
