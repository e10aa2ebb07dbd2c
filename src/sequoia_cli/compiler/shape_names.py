"""Fixed shapes by name: the baselines of the papers.

The numbers count what is drafted: the root, which is the last committed token, is not in them, while it is in
the size and depth of a tree. So `kchains:5x8` is SpecInfer's "5x8", 41 nodes in 9 layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, repeat

from sequoia_cli.compiler import shapes
from sequoia_cli.compiler.tables import MAX_SIZE
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.errors import BadInput

#: The name that asks for no fixed shape but for the tree of the dynamic programme.
SEARCHED = "sequoia"

_NUMBER = "([1-9][0-9]{0,8})"


@dataclass(frozen=True)
class _Form:
    """How a shape's numbers are written, and the children that they give the nodes of each layer."""

    pattern: str
    example: str
    counts: Callable[[list[int]], Iterable[int]]


_FORMS = {
    "chain": _Form(_NUMBER, "chain:8", lambda numbers: repeat(1, numbers[0])),
    "kchains": _Form(
        f"{_NUMBER}x{_NUMBER}", "kchains:5x8", lambda numbers: chain(numbers[:1], repeat(1, numbers[1] - 1))
    ),
    "kary": _Form(f"{_NUMBER}x{_NUMBER}", "kary:2x6", lambda numbers: repeat(*numbers)),
    "expansion": _Form(f"{_NUMBER}(,{_NUMBER})*", "expansion:1,1,3,1,1,1,1,1", lambda numbers: numbers),
}


def named_shape(name: str) -> TokenTree | None:
    """The tree that `name` asks for, None for `sequoia`, which has to be searched for.

    `chain:8` is 8 tokens in a row; `kchains:5x8` 5 independent chains of 8; `kary:2x6` 6 complete levels of 2
    children each; `expansion:1,1,3` SpecInfer's configuration <1,1,3> (`shapes.expansion`). Raises `BadInput`
    for anything else, and for more than `MAX_SIZE` nodes.
    """
    if name == SEARCHED:
        return None
    kind, _, numbers = name.partition(":")
    if kind not in _FORMS:
        known = ", ".join([SEARCHED, *(form.example for form in _FORMS.values())])
        raise BadInput(f"{name} is no shape; expected one such as {known}")
    form = _FORMS[kind]
    if not re.fullmatch(form.pattern, numbers):
        raise BadInput(
            f"{name} has {numbers!r} for its numbers; expected whole numbers from 1 up, as in {form.example}"
        )
    counts, width, size = [], 1, 1
    for count in form.counts([int(number) for number in re.findall("[0-9]+", numbers)]):
        counts.append(count)
        width *= count
        size += width
        if size > MAX_SIZE:
            raise BadInput(f"{name} has more than {MAX_SIZE} nodes; no larger tree is made")
    return shapes.expansion(counts)
