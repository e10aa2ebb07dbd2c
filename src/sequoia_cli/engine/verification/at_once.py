"""Verification on the device: the walk down the tree without the host, which reads only its result.

The slow twins are `verify` with each verifier's rule, which wait for the device at every child. Everything
here works on several texts side by side: `texts` rows, of trees of one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.draw import draw_rows
from sequoia_cli.engine.fast.capture import Buffered, Recorder
from sequoia_cli.engine.finite import NotFinite, finite_rows
from sequoia_cli.engine.verification.k_sequential import HALVINGS
from sequoia_cli.engine.verification.walk import Verdict
from sequoia_cli.engine.warp import Sampling, probabilities


class TreeTable:
    """A tree as tensors.

    `children` (nodes, most) has the children of each node, 0 where there are no more, `counts` (nodes,) their
    number, and `rows` (nodes,) the place of a node among those that have children. `most` is the largest
    number of children by level, of levels that have some.
    """

    def __init__(self, tree: TokenTree, device: torch.device) -> None:
        self.size = tree.size
        self.most = [max(len(tree.children[node]) for node in level) for level in tree.expanded]
        widest = max(self.most, default=1)
        places: dict[int, int] = {}
        for level in tree.expanded:
            places |= {node: len(places) + place for place, node in enumerate(level)}
        rows = [[*run, *[0] * (widest - len(run))] for run in tree.children]
        self.children = torch.tensor(rows, dtype=torch.long, device=device)
        self.counts = torch.tensor([len(run) for run in tree.children], device=device)
        self.rows = torch.tensor([places.get(node, 0) for node in range(tree.size)], device=device)


class DeviceRule(Protocol):
    """Tests the children of one node in each text, by the rule of a verifier (compare `walk.Rule`)."""

    #: (texts,) residuals that had no mass left because of rounding.
    fallbacks: Tensor

    def accepts(self, token: Tensor, uniform: Tensor) -> Tensor:
        """(texts,) booleans: whether the next child, (texts,) tokens, passes its test with these numbers."""

    def reject(self, token: Tensor, where: Tensor) -> None:
        """The child just tested was rejected in the texts `where`, (texts,) booleans."""

    def residual(self, where: Tensor) -> Tensor:
        """(texts, vocabulary): the distribution after the node once all children are rejected, as they are in
        the texts `where`."""


#: Makes the rule of a node from the target's and the draft's rows (texts, vocabulary), the number of children
#: (texts,), and the number in [0, 1) of the node (texts,).
MakeRule = Callable[[Tensor, Tensor, Tensor, Tensor], DeviceRule]


class DeviceResidual:
    """Sequoia's rule, without replacement (arXiv 2402.12374, Algorithm 2), or SpecInfer's, with it.

    R and D are those of `ResidualRule`.
    """

    def __init__(self, target: Tensor, draft: Tensor, *, replacement: bool) -> None:
        self._target, self._residual, self._draft = target, target, draft
        self._replacement = replacement
        self._without = target  # the rejected tokens
        self._untried = torch.ones_like(draft)
        self.fallbacks = torch.zeros(len(target), dtype=torch.long, device=target.device)

    def accepts(self, token: Tensor, uniform: Tensor) -> Tensor:
        """See `DeviceRule`."""
        return uniform < _chance(self._residual, self._draft, token)

    def reject(self, token: Tensor, where: Tensor) -> None:
        """See `DeviceRule`."""
        here, column = where[:, None], token[:, None]
        rest = (self._residual - self._draft).clamp_(min=0)
        emptied = ~(rest.sum(-1, keepdim=True) > 0)
        self.fallbacks = self.fallbacks + (where & emptied[:, 0])
        without = self._without.scatter(1, column, 0)
        self._without = torch.where(here, without, self._without)
        rest = torch.where(emptied, without, rest)
        mass = rest.sum(-1, keepdim=True)
        rest = torch.where(mass > 0, rest / mass, self._target)
        self._residual = torch.where(here, rest, self._residual)
        if self._replacement:
            return
        self._untried = torch.where(here, self._untried.scatter(1, column, 0), self._untried)
        left = self._draft.scatter(1, column, 0)
        left = torch.where(left.sum(-1, keepdim=True) > 0, left, self._untried)
        self._draft = torch.where(here, left / left.sum(-1, keepdim=True), self._draft)

    def residual(self, where: Tensor) -> Tensor:
        """See `DeviceRule`."""
        return self._residual


class DeviceKSequential:
    """SpecTr's rule (see `KSequential`), with the division factor by a fixed number of halvings."""

    def __init__(self, target: Tensor, draft: Tensor, count: Tensor) -> None:
        self._target, self._draft = target.double(), draft.double()
        count = count.double()
        shared = (target > 0) & (draft > 0)
        wanted, offered = (torch.where(shared, part, 0) for part in (self._target, self._draft))

        def lossless(factor: Tensor) -> Tensor:
            each = torch.minimum(offered, wanted / factor[:, None]).sum(-1)
            return 1 - (1 - each) ** count <= factor * each

        low, high = torch.ones_like(count), count.clamp(min=1)
        first = lossless(low)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough = lossless(middle)
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        self._factor = torch.where(first, 1.0, high)[:, None]
        kept = torch.minimum(self._draft, self._target / self._factor)
        each = kept.sum(-1).clamp(max=1)
        tries = torch.where(each > 0, (1 - (1 - each) ** count) / each, count)
        self._accepted = kept * tries[:, None]
        self.fallbacks = torch.zeros(len(target), dtype=torch.long, device=target.device)

    def accepts(self, token: Tensor, uniform: Tensor) -> Tensor:
        """See `DeviceRule`."""
        return uniform < _chance(self._target / self._factor, self._draft, token)

    def reject(self, token: Tensor, where: Tensor) -> None:
        """The next child is tested as this one was."""

    def residual(self, where: Tensor) -> Tensor:
        """See `DeviceRule`."""
        rest = (self._target - self._accepted).clamp_(min=0)
        mass = rest.sum(-1, keepdim=True)
        self.fallbacks = (where & ~(mass[:, 0] > 0)).long()
        return torch.where(mass > 0, rest / mass, self._target)


