"""AcceptanceRates: reading rates and counts, every mistake named, and adding runs up."""

from dataclasses import replace

import pytest

from sequoia_cli.core.artifact import Document, parse_document, render
from sequoia_cli.core.counts import PromptCounts, pooled_rate
from sequoia_cli.core.merging import merged
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.errors import BadInput

CONDITIONS = {
    "target": "big",
    "temperature": 0.6,
    "seed": 0,
    "dataset": {"name": "chat", "digest": "sha256:1"},
}


def read(data):
    return AcceptanceRates.from_document(Document("rates.yaml", data, ""))


def one(trials, *accepted, prompt=0):
    """Counts of one prompt at one depth."""
    return PromptCounts(prompt, (trials,), (tuple(accepted),))


def depths(*counts):
    return PromptCounts(0, counts, tuple((count / 2, count / 10) for count in counts))


def measured(*samples, **changes):
    return AcceptanceRates.from_samples(samples, CONDITIONS | changes)


# --- reading


def test_a_plain_list_is_one_row_for_all_depths():
    assert read([0.6, 0.2, 0.1]).p == ((0.6, 0.2, 0.1),)
    assert read([1.0]).p == ((1.0,),)
    assert read([0, 0.0]).p == ((0.0, 0.0),)
    assert read([0.63, 0.11]).samples == ()


def test_a_list_of_lists_is_a_row_per_depth():
    rows = [[0.6, 0.2], [0.5, 0.3, 0.1], [0.4]]
    assert read(rows).p == read({"p": rows}).p == tuple(map(tuple, rows))


@pytest.mark.parametrize(
    ("rates", "complaint"),
    [
        ([], r"'p' is \[\]; expected a list of rates by child rank"),
        ("0.5", "'p' is '0.5'; expected a list of rates"),
        ({"0.5": 1}, "expected a list of rates"),
        ([0.5, float("nan")], "'p', rank 2, is nan; expected a number from 0 to 1"),
        ([0.5, -0.1], "'p', rank 2, is -0.1; expected a number from 0 to 1"),
        ([1.5], "'p', rank 1, is 1.5"),
        ([10**400], "'p', rank 1, is 1000"),
        ([0.5, "0.1"], "'p', rank 2, is '0.1'"),
        ([True], "'p', rank 1, is True"),
        ([0.5, None], "'p', rank 2, is None"),
        ([0.5, [0.1]], r"'p', rank 2, is \[0.1\]"),
        ([0.9, 0.4], "'p' sums to 1.3000; marginal rates sum to at most 1"),
        ([[0.5, 0.2], 0.5], "'p' row 2 is 0.5; expected a list of rates"),
        ([[0.5, 0.2], []], r"'p' row 2 is \[\]; expected a list of rates"),
        ([[0.5, 0.2], [0.5, 2]], "'p' row 2, rank 2, is 2"),
        ([[0.5], [0.8, 0.3]], "'p' row 2 sums to 1.1000"),
    ],
)
def test_rates_that_are_none_are_named_by_row_and_rank(rates, complaint):
    with pytest.raises(BadInput, match=complaint) as error:
        read({"p": rates})
    assert error.value.message.startswith("rates.yaml: ")


def test_a_sum_above_one_by_rounding_alone_is_accepted():
    assert read([0.7, 0.30005]).p[0][1] == 0.30005
    with pytest.raises(BadInput, match="sums to") as error:
        read([0.7, 0.3002])
    assert "conditional" in error.value.hint


