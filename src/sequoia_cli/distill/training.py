"""The training loop: one for all kinds of draft; resumable, keeping the best state by held-out acceptance."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sequoia_cli.distill.batches import Batch, batched, collate
from sequoia_cli.distill.checkpoint import Evaluation, State, restore_state, save_state
from sequoia_cli.distill.corpus import Text
from sequoia_cli.distill.objective import Heads, Student, divergence, hits
from sequoia_cli.distill.optimise import optimisers_for, schedule
from sequoia_cli.errors import SequoiaError


@dataclass(frozen=True)
class Recipe:
    """How to train: passes over the texts, tokens of a batch, peak learning rate, and how often to look."""

    epochs: int = 4
    batch_tokens: int = 2048
    learning_rate: float = 2e-3
    evaluations: int = 20
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """Where training stands; `evaluated` says whether held-out texts were looked at behind this step."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    seconds_left: float
    evaluated: bool
    best: Evaluation | None


@dataclass
class Training:
    """A draft in training and all that it takes to go on after an interruption.

    The student's weights may be in a narrow dtype; float32 copies of them take the steps. What was saved in
    `checkpoint` is gone on with. Raises `BadInput` where that is damaged or of other `conditions`.
    """

    student: Student
    heads: Heads
    texts: Sequence[Text]
    held_out: Sequence[Text]
    recipe: Recipe
    checkpoint: Path | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._device = self.heads.ids.device
        self._working = {name: p for name, p in self.student.model.named_parameters() if p.requires_grad}
        master = {name: p.detach().float().clone().requires_grad_() for name, p in self._working.items()}
        best = {name: p.detach().clone() for name, p in self._working.items()}
        optimisers = optimisers_for(list(master.values()), self.recipe.learning_rate)
        self._state = State(master, best, optimisers)
        #: Whether the state is that behind a whole step: in the middle of one it is not to be saved.
        self._whole = True
        self._order = [
            batch
            for epoch in range(self.recipe.epochs)
            for batch in batched(self.texts, self.recipe.batch_tokens, self.recipe.seed + epoch)
        ]
        if self.checkpoint is not None and self.checkpoint.exists():
            restore_state(self.checkpoint, self._state, self.conditions)
            self._put(self._state.master)

    @property
    def step(self) -> int:
        """Steps that are done."""
        return self._state.step

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return len(self._order)

    @property
    def history(self) -> Sequence[Evaluation]:
        """What held-out texts said so far, by rising steps."""
        return self._state.history

    @property
    def best(self) -> Evaluation | None:
        """The evaluation of the state that is kept."""
        return max(self.history, key=lambda evaluation: evaluation.value, default=None)

    def run(self, on_step: Callable[[Progress], None] = lambda progress: None) -> None:
        """Train to the end and leave the student with the best weights.

        An interruption saves first; one in the middle of a step leaves what was saved before. Raises
        `SequoiaError` for a loss that is no number; the state of the last evaluation is kept, and the same
        training with another rate goes on from it.
        """
        started, first, seen = time.perf_counter(), self.step, 0
        try:
            if self._due:  # an interruption came in between
                self._evaluate()
                self.save()
            while self.step < self.steps:
                batch = collate([self.texts[index] for index in self._order[self.step]], self._device)
                self._learn(batch)
                seen += batch.size
                if evaluated := self._due:
                    self._evaluate()
                    self.save()
                seconds = time.perf_counter() - started
                left = seconds / (self.step - first) * (self.steps - self.step)
                rate, loss = seen / seconds, self._state.loss
                on_step(Progress(self.step, self.steps, loss, rate, left, evaluated, self.best))
        except KeyboardInterrupt:
            if self._whole and self.step:
                self.save()
            raise
        self._put(self._state.best)

    def save(self) -> None:
        """Keep all that is needed to go on."""
        if self.checkpoint is not None:
            save_state(self.checkpoint, self._state, self.conditions)

    @property
    def _due(self) -> bool:
        """Whether held-out texts are to be looked at behind this step and were not yet."""
        every = max(1, math.ceil(self.steps / self.recipe.evaluations))
        last = self.history[-1].step if self.history else 0
        return self.step > last and (self.step % every == 0 or self.step == self.steps)

    def _learn(self, batch: Batch) -> None:
        """One step of all optimisers."""
        loss = divergence(self.student, batch, self.heads)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value}")
        loss.backward()
        master = self._state.master
        for name, parameter in self._working.items():
            if parameter.grad is not None:
                master[name].grad = parameter.grad.float()
                parameter.grad = None
        slope = float(torch.nn.utils.clip_grad_norm_(master.values(), 1.0))
        if not math.isfinite(slope):  # before it gets into the weights, and with them onto the disk
            raise self._diverged(f"the gradient is {slope}")
        rate = self.recipe.learning_rate * schedule(self.step, self.steps)
        self._whole = False
        for optimiser in self._state.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            optimiser.zero_grad()
        self._put(master)
        self._state.step, self._state.loss = self.step + 1, value
        self._whole = True

    def _diverged(self, what: str) -> SequoiaError:
        return SequoiaError(
            f"{what} at step {self.step + 1}: training has diverged",
            hint="give a smaller --learning-rate; the same command goes on from what was saved last",
        )

    def _evaluate(self) -> None:
        depths = max(self.student.passes, 1)
        counts = sum(
            hits(self.student, collate([self.held_out[i] for i in group], self._device), self.heads, depths)
            for group in batched(self.held_out, self.recipe.batch_tokens, 0)
        )
        assert isinstance(counts, Tensor)
        trials, *ranks = counts.T.tolist()
        rows = tuple(zip(*ranks, strict=True))
        found = Evaluation(self.step, self._state.loss, tuple(trials), rows)
        # The history last: an interruption before that has it looked at again.
        if self.best is None or found.value > self.best.value:
            self._state.best = {name: p.detach().clone() for name, p in self._working.items()}
        self._state.history.append(found)

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self._working.items():
            parameter.copy_(weights[name])
