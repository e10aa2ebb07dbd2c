"""What `sequoia distill` predicts of a draft: what `compile` would predict from the same measurements."""

from types import SimpleNamespace

import pytest

from sequoia_cli.cli import distill_outlook
from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.compiler.estimate import Estimate
from sequoia_cli.core.counts import PromptCounts

TIMES = {
    "target": {1: 0.02, 32: 0.03},
    "draft": {1: 0.002, 15: 0.003},
    "verify": {1: 0.001, 32: 0.001},
    "overhead": {1: 0.0001, 32: 0.0001},
}


def test_the_tree_is_chosen_by_the_estimate_that_compile_chooses_by(monkeypatch):
    visit = {part: {size: [value] for size, value in sizes.items()} for part, sizes in TIMES.items()}
    counts = [PromptCounts(n, (9.0, 7.0), ((7.0, 1.0), (6.0, 0.0)), digest=str(n)) for n in range(2)]
    monkeypatch.setattr(distill_outlook, "_timed", lambda target, drafts, *_: {300: [visit]})
    monkeypatch.setattr(distill_outlook, "_counted", lambda *_: counts)
    model = SimpleNamespace(context_limit=512)
    conditions = {"device": "chip", "forward": "plain"}
    (found,) = distill_outlook.outlooks(model, {300: model}, [[1], [2]], (), conditions)
    estimated = choose(found.profile, Estimate.of(found.rates).rows, Limits(32))
    raw = choose(found.profile, found.rates.p, Limits(32))
    assert found.choice.chosen.tokens_per_step == pytest.approx(estimated.chosen.tokens_per_step)
    assert estimated.chosen.tokens_per_step < raw.chosen.tokens_per_step - 0.1
    assert found.figures()["p"] == [[0.7778, 0.1111]]  # what was measured, beside it
