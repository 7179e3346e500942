# Headgate: one command to run it, one to test it. Needs Python 3.11 or newer and make, nothing else.
#
#   LOCKED=1        install exactly the versions of requirements.lock (CI does)
#   SIZE=8          the number of brokers of `make run`
#   DEMO=1          and programs that use them, for `make run`
#   PYTEST_ARGS=…   handed to pytest, for example PYTEST_ARGS='-k settings -x'

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-newest test-interpreter test-patient test-all interop interop-all oslo npm example soak fuzz coverage licences bench lint lint-ruff lint-format lint-types lint-imports lint-deploy lint-tools docs format lock wheel-compiled system-packages clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s%s\n", $$1, $$2} /^#  / {print substr($$0, 4)}' Makefile

# ---------------------------------------------------------------- environments

VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
INSTALL := $(PY) deploy/install.py $(if $(LOCKED),--constraint requirements.lock)

# The first of these that is 3.11 or newer makes the environment; PYTHON=… overrides.
PYTHON_CANDIDATES := python3.11 python3 python3.12 python3.13 python3.14 python
PYTHON ?= $(shell for p in $(PYTHON_CANDIDATES); do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

$(VENV)/.stamp-venv:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { echo "make: '$(PYTHON) -m venv' failed; on Debian: apt install python3-venv" >&2; exit 1; }
	@touch $@

# one environment, a stamp for each set of extras in it
EXTRAS_run := all
EXTRAS_test := test
EXTRAS_lint := test,lint,test-deploy
EXTRAS_docs := all,test-docs
EXTRAS_spark := test-spark
$(VENV)/.stamp-%: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing headgate[$(EXTRAS_$*)]"
	@$(INSTALL) --editable '.[$(EXTRAS_$*)]'
	@touch $@
$(VENV)/.stamp-lint $(VENV)/.stamp-docs $(VENV)/.stamp-spark: | $(VENV)/.stamp-test

# Programs of others, each in an environment of its own. Of oslo.messaging the newest (2026.2) and the oldest (2024.2) are
# tried; those of 2025.1, 2025.2 and 2026.1, and the tests marked `between`, by `make interop-all`.
OSLO_VERSION := 18.3.1
OSLO_OLDER := 14.9.3 16.1.2 17.1.1 17.3.2
OSLO_TRIED ?= $(firstword $(OSLO_OLDER))
BETWEEN ?= and not between
NORFAB := .venv-norfab/.stamp-0.25.0
OSLO := .venv-oslo/.stamp-$(OSLO_VERSION)
OSLOS := $(foreach v,$(OSLO_TRIED),.venv-oslo-$(basename $v)/.stamp-$v)
IRONIC := .venv-ironic/.stamp-39.0.0
NPM_CLIENT := build/npm/.stamp
OIDC := .node/oidc/.stamp
PEERS := $(NORFAB) $(OSLO) $(OSLOS) $(IRONIC) $(NPM_CLIENT) $(OIDC)

$(PEERS): | $(VENV)/.stamp-venv
	@PY=$(PY) sh deploy/peers.sh $@
$(OSLO): pyproject.toml
$(OSLOS): $(OSLO)
$(IRONIC): pyproject.toml tests/live/ironic.lock
$(NPM_CLIENT): $(wildcard deploy/npm/* gateway/dashboard/*.js gateway/dashboard/*/*.js)
$(OIDC): tests/interop/oidc/package.json tests/interop/oidc/package-lock.json

# Chromium and Redis; a JRE for interop, benchmarks and soak, RabbitMQ for the benchmarks, podman for the soak.
system-packages:
	@sh deploy/test-setup.sh $(filter bench interop soak,$(MAKECMDGOALS))

# ---------------------------------------------------------------- to run it, to test it

SIZE ?= 4
PYTEST_ARGS ?=
# Bytecode is kept, whatever the environment says: the tests start hundreds of processes of this code.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest
# How many workers, and why: tests/conftest.py. `auto` is for tests that compute, `logical` for those that wait.
COMPUTING := $(PYTEST) --numprocesses auto --dist worksteal
WAITING := $(PYTEST) --numprocesses logical
FAST := not (bench or slow or interop or spark or patient or tools)
# The examples of docstrings. PySpark is not there, and Eventlet warns whoever imports it.
DOCTESTS := $(PYTEST) -q -W ignore --doctest-modules --ignore gateway/pipeline/source.py broker gateway
# The files that have tests with a marker: to collect all others would take longer than some of these tests.
marked = $(sort $(shell grep -rlE 'mark\.$1\b' tests --include='test_*.py'))

run: $(VENV)/.stamp-run ## a tree of SIZE brokers and a gateway with its dashboard on this machine, until Ctrl-C
	@$(if $(DEMO),,echo "make run DEMO=1 starts programs that use it, too: something to see, and to break")
	@exec $(VENV)/bin/headgate up --size $(SIZE) $(if $(DEMO),--demo)

test: $(VENV)/.stamp-test system-packages ## every part of the product, in three to five minutes on two cores
	$(COMPUTING) -m '$(FAST)' $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(DOCTESTS))

