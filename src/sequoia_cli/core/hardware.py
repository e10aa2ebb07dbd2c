"""HardwareProfile: how long a machine takes for each part of a decoding step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sequoia_cli.core.artifact import RECORD_KEYS, Document, Fields

SCHEMA = "sequoia-profile/1"

#: Pairs (tokens or width, seconds), rising in the first.
Timings = tuple[tuple[int, float], ...]

_KEYS = (
    *("schema", "origin", "device", "conditions"),
    *("target_seconds", "draft_seconds", "verify_seconds", "samples"),
    *RECORD_KEYS,
)


@dataclass(frozen=True)
class HardwareProfile:
    """Seconds of the parts of one decoding step, by size.

    `target_seconds`: one target forward over so many tokens. `draft_seconds`: growing one level of the tree
    from so many nodes (the draft's forward, its probabilities, drawing the children). `verify_seconds`:
    verifying and committing a tree of so many nodes and whatever else a step does; size 1 is plain decoding.
    A single pair means a constant. `conditions` says what the times are true of (models, dtype, context).
    `origin` is `measured`, `modelled` (computed from figures of the hardware) or `stated` (written by hand).
    """

    target_seconds: Timings
    draft_seconds: Timings
    verify_seconds: Timings = ()
    origin: str = "stated"
    device: str = "unknown"
    conditions: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)

    def target(self, tokens: int) -> float | None:
        """Seconds of a target forward over `tokens` tokens; None beyond what the profile covers."""
        return interpolate(self.target_seconds, tokens)

    def draft(self, width: int) -> float | None:
        """Seconds to grow a level from `width` nodes; None beyond what the profile covers."""
        return interpolate(self.draft_seconds, width)

    def verify(self, size: int) -> float | None:
        """Seconds of the rest of a step with a tree of `size` nodes; 0 where the profile has none."""
        return interpolate(self.verify_seconds, size) if self.verify_seconds else 0.0

    @classmethod
    def from_document(cls, document: Document) -> HardwareProfile:
        """Check and read a profile file. Raises `BadInput` naming file, key, value and what is allowed."""
        fields = Fields(document.source, document.data, _KEYS, "hardware profile", SCHEMA, required=False)
        origin = fields.text("origin", "stated")
        if origin not in ("measured", "modelled", "stated"):
            raise fields.wrong("origin", "'measured', 'modelled' or 'stated'")
        return cls(
            target_seconds=fields.pairs("target_seconds"),
            draft_seconds=fields.pairs("draft_seconds"),
            verify_seconds=fields.pairs("verify_seconds") if "verify_seconds" in fields.data else (),
            origin=origin,
            device=fields.text("device", "unknown"),
            conditions=fields.mapping("conditions"),
            samples=fields.mapping("samples"),
            record={k: fields.data[k] for k in RECORD_KEYS if k in fields.data},
        )

    def to_dict(self) -> dict[str, Any]:
        """The profile as it stands in a file; inverse of `from_document`."""
        data: dict[str, Any] = {"schema": SCHEMA, "origin": self.origin, "device": self.device}
        data |= self.record
        data["conditions"] = dict(self.conditions)
        data["target_seconds"] = [list(pair) for pair in self.target_seconds]
        data["draft_seconds"] = [list(pair) for pair in self.draft_seconds]
        if self.verify_seconds:
            data["verify_seconds"] = [list(pair) for pair in self.verify_seconds]
        if self.samples:
            data["samples"] = dict(self.samples)
        return data


def interpolate(timings: Timings, count: int) -> float | None:
    """Seconds at `count`, linear between the measured counts; None outside them.

    Nothing is extrapolated, since the knee of a cost curve lies just where one would.
    A single pair is a constant: the form in which the papers state a draft's cost.
    """
    if len(timings) == 1:
        return timings[0][1]
    index = bisect_left(timings, (count,))
    if index == len(timings):
        return None
    above = timings[index]
    if above[0] == count:
        return above[1]
    if index == 0:
        return None
    below = timings[index - 1]
    share = (count - below[0]) / (above[0] - below[0])
    return below[1] + share * (above[1] - below[1])
