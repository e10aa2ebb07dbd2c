"""transformers as an engine: greedy texts are ours id for id, whatever its checkpoint says of sampling."""

import pytest
from test_samples import work

from folders import edit_json
from models import near, tiny_model
from sequoia_cli.bench.engines import Unavailable, make_engine
from sequoia_cli.bench.worker import run
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.errors import BadInput
from tiny_tokenizers import byte_level

LISTS = ("transformers", "assisted", "lookup")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target whose checkpoint asks for penalties and sampling, and an assistant that does, too."""
    place, tokenizer = tmp_path_factory.mktemp("theirs"), byte_level()
    target = tiny_model("llama", len(tokenizer), initializer_range=0.1)
    for name, model in {"target": target, "assistant": near(target, 0.01)}.items():
        model.save_pretrained(place / name)
        settings = {"repetition_penalty": 9.0, "do_sample": True, "temperature": 3.0, "top_k": 7}
        edit_json(place / name / "generation_config.json", eos_token_id=None, **settings)
        tokenizer.save_pretrained(place / name)
    return {name: str(place / name) for name in ("target", "assistant")}


def given(folders, **options):
    settings = {
        "target": folders["target"],
        "folder": folders["target"],
        "drafts": (folders["assistant"],),
        "prompts": ((5, 6, 7, 5, 6, 7, 5, 6),),
        "eos_ids": (),
        "max_new_tokens": 12,
        "sampling": Sampling(),
    }
    return work(**{**settings, **options})


def text(name, asked):
    return run(make_engine(name, asked), asked, 0)["token_ids"]


def test_greedy_texts_are_ours_id_for_id(folders):
    asked = given(folders)
    ours = text("plain", asked)
    assert len(ours) == 12
    assert {name: text(name, asked) for name in LISTS} == dict.fromkeys(LISTS, ours)


def test_a_text_ends_where_ours_ends(folders):
    ours = text("plain", given(folders))
    end = ours[6]
    asked = given(folders, eos_ids=(end,))
    expected = ours[: ours.index(end) + 1]
    for name in ("plain", *LISTS):
        assert text(name, asked) == expected


def test_what_is_sampled_follows_the_work_alone(folders):
    """A temperature near 0 leaves the greedy text; the checkpoint's would not."""
    asked = given(folders, sampling=Sampling(temperature=1e-4))
    assert text("transformers", asked) == text("plain", given(folders))


def test_an_assistants_tokens_come_several_at_a_time(folders):
    asked = given(folders)
    arrivals = {name: run(make_engine(name, asked), asked, 0)["arrivals"] for name in LISTS}
    assert [count for _, count in arrivals["transformers"]] == [1] * 12
    assert max(count for _, count in arrivals["assisted"]) > 1


def test_a_feature_draft_cannot_assist(smollm2_pair):
    asked = work(target="smollm2", drafts=("smollm2-draft",), dtype="bfloat16")
    with pytest.raises(
        Unavailable, match="'smollm2-draft' is no whole language model; --assistant names one"
    ):
        make_engine("assisted", asked)


def test_an_assistant_that_does_not_exist_is_a_mistake(folders):
    with pytest.raises(BadInput, match="nowhere"):
        make_engine("assisted", given(folders, assistant="./nowhere"))