@pytest.mark.parametrize(
    ("rates", "ends", "hint"),
    [
        ([0.0, 0.6, 0.2, 0.1, 0.1], True, "drop the first and the last entry"),
        ([0.0, 0.6, 0.2, 0.1], False, "drop the first entry"),
    ],
)
def test_the_padded_layout_of_published_vectors_is_recognised_by_hand_only(rates, ends, hint):
    for data in (rates, {"p": rates}, [[0.5, 0.1, 0.1], rates]):
        with pytest.raises(BadInput, match="begins with 0") as error:
            read(data)
        assert error.value.hint == hint
        assert ("sums to 1" in error.value.message) == ends
        assert ("and the all-rejected rate at the end" in error.value.message) == ends
    counts = {"trials": 100, "accepted": [100 * rate for rate in rates]}
    assert read({"p": rates} | counts).p == (tuple(rates),)  # counts vouch for the layout
    assert read([0.0, 0.0, 0.5]).p == ((0.0, 0.0, 0.5),)  # which no published vector begins with


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"acepted": [5]}, "unknown key 'acepted' in a rates file; did you mean 'accepted'"),
        ({"schema": "sequoia-rates/99"}, "schema sequoia-rates/99 is not known"),
        ({"conditions": [1]}, "'conditions' is .* expected a mapping"),
        ({"samples": 5}, "'samples' is 5; expected a list of per-prompt counts"),
        ({"samples": [5]}, "'samples' entry 1: counts from 0 up are expected"),
        ({"samples": [{"prompt": 0, "trials": [5]}]}, "'samples' entry 1: counts"),
        ({"trials": -5, "accepted": [0]}, "'trials' and 'accepted': counts from 0 up"),
        ({"trials": "55", "accepted": [1]}, "'trials' and 'accepted': counts from 0 up"),
        ({"trials": ["5"], "accepted": [[1]]}, "'trials' and 'accepted': counts from 0 up"),
        ({"trials": float("nan"), "accepted": [1]}, "'trials' and 'accepted': counts from 0 up"),
        ({"trials": 5, "accepted": [-1]}, "'trials' and 'accepted': counts from 0 up"),
        ({"trials": 5, "accepted": ["1"]}, "'trials' and 'accepted': counts from 0 up"),
        ({"trials": [5], "accepted": [1]}, "'trials' and 'accepted': counts from 0 up"),
        ({"trials": 5, "accepted": [4, 2]}, "'trials' and 'accepted' has more acceptances than trials"),
        ({"trials": [5, 5], "accepted": [[4, 1], [4, 2]]}, "has more acceptances than trials"),
        ({"trials": [5, 5], "accepted": [[1, 1]]}, "one row of accepted per depth"),
        ({"trials": [5, 5], "accepted": [[1, 1], [1]]}, "one row of accepted per depth"),
        ({"trials": [], "accepted": []}, "one row of accepted per depth"),
        ({"trials": 5, "accepted": []}, "one row of accepted per depth"),
    ],
)
def test_a_wrong_key_or_count_is_named(changes, complaint):
    with pytest.raises(BadInput, match=complaint):
        read({"p": [0.5]} | changes)


def test_prompts_of_different_shapes_are_refused_by_entry():
    samples = [one(5, 1, 1).to_entry(), one(5, 1, 1, prompt=1).to_entry(), one(5, 1, prompt=2).to_entry()]
    with pytest.raises(BadInput, match="'samples' entry 3 does not have the same depths and ranks"):
        read({"p": [0.5], "samples": samples})


def test_a_missing_p_is_named():
    with pytest.raises(BadInput, match="key 'p' is missing; found trials"):
        read({"trials": 5})


def test_counts_may_be_written_by_rank_or_by_depth():
    assert read({"p": [0.5], "trials": 10, "accepted": [5, 2]}).samples == (one(10, 5, 2),)
    rates = read({"p": [0.5], "trials": [10, 5], "accepted": [[5, 2], [3, 1]]})
    assert (rates.trials, rates.accepted) == ((10, 5), ((5, 2), (3, 1)))
    assert read({"p": [0.5], "trials": 10}).samples == ()


@pytest.mark.parametrize(
    ("p", "complaint"),
    [
        ([0.95], r"'p' row 1, rank 1, is 0\.95; accepted / trials is 300 / 1000"),
        ([0.3, 0.11], r"'p' row 1, rank 2, is 0\.11; accepted / trials is 100 / 1000"),
        ([0.304], "'p' row 1, rank 1"),
        ([0.4], "'p' row 1, rank 1"),  # 0.356 at all depths: a first decimal alone may not be that far off
        ([[0.356], [0.5]], r"'p' row 1, rank 1, is 0\.356"),  # no row but the last is of deeper ones
        ([0.3, 0.1, 0.05], "'p' row 1, rank 3, has no counts: 'accepted' has 2 ranks"),
        ([[0.3, 0.1], [0.3, 0.1]], r"'p' row 2, rank 1, is 0\.3; accepted / trials is 250 / 500"),
        ([[0.3]] * 4, "'p' has 4 rows; 'trials' has 3 depths"),
    ],
)
def test_rates_that_are_not_accepted_over_trials_are_refused_by_row_and_rank(p, complaint):
    counts = {"trials": [1000, 500, 100], "accepted": [[300, 100], [250, 50], [20, 10]]}
    with pytest.raises(BadInput, match=complaint):
        read({"p": p} | counts)
    samples = [{"prompt": 0} | counts]
    with pytest.raises(BadInput, match=complaint):
        read({"p": p, "samples": samples})


