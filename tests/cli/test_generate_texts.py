"""What `sequoia generate` writes: the target's own text, as long as asked for, whatever tree and draft do."""

import json
import shutil

import pytest

from exhaustive import few
from folders import edit_json, own_greedy
from sequoia_cli.engine.decode import DecodedText
from sequoia_cli.errors import SequoiaError

TEXT = "Hello there, it's a fine day!"
PROMPT = ("-p", TEXT)


@pytest.fixture(scope="module")
def greedy(models):
    """The first 40 ids of the target's own greedy text."""
    return own_greedy(models["target"], TEXT, 40)[1]


# --- greedy


@pytest.mark.parametrize("draft", ["draft", "target", "wide", "short"])
def test_greedy_text_with_a_tree_is_the_targets_own_id_for_id(document, models, greedy, draft):
    assert document(*PROMPT, "-n", "40", "--draft", models[draft])["token_ids"] == greedy


@pytest.mark.parametrize("drafts", [("draft", "wide"), ("wide", "short", "draft")])
def test_several_drafts_leave_the_targets_greedy_text_as_it_is(generate, models, greedy, drafts):
    named = [part for draft in drafts for part in ("--draft", models[draft])]
    code, out, err = generate(*PROMPT, "-n", "40", *named, "--compare", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["token_ids"], found["first_differences"]) == (greedy, {})
    assert found["speculation"]["drafts"] == len(drafts)
    assert found["speculation"]["mean_acceptance_length"] > 1
    assert f"{len(drafts)} drafts: each grows the tree, and the trees are merged" in err
    assert "what the tree file predicts is for one draft" in err
    assert f"a tree of 9 nodes in 4 layers from each of {len(drafts)} drafts" in err


def test_several_drafts_take_the_text_further_in_a_step_than_one(document, models):
    options = (*PROMPT, "-n", "40", "--draft", models["wide"])
    one, two = document(*options), document(*options, "--draft", models["draft"])
    assert two["speculation"]["steps"] < one["speculation"]["steps"]
    assert (one["speculation"]["drafts"], two["speculation"]["drafts"]) == (1, 2)


def test_sampling_with_several_drafts_repeats_itself(document, models):
    options = (*PROMPT, "-n", "40", "-T", "0.8", "--draft", models["wide"], "--draft", models["draft"])
    assert document(*options)["token_ids"] == document(*options)["token_ids"]


def test_plain_decoding_gives_the_same_ids_and_loads_no_draft(document, greedy):
    found = document(*PROMPT, "-n", "40", "--plain", "--draft", "no-such-draft")
    assert found["token_ids"] == greedy
    assert found["speculation"]["mean_acceptance_length"] == 1
    assert found["speculation"]["acceptance_rate"] is None


def test_a_target_with_more_padding_than_its_draft_decodes_as_it_does_alone(generate, models):
    options = (*PROMPT, "-n", "40", "--target", models["wide"], "--draft", models["target"], "--json")
    _, out, err = generate(*options)
    assert json.loads(out)["token_ids"] == own_greedy(models["wide"], TEXT, 40)[1]
    assert "vocabulary rows" in err


@pytest.mark.parametrize("count", few([0, 1, 2, 7], 0, 1, 7))
@pytest.mark.parametrize("draft", ["draft", "target"])
def test_exactly_as_many_tokens_as_asked_for_are_written(document, models, greedy, count, draft):
    found = document(*PROMPT, "-n", count, "--draft", models[draft])
    assert (found["token_ids"], found["finish_reason"]) == (greedy[:count], "length")
    assert found["speculation"]["steps"] <= count


# --- where a text ends


@pytest.mark.parametrize("stop", few(["he", "ethe", "Is", "IsHe"], "ethe", "IsHe"))
@pytest.mark.parametrize("draft", ["draft", "target"])
def test_nothing_of_a_stop_string_or_after_it_is_written(generate, document, models, stop, draft):
    prompt = ("-p", "Hello there, it's", "--draft", models[draft], "-n", "12")
    whole = document(*prompt)
    cut = document(*prompt, "--stop", "never", "--stop", stop)
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert cut["finish_reason"] == "stop"
    assert cut["token_ids"] == whole["token_ids"][: len(cut["token_ids"])]
    assert generate(*prompt, "--stop", stop)[1] == cut["text"] + "\n"
    assert document(*prompt, "--plain", "--stop", stop)["token_ids"] == cut["token_ids"]
    # The budget runs out with the very token that completes the stop string.
    capped = document(*prompt, "--stop", stop, "-n", len(cut["token_ids"]))
    assert (capped["text"], capped["finish_reason"]) == (cut["text"], "stop")


