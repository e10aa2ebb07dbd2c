"""The training loop of all drafts: resumable, keeping the weights of the best held-out evaluation."""

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
from sequoia_cli.distill.objective import Heads, Student, count_hits, divergence
from sequoia_cli.distill.optimise import optimisers_for, schedule
from sequoia_cli.errors import SequoiaError


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters: passes over the texts, tokens per batch, peak learning rate, number of evaluations."""

    epochs: int = 4
    batch_tokens: int = 2048
    learning_rate: float = 2e-3
    evaluations: int = 20
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """The state of a training after a step; `evaluated` if the held-out texts were run after it."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    seconds_left: float
    evaluated: bool
    best: Evaluation | None


@dataclass
class Training:
    """A draft in training, which can be resumed after an interruption.

    The student's weights may have a narrow dtype; the optimisers update float32 copies. Resumes from
    `checkpoint` if it exists. Raises `BadInput` if that is damaged or has other `conditions`.
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
        #: False in the middle of a step, when the state must not be saved.
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
        """Steps done."""
        return self._state.step

    @property
    def steps(self) -> int:
        """Steps in total."""
        return len(self._order)

    @property
    def history(self) -> Sequence[Evaluation]:
        """All evaluations so far, in order."""
        return self._state.history

    @property
    def best(self) -> Evaluation | None:
        """The best evaluation, whose weights are kept."""
        return max(self.history, key=lambda evaluation: evaluation.value, default=None)

    def run(self, on_step: Callable[[Progress], None] = lambda progress: None) -> None:
        """Train to the end and give the student the best weights.

        An interruption saves a checkpoint, unless it comes in the middle of a step. Raises `SequoiaError` for
        a loss or gradient that is not finite; the checkpoint of the last evaluation remains, and the training
        can be resumed from it with a smaller learning rate.
        """
        started, first, seen = time.perf_counter(), self.step, 0
        try:
            if self._due:  # interrupted between step and evaluation
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
        """Write the checkpoint, if there is a place for one."""
        if self.checkpoint is not None:
            save_state(self.checkpoint, self._state, self.conditions)

    @property
    def _due(self) -> bool:
        """Whether an evaluation is due after this step."""
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
        if not math.isfinite(slope):  # stop before it reaches the weights and the checkpoint
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
            hint="give a smaller --learning-rate; the same command then resumes from the last checkpoint",
        )

    def _evaluate(self) -> None:
        depths = max(self.student.passes, 1)
        counts = sum(
            count_hits(
                self.student, collate([self.held_out[i] for i in group], self._device), self.heads, depths
            )
            for group in batched(self.held_out, self.recipe.batch_tokens, 0)
        )
        assert isinstance(counts, Tensor)
        trials, *ranks = counts.T.tolist()
        rows = tuple(zip(*ranks, strict=True))
        found = Evaluation(self.step, self._state.loss, tuple(trials), rows)
        # The history last: an interruption before this line only repeats the evaluation.
        if self.best is None or found.value > self.best.value:
            self._state.best = {name: p.detach().clone() for name, p in self._working.items()}
        self._state.history.append(found)

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self._working.items():
            parameter.copy_(weights[name])
