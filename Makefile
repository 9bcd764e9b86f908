# Every target is enough by itself on a fresh machine: it makes .venv first, with what it needs. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Every broker that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

ARGS ?=
SUITE ?= quick
PYTEST_ARGS ?=
WORKERS ?= 4

.PHONY: help install run test check simulate cost scan lock sbom audit chaos demo incidents bench sparkbench screenshots docs site clean
.PHONY: java chromium helm image-tools

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "Suites, of which \`make test SUITE=\"unit scripts\"\` runs some (PYTEST_ARGS=\"-k word\" goes to pytest):"
	@awk -F ':.*# ' '/^suite-[a-z-]+:.*# /{printf "  %-15s %s\n", substr($$1, 7), $$2}' $(MAKEFILE_LIST)

# Three sets of packages, each with a stamp; a larger one has all of a smaller one.
FOR_RUN := .venv/.for-run
FOR_TESTS := .venv/.for-tests
FOR_ALL := .venv/.for-all
INSTALL := $(BIN)/python -m pip install -q -c constraints.txt

# .venv with a Python that is new enough; it is kept where there is one.
define VENV
	@set -eu; \
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then exit 0; fi; \
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
	echo "making .venv with $$("$$python" --version)"; rm -rf .venv; "$$python" -m venv .venv
endef

$(FOR_RUN): pyproject.toml constraints.txt
	$(VENV)
	@echo "installing a broker, and two clients for the examples, into .venv: 150 MB, half a minute"
	@$(INSTALL) -e '.[embedded]' aiokafka kafka-python
	@touch $@

$(FOR_TESTS): pyproject.toml pipeline/pyproject.toml constraints.txt
	$(VENV)
	@echo "installing what tests need into .venv: 1.5 GB with Spark; a minute or a few"
	@$(INSTALL) -e '.[embedded,top,archive,otel,test]' -e './pipeline[delta,iceberg,values,numba,plots]'
	@touch $(FOR_RUN) $@

$(FOR_ALL): pyproject.toml pipeline/pyproject.toml constraints.txt
	$(VENV)
	@echo "installing everything into .venv: 1.9 GB with Spark; a minute or a few"
	@$(INSTALL) -e '.[embedded,top,archive,otel,test,dev]' -e './pipeline[delta,iceberg,values,numba,connect,plots]'
	@touch $(FOR_RUN) $(FOR_TESTS) $@

install: $(FOR_ALL) ## make .venv with everything that development needs

run: $(FOR_RUN) ## an embedded Valkey and three brokers on 9092-9094, until Ctrl-C; ARGS="--data DIR" keeps the data
	@exec $(BIN)/tidegate dev $(ARGS)

java: $(FOR_TESTS) # Java 17 or 21 for Spark: Debian's, where there is none and this is root; else it says what is missing
	@if ! $(BIN)/python -m tidegate_pipeline.java >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  for package in openjdk-17-jre-headless openjdk-21-jre-headless; do \
	    echo "installing $$package"; \
	    { apt-get install -y -q --no-install-recommends $$package || { apt-get update -q; apt-get install -y -q --no-install-recommends $$package; }; } >/dev/null 2>&1 && break; \
	  done; \
	fi; \
	$(BIN)/python -m tidegate_pipeline.java >/dev/null || echo "make: tests that need Spark are skipped" >&2

chromium: # Debian's, where there is none and this is root; else the tests say what is missing
	@if ! command -v chromium chromium-browser google-chrome >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium"; \
	  { apt-get install -y -q --no-install-recommends chromium || { apt-get update -q; apt-get install -y -q --no-install-recommends chromium; }; } >/dev/null 2>&1 || true; \
	fi

TOOLS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tidegate/bin
HELM_VERSION := v3.18.6

helm: # on the PATH, or built with Go; else the tests that need it say so
	@set -eu; export PATH="$(TOOLS):$$PATH"; \
	if ! command -v helm >/dev/null && command -v go >/dev/null; then \
	  echo "building helm $(HELM_VERSION)"; GOBIN="$(TOOLS)" GOFLAGS=-mod=mod go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION); \
	fi

image-tools: # buildah and mmdebstrap from Debian, where no docker answers and this is root
	@if ! docker info >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && ! { command -v buildah && command -v mmdebstrap; } >/dev/null; then \
	  echo "installing buildah and mmdebstrap"; \
	  install="apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 buildah mmdebstrap"; \
	  { $$install || { apt-get update -q; $$install; }; } >/dev/null 2>&1 || true; \
	fi

# -- Suites. Those that wait more than they compute run in several processes, the longest tests first.

