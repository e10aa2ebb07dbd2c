"""Enumerating all outcomes of a random procedure with their probabilities, here of decoding steps."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

import torch

from reference import normalised, ordered_draws


class Choices:
    """What stands for chance in one run: it takes given choices first, then the first of what there is."""

    def __init__(self, given):
        self.given, self.taken, self.others, self.probability = given, [], [], 1.0

    def pick(self, options):
        """One of the (value, probability) pairs; those without probability are no choice."""
        options = [(value, chance) for value, chance in options if chance > 0]
        number = len(self.taken)
        index = self.given[number] if number < len(self.given) else 0
        if number >= len(self.given):
            self.others += [[*self.taken, other] for other in range(1, len(options))]
        self.taken.append(index)
        self.probability *= options[index][1]
        return options[index][0]


def outcomes(procedure: Callable[[Choices], object]) -> Iterator[tuple[object, float]]:
    """What the procedure returns and how probable that way of going is, for every way."""
    waiting = [[]]
    while waiting:
        choices = Choices(waiting.pop())
        result = procedure(choices)
        waiting += choices.others
        yield result, choices.probability


class Coin:
    """A number in [0, 1) that is not known yet: asked whether it is below a chance, it goes both ways."""

    def __init__(self, choices):
        self.choices = choices

    def __lt__(self, chance):
        chance = min(1.0, max(0.0, float(chance)))
        return self.choices.pick([(True, chance), (False, 1 - chance)])


def random_row(rng, size, zeros):
    row = [0.0 if zeros and rng.random() < 0.4 else rng.random() ** 3 for _ in range(size)]
    row[rng.randrange(size)] += 0.05
    return normalised(row)


class Pair:
    """A target and a draft over few tokens, with a distribution of their own after every text."""

    def __init__(self, size, zeros, seed):
        self.size, self._zeros, self._seed = size, zeros, seed
        self._rows = {}

    def __call__(self, kind, text):
        key = kind, text
        if key not in self._rows:
            rng = random.Random(f"{self._seed} {self.size} {key}")
            self._rows[key] = random_row(rng, self.size, self._zeros)
        return self._rows[key]

    def distribution(self, length):
        """The probability of every text of that length by the target."""
        found = {(): 1.0}
        for _ in range(length):
            found = {
                (*text, token): chance * p
                for text, chance in found.items()
                for token, p in enumerate(self("target", text))
            }
        return found


def without_replacement(row, count):
    return list(ordered_draws(row, count))


def with_replacement(row, count):
    tokens = itertools.product(range(len(row)), repeat=count)
    found = [(drawn, math.prod(row[token] for token in drawn)) for drawn in tokens]
    return [(drawn, chance) for drawn, chance in found if chance > 0]


def the_most_probable(row, count):
    order = torch.tensor(row, dtype=torch.float64).topk(count).indices.tolist()
    return [(tuple(order), 1.0)]


#: How each verifier's children come, as the paper it is from has it.
DRAWS = {
    "sequoia": without_replacement,
    "specinfer": with_replacement,
    "spectr": with_replacement,
    "naive": the_most_probable,
    "traversal": without_replacement,
}


def steps(verifier, tree, pair, monkeypatch) -> list[tuple[tuple[int, ...], float]]:
    """The tokens of every step there can be (the accepted ones and the next), with their probabilities.

    A node's children are drawn when they are asked for: none has a say in what comes before that.
    """
    from sequoia_cli.engine.verification import traversal, walk
    from sequoia_cli.engine.verification.walk import Drawn

    def step(choices):
        def drawn(node):
            children = tree.children[node]
            if not children:
                return []
            row = pair("draft", text(node))
            picked = choices.pick(DRAWS[verifier.name](row, len(children)))
            for child, token in zip(children, picked, strict=True):
                tokens[child] = token
            return [Drawn(torch.tensor(row, dtype=torch.float64), list(children))]

        def text(node):
            return tuple(tokens[i] for i in tree.path(node)[1:])

        def draw(probs, uniform):
            return choices.pick(list(enumerate((probs / probs.sum()).tolist())))

        def target(node):
            return torch.tensor(pair("target", text(node)), dtype=torch.float64)

        tokens = [0] * tree.size
        with monkeypatch.context() as patch:
            for module in (traversal, walk):
                patch.setattr(module, "draw", draw)
            verdict = verifier.judge(tokens, target, drawn, [Coin(choices)] * (tree.size + 1))
        return (*(tokens[node] for node in verdict.path[1:]), verdict.next_token)

    return list(outcomes(step))


def completed_distribution(found, pair, length):
    """The distribution of texts of `length` tokens: a step, then tokens drawn from the target."""
    probs = dict.fromkeys(itertools.product(range(pair.size), repeat=length), 0.0)
    begun = {}
    for text, chance in found:
        begun[text] = begun.get(text, 0.0) + chance
    for whole in probs:
        for cut in range(1, length + 1):
            rest = begun.get(whole[:cut], 0.0)
            for place in range(cut, length):
                rest *= pair("target", whole[:place])[whole[place]]
            probs[whole] += rest
    return probs


def distribution_error(verifier, tree, pair, monkeypatch) -> float:
    """The largest error of the joint distribution of a step and the tokens after it."""
    found = completed_distribution(steps(verifier, tree, pair, monkeypatch), pair, tree.depth)
    return max(abs(found[text] - chance) for text, chance in pair.distribution(tree.depth).items())


def mean_tokens(found) -> float:
    """Tokens per step."""
    return sum(len(text) * chance for text, chance in found)
