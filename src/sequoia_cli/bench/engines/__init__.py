"""The engines that are compared, by name. Each module is imported only where its engine runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from sequoia_cli.bench.work import Work

#: Called with new tokens as they come.
OnTokens = Callable[[Sequence[int]], None]


class Unavailable(Exception):
    """An engine that cannot do this work here; the message says why."""


class Engine(Protocol):
    """A model loaded and ready, greedy or sampling as the work says."""

    #: Packages whose versions decide what it does.
    packages: tuple[str, ...]

    def generate(self, prompt: Sequence[int], seed: int, on_tokens: OnTokens) -> None:
        """Continue a prompt with random numbers from `seed`.

        Tokens after an end of text, or one too many, may come and are cut off.
        """


@dataclass(frozen=True)
class Entry:
    """Where an engine is found: `make` is "module:function" of (Work, name) -> Engine.

    `needs` is the package it is made of, where that is none of ours; `reads_gguf`: it takes no other file.
    """

    make: str
    needs: str | None = None
    reads_gguf: bool = False

    @property
    def installed(self) -> bool:
        """Whether this interpreter has the package it needs."""
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


def make_engine(name: str, work: Work) -> Engine:
    """Load an engine by its name. Raises `Unavailable` where it cannot do this work here."""
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
