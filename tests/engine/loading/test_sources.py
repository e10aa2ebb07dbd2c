"""What a model's name stands for, and what the hub is asked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from exhaustive import exhaustive
from sequoia_cli.engine.loading import hub
from sequoia_cli.engine.loading.sources import fetch_description, locate
from sequoia_cli.errors import BadInput, SequoiaError


@pytest.fixture
def no_hub(monkeypatch):
    def asked(*args, **kwargs):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(hub, "snapshot_download", asked)


@pytest.mark.parametrize("name", ["smollm2", "smollm2-draft"])
def test_an_alias_comes_before_a_folder_of_its_name(name, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("draft", name).kind == "alias"


def test_the_draft_that_shares_cannot_be_a_target():
    with pytest.raises(BadInput, match="it can only be a draft"):
        locate("target", "smollm2-draft")


def test_a_folder_comes_before_a_hub_repository_of_its_name(tmp_path, monkeypatch):
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert locate("target", "org/model").kind == "folder"
    assert locate("target", "org/other").kind == "hub"
    assert locate("target", "gpt2").kind == "hub"


@pytest.mark.parametrize(
    "name", ["./modle", "/no/modle", "~/modle-x", "a/b/c", "a\\b", "../modle", ".", ".."]
)
def test_what_is_written_like_a_path_never_becomes_a_hub_name(name, tmp_path, monkeypatch, no_hub):
    monkeypatch.chdir(tmp_path)
    if Path(name).is_dir():
        assert locate("target", name).kind == "folder"
        return
    with pytest.raises(BadInput, match="is a path that does not exist") as caught:
        locate("target", name)
    assert f"target '{name}'" in caught.value.message


def test_a_mistyped_path_is_told_its_close_siblings(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        locate("target", "./modle")
    assert caught.value.hint == "did you mean ./model?"
    with pytest.raises(BadInput) as caught:
        locate("target", f"{tmp_path}/modle/")
    assert caught.value.hint == f"did you mean {tmp_path}/model?"


def test_a_file_is_no_model(tmp_path):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(BadInput, match="is a file; a model is a folder"):
        locate("draft", str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", ["", "a b", "org/model?", "--", "org/"])
def test_an_impossible_name_is_refused(name):
    with pytest.raises(BadInput, match="not a possible name on the hub"):
        locate("draft", name)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (LocalEntryNotFoundError("nothing\nat length"), SequoiaError, "the hub cannot be reached"),
        (
            RepositoryNotFoundError.__new__(RepositoryNotFoundError),
            BadInput,
            "the hub has no such repository",
        ),
        (GatedRepoError.__new__(GatedRepoError), BadInput, "is closed to you"),
        (ConnectionResetError("reset\nby peer"), SequoiaError, "could not be fetched from the hub: reset"),
    ],
)
def test_what_goes_wrong_on_the_hub_is_one_line(error, kind, says, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(kind, match=says) as caught:
        fetch_description(locate("target", "smolm2"), print)
    assert "\n" not in caught.value.message


def test_a_mistyped_alias_that_the_hub_does_not_know_is_told_the_alias(monkeypatch):
    def fail(*args, **kwargs):
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(SequoiaError) as caught:
        fetch_description(locate("target", "smolm2"), print)
    assert caught.value.hint == "did you mean 'smollm2'?"


def test_a_hub_name_that_fails_is_told_the_folder_that_may_be_meant(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise LocalEntryNotFoundError("no network")

    (tmp_path / "models" / "llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(SequoiaError) as caught:
        fetch_description(locate("target", "models/lama"), print)
    assert caught.value.hint == "did you mean models/llama?"


_ASK = """
import sys, torch
from sequoia_cli.engine.loading.load import load_target
from sequoia_cli.errors import SequoiaError
try:
    load_target("org/not-cached", dtype=torch.float32, device=torch.device("cpu"))
except SequoiaError as error:
    print(error.message)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        pytest.param({"HF_ENDPOINT": "http://127.0.0.1:9"}, "the hub cannot be reached", marks=exhaustive),
    ],
)
def test_without_a_network_one_line_and_no_retries(settings, reason, tmp_path):
    environment = {**os.environ, "HF_HOME": str(tmp_path), **settings}
    done = subprocess.run(
        [sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stdout == (
        f"target 'org/not-cached' is no local folder and not in the Hugging Face cache, and {reason}\n"
    )
    assert done.stderr == ""  # a retry would have said so
