"""Which cases run in `make test`, and which in `make test-all` alone."""

from collections.abc import Iterable
from typing import Any

import pytest

#: A test that repeats what quicker ones guard.
exhaustive = pytest.mark.exhaustive


def few(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters for `parametrize`: `quick` ones run in `make test`, the others in `make test-all`."""
    values = list(values)
    assert all(value in values for value in quick), f"not among the parameters: {quick}"
    return [value if value in quick else pytest.param(value, marks=exhaustive) for value in values]
