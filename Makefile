# Headgate: one command to run it, one to test it. Needs Python 3.11 or newer and make, nothing else.
#
#   make run        a tree of four brokers and a gateway with dashboard on this machine, until Ctrl-C
#   make test       the fast tests, 4 minutes      make test-all  those that need real time, too
#   make interop    against NorFab, oslo.messaging, Spark, oidc-provider and flux-core (FLUX_PREFIX)
#   make oslo       of it, what is about oslo.messaging alone
#   make lint       ruff, mypy, imports, deploy    make soak      the slow stories and the long fuzz
#   make bench      a table and a JSON file        make lock      renew requirements.lock
#   make fuzz       every decoder, SECONDS_EACH   make coverage, make licences   reports
#   make example    a transport of another package
#   make npm        client.js as an npm package, with its types    make docs    the site, in build/site
#   make wheel-compiled   the wheel that people install, its hot modules compiled with mypyc (needs a C compiler)
#
#   LOCKED=1        install exactly the versions of requirements.lock (CI does)
#   SIZE=8          the number of brokers of `make run`
#   PYTEST_ARGS=…   handed to pytest, for example PYTEST_ARGS='-k settings -x'

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
SIZE ?= 4
PYTEST_ARGS ?=
BENCH_ARGS ?=
SECONDS_EACH ?= 10
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# what is used is compiled when it is first imported: all of it would take as long as the rest of an installation
PIP_INSTALL := $(PIP) install --quiet --no-compile $(if $(LOCKED),--constraint requirements.lock)

# Bytecode is kept, whatever the environment says: the tests start hundreds of processes of this code.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest --numprocesses auto --dist worksteal
LOCAL := not (bench or slow or interop or spark)
FAST := $(LOCAL) and not patient
# The files that have tests with a marker: to collect all others would take longer than some of these tests.
marked = $(shell grep -rlE 'mark\.$1\b' tests --include='test_*.py')

