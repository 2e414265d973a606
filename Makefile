# One command sets up what it needs: every target below builds the environment first.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
READY := $(VENV)/.ready
# pip reads the pins for build requirements from the environment, not from -c.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup gateways demo demo-gateway test lint format types layers unit constraints clean bench-eviction bench-%

help: ## Show this list
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(READY) ## Make .venv with everything pinned

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Tidegate needs Python 3.11 or newer; run make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(RUN)/python || { echo "== make $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "== install pinned packages into $(VENV) (a few minutes the first time)"
	@$(RUN)/python -m pip install --quiet --editable '.[train,dev,bench]'
	@touch $@

gateways: .venv-litellm/.ready .venv-vllm/.ready ## Make environments in which the tests find LiteLLM and vLLM

.venv-%/.ready: tests/serving/gateways/%-requirements.txt
	@echo "== install $* for its tests into .venv-$*"
	@rm -rf .venv-$* && $(PYTHON) -m venv .venv-$*
	@env -u PIP_CONSTRAINT .venv-$*/bin/python -m pip install --quiet --no-deps --no-compile --requirement $<
	@if [ $* = vllm ]; then sh tests/serving/gateways/finish_vllm.sh .venv-$* $(VENV); fi
	@touch $@

demo: $(READY) ## Workload to report to decisions; TRACE=path takes a trace file instead
	@$(RUN)/tidegate demo $(TRACE)

demo-gateway: $(READY) ## A burst at two gates in real time: Envoy, Tidegate, engine; rules against rules + forecast
	@$(RUN)/tidegate demo-gateway $(ARGS)

test: lint types layers unit ## Everything that must hold: lint, types, layers, tests

lint: $(READY) ## Style and format
	@echo "== lint"
	@$(RUN)/ruff check .
	@$(RUN)/ruff format --check .

format: $(READY) ## Mend style and format
	@$(RUN)/ruff check --fix .
	@$(RUN)/ruff format .

types: $(READY) ## Strict types
	@echo "== types"
	@$(RUN)/mypy

layers: $(READY) ## Import contracts
	@echo "== layers"
	@$(RUN)/lint-imports

unit: $(READY) ## Tests, in parallel
	@echo "== tests"
	@$(RUN)/python -m pytest --numprocesses auto --dist worksteal

bench-eviction: $(READY) ## KV-cache eviction against textbook caches; TRACE=path takes a trace with hash_ids
	@$(RUN)/python tests/bench/bench_eviction.py $(TRACE) $(ARGS)

bench-%: $(READY) ## Benchmark: bench-ingest, -telemetry, -decide, -waiting, -forecast, -serve, -soak
	@$(RUN)/python tests/bench/bench_$*.py $(ARGS)

constraints: ## Pin anew what a fresh environment resolves to
	@rm -rf var/pin && $(PYTHON) -m venv var/pin
	@env -u PIP_CONSTRAINT var/pin/bin/pip install --quiet '.[train,dev,bench]'
	@{ grep '^#' constraints.txt; var/pin/bin/pip freeze --all | sed 's/+cpu//' | grep -viE '^(pip|tidegate)[ =@]'; } > var/constraints
	@mv var/constraints constraints.txt && rm -rf var/pin

clean: ## Remove the environment and everything made
	@rm -rf $(VENV) .venv-* var .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
