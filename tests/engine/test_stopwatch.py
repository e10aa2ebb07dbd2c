"""Seconds of stages: by the host's clock, and on an accelerator by marks in its queue."""

import time

import pytest
import torch

from sequoia_cli.engine.step import DRAFT, OTHER, TARGET, VERIFY, Stopwatch


@pytest.fixture
def now(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    return clock


class Event:
    """A mark at the time the device comes to it; that may not be asked for before the host has waited."""

    device_time, waited = 0.0, False

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        self.at = Event.device_time

    def elapsed_time(self, end):
        assert Event.waited, "the device has not come to this mark yet"
        return (end.at - self.at) * 1000


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(Event, "device_time", 7.0)
    monkeypatch.setattr(Event, "waited", False)
    return torch.device("cuda")


def test_on_the_cpu_every_lap_has_the_seconds_since_the_one_before(now):
    watch = Stopwatch(torch.device("cpu"))
    for stage, seconds in ((DRAFT, 1.0), (DRAFT, 2.0), (TARGET, 4.0)):
        now[0] += seconds
        watch.lap(stage)
    now[0] += 8
    watch.awaited(VERIFY)
    assert (watch.seconds(DRAFT), watch.seconds(TARGET), watch.seconds(VERIFY)) == ((1, 2), (4,), (8,))
    assert watch.seconds(OTHER) == ()


def test_on_an_accelerator_laps_have_its_own_seconds_and_all_of_the_hosts_are_accounted_for(now, device):
    watch = Stopwatch(device)
    for stage, seconds in ((DRAFT, 1.0), (TARGET, 4.0), (VERIFY, 0.5)):
        now[0] += 0.01  # what queueing takes
        Event.device_time += seconds
        watch.lap(stage)
    now[0] += 5.97
    Event.waited = True
    watch.awaited(VERIFY)
    assert watch.seconds(DRAFT) == pytest.approx((1.0,))
    assert watch.seconds(TARGET) == pytest.approx((4.0,))
    assert watch.seconds(VERIFY) == pytest.approx((0.5, 0.5))  # marks, and the rest of six seconds


def test_behind_the_wait_the_hosts_clock_counts(now, device):
    watch = Stopwatch(device)
    watch.lap(TARGET)
    Event.waited = True
    watch.awaited(VERIFY)
    Event.device_time += 50
    now[0] += 3
    watch.lap(OTHER)
    assert watch.seconds(OTHER) == (3,)


def test_a_mark_that_is_read_too_early_would_be_seen(device):
    watch = Stopwatch(device)
    watch.lap(TARGET)
    with pytest.raises(AssertionError, match="has not come to this mark"):
        watch.awaited(VERIFY)