PYTEST := $(BIN)/pytest -q
PARALLEL := -n $(WORKERS) --dist worksteal
SIMULATED := tests/simulation/test_simulation.py::test_simulation_checks_every_promise[fixed] \
  tests/simulation/test_simulation.py::test_planted_bugs_fit_the_product \
  $(addprefix tests/simulation/test_rule_bugs.py::,test_every_rule_has_a_planted_bug test_planted_bugs_of_rules_fit_the_product)
QUICK := tests/model $(SIMULATED) tests/cost tests/conformance --ignore-glob='tests/conformance/test_compose*' tests/scripts tests/unit
ROUND_TRIP := tests/spark/test_topic_source.py::test_batch_queries_and_their_filters
SPARK_CLUSTER := tests/spark/test_cluster.py tests/spark/test_connect.py tests/spark/test_kubernetes.py

test: $(addprefix suite-,$(SUITE)) ## unit, scripts, model, one simulation, real clients, a Spark round trip; SUITE=name another suite

suite-quick: $(FOR_TESTS) java # what `make test` runs without SUITE
	$(PYTEST) $(PARALLEL) -m "not slow and not peer" $(ROUND_TRIP) $(QUICK) $(PYTEST_ARGS)

suite-unit: $(FOR_TESTS) # pure code: no Redis, no sockets
	$(PYTEST) $(PARALLEL) tests/unit $(PYTEST_ARGS)

suite-scripts: $(FOR_TESTS) # every Lua script on a real server; TIDEGATE_TEST_REDIS_SERVER=/path/to/another
	$(PYTEST) $(PARALLEL) tests/scripts $(PYTEST_ARGS)

suite-model: $(FOR_TESTS) # random lives of groups with faults, for longer: LIVES=20000; TIDEGATE_SEED repeats one
	TIDEGATE_LIVES=$(or $(LIVES),5000) $(PYTEST) -s tests/model/test_groups.py $(PYTEST_ARGS)

suite-simulation: $(FOR_TESTS) # short simulations of every kind of group, and one that finds each planted bug
	$(PYTEST) $(PARALLEL) -m "not slow" tests/simulation $(PYTEST_ARGS)

suite-mutations: $(FOR_TESTS) # the model must find every planted bug; prints the table of them
	$(PYTEST) -s tests/model/test_mutations.py $(PYTEST_ARGS)

suite-clients: $(FOR_TESTS) # real clients against real brokers
	$(PYTEST) $(PARALLEL) -m "not peer" tests/conformance --ignore-glob='tests/conformance/test_compose*' $(PYTEST_ARGS)

suite-matrix: $(FOR_TESTS) # seven client libraries with held heartbeats and without (Java, Go, node where there are)
	$(BIN)/python -m tests.clients $(ARGS)

suite-peers: $(FOR_TESTS) java # Kafka's Java tools, Spark's connector, each answer compared with Apache Kafka (Java, Maven)
	$(PYTEST) -rs -m peer tests/conformance tests/spark $(PYTEST_ARGS)

suite-spark: $(FOR_TESTS) java # the pipeline on Spark, its slow tests too: kill -9 at 20 random moments
	$(PYTEST) -rs -m "not peer" tests/spark $(addprefix --ignore=,$(SPARK_CLUSTER)) $(PYTEST_ARGS)

suite-spark-cluster: $(FOR_ALL) java # the wheels on a standalone Spark cluster, Spark Connect, Kubernetes' scheduler
	$(PYTEST) -rs $(SPARK_CLUSTER) $(PYTEST_ARGS)

suite-exactly-once: $(FOR_TESTS) java # kill Spark jobs 20 times while clients produce; TIDEGATE_KILLS, TIDEGATE_KILL_SECONDS; TIDEGATE_SEED repeats one
	$(PYTEST) -s tests/spark/test_exactly_once.py tests/spark/test_topic_sink_killed.py $(PYTEST_ARGS)

suite-large-tables: $(FOR_TESTS) java # 5 million records in Delta and Iceberg, by Spark SQL and DuckDB; TIDEGATE_RECORDS
	$(PYTEST) -s tests/spark/test_large_tables.py $(PYTEST_ARGS)

suite-chaos: $(FOR_TESTS) # kill, pause and cut; then check the history
	$(PYTEST) -n 3 --dist worksteal tests/chaos $(PYTEST_ARGS)

suite-fuzz: $(FOR_TESTS) # requests made from their schemas and broken ones over a live broker; TIDEGATE_FUZZ_S, TIDEGATE_SEED repeats one
	$(PYTEST) -s -rs tests/fuzz $(PYTEST_ARGS)

