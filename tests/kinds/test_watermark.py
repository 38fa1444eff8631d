import pytest
from logitport.adapters.core import compile_specs
from logitport.spec import SpecError, WatermarkSpec, limits

from tests.support.kinds import KindTests


class TestRows(KindTests):
    golden = WatermarkSpec("news-2026")
    refused = (
        ({"profile": ""}, "Expected `str` of length >= 1", "profile"),
        ({"profile": "a" * 129}, "Expected `str` of length <= 128", "profile"),
        ({"profile": None}, "Expected `str`, got `null`", "profile"),
    )
    largest = (WatermarkSpec("a" * limits.MAX_NAME),)


def test_a_text_has_one_mark():
    assert len(compile_specs([WatermarkSpec("a"), WatermarkSpec("a")]).marks) == 1
    with pytest.raises(SpecError, match="one mark") as error:
        compile_specs([WatermarkSpec("a"), WatermarkSpec("b")])
    assert error.value.path == "$.specs[1]"