# What another Python cannot change: pages, files of deploy/, Parquet, which inputs are drawn, how processes of ours go together
SAME := browser deploy docs fuzz interop overload property replay unit/gateway/pipeline
test-newest: $(VENV)/.stamp-test system-packages ## of test, all that a version of Python could make a difference to
	$(COMPUTING) -m '$(FAST) and (interpreter or not story)' $(addprefix --ignore tests/,$(SAME)) $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(DOCTESTS))

test-interpreter: $(VENV)/.stamp-test system-packages ## of test-newest, what a version of Python makes a difference to
	$(COMPUTING) -m '$(FAST) and interpreter' $(call marked,interpreter) $(PYTEST_ARGS)

test-patient: $(VENV)/.stamp-test system-packages ## what needs real time: faults, kills, clusters
	$(WAITING) --dist worksteal -m 'patient and not (bench or slow or interop or spark or tools)' $(call marked,patient) $(PYTEST_ARGS)

test-all: test test-patient ## both

interop: $(VENV)/.stamp-test system-packages ## real peers: NorFab, oslo.messaging, Spark, an identity provider, flux-core (FLUX_PREFIX)
	@$(MAKE) --no-print-directory --jobs 3 $(VENV)/.stamp-spark $(PEERS)
	$(WAITING) --dist loadgroup --no-loadscope-reorder -m '(interop or spark) and not (bench or slow) $(BETWEEN)' \
		tests/spark tests/interop/test_oslo_suite.py $(call marked,interop) $(PYTEST_ARGS)

interop-all: ## the same, with every version of oslo.messaging, and what they show by halves
	@$(MAKE) --no-print-directory interop OSLO_TRIED='$(OSLO_OLDER)' BETWEEN=

oslo: $(VENV)/.stamp-test system-packages ## of interop, what is about oslo.messaging
	@$(MAKE) --no-print-directory --jobs 3 $(OSLO) $(OSLOS) $(IRONIC)
	$(WAITING) --dist loadgroup -m 'interop and not (bench or slow) $(BETWEEN)' tests/interop/test_oslo_*.py tests/interop/test_readme_oslo.py $(PYTEST_ARGS)

TOKEN := docs/examples/headgate-token
example: $(VENV)/.stamp-test ## a transport that is a distribution of its own: the contract; our checks of trees on TLS, and on ZeroMQ
	@$(INSTALL) --no-deps --upgrade --target build/headgate-token ./$(TOKEN)
	cd $(TOKEN) && PYTHONPATH=$(CURDIR)/build/headgate-token:$(CURDIR) PYTHONDONTWRITEBYTECODE= $(CURDIR)/$(PY) -m pytest --timeout 120 $(PYTEST_ARGS)
	HEADGATE_TEST_TREE=tests.unit.node.overlay.tls_tree $(COMPUTING) -m '$(FAST)' tests/unit/node/overlay $(PYTEST_ARGS)
	HEADGATE_TEST_TREE=tests.unit.node.overlay.curve_tree $(COMPUTING) -m '$(FAST)' tests/unit/node/overlay $(PYTEST_ARGS)