suite-outside: $(FOR_TESTS) # groups of all protocols by client libraries, a broker killed every 5 s for 3 minutes; TIDEGATE_OUTSIDE_S
	TIDEGATE_OUTSIDE_S=$${TIDEGATE_OUTSIDE_S:-180} $(PYTEST) -s tests/chaos/test_outside_clients.py \
	  tests/chaos/test_outside_next_generation.py tests/chaos/test_group_upgrade.py $(PYTEST_ARGS)

suite-browser: $(FOR_ALL) chromium # the console in a real Chromium: axe, live updates, the reset wizard
	$(PYTEST) -rs tests/browser $(PYTEST_ARGS)

suite-chart: $(FOR_ALL) helm # lint, render, validate and start what the chart renders (needs helm, or Go to build it)
	@if ! PATH="$(TOOLS):$$PATH" command -v helm >/dev/null; then echo "make: skipped, for helm is not on the PATH, nor Go to build it"; exit 0; fi; \
	PATH="$(TOOLS):$$PATH" $(PYTEST) -rs tests/chart $(PYTEST_ARGS)

suite-rules: $(FOR_TESTS) # alerts, dashboard and metric names against promtool and a real Prometheus (PATH, or Debian's)
	$(PYTEST) -rs tests/observability $(PYTEST_ARGS)

suite-image: $(FOR_ALL) image-tools # build the image, run it beside a Valkey, build it again and compare (docker, or root on Debian)
	$(PYTEST) -s -rs tests/image $(or $(PYTEST_ARGS),-m "not slow")

suite-image-pipeline: $(FOR_ALL) image-tools # the same for the pipeline's image, with Spark and Java
	$(PYTEST) -s -rs tests/image -m slow $(PYTEST_ARGS)

suite-compose: $(FOR_ALL) # both Compose files, every profile by Compose's own binary, their brokers as processes, the demonstration
	$(PYTEST) -rs tests/unit/test_compose.py tests/conformance/test_compose.py tests/conformance/test_compose_secure.py $(PYTEST_ARGS)

suite-packaging: $(FOR_TESTS) # both wheels, built, installed into empty environments and used
	$(PYTEST) tests/packaging $(PYTEST_ARGS)

suite-acl: $(FOR_TESTS) # the script and conformance tests as the Redis user that `tidegate redis acl` prints
	TIDEGATE_TEST_ACL=1 $(PYTEST) $(PARALLEL) -m "not slow and not peer" tests/scripts tests/conformance --ignore-glob='tests/conformance/test_compose*' $(PYTEST_ARGS)

CLUSTER_SUITES := admin_views classic directory delayed_heartbeats events group_snapshot identity lag_samples log \
  membership.py mirror.py offsets_commit offsets_delete offsets_fetch offsets_of offsets_re producer_ids topics_apis topics_catalog usage
CLUSTER_MORE := $(foreach name,$(CLUSTER_SUITES),$(wildcard tests/scripts/test_$(name)*)) \
  $(addprefix tests/conformance/test_,connections.py delayed_heartbeats.py mirror.py round_trip.py)
CLUSTER_TESTS := $(addprefix tests/scripts/test_,redis_cluster.py log_append.py log_rules.py classic_joining.py record_groups.py) \
  $(addprefix tests/conformance/test_,produce_fetch.py clients.py) $(if $(ALL),$(CLUSTER_MORE))

suite-cluster: $(FOR_TESTS) # clients, logs and groups on a Redis Cluster of three primaries; ALL=1: every test that can be, some minutes
	TIDEGATE_TEST_REDIS_CLUSTER=1 $(PYTEST) -m "not slow and not peer and not one_server" $(CLUSTER_TESTS) $(PYTEST_ARGS)

# Not the whole folder: what somebody keeps beside them is theirs.
PYTHON_SOURCES := bench broker docs observability pipeline tests

check: $(FOR_ALL) ## format, lint, types, layers
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

# Tools apart from .venv: what they depend on is nobody else's business.
FOR_SUPPLY := .venv-supply/.for-supply
SUPPLY := .venv-supply/bin

$(FOR_SUPPLY): pyproject.toml constraints.txt
	@set -eu; echo "making .venv-supply"; "$${PYTHON:-python3}" -m venv .venv-supply; \
	  $(SUPPLY)/python -m pip install -q --no-compile -c constraints.txt $$(sed -n '/^supply = \[/,/^\]/s/^ *"\(.*\)",/\1/p' pyproject.toml)
	@touch $@

LOCK := $(SUPPLY)/uv pip compile -q -c constraints.txt --generate-hashes --no-annotate --universal --python-version 3.11 \
  --custom-compile-command "make lock"

# Of the pipeline's own image; `tidegate` itself comes from this checkout.
PIPELINE_EXTRAS := delta iceberg values numba plots

