"""Does `sequoia check` find the faults that the field has shipped? Each planted in turn, on the default pair.

The faults are those of `tests/support/faults.py`, which the suite plants in small models. A table on stderr,
one JSON document on stdout; exit 1 where one that can be found is not, or something is found where none is
planted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from pytest import MonkeyPatch

from sequoia_cli.check.findings import Findings
from sequoia_cli.check.reference import TransformersReference
from sequoia_cli.check.run import Check, NamedPrompt, Subject, long_prompt
from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.paths import shipped
from sequoia_cli.core.plan import TreePlan
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.measure.prompts import load_prompts
from sequoia_cli.measure.session import Session, open_session

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from faults import FAULTS

NONE = "none"

#: Not seen on this pair: float16 keys move about 1% of the mass, and without a top-p there is none to leave
#: out. The suite plants them where they show.
SUBTLE = ("sampling keys in float16", "top-p left out")


def opened(drafts: list[str], dtype: str, forward: str) -> Session:
    """The default pair, or its target alone."""
    return open_session(
        "smollm2", drafts, device="cpu", dtype=dtype, trust_remote_code=False, forward=forward
    )


def main() -> None:
    """Plant, check, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("faults", nargs="*", help="the names of some; else all, and none")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--limit", type=int, default=16, help="prompts")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--samples", type=int, default=200)
    options = parser.parse_args()
    session = opened(["smollm2-draft"], options.dtype, "compiled")
    reference = TransformersReference(opened([], options.dtype, "plain").target.model)
    prompts = [
        NamedPrompt(prompt.id, session.encode(prompt, raw=False)) for prompt in load_prompts(None).prompts
    ]
    tree = TreePlan.from_document(read_document(shipped("trees", "smollm2_cpu.json"))).tree
    subject = Subject(session.target, session.drafts, tree, Sampling(1.0), Sampling(1.0), session.eos_ids)

    added = long_prompt(prompts[: options.limit], session.target.context_limit - options.max_new_tokens)
    asked = [*prompts[: options.limit], *([added] if added else [])]

    def findings(fault: str) -> Findings:
        check = Check(subject, reference, asked, options.max_new_tokens, options.samples, 0)
        with MonkeyPatch.context() as patch:
            if fault != NONE:
                FAULTS[fault](patch)
            list(check.check_texts())
            list(check.sample())
        return Findings(check)

    found = []
    for fault in options.faults or (NONE, *FAULTS):
        began = time.perf_counter()
        failures = findings(fault).failures
        seconds = time.perf_counter() - began
        found.append({"fault": fault, "failures": failures, "seconds": round(seconds, 1)})
        first = failures[0] if failures else "nothing found"
        print(f"{fault:32} {len(failures):3}  {first}  ({seconds:.0f} s)", file=sys.stderr)
    print(json.dumps({"environment": session.environment, "options": vars(options), "found": found}))
    if any(bool(one["failures"]) == (one["fault"] == NONE) for one in found if one["fault"] not in SUBTLE):
        sys.exit(1)


if __name__ == "__main__":
    main()
