"""The result of a check: whether it failed, and the smallest deviation that it could have detected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sequoia_cli.check.betting import BetTest, holm
from sequoia_cli.check.rounding import RoundingCost
from sequoia_cli.check.run import Check
from sequoia_cli.check.tally import FIRST, Tally
from sequoia_cli.check.texts import SLACK, CheckedText

#: The probability that a correct program fails any of the statistical tests.
ALPHA = 1e-4


@dataclass(frozen=True)
class AdjustedTest:
    """A test, its p-value adjusted for the number of tests, and the smallest deviation it could detect."""

    test: BetTest
    adjusted: float
    detectable: float

    @property
    def passed(self) -> bool:
        """Whether the test does not reject the reference distribution."""
        return self.adjusted > ALPHA


@dataclass(frozen=True)
class Control:
    """The result of a negative control: its most significant test, adjusted as the tool's tests are."""

    name: str
    test: BetTest | None
    adjusted: float

    @property
    def caught(self) -> bool:
        """Whether the check detected the control."""
        return self.adjusted <= ALPHA


@dataclass(frozen=True)
class Findings:
    """The findings of a check, finished or interrupted, and the effect of rounding on a rounded target."""

    check: Check
    rounding: RoundingCost | None = None

    @property
    def sampled(self) -> bool:
        """Whether the check has a sampling part."""
        return self.check.subject.sampling is not None

    @property
    def texts(self) -> dict[str, list[CheckedText]]:
        """All texts, by how they were generated."""
        found = {"greedy, tree": self.check.ours, "greedy, plain": self.check.plain}
        return found | ({"sampled, tree": self.check.sampled} if self.sampled else {})

    @cached_property
    def tests(self) -> list[AdjustedTest]:
        """All tests of the tool with adjusted p-values, those without counts included."""
        tests = list(self.check.tally.tests()) if self.sampled else []
        adjusted = holm([test.p_value for test in tests])
        level = ALPHA / max(1, len(tests))
        return [
            AdjustedTest(test, p, test.detectable(level)) for test, p in zip(tests, adjusted, strict=True)
        ]

    @property
    def detectable_by_test(self) -> dict[str, float]:
        """The smallest total variation that each kind of test could detect, at its best prompt."""
        found: dict[str, float] = {}
        for one in self.tests:
            found[one.test.name] = min(one.detectable, found.get(one.test.name, 1.0))
        return found

    @property
    def detectable(self) -> float:
        """The smallest total variation of the first token's distribution that could be detected.

        Only that test detects deviations in every direction, of what every step starts with.
        """
        return self.detectable_by_test.get(FIRST, 1.0)

    @cached_property
    def controls(self) -> list[Control]:
        """The negative controls, and whether they were detected."""
        if not self.sampled:
            return []
        found = self.check.controls
        return [
            self._control("a verifier that forgets the residual", found.residual),
            self._control("random numbers used again in the next step", found.reuse),
        ]

    def _control(self, name: str, tally: Tally) -> Control:
        test = min((one for one in tally.tests() if one.count), key=lambda one: one.p_value, default=None)
        adjusted = min(1.0, max(1, len(self.tests)) * test.p_value) if test else 1.0
        return Control(name, test, adjusted)

    @cached_property
    def failures(self) -> list[str]:
        """The findings that show that the text is not distributed as the target's."""
        found = list(self.check.wrong_conventions)
        found += [
            f"{way}: prompt {text.prompt} ({wrong})"
            for way, texts in self.texts.items()
            for text in texts
            if (wrong := _wrong(text))
        ]
        found += [
            f"prompt {one.prompt}: token {one.place} differs from plain decoding, beyond rounding"
            for one in self.check.differences
            if not one.within_rounding
        ]
        if rows := sum(not row.error <= SLACK * row.rounding for row in self.check.sampled_rows):
            found.append(f"{rows} wrong rows of logits in sampled texts")
        if self.sampled and self.check.tally.impossible:
            found.append(f"{self.check.tally.impossible} tokens that the target gives no probability")
        for one in self.tests:
            if not one.passed:
                where = f", prompt {one.test.prompt}" if one.test.prompt else ""
                found.append(f"{one.test.name}{where}: p = {one.adjusted:.1g}")
        return found


def _wrong(text: CheckedText) -> str:
    found = [
        f"{len(places)} {what}, the first at {places[0]}"
        for what, places in (("wrong tokens", text.wrong_tokens), ("wrong rows of logits", text.wrong_rows))
        if places
    ]
    return ", ".join([*found, *([text.end] if text.end else [])])
