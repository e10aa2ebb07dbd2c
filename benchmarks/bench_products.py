"""All products of one forward of the default target, by what multiplies: a table on stderr, JSON on stdout.

30 layers of four products each and the output head, 135 million random weights, for 1 to 64 rows. The
candidates take turns at every number of rows; medians of their rounds, in milliseconds. Those that are not
installed, or that this processor does not have, are left out. ONNX Runtime's need onnxruntime and onnx.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sequoia_cli.engine.fast.layouts import can_pack, multiply, pack
from sequoia_cli.engine.integer.arithmetic import SPAN
from sequoia_cli.engine.integer.kernel import load_kernel
from sequoia_cli.engine.integer.linear import IntegerLinear
from sequoia_cli.engine.integer.weights import ByOutput, BySpan, IntegerWeights
from sequoia_cli.engine.loading.devices import cpu_name

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
LAYERS, HEAD = 30, (49152, 576)
ROWS = (1, 2, 4, 6, 8, 12, 16, 32, 64)
ROUNDS, WARM_UP = 7, 2

#: From inputs (rows, width) to (rows, outputs).
Product = Callable[[Tensor], Any]


def float_product(dtype: torch.dtype, laid: bool) -> Callable[[int, int], Product]:
    """torch's own, or over weights in oneDNN's layout."""

    def make(outputs: int, width: int) -> Product:
        weight = torch.randn(outputs, width).to(dtype)
        if laid and not can_pack(weight):
            raise ImportError("no such layout")
        weight = pack(weight) if laid else weight
        return lambda inputs: multiply(inputs.to(dtype), weight, None)

    return make


def random_weights(outputs: int, width: int, bits: int) -> IntegerWeights:
    """Of a model with `bits`; with 4, its head has 8 by span."""
    numbers = torch.randint(-127, 128, (outputs, width), dtype=torch.int8)
    if bits == 8:
        return ByOutput(numbers, torch.rand(outputs))
    scales = torch.rand(outputs, -(-width // SPAN)).half()
    if (outputs, width) == HEAD:
        return BySpan(numbers, scales)
    return BySpan(numbers.view(torch.uint8) & 15, scales, scales)


def own(instructions: str, bits: int) -> Callable[[int, int], Product]:
    """The kernel of this project, for other instructions than this processor's best, or for these."""
    os.environ["ATEN_CPU_CAPABILITY"] = instructions
    load_kernel.cache_clear()
    kernel = load_kernel()
    del os.environ["ATEN_CPU_CAPABILITY"]

    def make(outputs: int, width: int) -> Product:
        layer = IntegerLinear(random_weights(outputs, width, bits))
        return lambda inputs: kernel.product(layer, inputs)

    return make


def int8pack(outputs: int, width: int) -> Product:
    """torch's 8-bit weights for bfloat16 inputs."""
    numbers = torch.randint(-127, 128, (outputs, width), dtype=torch.int8)
    scales = torch.rand(outputs).bfloat16()
    return lambda inputs: torch._weight_int8pack_mm(inputs.bfloat16(), numbers, scales)


def onnx(bits: int) -> Callable[[int, int], Product]:
    """ONNX Runtime's MatMulNBits in blocks of 32, with inputs of 8 bits (accuracy level 4)."""
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper

    def make(outputs: int, width: int) -> Product:
        blocks, size = width // 32, 32 * bits // 8
        numbers = np.random.randint(0, 256, (outputs, blocks, size), dtype=np.uint8)
        scales = np.random.rand(outputs * blocks).astype(np.float32)
        node = helper.make_node(
            "MatMulNBits",
            ["x", "b", "s"],
            ["y"],
            domain="com.microsoft",
            K=width,
            N=outputs,
            bits=bits,
            block_size=32,
            accuracy_level=4,
        )
        graph = helper.make_graph(
            [node],
            "product",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", width])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", outputs])],
            [
                helper.make_tensor("b", TensorProto.UINT8, numbers.shape, numbers.tobytes(), raw=True),
                helper.make_tensor("s", TensorProto.FLOAT, scales.shape, scales.tobytes(), raw=True),
            ],
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = torch.get_num_threads()
        # Each product has a session, and so threads, of its own: those that spin would stop all others.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
        return lambda inputs: session.run(None, {"x": inputs.numpy()})

    return make


CANDIDATES: dict[str, Callable[[], Callable[[int, int], Product]]] = {
    "float32, torch": lambda: float_product(torch.float32, False),
    "float32, packed": lambda: float_product(torch.float32, True),
    "bfloat16, packed": lambda: float_product(torch.bfloat16, True),
    "int8, this kernel": lambda: own("", 8),
    "int4, this kernel": lambda: own("", 4),
    "int8, this kernel on AVX2": lambda: own("avx2", 8),
    "int4, this kernel on AVX2": lambda: own("avx2", 4),
    "int8 weights, torch": lambda: int8pack,
    "int8, ONNX Runtime": lambda: onnx(8),
    "int4, ONNX Runtime": lambda: onnx(4),
}


def all_products(make: Callable[[int, int], Product]) -> list[tuple[int, Product]]:
    """(width, product) of every product of a forward, each with weights of its own."""
    shapes = [*SHAPES * LAYERS, HEAD]
    return [(width, make(outputs, width)) for outputs, width in shapes]


def seconds(products: list[tuple[int, Product]], inputs: dict[int, Tensor]) -> float:
    """Of one pass over all of them."""
    start = time.perf_counter()
    for width, product in products:
        product(inputs[width])
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    """Time by turns and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(CANDIDATES), help="may be repeated")
    options = parser.parse_args()
    chosen = options.only or list(CANDIDATES)
    ready = {}
    for name in chosen:
        try:
            ready[name] = all_products(CANDIDATES[name]())
        except (ImportError, RuntimeError) as failure:
            print(f"{name} is left out: {str(failure).splitlines()[0]}", file=sys.stderr)
    found: dict[str, dict[int, list[float]]] = {name: {rows: [] for rows in ROWS} for name in ready}
    for rows in ROWS:
        inputs = {width: torch.randn(rows, width) for width in {width for _, width in SHAPES}}
        for turn in range(WARM_UP + ROUNDS):
            for name, products in ready.items():
                taken = seconds(products, inputs)
                if turn >= WARM_UP:
                    found[name][rows].append(taken)
    print(f"{cpu_name()}, {torch.get_num_threads()} threads; milliseconds by rows", file=sys.stderr)
    print(" " * 28 + "".join(f"{rows:>9}" for rows in ROWS), file=sys.stderr)
    for name, by_rows in found.items():
        cells = "".join(f"{1000 * statistics.median(by_rows[rows]):9.2f}" for rows in ROWS)
        print(f"{name:<28}{cells}", file=sys.stderr)
    json.dump({"cpu": cpu_name(), "threads": torch.get_num_threads(), "seconds": found}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
