"""Hardware profiles of the papers' machines and pairs, from printed figures and the roofline."""

from __future__ import annotations

from paper import figures
from sequoia_cli.compiler.roofline import (
    BANDWIDTH_SHARE,
    COMPUTE_SHARE,
    CONTEXT,
    DEVICES,
    DRAFT,
    TARGET,
    VERIFY_SECONDS_PER_NODE,
    Model,
    forward_seconds,
    modelled_profile,
)
from sequoia_cli.core.costs import Points
from sequoia_cli.core.hardware import HardwareProfile

TARGETS = {
    "7b": TARGET,
    "13b": Model("Llama-2-13b", 40, 5120, 13824, 32000),
    "33b": Model("Vicuna-33b", 60, 6656, 17920, 32000),
}
DRAFTS = {"68m": DRAFT, "1.3b": Model("Sheared-LLaMA-1.3B", 24, 2048, 5504, 32000)}

#: The 33B rows of Table 3 cost 1.893 plain steps in 6 layers and 1.784 in 5, in the mean: a level is 5.8 ms.
DRAFT_SECONDS = {"68m": figures.DRAFT_68M_SECONDS, "1.3b": 5.8e-3}

#: Parameters of Llama-2-70B, as its name says: its grouped heads are not what `roofline.Model` counts.
OFFLOADED_PARAMETERS = 69e9
#: Sizes at which the curves are tabulated; they are straight lines or flat in between.
_COUNTS = (1, 2, 4, *range(8, 257, 8), 320, 384, 448, 512, 640, 768, 896, 1024)


def on_device(machine: str, target: str, draft: str) -> HardwareProfile:
    """A target of Tables 1, 3 and 4 that fits into the GPU: the roofline of `modelled_profile`.

    What the published A100 times leave over beside the roofline is the host's, and the same on the L40, of
    which no plain times are printed.
    """
    device = machine.lower()
    if (target, draft) == ("7b", "68m"):
        return modelled_profile(device)
    plain = figures.A100_PLAIN_SECONDS[target] - VERIFY_SECONDS_PER_NODE
    return HardwareProfile(
        _timings(device, TARGETS[target], plain),
        _timings(device, DRAFTS[draft], DRAFT_SECONDS[draft]),
        tuple((count, count * VERIFY_SECONDS_PER_NODE) for count in (1, _COUNTS[-1])),
        origin="modelled",
        device=DEVICES[device].name,
    )


def _timings(device: str, model: Model, published: float) -> Points:
    """Seconds by tokens; `published` are those of one token on the A100."""
    overhead = published - forward_seconds(DEVICES["a100"], model, 1, CONTEXT)
    return tuple(
        (count, overhead + forward_seconds(DEVICES[device], model, count, CONTEXT)) for count in _COUNTS
    )


def offloaded(*, overlapped: bool = False) -> HardwareProfile:
    """Llama-2-70B on the L40 with all weights in host memory, drafted by Llama-2-7B on the GPU (Table 2).

    A forward brings all weights over PCIe and computes, one after the other or, `overlapped`, side by side.
    """
    device = DEVICES["l40"]
    transfer = 2 * OFFLOADED_PARAMETERS / (figures.PCIE_BANDWIDTH * BANDWIDTH_SHARE)
    per_token = 2 * OFFLOADED_PARAMETERS / (device.peak * COMPUTE_SHARE)
    target = tuple(
        (count, max(transfer, count * per_token) if overlapped else transfer + count * per_token)
        for count in _COUNTS
    )
    small = modelled_profile("l40")  # here the 7B model is the draft
    return HardwareProfile(
        target, small.target_seconds, small.verify_seconds, origin="modelled", device=device.name
    )
