"""What follows from a check: whether it failed, and whether it could have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sequoia_cli.check.laws import LawTest, holm
from sequoia_cli.check.run import Check
from sequoia_cli.check.tally import Tally
from sequoia_cli.check.texts import Checked

#: The chance that a right program fails the statistical part, all its tests together.
ALPHA = 1e-4


@dataclass(frozen=True)
class Judged:
    """A test with its p-value adjusted for the number of tests."""

    test: LawTest
    adjusted: float

    @property
    def passed(self) -> bool:
        """Whether the tool may have the law."""
        return self.adjusted > ALPHA


@dataclass(frozen=True)
class Control:
    """What became of a wrong program: its most significant test, as one of as many as the tool had."""

    name: str
    test: LawTest | None
    adjusted: float

    @property
    def caught(self) -> bool:
        """Whether the check would have failed it."""
        return self.adjusted <= ALPHA


@dataclass(frozen=True)
class Verdict:
    """On a check as far as it has come."""

    check: Check

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
    def tests(self) -> list[Judged]:
        """All tests of the tool, by Holm's procedure."""
        tests = list(self.check.tally.tests()) if self.sampled else []
        adjusted = holm([test.p_value for test in tests])
        return [Judged(*pair) for pair in zip(tests, adjusted, strict=True)]

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
        test = min(tally.tests(), key=lambda test: test.p_value, default=None)
        adjusted = min(1.0, max(1, len(self.tests)) * test.p_value) if test else 1.0
        return Control(name, test, adjusted)

    @cached_property
    def failures(self) -> list[str]:
        """What shows that the text is not the target's own."""
        found = [
            f"{way}: prompt {text.prompt} ({wrong})"
            for way, texts in self.texts.items()
            for text in texts
            if (wrong := _wrong(text))
        ]
        found += [
            f"prompt {one.prompt}: token {one.place} is not plain decoding's, and rounding is no excuse"
            for one in self.check.differences
            if not one.within_rounding
        ]
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