# The first of these that is 3.11 or newer makes the environment; PYTHON=… overrides.
PYTHON_CANDIDATES := python3.11 python3 python3.12 python3.13 python3.14 python
PYTHON ?= $(shell for p in $(PYTHON_CANDIDATES); do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

.PHONY: help run test test-all test-patient interop oslo npm example soak fuzz coverage licences bench lint lint-ruff lint-format lint-types lint-imports lint-deploy docs format lock wheel-compiled system-packages clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,16p'

# ---------------------------------------------------------------- environment: a stamp per set of packages

$(VENV)/.stamp-venv:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { echo "make: '$(PYTHON) -m venv' failed; on Debian: apt install python3-venv" >&2; exit 1; }
	@$(PIP_INSTALL) --upgrade pip # that of Python 3.11 takes more than twice the time for what follows
	@touch $@

$(VENV)/.stamp-run: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing headgate"
	@$(PIP_INSTALL) --editable '.[all]'
	@touch $@

$(VENV)/.stamp-test: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing headgate and what its tests need"
	@$(PIP_INSTALL) --editable '.[test]'
	@touch $@ $(VENV)/.stamp-run

$(VENV)/.stamp-lint: pyproject.toml $(VENV)/.stamp-test
	@echo "installing the linters"
	@$(PIP_INSTALL) --editable '.[test,lint,test-deploy]'
	@touch $@

$(VENV)/.stamp-docs: pyproject.toml $(VENV)/.stamp-test
	@echo "installing MkDocs"
	@$(PIP_INSTALL) --editable '.[all,test-docs]'
	@touch $@

# PySpark is half a gigabyte: only what runs it asks for it.
$(VENV)/.stamp-spark: pyproject.toml $(VENV)/.stamp-test
	@echo "installing PySpark and what its tests need"
	@$(PIP_INSTALL) --editable '.[test-spark]'
	@touch $@

# Deployed NorFab pins its requirements with ==, so it gets an environment of its own; pydantic is what it forgets to ask for.
NORFAB_VERSION := 0.25.0
.venv-norfab/.stamp-$(NORFAB_VERSION): | $(VENV)/.stamp-venv
	@echo "installing NorFab $(NORFAB_VERSION) into .venv-norfab"
	@rm -rf .venv-norfab && $(PY) -m venv .venv-norfab
	@.venv-norfab/bin/python -m pip --disable-pip-version-check install --quiet 'norfab==$(NORFAB_VERSION)' 'pydantic>=2,<3'
	@touch $@

# oslo.messaging as applications install it, with what its own functional suite needs: the release of 2026.2 in .venv-oslo,
# beside it those of 2024.2, 2025.1, 2025.2 and 2026.1 in .venv-oslo-14.9 and so on, which have everything else from there:
# pip would give them the very same versions. What is used of them is compiled then.
OSLO_VERSION := 18.3.1
OSLO_OLDER := 14.9.3 16.1.2 17.1.1 17.3.2
OSLO_OLDER_VENVS := $(foreach v,$(OSLO_OLDER),.venv-oslo-$(basename $v)/.stamp-$v)
OSLO_VENV := .venv-oslo/.stamp-$(OSLO_VERSION)
OSLO_VENVS := $(OSLO_VENV) $(OSLO_OLDER_VENVS)
$(OSLO_VENV): pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing oslo.messaging $(OSLO_VERSION) into $(@D)"
	@rm -rf $(@D) && $(PY) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile 'oslo.messaging==$(OSLO_VERSION)' \
		eventlet testtools fixtures testscenarios oslotest pifpaf requests oslo.service cotyledon \
		--editable '.[all,oslo,redis]'
	@touch $@
PURELIB := import sysconfig; print(sysconfig.get_path("purelib"))
$(OSLO_OLDER_VENVS): $(OSLO_VENV)
	@echo "installing oslo.messaging $(@F:.stamp-%=%) into $(@D)"
	@rm -rf $(@D) && $(PY) -m venv --without-pip $(@D)
	@$(PIP) --python $(@D)/bin/python install --quiet --no-compile --no-deps 'oslo.messaging==$(@F:.stamp-%=%)'
	@echo "import site; site.addsitedir('$$(.venv-oslo/bin/python -c '$(PURELIB)')')" >"$$($(@D)/bin/python -c '$(PURELIB)')/beside.pth"
	@touch $@

# A real service of OpenStack beside our driver. Where a registry does not have it, its test is skipped and says so.
IRONIC_VERSION := 39.0.0
IRONIC_VENV := .venv-ironic/.stamp-$(IRONIC_VERSION)
IRONIC_PIP := .venv-ironic/bin/python -m pip --disable-pip-version-check
$(IRONIC_VENV): pyproject.toml tests/live/ironic.lock | $(VENV)/.stamp-venv
	@echo "installing Ironic $(IRONIC_VERSION) into .venv-ironic"
	@rm -rf .venv-ironic && $(PY) -m venv .venv-ironic
	@if $(IRONIC_PIP) download --quiet --no-deps --dest .venv-ironic/wheel 'ironic==$(IRONIC_VERSION)'; then \
		$(IRONIC_PIP) install --quiet --no-compile --constraint tests/live/ironic.lock .venv-ironic/wheel/* --editable '.[oslo]' && touch $@; \
	else echo "no Ironic $(IRONIC_VERSION) in this registry: its test is skipped"; fi

# client.js as the package that npm installs: types made of its comments; types and style of all scripts of the page checked.
# Where there is no npm, or no registry, its test is skipped and says so.
NPM_CLIENT := build/npm/.stamp
$(NPM_CLIENT): $(wildcard deploy/npm/* gateway/dashboard/*.js gateway/dashboard/*/*.js)
	@rm -rf $(@D) && mkdir -p $(@D) && cp -r deploy/npm/. gateway/dashboard/client.js gateway/dashboard/client LICENSE $(@D)
	@if cd $(@D) && npm ci --silent; then \
		echo "building the npm package of client.js in $(@D)" && npm run --silent types && npm pack --silent && cd - >/dev/null && \
		$(@D)/node_modules/.bin/tsc --project $(@D)/dashboard.json && \
		$(@D)/node_modules/.bin/eslint --config $(@D)/eslint.config.js gateway/dashboard && touch $@; \
	else echo "no npm, or no registry: the npm package of client.js is not built"; fi

# A certified identity provider for the login of browsers. Where there is no npm, or no registry, its test is skipped and says so.
OIDC_NODE := .node/oidc/.stamp
$(OIDC_NODE): tests/interop/oidc/package.json tests/interop/oidc/package-lock.json
	@rm -rf $(@D) && mkdir -p $(@D) && cp $^ $(@D)
	@if cd $(@D) && npm ci --silent --ignore-scripts; then echo "installed oidc-provider into $(@D)" && touch .stamp; \
	else echo "no npm, or no registry: nobody logs in at an identity provider"; fi

# Chromium and Redis; a JRE for interop, benchmarks and soak, RabbitMQ for the benchmarks, podman for the soak.
system-packages:
	@sh deploy/test-setup.sh $(filter bench interop soak,$(MAKECMDGOALS))

# ---------------------------------------------------------------- what a person asks for

run: $(VENV)/.stamp-run
	@exec $(VENV)/bin/headgate up --size $(SIZE)

test: $(VENV)/.stamp-test system-packages
	$(PYTEST) -m '$(FAST)' $(PYTEST_ARGS)

test-all: $(VENV)/.stamp-test system-packages
	$(PYTEST) -m '$(LOCAL)' $(PYTEST_ARGS)

# what test-all has and test has not
test-patient: $(VENV)/.stamp-test system-packages
	$(PYTEST) -m '$(LOCAL) and patient' $(call marked,patient) $(PYTEST_ARGS)

