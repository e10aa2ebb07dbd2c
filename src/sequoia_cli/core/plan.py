"""TreePlan: a compiled tree with what it was compiled from and what it promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sequoia_cli.core.artifact import RECORD_KEYS, Document, Fields, is_count, is_number
from sequoia_cli.core.calibration import Calibration
from sequoia_cli.core.costs import StepCosts
from sequoia_cli.core.parsing import shown
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.errors import BadInput

SCHEMA = "sequoia-tree/1"

_KEYS = (
    *("schema", "verdict", "size", "depth", "predicted", "inputs", "runners_up", "costs", "adaptive"),
    "parents",
    *RECORD_KEYS,
)


@dataclass(frozen=True)
class Prediction:
    """What a step with the tree should bring on the profiled machine.

    `tokens_per_step` counts the bonus token. `speedup` is over plain decoding of the same engine.
    Seconds and speedup are None in a plan whose cost is unknown. The intervals are of 95%, from the counts of
    the acceptance rates alone. They are lower by `optimism`, the share by which the prediction for a chosen
    best is too high on average. All three are None where the rates had no counts.
    """

    tokens_per_step: float
    seconds_per_step: float | None = None
    speedup: float | None = None
    tokens_per_step_interval: tuple[float, float] | None = None
    speedup_interval: tuple[float, float] | None = None
    optimism: float | None = None

    def confidence(self) -> dict[str, Any]:
        """The keys of a file that tell how far the prediction can be trusted; none where that is unknown."""
        found = {
            "tokens_per_step_interval": self.tokens_per_step_interval,
            "speedup_interval": self.speedup_interval,
            "optimism": self.optimism,
        }
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in found.items()
            if value is not None
        }


@dataclass(frozen=True)
class Adaptive:
    """What trees are chosen by in each step, besides what they cost.

    `tokens_per_second` hold until a text has shown its own.
    """

    calibration: Calibration
    tokens_per_second: float

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Adaptive:
        """Read what `to_entry` gave. Raises `TypeError`, `KeyError` or `ValueError` for anything else."""
        rate = entry["tokens_per_second"]
        if not is_number(rate) or rate <= 0:
            raise ValueError("tokens_per_second")
        return cls(Calibration.from_entry(entry["calibration"]), float(rate))

    def to_entry(self) -> dict[str, Any]:
        """As it stands in a plan."""
        return {
            "tokens_per_second": self.tokens_per_second,
            "calibration": self.calibration.to_entry(),
        }


@dataclass(frozen=True)
class TreePlan:
    """A tree, its prediction, and the digests and conditions of the inputs it was compiled from.

    `runners_up` are other shapes with their predictions, best first. `costs` are the seconds that the tree
    was chosen by, for an engine that chooses a part of it at each step; None where they are unknown.
    With `adaptive`, and `costs`, each step has the part of the tree that pays there.
    """

    tree: TokenTree
    predicted: Prediction | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    runners_up: tuple[Mapping[str, Any], ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    costs: StepCosts | None = None
    adaptive: Adaptive | None = None

    @property
    def verdict(self) -> str:
        """`tree`, `chain`, or `no speculation` where plain decoding is the fastest."""
        if self.tree.size == 1:
            return "no speculation"
        return "chain" if self.tree.is_chain else "tree"

    @classmethod
    def from_document(cls, document: Document) -> TreePlan:
        """Check and read a tree file. Raises `BadInput` naming the first wrong node or key."""
        fields = Fields(document.source, document.data, _KEYS, "tree file", SCHEMA)
        parents = fields.require("parents")
        if not isinstance(parents, list):
            raise fields.wrong("parents", "a list of parent numbers, the root first with -1")
        try:
            tree = TokenTree(tuple(parents))
        except BadInput as error:
            raise BadInput(f"{document.source}: {error.message}", error.hint) from None
        for key, actual in (("size", tree.size), ("depth", tree.depth)):
            if fields.data.get(key, actual) != actual:
                raise fields.wrong(key, f"{actual}, as 'parents' has it")
        return cls(
            tree,
            _prediction(fields),
            fields.mapping("inputs"),
            _runners_up(fields),
            {k: fields.data[k] for k in RECORD_KEYS if k in fields.data},
            _costs(fields),
            _adaptive(fields),
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as it stands in a file; inverse of `from_document`."""
        data: dict[str, Any] = {"schema": SCHEMA, **self.record, "verdict": self.verdict}
        data |= {"size": self.tree.size, "depth": self.tree.depth}
        if self.predicted:
            data["predicted"] = {
                "tokens_per_step": self.predicted.tokens_per_step,
                "seconds_per_step": self.predicted.seconds_per_step,
                "speedup": self.predicted.speedup,
            } | self.predicted.confidence()
        data["inputs"] = dict(self.inputs)
        if self.runners_up:
            data["runners_up"] = [dict(entry) for entry in self.runners_up]
        if self.costs:
            data["costs"] = self.costs.to_dict()
        if self.adaptive:
            data["adaptive"] = self.adaptive.to_entry()
        data["parents"] = list(self.tree.parents)
        return data


