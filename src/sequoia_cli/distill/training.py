"""The training loop: one for all kinds of draft; resumable, keeping the best state by held-out acceptance."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sequoia_cli.distill.batches import Batch, batched, collate
from sequoia_cli.distill.checkpoint import load_checkpoint, save_checkpoint
from sequoia_cli.distill.corpus import Text
from sequoia_cli.distill.objective import Heads, Student, divergence, hits
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
class Evaluation:
    """What held-out texts said after `step` steps: `p[depth][rank]`; and the KL in training then, in nats."""

    step: int
    loss: float
    p: tuple[tuple[float, ...], ...]

    @property
    def value(self) -> float:
        """Tokens per step of a chain as deep as the levels looked at: what the best is chosen by."""
        reached, value = 1.0, 1.0
        for row in self.p:
            reached *= row[0]
            value += reached
        return value


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
    `checkpoint` under the same `conditions` is gone on with.
    """

    student: Student
    heads: Heads
    texts: Sequence[Text]
    held_out: Sequence[Text]
    recipe: Recipe
    checkpoint: Path | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    history: list[Evaluation] = field(default_factory=list)
    step: int = 0

    def __post_init__(self) -> None:
        self._device = self.heads.ids.device
        named = {name: p for name, p in self.student.model.named_parameters() if p.requires_grad}
        self._working = named
        self._master = {name: p.detach().float().clone().requires_grad_() for name, p in named.items()}
        self._best = {name: p.detach().clone() for name, p in named.items()}
        self._optimisers = _optimisers(list(self._master.values()), self.recipe.learning_rate)
        self._epochs = [
            batched(self.texts, self.recipe.batch_tokens, self.recipe.seed + epoch)
            for epoch in range(self.recipe.epochs)
        ]
        self._order = [batch for epoch in self._epochs for batch in epoch]
        if self.checkpoint is not None and self.checkpoint.exists():
            self._restore(self.checkpoint)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return len(self._order)

    @property
    def best(self) -> Evaluation | None:
        """The evaluation of the state that is kept."""
        return max(self.history, key=lambda evaluation: evaluation.value, default=None)

    def run(self, on_step: Callable[[Progress], None] = lambda progress: None) -> None:
        """Train to the end and leave the student with the best weights.

        An interruption saves first. Raises `SequoiaError` for a loss that is no number; the state of the last
        evaluation is kept, and the same training with another rate goes on from it.
        """
        every = max(1, math.ceil(self.steps / self.recipe.evaluations))
        started, first, seen, loss = time.perf_counter(), self.step, 0, math.nan
        try:
            while self.step < self.steps:
                batch = collate([self.texts[index] for index in self._order[self.step]], self._device)
                loss = self._learn(batch)
                seen += batch.size
                evaluated = self.step % every == 0 or self.step == self.steps
                if evaluated:
                    self._evaluate(loss)
                    self.save()
                seconds = time.perf_counter() - started
                left = seconds / (self.step - first) * (self.steps - self.step)
                rate = seen / seconds
                on_step(Progress(self.step, self.steps, loss, rate, left, evaluated, self.best))
        except KeyboardInterrupt:
            self.save()
            raise
        self._put(self._best)

    def _learn(self, batch: Batch) -> float:
        """One step of all optimisers; counts it once it is whole."""
        loss = divergence(self.student, batch, self.heads)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value}")
        loss.backward()
        for name, parameter in self._working.items():
            if parameter.grad is not None:
                self._master[name].grad = parameter.grad.float()
                parameter.grad = None
        slope = float(torch.nn.utils.clip_grad_norm_(self._master.values(), 1.0))
        if not math.isfinite(slope):  # before it gets into the weights, and with them onto the disk
            raise self._diverged(f"the gradient is {slope}")
        factor = _schedule(self.step, self.steps)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.recipe.learning_rate * factor
            optimiser.step()
            optimiser.zero_grad()
        self._put(self._master)
        self.step += 1
        return value

    def _diverged(self, what: str) -> SequoiaError:
        return SequoiaError(
            f"{what} at step {self.step + 1}: training has diverged",
            hint="give a smaller --learning-rate; the same command goes on from what was saved last",
        )

    def _evaluate(self, loss: float) -> None:
        depths = max(self.student.passes, 1)
        counts = sum(
            hits(self.student, collate([self.held_out[i] for i in group], self._device), self.heads, depths)
            for group in batched(self.held_out, self.recipe.batch_tokens, 0)
        )
        assert isinstance(counts, Tensor)
        rates = counts[:, 1:] / counts[:, :1].clamp(min=1)
        self.history.append(Evaluation(self.step, loss, tuple(map(tuple, rates.tolist()))))
        if self.best is self.history[-1]:
            self._best = {name: p.detach().clone() for name, p in self._working.items()}

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self._working.items():
            parameter.copy_(weights[name])

    def save(self) -> None:
        """Keep all that is needed to go on."""
        if self.checkpoint is None:
            return
        tensors = {f"master.{name}": value.detach() for name, value in self._master.items()}
        tensors |= {f"best.{name}": value for name, value in self._best.items()}
        for number, optimiser in enumerate(self._optimisers):
            for index, state in optimiser.state_dict()["state"].items():
                tensors |= {f"optimiser.{number}.{index}.{key}": value for key, value in state.items()}
        history = [[entry.step, entry.loss, entry.p] for entry in self.history]
        notes = {"conditions": dict(self.conditions), "step": self.step, "history": history}
        save_checkpoint(self.checkpoint, tensors, notes)

    def _restore(self, path: Path) -> None:
        tensors, notes = load_checkpoint(path)
        if notes["conditions"] != json.loads(json.dumps(dict(self.conditions))):
            return  # another training: this one begins anew
        self.step = notes["step"]
        self.history = [
            Evaluation(step, loss, tuple(map(tuple, rows))) for step, loss, rows in notes["history"]
        ]
        with torch.no_grad():
            for name in self._master:
                self._master[name].copy_(tensors[f"master.{name}"])
                self._best[name].copy_(tensors[f"best.{name}"])
        for number, optimiser in enumerate(self._optimisers):
            states: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                if name.startswith(f"optimiser.{number}."):
                    _, _, index, key = name.split(".", 3)
                    states.setdefault(int(index), {})[key] = value
            whole = optimiser.state_dict()
            optimiser.load_state_dict({**whole, "state": states})
        self._put(self._master)


def _optimisers(parameters: Sequence[Tensor], rate: float) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for the rest (AdamW alone took half as many steps again, see LOG.md)."""
    matrices = [parameter for parameter in parameters if parameter.ndim == 2]
    others = [parameter for parameter in parameters if parameter.ndim != 2]
    found: list[torch.optim.Optimizer] = []
    if matrices:
        # Scaled so that a rate means what it means for AdamW.
        found.append(torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
    if others:
        found.append(torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0))
    return found


def _schedule(step: int, steps: int) -> float:
    """Factor of the learning rate: a short warm-up, then half a cosine down to nothing."""
    warm = max(1, min(50, steps // 10))
    return min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / steps))
