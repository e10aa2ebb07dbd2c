"""AcceptanceRates: how often the child of each rank, at each depth, is the one accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from sequoia_cli.core.artifact import RECORD_KEYS, Document, Fields, is_number
from sequoia_cli.core.calibration import EDGES, Calibration, add_cells
from sequoia_cli.core.counts import PromptCounts, Rows, by_prompt, pooled_rate, pools, short, totals
from sequoia_cli.errors import BadInput

SCHEMA = "sequoia-rates/1"

_KEYS = (
    "schema",
    "conditions",
    "trials",
    "accepted",
    "p",
    "standard_error",
    "bin_edges",
    "samples",
    *RECORD_KEYS,
)

#: What it means where a file's conditions do not have it, as those made before there was a choice.
UNSTATED = {"verifier": "sequoia"}


@dataclass(frozen=True)
class AcceptanceRates:
    """Marginal acceptance rates with the counts they come from.

    `p[d][k]` is the chance that, under an accepted node at distance d from the root, the child of rank k is
    the one accepted (Sequoia, arXiv 2402.12374, Definition 3.2, with a row per depth as in its Appendix F).
    It is not conditional on the siblings of lower rank, so a row sums to at most 1. The last row also holds
    for all deeper levels. The bonus token is no acceptance and is not counted.
    """

    p: Rows
    conditions: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[PromptCounts, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[PromptCounts],
        conditions: Mapping[str, Any],
        record: Mapping[str, Any] | None = None,
    ) -> AcceptanceRates:
        """Pool per-prompt counts into rates. Raises `BadInput` where there are no trials."""
        trials, accepted = totals(samples)
        if not trials or trials[0] <= 0:
            raise BadInput("no acceptance trials: every prompt ended before the first token could be drafted")
        rows = [
            _ratio([sum(column) for column in zip(*(accepted[d] for d in pooled), strict=True)], count)
            for pooled, count in pools(trials)
        ]
        return cls(tuple(rows), dict(conditions), tuple(samples), dict(record or {}))

    @property
    def trials(self) -> tuple[float, ...]:
        """Trials by depth, over all prompts."""
        return tuple(totals(self.samples)[0])

    @property
    def row_trials(self) -> tuple[float, ...]:
        """Trials of each measured row of `p`: of its depth, or of all that the last row pools."""
        return tuple(count for _, count in pools(self.trials))

    @property
    def accepted(self) -> Rows:
        """Acceptances by depth and rank, over all prompts."""
        return tuple(tuple(row) for row in totals(self.samples)[1])

    def standard_errors(self) -> tuple[float, ...]:
        """Standard error of each rank's rate under the root; empty for fewer than two prompts."""
        if len(by_prompt(self.samples)) < 2:
            return ()
        return tuple(pooled_rate(self.samples, rank)[1] for rank in range(len(self.samples[0].accepted[0])))

    def calibration(self) -> Calibration | None:
        """The rates by what the draft gave; None where that was not counted."""
        cells = add_cells(sample.cells for sample in self.samples)
        return Calibration.of(cells) if cells else None

    @classmethod
    def from_document(cls, document: Document) -> AcceptanceRates:
        """Check and read a rates file, or a plain list of p. Raises `BadInput` naming the wrong entry."""
        data, source = document.data, document.source
        if isinstance(data, list):
            return cls(_rows(data, source, "p", by_hand=True))
        fields = Fields(source, data, _KEYS, "rates file", SCHEMA, required=False)
        rows = _rows(fields.require("p"), source, "p", by_hand="trials" not in data)
        samples = _samples(fields)
        if any(sample.cells for sample in samples) and data.get("bin_edges") != list(EDGES):
            raise fields.wrong("bin_edges", f"{list(EDGES)}, as this version has them")
        _check_totals(fields, samples)
        _check_rates(fields, rows, samples)
        return cls(
            rows,
            fields.mapping("conditions"),
            samples,
            {k: data[k] for k in RECORD_KEYS if k in data},
        )

    def to_dict(self) -> dict[str, Any]:
        """The rates as they stand in a file; inverse of `from_document`."""
        data: dict[str, Any] = {"schema": SCHEMA, **self.record, "conditions": dict(self.conditions)}
        if self.samples:
            data["trials"] = [short(value) for value in self.trials]
            data["accepted"] = [[short(value) for value in row] for row in self.accepted]
        data["p"] = [[round(value, 6) for value in row] for row in self.p]
        if errors := self.standard_errors():
            data["standard_error"] = [round(value, 6) for value in errors]
        if any(sample.cells for sample in self.samples):
            data["bin_edges"] = list(EDGES)
        if self.samples:
            data["samples"] = [sample.to_entry() for sample in self.samples]
        return data


def _ratio(accepted: Sequence[float], trials: float) -> tuple[float, ...]:
    return tuple(count / trials for count in accepted)


