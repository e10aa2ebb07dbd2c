"""Replays of what the Sequoia paper claims, on this compiler: its plots, values and tables beside ours.

Tables go to stderr; stdout gets one JSON document with all figures. `--write FOLDER` writes the tables as
results.md, and the plots.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from paper.parts import PARTS
from paper.tables import tables

SCHEMA = "sequoia-bench-paper/1"


def main() -> None:
    """Replay all parts and report them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="where results.md and the plots go")
    options = parser.parse_args()
    results = {name: replay() for name, replay in PARTS.items()}
    shown = list(tables(results))
    print("\n".join(shown), file=sys.stderr)
    print(json.dumps({"schema": SCHEMA, "results": results}))
    if options.write:
        _write(options.write, results, shown)


def _write(folder: Path, results: dict[str, dict[str, Any]], shown: list[str]) -> None:
    from paper.plots import draw

    text = "# What `make bench-paper` found\n\n[README.md](README.md) says how, and where it differs.\n\n"
    (folder / "results.md").write_text(text + "\n".join(shown).rstrip() + "\n")
    for place in (folder / "results.md", *draw(results, folder)):
        print(f"wrote {place}", file=sys.stderr)


if __name__ == "__main__":
    main()
