"""The `sequoia` command line: its commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from sequoia_cli import __version__
from sequoia_cli.cli.acceptance import acceptance_command
from sequoia_cli.cli.bench import bench_command
from sequoia_cli.cli.check import check_command
from sequoia_cli.cli.compile import compile_command
from sequoia_cli.cli.distill import distill_command
from sequoia_cli.cli.generate import generate_command
from sequoia_cli.cli.profile import profile_command
from sequoia_cli.errors import SequoiaError, out_of_memory


class _Commands(TyperGroup):
    """Runs a command and says what went wrong: inside of typer, which would end in its own way first."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for; an error ends in a message and its exit code."""
        try:
            return super().invoke(ctx)
        except SequoiaError as error:
            _exit(error.exit_code, f"sequoia: {error.message}", error.hint)
        except KeyboardInterrupt:
            _exit(130, "sequoia: interrupted")
        except BrokenPipeError:
            # The reader has gone, as with `| head`: nothing to report, and nothing more to flush at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _exit(0)
        except (MemoryError, RuntimeError) as error:
            message = out_of_memory(error)
            if message is None:
                raise
            _exit(1, f"sequoia: {message}", "a smaller model, tree or --max-new-tokens needs less")
        except OSError as error:
            _exit(1, f"sequoia: {error.filename or 'file system'}: {error.strerror or error}")


app = typer.Typer(
    name="sequoia",
    cls=_Commands,
    help="Tree-based speculative decoding: measure a machine and a model pair, compile the best tree, "
    "generate text that is distributed exactly as the target's own.",
    epilog="profile → acceptance → compile → generate; each writes a small file that the next one reads.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sequoia {__version__}")
        raise typer.Exit


@app.callback()
def sequoia(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Common options."""


app.command("profile")(profile_command)
app.command("acceptance")(acceptance_command)
app.command("compile")(compile_command)
app.command("distill")(distill_command)
app.command("bench")(bench_command)
app.command("generate")(generate_command)
app.command("check")(check_command)


def main() -> None:
    """Run the command and exit: 0 done, 1 failed, 2 bad usage or input, 3 check failed, 130 interrupted."""
    # A terminated run keeps what it finished, just as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal's encoding must not end a run
    app()


def _exit(code: int, *lines: str | None) -> NoReturn:
    for line in lines:
        if line:
            print(line, file=sys.stderr)
    sys.exit(code)
