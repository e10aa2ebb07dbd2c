"""Scripts: chat templates split around their turns, start tokens, and prompts over and over."""

import itertools
from collections import Counter

import pytest

from sequoia_cli.distill.scripts import GeneratedPart, GivenPart, Lengths, answers, chats, documents
from sequoia_cli.errors import BadInput
from tiny_tokenizers import CHAT, CHAT_WITHOUT_BOS, SPECIAL, byte_fallback, byte_level

LLAMA_2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content | trim }} [/INST]"
    "{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
MARKED = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
ONE_TURN = "{% if messages | length > 1 %}{{ raise_exception('one turn only') }}{% endif %}" + CHAT
#: Prints a first turn in another way where a second one follows.
NUMBERED = "{{ messages | length }} messages. " + CHAT
DROPPING = "{{ bos_token }}[user] of {{ messages[0].content | length }} letters [assistant]"
RAISING = "{{ raise_exception('no chats today') }}"
BARE = "{% for m in messages %}{{ m.content }}{% endfor %}"

TEXTS = ["Hello the", "wo rld", "thre"]


def chat(template, make=byte_level, turns=2, **options):
    """The first script of `turns` turns that such a template gives, and its tokenizer."""
    tokenizer = make(chat_template=template, **options)
    scripts = chats(tokenizer, (2,), (0.0, 0.7), Lengths(user=11, answer=22), seed=0)
    return tokenizer, next(script for script in itertools.islice(scripts, 40) if len(script) == 4 * turns)


def given(script):
    return [part.tokens for part in script if isinstance(part, GivenPart)]


def written(script):
    return [part for part in script if isinstance(part, GeneratedPart)]


def conversation(tokenizer, texts):
    """What the template itself makes of these turns."""
    roles = itertools.cycle(("user", "assistant"))
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("template", [CHAT, CHAT_WITHOUT_BOS, MARKED])
@pytest.mark.parametrize("turns", [1, 2])
def test_given_parts_and_turns_join_to_what_the_template_prints(make, template, turns):
    tokenizer, script = chat(template, make, turns)
    texts = TEXTS[: 2 * turns - 1]
    whole = tokenizer(conversation(tokenizer, texts), add_special_tokens=False)["input_ids"]
    at = 0
    for part, text in zip(given(script), [*texts, ""], strict=True):
        assert tuple(whole[at : at + len(part)]) == part
        at += len(part)
        if text:
            # Up to where the ids after a text start with the next part again.
            following = given(script)[given(script).index(part) + 1]
            at = next(i for i in range(at, len(whole)) if tuple(whole[i : i + len(following)]) == following)
    assert at == len(whole)


def test_the_targets_turns_have_their_own_temperature_limit_and_purpose():
    _, script = chat(CHAT)
    user, answer, second, last = written(script)
    assert user == second
    assert answer == last
    assert (user.most, user.temperature, user.answer) == (11, 1.0, False)
    assert (answer.most, answer.answer) == (22, True)
    assert answer.temperature in (0.0, 0.7)
    assert 2 in user.ends & answer.ends


def test_one_and_two_turns_and_all_temperatures_come_up_about_equally_often():
    tokenizer = byte_level(chat_template=CHAT)
    scripts = list(itertools.islice(chats(tokenizer, (), (0.0, 0.6, 0.9), Lengths(), seed=3), 300))
    # Binomial counts of 300: each bound is more than five standard deviations away, and the seed is fixed.
    assert 100 < sum(len(script) == 8 for script in scripts) < 200
    counts = Counter(script[3].temperature for script in scripts)
    assert all(55 < counts[temperature] < 145 for temperature in (0.0, 0.6, 0.9))
    again = list(itertools.islice(chats(tokenizer, (), (0.0, 0.6, 0.9), Lengths(), seed=3), 300))
    assert scripts == again


def test_a_mark_ends_a_turn_where_the_template_has_one_and_a_line_does_not_end_an_answer():
    marks = {"additional_special_tokens": ["<|start|>", "<|end|>"]}
    tokenizer, script = chat(MARKED, **marks)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert {frozenset({2, end})} == {part.ends for part in written(script)}
    tokenizer, script = chat(CHAT)
    (line,) = tokenizer("\n")["input_ids"]
    assert [part.ends for part in written(script)] == [frozenset({2, line}), frozenset({2})] * 2


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_a_template_that_strips_turns_is_taken_apart_without_the_spaces_around_them(make):
    tokenizer, script = chat(LLAMA_2, make)
    parts = [tokenizer.decode(part).replace(" ", "") for part in given(script)]
    assert parts == ["<s>[INST]", "[/INST]", "</s><s>[INST]", "[/INST]"]
    pieces = [tokenizer.convert_ids_to_tokens(part) for part in given(script)]
    assert (pieces[0][-1], pieces[2][-1]) == ("]", "]")
    # One space, and not the two that the second tokenizer makes of a text that begins with one.
    assert pieces[1][0] in ("Ġ", "Ġ[", "▁")
    assert written(script)[1].ends == {2, tokenizer.eos_token_id}


