"""The workload given to every engine and the samples it returns; both cross process boundaries as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from operator import sub
from statistics import median
from typing import Any

from sequoia_cli.core.sampling import Sampling


@dataclass(frozen=True)
class Workload:
    """The same for all engines: models, prompts as ids, ends of text, budget, sampling.

    `folder` is the target as other libraries load it, `gguf` its file for engines that read only GGUF, and
    `assistant` a draft for those that accept any language model.
    """

    target: str
    folder: str
    drafts: tuple[str, ...]
    device: str
    dtype: str
    prompts: tuple[tuple[int, ...], ...]
    eos_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    seed: int
    threads: int
    tree: tuple[int, ...] = (-1,)
    chain: int = 1
    gguf: str | None = None
    assistant: str | None = None
    trust_remote_code: bool = False
    forward: str = "compiled"
    quantize: str = "none"
    quantize_draft: str = "none"
    verifier: str = "sequoia"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Workload:
        """The inverse of `to_dict`."""
        found: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        found["prompts"] = tuple(map(tuple, data["prompts"]))
        found["sampling"] = Sampling(**data["sampling"])
        return cls(**found)

    @property
    def longest(self) -> int:
        """The tokens of the longest text, prompt included."""
        return max(map(len, self.prompts)) + self.max_new_tokens

    @property
    def warm_up(self) -> tuple[int, ...]:
        """The prompts of the warm-up: the longest, then the shortest.

        An engine has then allocated, compiled or recorded what it needs for both extremes of length.
        """
        by_length = sorted(range(len(self.prompts)), key=lambda index: len(self.prompts[index]))
        return tuple(dict.fromkeys((by_length[-1], by_length[0])))

    def text_seed(self, number: int, prompt: int) -> int:
        """The seed of a prompt's text in round `number`, below 2**31 as every engine accepts.

        It is the same for all engines and differs between rounds and prompts, so that texts are independent.
        """
        digest = blake2b(f"{self.seed}/{number}/{prompt}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Sample:
    """One text: its new tokens and their arrivals, (seconds since the start, number of tokens)."""

    engine: str
    round: int
    prompt: int
    token_ids: tuple[int, ...]
    arrivals: tuple[tuple[float, int], ...]

    @property
    def first_token_seconds(self) -> float | None:
        """The time to the first tokens, mostly prefill."""
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def tokens_per_second(self) -> float | None:
        """The speed after the first arrival, which excludes prefill; None for a single arrival."""
        if len(self.arrivals) < 2:
            return None
        seconds = self.arrivals[-1][0] - self.arrivals[0][0]
        return sum(count for _, count in self.arrivals[1:]) / seconds if seconds > 0 else None

    @property
    def tokens_per_step(self) -> float | None:
        """The mean number of tokens per arrival, after the first."""
        later = [count for _, count in self.arrivals[1:]]
        return sum(later) / len(later) if later else None

    @property
    def seconds_per_step(self) -> float | None:
        """The median time between arrivals; each arrival is one decoding step."""
        times = [seconds for seconds, _ in self.arrivals]
        return median(map(sub, times[1:], times)) if len(times) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON; times are rounded to microseconds."""
        arrivals = [[round(seconds, 6), count] for seconds, count in self.arrivals]
        return {**asdict(self), "token_ids": list(self.token_ids), "arrivals": arrivals}
