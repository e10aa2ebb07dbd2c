"""Verification on the device: every node is tested as if it were reached, so that the host reads only once.

The slow twin is `verify`, which looks only at the path, but waits for the device at every child.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.draw import draw_rows
from sequoia_cli.engine.fast.capture import Buffered, Recorder
from sequoia_cli.engine.finite import NotFinite, finite_rows
from sequoia_cli.engine.verification.walk import Verdict
from sequoia_cli.engine.warp import Sampling, probabilities


class Families:
    """The nodes of a tree that have children, those with most children first.

    `parents` (families,) are these nodes, `rows` their places among `TokenTree.expanded`, `eldest` their
    first children; `having[k]` families have more than k children.
    """

    def __init__(self, tree: TokenTree, device: torch.device) -> None:
        nodes = [node for level in tree.expanded for node in level]
        order = sorted(range(len(nodes)), key=lambda row: -len(tree.children[nodes[row]]))
        counts = [len(tree.children[nodes[row]]) for row in order]
        self.having = [sum(count > rank for count in counts) for rank in range(max(counts, default=0))]

        def on_device(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        self.parents, self.rows = on_device([nodes[row] for row in order]), on_device(order)
        self.eldest = on_device([tree.children[nodes[row]].start for row in order])


@torch.inference_mode()
def judge(families: Families, target: Tensor, draft: Tensor, tokens: Tensor, uniforms: Tensor) -> Tensor:
    """What `read_verdict` reads: (nodes, 5) of token, accepted child or 0, token after the node, fallbacks,
    and whether the node's row is finite.

    `target` (nodes, vocabulary) has the target's probabilities after each node, `draft` those that the
    children of the nodes of `TokenTree.expanded` were drawn from, level by level. `tokens` (nodes,) and
    `uniforms` (nodes + 1,) are as in `verify`. (arXiv 2402.12374, Algorithm 2; R and D as in `ResidualRule`)
    """
    parents, dtype = families.parents, torch.promote_types(target.dtype, draft.dtype)
    target = target.to(dtype)
    residual, offered = target[parents], draft[families.rows].to(dtype)
    without, untried = residual.clone(), torch.ones_like(offered)
    accepted, fallbacks = torch.zeros_like(parents), torch.zeros_like(parents)
    for rank, count in enumerate(families.having):
        child = families.eldest[:count] + rank
        token = tokens[child][:, None]
        passed = uniforms[child] < _chance(residual[:count], offered[:count], token)
        waits = accepted[:count] == 0
        accepted[:count] = torch.where(waits & passed, child, accepted[:count])

        # Rejected. The residual of a family that has accepted a child is never used.
        rest = (residual[:count] - offered[:count]).clamp_(min=0)
        emptied = ~(rest.sum(-1, keepdim=True) > 0)
        fallbacks[:count] += waits & ~passed & emptied[:, 0]
        rest = torch.where(emptied, without[:count].scatter_(1, token, 0), rest)
        mass = rest.sum(-1, keepdim=True)
        residual[:count] = torch.where(mass > 0, rest / mass, target[parents[:count]])

        more = sum(families.having[rank + 1 : rank + 2])
        for part in (offered, untried):
            part[:more].scatter_(1, token[:more], 0)
        left = offered[:more]
        left = torch.where(left.sum(-1, keepdim=True) > 0, left, untried[:more])
        offered[:more] = left / left.sum(-1, keepdim=True)

    after = draw_rows(target.index_copy(0, parents, residual), uniforms[-1:])
    none = torch.zeros_like(tokens)
    columns = tokens, none.index_copy(0, parents, accepted), after, none.index_copy(0, parents, fallbacks)
    return torch.stack((*columns, finite_rows(target).long()), 1)


class Judge:
    """`judge` for trees of one shape, from logits; recorded where the target's forwards are."""

    def __init__(
        self, tree: TokenTree, device: torch.device, sampling: Sampling, recorder: Recorder | None
    ) -> None:
        families = Families(tree, device)

        def run(logits: Tensor, draft: Tensor, tokens: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
            return (judge(families, probabilities(logits, sampling), draft, tokens, uniforms),)

        self._run = run
        self._recorder = recorder.other("the verification") if recorder else None
        self._buffered: Buffered | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """As `judge`, of logits (nodes, vocabulary) in place of the target's probabilities."""
        if self._recorder is None:
            return self._run(*inputs)[0]
        self._buffered = self._buffered or Buffered(self._run, self._recorder, inputs)
        return self._buffered(*inputs)[0]


def read_verdict(judged: Sequence[Sequence[int]]) -> Verdict:
    """The path from the root, from the result of `judge`.

    Raises `NotFinite` for a node on it whose row is not.
    """
    path, fallbacks = [0], 0
    while True:
        _, accepted, after, emptied, finite = judged[path[-1]]
        if not finite:
            raise NotFinite(node=path[-1])
        fallbacks += emptied
        if not accepted:
            return Verdict(tuple(path), after, fallbacks)
        path.append(accepted)


def _chance(residual: Tensor, offered: Tensor, token: Tensor) -> Tensor:
    """(families,) min(1, R(x) / D(x)) of each family's own (families, 1) token."""
    wanted, proposed = (part.gather(1, token)[:, 0].double() for part in (residual, offered))
    return torch.where(proposed > 0, (wanted / proposed).clamp(max=1), (wanted > 0).double())
