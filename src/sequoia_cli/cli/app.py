"""The `sequoia` command line: its commands, and the conversion of errors to messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from sequoia_cli import __version__
from sequoia_cli.cli.acceptance import acceptance_command
from sequoia_cli.cli.bench.command import bench_command
from sequoia_cli.cli.check.command import check_command
from sequoia_cli.cli.compile.command import compile_command
from sequoia_cli.cli.distill.command import distill_command
from sequoia_cli.cli.generate.command import generate_command
from sequoia_cli.cli.profile import profile_command
from sequoia_cli.cli.streams import prepare_streams
from sequoia_cli.errors import OutOfMemory, SequoiaError, bounded, out_of_memory

#: By command, how to use less memory.
_LESS_MEMORY = {
    "profile": "a smaller model, --context or largest of --tokens needs less",
    "acceptance": "a smaller model, prompt, --max-new-tokens, --ranks or --depths needs less",
    "compile": "a smaller --budget, --max-depth or --max-branch needs less",
    "distill": "writing texts needs less with a smaller --rows or --length, training with a smaller "
    "--batch-tokens",
    "bench": "a smaller model, tree, prompt or --max-new-tokens needs less",
    "generate": "a smaller model, tree, prompt or --max-new-tokens needs less",
    "check": "the target's weights are held three times; a smaller model, tree, prompt or --max-new-tokens "
    "needs less",
}


class _Commands(TyperGroup):
    """Runs a command and reports errors, within typer, which would otherwise exit first."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error becomes a message and an exit code."""
        try:
            return super().invoke(ctx)
        except OutOfMemory as error:
            _exit(1, error.message, _LESS_MEMORY.get(ctx.invoked_subcommand))
        except SequoiaError as error:
            _exit(error.exit_code, error.message, error.hint)
        except KeyboardInterrupt:
            _exit(130, "interrupted")
        except BrokenPipeError:
            # The reader has gone, as with `| head`: nothing to report or to flush at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _exit(0)
        except Exception as error:
            # typer prints its own errors, such as usage errors, which have an exit code.
            if hasattr(error, "exit_code") or isinstance(error, typer.Abort):
                raise
            if os.environ.get("SEQUOIA_DEBUG"):
                raise
            _exit(1, *_described(error, ctx.invoked_subcommand))


def _described(error: Exception, command: str) -> tuple[str, str | None]:
    """The message and hint of an unexpected error."""
    if message := out_of_memory(error):
        return f"{message} (in sequoia {command})", _LESS_MEMORY.get(command)
    if isinstance(error, OSError):
        return f"{error.filename or 'file system'}: {error.strerror or error}", None
    reason = " ".join(str(error).split())
    return (
        f"unexpected {type(error).__name__}: {bounded(reason, 300)}",
        "SEQUOIA_DEBUG=1 in the environment shows where; please report it with the command",
    )


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
    # A terminated run keeps its finished work, as an interrupted one does. So does one whose terminal closes,
    # unless it ignores that (nohup).
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    prepare_streams()
    app()


def _exit(code: int, message: str | None = None, hint: str | None = None) -> NoReturn:
    with suppress(OSError):  # the terminal was closed
        if message:
            print(f"sequoia: {message}", file=sys.stderr)
        if hint:
            print(hint, file=sys.stderr)
        sys.stderr.flush()
    sys.exit(code)
