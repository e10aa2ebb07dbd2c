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
    """A target whose checkpoint asks for penalties and sampling, an assistant that does, and a padded one."""
    place, tokenizer = tmp_path_factory.mktemp("theirs"), byte_level()
    target = tiny_model("llama", len(tokenizer), initializer_range=0.1)
    made = {
        "target": target,
        "assistant": near(target, 0.01),
        "padded": tiny_model("llama", len(tokenizer) + 25, seed=3),
    }
    for name, model in made.items():
        model.save_pretrained(place / name)
        settings = {"repetition_penalty": 9.0, "do_sample": True, "temperature": 3.0, "top_k": 7}
        edit_json(place / name / "generation_config.json", eos_token_id=None, **settings)
        tokenizer.save_pretrained(place / name)
    return {name: str(place / name) for name in made}


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


def text(name, asked, seed=1):
    return run(make_engine(name, asked), asked, 0, seed)["token_ids"]


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


@pytest.mark.parametrize("name", ["plain", "transformers"])
def test_what_is_sampled_follows_the_seed_of_the_text(folders, name):
    """Not that of the work, which would give every round the same text."""
    asked = given(folders, sampling=Sampling(temperature=2.0))
    engine = make_engine(name, asked)
    one, again, other = (run(engine, asked, 0, seed)["token_ids"] for seed in (1, 1, 2))
    assert one == again != other


def test_the_compiled_engine_asks_for_a_static_cache_and_a_compiled_forward_and_gives_the_same_text(
    folders, monkeypatch
):
    monkeypatch.setattr("shutil.which", lambda name: name)
    asked = given(folders)
    engine = make_engine("transformers-compiled", asked)
    used = []
    right = engine._model.generate
    engine._model.generate = lambda ids, **options: (
        used.append(options["generation_config"]) or right(ids, **options)
    )
    config = engine._config
    assert config.cache_implementation == "static"
    assert config.compile_config._compile_all_devices  # else a CPU runs uncompiled
    config.compile_config.backend = "eager"  # traced as for any backend, without the minute of a compiler
    assert run(engine, asked, 0, 1)["token_ids"] == text("plain", asked)
    assert used == [config]


def test_the_compiled_engine_needs_a_family_with_a_static_cache_and_a_compiler(folders, monkeypatch):
    from sequoia_cli.bench.engines import hugging_face

    monkeypatch.setattr(hugging_face.shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="needs a C\\+\\+ compiler"):
        make_engine("transformers-compiled", given(folders))
    loaded = hugging_face.load_target

    def without(*arguments, **options):
        target = loaded(*arguments, **options)
        target.model._can_compile_fullgraph = False
        return target

    monkeypatch.setattr(hugging_face, "load_target", without)
    with pytest.raises(Unavailable, match="no static cache for family 'llama'"):
        make_engine("transformers-compiled", given(folders))


def test_a_pair_of_other_sizes_is_left_out_for_assisted_generation(folders):
    rows = 25 + len(byte_level())
    with pytest.raises(Unavailable, match=f"cannot pair {rows - 25} with {rows} rows"):
        make_engine("assisted", given(folders, assistant=folders["padded"]))


def test_an_assistants_tokens_come_several_at_a_time(folders):
    asked = given(folders)
    arrivals = {name: run(make_engine(name, asked), asked, 0, 1)["arrivals"] for name in LISTS}
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
