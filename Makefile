# `make demo` and `make test` are all a fresh machine needs; both make the environment first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: env demo test test-all check families draft trees bench bench-compile bench-forward bench-cost-model \
	bench-verifiers bench-check bench-gpu bench-paper clean

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# The whole pipeline on the default pair. The files it makes are not tracked, and are made anew each time. A machine
# with unsteady timings (exit 3) still gets its demonstration.
demo: env
	$(BIN)/sequoia profile --device cpu -o profiles/demo.yaml --force || [ $$? -eq 3 ]
	$(BIN)/sequoia acceptance --device cpu --limit 16 -o profiles/demo_rates.yaml --force
	$(BIN)/sequoia compile --profile profiles/demo.yaml --acceptance profiles/demo_rates.yaml --explain \
		-o trees/demo.json --force
	$(BIN)/sequoia generate --device cpu --tree trees/demo.json --prompt "Why is the sky blue?" --max-new-tokens 100
	$(BIN)/sequoia generate --device cpu --tree trees/demo.json --builtin --limit 16 --max-new-tokens 64 --compare \
		> /dev/null

# As many processes as there are cores, at most 4: each takes up to 1.5 GB.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

test: env
	$(PYTEST) -m "not exhaustive"

# Every family, dtype and published row besides: before an issue is closed; its last result is in LOG.md.
test-all: env
	$(PYTEST)

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# FAMILIES.md, made anew: what becomes of each model type of the transformers that is installed.
families: env
	$(BIN)/python tests/families.py

# A draft for the default target in place of the shipped one: about two hours on two cores. Its texts are kept in
# drafts/corpus, so that an interrupted run goes on.
draft: env
	$(BIN)/sequoia distill --device cpu --dtype bfloat16 --corpus drafts/corpus -o drafts/smollm2-draft --force
	cp $(addprefix drafts/smollm2-draft/,config.json draft_vocabulary.json distillation.json model.safetensors) \
		src/sequoia_cli/drafts/smollm2-draft

# The shipped profile and tree, made anew; `git status` shows nothing afterwards. The caches are empty ones, so
# that what this machine measured is not taken for what the project ships.
trees: env
	caches=$$(mktemp -d) && \
	SEQUOIA_CACHE=$$caches/1 $(BIN)/sequoia profile --device a100 --modelled -o profiles/a100.yaml --force && \
	SEQUOIA_CACHE=$$caches/2 $(BIN)/sequoia compile --budget 128 -o trees/a100_128.json --force && \
	rm -r $$caches

# This engine and the others that are installed, on the default pair: the README's table on the terminal, every sample
# in a file that is not tracked. BENCH has further options, such as --python vllm=PATH.
bench: env
	$(BIN)/sequoia bench --device cpu --json $(BENCH) > benchmarks/bench.json

bench-compile: env
	$(BIN)/python benchmarks/bench_compile.py

bench-forward: env
	$(BIN)/python benchmarks/bench_forward.py

bench-cost-model: env
	$(BIN)/python benchmarks/bench_cost_model.py

# The figure of the verifiers over temperature and top-p: about 20 minutes of one core.
bench-verifiers: env
	$(BIN)/python benchmarks/bench_verifiers.py -o benchmarks/figures/verifiers > benchmarks/figures/verifiers.json

# Every fault of tests/faults.py planted in turn, on the default pair.
bench-check: env
	$(BIN)/python benchmarks/bench_check.py

# On a machine with a GPU, and no network: forwards, attention, steps and the gain of a tree, with random weights.
bench-gpu: env
	$(BIN)/python benchmarks/bench_gpu.py

# What the Sequoia paper claims, replayed by this compiler; ../shared/data holds the published vectors and trees. The
# tables and plots in benchmarks/paper are made anew, every figure goes into a file that is not tracked.
bench-paper: env
	$(BIN)/python benchmarks/bench_paper.py --write benchmarks/paper > benchmarks/bench_paper.json

clean:
	rm -rf $(VENV)
