"""What holds for every kind, by the rows that a kind has in a file of its name."""

import copy
import json
import pickle
import re
from importlib.util import find_spec
from typing import Any, ClassVar

import jsonschema
import msgspec
import pytest
from logitport import spec as s
from logitport.adapters.reference import edit
from logitport.adapters.reference.kinds.base import BAN, Add, Allow, Force

from tests.support.automata import AUTOMATA, assert_edits, automata
from tests.support.paths import GOLDEN

Tables = tuple[tuple[Any, ...], ...]

VALIDATOR = jsonschema.Draft202012Validator(s.json_schema())

F = Force
LONG = [0] * (s.limits.MAX_TOKEN_IDS + 1)
AT_LEAST_0, AT_LEAST_1 = "Expected `int` >= 0", "Expected `int` >= 1"
SOME = "Expected `array` of length >= 1"
TOO_LONG = f"Expected at most {s.limits.MAX_TOKEN_IDS} entries"
TOO_LARGE = "Expected `int` <= 2147483647"
HALF = s.limits.MAX_TOKEN_IDS // 2
TOO_MANY = f"Expected at most {HALF} token ids in all, got {HALF + 1}"
SOUGHT = s.limits.MAX_TOKEN_IDS // 3
TOO_MANY_TO_FIND = f"Expected at most {SOUGHT} token ids in all, got {SOUGHT + 1}"
TOO_LONG_TO_FIND = "Expected at most 64 token ids to look for, got 65"
TOO_HIGH = "Expected `float` <= 10000.0"


def allow(*tokens: int) -> Allow:
    return Allow(frozenset(tokens))


def ban(*tokens: int) -> Add:
    return Add(dict.fromkeys(tokens, BAN))


def below(parent: str, path: str) -> str:
    return f"{parent}.{path}" if path else parent


class KindTests:
    """The rows of a kind, and what they are held to.

    Attributes:
        golden: the spec in the golden file of the kind's name.
        refused: fields | message | path below the spec.
        largest: specs at their limits.
    """

    golden: ClassVar[Any]
    refused: ClassVar[Tables]
    largest: ClassVar[tuple[s.LogitsProcessorSpec, ...]]

    ARGUMENTS: ClassVar[dict[str, str]] = {
        "refused": "fields, message, path",
        "largest": "spec",
        "beyond": "spec, path",
        "histories": "spec, prompt, steps",
    }

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        table = metafunc.function.__name__.removeprefix("test_")
        if table in self.ARGUMENTS:
            metafunc.parametrize(self.ARGUMENTS[table], getattr(self, table))

    def test_golden(self):
        """Change a golden file only together with VERSION."""
        spec = self.golden
        golden = (GOLDEN / f"{spec.kind}.json").read_text()
        assert s.encode(spec) + "\n" == golden
        for form in (golden, golden.encode(), json.loads(golden)):
            assert s.decode(form) == s.Payload(1, (spec,), generation_only=True)
        VALIDATOR.validate(json.loads(golden))

    def test_value(self):
        spec = self.golden
        (same,) = s.decode(s.encode(spec)).specs
        for twin in (same, copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
            assert type(twin) is type(spec)
            assert twin == spec
            assert hash(twin) == hash(spec)
        for name in ("kind", "other", *spec.__struct_fields__):
            with pytest.raises(AttributeError):
                setattr(spec, name, None)
        assert spec == same

    def test_refused(self, fields: dict[str, Any], message: str, path: str):
        content = {"version": 1, "specs": [{"kind": self.golden.kind, **fields}]}
        for form in (content, json.dumps(content), msgspec.json.encode(content)):
            with pytest.raises(s.SpecError) as error:
                s.decode(form)
            # The paths in a message move with the error's own.
            decoded = message.replace("`$", "`$.specs[0]")
            # What is sent may be texts, and its error says where they belong.
            said = re.sub("; `[a-z_]+` takes texts$", "", error.value.message)
            assert (said, error.value.path) == (decoded, below("$.specs[0]", path))
        with pytest.raises(s.SpecError) as error:
            type(self.golden)(**fields)
        assert (error.value.message, error.value.path) == (message, below("$", path))

    def test_largest(self, spec: s.LogitsProcessorSpec):
        assert s.decode(s.encode(spec)).specs == (spec,)


class RealizedKindTests(KindTests):
    """The rows of a kind that the core realizes.

    Attributes:
        beyond: spec whose largest token id is 9 | path of that below the spec.
        histories: spec | prompt | the first output tokens, with what happens to the next one
            before and after each, written down by hand.
    """

    beyond: ClassVar[Tables]
    histories: ClassVar[Tables]

    def test_beyond(self, spec: s.LogitsProcessorSpec, path: str):
        spec.check_vocabulary(10)
        for checked, parent in ((spec, "$"), (s.decode(s.encode(spec)), "$.specs[0]")):
            with pytest.raises(s.SpecError) as error:
                checked.check_vocabulary(9)
            assert error.value.path == f"{parent}.{path}"
            assert error.value.message == "Token id 9 is beyond the vocabulary of 9 tokens"

    def test_histories(self, spec: s.LogitsProcessorSpec, prompt: list[int], steps: list[Any]):
        """The reference and the compiled automata do what is written."""
        output: list[int] = []
        for expected, token in zip(steps[::2], [*steps[1::2], 0], strict=True):
            assert edit(spec, prompt, output) == expected, output
            if type(spec) in AUTOMATA:
                assert_edits(automata(spec), [spec], prompt, output)
            output.append(token)


with_table = pytest.mark.skipif(not find_spec("fontTools"), reason="fonttools is missing")

SHAPE = "Expected `str` matching regex '^[A-Za-z _-]+$'"


class ScriptsTests(KindTests):
    refused = (
        ({"scripts": []}, SOME, "scripts"),
        ({"scripts": "Han"}, "Expected `array`, got `str`", "scripts"),
        ({"scripts": ["Han", ""]}, SHAPE, "scripts[1]"),
        ({"scripts": ["Han", "H\u00e4n"]}, SHAPE, "scripts[1]"),
        ({"scripts": [1]}, "Expected `str`, got `int`", "scripts[0]"),
        ({"scripts": ["a" * 129]}, "Expected `str` of length <= 128", "scripts[0]"),
        ({"scripts": ["Han"] * 33}, f"Expected at most {s.limits.MAX_SCRIPTS} entries", "scripts"),
    )
