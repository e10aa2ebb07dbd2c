"""The kernel, built once for the tests here."""

import os
import shutil

import pytest

from sequoia_cli.engine.integer.kernel import load_kernel


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A cache that holds the libraries of all tests here."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(autouse=True)
def fresh(built, monkeypatch):
    """Each test loads the kernel anew, as a process would."""
    monkeypatch.setenv("SEQUOIA_CACHE", str(built))
    load_kernel.cache_clear()
    yield
    load_kernel.cache_clear()


@pytest.fixture
def compiler():
    """What the kernel is built with."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("needs a C++ compiler")
