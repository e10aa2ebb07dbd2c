"""Interrupts, closed pipes, narrow encodings: what is finished is kept, and nobody sees a traceback."""

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from functools import partial

import huggingface_hub.utils
import pytest
import torch
import transformers

from exhaustive import few
from sequoia_cli.cli.app import app
from sequoia_cli.cli.console import print_json
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.errors import SequoiaError
from sequoia_cli.measure import session

PROMPTS = ("-n", "30", "-p", "Hello", "-p", "fine day")


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C at the third step of the second text."""
    decode, texts = Decoder.decode, []

    def interrupting(self, *arguments, **options):
        texts.append(self)
        for number, step in enumerate(decode(self, *arguments, **options)):
            if (len(texts), number) == (2, 3):
                raise KeyboardInterrupt
            yield step

    monkeypatch.setattr(Decoder, "decode", interrupting)


@pytest.fixture
def command(pair, trees):
    """The words of a generate that streams for long, for a process of its own."""
    return [sys.executable, "-m", "sequoia_cli", "generate", *pair, "--tree", trees["tree"]]


# --- interrupts


def test_an_interrupted_run_keeps_its_text_and_ends_it_with_a_newline(
    generate, document, monkeypatch, request
):
    whole = [result["text"] for result in document(*PROMPTS)["results"]]
    request.getfixturevalue("interrupted")
    code, out, err = generate(*PROMPTS)
    assert code == 130
    first, second, nothing = out.split("\n")
    assert (first, nothing) == (whole[0], "")
    assert second
    assert whole[1].startswith(second)
    assert "warning: interrupted: 1 of 2 texts are finished" in err
    assert err.endswith("sequoia: interrupted\n")


def test_an_interrupted_run_still_prints_one_json_document_that_says_what_is_unfinished(
    generate, interrupted
):
    code, out, _ = generate(*PROMPTS, "--json")
    assert code == 130
    found = json.loads(out)
    first, second = found["results"]
    assert (first["finish_reason"], len(first["token_ids"])) == ("length", 30)
    assert second["finish_reason"] is None
    assert 0 < len(second["token_ids"]) < 30
    assert found["warnings"] == ["interrupted: 1 of 2 texts are finished"]


def test_where_the_terminal_is_gone_as_well_the_document_is_still_printed(
    interrupted, run, pair, trees, monkeypatch
):
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    code, out, _ = run("generate", *pair, "--tree", trees["tree"], *PROMPTS, "--json")
    assert code == 130
    assert len(json.loads(out)["results"]) == 2


def test_an_interrupted_comparison_reports_on_finished_texts_alone(generate, interrupted):
    code, out, _ = generate("-n", "30", "-p", "Hello", "--compare", "--json")
    assert code == 130
    found = json.loads(out)
    assert (found["finish_reason"], found["first_differences"]) == (None, {})


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_interrupt_while_models_load_leaves_nothing_on_stdout(generate, monkeypatch, flags):
    def interrupting(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "open_session", interrupting)
    assert generate(*PROMPTS, *flags) == (130, "", "sequoia: interrupted\n")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_process_as_an_interrupt_does(command, models, tmp_path, sent):
    from models import tiny_model

    long = tmp_path / "long"
    tiny_model("llama", 300, max_position_embeddings=20000).save_pretrained(long)
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(models["target"]).save_pretrained(long)
    process = subprocess.Popen(
        [*command, "--target", str(long), "-p", "Hello", "-n", "19000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background ignores interrupts, `nohup` hang-ups, and children inherit that.
        preexec_fn=partial(signal.signal, sent, signal.SIG_DFL),
    )
    begun = process.stdout.read(8)
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (begun + out).endswith(b"\n")
    assert b"Traceback" not in err
    assert err.endswith(b"sequoia: interrupted\n")


# --- what stdout and stdin may be


def test_a_reader_that_goes_away_is_no_error(command):
    process = subprocess.Popen(
        [*command, "-p", "Hello", "-n", "200", "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(timeout=60), err) == (0, b"")
    process.stderr.close()


def test_no_stdin_at_all_is_no_prompt(generate, monkeypatch):
    from sequoia_cli.cli.generate import inputs

    class Closed:
        stdin, stdout = None, sys.stdout

    monkeypatch.setattr(inputs, "sys", Closed)
    code, out, err = generate()
    assert (code, out) == (2, "")
    assert "no prompt" in err


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_does_not_have_is_refused_by_key(capsys, number):
    with pytest.raises(SequoiaError, match="'speedup' holds a number that is not finite"):
        print_json({"steps": 1, "speedup": [number]})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize("terminal", [False, True])
def test_data_is_utf8_but_on_a_terminal_that_is_not(generate, document, monkeypatch, flags, terminal):
    options = ("-p", "日本語 🦄 naïve", "-n", "60", "-T", "1", "--raw")
    expected = document(*options)["text"]
    assert not expected.isascii()
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    narrow.isatty = lambda: terminal
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", narrow)
        assert generate(*options, *flags)[0] == 0
    narrow.flush()
    out = narrow.buffer.getvalue().decode("cp1252" if terminal else "utf-8")
    if flags:
        assert json.loads(out)["text"] == expected  # escaped on the terminal, not replaced
    elif terminal:
        assert out == expected.encode("cp1252", "replace").decode("cp1252") + "\n"
    else:
        assert out == expected + "\n"


@pytest.fixture
def inputs(empty_place):
    """The words of a compile in a process of its own, without its output."""
    (empty_place / "hw.yaml").write_text(
        "target_seconds: [[1, 0.01], [8, 0.02]]\ndraft_seconds: [[1, 0.001]]\ndevice: Gerät\n"
    )
    (empty_place / "p.yaml").write_text("[0.6, 0.2]\n")
    return [
        *(sys.executable, "-m", "sequoia_cli", "compile"),
        *("--profile", "hw.yaml", "--acceptance", "p.yaml", "--budget", "8"),
    ]


def shell(words, line, **environment):
    """A shell line in which "$@" is the command."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *words],
        env={**os.environ, **environment},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def test_a_plan_is_utf8_whatever_the_locale(inputs):
    done = shell(inputs, '"$@" -o -', PYTHONIOENCODING="ascii", LC_ALL="C")
    assert json.loads(done.stdout.decode())["inputs"]["profile"]["device"] == "Gerät"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ('"$@" -o - >&-', 2, b"stdout is closed"),
        ('"$@" -o x.json >&-', 0, b"wrote x.json"),
        ('"$@" -o x.json --json >&-', 1, b"stdout is closed"),
        ('"$@" -o x.json 2>&-', 0, b""),
        ('"$@" --budget 0 2>&-', 2, b""),
        ('"$@" -o - --profile - <&-', 2, b"stdin is closed"),
    ],
)
def test_streams_may_be_closed_from_the_start(inputs, line, code, said):
    done = shell(inputs, line)
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False)
    assert said in done.stderr
    assert done.stdout == b""


