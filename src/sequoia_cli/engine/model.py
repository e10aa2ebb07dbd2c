"""One adapter over any decoder-only Hugging Face model: tokens, positions and a tree mask in, logits out."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.fast import attention
from sequoia_cli.engine.fast.block import FastBlock
from sequoia_cli.engine.fast.capture import Capture, Recorder, cuda_graphs
from sequoia_cli.engine.fast.compiled import compile_blocks
from sequoia_cli.engine.fast.fixed_cache import FixedCache, RowPool
from sequoia_cli.engine.fast.fixed_forward import Forward, replays_truly, run_fixed
from sequoia_cli.engine.fast.prepare import make_fast
from sequoia_cli.engine.fast.tried import changed_by, trial_texts
from sequoia_cli.engine.integer.blocks import use_kernel
from sequoia_cli.engine.integer.linear import unrounded
from sequoia_cli.engine.integer.quantise import is_quantised
from sequoia_cli.engine.integer.stack import collected
from sequoia_cli.engine.masks import MaskArgument, Masks
from sequoia_cli.engine.nodes import NodeBlock, chain_block
from sequoia_cli.engine.target import LAST, ModelText, Output
from sequoia_cli.errors import BadInput, SequoiaError, out_of_memory

#: A prompt is run in pieces of this many tokens (see `prefill_pieces`).
PREFILL_TOKENS = 512

#: Tokens of the trial that replaying is put to.
_TRIAL_TOKENS = 6


class LanguageModel:
    """A causal model as the engine uses it: batch of one, explicit positions, explicit tree masks."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        self.family: str = model.config.model_type
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocabulary = int(self.config.vocab_size)
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"  # renamed in 5.24
        self._keeps_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        #: Positions that can be used; a very large number where the family sets no limit.
        self.context_limit = context_limit(self.config)
        #: Largest relative error of its logits that rounding explains.
        layers = getattr(self.config, "num_hidden_layers", 1)
        self.rounding = rounding(self.dtype, layers)
        #: The same of the logits that it decodes with, whose products may have rounded inputs.
        self.decoding_rounding = rounding(self.dtype, layers, quantised=is_quantised(model))
        #: The model's own logits in the start-up test; None before it and when it is over.
        self.plain_logits: Tensor | None = None
        #: What records forwards over fixed buffers; None where there are none.
        self.recorder: Recorder | None = None
        #: Whether sliding layers read their window alone, of a longer text.
        self.reads_windows = False
        self._rows = RowPool()

    def make_fast(self) -> None:
        """Prepare the forward for speed, once and for good (see `engine/fast`).

        Raises `SequoiaError` where that cannot be done, or changes the logits by more than rounding does.
        """
        hint = "--forward plain runs the model as transformers does"
        ids, positions = trial_texts(self.vocabulary, self.context_limit)
        arguments = {"input_ids": ids.to(self.device), "use_cache": False}
        if self._takes_positions:
            arguments["position_ids"] = positions.to(self.device)
        try:
            with unrounded():
                error = changed_by(make_fast, self.model, arguments)
        except Exception as failure:  # whatever a model asks of its modules that the fast ones lack
            if out_of_memory(failure):
                raise
            why = f"{type(failure).__name__}: {failure}".splitlines()[0][:160]
            raise SequoiaError(f"family '{self.family}' has no fast forward: {why}", hint=hint) from failure
        if math.isnan(error):
            raise self.damaged("the model")
        if not error <= self.rounding:
            raise SequoiaError(
                f"the fast forward of family '{self.family}' changes its logits by {error:.2g}", hint=hint
            )
        self.reads_windows = getattr(self.config, "_attn_implementation", None) == attention.NAME
        if self.device.type == "cuda":
            self.fix_buffers(cuda_graphs(self.device))

    def damaged(self, name: str) -> BadInput:
        """What to say of weights that give logits which are not finite, whatever the tokens."""
        width = str(self.dtype).removeprefix("torch.")
        return BadInput(
            f"{name}: its weights give logits that are not finite (NaN or infinity) in {width}",
            hint="they may be damaged; where numbers overflow, a wider dtype such as float32 holds them",
        )

    def compile(self, announce: Callable[[str], None]) -> bool:
        """Let the layers of a fast model run compiled (see `compile_blocks`, `use_kernel`); returns whether
        some do."""
        found = any([use_kernel(self.model, announce), compile_blocks(self.model, announce)])
        blocks = (module for module in self.model.modules() if isinstance(module, FastBlock))
        if any(block.compiled or block.in_kernel for block in blocks):
            self.reads_windows = False  # these take the cache whole
        return found

    def fix_buffers(self, capture: Capture) -> None:
        """From here on run forwards over fixed buffers, and replay what `capture` has recorded of them.

        A model whose logits are wrong that way goes on as before, with a warning.
        """
        plain = TreeCache(self.config.num_hidden_layers, _TRIAL_TOKENS)
        self.recorder = Recorder(capture, f"the model of family '{self.family}'")
        fixed = self.new_cache(_TRIAL_TOKENS)
        tokens = torch.arange(_TRIAL_TOKENS, device=self.device) * 7 % self.vocabulary
        positions = torch.arange(_TRIAL_TOKENS, device=self.device)

        def run(cache: TreeCache, first: int, rows: int) -> Tensor:
            part = slice(first, first + rows)
            return self.forward(tokens[part], positions[part], cache, None).logits

        if not replays_truly(run, plain, fixed, self.decoding_rounding):
            self.recorder.refuse("its logits are wrong when it is replayed after a longer text")
            self.recorder = None

    def new_cache(self, capacity: int) -> TreeCache:
        """A cache of at least `capacity` rows."""
        if self.recorder is not None:
            return self._rows.lease(self.config.num_hidden_layers, capacity)
        return TreeCache(self.config.num_hidden_layers, capacity)

    def masks(self, block: NodeBlock, capacity: int) -> Masks:
        """The masks of a block of nodes for each kind of attention layer this model has."""
        return Masks(self.config, block, capacity, self.dtype, self.device, self.reads_windows)

    def open(
        self, prompt: Tensor, capacity: int, taps: Sequence[int] = ()
    ) -> tuple[ModelText, tuple[Tensor, ...]]:
        """A text that begins with `prompt`, and the states that `taps` ask for (see `Target`)."""
        text = ModelText(self, capacity)
        return text, text.begin(prompt, taps)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: TreeCache,
        masks: Masks | None,
        *,
        taps: Sequence[int] = (),
    ) -> Output:
        """Run `tokens` at `positions`, both (rows,), after what `cache` holds, and add their rows to it.

        Without `masks` the tokens are a chain after the prefix.
        """
        if masks is None and (isinstance(cache, FixedCache) or len(tokens) > 1):
            masks = self._chain(len(tokens), cache)
        if isinstance(cache, FixedCache) and masks:
            return self._run_fixed(tokens, positions, cache, masks, taps)
        mask = masks.over(cache.length + len(tokens)) if masks else None
        return self._run(tokens[None], positions[None], cache, mask, taps, 0).of_text(0)

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, cache: TreeCache, *, taps: Sequence[int] = ()) -> tuple[Tensor, ...]:
        """Run a prompt of (tokens,) into an empty cache; returns its states (tokens, hidden) by tap.

        Of a prompt without tokens there are none.
        """
        pieces = []
        for rows in prefill_pieces(len(tokens)):
            positions = torch.arange(rows.start, rows.stop, device=self.device)
            output = self._run(tokens[None, rows], positions[None], cache, None, taps, 1).of_text(0)
            pieces.append(output.hidden)
        return tuple(torch.cat(states) for states in zip(*pieces, strict=True))

    @torch.inference_mode()
    def forward_rows(self, tokens: Tensor, positions: Tensor, cache: TreeCache, attended: Tensor) -> Output:
        """Run one token of each of many texts side by side: `tokens` and `positions` are (rows,).

        `attended` is (rows, cache length + 1), 1 where a row's text may look. The output has the last hidden
        states as well.
        """
        output = self._run(tokens[:, None], positions[:, None], cache, attended, LAST, 0)
        return Output(output.logits[:, 0], tuple(states[:, 0] for states in output.hidden))

    def _chain(self, length: int, cache: TreeCache) -> Masks:
        if length not in cache.chain_masks:
            cache.chain_masks[length] = self.masks(chain_block(length), cache.capacity)
        return cache.chain_masks[length]

    def _run_fixed(
        self, tokens: Tensor, positions: Tensor, cache: FixedCache, masks: Masks, taps: Sequence[int]
    ) -> Output:
        inner = cache.rows.inner

        def forward() -> Forward:
            def run(tokens: Tensor, positions: Tensor, mask: MaskArgument) -> tuple[Tensor, ...]:
                output = self._run(tokens[None], positions[None], inner, mask, taps, 0).of_text(0)
                return output.logits, *output.hidden

            return run

        assert self.recorder is not None
        name = f"logits and states {', '.join(map(str, taps))}" if taps else "logits"
        logits, *states = run_fixed(cache, (tokens, positions), masks, self.recorder, name, forward)
        return Output(logits, tuple(states))

    def _run(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: Cache,
        mask: MaskArgument | None,
        taps: Sequence[int],
        keep: int,
    ) -> Output:
        """(texts, rows) of tokens in; logits and hidden states (texts, rows, ...) out."""
        arguments = {self._cache_name: cache, "use_cache": True, "attention_mask": mask, "return_dict": True}
        if self._takes_positions:
            arguments["position_ids"] = positions
        if self._keeps_logits:
            arguments["logits_to_keep"] = keep
        if taps:
            arguments["output_hidden_states"] = True
        with collected(taps):
            output = self.model(input_ids=tokens, **arguments)
        return Output(output.logits, tuple(output.hidden_states[tap] for tap in taps))