soak: $(VENV)/.stamp-spark $(VENV)/.stamp-lint system-packages ## the long stories, ten schedules of faults, the fuzzers, more examples of each property
	HEADGATE_SOAK=1 $(PYTEST) -m 'slow or story' --timeout 1800 $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,HEADGATE_EXAMPLES=thorough HEADGATE_FUZZ_INPUTS=60000 HEADGATE_FUZZ_RUNS=200 $(COMPUTING) -m '$(FAST)' tests/property tests/fuzz)

SECONDS_EACH ?= 10
fuzz: $(VENV)/.stamp-test ## every decoder for SECONDS_EACH; what is found becomes a file, and then a test
	$(PY) -m tests.fuzz all --seconds $(SECONDS_EACH)

BENCH_ARGS ?=
bench: $(VENV)/.stamp-spark $(NORFAB) $(OSLO) system-packages ## every figure, beside its rivals: a table and a JSON file
	@if command -v cc >/dev/null || command -v gcc >/dev/null; then $(MAKE) --no-print-directory wheel-compiled; fi
	$(PY) -m tests.bench $$(ls dist/*-cp3*.whl 2>/dev/null | head -1 | sed 's/^/--wheel /') $(BENCH_ARGS)

coverage: $(VENV)/.stamp-test ## what of each room the tests reach
	@$(INSTALL) --editable '.[test-reports]'
	$(PY) -m tests.reports coverage

licences: $(VENV)/.stamp-test ## of all that is depended on
	$(PY) -m tests.reports licences

# ---------------------------------------------------------------- to look at it

# `make -k lint` goes on to the next tool after one has complained
lint: lint-ruff lint-format lint-types lint-imports lint-deploy lint-tools ## ruff, mypy, imports, the files of deploy/, the tests of our tools

lint-ruff: $(VENV)/.stamp-lint
	$(PY) -m ruff check .

lint-format: $(VENV)/.stamp-lint
	$(PY) -m ruff format --check .

lint-types: $(VENV)/.stamp-lint
	$(PY) -m mypy
	$(PY) -m mypy --config-file tests/mypy.ini

lint-imports: $(VENV)/.stamp-lint
	$(VENV)/bin/lint-imports --no-logo --no-cache

# Dockerfile, compose file, manifests, units, workflows and shell scripts by their own checkers
lint-deploy: $(VENV)/.stamp-lint
	$(PY) -m tests.deploy

lint-tools: $(VENV)/.stamp-lint
	$(COMPUTING) -m 'tools and not (patient or slow)' $(call marked,tools) $(PYTEST_ARGS)

format: $(VENV)/.stamp-lint ## ruff mends what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: $(VENV)/.stamp-docs ## the site, in build/site; a link that leads nowhere fails
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict && echo "the site is in build/site: $(PY) -m mkdocs serve shows it"

# ---------------------------------------------------------------- to publish it

npm: $(NPM_CLIENT) ## client.js as an npm package, with its types, in build/npm

# the image's own lists of packages, with hashes, follow from the lock
lock: $(VENV)/.stamp-lint $(VENV)/.stamp-spark ## renew requirements.lock
	@$(PIP) check
	@{ echo "# The versions CI runs with: pip install --constraint requirements.lock. Renewed by: make lock"; \
	   $(PIP) freeze --exclude-editable --exclude headgate --exclude uv; } > requirements.lock
	@$(PIP) install --quiet uv && PATH=$(VENV)/bin:$$PATH $(PY) deploy/lock.py
	@cat requirements.lock

# deploy/compile.py leaves nothing beside the sources, where an editable install would find it
wheel-compiled: $(VENV)/.stamp-venv ## the wheel that people install, its hot modules compiled with mypyc (needs a C compiler)
	@rm -f dist/*.whl
	@HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(PIP) wheel --quiet --no-deps --wheel-dir dist . && ls -1 dist/*.whl

clean: ## take away all that these targets made
	rm -rf $(VENV) .node .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