lock: $(FOR_SUPPLY) ## requirements/*.txt: what the images install, with hashes, from constraints.txt
	@set -eu; mkdir -p requirements; $(LOCK) pyproject.toml -o requirements/broker.txt; \
	  for extra in archive otel; do $(LOCK) pyproject.toml --extra $$extra -o requirements/$$extra.txt; done; \
	  echo "tidegate @ file://$$PWD" | $(LOCK) pipeline/pyproject.toml $(addprefix --extra ,$(PIPELINE_EXTRAS)) \
	    --override - --no-emit-package tidegate -o requirements/pipeline.txt; \
	  printf '%s\n' hatchling setuptools | $(LOCK) - -o requirements/build.txt

scan: $(FOR_SUPPLY) ## bandit over broker and pipeline; pyproject.toml has the reason of each exclusion
	$(SUPPLY)/bandit -q -c pyproject.toml -r broker pipeline

ifdef IMAGE
# BASE is what it was built on: name:tag@sha256:digest.
SBOM ?= build/sbom/image.cdx.json

sbom: $(FOR_SUPPLY)
	@mkdir -p build/sbom; $(SUPPLY)/python -m tests.image.sbom "$(IMAGE)" --output "$(SBOM)" \
	  --base "$(or $(BASE),$(shell sed -n 's/^ARG PYTHON_IMAGE=//p' Dockerfile))"
	@echo $(SBOM)
else
sbom: $(FOR_SUPPLY) ## build/sbom/tidegate.cdx.json: what the wheel installs (CycloneDX); EXTRAS=archive adds an extra; IMAGE=folder: image.cdx.json, of an image's files
	@set -eu; rm -rf build/sbom/environment build/sbom/*.whl; mkdir -p build/sbom; $(SUPPLY)/python -m venv --without-pip build/sbom/environment; \
	  pip="$(SUPPLY)/python -m pip -q"; $$pip wheel --no-deps --no-build-isolation --wheel-dir build/sbom .; \
	  $$pip --python build/sbom/environment/bin/python install --no-compile -c constraints.txt \
	    "$$(echo build/sbom/*.whl)$(if $(EXTRAS),[$(EXTRAS)])"; \
	  $(SUPPLY)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
	    -o build/sbom/tidegate.cdx.json build/sbom/environment; \
	  rm -r build/sbom/environment build/sbom/*.whl; echo build/sbom/tidegate.cdx.json
endif

AUDIT := $(SUPPLY)/pip-audit --no-deps --disable-pip --progress-spinner off $(AUDIT_ARGS)

audit: $(FOR_SUPPLY) ## known vulnerabilities of what constraints.txt pins, from PyPI; AUDIT_ARGS="-s osv" asks another service
	@if grep -m 1 == constraints.txt | $(AUDIT) -f json -r /dev/stdin 2>/dev/null | grep -q '"vulns"'; then \
	  $(AUDIT) -r constraints.txt; \
	else \
	  echo "make: skipped, for no service of vulnerabilities answers"; \
	fi

screenshots: $(FOR_ALL) chromium ## docs/img/console-*.png from a live cluster with a rebalance on
	$(BIN)/python -m tests.browser.screenshots

simulate: $(FOR_TESTS) ## whole brokers on a virtual clock, with seeded faults; ARGS="--seed random --seeds 10 --jobs 2"
	$(BIN)/python -m tests.simulation $(ARGS)

cost: $(FOR_TESTS) ## calls, bytecodes, system calls and Redis commands of each request, beside the table; ARGS=--update writes it
	$(BIN)/python -m tests.cost $(ARGS)

chaos: $(FOR_TESTS) ## 10 minutes of seeded faults under real clients, each history judged; ARGS="--seeds 1000" runs for hours
	$(BIN)/python -m tests.chaos.run --first random --seeds 15 $(ARGS)

demo: $(FOR_TESTS) ## brokers are killed, drained and added under a live group; SCENE=stuck: every kind of stuck group, explained
	@$(BIN)/python -m bench.$(or $(SCENE),demo) $(ARGS)

incidents: $(FOR_TESTS) java ## make storms, a stuck group and a commit that goes back, and have the pipeline find them (needs Java)
	@$(BIN)/python -m bench incidents $(ARGS)

bench: $(FOR_ALL) ## measure; takes the machine for a while
	$(BIN)/python -m bench all $(ARGS)

sparkbench: $(FOR_ALL) java ## topics in Spark beside its Kafka connector, the decoder beside parsers
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

docs: $(FOR_ALL) ## write what comes from the code: settings, metrics, errors, clients, commands, the chart's README and schema
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
	rm -rf .venv .venv-site .venv-supply build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
