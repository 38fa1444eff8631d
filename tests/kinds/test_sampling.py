from logitport.spec import SamplingSpec, limits

from tests.support.kinds import AT_LEAST_0, TOO_LARGE, KindTests

ONE_OF = (
    "Expected at least one of temperature, top_p, top_k, min_p, presence_penalty, "
    "frequency_penalty, repetition_penalty"
)
NEGATIVE, ZERO = "Expected `float` >= 0.0", "Expected `float` > 0.0"
ABOVE_1, ABOVE_2 = "Expected `float` <= 1.0", "Expected `float` <= 2.0"


class TestRows(KindTests):
    golden = SamplingSpec(temperature=0.5, top_k=40)
    refused = (
        ({}, ONE_OF, ""),
        ({"temperature": -0.1}, NEGATIVE, "temperature"),
        ({"temperature": 2.1}, ABOVE_2, "temperature"),
        ({"top_p": 0}, ZERO, "top_p"),
        ({"top_p": 1.1}, ABOVE_1, "top_p"),
        ({"top_k": -1}, AT_LEAST_0, "top_k"),
        ({"top_k": 2.5}, "Expected `int | null`, got `float`", "top_k"),
        ({"top_k": 2**31}, TOO_LARGE, "top_k"),
        ({"min_p": -0.1}, NEGATIVE, "min_p"),
        ({"min_p": 1.1}, ABOVE_1, "min_p"),
        ({"presence_penalty": -2.1}, "Expected `float` >= -2.0", "presence_penalty"),
        ({"frequency_penalty": 2.1}, ABOVE_2, "frequency_penalty"),
        ({"repetition_penalty": 0}, ZERO, "repetition_penalty"),
        ({"repetition_penalty": 2.1}, ABOVE_2, "repetition_penalty"),
    )
    largest = (
        SamplingSpec(
            temperature=2,
            top_p=1,
            top_k=limits.MAX_INT,
            min_p=1,
            presence_penalty=2,
            frequency_penalty=2,
            repetition_penalty=2,
        ),
        SamplingSpec(
            temperature=0, top_k=0, min_p=0, presence_penalty=-2, frequency_penalty=-2, top_p=5e-324
        ),
    )
