"""One engine's process: JSON lines in, JSON lines out, whatever the engine does."""

import io
import json
import subprocess
import sys

import pytest
from test_samples import work

from sequoia_cli.bench import worker
from sequoia_cli.bench.engines import ENGINES, Unavailable, make_engine
from sequoia_cli.errors import BadInput


class Scripted:
    """Gives these tokens, some at a time; raises what is no list."""

    packages = ("torch",)

    def __init__(self, *parts):
        self.parts = parts

    def generate(self, prompt, seed, on_tokens):
        self.seeds = [*getattr(self, "seeds", ()), seed]
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            on_tokens(part)


def served(monkeypatch, engine, *prompts):
    def make(name, work):
        if isinstance(engine, Exception):
            raise engine
        return engine

    monkeypatch.setattr(worker, "make_engine", make)
    lines = [
        {"engine": "plain", "work": work().to_dict()},
        *({"prompt": prompt, "seed": 70 + prompt} for prompt in prompts),
    ]
    replies = io.StringIO()
    worker.serve(io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), replies)
    return [json.loads(line) for line in replies.getvalue().splitlines()]


def test_it_says_that_it_has_loaded_and_then_answers_each_line(monkeypatch):
    engine = Scripted([1], [2, 3])
    first, *texts = served(monkeypatch, engine, 0, 1)
    assert engine.seeds == [70, 71]
    assert first["load_seconds"] >= 0
    assert set(first["packages"]) == {"torch"}
    for text in texts:
        assert text["token_ids"] == [1, 2, 3]
        assert [count for _, count in text["arrivals"]] == [1, 2]
        assert text["peak_bytes"] > 1_000_000


def test_tokens_after_the_end_and_beyond_the_budget_are_cut_and_not_timed():
    ticks = iter(range(100))
    found = worker.run(Scripted([1], [2, 9, 3], [4]), work(), 0, 5, lambda: next(ticks))
    assert found == {"token_ids": [1, 2, 9], "arrivals": [(1, 1), (2, 2)]}
    found = worker.run(Scripted([1, 2, 3], [4, 5, 6]), work(), 0, 5, lambda: 0.0)
    assert found["token_ids"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("engine", "reply"),
    [
        (Unavailable("no GGUF"), {"unavailable": "no GGUF"}),
        (BadInput("no such model"), {"failed": "no such model"}),
        (ValueError("broken\nmore"), {"failed": "ValueError: broken"}),
        (MemoryError(), {"failed": "out of memory"}),
    ],
)
def test_an_engine_that_cannot_load_says_why(monkeypatch, engine, reply):
    (found,) = served(monkeypatch, engine, 0)
    assert found.keys() == reply.keys()
    assert all(value in found[key] for key, value in reply.items())


def test_an_engine_that_fails_in_a_text_says_so_and_ends(monkeypatch):
    _, text, *more = served(monkeypatch, Scripted([1], RuntimeError("lost")), 0, 1)
    assert text == {"failed": "RuntimeError: lost"}
    assert more == []


def test_the_memory_of_a_process_is_its_own_and_without_libraries_that_its_engine_does_not_need():
    held = b"x" * 600_000_000
    script = "from sequoia_cli.bench.worker import peak_bytes; print(peak_bytes())"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 5_000_000 < int(found.stdout) < 150_000_000 < len(held)


def test_an_engine_whose_package_is_missing_is_unavailable(monkeypatch):
    monkeypatch.setattr("sequoia_cli.bench.engines.find_spec", lambda name: None)
    for name in (name for name, entry in ENGINES.items() if entry.needs):
        with pytest.raises(
            Unavailable, match=f"{ENGINES[name].needs} is not installed; --python {name}=PATH"
        ):
            make_engine(name, work())


def test_an_engine_that_reads_gguf_is_unavailable_without_a_file(monkeypatch):
    monkeypatch.setattr("sequoia_cli.bench.engines.find_spec", lambda name: object())
    for name in (name for name, entry in ENGINES.items() if entry.reads_gguf):
        with pytest.raises(Unavailable, match="give it with --gguf"):
            make_engine(name, work())
