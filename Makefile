# All commands work in a fresh clone: the first one sets up .venv (a few minutes, 2 GB), later ones reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup up demo test test-full bench lint format schema clean
.NOTPARALLEL:

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make the environment, if it isn't there yet

up: $(READY) ## serve in the foreground until Ctrl-C, on an embedded Postgres in .headrace
	@exec $(BIN)/headrace up

demo: $(READY) ## start, make real calls, print the answers, stop
	@exec $(BIN)/headrace demo

test: $(READY) ## run the tests
	@$(PYTEST) -m "not slow"

test-full: $(READY) ## run all tests, the slow ones included
	@$(PYTEST)

bench: $(READY) ## measure the CPU time of one call of a function that does nothing
	@$(BIN)/python loadtests/call_cost.py

lint: $(READY) ## check style, types and who imports whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/mypy tests/typing
	@$(BIN)/lint-imports

format: $(READY) ## put the code into its standard form
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

schema: $(READY) ## write sql/schema.sql anew, after a change to the migrations
	@$(BIN)/python tests/support/dump_schema.py

clean: ## remove the environment and what tools left behind; keeps .headrace, the data
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# An environment whose Python is gone or broken is made anew; one of another version stays until `make clean`.
$(READY): pyproject.toml constraints.txt
	$(eval problem := $(shell PYTHON='$(PYTHON)' VENV='$(VENV)' sh .ci/preflight.sh))
	$(if $(problem),$(error $(problem)))
	@if [ -x $(BIN)/headrace ]; then echo "Bringing $(VENV) up to date:"; \
	else echo "Setting up $(VENV) (once; takes a few minutes):"; fi
	@$(BIN)/python -c '' 2>/dev/null || "$(PYTHON)" -m venv --clear $(VENV)
	@$(BIN)/python .ci/install.py
	@touch $@