class DeviceMatch:
    """The naive rule: a token drawn from the target, and the child that equals it (see `verify_matching`)."""

    def __init__(self, target: Tensor, uniform: Tensor) -> None:
        self._drawn, self._like = draw_rows(target, uniform.to(torch.float64)), target
        self.fallbacks = torch.zeros_like(self._drawn)

    def accepts(self, token: Tensor, uniform: Tensor) -> Tensor:
        """See `DeviceRule`."""
        return token == self._drawn

    def reject(self, token: Tensor, where: Tensor) -> None:
        """The other children are compared with the same token."""

    def residual(self, where: Tensor) -> Tensor:
        """All of the mass on the token that was drawn."""
        return torch.zeros_like(self._like).scatter_(1, self._drawn[:, None], 1)


@torch.inference_mode()
def walk_on_device(
    tree: TreeTable,
    make_rule: MakeRule,
    target: Callable[[Tensor], Tensor],
    draft: Callable[[Tensor], Tensor],
    tokens: Tensor,
    uniforms: Tensor,
) -> Tensor:
    """What `read_walk` reads, (texts, levels + 3).

    The accepted nodes after the root, then 0; the token after them; the fallbacks; and whether all rows on
    the path are finite.

    `target` and `draft` return the rows (texts, vocabulary) of nodes (texts,), the draft's only for nodes
    with children. `tokens` (texts, nodes) and `uniforms` (texts, nodes + 1) are as in `verify`.
    """
    node = tokens.new_zeros(len(tokens))
    stopped = torch.zeros_like(node, dtype=torch.bool)
    fallbacks, finite, path = torch.zeros_like(node), ~stopped, []
    last: Tensor | None = None

    def at(table: Tensor, nodes: Tensor) -> Tensor:
        return table.gather(1, nodes[:, None])[:, 0]

    for most in tree.most:
        wanted = target(node)
        finite = finite & (stopped | finite_rows(wanted))
        has_children = tree.counts[node] > 0
        offered = draft(node)
        dtype = torch.promote_types(wanted.dtype, offered.dtype)
        wanted = wanted.to(dtype)
        offered = torch.where(has_children[:, None], offered.to(dtype), wanted)
        rule = make_rule(wanted, offered, tree.counts[node], at(uniforms, node))
        accepted = torch.zeros_like(node)
        for rank in range(most):
            child = tree.children[node, rank]
            tested = (child > 0) & (accepted == 0) & ~stopped
            token = at(tokens, child)
            passed = rule.accepts(token, at(uniforms, child))
            accepted = torch.where(tested & passed, child, accepted)
            rule.reject(token, tested & ~passed)
        ends = (accepted == 0) & ~stopped
        residual = rule.residual(ends)
        fallbacks = fallbacks + torch.where(stopped, 0, rule.fallbacks)
        last = residual if last is None else torch.where(ends[:, None], residual, last)
        stopped = stopped | ends
        path.append(accepted)
        node = torch.where(accepted > 0, accepted, node)
    wanted = target(node)
    finite = finite & (stopped | finite_rows(wanted))
    residual = make_rule(wanted, wanted, torch.zeros_like(node), at(uniforms, node)).residual(~stopped)
    last = residual if last is None else torch.where(stopped[:, None], last, residual.to(last.dtype))
    after = draw_rows(last, uniforms[:, -1])
    return torch.stack((*path, after, fallbacks, finite.long()), 1)


