"""The checkpoint of an unfinished training: its state and its conditions, in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sequoia_cli.engine.loading.tensors import save_tensors
from sequoia_cli.errors import BadInput


@dataclass(frozen=True)
class Evaluation:
    """Held-out accuracy after `step` steps; `loss` is the training KL divergence at that step, in nats.

    Of the `trials[depth]` held-out tokens, `hits[depth][rank]` had the draft's token of that rank as the
    target's most probable one.
    """

    step: int
    loss: float
    trials: tuple[int, ...]
    hits: tuple[tuple[int, ...], ...]

    @property
    def p(self) -> tuple[tuple[float, ...], ...]:
        """`hits` as shares of `trials`: the acceptance rate of each rank, by depth, of a greedy target."""
        return tuple(
            tuple(count / max(1, tokens) for count in row)
            for tokens, row in zip(self.trials, self.hits, strict=True)
        )

    @property
    def value(self) -> float:
        """Expected tokens per step of a chain as deep as `p`: the best evaluation has the highest."""
        reached, value = 1.0, 1.0
        for row in self.p:
            reached *= row[0]
            value += reached
        return value


@dataclass
class State:
    """Everything that changes during a training.

    The optimisers update the float32 `master` weights. `best` holds the student's weights, in its own dtype,
    at the best evaluation in `history`. `loss` is the last step's, NaN before the first.
    """

    master: dict[str, Tensor]
    best: dict[str, Tensor]
    optimisers: list[torch.optim.Optimizer]
    step: int = 0
    loss: float = float("nan")
    history: list[Evaluation] = field(default_factory=list)


def save_state(path: Path, state: State, conditions: Mapping[str, Any]) -> None:
    """Write state and conditions to `path` atomically. Raises `SequoiaError` if that fails."""
    tensors = {f"master.{name}": value for name, value in state.master.items()}
    tensors |= {f"best.{name}": value for name, value in state.best.items()}
    for number, optimiser in enumerate(state.optimisers):
        for index, own in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{index}.{key}": value for key, value in own.items()}
    history = [[entry.step, entry.loss, entry.trials, entry.hits] for entry in state.history]
    notes = {"conditions": dict(conditions), "step": state.step, "loss": state.loss, "history": history}
    save_checkpoint(path, tensors, notes)


def restore_state(path: Path, state: State, conditions: Mapping[str, Any]) -> None:
    """Load `path` into `state`. Raises `BadInput` if the file is damaged or has other conditions."""
    require_same(path, conditions)
    tensors, notes = load_checkpoint(path)
    state.step, state.loss = notes["step"], notes["loss"]
    state.history = [
        Evaluation(step, loss, tuple(trials), tuple(map(tuple, rows)))
        for step, loss, trials, rows in notes["history"]
    ]
    with torch.no_grad():
        for name in state.master:
            state.master[name].copy_(tensors[f"master.{name}"])
            state.best[name].copy_(tensors[f"best.{name}"])
    for number, optimiser in enumerate(state.optimisers):
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith(f"optimiser.{number}."):
                _, _, index, key = name.split(".", 3)
                states.setdefault(int(index), {})[key] = value
        optimiser.load_state_dict({**optimiser.state_dict(), "state": states})


def differences(path: Path, conditions: Mapping[str, Any]) -> str:
    """The conditions in which the training saved in `path` differs from these, in words.

    Empty if none differs or nothing is saved. Raises `BadInput` for a damaged file.
    """
    if not path.exists():
        return ""
    found = _read(path)[1]["conditions"]
    expected = json.loads(json.dumps(dict(conditions), allow_nan=False))
    keys = [key for key in expected if found.get(key) != expected[key]]
    return "; ".join(f"{key} {_short(found.get(key))} there, {_short(expected[key])} now" for key in keys)


def require_same(path: Path, conditions: Mapping[str, Any]) -> None:
    """Raise `BadInput`, naming the differences, if the training saved in `path` has other conditions."""
    if difference := differences(path, conditions):
        raise BadInput(
            f"{path} holds a training under other conditions: {difference}",
            hint="give the same options to resume it, or --force to restart",
        )


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write tensors and notes to `path` atomically. Raises `SequoiaError` if that fails."""
    save_tensors(path, tensors, {"notes": json.dumps(notes, allow_nan=False)})


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and notes of `save_checkpoint`. Raises `BadInput` for a damaged file."""
    return _read(path, with_tensors=True)


def _read(path: Path, *, with_tensors: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {})["notes"])
            names = file.keys() if with_tensors else ()
            return {name: file.get_tensor(name) for name in names}, notes
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise BadInput(f"{path} is damaged: {error}", hint="remove it, and training restarts") from None


def _short(value: Any) -> Any:
    """A condition as shown in a message: long values are cut."""
    text = json.dumps(value, allow_nan=False) if isinstance(value, dict) else value
    return f"{text[:32]}..." if isinstance(text, str) and len(text) > 32 else text
