"""The default pair, as most benchmarks open it."""

from __future__ import annotations

from typing import Any

from sequoia_cli.measure.session import Session, open_session


def open_default_pair(**settings: Any) -> Session:
    """With compiled layers on the CPU; `settings` are those of `open_session` that differ."""
    usual = {"device": "cpu", "dtype": "auto", "trust_remote_code": False, "forward": "compiled"}
    return open_session("smollm2", ["smollm2-draft"], **usual | settings)
