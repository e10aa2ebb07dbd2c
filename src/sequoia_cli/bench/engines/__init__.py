"""The engines to compare, by name. A module is imported only if its engine runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from sequoia_cli.bench.workload import Workload

#: Called with new tokens as soon as they are generated.
OnTokens = Callable[[Sequence[int]], None]


class Unavailable(Exception):
    """The engine cannot run this workload here; the message gives the reason."""


class Engine(Protocol):
    """A loaded model, ready to generate with the workload's sampling."""

    #: Packages whose versions are reported.
    packages: tuple[str, ...]

    def generate(self, prompt: Sequence[int], seed: int, on_tokens: OnTokens) -> None:
        """Continue a prompt with random numbers from `seed`.

        Tokens after an end of text or beyond the budget are allowed; the caller cuts them off.
        """


@dataclass(frozen=True)
class Entry:
    """How to load an engine: `make` is "module:function", a function (Workload, name) -> Engine.

    `needs` is the package that must be installed, if any; `reads_gguf`: it reads only GGUF files.
    """

    make: str
    needs: str | None = None
    reads_gguf: bool = False

    @property
    def installed(self) -> bool:
        """Whether this interpreter has the needed package."""
        return self.needs is None or find_spec(self.needs) is not None


_HERE = "sequoia_cli.bench.engines"
ENGINES = {
    "plain": Entry(f"{_HERE}.own:make"),
    "chain": Entry(f"{_HERE}.own:make"),
    "tree": Entry(f"{_HERE}.own:make"),
    "transformers": Entry(f"{_HERE}.hugging_face:make"),
    "transformers-compiled": Entry(f"{_HERE}.hugging_face:make"),
    "assisted": Entry(f"{_HERE}.hugging_face:make"),
    "lookup": Entry(f"{_HERE}.hugging_face:make"),
    "llama.cpp": Entry(f"{_HERE}.llama_cpp:make", "llama_cpp", reads_gguf=True),
    "llama.cpp-lookup": Entry(f"{_HERE}.llama_cpp:make", "llama_cpp", reads_gguf=True),
    "openvino": Entry(f"{_HERE}.openvino_genai:make", "openvino_genai", reads_gguf=True),
    "openvino-lookup": Entry(f"{_HERE}.openvino_genai:make", "openvino_genai", reads_gguf=True),
    "vllm": Entry(f"{_HERE}.vllm:make", "vllm"),
    "vllm-ngram": Entry(f"{_HERE}.vllm:make", "vllm"),
    "vllm-suffix": Entry(f"{_HERE}.vllm:make", "vllm"),
}


def make_engine(name: str, work: Workload) -> Engine:
    """Load an engine by name. Raises `Unavailable` if it cannot run this workload here."""
    entry = ENGINES[name]
    if not entry.installed:
        raise Unavailable(
            f"{entry.needs} is not installed; --python {name}=PATH names an interpreter that has it"
        )
    if entry.reads_gguf and work.gguf is None:
        raise Unavailable("it needs the target as a GGUF file: give it with --gguf")
    module, _, function = entry.make.partition(":")
    engine: Engine = getattr(import_module(module), function)(work, name)
    return engine
