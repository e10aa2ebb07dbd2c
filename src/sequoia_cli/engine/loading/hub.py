"""The Hugging Face hub: a repository's files brought into its cache, or one clear line why not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from sequoia_cli.errors import BadInput, SequoiaError

#: Everything at the top of a repository but weights: config, tokenizer, templates, the index of the weights
#: and the code that runs only where it is trusted.
DESCRIPTION = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")


def is_name(name: str) -> bool:
    """Whether `name` could be a repository: `name` or `organisation/name`."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def fetch(name: str, files: Sequence[str], label: str, *, hint: str | None = None) -> Path:
    """Fetch the `files` (patterns) of repository `name` that the cache lacks; returns their folder.

    Without a network, what the cache holds has to do. `label` names the model in messages. Raises `BadInput`
    where the repository does not exist or is closed, `SequoiaError` where it cannot be reached.
    """
    try:
        # The whole-repository call fails at once without a network; the one for single files retries.
        return Path(snapshot_download(name, allow_patterns=list(files), ignore_patterns=["*/*"]))
    except GatedRepoError:
        raise BadInput(
            f"{label} is closed to you on the hub",
            hint="accept its terms on its page and log in with `hf auth login`, or give a local folder",
        ) from None
    except RepositoryNotFoundError:
        raise BadInput(
            f"{label} is no local folder, and the hub has no such repository (or it is private)", hint=hint
        ) from None
    except LocalEntryNotFoundError:
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise SequoiaError(
            f"{label} is no local folder and not in the Hugging Face cache, and {reason}",
            hint=hint or "fetch it where there is a network, or give a local folder or --target smollm2",
        ) from None
    except Exception as error:  # the client's network errors differ between its versions and share no base
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SequoiaError(f"{label} could not be fetched from the hub: {reason}", hint=hint) from error
