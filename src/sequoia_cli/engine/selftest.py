"""A start-up test that a model really computes what the tree mask says, before any text depends on it.

It runs twice: on the model as it was loaded, which refuses families that cannot take a tree, and again on the
fast, compiled or recorded forward that decodes. Both are compared with one plain forward of the loaded model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.integer.linear import unrounded
from sequoia_cli.engine.integer.quantise import is_quantised
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.target import ModelText
from sequoia_cli.errors import BadInput, SequoiaError, out_of_memory

_TREE = TokenTree((-1, 0, 0, 1, 1, 2, 4))
_PREFIX = 5
#: A path of which no node stands where a chain would have put it.
_ACCEPTED = (0, 1, 4, 6)
#: Paths of the tree that pass all its nodes between them; the accepted one has one more token after it.
_PATHS: tuple[tuple[int, ...], ...] = ((0, 1, 3), (0, 2, 5), _ACCEPTED)
#: Texts that are tried until one passes: where two experts are nearly tied, rounding takes the other one.
_SEEDS = range(3)
#: A recorded forward runs as it is, then is recorded, then is replayed.
_RUNS_RECORDED = 3
#: Layers in which a token sees of the others what the mask says, and those in which it sees itself alone.
_BY_MASK = {"full_attention", "sliding_attention", "moe", "mlp"}


def check_tree_attention(model: LanguageModel, name: str) -> float:
    """Compare a tiny tree's logits, and those after its commit, with the model's own for each path.

    Returns the largest relative error, and leaves the model's own logits for `check_what_decodes`. Raises
    `BadInput`: for a family that cannot take a tree mask, explicit positions or this cache (linear attention,
    positions from the row number, and so on), and for weights whose logits are not finite.
    """
    if why := _goes_by_rows(model.config):
        raise _refusal(model, name, why)
    try:
        with unrounded():
            model.plain_logits = _plain_logits(model)
            error = _least_error(model, name, model.rounding)
    except BadInput:
        raise
    except Exception as failure:  # whatever a model does with arguments it was not made for
        if out_of_memory(failure):
            raise
        detail = str(failure).strip().splitlines() or [""]
        why = f"it fails with a tree's mask and positions ({type(failure).__name__}: {detail[0][:160]})"
        raise _refusal(model, name, why) from failure
    if not error <= model.rounding:
        if not _finite(model.plain_logits).any():
            raise model.damaged(name)
        raise _refusal(
            model,
            name,
            f"its logits for a tree are off by {error:.2g} (rounding allows {model.rounding:.2g})",
        )
    if is_quantised(model.model):
        model.plain_logits = _plain_logits(model)
    return error


def check_what_decodes(model: LanguageModel, name: str) -> float:
    """The same test of the forward that decodes, against the logits that the model as loaded gave.

    Returns the error. Raises `SequoiaError` where it is more than rounding.
    """
    error = _least_error(model, name, model.decoding_rounding)
    if not error <= model.decoding_rounding:
        raise SequoiaError(
            f"{name}: its fast forward gives logits for a tree that are off by {error:.2g} "
            f"(rounding allows {model.decoding_rounding:.2g})",
            hint="--forward plain runs the model as transformers does; please report it with the model",
        )
    model.plain_logits = None
    return error


def _goes_by_rows(config: PreTrainedConfig) -> str | None:
    """What a model computes by the order or number of rows: too far back for the tiny tree to see."""
    if kinds := set(getattr(config, "layer_types", None) or ()) - _BY_MASK:
        return f"layers of type {', '.join(sorted(kinds))} process rows in order and ignore the mask"
    found = [key for key in ("attention_chunk_size", "keep_window_size") if getattr(config, key, None)]
    if local := [kind for kind in getattr(config, "attention_layers", None) or () if kind == "local"]:
        found.append(f"{len(local)} local layers")
    if found:
        return f"it masks by row number ({', '.join(found)}), but a tree's rows are not in text order"
    if any(getattr(part, "alibi", False) for part in (config, getattr(config, "attn_config", None))):
        return "its attention bias depends on distance in rows, not in positions (ALiBi)"
    return None


def _refusal(model: LanguageModel, name: str, why: str) -> BadInput:
    return BadInput(
        f"{name}: models of the family '{model.family}' cannot verify a token tree: {why}",
        hint="families with full or sliding attention and rotary or learned positions work, such as Llama, "
        "Qwen, Mistral, Gemma, GPT-2, OPT, GPT-NeoX and Phi",
    )


def _tokens(model: LanguageModel, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Prefix, nodes, and the token after the accepted path."""
    ids = torch.Generator().manual_seed(seed)
    count = _PREFIX + _TREE.size + 1
    tokens = torch.randint(0, model.vocabulary, (count,), generator=ids).to(model.device)
    return tokens[:_PREFIX], tokens[_PREFIX:-1], tokens[-1:]


@torch.inference_mode()
def _plain_logits(model: LanguageModel) -> Tensor:
    """(seeds, nodes + 1, vocabulary) logits of the model itself: no mask, no positions, no cache of ours.

    All paths of all seeds stand side by side in one forward, filled up at their ends.
    """
    texts = []
    for seed in _SEEDS:
        prefix, nodes, last = _tokens(model, seed)
        for path in _PATHS:
            text = torch.cat((prefix, nodes[list(path)], last))
            texts.append(torch.cat((text, last.expand(_PREFIX + len(_ACCEPTED) + 1 - len(text)))))
    logits = model.model(input_ids=torch.stack(texts), use_cache=False).logits
    logits = logits.view(len(_SEEDS), len(_PATHS), *logits.shape[1:])
    rows = []
    for node in range(_TREE.size):
        number = next(number for number, path in enumerate(_PATHS) if node in path)
        rows.append(logits[:, number, _PREFIX + _PATHS[number].index(node)])
    rows.append(logits[:, len(_PATHS) - 1, _PREFIX + len(_ACCEPTED)])
    return torch.stack(rows, 1)


@torch.inference_mode()
def _tree_logits(model: LanguageModel, name: str, seed: int) -> Tensor:
    """The same (nodes + 1, vocabulary) by a tree after a prefix, and a token after what a commit kept."""
    prefix, nodes, last = _tokens(model, seed)
    text = ModelText(model, _PREFIX + _TREE.size + 2)
    text.begin(prefix)
    if text.rows != _PREFIX:
        raise _refusal(model, name, "it does not store its keys and values in the given cache")
    tree_logits = text.run(_TREE.parents, nodes).logits
    text.keep(_ACCEPTED)
    return torch.cat((tree_logits, text.run((-1,), last).logits[-1:]))


def _least_error(model: LanguageModel, name: str, allowed: float) -> float:
    """Of the seeds, up to the first that passes."""
    assert model.plain_logits is not None
    least = math.inf
    for seed in _SEEDS:
        error = 0.0
        for _ in range(_RUNS_RECORDED if model.recorder else 1):
            found = _tree_logits(model, name, seed)
            rows = zip(found, model.plain_logits[seed], strict=True)
            error = max(error, *(_relative_error(*row) for row in rows))
        least = min(least, error)
        if least <= allowed:
            break
    return least


def _finite(logits: Tensor) -> Tensor:
    """(seeds,) whether all rows have a largest logit that is finite."""
    return logits.amax(-1).isfinite().all(-1)


def _relative_error(found: Tensor, expected: Tensor) -> float:
    """Relative to how far the logits spread; one logit alone, to its size."""
    found, expected = found.double(), expected.double()
    spread = expected - expected.mean() if len(expected) > 1 else expected
    error = float((found - expected).norm() / spread.norm())
    return error if math.isfinite(error) else math.inf
