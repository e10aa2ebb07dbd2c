"""Where greedy texts differ first: what rounding explains, and what it does not."""

import torch

from checking import SAID, TableReference, scripted
from sequoia_cli.check.reference import RowError, compare
from sequoia_cli.check.texts import SLACK, CheckedText, TextLogits, first_difference, tied, wrong_end


def text(tokens, rounding=0.01):
    rows = tuple(RowError(rounding, rounding) for _ in tokens)
    return CheckedText("1", tuple(tokens), "length", rows, (0.0,) * len(tokens), (True,) * len(tokens), True)


def rows(*logits):
    exact = torch.tensor(logits, dtype=torch.float64)
    return TextLogits(exact, exact.to(torch.bfloat16), exact)


def test_a_difference_has_place_tokens_gap_and_how_far_both_are_below_the_largest():
    found = first_difference(text([2, 0]), text([2, 1]), rows([0, 1, 5], [3.0, 2.95, 1.0]))
    assert (found.place, found.tokens) == (1, (0, 1))
    assert found.exact_gap == found.shortfalls[1]
    assert abs(found.exact_gap - 0.05) < 1e-12
    assert found.within_rounding


def test_tokens_further_apart_than_rounding_explains_are_wrong_whichever_of_them_it_is():
    logits = rows([3.0, 2.0, 1.0])
    assert not first_difference(text([0]), text([1]), logits).within_rounding
    assert not first_difference(text([1]), text([0]), logits).within_rounding
    assert tied(2 * SLACK * 0.01, RowError(0.0, 0.01)) and not tied(0.0801, RowError(0.0, 0.01))


def test_equal_texts_have_no_difference_and_a_text_that_ends_early_is_wrong():
    logits = rows([3.0, 2.99, 1.0], [3.0, 2.99, 1.0])
    assert first_difference(text([0, 0]), text([0, 0]), logits) is None
    for ours, plain in (([0], [0, 0]), ([0, 0], [0])):
        found = first_difference(text(ours), text(plain), logits)
        assert found.place == 1 and None in found.tokens and not found.within_rounding


def test_what_all_logits_have_in_common_is_no_error():
    exact = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    (row,) = compare(exact + 7, exact.to(torch.float32) * 1.001, exact)
    assert row.error < 1e-12 < row.rounding


def test_a_rounding_is_at_least_one_of_the_dtype():
    exact = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    (row,) = compare(exact.bfloat16(), exact.bfloat16(), exact)
    assert row.error == 0 and 0.005 < row.rounding < 0.015


def test_ends_of_text_and_budgets_are_checked():
    assert wrong_end([4, 9], "stop", (9,), 8) is None
    assert wrong_end([4, 5], "length", (9,), 2) is None
    assert wrong_end([4, 5], "context", (9,), 8) is None
    assert "for 2 tokens after an end of text" in wrong_end([9, 4, 5], "length", (9,), 3)
    assert "3 tokens, 2 were asked for" in wrong_end([4, 5, 6], "length", (), 2)
    assert "expected 'stop'" in wrong_end([4, 9], "length", (9,), 2)


def test_logits_that_are_not_the_targets_are_wrong_whatever_was_chosen():
    other = [[*row[:-1], row[-1] + 0.1] for row in SAID]
    findings = scripted(sample=False)
    assert findings.failures == []
    from sequoia_cli.check.run import Check

    check = Check(findings.check.subject, TableReference(other), findings.check.prompts, 12, 100, 0)
    list(check.check_texts())
    assert all(checked.wrong_rows and not checked.wrong_tokens for checked in check.ours)
