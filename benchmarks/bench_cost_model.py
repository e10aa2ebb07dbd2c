"""Does a decoding step take as long as the cost model says? Three trees, timed and predicted in one run.

Rounds alternate between what `sequoia profile` times and texts decoded with the compiled tree, a chain of 4
and a wide tree, so that a slow minute of the machine hits prediction and measurement alike. Each text's steps
take turns with plain ones, and its times are divided by that pace, as the profile's are. Medians over steps
that had their whole tree; a table on stderr, one JSON document on stdout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from default_pair import open_default_pair

from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.paths import shipped
from sequoia_cli.core.plan import TreePlan
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.step import Step
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.measure.latency import Samples, context_prompt, fit_profile, time_round
from sequoia_cli.measure.prompts import load_prompts

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
TOKENS = 48


def wide(children: int) -> TokenTree:
    """A root, its children, and a child for each of the first half of them."""
    grown = children // 2
    return TokenTree((-1, *[0] * children, *range(1, grown + 1)))


class Turn(NamedTuple):
    """Steps of one text with a whole tree, and the median target time of plain steps that took turns."""

    steps: list[Step]
    pace: float


def turn(plain: Decoder, decoder: Decoder, prompt: Sequence[int], number: int) -> Turn:
    """Decode a prompt, a step of each by turns. The first steps, which have the prefill, do not count."""
    runs = [
        islice(each.decode(prompt, TOKENS, generator=torch.Generator().manual_seed(number)), 1, None)
        for each in (plain, decoder)
    ]
    pairs = [(one, other) for one, other in zip(*runs, strict=False) if other.size == decoder.tree.size]
    pace = statistics.median(one.seconds["target"] for one, _ in pairs)
    return Turn([step for _, step in pairs], pace)


def main() -> None:
    """Time, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tree", default=str(shipped("trees", "smollm2_cpu.json")))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    session = open_default_pair(device="auto", dtype=options.dtype, quantize=options.quantize)
    (draft,) = session.drafts
    sampling = Sampling(options.temperature)
    samplings = (sampling, Sampling(options.temperature or 1.0))
    compiled = TreePlan.from_document(read_document(options.tree)).tree
    trees = {"plain": ROOT_ONLY, "compiled": compiled, "chain of 4": chain(4), "wide": wide(10)}
    decoders = {name: Decoder(session.target, [draft], tree, *samplings) for name, tree in trees.items()}
    context = context_prompt(session.tokenizer, 128)
    prompts = [session.encode(prompt, raw=False) for prompt in load_prompts(None).prompts]

    visits: list[Samples] = []
    measured: dict[str, list[Turn]] = {name: [] for name in trees}
    for number in range(options.rounds):
        visits += time_round(session.target, draft, SIZES, context, number, samplings)
        for name, decoder in decoders.items():
            measured[name].append(turn(decoders["plain"], decoder, prompts[number % len(prompts)], number))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, end="\r", flush=True)
    typical = statistics.median(statistics.median(visit["target"][1]) for visit in visits)
    profile = fit_profile(visits, dict(session.conditions), {})
    found = {}
    for name, tree in trees.items():
        predicted = profile.costs.seconds(tree.size, [len(level) for level in tree.expanded])
        steps = [step for each in measured[name] for step in each.steps]
        paced = [
            sum(step.seconds.values()) * typical / each.pace for each in measured[name] for step in each.steps
        ]
        whole = sum(sum(step.seconds.values()) for step in steps)
        forwards = sum(step.seconds["target"] + step.seconds["draft"] for step in steps)
        found[name] = {
            "nodes": tree.size,
            "layers": tree.depth,
            "steps": len(steps),
            "predicted_seconds": predicted,
            "measured_seconds": statistics.median(paced),
            "predicted_to_measured": predicted / statistics.median(paced),
            "not_in_a_forward": 1 - forwards / whole,
        }
    document = {
        "command": " ".join(sys.argv),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "environment": session.environment,
        "conditions": dict(session.conditions),
        "trees": found,
    }
    heads = ("tree", "nodes", "steps", "predicted ms", "measured ms", "ratio", "no forward")
    print("{:12}{:>7}{:>7}{:>14}{:>13}{:>7}{:>12}".format(*heads), file=sys.stderr)
    for name, entry in found.items():
        print(
            f"{name:12}{entry['nodes']:7}{entry['steps']:7}{1000 * entry['predicted_seconds']:14.1f}"
            f"{1000 * entry['measured_seconds']:13.1f}{entry['predicted_to_measured']:7.2f}"
            f"{entry['not_in_a_forward']:12.1%}",
            file=sys.stderr,
        )
    print(json.dumps(document))


if __name__ == "__main__":
    main()
