"""The default pair, for real: its tree-decoded text is the target's own."""

import pytest
import torch

from exhaustive import few
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.text import encode_prompt
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.measure.acceptance import teacher_forced
from sequoia_cli.measure.acceptance_counts import AcceptanceSettings
from sequoia_cli.measure.session import make_draft

WIDE = TokenTree((-1, *[0] * 7, 1, 1, 1, 2, 2, 9))


@pytest.fixture(scope="module")
def pair(smollm2_pair):
    target = LanguageModel(smollm2_pair.target)
    return smollm2_pair, target, make_draft(smollm2_pair.drafts[0], target)


@pytest.mark.parametrize("tree", few([WIDE, chain(4)], WIDE), ids=["tree", "chain"])
@pytest.mark.parametrize(
    "prompt",
    few(["Why is the sky blue?", "Write a Python function that adds two numbers."], "Why is the sky blue?"),
    ids=["sky", "code"],
)
def test_greedy_text_in_float32_is_the_targets_own_id_for_id(pair, tree, prompt):
    models, target, draft = pair
    ids = encode_prompt(models.tokenizer, prompt)
    steps = list(Decoder(target, [draft], tree).decode(ids, 40, eos_ids=models.eos_ids))
    given = torch.tensor([ids])
    own = models.target.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=40, do_sample=False
    )
    assert [token for step in steps for token in step.tokens] == own[0, len(ids) :].tolist()
    assert len(steps) < 40  # and it did speculate


def test_the_draft_is_as_often_right_as_its_readme_says(pair):
    models, target, draft = pair
    trials = AcceptanceSettings(Sampling(), Sampling(temperature=1.0), ranks=4, depths=2, new_tokens=48)
    tried = accepted = 0.0
    for prompt in ("Why is the sky blue?", "How do I make a good cup of tea?", "What is a prime number?"):
        counts = teacher_forced(
            target, draft, encode_prompt(models.tokenizer, prompt), trials, eos_ids=models.eos_ids
        )
        tried += counts.trials[0]
        accepted += counts.accepted[0][0]
    # 0.48 where steps begin, over 24 prompts; with random or misplaced weights none in a hundred.
    assert 0.15 < accepted / tried < 0.75
