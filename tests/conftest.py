"""Fixtures that several parts of the suite use."""

import pytest


@pytest.fixture(scope="session")
def smollm2_pair():
    """The default pair in float32. Fetched once into the user's cache; skipped where it cannot be."""
    # Imported here, so that the tests of parts that need no torch start without it.
    import torch

    from sequoia_cli.engine.loading.load import load_pair
    from sequoia_cli.errors import SequoiaError

    try:
        return load_pair(
            "smollm2", "smollm2-draft", dtype=torch.float32, device=torch.device("cpu"), announce=print
        )
    except SequoiaError as error:
        pytest.skip(f"the default target is not to be had here: {error.message}")
