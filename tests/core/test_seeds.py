"""Seeds: one for each text, whatever stands beside it."""

from sequoia_cli.core.seeds import mixed, prompt_seeds


def test_seeds_of_different_numbers_differ():
    assert len({mixed(seed, number) for seed in range(50) for number in range(50)}) == 2500
    assert all(0 <= mixed(seed, 1) < 1 << 64 for seed in (0, (1 << 64) - 1))


def test_a_prompt_that_comes_again_has_another_seed():
    seeds = prompt_seeds(5, [[1, 2]] * 4)
    assert seeds[0] == 5
    assert len(set(seeds)) == 4
    assert seeds == prompt_seeds(5, [[1, 2]] * 4)


def test_other_prompts_do_not_change_a_prompts_seeds():
    alone = prompt_seeds(5, [[1, 2]] * 3)
    among = prompt_seeds(5, [[1], [1, 2], [3], [1, 2], [1], [1, 2]])
    assert [among[place] for place in (1, 3, 5)] == alone
