"""What users run who give no option: the real pair in this machine's dtype, with compiled layers."""

import json

from exhaustive import exhaustive


@exhaustive
def test_the_default_pair_passes_its_own_check_greedy_and_sampled(run, monkeypatch):
    """`check` decodes as `generate` does; a right program fails in one of 10,000 runs."""
    monkeypatch.delenv("SEQUOIA_CACHE")  # the target and the compiled layers that this user has already
    small = ("--limit", "2", "-n", "24", "--samples", "100", "--smallest-deviation", "1")
    code, out, err = run("check", "--device", "cpu", "--tree", _shipped_tree(), *small, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["conditions"]["target"] == "smollm2"
    assert found["conditions"]["forward"] == "compiled", err
    assert found["tests"]


def _shipped_tree() -> str:
    from sequoia_cli.core.paths import shipped

    return str(shipped("trees", "smollm2_cpu.json"))
