"""Running engines in turns: the order of requests, and engines that cannot run or fail."""

import os
import time
from pathlib import Path

import pytest
from test_samples import work

from sequoia_cli.bench import runner

LOADED = {"load_seconds": 1.0, "packages": {"torch": "2"}}
TEXT = {"token_ids": [1, 2], "arrivals": [[0.5, 1], [1.0, 1]], "peak_bytes": 7}


class FakeWorkers:
    """Stands for the processes: replies by engine, and notes the order of requests."""

    def __init__(self, monkeypatch, **replies):
        self.asked, self.closed, self.pythons, self.replies = [], [], {}, replies
        self.seeds = []
        monkeypatch.setattr(runner, "Worker", self.make)

    def make(self, engine, given, python=None):
        self.pythons[engine] = python
        script = iter(self.replies[engine])
        fakes = self

        class Fake:
            first = next(script)

            def ask(self, message):
                fakes.asked.append((engine, message["prompt"]))
                fakes.seeds.append((engine, message["seed"]))
                reply = next(script, TEXT)
                if isinstance(reply, BaseException):
                    raise reply
                return reply

            def close(self):
                fakes.closed.append(engine)

        return Fake()


def test_each_round_gives_every_engine_every_prompt_in_changing_order(monkeypatch):
    fakes = FakeWorkers(monkeypatch, a=[LOADED], b=[LOADED])
    outcomes = runner.compare(["a", "b"], work(), 2)
    warm, timed = fakes.asked[:4], fakes.asked[4:]
    assert warm == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]  # the longest prompt, then the shortest
    assert sorted(timed) == sorted([(engine, prompt) for engine in "ab" for prompt in (0, 1)] * 2)
    assert [engine for engine, _ in timed] == list("abbabaab")
    for outcome in outcomes:
        assert [(sample.round, sample.prompt) for sample in outcome.samples] == [
            (0, 0),
            (0, 1),
            (1, 0),
            (1, 1),
        ]
        assert outcome.samples[0].arrivals == ((0.5, 1), (1.0, 1))
        assert (outcome.load_seconds, outcome.peak_bytes, outcome.packages) == (1.0, 7, {"torch": "2"})
    assert fakes.closed == ["a", "b"]


def test_every_text_has_a_seed_of_its_own_which_is_the_same_for_all_engines(monkeypatch):
    fakes = FakeWorkers(monkeypatch, a=[LOADED], b=[LOADED])
    runner.compare(["a", "b"], work(), 3)
    by_engine = {name: [seed for engine, seed in fakes.seeds if engine == name] for name in "ab"}
    assert len(set(by_engine["a"])) == len(by_engine["a"]) == 2 + 3 * 2
    assert set(by_engine["a"]) == set(by_engine["b"])


def test_an_engine_that_is_not_there_or_fails_leaves_the_others_their_turns(monkeypatch):
    lost = {"failed": "lost"}
    FakeWorkers(
        monkeypatch, a=[{"unavailable": "no"}], b=[LOADED, TEXT, TEXT, TEXT, lost], c=[LOADED], d=[lost]
    )
    a, b, c, d = runner.compare(["a", "b", "c", "d"], work(), 2)
    assert (a.unavailable, a.samples) == ("no", [])
    assert (b.failed, len(b.samples)) == ("lost", 1)
    assert (c.failed, len(c.samples)) == (None, 4)
    assert (d.failed, d.samples) == ("lost", [])


def test_an_interruption_keeps_what_was_measured_and_ends_all(monkeypatch):
    fakes = FakeWorkers(monkeypatch, a=[LOADED], b=[LOADED, TEXT, TEXT, TEXT, KeyboardInterrupt()])
    with pytest.raises(runner.Interrupted) as raised:
        runner.compare(["a", "b"], work(), 5)
    assert [len(outcome.samples) for outcome in raised.value.outcomes] == [1, 1]
    assert fakes.closed == ["a", "b"]


@pytest.fixture
def program(tmp_path):
    """Makes a program of these lines of shell."""

    def make(*lines):
        path = tmp_path / "python"
        path.write_text("\n".join(("#!/bin/sh", *lines, "")))
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("last", "end"), [("exit 9", "with code 9"), ("kill -ILL $$", "by SIGILL")], ids=["exit", "signal"]
)
def test_a_process_that_dies_leaves_its_last_words(program, last, end):
    worker = runner.Worker("plain", work(), program("echo loading >&2", "echo out of luck >&2", last))
    assert worker.first == {"failed": f"it ended {end}: out of luck"}
    worker.close()


def test_another_interpreter_finds_this_package_and_nothing_that_lies_beside_it(program):
    worker = runner.Worker("plain", work(), program('ls "${PYTHONPATH%%:*}" >&2', "exit 1"))
    assert worker.first == {"failed": "it ended with code 1: stderr"}  # the last file of two
    place = worker._scratch.name
    assert sorted(os.listdir(place)) == ["sequoia_cli", "stderr"]
    worker.close()
    assert not os.path.exists(place)


def test_what_an_engine_has_started_ends_with_it(program):
    """It replies with the number of a process that would otherwise outlive it."""
    worker = runner.Worker(
        "plain", work(), program("sleep 600 >&2 &", """echo '{"load_seconds": '$!'}'""", "wait")
    )
    child = worker.first["load_seconds"]
    os.kill(child, 0)
    worker.close()
    for _ in range(100):
        if not is_alive(child):
            return
        time.sleep(0.05)
    raise AssertionError("it is still there")


def is_alive(process):
    """Whether a process runs; one that waits for its parent to notice its end does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_each_engine_runs_with_the_interpreter_named_for_it(monkeypatch):
    fakes = FakeWorkers(monkeypatch, a=[LOADED], b=[LOADED])
    runner.compare(["a", "b"], work(), 1, pythons={"b": "other"})
    assert fakes.pythons == {"a": None, "b": "other"}