def read_walk(tokens: Sequence[int], levels: int) -> Verdict:
    """The verdict of one text from its row of `walk_on_device`.

    Raises `NotFinite` where a row on the path is not finite.
    """
    path, (after, fallbacks, finite) = tokens[:levels], tokens[levels : levels + 3]
    accepted = [node for node in path if node]
    if not finite:
        raise NotFinite(node=accepted[-1] if accepted else 0)
    return Verdict((0, *accepted), after, fallbacks)


class DeviceWalk:
    """`walk_on_device` for trees of one shape, from logits; recorded where the target's forwards are."""

    def __init__(
        self,
        tree: TokenTree,
        device: torch.device,
        make_rule: MakeRule,
        sampling: Sampling,
        recorder: Recorder | None,
    ) -> None:
        self._table = TreeTable(tree, device)
        table = self._table

        def run(logits: Tensor, draft: Tensor, tokens: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
            def target(node: Tensor) -> Tensor:
                return probabilities(logits[node], sampling)

            def proposed(node: Tensor) -> Tensor:
                return draft[table.rows[node]] if len(draft) else target(node)

            found = walk_on_device(table, make_rule, target, proposed, tokens[None], uniforms[None])
            return (torch.cat((tokens, found[0])),)

        self._run = run
        self._recorder = recorder.other("the verification") if recorder else None
        self._buffered: Buffered | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What `read` reads, of logits (nodes, vocabulary), the draft's probabilities (nodes with children,
        vocabulary), tokens (nodes,) and uniforms (nodes + 1,)."""
        if self._recorder is None:
            return self._run(*inputs)[0]
        self._buffered = self._buffered or Buffered(self._run, self._recorder, inputs)
        return self._buffered(*inputs)[0]

    def read(self, values: Sequence[int]) -> tuple[Sequence[int], Verdict]:
        """The tokens of all nodes, and the verdict. Raises `NotFinite` for a row on the path."""
        return values[: self._table.size], read_walk(values[self._table.size :], len(self._table.most))


def _chance(residual: Tensor, offered: Tensor, token: Tensor) -> Tensor:
    """(texts,) min(1, R(x) / D(x)) of each text's own token."""
    wanted, proposed = (part.gather(1, token[:, None])[:, 0].double() for part in (residual, offered))
    return torch.where(proposed > 0, (wanted / proposed).clamp(max=1), (wanted > 0).double())
