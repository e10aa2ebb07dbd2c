"""Random profiles whose times never fall, and random rates, to test the search for the fastest tree on."""

import numpy as np

from sequoia_cli.core.hardware import HardwareProfile


def times(random, start, rise, end):
    """Seconds of 1 to `end`, from `start` on: steps, jumps, a line, or bent down or up, or all the same."""
    counts = np.arange(1, end + 1)
    shape = random.choice(["steps", "jumps", "line", "concave", "convex", "flat"])
    added = {
        "steps": np.cumsum(random.random(end) < 0.3) * random.uniform(0.1, 0.6),
        "jumps": np.cumsum(np.where(random.random(end) < 0.25, random.exponential(0.4, end), 0)),
        "line": (counts - 1) * random.uniform(0, 0.4),
        "concave": np.log(counts) * random.uniform(0.2, 1),
        "convex": (counts - 1) ** 2 * random.uniform(0.005, 0.06),
        "flat": 0 * counts,
    }[shape]
    return tuple(zip(counts.tolist(), (start * (1 + rise * added)).tolist(), strict=True))


def random_profile(random, nodes):
    """Times for trees of up to `nodes` nodes; some end before, mostly those of the draft."""
    end = nodes if random.random() < 0.8 else int(random.integers(2, nodes + 1))
    widest = nodes if random.random() < 0.6 else int(random.integers(2, 6))
    draft = random.choice([0.005, 0.02, 0.05, 0.1])
    return HardwareProfile(
        times(random, 1.0, random.choice([0, 0.02, 0.1, 0.5]), end),
        times(random, draft, random.choice([1, 3, 10]), widest),
        times(random, 0.02, 1, nodes) if random.random() < 0.5 else (),
    )


def random_rates(random, descending):
    """One to three rows; those that are not to descend are either in any order or a noisy descent."""
    rows = []
    for _ in range(random.integers(1, 4)):
        ranks = int(random.integers(1, 7))
        row = random.dirichlet(np.ones(ranks) * random.choice([0.4, 1, 3])) * random.uniform(0.5, 1)
        if descending or random.random() < 0.5:
            row = np.sort(row)[::-1]
        if not descending and random.random() < 0.7:
            row = row * np.exp(random.normal(0, 0.3, ranks))
        rows.append((row / max(1, row.sum())).tolist())
    return rows
