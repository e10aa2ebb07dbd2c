"""Groups of options: a command takes dataclasses, and typer sees their fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sequoia_cli.cli.options import given, with_groups


@dataclass(frozen=True)
class Size:
    width: Annotated[int, typer.Option("--width", "-w")] = 2
    height: Annotated[int | None, typer.Option("--height")] = None


@pytest.fixture
def run():
    """Run a command with a group between two options; returns what it got."""
    found = []

    @with_groups
    def command(
        context: typer.Context,
        *,
        name: Annotated[str, typer.Option("--name")] = "box",
        size: Size,
        tags: Annotated[list[str] | None, typer.Option("--tag")] = None,
    ) -> None:
        """Measure a box."""
        found.append((name, size, tags, given(context, "name width height tags")))

    app = typer.Typer()
    app.command()(command)

    def run(*arguments):
        result = CliRunner().invoke(app, arguments)
        return result, found.pop() if found else None

    return run


def test_a_group_is_made_from_its_options_and_their_defaults(run):
    assert run()[1] == ("box", Size(), None, [])
    arguments = ("--tag", "a", "--height", "7", "-w", "3", "--name", "x")
    assert run(*arguments)[1] == ("x", Size(3, 7), ["a"], ["--name", "--width", "--height", "--tag"])


def test_options_of_a_group_are_checked_and_shown_in_their_place(run):
    result, found = run("--width", "wide")
    assert result.exit_code == 2
    assert found is None
    text = run("--help")[0].output
    places = [text.index(flag) for flag in ("Measure a box", "--name", "--width", "--height", "--tag")]
    assert places == sorted(places)