def test_each_of_several_end_of_text_ids_of_the_target_ends_it(document, models, greedy, tmp_path):
    shutil.copytree(models["target"], tmp_path / "ends")
    for place in (3, 9):
        end = next(token for token in greedy[place:] if token not in greedy[:place])
        edit_json(tmp_path / "ends" / "generation_config.json", eos_token_id=[299, 298, end])
        found = document(*PROMPT, "-n", "40", "--target", tmp_path / "ends", "--draft", models["target"])
        assert found["token_ids"] == greedy[: greedy.index(end) + 1]
        assert found["finish_reason"] == "stop"


@pytest.mark.parametrize("draft", ["draft", "short"])
def test_a_text_that_fills_the_targets_context_ends_there_with_a_warning(generate, models, draft):
    options = ("-p", "Hello", "--target", models["short"], "--draft", models[draft], "--json")
    code, out, err = generate(*options, "-n", "64")
    found = json.loads(out)
    assert code == 0
    assert (found["finish_reason"], found["prompt_tokens"] + len(found["token_ids"])) == ("length", 33)
    assert found["token_ids"] == own_greedy(models["short"], "Hello", len(found["token_ids"]))[1]
    assert found["warnings"] == ["the text ended where the model's context does"]
    assert "warning: the text ended where the model's context does" in err
    assert json.loads(generate(*options, "-n", "5")[1])["warnings"] == []


@pytest.mark.parametrize(
    "options",
    [("int8",), ("int8", "--quantize-draft", "none"), ("int4",), ("int4", "--quantize-draft", "int8")],
)
def test_a_rounded_target_goes_with_a_draft_that_is_rounded_or_not(generate, options):
    for forward, told in (("fast", True), ("compiled", False)):
        code, _, err = generate("-n", "4", *PROMPT, "--forward", forward, "--quantize", *options)
        assert code == 0
        assert ("products of integers are slow unless with --forward compiled" in err) == told


def test_a_rounded_draft_goes_with_a_target_that_is_not(generate):
    texts = []
    for options in ((), ("--quantize-draft", "int8")):
        code, out, _ = generate("-n", "12", *PROMPT, "--json", *options)
        assert code == 0
        texts.append(json.loads(out)["token_ids"])
    assert texts[0] == texts[1]


# --- sampling


def test_a_seed_gives_the_same_text_again_and_another_seed_another(document):
    sampled = (*PROMPT, "-n", "20", "-T", "1", "--seed")
    first = document(*sampled, "17")
    assert first["seed"] == 17
    assert document(*sampled, "17")["token_ids"] == first["token_ids"]
    assert document(*sampled, "18")["token_ids"] != first["token_ids"]
    assert len(document(*sampled, str(2**64 - 1))["token_ids"]) == 20


def test_a_prompts_text_does_not_depend_on_the_prompt_before_it(document):
    sampled = ("-n", "20", "-T", "1", "--seed", "5")
    both = document(*sampled, "-p", "Hello", *PROMPT)
    assert both["results"][1]["token_ids"] == document(*sampled, *PROMPT)["token_ids"]


def test_a_prompt_given_several_times_has_several_texts_which_come_again(document):
    sampled = ("-n", "20", "-T", "1", "--seed", "5")
    thrice = document(*sampled, *PROMPT, "-p", "Hello", *PROMPT, *PROMPT)["results"]
    texts = [thrice[place]["token_ids"] for place in (0, 2, 3)]
    assert len(set(map(tuple, texts))) == 3
    assert texts[0] == document(*sampled, *PROMPT)["token_ids"]
    assert texts == [one["token_ids"] for one in document(*sampled, *PROMPT * 3)["results"]]


def test_a_tiny_temperature_is_greedy(document, greedy):
    assert document(*PROMPT, "-n", "40", "-T", "1e-6")["token_ids"] == greedy


