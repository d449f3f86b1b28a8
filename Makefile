# All commands work in a fresh clone: the first one sets up .venv (a few minutes, 2.5 GB), later ones reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests run side by side, each file in one process; most of their time they wait. WORKERS=0: one after the other.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup up dev demo load test test-full lint format schema clean \
	bench bench-batching bench-bloat bench-builtins bench-dev bench-executors bench-fairness bench-generation \
	bench-goodput bench-handover bench-items bench-jobs bench-ledger bench-limits bench-models bench-ordinary \
	bench-places bench-prediction bench-quality bench-restart
.NOTPARALLEL:

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make the environment, if it isn't there yet

up: $(READY) ## serve in the foreground until Ctrl-C, on an embedded Postgres in .headrace
	@exec $(BIN)/headrace up

dev: $(READY) ## serve as `make up` does, and serve each change of a file within seconds
	@exec $(BIN)/headrace dev

demo: $(READY) ## start, make real calls, print the answers, stop
	@exec $(BIN)/headrace demo

load: $(READY) ## put load on the site that serves from here: http://127.0.0.1:8089, or ARGS="--headless -u 2 -r 2 -t 30s"
	@exec $(BIN)/locust -f loadtests/locustfile.py --web-host 127.0.0.1 $(ARGS)

test: $(READY) ## run the tests
	@$(PYTEST) -m "not slow"

test-full: $(READY) ## run all tests, the slow ones included
	@$(PYTEST)

bench: $(READY) ## measure the CPU time of a call that does nothing; beside LitServe: ARGS="--peer"
	@$(BIN)/python loadtests/call_cost.py $(ARGS)

bench-ledger: $(READY) ## measure what one job costs the ledger, empty and full (a few minutes)
	@$(BIN)/python loadtests/ledger_cost.py

bench-items: $(READY) ## measure what the items of a job's stream cost the ledger
	@$(BIN)/python loadtests/stream_cost.py $(ARGS)

bench-jobs: $(READY) ## measure how fast jobs are accepted, and how soon a lone one is executed
	@$(BIN)/python loadtests/submit_rate.py

bench-restart: $(READY) ## measure how soon the job of a killed runner starts again elsewhere
	@$(BIN)/python loadtests/restart_time.py

bench-limits: $(READY) ## measure how soon calls end, and what a long function costs a short one (11 minutes)
	@$(BIN)/python loadtests/limits.py $(ARGS)

bench-executors: $(READY) ## measure how soon a hard limit frees its slot, and what 1,000 kills leave behind (10 minutes)
	@$(BIN)/python loadtests/executor_restarts.py $(ARGS)

bench-fairness: $(READY) ## measure what an owner with a long backlog costs another one (21 minutes)
	@$(BIN)/python loadtests/fairness.py $(ARGS)

bench-generation: $(READY) ## measure generated tokens per second, through the platform and by the library alone
	@$(BIN)/python loadtests/generation.py $(ARGS)

bench-goodput: $(READY) ## count calls done in time at capacity and at three times it (3 minutes); beside LitServe: ARGS="--peer"
	@$(BIN)/python loadtests/goodput.py $(ARGS)

bench-ordinary: $(READY) ## measure 202s, status queries and refusals, idle and with every slot busy (7 minutes)
	@$(BIN)/python loadtests/ordinary.py $(ARGS)

bench-prediction: $(READY) ## compare predicted waits and totals with measured ones, as the load triples and falls (2 minutes)
	@$(BIN)/python loadtests/predictions.py $(ARGS)

bench-handover: $(READY) ## make 5,000 calls that end about when their hold does, and count answers and executions (2 minutes)
	@$(BIN)/python loadtests/handover.py $(ARGS)

bench-places: $(READY) ## overload sites, count who comes back when told, and compare with a simple queue (an hour)
	@$(BIN)/python loadtests/places.py --report docs/budgets $(ARGS)

bench-models: $(READY) ## wear an executor for half an hour with two models of which one fits, and print its memory
	@$(BIN)/python loadtests/residency.py $(ARGS)

bench-batching: $(READY) ## measure what joining calls of `embed` gains, beside its library alone (3 minutes)
	@$(BIN)/python loadtests/batching.py $(ARGS)

bench-builtins: $(READY) ## measure each built-in function over HTTP beside its bare library (6 minutes); one: ARGS="--only embed"
	@$(BIN)/python loadtests/built_ins.py $(ARGS)

bench-quality: $(READY) ## measure how good the built-in functions are, and write docs/quality.md; only some: ARGS="embed"
	@$(BIN)/python loadtests/quality $(ARGS)

bench-dev: $(READY) ## measure how soon `headrace dev` serves a change
	@$(BIN)/python loadtests/dev_swaps.py $(ARGS)

bench-bloat: $(READY) ## wear a database for an hour, and print how large its tables become: ARGS="--minutes 60"
	@$(BIN)/python loadtests/bloat.py $(ARGS)

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
