"""A start-up test that a model really computes what the tree mask says, before any text depends on it."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.model import LanguageModel, rounding
from sequoia_cli.errors import BadInput

_TREE = TokenTree((-1, 0, 0, 1, 1, 2, 4))
_PREFIX = 5
#: A path of which no node stands where a chain would have put it.
_ACCEPTED = (0, 1, 4, 6)
#: Layers in which a token sees of the others what the mask says, and those in which it sees itself alone.
_BY_MASK = {"full_attention", "sliding_attention", "moe", "mlp"}


def check_tree_attention(model: LanguageModel, name: str) -> float:
    """Compare a tiny tree's logits, and those behind its commit, with one plain forward per path.

    Returns the largest relative error. Raises `BadInput` naming the family where the model cannot take a
    tree mask, explicit positions or this cache: linear attention, positions from the row number, and so on.
    """
    if why := _goes_by_rows(model.config):
        raise _refusal(model, name, why)
    tolerance = rounding(model.dtype)
    try:
        # Again with other tokens: where two experts are nearly tied, rounding takes the other one.
        for seed in range(3):
            error = _worst_error(model, name, seed)
            if error <= tolerance:
                return error
    except (BadInput, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as failure:  # whatever a model does with arguments it was not made for
        detail = str(failure).strip().splitlines() or [""]
        why = f"it fails with a tree's mask and positions ({type(failure).__name__}: {detail[0][:160]})"
        raise _refusal(model, name, why) from failure
    raise _refusal(
        model, name, f"its logits for a tree are off by {error:.2g} (rounding allows {tolerance:g})"
    )


def _goes_by_rows(config: PreTrainedConfig) -> str | None:
    """What a model computes by the order or number of rows: too far back for the tiny tree to see."""
    if kinds := set(getattr(config, "layer_types", None) or ()) - _BY_MASK:
        return f"layers of type {', '.join(sorted(kinds))} go by the order of the rows, not by a mask"
    found = [key for key in ("attention_chunk_size", "keep_window_size") if getattr(config, key, None)]
    if local := [kind for kind in getattr(config, "attention_layers", None) or () if kind == "local"]:
        found.append(f"{len(local)} local layers")
    if found:
        return f"it masks by row number ({', '.join(found)}), which a tree's rows are not"
    if any(getattr(part, "alibi", False) for part in (config, getattr(config, "attn_config", None))):
        return "its attention fades with the distance in rows (ALiBi), not with that in positions"
    return None


def _refusal(model: LanguageModel, name: str, why: str) -> BadInput:
    return BadInput(
        f"{name}: models of the family '{model.family}' cannot verify a token tree: {why}",
        hint="families with full or sliding attention and rotary or learned positions work, such as Llama, "
        "Qwen, Mistral, Gemma, GPT-2, OPT, GPT-NeoX and Phi",
    )


def _worst_error(model: LanguageModel, name: str, seed: int) -> float:
    ids = torch.Generator().manual_seed(seed)
    count = _PREFIX + _TREE.size + 1
    tokens = torch.randint(0, model.vocabulary, (count,), generator=ids).to(model.device)
    prefix, nodes, last = tokens[:_PREFIX], tokens[_PREFIX:-1], tokens[-1:]
    layout = Layout(_TREE)
    cache = model.new_cache(count + 1)
    masks = model.masks(layout.target_block(), count + 1)

    model.prefill(prefix, cache)
    if cache.length != _PREFIX:
        raise _refusal(model, name, "it does not keep its keys and values in the cache it is given")
    positions = (_PREFIX + layout.node_depths).to(model.device)
    tree_logits = model.forward(nodes, positions, cache, masks).logits
    cache.keep(_PREFIX, _ACCEPTED)
    behind = torch.tensor([_PREFIX + len(_ACCEPTED)], device=model.device)
    next_logits = model.forward(last, behind, cache, None).logits[-1]

    errors = []
    for node in range(_TREE.size):
        path = torch.cat((prefix, nodes[_TREE.path(node)]))
        errors.append(_relative_error(tree_logits[node], _plain_logits(model, path)))
    path = torch.cat((prefix, nodes[list(_ACCEPTED)], last))
    errors.append(_relative_error(next_logits, _plain_logits(model, path)))
    return max(errors)


@torch.inference_mode()
def _plain_logits(model: LanguageModel, tokens: Tensor) -> Tensor:
    """The model's own logits behind `tokens`: no mask, no positions, no cache of ours."""
    return model.model(input_ids=tokens[None], use_cache=False).logits[0, -1]


def _relative_error(found: Tensor, expected: Tensor) -> float:
    """Relative to how far the logits spread; one logit alone, to its size."""
    found, expected = found.double(), expected.double()
    spread = expected - expected.mean() if len(expected) > 1 else expected
    return float((found - expected).norm() / spread.norm())