def _runners_up(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    listed = fields.data.get("runners_up")
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(isinstance(entry, Mapping) for entry in listed):
        raise fields.wrong("runners_up", "a list of mappings")
    for number, entry in enumerate(listed, 1):
        size = entry.get("size")
        if not is_count(size) and ("size" in entry or entry.get("shape") == "chain"):
            where = f"{fields.source}: 'runners_up' entry {number}"
            raise BadInput(f"{where} has size {shown(size)}; expected a whole number of at least 1")
    return tuple(listed)


def _costs(fields: Fields) -> StepCosts | None:
    stated = fields.data.get("costs")
    if stated is None:
        return None
    keys = ("target", "draft", "overhead")
    return StepCosts.from_fields(Fields(f"{fields.source}, 'costs'", stated, keys, "cost curve"))


def _adaptive(fields: Fields) -> Adaptive | None:
    if "adaptive" not in fields.data:
        return None
    if "costs" not in fields.data:
        raise BadInput(f"{fields.source}: 'adaptive' needs 'costs' beside it")
    try:
        return Adaptive.from_entry(fields.mapping("adaptive"))
    except (TypeError, KeyError, ValueError, AttributeError):
        raise BadInput(
            f"{fields.source}: 'adaptive' is not what `sequoia compile --adaptive` writes",
            hint="compile the plan again with this version",
        ) from None


def _prediction(fields: Fields) -> Prediction | None:
    if "predicted" not in fields.data:
        return None
    stated = fields.mapping("predicted")
    values: dict[str, Any] = {}
    for key in ("tokens_per_step", "seconds_per_step", "speedup"):
        value = stated.get(key)
        if value is not None and not (is_number(value) and value > 0):
            raise BadInput(f"{fields.source}: 'predicted.{key}' is {shown(value)}; expected a number above 0")
        if value is not None:
            values[key] = value
    for key in ("tokens_per_step_interval", "speedup_interval"):
        ends = stated.get(key)
        if ends is None:
            continue
        if not (
            isinstance(ends, list) and len(ends) == 2 and all(map(is_number, ends)) and ends[0] <= ends[1]
        ):
            raise BadInput(
                f"{fields.source}: 'predicted.{key}' is {shown(ends)}; expected a lower and an upper end"
            )
        values[key] = (ends[0], ends[1])
    if (optimism := stated.get("optimism")) is not None:
        if not is_number(optimism):
            raise BadInput(f"{fields.source}: 'predicted.optimism' is {shown(optimism)}; expected a number")
        values["optimism"] = optimism
    if "tokens_per_step" not in values:
        raise BadInput(f"{fields.source}: 'predicted' has no 'tokens_per_step'")
    return Prediction(**values)
