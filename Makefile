# `make demo` and `make test` are all a fresh machine needs; both make the environment first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: env demo test test-all check families draft trees bench bench-compile bench-forward bench-products \
	bench-adaptive bench-cost-model bench-verifiers bench-check bench-check-alarms bench-gpu bench-paper bench-spec clean

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# The whole pipeline on the default pair. The files it makes are not tracked, and each run replaces them. A machine
# with unsteady timings (exit 3) still gets its demonstration. The tree is compiled on the first built-in prompts and
# compared with plain decoding on others.
demo: env
	$(BIN)/sequoia profile --device cpu -o profiles/demo.yaml --force || [ $$? -eq 3 ]
	$(BIN)/sequoia acceptance --device cpu --limit 16 -o profiles/demo_rates.yaml --force
	$(BIN)/sequoia compile --profile profiles/demo.yaml --acceptance profiles/demo_rates.yaml --explain \
		-o trees/demo.json --force
	$(BIN)/sequoia generate --device cpu --tree trees/demo.json --prompt "Why is the sky blue?" --max-new-tokens 100
	$(BIN)/sequoia generate --device cpu --tree trees/demo.json --builtin --skip 32 --limit 16 --max-new-tokens 64 --compare \
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

# Makes FAMILIES.md again: whether each model type of the installed transformers works, or why not.
families: env
	$(BIN)/python tests/support/families.py

# A draft for the default target in place of the shipped one: about two hours on two cores. Its texts are kept in
# drafts/corpus, so that an interrupted run resumes.
draft: env
	$(BIN)/sequoia distill --device cpu --dtype bfloat16 --corpus drafts/corpus -o drafts/smollm2-draft --force
	cp $(addprefix drafts/smollm2-draft/,config.json draft_vocabulary.json distillation.json model.safetensors) \
		src/sequoia_cli/drafts/smollm2-draft

# Makes the shipped modelled profile and trees again; `git status` shows nothing afterwards. The caches are empty,
# so that what this machine measured is not taken for what the project ships.
trees: env
	caches=$$(mktemp -d) && \
	SEQUOIA_CACHE=$$caches/1 $(BIN)/sequoia profile --device a100 --modelled -o profiles/a100.yaml --force && \
	SEQUOIA_CACHE=$$caches/2 $(BIN)/sequoia compile --budget 128 -o trees/a100_128.json --force && \
	SEQUOIA_CACHE=$$caches/3 $(BIN)/sequoia compile --budget 32 --profile profiles/smollm2_cpu.yaml \
		--acceptance profiles/smollm2_cpu_rates.yaml -o trees/smollm2_cpu.json --force && \
	rm -r $$caches

# This engine and the others that are installed, on the default pair: the README's table on the terminal, every sample
# in a file that is not tracked. BENCH has further options, such as --python vllm=PATH.
bench: env
	$(BIN)/sequoia bench --device cpu --json $(BENCH) > benchmarks/bench.json

bench-compile: env
	$(BIN)/python benchmarks/bench_compile.py

bench-forward: env
	$(BIN)/python benchmarks/bench_forward.py

# All products of one forward by what multiplies them, for 1 to 64 rows.
bench-products: env
	$(BIN)/python benchmarks/bench_products.py > benchmarks/bench_products.json

bench-cost-model: env
	$(BIN)/python benchmarks/bench_cost_model.py

# The figure of the verifiers over temperature and top-p: about 20 minutes of one core.
bench-verifiers: env
	$(BIN)/python benchmarks/bench_verifiers.py -o benchmarks/figures/verifiers > benchmarks/figures/verifiers.json

# Every fault of tests/support/faults.py planted in turn, on the default pair.
bench-check: env
	$(BIN)/python benchmarks/bench_check.py

# How often `sequoia check` fails a correct program: 10,000 simulated runs, about 3 minutes of one core.
bench-check-alarms: env
	$(BIN)/python benchmarks/bench_check_alarms.py

# Plain and tree by turns on every tenth prompt of SpecBench: make bench-spec SPEC=question.jsonl
bench-spec: env
	$(BIN)/python benchmarks/bench_spec.py --dataset $(SPEC) --every 10 -o benchmarks/bench_spec.json

# Rules for the tree of each step under one cost curve, simulated with published vectors; BENCH="--pair --rates FILE"
# goes along texts of the default pair instead.
bench-adaptive: env
	$(BIN)/python benchmarks/bench_adaptive.py $(BENCH) > benchmarks/bench_adaptive.json

# On a machine with a GPU, and no network: forwards, attention, steps and the gain of a tree, with random weights.
bench-gpu: env
	$(BIN)/python benchmarks/bench_gpu.py

# What the Sequoia paper claims, replayed by this compiler from the published vectors and trees in tests/data. Makes
# the tables and plots in benchmarks/paper again; every figure goes into a file that is not tracked.
bench-paper: env
	$(BIN)/python benchmarks/bench_paper.py --write benchmarks/paper > benchmarks/bench_paper.json

clean:
	rm -rf $(VENV)
