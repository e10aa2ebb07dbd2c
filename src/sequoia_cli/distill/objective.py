"""The training objective of a draft and its evaluation.

The loss is the KL divergence from the target; the evaluation counts the ranks of the target's choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from sequoia_cli.distill.batches import Batch, batched, collate
from sequoia_cli.distill.corpus import Text
from sequoia_cli.engine.head import OutputHead

#: Ranks counted in an evaluation.
RANKS = 8
#: Weight of a pass relative to the one before: deeper levels are reached less often.
_DECAY = 0.8
#: Rows of logits in memory at a time.
_ROWS = 256


@dataclass(frozen=True)
class Heads:
    """Output heads: the draft's `own` and the `target`'s for the draft's `ids`, and the target's for all ids.

    Most drafts share the target's head; then `own` is `target`.
    """

    ids: Tensor
    own: OutputHead
    target: OutputHead
    full: OutputHead


class Student(Protocol):
    """A draft in training."""

    #: Levels below the root that are trained separately.
    passes: int

    @property
    def model(self) -> torch.nn.Module:
        """The module that is trained."""

    def predictions(self, batch: Batch, passes: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """For each pass, the states (n, width) for the head and their positions, a (texts, length) mask.

        The positions are those after which a token of an answer follows, as far as the pass reaches them.
        """


def divergence(student: Student, batch: Batch, heads: Heads) -> Tensor:
    """KL divergence of the draft from the target per token, in nats: a weighted mean over passes.

    Both distributions are over the draft's ids (Hinton et al., arXiv 1503.02531, at temperature 1).
    """
    targets, negative_entropy = _targets(batch.hidden[batch.answer], heads.target)
    # The row of `targets` for each position.
    row = batch.answer.flatten().cumsum(0).view(batch.answer.shape) - 1
    total, weights = torch.zeros((), device=batch.tokens.device), 0.0
    for number, (states, places) in enumerate(student.predictions(batch)):
        rows = row[places]
        surprise = _CrossEntropy.apply(states, targets, rows, heads.own)
        weight = _DECAY**number
        total = total + weight * (surprise + negative_entropy[rows].sum()) / max(1, len(rows))
        weights += weight
    return total / weights


@torch.no_grad()
def _targets(hidden: Tensor, head: OutputHead) -> tuple[Tensor, Tensor]:
    """Probabilities (rows, ids) of (rows, width) states, in their dtype, and sums (rows,) of p log p."""
    targets = hidden.new_empty(len(hidden), len(head.weight))
    sums = torch.empty(len(hidden), device=hidden.device)
    for first in range(0, len(hidden), _ROWS):
        rows = slice(first, first + _ROWS)
        logs = torch.log_softmax(head(hidden[rows]).float(), -1)
        probs = logs.exp()
        targets[rows] = probs
        sums[rows] = (probs * logs).sum(-1)
    return targets, sums


class _CrossEntropy(torch.autograd.Function):
    """Cross entropy of softmax(head(states)) with given distributions, summed over rows.

    The forward also computes the gradient, some rows at a time, so that logits over the vocabulary never
    exist for a whole batch: they would be most of a training step's memory and time.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, targets: Tensor, rows: Tensor, head: OutputHead) -> Tensor:
        """`states` (n, width); their target distributions are `targets[rows]`."""
        gradient = torch.empty_like(states)
        total = torch.zeros((), device=states.device)
        for first in range(0, len(states), _ROWS):
            piece = slice(first, first + _ROWS)
            with torch.enable_grad():
                part = states[piece].detach().requires_grad_()
                logits = head(part)
            scores, wanted = logits.detach().float(), targets[rows[piece]].float()
            normaliser = scores.logsumexp(-1, keepdim=True)
            total += normaliser.sum() - torch.dot(wanted.flatten(), scores.flatten())
            slope = scores.sub_(normaliser).exp_().sub_(wanted).to(logits.dtype)
            (gradient[piece],) = torch.autograd.grad(logits, part, slope)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient with respect to the states; the head is frozen."""
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].to(gradient.dtype), None, None, None


@torch.no_grad()
def count_hits(student: Student, batch: Batch, heads: Heads, depths: int) -> Tensor:
    """(depths, 1 + RANKS) counts: tokens of answers, then how often each rank was the target's choice."""
    ids, choice = heads.ids, torch.full_like(batch.tokens, -1)
    choice[batch.answer] = _choices(heads.full, batch.hidden[batch.answer])
    counts = torch.zeros(depths, 1 + RANKS, dtype=torch.long)
    for depth, (states, places) in enumerate(student.predictions(batch, depths)):
        picked = ids[heads.own(states).topk(min(RANKS, len(ids))).indices]
        equal = picked == choice[places][:, None]
        counts[depth, 0] = len(equal)
        counts[depth, 1 : 1 + equal.shape[1]] = equal.sum(0)
    return counts


@torch.no_grad()
def only_wrong(
    student: Student,
    texts: Sequence[Text],
    heads: Heads,
    tokens: int,
    on_texts: Callable[[int], None] = lambda count: None,
) -> list[Text]:
    """The texts, with `answer` true only at tokens where the student's first choice is not the target's.

    SpecInfer trains its next draft on these (collective boost-tuning, arXiv 2305.09781, section 3.1). The
    texts are run in batches of at most `tokens` tokens; `on_texts` gets the number of texts in each.
    """
    found = list(texts)
    for group in batched(texts, tokens, 0):
        batch = collate([texts[index] for index in group], heads.ids.device)
        states, places = next(student.predictions(batch, 1))
        wrong = torch.zeros_like(batch.answer)
        picked = heads.ids[_choices(heads.own, states)]
        wrong[places] = picked != _choices(heads.full, batch.hidden[places])
        for index, row in zip(group, wrong.cpu(), strict=True):
            # A position predicts the token after it.
            found[index] = replace(texts[index], answer=pad(row[: len(texts[index]) - 1], (1, 0)))
        on_texts(len(group))
    return found


def _choices(head: OutputHead, states: Tensor) -> Tensor:
    """(n,) most probable rows of the head for (n, width) states."""
    return torch.cat([head(piece).max(-1).indices for piece in states.split(_ROWS)])