@pytest.mark.parametrize("command", ["profile", "acceptance", "compile", "bench"])
def test_a_file_that_another_command_is_to_write_is_refused_before_any_work(run, monkeypatch, command):
    from sequoia_cli.core.writing import Output

    monkeypatch.setattr(session, "open_session", None)
    place = Output("out")
    code, out, err = run(command, "-o", "out", "--force")
    assert (code, out) == (2, "")
    assert "sequoia: out is being written by another command\n" in err
    place.release()


def test_a_command_lets_go_of_its_file_however_it_ends(run, empty_place):
    for _ in range(2):
        assert run("compile", "-o", "out", "--profile", "none")[0] == 2
    assert run("compile", "-o", "out")[0] == 0
    assert run("compile", "-o", "out", "--budget", "8")[0] == 2  # exists
    assert [path.name for path in empty_place.iterdir()] == ["out"]


def test_categories_with_brackets_reach_the_table(generate, empty_place):
    rows = [{"prompt": "Hello", "category": "[/INST]"}, {"prompt": "fine day", "category": "[coding]"}]
    (empty_place / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = generate("--prompts", "c.jsonl", "-n", "4")
    assert code == 0
    assert "[/INST]" in err and "[coding]" in err


def test_brackets_on_the_command_line_are_shown_as_they_are(run):
    for arguments in (["[/INST]"], ["compile", "[coding]"], ["compile", "--shape", "[/x]"]):
        code, _, err = run(*arguments)
        assert (code, arguments[-1] in err) == (2, True)


def test_stdout_by_its_path_goes_into_a_pipe(inputs):
    assert json.loads(shell(inputs, '"$@" -o /dev/stdout | cat').stdout)["size"]
    assert json.loads(shell(inputs, '"$@" -o >(cat); wait $!').stdout)["size"]


def test_a_user_without_a_home_compiles(inputs):
    line = "import os, pwd, sys; os.environ.pop('HOME'); os.environ.pop('SEQUOIA_CACHE')\n"
    line += "def unknown(uid): raise KeyError(uid)\n"
    line += "pwd.getpwuid = unknown\nfrom sequoia_cli.cli.app import main; main()"
    words = [inputs[0], "-c", line, *inputs[3:]]
    assert json.loads(shell(words, '"$@" -o -').stdout)["size"]
    assert shell(words, '"$@" -o y.json').returncode == 0


def test_a_cache_of_nobody_is_named(run, monkeypatch):
    monkeypatch.setenv("SEQUOIA_CACHE", "~nosuchuser/x")
    code, out, err = run("compile", "-o", "-")
    assert (code, out) == (2, "")
    assert err == "sequoia: SEQUOIA_CACHE is '~nosuchuser/x'; there is no such user\n"


def test_an_error_that_nobody_foresaw_is_one_line_and_its_place_is_told_when_asked(run, monkeypatch):
    from sequoia_cli.core import artifact

    def broken(*arguments):
        raise LookupError("no such thing\n" + "x" * 5000)

    monkeypatch.setattr(artifact, "parse", broken)
    code, out, err = run("compile", "-o", "-")
    assert (code, out) == (1, "")
    line, hint = err.strip().splitlines()[-2:]
    assert line.startswith("sequoia: unexpected LookupError: no such thing xxx")
    assert "SEQUOIA_DEBUG=1" in hint
    assert len(line) < 400
    monkeypatch.setenv("SEQUOIA_DEBUG", "1")
    with pytest.raises(LookupError):
        app(["compile", "-o", "-"])


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_help_and_errors_can_be_printed_in_a_narrow_encoding(encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    for arguments, code in ((["--help"], 0), (["compile", "--budget", "none"], 2), (["généré"], 2)):
        words = [sys.executable, "-m", "sequoia_cli", *arguments]
        done = subprocess.run(words, env=environment, capture_output=True, stdin=subprocess.DEVNULL)
        assert (done.returncode, b"Traceback" in done.stderr) == (code, False)


@pytest.mark.parametrize("terminal", [False, True])
def test_bars_need_a_terminal_that_moves_its_cursor(monkeypatch, terminal):
    from sequoia_cli.cli.console import Commentary

    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Commentary().shows_progress == terminal
    with Commentary().progress() as bar:
        bar.add_task("[/x]")
    assert ("\x1b[" in stream.getvalue()) == terminal
    monkeypatch.setenv("TTY_INTERACTIVE", "0")
    assert not Commentary().shows_progress


def test_brackets_in_data_are_shown_as_they_are(capsys):
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.cli.render import plain_table

    data = ("[/INST]", "[coding]", "[bold]x[/bold]", ":smile:")
    for text in data:
        table = plain_table(f"title {text}", f"head {text}", "n")
        table.add_row(f"cell {text}", "1")
        say = Commentary()
        say.show(table)
        say.show(f"line {text}")
        say.note(f"note {text}")
        say.warn(text)
        err = capsys.readouterr().err
        for where in ("title", "head", "cell", "line", "note", "warning:"):
            assert f"{where} {text}" in err


def test_no_color_is_respected_where_colour_would_be_shown(generate, models, monkeypatch):
    ended = ("-p", "Hello", "-n", "64", "--target", models["short"])
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[33mwarning: " in generate(*ended)[2]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[33m" not in generate(*ended)[2]


# --- usage errors and downloads


@pytest.mark.parametrize("command", ["profile", "acceptance", "compile", "generate"])
@pytest.mark.parametrize(
    ("arguments", "line"), [(["--no-such"], "No such option"), (["extra"], "unexpected extra argument")]
)
def test_a_usage_error_says_what_is_wrong_and_ends_with_2(run, command, arguments, line):
    code, out, err = run(command, *arguments)
    assert (code, out) == (2, "")
    assert line in err


def test_a_command_that_does_not_exist_is_a_usage_error(run):
    code, out, err = run("generat")
    assert (code, out) == (2, "")
    assert "No such command 'generat'" in err


@pytest.mark.parametrize(("progress", "disabled"), [(False, True), (True, False)])
def test_downloads_show_bars_only_where_the_command_does(pair, monkeypatch, progress, disabled):
    transformers.logging.enable_progress_bar()
    try:
        session.open_session(
            pair[1], [], device="cpu", dtype="float32", trust_remote_code=False, progress=progress
        )
        assert huggingface_hub.utils.are_progress_bars_disabled() == disabled
    finally:
        transformers.logging.enable_progress_bar()


@pytest.mark.parametrize("flags", [["--quiet"], ["--no-progress"], []])
def test_there_are_no_bars_where_there_is_no_terminal_or_they_are_not_wanted(generate, monkeypatch, flags):
    asked = []

    def opening(*arguments, progress, **options):
        asked.append(progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "open_session", opening)
    generate(*PROMPTS, *flags)
    assert asked == [False]


def test_out_of_memory_is_one_line_that_names_what_it_was_for(generate, monkeypatch):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore")

    monkeypatch.setattr(Decoder, "decode", full)
    code, _, err = generate(*PROMPTS)
    assert code == 1
    line = next(line for line in err.splitlines() if line.startswith("sequoia: out of memory"))
    assert "CUDA out of memory. Tried to allocate 9 GiB (for " in line
    assert re.search(r"\d+ tokens of prompt, 30 new ones, \d+ nodes\)$", line)


# --- a terminal to write to


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    "arguments", few([["-p", "Hello"], ["-p", "Hello", "-p", "fine day", "--compare"]], ["-p", "Hello"])
)
def test_text_goes_to_stdout_where_stderr_is_a_terminal_with_bars(command, arguments, tmp_path):
    ours, theirs = os.openpty()
    try:
        with (tmp_path / "out.txt").open("wb") as out:
            code = subprocess.run(
                [*command, "-n", "12", *arguments], stdout=out, stderr=theirs, stdin=subprocess.DEVNULL
            ).returncode
    finally:
        os.close(theirs)
        os.close(ours)
    plain = subprocess.run(
        [*command, "-n", "12", *arguments], capture_output=True, stdin=subprocess.DEVNULL, check=True
    )
    assert code == 0
    assert (tmp_path / "out.txt").read_bytes() == plain.stdout != b""
