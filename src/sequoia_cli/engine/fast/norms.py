"""RMS norms in few operations: most of the cost of a norm is launching its kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm


class FastNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467), in float32 at least, and rounded once."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self._wide = torch.promote_types(weight.dtype, torch.float32)
        self.weight, self.eps, self.width = weight.to(self._wide), eps, weight.shape[-1]
        self._doubled = torch.cat((self.weight, self.weight))

    def forward(self, states: Tensor) -> Tensor:
        if states.is_cuda:  # one kernel there
            return rms_norm(states.to(self._wide), (self.width,), self.weight, self.eps).to(states.dtype)
        # The CPU has a fused layer norm but no fused RMS norm. A row joined with its negative has mean 0, so
        # that its layer norm is the RMS norm.
        both = torch.cat((states, -states), -1)
        return layer_norm(both, (2 * self.width,), self._doubled, None, self.eps)[..., : self.width]


@torch.inference_mode()
def fast_norm(module: nn.Module) -> FastNorm | None:
    """The equivalent `FastNorm` of a module; None if it is no RMS norm.

    The class name only says what to try: families differ in where they round, and in whether they multiply by
    the weight or by 1 + the weight. The result is compared with the module.
    """
    weight = getattr(module, "weight", None)
    if "RMSNorm" not in type(module).__name__ or not isinstance(weight, Tensor) or weight.ndim != 1:
        return None
    eps = next((getattr(module, key) for key in ("variance_epsilon", "eps") if hasattr(module, key)), None)
    if not isinstance(eps, float):
        return None
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 4, len(weight), generator=generator).to(weight)
    expected = module(states)
    tolerance = 4 * torch.finfo(weight.dtype).eps * expected.abs().max()
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    for factor in (wide, 1 + wide):
        found = FastNorm(factor, eps)
        if (found(states) - expected).abs().max() <= tolerance:
            return found
    return None
