"""What every engine is given, and what it gives back: values that cross process boundaries as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from operator import sub
from statistics import median
from typing import Any

from sequoia_cli.core.sampling import Sampling


@dataclass(frozen=True)
class Work:
    """The same for all engines: models, prompts as ids, when to stop, how to sample.

    `folder` is the target as other libraries load it, `gguf` the file of it for engines that read nothing
    else, and `assistant` a draft for those that take any language model.
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
    def from_dict(cls, data: Mapping[str, Any]) -> Work:
        """From what `to_dict` gave."""
        found: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        found["prompts"] = tuple(map(tuple, data["prompts"]))
        found["sampling"] = Sampling(**data["sampling"])
        return cls(**found)

    @property
    def longest(self) -> int:
        """Tokens of the longest text, prompt and continuation."""
        return max(map(len, self.prompts)) + self.max_new_tokens

    @property
    def warm_up(self) -> tuple[int, ...]:
        """The prompts to run before any is timed: the longest, then the shortest.

        What an engine allocates, compiles or records for a length, it has then done for both ends.
        """
        by_length = sorted(range(len(self.prompts)), key=lambda index: len(self.prompts[index]))
        return tuple(dict.fromkeys((by_length[-1], by_length[0])))

    def text_seed(self, number: int, prompt: int) -> int:
        """The seed of the text of a prompt in round `number`, below 2**31, which all engines take.

        All engines get the same; no two rounds or prompts share one, as their texts would be one sample.
        """
        digest = blake2b(f"{self.seed}/{number}/{prompt}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Sample:
    """One text: its new tokens, and when they came: (seconds since the prompt was given, how many)."""

    engine: str
    round: int
    prompt: int
    token_ids: tuple[int, ...]
    arrivals: tuple[tuple[float, int], ...]

    @property
    def first_token_seconds(self) -> float | None:
        """From the prompt to the first tokens, which is mostly prefill."""
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def tokens_per_second(self) -> float | None:
        """After the first arrival, so that the prompt's own time is no part of it; None for one alone."""
        if len(self.arrivals) < 2:
            return None
        seconds = self.arrivals[-1][0] - self.arrivals[0][0]
        return sum(count for _, count in self.arrivals[1:]) / seconds if seconds > 0 else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that came at a time, after the first arrival."""
        later = [count for _, count in self.arrivals[1:]]
        return sum(later) / len(later) if later else None

    @property
    def seconds_per_step(self) -> float | None:
        """Median time between arrivals: one is a step of a decoding loop."""
        times = [seconds for seconds, _ in self.arrivals]
        return median(map(sub, times[1:], times)) if len(times) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON; times are rounded to microseconds."""
        arrivals = [[round(seconds, 6), count] for seconds, count in self.arrivals]
        return {**asdict(self), "token_ids": list(self.token_ids), "arrivals": arrivals}
