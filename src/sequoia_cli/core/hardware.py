"""HardwareProfile: how long a machine takes for each part of a decoding step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sequoia_cli.core.artifact import RECORD_KEYS, Document, Fields, is_count, is_number
from sequoia_cli.core.costs import CostModel, Curve, Points, Stage, StepCosts, combined
from sequoia_cli.errors import BadInput

SCHEMA = "sequoia-profile/2"

#: Has one context, and all that is beside the models' forwards in `verify_seconds`. Still read.
FIRST_SCHEMA = "sequoia-profile/1"

#: The curve of a part that a profile does not have.
_NOTHING: Points = ((1, 0.0),)

_TIMES = ("target_seconds", "draft_seconds", "verify_seconds", "overhead_seconds", "samples")
_KEYS = ("schema", "origin", "device", "conditions", *_TIMES, "contexts", *RECORD_KEYS)


@dataclass(frozen=True)
class Times:
    """Seconds of the parts of one decoding step, by size, at one length of context.

    `target_seconds`: one target forward over so many tokens. `draft_seconds`: growing one level of the tree
    from so many nodes (the draft's forward, its probabilities, drawing the children). `verify_seconds`:
    verifying and committing a tree of so many nodes; size 1 is plain decoding. A single pair means a
    constant. `overhead_seconds`: whatever else every step takes. `samples` has the raw seconds of each part.
    """

    target_seconds: Points
    draft_seconds: Points
    verify_seconds: Points = ()
    overhead_seconds: float = field(default=0.0, kw_only=True)
    samples: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def curves(self) -> dict[str, Curve]:
        """The curve of each part by name; a part that the profile does not have costs nothing."""
        return {
            "target": Curve(self.target_seconds),
            "draft": Curve(self.draft_seconds),
            "verify": Curve(self.verify_seconds or _NOTHING),
            "overhead": Curve(((1, self.overhead_seconds),)),
        }

    def to_dict(self) -> dict[str, Any]:
        """The times as they stand in a file."""
        data: dict[str, Any] = {
            key: [list(pair) for pair in getattr(self, key)]
            for key in ("target_seconds", "draft_seconds", "verify_seconds")
        }
        data |= {"overhead_seconds": self.overhead_seconds, "samples": dict(self.samples)}
        return {key: value for key, value in data.items() if value}


@dataclass(frozen=True)
class HardwareProfile(Times):
    """The times of a machine at the context that `conditions` states, and at longer ones.

    `conditions` says what the times are true of (models, dtype, context). `contexts` has pairs (tokens,
    times), rising from that context on. `origin` is `measured`, `modelled` (computed from figures of the
    hardware) or `stated` (written by hand).
    """

    origin: str = "stated"
    device: str = "unknown"
    conditions: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    contexts: tuple[tuple[int, Times], ...] = ()

    @property
    def context(self) -> int | None:
        """The length of context that the times are of; None where it is not stated."""
        stated = self.conditions.get("context")
        return stated if is_count(stated) else None

    @cached_property
    def model(self) -> CostModel:
        """The cost model at the context of `conditions`."""
        curves = self.curves
        stages = [Stage({"target": curves["target"]}), Stage({"draft": curves["draft"]}, "level")]
        stages.append(Stage({"verify": curves["verify"]}))
        if self.overhead_seconds:
            stages.append(Stage({"overhead": curves["overhead"]}, "step"))
        return CostModel(tuple(stages), self.context)

    @cached_property
    def costs(self) -> StepCosts:
        """Seconds of a step at the context of `conditions`."""
        return self.model.costs()

    def at(self, context: int) -> HardwareProfile:
        """The profile at one context alone. Raises `BadInput` for one outside those that it has.

        Times are linear in the context between those that the profile has, and cover the sizes that all of
        them up to it cover. A longer context is taken to cost at least as much as a shorter one, so that the
        times never fall as the context grows.
        """
        own = self.context
        if context == own:
            return replace(self, contexts=())
        if own is None:
            raise BadInput("the profile does not say in 'conditions.context' which context its times are of")
        last = self.contexts[-1][0] if self.contexts else own
        if not own < context <= last:
            covered = f"{own} to {last}" if self.contexts else own
            raise BadInput(f"the profile's times are of a context of {covered} tokens, not of {context}")
        low, shorter = own, self.curves
        for high, times in self.contexts:
            longer = {name: combined([shorter[name], curve], max) for name, curve in times.curves.items()}
            if context <= high:
                break
            low, shorter = high, longer
        share = (context - low) / (high - low)
        found = {
            name: combined(
                [shorter[name], longer[name]], lambda ends: (1 - share) * ends[0] + share * ends[1]
            )
            for name in longer
        }
        verify = found["verify"].points
        return replace(
            self,
            target_seconds=found["target"].points,
            draft_seconds=found["draft"].points,
            verify_seconds=verify if verify != _NOTHING else (),
            overhead_seconds=found["overhead"].seconds(1),
            samples={},
            conditions={**self.conditions, "context": context},
            contexts=(),
        )

    @classmethod
    def from_document(cls, document: Document) -> HardwareProfile:
        """Check and read a profile file. Raises `BadInput` naming file, key, value and what is allowed."""
        fields = Fields(
            document.source,
            document.data,
            _KEYS,
            "hardware profile",
            SCHEMA,
            older=(FIRST_SCHEMA,),
            required=False,
        )
        origin = fields.text("origin", "stated")
        if origin not in ("measured", "modelled", "stated"):
            raise fields.wrong("origin", "'measured', 'modelled' or 'stated'")
        conditions = fields.mapping("conditions")
        return cls(
            **_times(fields),
            origin=origin,
            device=fields.text("device", "unknown"),
            conditions=conditions,
            record={k: fields.data[k] for k in RECORD_KEYS if k in fields.data},
            contexts=_contexts(fields, conditions.get("context")),
        )

    def to_dict(self) -> dict[str, Any]:
        """The profile as it stands in a file; inverse of `from_document`."""
        data: dict[str, Any] = {"schema": SCHEMA, "origin": self.origin, "device": self.device}
        data |= self.record
        data |= {"conditions": dict(self.conditions), **super().to_dict()}
        if self.contexts:
            data["contexts"] = [{"context": context, **times.to_dict()} for context, times in self.contexts]
        return data


def _times(fields: Fields) -> dict[str, Any]:
    """The fields of `Times`."""
    overhead = fields.data.get("overhead_seconds", 0.0)
    if not is_number(overhead) or overhead < 0:
        raise fields.wrong("overhead_seconds", "a number of at least 0")
    return {
        "target_seconds": fields.pairs("target_seconds"),
        "draft_seconds": fields.pairs("draft_seconds"),
        "verify_seconds": fields.pairs("verify_seconds") if "verify_seconds" in fields.data else (),
        "overhead_seconds": float(overhead),
        "samples": fields.mapping("samples"),
    }


def _contexts(fields: Fields, shortest: Any) -> tuple[tuple[int, Times], ...]:
    listed = fields.data.get("contexts")
    if listed is None:
        return ()
    if not isinstance(listed, list) or not is_count(shortest):
        raise fields.wrong("contexts", "a list of times, each of a context longer than 'conditions.context'")
    found: list[tuple[int, Times]] = []
    for number, entry in enumerate(listed, 1):
        source = f"{fields.source}, 'contexts' entry {number}"
        inner = Fields(source, entry, ("context", *_TIMES), "part of a hardware profile")
        context, before = inner.require("context"), found[-1][0] if found else shortest
        if not is_count(context) or context <= before:
            raise inner.wrong("context", f"a whole number above {before}, the context before")
        found.append((context, Times(**_times(inner))))
    return tuple(found)
