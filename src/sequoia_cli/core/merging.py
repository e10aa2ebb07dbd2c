"""Adding up acceptance rates of several runs, so that each text of a prompt counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sequoia_cli.core.counts import PromptCounts
from sequoia_cli.core.parsing import shown
from sequoia_cli.core.rates import UNSTATED, AcceptanceRates
from sequoia_cli.errors import BadInput

#: Conditions in which merged runs may differ: what was counted, and on which machine, but not what is true
#: of the counts.
_MAY_DIFFER = {"dataset", "seed", "device", "threads", "forward"}
#: Conditions that older files do not state; they are compared where both do.
_MAY_BE_UNSTATED = {"target_weights", "draft_weights"}
#: Further ones that change nothing for a greedy target.
_GREEDY_MAY_DIFFER = {"verifier", "top_k", "top_p", "draft_temperature"}


def merged(first: AcceptanceRates, second: AcceptanceRates) -> AcceptanceRates:
    """Both runs' samples together. What both have counts once, with the machines of both in `conditions`.

    Raises `BadInput` where they are not of the same thing, or where the same text of a prompt has other
    counts in each.
    """
    for name, rates in (("the first", first), ("the second", second)):
        if not rates.samples:
            raise BadInput(f"{name} rates file has no counts, only p; counts are needed to merge")
    may_differ = _conditions_that_may_differ(first, second)
    _check_conditions(first, second, may_differ)
    added = {key: second.conditions[key] for key in _MAY_BE_UNSTATED & {*second.conditions}}
    conditions = {**added, **first.conditions}
    for key in sorted(may_differ & {*first.conditions, *second.conditions}):
        values = _listed([first.conditions.get(key), second.conditions.get(key)])
        conditions[key] = values if len(values) > 1 else values[0]
    samples = [*first.samples, *_not_counted_yet(first, second)]
    numbered = [replace(sample, prompt=number) for number, sample in enumerate(samples)]
    return AcceptanceRates.from_samples(numbered, conditions)


def _conditions_that_may_differ(first: AcceptanceRates, second: AcceptanceRates) -> set[str]:
    greedy = all(rates.conditions.get("temperature") == 0 for rates in (first, second))
    return _MAY_DIFFER | (_GREEDY_MAY_DIFFER if greedy else set())


def _check_conditions(first: AcceptanceRates, second: AcceptanceRates, may_differ: set[str]) -> None:
    for key in sorted({*first.conditions, *second.conditions} - may_differ):
        mine, theirs = (each.conditions.get(key, UNSTATED.get(key)) for each in (first, second))
        unstated = key in _MAY_BE_UNSTATED and None in (mine, theirs)
        if mine != theirs and not unstated:
            raise BadInput(
                f"rates of different conditions do not add up: '{key}' is {shown(mine)} and {shown(theirs)}"
            )
    shapes = [(len(each.samples[0].accepted), len(each.samples[0].accepted[0])) for each in (first, second)]
    if shapes[0] != shapes[1]:
        found = " and ".join(f"{depths} x {ranks}" for depths, ranks in shapes)
        raise BadInput(
            f"rates of different depths or ranks do not add up: {found}; measure both with the same"
        )


def _listed(values: Iterable[Any]) -> list[Any]:
    """All values, those of lists one by one, each once."""
    found: list[Any] = []
    for value in values:
        found += [each for each in (value if isinstance(value, list) else [value]) if each not in found]
    return found


def _not_counted_yet(first: AcceptanceRates, second: AcceptanceRates) -> list[PromptCounts]:
    """The samples of `second` that `first` does not have. Raises `BadInput` where their counts differ."""
    named = {identity: sample for sample in first.samples for identity in _identities(sample, first)}
    unnamed = Counter(_counts(sample) for sample in first.samples if not _identities(sample, first))
    new, other = [], []
    for sample in second.samples:
        identities = _identities(sample, second)
        same = next((named[identity] for identity in identities if identity in named), None)
        if same is not None:
            other += [sample] if _counts(sample) != _counts(same) else []
        elif not identities and unnamed[_counts(sample)]:
            unnamed[_counts(sample)] -= 1  # nothing but its counts says what it is of
        else:
            new.append(sample)
    if other:
        names = ", ".join(sample.id or str(sample.prompt + 1) for sample in other[:5])
        more = f" and {len(other) - 5} more" if len(other) > 5 else ""
        raise BadInput(
            f"{len(other)} prompts are counted in both, with different counts: {names}{more}",
            hint="measure different prompts, or, at a temperature above 0, with different seeds",
        )
    return new


def _counts(sample: PromptCounts) -> tuple[Any, ...]:
    return sample.trials, sample.accepted


def _identities(sample: PromptCounts, rates: AcceptanceRates) -> set[tuple[Any, ...]]:
    """What a sample can be recognised by: its prompt's digest, or its place in a data set, with its seed."""
    found: set[tuple[Any, ...]] = {(sample.digest, sample.seed)} if sample.digest else set()
    dataset, seed = rates.conditions.get("dataset"), rates.conditions.get("seed")
    if isinstance(dataset, Mapping) and dataset.get("digest") and not isinstance(seed, list):
        greedy = rates.conditions.get("temperature") == 0
        found.add((dataset["digest"], sample.prompt, None if greedy else seed))
    return found
