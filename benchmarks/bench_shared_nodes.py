"""How many nodes that a draft runs end in the same tokens as another of the same step, on the default pair.

What graph-structured speculation could save: the proposals after one of them would do for the others. For
trees of several sizes and the last 1 to 3 tokens of a node's path, committed ones included: the share of the
draft's nodes that repeat an earlier one. A table on stderr, JSON on stdout.

    python benchmarks/bench_shared_nodes.py --prompts 12 --temperature 0.6
"""

from __future__ import annotations

import argparse
import json
import sys
from unittest.mock import patch

import torch
from default_pair import open_default_pair

from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.paths import shipped
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder, default_draft_sampling
from sequoia_cli.engine.verification.accept import Drafted
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.measure.prompts import BUILTIN_FOR_COMPILING, load_prompts

SIZES, LAST = (8, 16, 32, 64, 128), (1, 2, 3)


class Counts:
    """Nodes that the draft ran below the root, and repeats among them, by number of last tokens."""

    def __init__(self) -> None:
        self.nodes = 0
        self.repeats = dict.fromkeys(LAST, 0)

    def add(self, tree: TokenTree, tokens: list[int], text: list[int]) -> None:
        """Those of one step, whose root is the last of `text`."""
        seen: dict[int, set[tuple[int, ...]]] = {last: set() for last in LAST}
        for node in range(tree.size):
            if not tree.children[node]:
                continue  # nothing is proposed after it
            ids = (*text[:-1], *(tokens[each] for each in tree.path(node)))
            self.nodes += node > 0
            for last in LAST:
                self.repeats[last] += ids[-last:] in seen[last]
                seen[last].add(ids[-last:])


def main() -> None:
    """Decode and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    session = open_default_pair(quantize="int8")
    profile = HardwareProfile.from_document(read_document(shipped("profiles", "smollm2_cpu.yaml")))
    rates = AcceptanceRates.from_document(read_document(shipped("profiles", "smollm2_cpu_rates.yaml")))
    prompts = load_prompts(None, skip=BUILTIN_FOR_COMPILING).prompts[: options.prompts]
    sampling = Sampling(options.temperature)
    found = {}
    for size in SIZES:
        tree = choose(profile, [list(row) for row in rates.p], Limits(size), size=size).chosen.tree
        decoder = Decoder(session.target, session.drafts, tree, sampling, default_draft_sampling(sampling))
        counts = Counts()
        for prompt in prompts:
            ids = session.encode(prompt, raw=False)
            text, made = list(ids), Drafted.of

            def watched(*arguments, made=made, text=text, counts=counts) -> Drafted:
                drafted = made(*arguments)
                counts.add(drafted.tree, drafted.tokens.tolist(), text)
                return drafted

            generator = torch.Generator().manual_seed(0)
            with patch.object(Drafted, "of", watched):
                for step in decoder.decode(ids, options.tokens, eos_ids=session.eos_ids, generator=generator):
                    text += step.tokens
        shares = {last: counts.repeats[last] / max(1, counts.nodes) for last in LAST}
        found[size] = {"nodes": counts.nodes, "shares": shares}
        cells = ", ".join(f"{last}: {share:.1%}" for last, share in shares.items())
        print(f"{size} nodes: of {counts.nodes} that the draft ran, by last tokens {cells}", file=sys.stderr)
    json.dump({"temperature": options.temperature, "trees": found}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