def test_rates_agree_with_counts_as_far_as_they_are_written():
    counts = {"trials": [1000, 500, 100], "accepted": [[333.3333, 100], [250, 50], [20, 10]]}
    for p in (
        [0.33],
        [0.333333, 0.1],
        [[0.333, 0.1], [0.5, 0.1], [0.2, 0.1]],
        [[0.333], [0.45, 0.1]],  # the last row of its depth and all deeper ones
        [[0.333], [0.5]],  # the last row of its depth alone
        [603.3333 / 1600],  # one row of all depths
    ):
        read({"p": p} | counts)


@pytest.mark.parametrize(("key", "value"), [("trials", [21]), ("accepted", [[11, 3]]), ("trials", "ten")])
def test_totals_that_are_not_the_sums_of_the_samples_are_refused_by_key(key, value):
    data = measured(one(10, 5, 1), one(10, 6, 1)).to_dict()
    read(data)
    with pytest.raises(BadInput, match=f"'{key}' is .*; expected the sums over 'samples'"):
        read(data | {key: value})


# --- files


@pytest.mark.parametrize("style", ["json", "yaml"])
def test_rates_come_back_from_their_file_as_they_were(style):
    samples = (depths(800, 500), PromptCounts(1, (20, 0), ((12.5, 3.25), (0, 0))))
    rates = AcceptanceRates.from_samples(samples, CONDITIONS, {"command": "sequoia acceptance"})
    text = render(rates.to_dict(), style)
    again = AcceptanceRates.from_document(parse_document(text.encode(), "x"))
    assert (again.samples, again.conditions, again.record) == (rates.samples, rates.conditions, rates.record)
    assert [list(row) for row in again.p] == [pytest.approx(row, abs=1e-6) for row in rates.p]
    assert render(again.to_dict(), style) == text


def test_the_file_has_totals_errors_and_whole_numbers_as_such():
    data = measured(one(10, 5, 1), one(10, 6, 1.23456)).to_dict()
    assert (data["schema"], data["trials"], data["accepted"]) == ("sequoia-rates/1", [20], [[11, 2.2346]])
    assert data["p"] == [[0.55, 0.111728]]
    assert len(data["standard_error"]) == 2
    assert isinstance(data["trials"][0], int)
    assert "trials" not in AcceptanceRates(((0.5,),)).to_dict()
    assert data["samples"][0] == {"prompt": 0, "trials": [10], "accepted": [[5, 1]]}


# --- adding up


def test_merged_runs_are_as_if_measured_in_one():
    first = measured(one(300, 150, 30), one(100, 90, 10, prompt=1))
    second = measured(one(200, 20, 20), seed=1)
    both = merged(first, second)
    assert (both.trials, both.accepted, both.p) == ((600,), ((260, 60),), ((260 / 600, 60 / 600),))
    assert [sample.prompt for sample in both.samples] == [0, 1, 2]
    assert [sample.trials[0] for sample in both.samples] == [300, 100, 200]
    assert both.standard_errors()[0] == pytest.approx(pooled_rate([*first.samples, *second.samples], 0)[1])
    assert both.conditions == CONDITIONS | {"seed": [0, 1]}


@pytest.mark.parametrize("key", ["target_weights", "draft_weights"])
def test_weights_are_compared_where_both_files_state_them(key):
    old = measured(one(10, 5))
    new, other = (measured(one(10, 5), seed=seed, **{key: f"sha256:{seed}"}) for seed in (1, 2))
    for total in (merged(old, new), merged(new, old)):
        assert total.conditions[key] == new.conditions[key]
        with pytest.raises(BadInput, match=f"'{key}' is"):
            merged(total, other)


def test_merging_three_runs_keeps_the_names_of_all_datasets():
    chat, code, maths = ({"name": name, "digest": name} for name in ("chat", "code", "maths"))
    runs = [measured(one(10, 5), dataset=dataset) for dataset in (chat, code, maths)]
    assert merged(merged(runs[0], runs[1]), runs[2]).conditions["dataset"] == [chat, code, maths]
    assert merged(runs[0], merged(runs[1], runs[2])).conditions["dataset"] == [chat, code, maths]
    again = measured(one(10, 5), dataset=chat, seed=1)
    assert merged(runs[0], again).conditions["dataset"] == chat


