"""HardwareProfile: times between the measured ones, nothing beyond them, and every wrong pair named."""

import pytest

from sequoia_cli.core.artifact import Document, parse_document, render
from sequoia_cli.core.hardware import HardwareProfile, Times
from sequoia_cli.errors import BadInput

MINIMAL = {"target_seconds": [[1, 1.0], [8, 2]], "draft_seconds": [[1, 0.1]]}


def read(**changes):
    data = {key: value for key, value in (MINIMAL | changes).items() if value is not None}
    return HardwareProfile.from_document(Document("machine.yaml", data, ""))


def test_the_parts_of_a_step_are_read_each_from_its_own_key():
    profile = read(
        draft_seconds=[[1, 0.1], [3, 0.3]], verify_seconds=[[1, 0.01], [3, 0.03]], overhead_seconds=0.5
    )
    parts = {"target": pytest.approx(8 / 7), "draft": pytest.approx(0.3), "verify": pytest.approx(0.02)}
    assert profile.model.parts(2, [1, 2]) == parts | {"overhead": 0.5}
    assert profile.costs.seconds(2, [1, 2]) == pytest.approx(8 / 7 + 0.3 + 0.02 + 0.5)


def test_two_lists_of_pairs_written_by_hand_are_a_profile():
    profile = read()
    assert (profile.origin, profile.device, profile.verify_seconds) == ("stated", "unknown", ())
    assert profile.model.parts(8) == {"target": 2.0, "draft": 0, "verify": 0.0}
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
        overhead_seconds=0.25 if origin == "measured" else 0.0,
        contexts=((1024, Times(((1, 0.5),), ((1, 0.25),))),) if origin == "modelled" else (),
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
        ({"schema": "sequoia-tree/1"}, "'schema' is 'sequoia-tree/1'; expected 'sequoia-profile/2'"),
        ({"overhead_seconds": -1}, "'overhead_seconds' is -1; expected a number of at least 0"),
        ({"contexts": [MINIMAL]}, "'contexts' is .*; expected a list of times, each of a context longer"),
        ({"contexts": {}, "conditions": {"context": 8}}, "'contexts' is {}; expected a list of times"),
    ],
)
def test_a_wrong_key_is_named(changes, complaint):
    with pytest.raises(BadInput, match=complaint):
        read(**changes)


def test_a_list_is_no_profile():
    with pytest.raises(BadInput, match="a hardware profile is a mapping of keys to values, found"):
        HardwareProfile.from_document(Document("machine.yaml", [0.5], ""))


# --- contexts

AT_128 = {"conditions": {"context": 128}, "target_seconds": [[1, 1.0], [9, 2.0]]}


def longer(context, target, **changes):
    return {"context": context, "target_seconds": target, "draft_seconds": [[1, 0.2]], **changes}


def several(*contexts):
    return read(**AT_128, contexts=list(contexts))


def test_a_file_of_the_first_schema_is_read():
    assert read(schema="sequoia-profile/1", conditions={"context": 128}).at(128) == read(
        conditions={"context": 128}
    )


def test_times_are_linear_between_contexts():
    profile = several(longer(1128, [[1, 3.0], [5, 4.0]]), longer(2128, [[1, 5.0], [9, 9.0]]))
    assert profile.at(128).target_seconds == ((1, 1.0), (9, 2.0))
    assert profile.at(628).target_seconds == ((1, 2.0), (5, 2.75))
    assert profile.at(1128).target_seconds == ((1, 3.0), (5, 4.0))
    assert profile.at(2128).target_seconds == ((1, 5.0), (5, 7.0))  # as far as all shorter ones reach
    middle = profile.at(628)
    assert (middle.conditions["context"], middle.contexts, middle.verify_seconds) == (628, (), ())
    assert middle.draft_seconds == ((1, pytest.approx(0.15)),)
    assert profile.model.context == 128


def test_verification_and_overhead_lie_between_contexts_too():
    profile = several(longer(228, [[1, 1.0], [9, 2.0]], verify_seconds=[[1, 0.1]], overhead_seconds=0.3))
    found = profile.at(178)
    assert found.verify_seconds == ((1, 0.05),)
    assert found.overhead_seconds == 0.15


def test_times_never_fall_as_the_context_grows():
    profile = several(longer(256, [[1, 0.5], [9, 4.0]]), longer(512, [[1, 2.0], [9, 3.0]]))
    seconds = [profile.at(context).costs.seconds(size) for size in (1, 5, 9) for context in range(128, 513)]
    for size in range(3):
        found = seconds[size * 385 : (size + 1) * 385]
        assert found == sorted(found)
    assert profile.at(256).target_seconds == ((1, 1.0), (9, 4.0))


@pytest.mark.parametrize("context", [1, 127, 1129])
def test_a_context_outside_those_of_the_profile_is_refused(context):
    with pytest.raises(BadInput, match=f"of a context of 128 to 1128 tokens, not of {context}"):
        several(longer(1128, [[1, 3.0]])).at(context)
    with pytest.raises(BadInput, match=f"of a context of 128 tokens, not of {context}"):
        several().at(context)
    with pytest.raises(BadInput, match=r"does not say in 'conditions\.context'"):
        read().at(context)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (longer(128, [[1, 1]]), "entry 1: 'context' is 128; expected a whole number above 128"),
        (longer("long", [[1, 1]]), "'context' is 'long'; expected a whole number"),
        (longer(256, [[1, 0]]), "entry 1: 'target_seconds' entry 1 has seconds 0"),
        ({"context": 256}, "key 'target_seconds' is missing; found context"),
        (7, "a part of a hardware profile is a mapping of keys to values, found 7"),
    ],
)
def test_a_wrong_context_is_named_with_its_place(entry, complaint):
    with pytest.raises(BadInput, match=complaint) as error:
        several(entry)
    assert error.value.message.startswith("machine.yaml, 'contexts' entry 1")
