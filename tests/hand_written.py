"""Hand-written profiles and rates for the tests of the cost model."""

from sequoia_cli.core.hardware import HardwareProfile

RATES = [[0.6, 0.15, 0.08, 0.04, 0.02]]


def linear(start, slope, counts):
    """Pairs of a straight line of seconds over counts."""
    return tuple((count, start + slope * count) for count in counts)


def step_seconds(tree, profile):
    """Seconds of a step with `tree`; infinite beyond what the profile covers."""
    return profile.costs.seconds(tree.size, [len(level) for level in tree.expanded])


def profile(target_slope=0.0, draft=0.02, draft_slope=0.0, sizes=(1, 2, 4, 8, 16, 32, 64), **parts):
    """A target of 1 second plus so much per token, a draft of so much per level and per node."""
    return HardwareProfile(
        target_seconds=linear(1.0, target_slope, sizes),
        draft_seconds=linear(draft, draft_slope, sizes),
        **parts,
    )
