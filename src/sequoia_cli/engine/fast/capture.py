"""A function over fixed buffers, recorded once and then replayed: what a CUDA graph is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

#: Takes no arguments: reads tensors at fixed addresses and may overwrite its previous outputs.
Function = Callable[[], tuple[Tensor, ...]]

#: Records such a function: returns one that repeats it. Raises `RuntimeError` where it cannot be recorded.
Capture = Callable[[Function], Function]


def cuda_graphs(device: torch.device) -> Capture:
    """Recording by CUDA graphs.

    All graphs share one memory pool. A replay may overwrite the results of other graphs, so they have to be
    copied at once.
    """
    pool: Any = None

    def capture(function: Function) -> Function:
        nonlocal pool
        with torch.cuda.device(device):
            pool = pool or torch.cuda.graph_pool_handle()
            # Libraries set themselves up when they are first used on a stream, which cannot be recorded.
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                function()
            torch.cuda.current_stream().wait_stream(side)
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
            try:
                with torch.cuda.graph(graph, pool=pool):
                    results = function()
            except BaseException:
                # After a capture that fails, torch leaves the stream of the capture current.
                torch.cuda.set_stream(stream)
                raise

        def replay() -> tuple[Tensor, ...]:
            graph.replay()
            return results

        return replay

    return capture


class Recorder:
    """Records a model's functions. After the first refusal it warns, and returns functions unrecorded."""

    def __init__(self, capture: Capture, name: str) -> None:
        self._capture, self._name = capture, name
        #: Why nothing is recorded; None while it is.
        self.refusal: str | None = None

    def __call__(self, function: Function) -> Function:
        """The function recorded, or itself."""
        if self.refusal is None:
            try:
                return self._capture(function)
            except RuntimeError as error:
                self.refuse((str(error).strip().splitlines() or [type(error).__name__])[0][:160])
        return function

    def other(self, name: str) -> Recorder:
        """One for other functions, which may be refused without these."""
        return Recorder(self._capture, name)

    def refuse(self, why: str) -> None:
        """From here on record nothing."""
        self.refusal = why
        warnings.warn(f"{self._name} runs without CUDA graphs: {why}", RuntimeWarning, stacklevel=2)


class Buffered:
    """A function of tensors of one shape, run over buffers that they are copied into.

    The first call runs eagerly (warm-up); the second records. Many shapes occur only once, such as the last
    trees of a text, and recording costs as much as several runs. Results are copies.
    """

    def __init__(
        self, function: Callable[..., tuple[Tensor, ...]], recorder: Recorder, like: Sequence[Tensor]
    ) -> None:
        """`like` has a tensor of the shape, dtype and device of each input."""
        self._recorder = recorder
        buffers = [torch.empty_like(given) for given in like]
        self._buffers = buffers
        self._once: Function = lambda: function(*buffers)
        self._function, self._runs = self._once, 0

    @torch.inference_mode()
    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The function's results for these inputs."""
        for buffer, given in zip(self._buffers, inputs, strict=True):
            buffer.copy_(given)
        self._runs += 1
        if self._runs == 2:
            self._function = self._recorder(self._once)
        return tuple(result.clone() for result in self._function())
