"""Growth: which engines run after which prompts, with which trees."""

import pytest
from test_samples import work

from sequoia_cli.bench import scaling
from sequoia_cli.bench.runner import Outcome


@pytest.fixture
def asked(monkeypatch):
    """Notes what each process is asked for, and yields an outcome for each engine."""
    calls = []

    def compare(engines, given, rounds, on_progress, pythons):
        calls.append((tuple(engines), given))
        return [Outcome(engine) for engine in engines]

    monkeypatch.setattr(scaling, "compare", compare)
    return calls


def test_each_length_then_each_size_has_a_run_of_its_own(asked):
    text = tuple(range(600))
    found = list(scaling.points(["plain", "tree"], work(tree=(-1, 0, 0)), text, 2))
    assert [(p.prompt_tokens, p.outcome.engine, p.tree_nodes) for p in found] == [
        *((length, *each) for length in (128, 256, 512) for each in (("plain", 1), ("tree", 3))),
        *((128, "plain" if size == 1 else "tree", size) for size in scaling.SIZES),
    ]
    for _, given in asked:
        assert len(given.prompts) == 1
        assert given.prompts[0] == text[: len(given.prompts[0])]
        assert given.eos_ids == ()  # every text has the same number of tokens
    assert [len(given.tree) for _, given in asked[3:]] == list(scaling.SIZES)


def test_other_engines_grow_with_the_prompt_alone(asked):
    found = list(scaling.points(["transformers"], work(), tuple(range(4000)), 1))
    assert [point.prompt_tokens for point in found] == list(scaling.LENGTHS)
    assert {point.tree_nodes for point in found} == {1}