# environments of their own can be made at the same time; the tests that take longest begin
interop: $(VENV)/.stamp-test system-packages
	@$(MAKE) --no-print-directory --jobs 3 $(VENV)/.stamp-spark .venv-norfab/.stamp-$(NORFAB_VERSION) $(OSLO_VENVS) $(IRONIC_VENV) $(NPM_CLIENT) $(OIDC_NODE)
	$(PYTEST) --dist loadgroup --no-loadscope-reorder -m '(interop or spark) and not bench and not slow' \
		tests/spark tests/interop/test_oslo_suite.py $(call marked,interop) $(PYTEST_ARGS)

# the part of it that is about oslo.messaging: a job of its own for who changes nothing else
oslo: $(VENV)/.stamp-test system-packages
	@$(MAKE) --no-print-directory --jobs 3 $(OSLO_VENVS) $(IRONIC_VENV)
	$(PYTEST) --dist loadgroup -m 'interop and not bench and not slow' tests/interop/test_oslo_*.py tests/interop/test_readme_oslo.py $(PYTEST_ARGS)

npm: $(NPM_CLIENT)

# a transport that is a distribution of its own, installed beside ours: the contract, our checks of trees, a tree with a gateway
TLS := docs/examples/headgate-tls
example: $(VENV)/.stamp-test
	@$(PIP_INSTALL) --no-deps --upgrade --target build/headgate-tls ./$(TLS)
	cd $(TLS) && PYTHONPATH=$(CURDIR)/build/headgate-tls PYTHONDONTWRITEBYTECODE= $(CURDIR)/$(PY) -m pytest --timeout 120 $(PYTEST_ARGS)
	HEADGATE_TEST_TREE=tls_tree PYTHONPATH=build/headgate-tls:$(TLS)/tests $(PYTEST) -m '$(FAST)' tests/unit/node/overlay $(PYTEST_ARGS)

soak: $(VENV)/.stamp-spark system-packages
	@$(PIP_INSTALL) --editable '.[test-deploy]'
	HEADGATE_SOAK=1 PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -m 'slow or story' --timeout 1800 $(PYTEST_ARGS)

# every decoder in turn, SECONDS_EACH for each; what is found becomes a file, and then a test
fuzz: $(VENV)/.stamp-test
	$(PY) -m tests.fuzz all --seconds $(SECONDS_EACH)

coverage: $(VENV)/.stamp-test
	@$(PIP_INSTALL) --editable '.[test-reports]'
	$(PY) -m tests.reports coverage

licences: $(VENV)/.stamp-test
	$(PY) -m tests.reports licences

bench: $(VENV)/.stamp-spark .venv-norfab/.stamp-$(NORFAB_VERSION) .venv-oslo/.stamp-$(OSLO_VERSION) system-packages
	@if command -v cc >/dev/null || command -v gcc >/dev/null; then $(MAKE) --no-print-directory wheel-compiled; fi
	$(PY) -m tests.bench $$(ls dist/*-cp3*.whl 2>/dev/null | head -1 | sed 's/^/--wheel /') $(BENCH_ARGS)

# `make -k lint` goes on to the next tool after one has complained
lint: lint-ruff lint-format lint-types lint-imports lint-deploy

lint-ruff: $(VENV)/.stamp-lint
	$(PY) -m ruff check .

lint-format: $(VENV)/.stamp-lint
	$(PY) -m ruff format --check .

# Dockerfile, compose file, manifests and units by their own checkers
lint-deploy: $(VENV)/.stamp-lint
	$(PY) -m tests.deploy

lint-types: $(VENV)/.stamp-lint
	$(PY) -m mypy

lint-imports: $(VENV)/.stamp-lint
	$(VENV)/bin/lint-imports --no-logo --no-cache

# the site; a link or an anchor that leads nowhere fails
docs: $(VENV)/.stamp-docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict && echo "the site is in build/site: $(PY) -m mkdocs serve shows it"

format: $(VENV)/.stamp-lint
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# the image's own lists of packages, with hashes, follow from the lock
lock: $(VENV)/.stamp-lint $(VENV)/.stamp-spark
	@$(PIP) check
	@{ echo "# The versions CI runs with: pip install --constraint requirements.lock. Renewed by: make lock"; \
	   $(PIP) freeze --exclude-editable --exclude headgate --exclude uv; } > requirements.lock
	@$(PIP) install --quiet uv && PATH=$(VENV)/bin:$$PATH $(PY) deploy/lock.py
	@cat requirements.lock

# built in a copy: the compiler leaves its shared objects beside the sources, where an editable install would find them
wheel-compiled: $(VENV)/.stamp-venv
	@copy=$$(mktemp -d) && trap "rm -rf $$copy" EXIT && cp -r --parents pyproject.toml README.md LICENSE headgate.py pyspark_headgate.py deploy/index_readme.py broker gateway $$copy/ && \
	rm -f dist/*.whl && \
	HATCH_BUILD_HOOK_ENABLE_MYPYC=true $(PIP) wheel --quiet --no-deps --wheel-dir dist $$copy && \
	ls -1 dist/*.whl

clean:
	rm -rf $(VENV) .node .venv-norfab .venv-oslo .venv-oslo-* .venv-ironic build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
