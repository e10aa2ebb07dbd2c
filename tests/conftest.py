"""Fixtures that several parts of the suite use, and the rule about skipped tests."""

import os

import pytest

#: What a machine may lack, or have: a test that is skipped for any other reason fails in CI.
_MAY_DIFFER = ("needs a GPU", "needs a machine without a GPU")
# Tiny models gain nothing from threads, and threads of processes side by side wait for each other: two
# processes of two threads on two cores took more than twice as long. torch reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def smollm2_pair():
    """The default pair in float32. Fetched once into the user's cache; skipped where it cannot be."""
    # Imported here, so that the tests of parts that need no torch start without it.
    import torch

    from sequoia_cli.engine.loading.load import load_pair
    from sequoia_cli.errors import SequoiaError

    try:
        return load_pair(
            "smollm2", "smollm2-draft", dtype=torch.float32, device=torch.device("cpu"), announce=print
        )
    except SequoiaError as error:
        pytest.skip(f"the default target cannot be fetched: {error.message}")


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session, exitstatus):
    """Fail a CI run in which a test was skipped for want of something that CI has to provide."""
    yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not os.environ.get("CI"):  # a worker process of pytest-xdist has no terminal
        return
    skipped = [str(report.longrepr) for report in terminal.stats.get("skipped", ())]
    lacking = [text for text in skipped if not any(reason in text for reason in _MAY_DIFFER)]
    if lacking and exitstatus == pytest.ExitCode.OK:
        terminal.write_line(f"CI may skip only what {' or '.join(_MAY_DIFFER)}, not:")
        for text in lacking:
            terminal.write_line(text)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