def test_runs_of_different_things_are_refused_by_the_first_condition_that_differs():
    first = measured(one(10, 5, 1))
    with pytest.raises(BadInput, match=r"do not add up: 'temperature' is 0\.6 and 0\.8"):
        merged(first, measured(one(10, 5, 1), temperature=0.8))
    with pytest.raises(BadInput, match="'draft' is None and 'small'"):
        merged(first, measured(one(10, 5, 1), draft="small"))
    with pytest.raises(BadInput, match="different depths or ranks"):
        merged(first, measured(one(10, 5)))
    with pytest.raises(BadInput, match="different depths or ranks"):
        merged(first, measured(depths(10, 5)))


def test_a_greedy_target_has_the_same_rates_whatever_shapes_a_sample():
    first = measured(one(10, 5), temperature=0.0, verifier="sequoia", top_p=1.0)
    other = measured(one(20, 5), temperature=0.0, verifier="naive", top_p=0.9, dataset={"digest": "x"})
    assert merged(first, other).trials == (30,)
    with pytest.raises(BadInput, match="'top_p' is"):
        merged(measured(one(10, 5), top_p=1.0), measured(one(10, 5), top_p=0.9))


def test_counts_of_unknown_prompts_are_taken_for_the_same_where_they_are_equal():
    """Files by hand say nothing else of what they counted."""
    by_hand = AcceptanceRates.from_samples([one(100, 50), one(90, 40, prompt=1)], {})
    part = AcceptanceRates.from_samples([one(90, 40), one(80, 40, prompt=1)], {})
    assert merged(by_hand, part).trials == (270,)
    assert merged(merged(by_hand, part), part).trials == (270,)
    twice = AcceptanceRates.from_samples([one(100, 50), one(100, 50, prompt=1)], {})
    once = AcceptanceRates.from_samples([one(100, 50)], {})
    assert merged(once, twice).trials == (200,)
    named = AcceptanceRates.from_samples([replace(one(100, 50), digest="d")], {})
    assert merged(named, once).trials == (200,)


def test_a_prompt_without_a_digest_is_known_by_its_place_in_the_dataset_and_a_sampled_text_by_its_seed():
    first = measured(one(10, 5), one(20, 5, prompt=1))
    assert merged(first, measured(one(10, 5))).trials == (30,)
    assert merged(first, measured(one(10, 5), seed=1)).trials == (40,)
    greedy = measured(one(10, 5), temperature=0)
    assert merged(greedy, measured(one(10, 5), temperature=0, seed=1)).trials == (10,)


@pytest.mark.parametrize(("count", "names"), [(5, "1, 2, 3, 4, 5"), (7, "1, 2, 3, 4, 5 and 2 more")])
def test_of_prompts_with_two_counts_the_first_are_named(count, names):
    runs = [measured(*(one(10, hits, prompt=prompt) for prompt in range(count))) for hits in (5, 6)]
    with pytest.raises(
        BadInput, match=f"{count} prompts are counted in both, with different counts: {names}$"
    ):
        merged(*runs)


def test_texts_of_several_seeds_all_count_and_a_prompt_is_one_cluster():
    seeds = [replace(one(10, hits), id="a", digest="d", seed=n) for n, hits in enumerate((5, 7))]
    other = replace(one(10, 1), id="b", digest="e", seed=0)
    first, second = measured(seeds[0], other), measured(seeds[1], other, seed=1)
    both = merged(first, second)
    assert both.trials == (30,)  # the text that both have counts once
    assert both.standard_errors()[0] == pytest.approx(pooled_rate([one(20, 12), one(10, 1)], 0)[1])
    assert AcceptanceRates.from_document(Document("x", both.to_dict(), "")).samples == both.samples
    with pytest.raises(BadInput, match="1 prompts are counted in both, with different counts: a"):
        merged(first, measured(replace(seeds[0], accepted=((6.0,),)), seed=2))


def test_rates_without_counts_cannot_be_merged():
    with pytest.raises(BadInput, match="the first rates file has no counts"):
        merged(read([0.5]), measured(one(10, 5)))
    with pytest.raises(BadInput, match="the second rates file has no counts"):
        merged(measured(one(10, 5)), read([0.5]))
