"""The verifiers side by side over temperature and top-p, on the default pair (arXiv 2402.12374, Figure 4).

The target writes texts at each sampling. At every few of their places, the same for all verifiers: (a) the
chance that one of 5 children is accepted, (b) the tokens that a step with one fixed tree brings, expected
given the tree that was drawn there. Chances, not coins: neither has the noise of acceptance. A step begins at
a place picked without regard to the draft, so these are not the tokens per step of `generate`, whose steps
begin more often where the draft does badly. The draft's temperature is the target's; a target of temperature
0 stands for the limit, in which draws with replacement are the most probable token over and over, and once
more with the tool's default, by which all verifiers take the most probable children.

Table on stderr, one JSON document with the sums of each prompt on stdout; -o adds a csv and a figure.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from default_pair import open_default_pair
from torch import Tensor
from verifiers.expected import acceptance, tokens_of_step
from verifiers.report import intervals, print_table, write_csv, write_figure
from verifiers.settings import Setting, settings
from verifiers.texts import Place, places, room_for, write

from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.paths import shipped
from sequoia_cli.core.plan import TreePlan
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.proposals import Draw
from sequoia_cli.engine.verification.verifiers import VERIFIERS
from sequoia_cli.engine.verification.walk import verify_greedy
from sequoia_cli.engine.warp import Sampling, probabilities
from sequoia_cli.measure.prompts import load_prompts
from sequoia_cli.measure.session import Session

CHILDREN = 5
#: Draws of children over which the chance without replacement is averaged.
DRAWS = 4


def found_at(
    place: Place,
    setting: Setting,
    ways: Sequence[Draw],
    own: TokenTree,
    session: Session,
    generator: torch.Generator,
) -> dict[str, list[float]]:
    """By verifier: the chance that one of the children is accepted, and the tokens of a step."""
    sampling, vocabulary, merged = setting.sampling, session.target.vocabulary, place.merged
    distributions: dict[int, Tensor] = {}

    def distribution(node: int) -> Tensor:
        if node not in distributions:
            distributions[node] = probabilities(place.logits[node][None], sampling)[0]
        return distributions[node]

    proposed = place.grown[0].probs(0, vocabulary)
    uniforms = torch.rand(DRAWS, CHILDREN, generator=generator, dtype=torch.float64).tolist()
    found = {}
    for name, verifier in VERIFIERS.items():
        way = ways.index(setting.draw(verifier))
        nodes, grown = merged.nodes[way], place.grown[way]
        tokens = grown.tokens.tolist()
        if sampling.greedy:
            (children,) = setting.draw(verifier)(proposed[None], [CHILDREN], torch.empty(0))
            choices = [int(distribution(node).argmax()) for node in nodes]
            values = [
                float(choices[0] in children.tolist()),
                float(len(verify_greedy(own, tokens, choices).path)),
            ]
        else:
            rows = grown.rows(vocabulary)
            step = tokens_of_step(name, own, tokens, lambda node, at=nodes: distribution(at[node]), rows)
            values = [acceptance(name, distribution(0), proposed, uniforms), step]
        found[name] = values
    return found


def measure_prompt(
    prompt: Sequence[int], number: int, session: Session, tree: TokenTree, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Sums over the places of one prompt's texts, an entry for each setting."""
    generator = torch.Generator().manual_seed(number)
    grid = settings()
    samplings = [each.sampling for each in grid]
    room = room_for(tree, 3)
    texts = write(session.target, prompt, samplings, options.tokens, room, session.eos_ids, generator)
    entries = []
    for setting, text in zip(grid, texts, strict=True):
        ways = list(dict.fromkeys(setting.draw(verifier) for verifier in VERIFIERS.values()))
        draft_sampling = Sampling(setting.sampling.temperature or 1.0)
        sums = {name: [0.0, 0.0] for name in VERIFIERS}
        count = 0
        for place in places(
            session.target, session.drafts[0], text, tree, draft_sampling, ways, options.stride, generator
        ):
            count += 1
            for name, values in found_at(place, setting, ways, tree, session, generator).items():
                sums[name] = [have + new for have, new in zip(sums[name], values, strict=True)]
        entries.append(
            {
                "prompt": number,
                "temperature": setting.sampling.temperature,
                "top_p": setting.sampling.top_p,
                "draft": setting.draft,
                "places": count,
                "accepted": {name: round(pair[0], 5) for name, pair in sums.items()},
                "tokens": {name: round(pair[1], 5) for name, pair in sums.items()},
            }
        )
    return entries


def main() -> None:
    """Measure prompt by prompt, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tree", help="a compiled tree; else the best of 16 nodes by the shipped rates")
    parser.add_argument("--prompts", type=int, default=24, help="how many of the built-in ones")
    parser.add_argument("--tokens", type=int, default=32, help="of each text")
    parser.add_argument("--stride", type=int, default=4, help="tokens from place to place")
    parser.add_argument("--seconds", type=float, help="begin no other prompt after that")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("-o", "--output", help="also PATH.csv and PATH.png (matplotlib)")
    options = parser.parse_args()
    session = open_default_pair(dtype=options.dtype, forward="fast")
    if options.tree:
        tree = TreePlan.from_document(read_document(options.tree)).tree
    else:
        rates = AcceptanceRates.from_document(
            read_document(str(shipped("profiles", "smollm2_cpu_rates.yaml")))
        )
        tree = BestTrees(rates.p, 16, 16, 16).tree(16, 16)
    prompts = load_prompts(None).prompts
    # Of all kinds, also where --seconds ends the run early.
    chosen = random.Random(0).sample(prompts, min(options.prompts, len(prompts)))
    began, entries = time.perf_counter(), []
    try:
        for number, prompt in enumerate(chosen):
            entries += measure_prompt(session.encode(prompt, raw=False), number, session, tree, options)
            seconds = time.perf_counter() - began
            print(f"prompt {number + 1} of {len(chosen)}, {seconds:.0f} s", file=sys.stderr, flush=True)
            if options.seconds and seconds > options.seconds:
                break
    except KeyboardInterrupt:
        print("interrupted; what is finished counts", file=sys.stderr)
        if not entries:
            raise
    found = intervals(entries)
    print_table(found, sys.stderr)
    document = {
        "command": " ".join(["bench_verifiers.py", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "environment": session.environment,
        "conditions": dict(session.conditions),
        "parents": list(tree.parents),
        "children": CHILDREN,
        "intervals": found,
        "samples": entries,
    }
    print(json.dumps(document), flush=True)
    if options.output:
        write_csv(found, Path(options.output + ".csv"))
        write_figure(found, Path(options.output + ".png"), tree)


if __name__ == "__main__":
    main()