def _rows(value: Any, source: str, key: str, *, by_hand: bool) -> Rows:
    """A vector or a list of vectors as checked rows; `by_hand` where no counts vouch for the layout."""
    if not isinstance(value, list) or not value:
        raise BadInput(f"{source}: '{key}' is {value!r}; expected a list of rates by child rank")
    nested = isinstance(value[0], list)
    rows = []
    for depth, row in enumerate(value if nested else [value]):
        where = f"{source}: '{key}' row {depth + 1}" if nested else f"{source}: '{key}'"
        if not isinstance(row, list) or not row:
            raise BadInput(f"{where} is {row!r}; expected a list of rates by child rank")
        for rank, rate in enumerate(row):
            if not is_number(rate) or not 0 <= rate <= 1:
                raise BadInput(f"{where}, rank {rank + 1}, is {rate!r}; expected a number from 0 to 1")
        total = sum(row)
        if total > 1 + 1e-4:
            raise BadInput(
                f"{where} sums to {total:.4f}; marginal rates sum to at most 1",
                hint="rates conditional on the siblings before have to be multiplied out first",
            )
        if by_hand and len(row) > 2 and row[0] == 0 and row[1] > 0:
            whole = abs(total - 1) < 1e-3
            raise BadInput(
                f"{where} begins with 0"
                + (" and sums to 1" if whole else "")
                + ": the layout of the published .pt vectors, with a leading pad"
                + (" and the all-rejected rate at the end" if whole else ""),
                hint=f"drop the first {'and the last ' if whole else ''}entry",
            )
        rows.append(tuple(float(rate) for rate in row))
    return tuple(rows)


def _samples(fields: Fields) -> tuple[PromptCounts, ...]:
    """Per-prompt counts, or the file's totals as one sample where it has only those."""
    data = fields.data
    listed, name = data.get("samples"), "'samples' entry {}"
    if listed is None:
        if "trials" not in data or "accepted" not in data:
            return ()
        # By hand, one depth may be written without the outer list.
        name = "'trials' and 'accepted'"
        trials, accepted = data["trials"], data["accepted"]
        flat = not isinstance(trials, list)
        listed = [
            {
                "prompt": 0,
                "trials": [trials] if flat else trials,
                "accepted": [accepted] if flat else accepted,
            }
        ]
    if not isinstance(listed, list):
        raise fields.wrong("samples", "a list of per-prompt counts")
    samples: list[PromptCounts] = []
    for index, entry in enumerate(listed):
        where = f"{fields.source}: {name.format(index + 1)}"
        try:
            sample = PromptCounts.from_entry(entry)
        except (TypeError, KeyError, ValueError, IndexError):
            raise BadInput(
                f"{where}: counts from 0 up are expected, trials by depth and accepted by depth and rank"
            ) from None
        shape = [len(row) for row in sample.accepted]
        if len(shape) != len(sample.trials) or len(set(shape)) != 1 or 0 in shape:
            raise BadInput(f"{where}: one row of accepted per depth of trials is expected, each of all ranks")
        if samples and shape != [len(row) for row in samples[0].accepted]:
            raise BadInput(f"{where} does not have the same depths and ranks as the others")
        if any(
            sum(row) > count * (1 + 1e-3) + 1e-3
            for row, count in zip(sample.accepted, sample.trials, strict=True)
        ):
            raise BadInput(f"{where} has more acceptances than trials")
        samples.append(sample)
    return tuple(samples)


def _check_rates(fields: Fields, rows: Rows, samples: Sequence[PromptCounts]) -> None:
    """Refuse rates that are not accepted / trials of the counts beside them.

    A row is that of its depth. The last one may also pool its depth and all deeper ones.
    """
    if not samples:
        return
    trials, accepted = totals(samples)
    if len(rows) > len(trials):
        raise BadInput(f"{fields.source}: 'p' has {len(rows)} rows; 'trials' has {len(trials)} depths")
    for depth, row in enumerate(rows):
        ends = {depth + 1} | ({len(trials)} if depth == len(rows) - 1 else set())
        found = [
            _first_difference(row, [sum(column) for column in zip(*accepted[depth:end], strict=True)], count)
            for end in sorted(ends)
            if (count := sum(trials[depth:end]))
        ]
        if found and all(found):
            raise BadInput(f"{fields.source}: 'p' row {depth + 1}, {found[0]}")


def _first_difference(row: Sequence[float], accepted: Sequence[float], trials: float) -> str:
    """The first rate that is not accepted / trials within rounding, in words; empty where all are."""
    for rank, (rate, count) in enumerate(zip_longest(row, accepted[: len(row)]), start=1):
        if count is None:
            return f"rank {rank}, has no counts: 'accepted' has {len(accepted)} ranks"
        if abs(rate - count / trials) > _rounding(rate):
            return f"rank {rank}, is {rate}; accepted / trials is {short(count)} / {short(trials)}"
    return ""


def _rounding(value: float) -> float:
    """Half of a number's last decimal as written, from the second on, and what counts are rounded by."""
    exponent = Decimal(repr(value)).as_tuple().exponent
    return 0.5 * 10.0 ** min(-2, int(exponent)) + 1e-5


def _check_totals(fields: Fields, samples: Sequence[PromptCounts]) -> None:
    """Refuse `trials` and `accepted` that are not the sums over `samples`, where a file has both."""
    if "samples" not in fields.data:
        return
    trials, accepted = totals(samples)
    for key, sums in (("trials", trials), ("accepted", accepted)):
        stated = fields.data.get(key, sums)
        flat = [value for each in (stated, sums) for value in _flattened(each)]
        half = len(flat) // 2
        if len(_flattened(stated)) != half or not all(
            is_number(one) and abs(one - other) <= 1e-3 * (1 + len(samples))
            for one, other in zip(flat[:half], flat[half:], strict=True)
        ):
            raise fields.wrong(key, "the sums over 'samples'")


def _flattened(value: Any) -> list[Any]:
    """The numbers of a list of lists, a list or a number."""
    return [inner for each in value for inner in _flattened(each)] if isinstance(value, list) else [value]
