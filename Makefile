# Two commands do everything on a machine with Python 3.11 and make: `make demo` and `make test`.
# All that they install goes into .venv; besides this folder only pip's own cache is written.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
ARGS ?=
N ?= 1000
DATABASE ?= sqlite
# Processes that run tests side by side. One more than there are cores, since many tests wait for others.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Exact versions for what is installed, and for what pip builds the package with (by the second name since pip 25.3).
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt

GRAFANA_TYPES := @grafana/schema@13.2.3 typescript@7.0.2
CHECKOV := checkov==3.3.30
# Prints the tools of a group, or of several.
TOOLS = $(BIN)/python -c "import sys, tomllib; groups = tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']; \
  print(*(tool for name in sys.argv[1:] for tool in groups[name]))"

# Bytecode is kept even where it isn't by default: each worker, and each command that a test starts, would compile anew.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: help demo test test-quick torture lint image docs audit sbom bench bench-peers pictures constraints clean

help:
	@echo "make demo          the whole story in a minute: a local Gemini that fails, a run, /metrics, a replay"
	@echo "make test          run the tests (ARGS=\"-k settings\" for some of them), in WORKERS=$(WORKERS) processes (0: in this one)"
	@echo "make test-quick    run those that take no second and no server, in a minute"
	@echo "make torture       kill processes at random, N=1000 times, on DATABASE=sqlite or postgres (SEED=… plays it again)"
	@echo "make lint          check style and types"
	@echo "make image         build the image parked for Docker, with the version and the commit in its labels"
	@echo "make docs          make a site of the documentation, in build/docs"
	@echo "make audit         ask for known weaknesses of every pinned version (asks a service on the network)"
	@echo "make sbom          list the components that parked is installed with, in build/sbom.json (CycloneDX)"
	@echo "make bench         measure import, overhead a job and memory (about ten minutes)"
	@echo "make bench-peers   measure jobs a second next to other queues, and what the ledger does (about ten minutes)"
	@echo "make pictures      draw the dashboards with Grafana's components into docs/images (npm, Chromium, Prometheus)"
	@echo "make constraints   write the newest versions of everything into constraints.txt"
	@echo "make clean         remove what the others have made, .venv included"

demo: $(VENV)/installed
	@$(BIN)/parked demo $(ARGS)

test: $(VENV)/installed-dev $(VENV)/docs/installed $(VENV)/release/installed
	@$(PYTEST) $(ARGS)

test-quick: $(VENV)/installed-dev
	@$(PYTEST) -m "not slow" $(ARGS)

torture: $(VENV)/installed-dev
	@PYTHONPATH=tests $(BIN)/python -m torture --kills $(N) --database $(DATABASE) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/installed-dev
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

image:
	@docker build --tag parked $(ARGS) \
	  --build-arg VERSION="$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' runner/parked/version.py)" \
	  --build-arg REVISION="$$(git rev-parse HEAD 2>/dev/null)" .

docs: $(VENV)/docs/installed
	@$(VENV)/docs/bin/python -m sphinx -b html -c docs/site -d build/docs.parts --fail-on-warning --keep-going --quiet . build/docs
	@echo "build/docs/index.html"

audit: $(VENV)/release/installed
	@$(VENV)/release/bin/python -m pip_audit --strict --disable-pip --no-deps --requirement constraints.txt \
	  --progress-spinner off $(ARGS) || { \
	  echo "a pinned version has a known weakness (make constraints brings newer ones), or the service that would know" >&2; \
	  echo "couldn't be asked; another one is asked by: make audit ARGS=--vulnerability-service=osv" >&2; exit 1; }

sbom: $(VENV)/release/installed
	@$(PYTHON) -m venv --clear --without-pip $(VENV)/runtime
	@$(PIP) --python $(VENV)/runtime/bin/python install '.[encrypted,exporter,notify,postgres]'
	@mkdir -p build
	@$(VENV)/release/bin/cyclonedx-py environment --output-file build/sbom.json $(VENV)/runtime/bin/python
	@echo "build/sbom.json"

bench: $(VENV)/installed
	@$(BIN)/python bench/import_time.py
	@$(BIN)/python bench/overhead.py
	@$(BIN)/python bench/memory.py
	@$(BIN)/python bench/judging.py

bench-peers: $(VENV)/installed
	@$(PYTHON) -m venv $(VENV)/peers
	@env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT $(VENV)/peers/bin/python -m pip --quiet --disable-pip-version-check \
	  install --editable . --requirement bench/requirements.txt
	@$(VENV)/peers/bin/python bench/throughput.py
	@$(BIN)/python bench/ledger_speed.py

pictures: $(VENV)/installed-dev
	@mkdir -p $(VENV)/pictures
	@cp dashboards/pictures/*.* $(VENV)/pictures
	@cd $(VENV)/pictures && npm install --silent --no-audit --no-fund --no-package-lock && npx vite build --logLevel error
	@$(PIP) install playwright
	@$(BIN)/python dashboards/pictures/take.py --page $(VENV)/pictures/dist

constraints: $(VENV)/installed
	@$(PYTHON) -m venv --clear $(VENV)/fresh
	@env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT $(VENV)/fresh/bin/python -m pip --quiet --disable-pip-version-check \
	  install --editable '.[encrypted,exporter,notify,postgres]' editables $$($(TOOLS) dev docs release)
	@{ grep '^#' constraints.txt; $(VENV)/fresh/bin/python -m pip freeze --exclude-editable; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "parked needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) can't make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)

# What CI has besides: kubectl where there is none, and checkov, whose hundred dependencies are its own.
$(VENV)/kubectl/kubectl: .ci/kubectl.py | $(BIN)/python
	@$(BIN)/python .ci/kubectl.py $@

$(VENV)/checkov/installed: Makefile | $(BIN)/python
	@echo "Installing checkov into $(VENV)/checkov ..."
	@$(PYTHON) -m venv --clear $(VENV)/checkov
	@env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT $(VENV)/checkov/bin/python -m pip --quiet --disable-pip-version-check \
	  install $(CHECKOV)
	@touch $@

$(VENV)/installed: pyproject.toml constraints.txt runner/parked/version.py | $(BIN)/python
	@echo "Installing parked into $(VENV) ..."
	@$(PIP) install --editable '.[encrypted,exporter,notify,postgres]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "Installing the tools for development into $(VENV) ..."
	@$(PIP) install $$($(TOOLS) dev)
	@! command -v npm >/dev/null || npm install --silent --no-audit --no-fund --no-save --prefix $(VENV)/grafana $(GRAFANA_TYPES)
	@touch $@

# Tools that bring much of their own, each group in an environment of its own.
$(VENV)/docs/installed $(VENV)/release/installed: $(VENV)/%/installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the tools of the group $* into $(VENV)/$* ..."
	@$(PYTHON) -m venv --clear $(VENV)/$*
	@$(VENV)/$*/bin/python -m pip --quiet --disable-pip-version-check install $$($(TOOLS) $*)
	@touch $@
