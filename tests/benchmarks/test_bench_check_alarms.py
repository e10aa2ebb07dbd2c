"""The false-alarm rate of the whole `check`: a few of the runs of `benchmarks/bench_check_alarms.py`."""

import sys
from pathlib import Path

import numpy as np
from scipy.stats import binom

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import bench_check_alarms as alarms


def test_a_right_program_fails_no_more_often_than_stated():
    # Were the rate as high as the level, this many alarms would come in one of a million seeds.
    smallest = alarms.smallest_p_values(100, seed=3)
    for level in (0.05, 0.01):
        assert (smallest <= level).sum() <= binom.isf(1e-6, 100, level)


def test_a_program_with_another_distribution_fails(monkeypatch):
    right = alarms.Context.tokens
    monkeypatch.setattr(alarms.Context, "tokens", lambda context, uniforms: right(context, uniforms**1.6))
    assert np.all(alarms.smallest_p_values(20, seed=3) <= 1e-4)