@pytest.mark.parametrize("template", [ONE_TURN, NUMBERED])
def test_a_template_that_will_not_have_a_second_turn_gives_chats_of_one(template):
    scripts = chats(byte_level(chat_template=template), (2,), (0.0,), Lengths(), seed=0)
    assert {len(script) for script in itertools.islice(scripts, 30)} == {4}


@pytest.mark.parametrize(
    ("template", "line"),
    [
        (DROPPING, "does not print a user's turn as it is"),
        (RAISING, "refuses a chat: no chats today"),
        (BARE, "puts nothing before or after a user's turn"),
    ],
)
def test_a_template_that_no_user_can_be_drawn_from_is_refused_with_a_way_out(template, line):
    with pytest.raises(BadInput, match=line) as caught:
        next(chats(byte_level(chat_template=template), (2,), (0.0,), Lengths(), seed=0))
    assert caught.value.hint == "give prompts with --dataset"


def test_a_base_model_writes_from_its_start_token_else_from_its_end_of_text():
    tokenizer = byte_level()
    for start in (SPECIAL["bos_token"], SPECIAL["eos_token"]):
        first, opening, text = next(
            documents(tokenizer, (2, 5), (0.6,), Lengths(opening=7, answer=9), seed=0)
        )
        assert first == GivenPart((tokenizer.convert_tokens_to_ids(start),))
        assert opening == GeneratedPart(7, frozenset(), 1.0, False)
        assert text == GeneratedPart(9, frozenset({2, 5}), 0.6, True)
        tokenizer.bos_token = None


def test_a_base_model_without_either_is_refused_with_a_way_out():
    tokenizer = byte_level()
    tokenizer.bos_token = tokenizer.eos_token = None
    with pytest.raises(BadInput, match="neither a chat template nor a start token") as caught:
        next(documents(tokenizer, (), (0.6,), Lengths(), seed=0))
    assert caught.value.hint == "give prompts with --dataset"


PROMPTS = [[1, 2], [3], [4, 5, 6]]


def temperatures_of(scripts):
    """For each prompt, the temperatures of its answers in the order they come in."""
    found = {}
    for given, answer in scripts:
        found.setdefault(given.tokens, []).append(answer.temperature)
    return found


def test_prompts_come_round_once_each_before_any_comes_again():
    prompts = PROMPTS
    scripts = list(itertools.islice(answers(prompts, (2,), (0.0, 0.7), Lengths(answer=9), seed=1), 12))
    for first in range(0, 12, 3):
        assert sorted(list(part[0].tokens) for part in scripts[first : first + 3]) == prompts
    assert {script[1].temperature for script in scripts} == {0.0, 0.7}
    assert {(script[1].most, script[1].ends, script[1].answer) for script in scripts} == {
        (9, frozenset({2}), True)
    }


def test_a_prompt_is_answered_at_each_temperature_in_turn_and_greedily_once():
    scripts = list(itertools.islice(answers(PROMPTS, (), (0.0, 0.6, 0.9, 0.0), Lengths(), seed=1), 3 * 9))
    found = temperatures_of(scripts)
    for each in found.values():
        assert sorted(each[:3]) == [0.0, 0.6, 0.9]
        assert [sorted(each[at : at + 2]) for at in (3, 5, 7)] == [[0.6, 0.9]] * 3
    assert len({tuple(each) for each in found.values()}) > 1


def test_with_no_temperature_above_0_there_is_one_answer_to_a_prompt():
    found = temperatures_of(answers(PROMPTS, (), (0.0,), Lengths(), seed=1))
    assert found == {tuple(prompt): [0.0] for prompt in PROMPTS}
    assert list(answers(PROMPTS, (), (0.0,), Lengths(), seed=1, done=3)) == []


def test_answers_resume_after_those_that_are_done_as_if_they_had_not_stopped():
    whole = list(itertools.islice(answers(PROMPTS, (2,), (0.0, 0.7), Lengths(), seed=1), 20))
    for done in range(12):
        rest = answers(PROMPTS, (2,), (0.0, 0.7), Lengths(), seed=1, done=done)
        assert list(itertools.islice(rest, 20 - done)) == whole[done:]
