# `make demo` and `make test` are all a fresh machine needs; both make the environment first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: env test check trees bench-compile clean

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

test: env
	$(BIN)/python -m pytest

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The shipped profile and tree, made anew; `git status` shows nothing afterwards. The caches are empty ones, so
# that what this machine measured is not taken for what the project ships.
trees: env
	caches=$$(mktemp -d) && \
	SEQUOIA_CACHE=$$caches/1 $(BIN)/sequoia profile --device a100 --modelled -o profiles/a100.yaml --force && \
	SEQUOIA_CACHE=$$caches/2 $(BIN)/sequoia compile --budget 128 -o trees/a100_128.json --force && \
	rm -r $$caches

bench-compile: env
	$(BIN)/python benchmarks/bench_compile.py

clean:
	rm -rf $(VENV)
