"""What follows from a check: whether it failed, and how small a deviation it could have found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sequoia_cli.check.betting import BetTest, holm
from sequoia_cli.check.rounding import RoundingCost
from sequoia_cli.check.run import Check
from sequoia_cli.check.tally import FIRST, Tally
from sequoia_cli.check.texts import SLACK, Checked

#: The chance that a right program fails the statistical part, all its tests together.
ALPHA = 1e-4


@dataclass(frozen=True)
class Adjusted:
    """A test, its p-value adjusted for the number of tests, and the deviation that it could have found."""

    test: BetTest
    adjusted: float
    sees: float

    @property
    def passed(self) -> bool:
        """Whether the tool may have the right distribution."""
        return self.adjusted > ALPHA


@dataclass(frozen=True)
class Control:
    """How a wrong program fared: its most significant test, as one of as many as the tool had."""

    name: str
    test: BetTest | None
    adjusted: float

    @property
    def caught(self) -> bool:
        """Whether the check would have failed it."""
        return self.adjusted <= ALPHA


@dataclass(frozen=True)
class Findings:
    """Of a check as far as it has come, and what rounding does to a target that is rounded."""

    check: Check
    rounding: RoundingCost | None = None

    @property
    def sampled(self) -> bool:
        """Whether there is a sampling part."""
        return self.check.subject.sampling is not None

    @property
    def texts(self) -> dict[str, list[Checked]]:
        """All texts, by how they were written."""
        found = {"greedy, tree": self.check.ours, "greedy, plain": self.check.plain}
        return found | ({"sampled, tree": self.check.sampled} if self.sampled else {})

    @cached_property
    def tests(self) -> list[Adjusted]:
        """All tests of the tool, by Holm's procedure, those without counts included."""
        tests = list(self.check.tally.tests()) if self.sampled else []
        adjusted = holm([test.p_value for test in tests])
        level = ALPHA / max(1, len(tests))
        return [Adjusted(test, p, test.detectable(level)) for test, p in zip(tests, adjusted, strict=True)]

    @property
    def sees_by_test(self) -> dict[str, float]:
        """The smallest total variation that each kind of test could have found, at its best prompt."""
        found: dict[str, float] = {}
        for one in self.tests:
            found[one.test.name] = min(one.sees, found.get(one.test.name, 1.0))
        return found

    @property
    def sees(self) -> float:
        """The smallest total variation of the first token's distribution that could have been found.

        Only that test finds a deviation in any direction, and of what every step begins with.
        """
        return self.sees_by_test.get(FIRST, 1.0)

    @cached_property
    def controls(self) -> list[Control]:
        """The wrong programs, and whether they would have failed."""
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
        """What shows that the text is not the target's own."""
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


def _wrong(text: Checked) -> str:
    found = [
        f"{len(places)} {what}, the first at {places[0]}"
        for what, places in (("wrong tokens", text.wrong_tokens), ("wrong rows of logits", text.wrong_rows))
        if places
    ]
    return ", ".join([*found, *([text.end] if text.end else [])])
