"""Each kind of integer weights, made of the weights of a layer."""

from sequoia_cli.engine.integer import gguf_blocks
from sequoia_cli.engine.integer.weights import ByOutput

KINDS = {
    "by output": ByOutput.of,
    "8 bits by span": lambda weight: gguf_blocks.rounded(weight, gguf_blocks.Q8_0),
    "4 bits by span": lambda weight: gguf_blocks.rounded(weight, gguf_blocks.Q4_1),
}
