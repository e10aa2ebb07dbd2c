"""Modelled hardware profiles: what a machine that is not at hand would take, from its public figures.

A forward over n tokens takes

    overhead + max(bytes / (bandwidth * BANDWIDTH_SHARE), n * flops / (peak * COMPUTE_SHARE))

with the bytes of all weights that are read and of the context's keys and values: flat up to the knee where
both sides of the maximum are equal, then linear. The overhead is what remains of the published A100 figures
(24.2 ms per token for Llama-2-7B with Hugging Face, 0.5 ms for JackFram/llama-68m; Sequoia, arXiv 2402.12374,
section 4.1). It is launch time of the host, so the same overhead is assumed for every device.

How close it comes: by the eight published A100 rows of that pair (Table 3: tokens per step times 24.2 ms over
speedup) a step with 128 nodes and 6 to 10 layers took 28.7 to 30.4 ms; the model gives 28.8 to 30.8 ms and is
off by 3.2 % at most. Only the verification time per node was fitted to those rows. On the L40 a step with 64
nodes took 1.15 to 1.19 plain steps (Table 4); the model gives 1.10 to 1.17. None of this is a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sequoia_cli import __version__
from sequoia_cli.core.costs import Points
from sequoia_cli.core.hardware import HardwareProfile, Times
from sequoia_cli.errors import BadInput


@dataclass(frozen=True)
class Device:
    """Public figures: bytes per second of memory and dense fp16 tensor operations per second."""

    name: str
    bandwidth: float
    peak: float


@dataclass(frozen=True)
class Model:
    """Shape of a Llama model with as many key and value heads as query heads, in fp16."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int

    @property
    def weights(self) -> int:
        """Parameters a forward reads: attention, gated feed-forward, head; the embedding is a few rows."""
        layer = 4 * self.hidden**2 + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.vocabulary * self.hidden

    def read_bytes(self, context: int) -> int:
        """Bytes read from memory per forward: weights, and keys and values of the context."""
        return 2 * (self.weights + 2 * self.layers * context * self.hidden)

    def flops(self, context: int) -> int:
        """Operations per token: two per weight, and attention to the context."""
        return 2 * self.weights + 4 * self.layers * context * self.hidden


#: NVIDIA data sheets of the A100 80GB PCIe, H100 SXM, H200 SXM and L40, tensor-core figures without sparsity;
#: Ada GPU architecture white paper for the RTX 4090, fp16 with fp32 accumulation, which is what torch uses.
DEVICES = {
    "a100": Device("NVIDIA A100 80GB PCIe", 1.935e12, 312e12),
    "h100": Device("NVIDIA H100 SXM", 3.35e12, 989.5e12),
    "h200": Device("NVIDIA H200 SXM", 4.8e12, 989.5e12),
    "l40": Device("NVIDIA L40", 0.864e12, 181e12),
    "rtx4090": Device("NVIDIA GeForce RTX 4090", 1.008e12, 165.2e12),
}
MODELLED_DEVICES = tuple(DEVICES)

TARGET = Model("meta-llama/Llama-2-7b-hf", 32, 4096, 11008, 32000)
DRAFT = Model("JackFram/llama-68m", 2, 768, 3072, 32000)

#: Achievable shares of the public figures: usual for large copies, and for matrices as flat as these.
BANDWIDTH_SHARE = 0.8
COMPUTE_SHARE = 0.6

#: Published on the A100, in seconds per token.
PLAIN_SECONDS = 24.2e-3
DRAFT_SECONDS = 0.5e-3

#: Tokens before the tree: a prompt and an answer of 128 tokens each, as in the paper.
CONTEXT = 256

#: Verification per node of the tree, the mean of what the published steps leave over: 1.6 ms at 128 nodes.
VERIFY_SECONDS_PER_NODE = 12.5e-6

#: The tile of the matrix units, up to beyond every knee; then coarser, as the curve is a line there.
_COUNTS = (1, 2, 4, *range(8, 257, 8), 320, 384, 448, 512, 768, 1024)


def modelled_profile(device: str, contexts: Sequence[int] = (CONTEXT,)) -> HardwareProfile:
    """The profile of Llama-2-7B with a 68M draft on one of `MODELLED_DEVICES`, marked as modelled.

    `contexts` are numbers of tokens before the tree, rising. Raises `BadInput` for a device without figures.
    """
    if device not in DEVICES:
        raise BadInput(f"device {device} has no model; there is one for {', '.join(DEVICES)}")
    command = f"sequoia profile --device {device} --modelled"
    if tuple(contexts) != (CONTEXT,):
        command += f" --context {','.join(map(str, contexts))}"
    context, *longer = contexts
    return HardwareProfile(
        **vars(_times(device, context)),
        origin="modelled",
        device=DEVICES[device].name,
        conditions={"target": TARGET.name, "draft": DRAFT.name, "dtype": "float16", "context": context},
        record={"command": command, "version": __version__, "notes": _notes(DEVICES[device])},
        contexts=tuple((each, _times(device, each)) for each in longer),
    )


def forward_seconds(device: Device, model: Model, tokens: int, context: int) -> float:
    """Seconds of a forward without the overhead: the roofline."""
    memory = model.read_bytes(context) / (device.bandwidth * BANDWIDTH_SHARE)
    return max(memory, tokens * model.flops(context) / (device.peak * COMPUTE_SHARE))


def _times(device: str, context: int) -> Times:
    return Times(
        _timings(device, TARGET, PLAIN_SECONDS - VERIFY_SECONDS_PER_NODE, context),
        _timings(device, DRAFT, DRAFT_SECONDS, context),
        tuple((count, _short(count * VERIFY_SECONDS_PER_NODE)) for count in (1, _COUNTS[-1])),
    )


def _timings(device: str, model: Model, published: float, context: int) -> Points:
    """Seconds by tokens, with the overhead that the published seconds of one token on the A100 leave."""
    overhead = published - forward_seconds(DEVICES["a100"], model, 1, CONTEXT)
    return tuple(
        (count, _short(overhead + forward_seconds(DEVICES[device], model, count, context)))
        for count in _COUNTS
    )


def _short(seconds: float) -> float:
    return float(f"{seconds:.6g}")


def _notes(device: Device) -> str:
    return (
        "Modelled, not measured: no such machine was at hand. "
        f"Roofline of {device.bandwidth / 1e12:g} TB/s at {BANDWIDTH_SHARE:.0%} and "
        f"{device.peak / 1e12:g} TFLOP/s (dense fp16) at {COMPUTE_SHARE:.0%}, plus the overhead that the "
        "published A100 times leave (arXiv 2402.12374, section 4.1: 24.2 ms per token of the target, 0.5 ms "
        "of the draft), taken to be the same on other devices. Verification is "
        f"{VERIFY_SECONDS_PER_NODE * 1e6:g} microseconds per node, fitted to the published A100 steps."
    )
