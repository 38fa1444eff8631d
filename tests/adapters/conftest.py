"""What the tests of all adapters share."""

import pytest

pytest.register_assert_rewrite(
    "tests.adapters.routes", "tests.adapters.suite", "tests.adapters.vllm.mixed_batch"
)