def test_the_draft_temperature_is_the_drafts_alone(document, greedy):
    assert document(*PROMPT, "-n", "40", "-T", "1e-6", "--draft-temperature", "5")["token_ids"] == greedy


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--top-k", "5"], "temperature 0 takes the most probable token; without effect: --top-k\n"),
        (["--top-p", "0.9", "--seed", "3"], "without effect: --top-p, --seed\n"),
        (["--draft-temperature", "0.5"], "without effect: --draft-temperature\n"),
        (["--draft-temperature", "0"], "without effect: --draft-temperature\n"),
        (["--plain"], "--plain decodes without speculation; without effect: --tree, --draft\n"),
        (
            ["--plain", "--quantize-draft", "int8", "--verifier", "naive"],
            "speculation; without effect: --tree, --verifier, --draft, --quantize-draft\n",
        ),
        (
            ["--verifier", "naive"],
            "temperature 0 takes the most probable token; without effect: --verifier\n",
        ),
    ],
)
def test_options_without_effect_are_noted_once(generate, arguments, line):
    code, _, err = generate("-p", "Hello", "-n", "3", *arguments)
    assert code == 0
    assert err.count(line) == 1


# --- compared with plain decoding


def test_compare_reports_both_speeds_and_that_the_texts_are_equal(generate, document):
    options = ("-p", "Hello", *PROMPT, "-n", "12", "--compare")
    found = document(*options)
    assert found["plain"]["tokens_per_second"] > 0
    assert found["speedup"] == found["tokens_per_second"] / found["plain"]["tokens_per_second"]
    assert found["first_differences"] == {}
    code, out, err = generate(*options)
    assert (code, out) == (0, "".join(result["text"] + "\n" for result in found["results"]))
    assert "tokens/s, plain decoding" in err
    assert "2 of 2 texts equal plain decoding's id for id" in err


def test_compare_of_one_prompt_says_that_its_texts_are_equal(generate):
    assert "1 of 1 texts equal plain decoding's id for id" in generate(*PROMPT, "-n", "5", "--compare")[2]


@pytest.fixture
def wrong_trees(monkeypatch):
    """Trees that are verified wrongly, so that a greedy text differs from plain decoding's."""
    from dataclasses import replace

    from sequoia_cli.engine.verification import accept

    right = accept.verify_greedy

    def wrong(tree, *arguments):
        return replace(right(tree, *arguments), **({"next_token": 5} if tree.size > 1 else {}))

    monkeypatch.setattr(accept, "verify_greedy", wrong)


@pytest.mark.usefixtures("wrong_trees")
def test_texts_of_prompts_with_one_id_are_counted_one_by_one(generate, empty_place):
    rows = [json.dumps({"id": 7, "prompt": text}) for text in "abc"]
    (empty_place / "same.jsonl").write_text("\n".join(rows))
    code, out, err = generate("--prompts", "same.jsonl", "-n", "12", "--compare", "--json")
    assert code == 3
    assert list(json.loads(out)["first_differences"]) == ["7", "7#2", "7#3"]
    assert "0 of 3 texts equal plain decoding's" in err
    assert "2 prompts have the id of another one, so a number is added: 7#2, 7#3" in err


@pytest.mark.parametrize(("dtype", "expected"), [("float32", 3), ("bfloat16", 0)])
@pytest.mark.usefixtures("wrong_trees")
def test_a_greedy_text_unlike_the_plain_one_fails_the_check_in_float32(generate, dtype, expected):
    code, out, err = generate(*PROMPT, "-n", "12", "--compare", "--dtype", dtype, "--json")
    assert code == expected
    assert len(json.loads(out)["token_ids"]) == 12
    assert list(json.loads(out)["first_differences"]) == ["1"]
    assert ("greedy text differs from plain decoding in float32, for prompt 1" in err) == (code == 3)
    assert "0 of 1 texts equal plain decoding's" in err


@pytest.mark.parametrize("as_json", [False, True], ids=["streamed", "json"])
def test_a_text_that_ends_with_an_error_keeps_what_was_written(generate, document, monkeypatch, as_json):
    whole = document(*PROMPT)
    step = DecodedText.step

    def fails(self, eos_ids):
        if self.steps == 2:
            raise SequoiaError("the target's logits are not finite")
        return step(self, eos_ids)

    monkeypatch.setattr(DecodedText, "step", fails)
    code, out, err = generate(*PROMPT, *["--json"] * as_json)
    assert code == 1
    assert "the target's logits are not finite" in err and "Traceback" not in err
    written = json.loads(out)["text"] if as_json else out.rstrip("\n")
    assert written and whole["text"].startswith(written)
    assert whole["text"] != written
