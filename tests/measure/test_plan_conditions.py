"""What a tree was compiled for against what runs: each condition that changes speed is named."""

import json

import pytest

from sequoia_cli.core.paths import shipped
from sequoia_cli.measure.plan_conditions import differing_conditions

MODELS = {"target": "T", "draft": "D", "dtype": "bfloat16", "quantize": "none", "quantize_draft": "none"}
TIMES = MODELS | {"device": "chip, 2 threads", "forward": "compiled", "temperature": 0.6, "context": 128}
RATES = MODELS | {
    "target_weights": "sha256:0",
    "draft_weights": "sha256:1",
    "temperature": 0.6,
    "top_k": 0,
    "top_p": 0.9,
    "draft_temperature": 0.6,
    "verifier": "sequoia",
    "device": ["chip", "another"],
    "seed": 3,
}
HERE = MODELS | {
    "device": "chip, 2 threads",
    "forward": "compiled",
    "context": 200,
    "target_weights": "sha256:0",
    "draft_weights": "sha256:1",
    "temperature": 0.6,
    "top_k": 0,
    "top_p": 0.9,
    "draft_temperature": 0.6,
    "verifier": "sequoia",
}


def differing(times=TIMES, rates=RATES, **here):
    inputs = {
        "profile": {"device": "chip, 2 threads", "conditions": times},
        "acceptance": {"conditions": rates},
    }
    return differing_conditions(inputs, HERE | here)


def test_a_run_under_the_conditions_of_its_plan_differs_in_nothing():
    assert differing() == {}
    assert differing({}, {}) == {}
    assert differing_conditions({}, HERE) == {}
    assert differing_conditions({"profile": 5, "acceptance": {"conditions": 5}}, HERE) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target", "T2"),
        ("draft", "D2"),
        ("dtype", "float32"),
        ("quantize", "int8"),
        ("quantize_draft", "int8"),
        ("device", "chip, 4 threads"),
        ("forward", "plain"),
        ("target_weights", "sha256:2"),
        ("draft_weights", "sha256:2"),
        ("temperature", 0.7),
        ("top_k", 5),
        ("top_p", 1.0),
        ("draft_temperature", 1.0),
        ("verifier", "naive"),
        ("context", 3000),
    ],
)
def test_each_condition_that_differs_is_named(key, value):
    assert differing(**{key: value}) == {key: ((TIMES | RATES | {"device": HERE["device"]})[key], value)}


@pytest.mark.parametrize("model", ["target", "draft"])
def test_other_weights_of_another_model_or_dtype_are_not_named_beside_it(model):
    weights = f"{model}_weights"
    assert list(differing(**{model: "another", weights: "sha256:2"})) == [model]
    assert list(differing(dtype="float32", **{weights: "sha256:2"})) == ["dtype"]


@pytest.mark.parametrize("weights", ["target_weights", "draft_weights"])
def test_weights_that_a_file_does_not_state_are_not_compared(weights):
    old = {key: value for key, value in RATES.items() if key != weights}
    assert differing(rates=old) == {}


def test_what_shapes_a_sample_is_nothing_to_a_greedy_target():
    shapes = {"top_k": 5, "top_p": 1.0, "draft_temperature": 2.0, "verifier": "naive"}
    assert differing(temperature=0.0, **shapes) == {"temperature": (0.6, 0.0)}
    greedy = [part | {"temperature": 0.0} for part in (TIMES, RATES)]
    assert differing(*greedy, temperature=0.0, **shapes) == {}


def test_times_depend_on_whether_the_target_is_greedy():
    assert differing(TIMES | {"temperature": 1.0}) == {}
    assert differing(TIMES | {"temperature": 0.0}, {}) == {"temperature": (0.0, 0.6)}


@pytest.mark.parametrize(
    ("there", "here", "named"),
    [(16, 900, False), (128, 1024, True), (1024, 4096, False), (16000, 200, True), ("long", 9000, False)],
)
def test_the_length_of_the_text_matters_where_it_is_long(there, here, named):
    assert ("context" in differing(TIMES | {"context": there}, context=here)) == named


def test_rates_before_there_was_a_choice_of_verifiers_are_of_the_first():
    old = {key: value for key, value in RATES.items() if key != "verifier"}
    assert differing(rates=old, verifier="naive") == {"verifier": ("sequoia", "naive")}


def test_the_shipped_tree_of_another_machine_names_the_device():
    inputs = json.loads(shipped("trees", "a100_128.json").read_text())["inputs"]
    assert differing_conditions(inputs, HERE)["device"] == ("NVIDIA A100 80GB PCIe", "chip, 2 threads")
