"""Published vectors and trees, where the folder that holds them lies next to the checkout."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"


def published(name):
    """The parsed file; the test is skipped, visibly, where it is not there."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"the published data {name} is not next to this checkout")
    return json.loads(path.read_text())
