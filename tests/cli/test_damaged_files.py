"""Files damaged in every way: each is read or refused in one short message, and nothing else happens."""

import copy
import json
import random
from pathlib import Path

import pytest
import yaml

from sequoia_cli.core.artifact import parse_document
from sequoia_cli.core.counts import PromptCounts
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.journal import Journal
from sequoia_cli.core.plan import TreePlan
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.errors import SequoiaError
from sequoia_cli.measure.prompts import load_prompts

PROFILE = {
    "schema": "sequoia-profile/2",
    "origin": "measured",
    "device": "cpu",
    "conditions": {"dtype": "float32", "context": 128},
    "target_seconds": [[1, 0.01], [8, 0.02]],
    "draft_seconds": [[1, 0.001]],
    "overhead_seconds": 0.001,
    "samples": {"target": {"1": [0.01, 0.02]}},
    "contexts": [{"context": 1024, "target_seconds": [[1, 0.03], [8, 0.04]], "draft_seconds": [[1, 0.002]]}],
}
RATES = AcceptanceRates.from_samples(
    [PromptCounts(n, (500.0, 450.0), ((300.0, 50.0), (200.0, 40.0))) for n in (0, 1)], {"dtype": "float32"}
).to_dict()
TREE = {
    "schema": "sequoia-tree/1",
    "size": 4,
    "depth": 3,
    "predicted": {"tokens_per_step": 1.5, "seconds_per_step": 0.01, "speedup": 1.2},
    "inputs": {"profile": {"digest": "sha256:00"}},
    "runners_up": [{"shape": "chain", "size": 3, "depth": 3}],
    "costs": {"target": [[1, 0.01], [4, 0.02]], "draft": [[1, 0.001]], "overhead": 0.001},
    "parents": [-1, 0, 0, 1],
}
READERS = {
    "profile": (PROFILE, HardwareProfile.from_document),
    "rates": (RATES, AcceptanceRates.from_document),
    "tree": (TREE, TreePlan.from_document),
}

#: What is put in place of a value, and between bytes.
VALUES = (
    *(None, True, 0, -1, 1e308, 10**30, float("nan"), float("-inf"), "", "x" * 5000, "[/INST]", "\ud800"),
    *([], {}, [[]], [None], {"a": 1}, list(range(3000)), [["y" * 3000]]),
)
BYTES = (
    b"\x00",
    b"\xff",
    b"{",
    b"]",
    b":",
    b"- ",
    b"&a ",
    b"*a",
    b'"',
    b"\n",
    b"1e999",
    *(b"!!set ", b"!!bool ", b"!!timestamp ", b"!!seq ", b"? "),
    b"\\ud800",
)


def spots(value):
    """Each container in a value with each of its keys or places."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(inside):
        yield value, key
        if isinstance(inner, dict | list):
            yield from spots(inner)


def damaged(data, dice):
    """The file of `data` with one to three values exchanged or keys lost, and perhaps bytes as well."""
    data = json.loads(json.dumps(data))
    for _ in range(dice.randint(0, 3)):
        container, key = dice.choice(list(spots(data)))
        if dice.random() < 0.2:
            del container[key]
            if not data:
                break
        else:
            container[key] = copy.deepcopy(dice.choice(VALUES))
    as_json = dice.random() < 0.5
    text = json.dumps(data) if as_json else yaml.safe_dump(data, default_flow_style=None, allow_unicode=False)
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(dice.choice((0, 0, 1, 3))):
        place = dice.randrange(len(raw) + 1)
        raw[place : place + dice.randint(0, 3)] = dice.choice(BYTES)
    return bytes(raw)


def complaint(read):
    """What a reader says of a damaged file; None where it can be read."""
    try:
        read()
    except SequoiaError as error:
        return f"{error.message} {error.hint or ''}"
    return None


@pytest.mark.parametrize("kind", READERS)
def test_a_damaged_file_is_read_or_refused_in_one_short_line(kind):
    data, read = READERS[kind]
    dice = random.Random(kind)
    said = [
        complaint(lambda raw=raw: read(parse_document(raw, "file")))
        for raw in (damaged(data, dice) for _ in range(150))
    ]
    refused = [text for text in said if text is not None]
    assert 50 < len(refused) < 150  # most damage matters, and files that are whole are read
    assert max(map(len, refused)) < 1000
    assert not any("\n" in text for text in refused)


def test_damaged_prompts_are_read_or_refused_in_one_short_line(tmp_path):
    dice, path = random.Random(5), Path(tmp_path / "p.jsonl")
    row = {"id": 1, "messages": [{"role": "user", "content": "hi"}], "category": "x", "input": "y"}
    for _ in range(100):
        path.write_bytes(damaged(row, dice))
        text = complaint(lambda: load_prompts(str(path)))
        assert text is None or (len(text) < 1000 and "\n" not in text)


def test_a_damaged_journal_is_resumed_or_begun_again(tmp_path):
    dice, path = random.Random(6), tmp_path / "x.partial"
    for _ in range(100):
        path.write_bytes(b'{"a": 1}\n' + damaged({"b": [1, 2]}, dice) + b"\n")
        with Journal(path, {"a": 1}) as journal:
            json.dumps(journal.entries, allow_nan=False)
