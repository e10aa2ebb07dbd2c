"""Timing by the decoding loop: exact under a clock of our own, and a fit that never falls."""

from types import SimpleNamespace

import pytest
import torch

import tiny_tokenizers as tiny
from scripted import ScriptedDraft, ScriptedTarget, counting_up, ranking
from sequoia_cli.core.tree import ROOT_ONLY
from sequoia_cli.engine import step
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.latency import (
    PARTS,
    STEPS,
    context_prompt,
    fit_profile,
    fit_times,
    fitted,
    merge_samples,
    sort_samples,
    spread,
    steadied,
    time_round,
    timed_steps,
    timing_tree,
)

GREEDY = (Sampling(), Sampling(1.0))
SIZES = (1, 2, 3, 8, 17, 24)


class Clock:
    """Seconds that pass only where a model says so; the first call of each size takes half a second more."""

    def __init__(self):
        self.now = 0.0
        self._met = set()

    def pass_by(self, part, seconds, size=0):
        self.now += seconds + 0.5 * ((part, size) not in self._met)
        self._met.add((part, size))


class TimedTarget(ScriptedTarget):
    """5 ms and 0.1 ms per token a forward; 2 ms to commit a path."""

    def __init__(self, clock, context_limit=1000):
        super().__init__(counting_up(40), context_limit)
        self.clock, self.texts = clock, 0

    def open(self, prompt, capacity, taps=()):
        self.clock.now += 3.0
        self.texts += 1
        text, states = super().open(prompt, capacity, taps)
        run, keep = text.run, text.keep

        def timed_run(parents, tokens, *, taps=()):
            self.clock.pass_by("target", 0.005 + 0.0001 * len(tokens), len(tokens))
            return run(parents, tokens, taps=taps)

        def timed_keep(path):
            self.clock.now += 0.002
            keep(path)

        text.run, text.keep = timed_run, timed_keep
        return text, states


