"""Published vectors, trees and digests: the figures in `tests/data`, whose README names their sources."""

import json
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data"


def published(name):
    """The parsed file."""
    return json.loads((FOLDER / name).read_text())
