"""What comes back from an engine: tokens, when they came, and what speeds follow."""

import json

import pytest

from sequoia_cli.bench.workload import Sample, Workload
from sequoia_cli.core.ending import cut
from sequoia_cli.engine.warp import Sampling


def sample(*arrivals, engine="plain", number=0, prompt=0, tokens=()):
    return Sample(engine, number, prompt, tuple(tokens), arrivals)


def test_speeds_count_what_came_after_the_first_arrival():
    found = sample((2.0, 3), (2.5, 1), (4.0, 4))
    assert found.first_token_seconds == 2.0
    assert found.tokens_per_second == 5 / 2.0
    assert found.tokens_per_step == 2.5
    assert found.seconds_per_step == 1.0


@pytest.mark.parametrize("arrivals", [(), ((2.0, 3),)])
def test_a_text_of_one_arrival_has_no_speed(arrivals):
    found = sample(*arrivals)
    assert found.tokens_per_second is None
    assert found.tokens_per_step is None
    assert found.seconds_per_step is None


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [([1, 2, 3], [1, 2, 3]), ([1, 9, 3], [1, 9]), ([9], [9]), ([1, 2, 3, 4, 5], [1, 2, 3, 4]), ([], [])],
)
def test_a_text_is_cut_after_its_end_and_at_the_budget(tokens, kept):
    assert cut(tokens, (9, 8), 4) == kept


def work(**options):
    settings = {
        "target": "t",
        "folder": "f",
        "drafts": ("d",),
        "device": "cpu",
        "dtype": "float32",
        "prompts": ((1, 2), (3,)),
        "eos_ids": (9,),
        "max_new_tokens": 4,
        "sampling": Sampling(0.6, 5, 0.9),
        "seed": 3,
        "threads": 2,
    }
    return Workload(**{**settings, **options})


def test_work_crosses_a_process_boundary_unchanged():
    given = work(tree=(-1, 0, 0), gguf="x.gguf")
    assert Workload.from_dict(json.loads(json.dumps(given.to_dict()))) == given
    assert given.longest == 6


@pytest.mark.parametrize(("lengths", "warm_up"), [((3, 9, 1, 5), (1, 2)), ((4,), (0,)), ((2, 2), (1, 0))])
def test_the_longest_prompt_warms_up_and_then_the_shortest(lengths, warm_up):
    assert work(prompts=tuple((1,) * length for length in lengths)).warm_up == warm_up


def test_each_round_and_prompt_has_a_seed_of_its_own_that_depends_on_the_given_one():
    places = [(number, prompt) for number in range(-1, 40) for prompt in range(40)]
    seeds = [work().text_seed(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    assert seeds == [work().text_seed(*place) for place in places]
    assert set(seeds).isdisjoint(work(seed=4).text_seed(*place) for place in places)
