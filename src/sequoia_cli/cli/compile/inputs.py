"""The input files of `sequoia compile`: which ones, whether they fit together, what a plan says of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sequoia_cli.compiler.cost import usable
from sequoia_cli.compiler.estimate import Estimate
from sequoia_cli.core.artifact import Document, read_document
from sequoia_cli.core.calibration import Calibration
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.paths import latest, shipped
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.cli.console import Commentary

#: What is taken where nothing was given and nothing was measured.
SHIPPED = {"profile": "a100.yaml", "acceptance": "published_demo_rates.yaml"}

Origin = Literal["given", "measured", "shipped"]


@dataclass(frozen=True)
class Inputs:
    """A profile and rates, what the rates' counts say of them, and the documents they were read from.

    `name` is the profile's, for the output file; `shipped` tells whether one is not this machine's but the
    project's; `warnings` tell where the two do not belong together, and what was assumed of them.
    """

    profile: HardwareProfile
    rates: AcceptanceRates
    estimate: Estimate
    documents: dict[str, Document]
    name: str
    shipped: bool
    warnings: list[str]

    def calibration(self) -> Calibration:
        """The rates by what the draft gave. Raises `BadInput` where they were not counted so."""
        found = self.rates.calibration()
        if found is None:
            raise BadInput(
                f"{self.documents['acceptance'].source} has no counts by probability ('cells'), which "
                "--adaptive needs",
                hint="`sequoia acceptance` counts them, with its default estimator",
            )
        return found

    def described(self) -> dict[str, Any]:
        """What a plan says of its inputs: digests and conditions."""
        return {
            "profile": {
                "digest": self.documents["profile"].digest,
                "origin": self.profile.origin,
                "device": self.profile.device,
                "conditions": dict(self.profile.conditions),
            },
            "acceptance": {
                "digest": self.documents["acceptance"].digest,
                "conditions": dict(self.rates.conditions),
            },
        }


def read_inputs(profile: str | None, acceptance: str | None, context: int | None, say: Commentary) -> Inputs:
    """Read and check both files, and say which defaults were taken. Raises `BadInput`.

    `context` chooses the times of a profile of several contexts; its shortest where it is None.
    """
    if profile == "-" and acceptance == "-":
        raise BadInput(
            "--profile - and --acceptance - cannot both read stdin", hint="give one of them a file"
        )
    given = {"profile": profile, "acceptance": acceptance}
    picked = {kind: _pick(kind, path) for kind, path in given.items()}
    documents = {kind: read_document(path) for kind, (path, _) in picked.items()}
    source = documents["profile"].source
    timed, assumed = usable(_at(HardwareProfile.from_document(documents["profile"]), context), source)
    rates = AcceptanceRates.from_document(documents["acceptance"])
    estimate = Estimate.of(rates)
    inputs = Inputs(
        timed,
        rates,
        estimate,
        documents,
        "stdin" if profile == "-" else Path(picked["profile"][0]).stem,
        any(origin == "shipped" for _, origin in picked.values()),
        [*assumed, *estimate.warnings, *_mismatches(timed, rates)],
    )
    for kind, (path, origin) in picked.items():
        _say_default(kind, path, origin, timed, say)
    origins = {origin: kind for kind, (_, origin) in picked.items()}
    if set(origins) == {"measured", "shipped"}:
        say.warn(
            f"the {origins['shipped']} is the shipped one, the {origins['measured']} is this machine's own: "
            f"they are not of the same models; run `sequoia {origins['shipped']}`"
        )
    for warning in inputs.warnings:
        say.warn(warning)
    return inputs


def _at(profile: HardwareProfile, context: int | None) -> HardwareProfile:
    """The profile at `--context`, or at its shortest."""
    if context is None:
        return replace(profile, contexts=())
    try:
        return profile.at(context)
    except BadInput as error:
        raise BadInput(
            f"--context is {context}; {error.message}",
            hint=f"`sequoia profile --context {profile.context or 128},{context}` measures both",
        ) from None


def _pick(kind: str, given: str | None) -> tuple[str, Origin]:
    if given is not None:
        return given, "given"
    if (measured := latest(kind)) is not None:
        return str(measured), "measured"
    return str(shipped("profiles", SHIPPED[kind])), "shipped"


def _say_default(kind: str, path: str, origin: Origin, profile: HardwareProfile, say: Commentary) -> None:
    if origin == "measured":
        say.note(f"{kind}: {path}, this machine's latest")
    elif origin == "shipped":
        what = (
            f"{profile.origin} times of another machine, {profile.device}"
            if kind == "profile"
            else "published rates of a model pair that is not named"
        )
        say.note(f"{kind}: the shipped {Path(path).name}, {what}; `sequoia {kind}` measures your own")


def _mismatches(profile: HardwareProfile, rates: AcceptanceRates) -> list[str]:
    """Warnings where both files state a condition and state it differently."""
    both = [
        (key, profile.conditions[key], rates.conditions[key])
        for key in ("target", "draft", "dtype", "quantize", "quantize_draft", "temperature")
        if profile.conditions.get(key) is not None and rates.conditions.get(key) is not None
    ]
    # Times depend on whether a temperature is 0, when nothing is sampled, and not on which it is.
    return [
        f"the profile is of {key} {timed}, the acceptance rates are of {key} {counted}"
        for key, timed, counted in both
        if timed != counted and not (key == "temperature" and timed and counted)
    ]
