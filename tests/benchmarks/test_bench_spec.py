"""`benchmarks/bench_spec.py`: which prompts it takes, what it keeps, and what its figures are."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from folders import edit_json
from models import near, tiny_model
from tiny_tokenizers import byte_level

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny target and a draft that often agrees with it."""
    place, tokenizer = tmp_path_factory.mktemp("pair"), byte_level()
    target = tiny_model("llama", len(tokenizer), initializer_range=0.1)
    for name, model in {"target": target, "draft": near(target, 0.01)}.items():
        model.save_pretrained(place / name)
        edit_json(place / name / "generation_config.json", eos_token_id=None)
        tokenizer.save_pretrained(place / name)
    return place


@pytest.fixture
def spec(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("bench_spec")


@pytest.fixture
def run(spec, models, tmp_path, monkeypatch):
    """The script on ten prompts of two categories, of which the seventh is too long; every other is taken."""
    rows = [
        {"question_id": n, "category": "ab"[n >= 6], "turns": ["Hello " * (400 if n == 6 else n + 1), "more"]}
        for n in range(10)
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "t.json").write_text(json.dumps({"schema": "sequoia-tree/1", "parents": [-1, 0, 0, 1]}))
    options = ("--dataset", tmp_path / "q.jsonl", "--every", "2", "--tree", tmp_path / "t.json")
    pair = ("--target", models / "target", "--draft", models / "draft", "--dtype", "float32")
    output = ("--max-new-tokens", "8", "-o", tmp_path / "found.json")
    monkeypatch.setattr(sys, "argv", ["bench_spec.py", *map(str, (*options, *pair, *output))])

    def script():
        spec.main()
        return json.loads((tmp_path / "found.json").read_text())

    return script


def test_every_other_prompt_that_fits_is_decoded_both_ways(run, capsys, tmp_path):
    found = run()
    assert [sample["prompt"] for sample in found["samples"]] == ["0", "2", "4", "8"]
    assert found["left_out"] == ["6"]
    for sample in found["samples"]:
        assert (sample["tokens"], sample["plain_tokens"], sample["same_text"]) == (8, 8, True)
        assert sample["steps"] < 8
    assert {name: part["prompts"] for name, part in found["categories"].items()} == {"a": 3, "b": 1, "all": 4}
    assert "left out, as they pass the end of the context: 6" in capsys.readouterr().err
    assert not (tmp_path / "found.partial").exists()


def test_an_interrupted_run_is_resumed(run, spec, monkeypatch):
    right, done = spec.measured, []

    def measured(texts):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(right(texts))
        return done[-1]

    with monkeypatch.context() as patch:
        patch.setattr(spec, "measured", measured)
        with pytest.raises(KeyboardInterrupt):
            run()
    found = run()
    assert found["samples"][:2] == done
    assert [sample["prompt"] for sample in found["samples"]] == ["0", "2", "4", "8"]


def test_figures_by_category_are_totals_and_medians_of_prompts_with_intervals(spec):
    def entry(steps, seconds, category, same=True):
        return {
            "prompt": str(steps),
            "category": category,
            "tokens": 12,
            "steps": steps,
            "seconds": seconds,
            "plain_tokens": 10,
            "plain_seconds": 10.0,
            "same_text": same,
        }

    entries = [
        entry(steps, seconds, "a") for steps, seconds in ((2, 6), (3, 4), (4, 3), (6, 12), (12, 2), (12, 24))
    ]
    found = spec.by_category([*entries, entry(1, 12, "b", same=False)])
    assert list(found) == ["a", "b", "all"]
    assert found["a"]["tokens_per_step"] == pytest.approx(72 / 39)
    assert found["a"]["median_tokens_per_step"] == pytest.approx(2.5)
    assert found["a"]["tokens_per_step_interval"] == pytest.approx((1, 6))
    assert found["a"]["median_speedup"] == pytest.approx(2.5)  # 0.5, 1, 2, 3, 4 and 6
    assert found["a"]["speedup_interval"] == pytest.approx((0.5, 6))
    assert found["b"]["speedup_interval"] is None
    assert (found["all"]["prompts"], found["all"]["differing_texts"]) == (7, ["1"])
