"""Modelled profiles: anchored on published figures, flat up to a knee, and never taken for a measurement."""

import pytest

from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.compiler.roofline import MODELLED_DEVICES, modelled_profile
from sequoia_cli.core.artifact import parse_document, render
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.paths import shipped
from sequoia_cli.errors import BadInput

#: Published rows for Llama-2-7B with the 68M draft (arXiv 2402.12374): layers, speedup, tokens per step.
A100_128 = [(10, 4.04, 5.08), (7, 3.18, 3.92), (7, 3.22, 3.86), (6, 2.71, 3.33)]
A100_128 += [(7, 3.41, 4.05), (6, 2.83, 3.45), (10, 4.03, 4.98), (7, 3.18, 3.96)]
L40_64 = [
    (10, 3.95, 4.68),
    (7, 3.10, 3.63),
    (7, 3.12, 3.58),
    (6, 2.68, 3.12),
    (7, 3.30, 3.79),
    (6, 2.81, 3.27),
]


def plain_steps(profile, size, layers):
    """A step with a tree of narrow levels, in steps of plain decoding."""
    return profile.costs.seconds(size, [16] * (layers - 1)) / profile.costs.seconds(1)


def test_plain_decoding_and_the_draft_take_their_published_times_on_the_a100():
    profile = modelled_profile("a100")
    assert profile.costs.seconds(1) == pytest.approx(24.2e-3)
    assert profile.costs.draft.seconds(1) == pytest.approx(0.5e-3)


@pytest.mark.parametrize(("layers", "speedup", "tokens"), A100_128)
def test_published_steps_on_the_a100_are_met_within_four_percent(layers, speedup, tokens):
    assert plain_steps(modelled_profile("a100"), 128, layers) == pytest.approx(tokens / speedup, rel=0.04)


@pytest.mark.parametrize(("layers", "speedup", "tokens"), L40_64)
def test_published_steps_on_the_l40_are_met_within_six_percent(layers, speedup, tokens):
    assert plain_steps(modelled_profile("l40"), 64, layers) == pytest.approx(tokens / speedup, rel=0.06)


@pytest.mark.parametrize("device", MODELLED_DEVICES)
def test_target_time_is_flat_up_to_a_knee_and_rises_in_a_line_after_it(device):
    times = dict(modelled_profile(device).target_seconds)
    assert times[64] == times[1]
    assert times[512] > 1.3 * times[1]
    assert (times[1024] - times[768]) / 256 == pytest.approx((times[512] - times[384]) / 128, rel=1e-3)


@pytest.mark.parametrize("device", MODELLED_DEVICES)
def test_a_modelled_profile_says_that_it_is_no_measurement(device):
    written = modelled_profile(device).to_dict()
    assert written["origin"] == "modelled"
    assert "not measured" in written["notes"]
    assert "samples" not in written
    read = HardwareProfile.from_document(parse_document(render(written, "yaml").encode(), "profile"))
    assert read.to_dict() == written


def test_a_longer_context_takes_longer():
    near, far = (modelled_profile("a100", [context]) for context in (256, 4096))
    assert far.costs.seconds(1) > near.costs.seconds(1)
    assert far.record["command"].endswith("--context 4096")


def test_a_device_without_figures_is_refused():
    with pytest.raises(BadInput, match="device v100 has no model"):
        modelled_profile("v100")


def test_a_modelled_profile_of_several_contexts_has_the_times_of_each():
    several = modelled_profile("a100", [256, 1024, 4096])
    assert several.record["command"].endswith("--context 256,1024,4096")
    for context in (256, 1024, 4096):
        assert several.at(context).costs == modelled_profile("a100", [context]).costs
    # The roofline rises in a line with the context, but for its knee; the mean of two lies above the knee.
    between, exact = several.at(640).costs, modelled_profile("a100", [640]).costs
    for size in (1, 64, 120, 128, 512):
        assert between.seconds(size) == pytest.approx(exact.seconds(size), rel=2e-3)


def test_the_shipped_a100_profile_is_the_modelled_one():
    assert shipped("profiles", "a100.yaml").read_text() == render(modelled_profile("a100").to_dict(), "yaml")


def test_on_the_a100_the_choice_stays_at_the_knee_however_large_the_budget():
    rates = [[0.65, 0.12, 0.06, 0.03, 0.02, 0.015, 0.01, 0.01, 0.005, 0.005]]
    sizes = {
        choose(modelled_profile("a100"), rates, Limits(budget)).chosen.tree.size for budget in (128, 512)
    }
    assert len(sizes) == 1
    assert 96 <= sizes.pop() <= 128
