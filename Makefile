# `make run` and `make test` are all that a fresh clone needs; `make help` lists the rest.
PYTHON ?= python3
CONFIG ?= configs/skillmaster_alfworld.py
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
CODE := sage_jax experiments launch configs tests third_party setup.py

.DEFAULT_GOAL := help
.PHONY: help run results test test-slow test-sglang lint format types base-model editor-model lock install install-test

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: install  ## train, evaluate and print the table (CONFIG=configs/x.py:scale, ARGS="--config.seed=1")
	$(BIN)/python -m experiments.main --config=$(CONFIG) $(ARGS)

results: install  ## rebuild tables and figures of docs/results.md from run folders (ARGS="--runs=DIR")
	$(BIN)/python -m experiments.results $(ARGS)

test: lint  ## linters and the default test tier
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest $(ARGS)

test-slow: lint  ## the long tests (real processes, full sizes, injected faults)
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest -m "slow or chaos" $(ARGS)

test-sglang: install-test  ## the engines' suite on a real SGLang server (third_party/sglang/install.sh first)
	third_party/sglang/test.sh $(ARGS)

lint: install-test  ## style and direction of imports
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/lint-imports

format: install-test  ## rewrite the code in the house format
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

types: install-test  ## check type hints
	$(BIN)/mypy sage_jax

base-model: install  ## rebuild the small base model in assets/ (hours; resumes where it stopped)
	$(BIN)/python -m experiments.pretrain $(ARGS)

editor-model: install  ## rebuild Skill-R1's small editor in assets/ (a minute)
	$(BIN)/python -m experiments.make_editor $(ARGS)

lock: $(BIN)/python  ## resolve requirements*.in into the pinned requirements*.txt
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python -m uv pip compile --quiet --no-header --no-annotate --python-version 3.11 \
	  requirements.in -o requirements.txt
	$(BIN)/python -m uv pip compile --quiet --no-header --no-annotate --python-version 3.11 \
	  -c requirements.txt requirements-test.in -o requirements-test.txt
	sed -i "s,+cpu$$,," requirements-test.txt  # a local build of torch is found by its plain version

# Stamp files: a second `make run` finds them newer than the pins and installs nothing.
install: $(VENV)/.installed
install-test: $(VENV)/.installed-test

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/.installed-test: requirements-test.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -r requirements-test.txt
	touch $@