class TimedDraft(ScriptedDraft):
    """1 ms and 0.2 ms per node a level."""

    def __init__(self, clock, places=(), context_limit=1000):
        super().__init__(ranking(40, places, 24), context_limit)
        self.clock = clock

    def extend(self, parents, tokens):
        self.clock.pass_by("draft", 0.001 + 0.0002 * len(tokens), len(tokens))
        return super().extend(parents, tokens)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(step, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


# --- what is timed


@pytest.mark.parametrize("places", [(), (0,) * 40], ids=["nothing accepted", "all accepted"])
def test_the_medians_are_the_models_own_and_first_calls_and_prefills_are_left_out(clock, places):
    target, draft = TimedTarget(clock), TimedDraft(clock, places)
    visits = [
        visit for number in range(3) for visit in time_round(target, draft, SIZES, [0, 1, 2], number, GREEDY)
    ]
    samples = merge_samples(visits)
    assert len(visits) == 3 * (len(SIZES) - 1)
    assert target.texts == 2 * len(visits)  # one prefill gives all steps of a size, another the plain ones
    assert {size: len(seconds) for size, seconds in samples["target"].items()} == {
        size: 3 * STEPS * (len(SIZES) - 1 if size == 1 else 1) for size in SIZES
    }
    for size, seconds in samples["target"].items():
        assert seconds == pytest.approx([0.005 + 0.0001 * size] * len(seconds), abs=1e-9)
    assert list(samples["draft"]) == [1, 3, 8, 11]
    for width, seconds in samples["draft"].items():
        assert seconds == pytest.approx([0.001 + 0.0002 * width] * len(seconds), abs=1e-9)
    for seconds in samples["verify"].values():
        assert seconds == pytest.approx([0.002] * len(seconds), abs=1e-9)
    profile = fit_profile(visits, {"device": "slow", "context": 3}, {"command": "profile"})
    assert profile.target_seconds == tuple((size, round(0.005 + 0.0001 * size, 7)) for size in SIZES)
    assert profile.draft_seconds == ((1, 0.0012), (3, 0.0016), (8, 0.0026), (11, 0.0032))
    assert profile.verify_seconds == tuple((size, 0.002) for size in SIZES)
    assert (profile.origin, profile.device) == ("measured", "slow")
    assert profile.samples["target"][1] == [2, pytest.approx([0.0052] * 3 * STEPS)]


def test_in_a_visit_plain_steps_and_the_trees_take_turns(clock):
    target, draft = TimedTarget(clock), TimedDraft(clock)
    sizes = []
    pass_by = clock.pass_by

    def noted(part, seconds, size):
        sizes.extend([size] * (part == "target"))
        pass_by(part, seconds, size)

    clock.pass_by = noted
    (visit,) = time_round(target, draft, (1, 8), [0, 1, 2], 0, GREEDY)
    assert sizes == [1, 1, 8, 8] + [1, 8] * (STEPS - 1)  # the first of each warms up
    assert {size: len(seconds) for size, seconds in visit["target"].items()} == {1: STEPS, 8: STEPS}


def test_plain_decoding_alone_is_a_visit_too(clock):
    (visit,) = time_round(TimedTarget(clock), TimedDraft(clock), (1,), [0], 0, GREEDY)
    assert (list(visit["target"]), visit["draft"]) == ([1], {})


def test_a_machine_that_changes_speed_between_visits_is_timed_as_if_it_did_not():
    true = {1: 1.0, 2: 1.1, 4: 1.3}
    visits = [
        {
            "target": {1: [pace * true[1]] * 4, size: [pace * true[size]] * 4},
            "draft": {1: [pace * 0.2] * 4},
            "verify": {},
        }
        for pace, size in ((1.0, 2), (1.5, 4), (0.8, 2), (1.0, 4), (1.0, 2))
    ]
    assert max(spread(seconds) for seconds in steadied(visits)["target"].values()) < 1e-9
    assert fitted(steadied(visits)["target"]) == tuple(true.items())
    assert steadied(visits)["draft"][1] == pytest.approx([0.2] * 20)


def test_every_round_has_an_order_of_its_own_and_tells_of_each_size(clock, monkeypatch):
    orders, told = [], []
    target, draft = TimedTarget(clock), TimedDraft(clock)
    for number in (0, 1, 0):
        sizes = []
        monkeypatch.setattr(
            "sequoia_cli.measure.latency.timing_tree",
            lambda size, s=sizes: s.append(size) or timing_tree(size),
        )
        time_round(target, draft, SIZES, [0], number, GREEDY, lambda: told.append(1))
        orders.append(sizes)
    assert orders[0] != orders[1]
    assert orders[0] == orders[2]
    assert sorted(orders[0]) == sorted(orders[1]) == list(SIZES[1:])
    assert len(told) == 3 * (len(SIZES) - 1)


def test_a_text_that_reaches_the_context_is_begun_again(clock):
    decoder = Decoder(TimedTarget(clock, context_limit=9), [TimedDraft(clock)], timing_tree(8), *GREEDY)
    counted = list(timed_steps(decoder, [0, 1, 2], 10, torch.Generator()))
    assert len(counted) == 10
    assert {(step.size, "prefill" in step.seconds) for step in counted} == {(8, False)}


@pytest.mark.parametrize("limits", [(9, 1000), (1000, 9)], ids=["target", "draft"])
@pytest.mark.parametrize("tokens", [7, 8, 9])
def test_a_context_without_room_for_a_timed_step_is_refused_by_its_length(clock, limits, tokens):
    target, draft = TimedTarget(clock, limits[0]), TimedDraft(clock, (0,) * 40, limits[1])
    decoder = Decoder(target, [draft], timing_tree(5), *GREEDY)
    with pytest.raises(BadInput, match=f"a context of {tokens} tokens leaves no room") as error:
        list(timed_steps(decoder, [0] * tokens, 1, torch.Generator()))
    assert "--context" in error.value.hint


def test_plain_steps_need_no_room_for_a_tree(clock):
    decoder = Decoder(TimedTarget(clock, 9), [TimedDraft(clock)], ROOT_ONLY, *GREEDY)
    assert len(list(timed_steps(decoder, [0] * 8, 3, torch.Generator()))) == 3


def test_seconds_are_sorted_by_part_and_by_its_own_size():
    one = step.Step((1,), (), 4, 3, {"target": 1, "verify": 2, "other": 4, "draft": 8}, (5, 3), (1, 2))
    two = step.Step((1,), (), 1, 1, {"target": 10, "verify": 20, "other": 40, "draft": 0})
    samples = sort_samples([one, two, one])
    assert samples == {
        "target": {4: [1, 1], 1: [10]},
        "draft": {1: [5, 5], 2: [3, 3]},
        "verify": {4: [2, 2], 1: [20]},
        "overhead": {4: [4, 4], 1: [40]},
    }
    merged = merge_samples([samples, sort_samples([two])])
    assert list(merged["target"].items()) == [(1, [10, 10]), (4, [1, 1])]
    assert merge_samples([]) == {part: {} for part in PARTS}


# --- what it is timed on


@pytest.mark.parametrize("size", range(1, 71))
def test_a_timing_tree_has_its_size_and_the_widest_layer_that_can_have_children(size):
    tree = timing_tree(size)
    assert tree.size == size
    assert tree.depth == min(size, 3) if size != 2 else 2
    widths = [len(nodes) for nodes in tree.expanded]
    assert widths == [1, (size - 1) // 2][: tree.depth - 1]


def test_a_context_is_exactly_as_long_as_asked_and_ordinary_text():
    tokenizer = tiny.byte_level()
    long = context_prompt(tokenizer, 60_000)
    for tokens in (1, 128, 1000):
        assert context_prompt(tokenizer, tokens) == long[:tokens]
    assert len(long) == 60_000
    assert len(set(long)) > 50


# --- what is made of it


def test_a_fit_equals_medians_that_rise():
    by_size = {4: [0.3, 0.5, 0.4], 1: [0.1, 0.1, 9.0], 2: [0.2, 0.3]}
    assert fitted(by_size) == ((1, 0.1), (2, 0.25), (4, 0.4))


def other_visit(number, overhead):
    """Plain steps and a larger tree, with `overhead` seconds besides the parts, and more of it for a tree."""
    size = (2, 4, 8)[number % 3]
    both = {1: [overhead] * 4, size: [overhead + 0.001 * size] * 4}
    return {
        "target": {1: [0.1] * 4, size: [0.1 + 0.001 * size] * 4},
        "draft": {1: [0.01] * 4},
        "verify": {1: [0.002] * 4, size: [0.002 + 0.001 * size] * 4},
        "overhead": both,
    }


def test_the_overhead_is_that_of_plain_steps_and_no_time_is_lost_or_counted_twice():
    visits = [other_visit(number, 0.005) for number in range(6)]
    times = fit_times(visits)
    assert times.overhead_seconds == 0.005
    assert times.verify_seconds == ((1, 0.002), (2, 0.006), (4, 0.010), (8, 0.018))
    assert set(times.samples) == set(PARTS)
    profile = fit_profile(visits, {"device": "x", "context": 9}, {}, {40: visits, 20: visits})
    assert [context for context, _ in profile.contexts] == [20, 40]
    assert profile.contexts[0][1] == times
    # The whole step is what the rest fitted as one part gives, as in profiles without an overhead.
    for number in range(3):
        size = (2, 4, 8)[number]
        visit = visits[number]
        whole = sum(visit[part][size][0] for part in ("target", "verify", "overhead"))
        assert profile.costs.seconds(size) == pytest.approx(whole)


def test_a_verification_below_the_overhead_still_has_a_time_above_zero():
    visit = other_visit(0, 0.005)
    visit["verify"] = {1: [1e-4] * 4, 2: [1e-4] * 4}
    visit["overhead"][2] = [1e-3] * 4  # falls, so that both sizes are pooled
    times = fit_times([visit])
    assert all(seconds > 0 for _, seconds in times.verify_seconds)


def test_medians_that_fall_are_pooled_until_none_does():
    assert fitted({1: [0.1], 2: [0.4], 3: [0.2], 4: [0.9]}) == ((1, 0.1), (2, 0.3), (3, 0.3), (4, 0.9))
    generator = torch.Generator().manual_seed(0)
    by_size = {size: torch.rand(3, generator=generator).tolist() for size in range(1, 40)}
    seconds = [seconds for _, seconds in fitted(by_size)]
    assert seconds == sorted(seconds)


def test_spread_is_the_middle_half_over_the_median_and_blind_to_outliers():
    assert spread([1.0]) == 0.0
    assert spread([2.0, 2.0, 2.0]) == 0.0
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert spread([1.0, 2.0, 3.0, 4.0, 500.0]) == pytest.approx(2 / 3)