def rounding(dtype: torch.dtype, layers: int, quantised: bool = False) -> float:
    """Largest relative error of logits that rounding explains.

    In half precision each result is off by up to eps / 2 of its size, on every processor; how many rows a
    product has at once decides which way. Up to 14 results of a layer pass on to the next, of either forward:
    7 matrix products, the norms, the rotation, the two sums. They round independently, so their squares add
    up, and twice the square root of the sum is the bound. Measured with bfloat16 on processors with AVX-512
    and with AVX2 alone: 0.01 for 2 layers, where the bound is 0.04; 0.12 for the 30 layers of the default
    target, where it is 0.16. A wrong mask, position or cache row gives 0.2 and more in tiny models of every
    family, 0.4 and more in the default target, so no bound exceeds 0.25. In float32 the order of the sums in
    a product counts as well: 2e-5 for 30 layers.

    In a model `quantised` to 8 bits the inputs of products are rounded: a value half way between two numbers
    goes to either, and these are 1/127 of the largest value of its group apart. Measured: 0.17 for the
    default target.
    """
    if quantised:
        return min(0.25, 2 / 127 * math.sqrt(14 * layers))
    if dtype in (torch.float32, torch.float64):
        return 1e-3 if dtype is torch.float32 else 1e-6
    return min(0.25, torch.finfo(dtype).eps * math.sqrt(14 * layers))


def prefill_pieces(tokens: int) -> Iterator[slice]:
    """The pieces in which a prompt is run: that bounds the memory of its attention scores."""
    for first in range(0, tokens, PREFILL_TOKENS):
        yield slice(first, min(first + PREFILL_TOKENS, tokens))


def context_limit(config: PreTrainedConfig) -> int:
    """Positions that a text may have.

    Some rotary frequencies depend on the length of the text (Phi's long contexts, dynamic NTK). They change
    once the text passes the original context, and the rows already in the cache were computed with the old
    ones. Such texts end there.
    """
    limit = int(getattr(config, "max_position_embeddings", None) or 1 << 40)
    for rope in _rope_settings([value for name, value in vars(config).items() if "rope" in name]):
        kind = str(rope.get("rope_type") or rope.get("type"))
        if kind in ("longrope", "su") or "dynamic" in kind:
            original = rope.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            limit = min(limit, int(original or limit))
    return limit


def _rope_settings(value: object) -> Iterator[Mapping[str, Any]]:
    """All settings of rotary embeddings in `value`; many configs have one set for each kind of layer."""
    if isinstance(value, Mapping):
        yield value
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _rope_settings(part)
