"""HardwareProfile: times between the measured ones, nothing beyond them, and every wrong pair named."""

import pytest

from sequoia_cli.core.artifact import Document, parse_document, render
from sequoia_cli.core.hardware import HardwareProfile, interpolate
from sequoia_cli.errors import BadInput

MINIMAL = {"target_seconds": [[1, 1.0], [8, 2]], "draft_seconds": [[1, 0.1]]}


def read(**changes):
    data = {key: value for key, value in (MINIMAL | changes).items() if value is not None}
    return HardwareProfile.from_document(Document("machine.yaml", data, ""))


def test_times_are_linear_between_the_measured_and_unknown_outside_them():
    timings = ((2, 1.0), (4, 2.0), (12, 10.0))
    assert [interpolate(timings, count) for count in (2, 3, 4, 5, 8, 12)] == [1.0, 1.5, 2.0, 3.0, 6.0, 10.0]
    assert interpolate(timings, 1) is None
    assert interpolate(timings, 13) is None


def test_a_single_pair_is_a_constant():
    profile = read(target_seconds=[[5, 0.25]])
    assert [profile.target(count) for count in (1, 5, 1000)] == [0.25] * 3
    assert profile.draft(77) == 0.1


def test_the_parts_of_a_step_are_read_each_from_its_own_list():
    profile = read(draft_seconds=[[1, 0.1], [3, 0.3]], verify_seconds=[[1, 0.01], [3, 0.03]])
    found = profile.target(8), profile.draft(2), profile.verify(2)
    assert found == (2.0, pytest.approx(0.2), pytest.approx(0.02))
    assert (profile.target(9), profile.draft(4), profile.verify(4)) == (None, None, None)


def test_two_lists_of_pairs_written_by_hand_are_a_profile():
    profile = read()
    assert (profile.origin, profile.device, profile.verify_seconds, profile.verify(99)) == (
        "stated",
        "unknown",
        (),
        0.0,
    )
    assert profile.target_seconds == ((1, 1.0), (8, 2.0))


@pytest.mark.parametrize("origin", ["measured", "modelled", "stated"])
@pytest.mark.parametrize("style", ["json", "yaml"])
def test_a_profile_comes_back_from_its_file_as_it_was(origin, style):
    profile = HardwareProfile(
        target_seconds=((1, 1e-7), (64, 0.25)),
        draft_seconds=((1, 0.002),),
        verify_seconds=((1, 0.001), (64, 0.002)) if origin == "measured" else (),
        origin=origin,
        device="A100 — 80 GB",
        conditions={"dtype": "bfloat16", "context": 128},
        samples={"target": [[1, [1e-7, 2e-7]]]} if origin == "measured" else {},
        record={"command": "sequoia profile", "warnings": ["one"]},
    )
    text = render(profile.to_dict(), style)
    again = HardwareProfile.from_document(parse_document(text.encode(), "x"))
    assert again == profile
    assert render(again.to_dict(), style) == text


PAIRS = "a list of pairs"


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ("fast", f"'target_seconds' is 'fast'; expected {PAIRS}"),
        ([], f"'target_seconds' is \\[\\]; expected {PAIRS}"),
        ({1: 2}, f"expected {PAIRS}"),
        ([[1, 1], 2], r"'target_seconds' entry 2 is 2; expected a pair \[tokens, seconds\]"),
        ([[1, 1, 1]], "entry 1 is .*; expected a pair"),
        ([[1, 1], [1, 2]], "entry 2 has tokens 1 after 1; tokens must rise"),
        ([[1, 1], [8, 2], [4, 3]], "entry 3 has tokens 4 after 8; tokens must rise"),
        ([[0, 1]], "entry 1 has tokens 0; expected a whole number of at least 1"),
        ([[1.5, 1]], "entry 1 has tokens 1.5; expected a whole number"),
        ([[True, 1]], "entry 1 has tokens True"),
        ([["1", 1]], "entry 1 has tokens '1'"),
        ([[1, 0]], "entry 1 has seconds 0; expected a number above 0"),
        ([[1, -0.5]], "entry 1 has seconds -0.5"),
        ([[1, "0.5"]], "entry 1 has seconds '0.5'"),
        ([[1, float("nan")]], "entry 1 has seconds nan"),
        ([[1, float("inf")]], "entry 1 has seconds inf"),
        ([[1, 10**400]], "entry 1 has seconds 1000"),
        ([[1, None]], "entry 1 has seconds None"),
    ],
)
def test_a_wrong_pair_is_named_with_its_place_and_value(pairs, complaint):
    with pytest.raises(BadInput, match=complaint) as error:
        read(target_seconds=pairs)
    assert error.value.message.startswith("machine.yaml: ")
    for key in ("draft_seconds", "verify_seconds"):
        with pytest.raises(BadInput, match=key):
            read(**{key: pairs})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"target_seconds": None}, "key 'target_seconds' is missing; found draft_seconds"),
        ({"draft_seconds": None}, "key 'draft_seconds' is missing; found target_seconds"),
        ({"traget_seconds": [[1, 1]]}, "unknown key 'traget_seconds'.*; did you mean 'target_seconds'"),
        ({"origin": "guessed"}, "'origin' is 'guessed'; expected 'measured', 'modelled' or 'stated'"),
        ({"origin": 1}, "'origin' is 1; expected a string"),
        ({"device": 3}, "'device' is 3; expected a string"),
        ({"conditions": "none"}, "'conditions' is 'none'; expected a mapping"),
        ({"schema": "sequoia-profile/99"}, "schema sequoia-profile/99 is not known to this version"),
        ({"schema": "sequoia-tree/1"}, "'schema' is 'sequoia-tree/1'; expected 'sequoia-profile/1'"),
    ],
)
def test_a_wrong_key_is_named(changes, complaint):
    with pytest.raises(BadInput, match=complaint):
        read(**changes)


def test_a_list_is_no_profile():
    with pytest.raises(BadInput, match="a hardware profile is a mapping of keys to values, found"):
        HardwareProfile.from_document(Document("machine.yaml", [0.5], ""))
