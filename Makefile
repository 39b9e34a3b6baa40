# Needs make and Python 3.11 or newer; everything else is installed into .venv.

# The first one that is new enough and can create virtual environments is used; override it with `make PYTHON=...`.
PYTHON ?= python3.14 python3.13 python3.12 python3.11 python3 python
# How many processes run the tests: two per core on two cores, because many tests wait for other processes.
JOBS ?= 4
# Passed to the program: make torture ARGS="--minutes 5"
ARGS ?=
# The documentation as the tests look at it, built while mypy runs.
TESTED_SITE := build/tested-site

# Compiled modules are kept: the tests start hundreds of interpreters.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
RUNTIME := .venv/.installed-all
DEV := .venv/.installed-dev

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help up test test-all test-lowest test-newest early prepared figures lint proto bench torture soak docs dist sbom audit screenshots image clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(RUNTIME) ## install and start everything, with demo workers
	$(BIN)/everwork up --demo $(ARGS)

test: ## all checks, then the tests: what CI runs
	@$(MAKE) --no-print-directory -j 2 $(DEV) early
	@$(MAKE) --no-print-directory -j 2 lint prepared
	@$(BIN)/python -m tools.figures
	EVERWORK_TEST_SITE=$(TESTED_SITE) $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-all: export EVERWORK_TEST_EVERYTHING = 1
test-all: test ## the same, with every test on every engine and in every configuration

test-lowest: $(DEV) ## run the core tests with the lowest supported versions of all dependencies
	$(BIN)/python -m tools.supply lowest -n $(JOBS) $(ARGS)

test-newest: $(DEV) ## the same with the newest versions on the package index
	$(BIN)/python -m tools.supply newest -n $(JOBS) $(ARGS)

# Runs on the other core while pip installs the packages, of which it needs none: -S leaves them alone.
early: | $(BIN)/pip
	-@$(BIN)/python -S -m tools.browser --install
	-@$(BIN)/python -S -m tools.other_django --install

# Runs on the other core while mypy runs: installs what some tests need, compiles the tests' modules once, and builds the
# documentation; its report is empty if nothing is wrong.
prepared: $(DEV)
	-@$(BIN)/python -m tools.node --install
	-@$(BIN)/python -m pytest --collect-only --quiet $(ARGS) >/dev/null 2>&1
	@rm -rf $(TESTED_SITE) && mkdir -p $(TESTED_SITE)
	-@$(BIN)/python -m tools.site $(TESTED_SITE)/html >$(TESTED_SITE)/writing 2>&1 && : >$(TESTED_SITE)/writing
	@mv $(TESTED_SITE)/writing $(TESTED_SITE)/report

figures: $(DEV) ## code metrics: size and repetition
	$(BIN)/python -m tools.figures $(ARGS)

lint: $(DEV) ## ruff, formatting, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

proto: $(DEV) ## generate Python code from the .proto files
	$(BIN)/python -m tools.generate_proto

bench: $(DEV) ## measure speed
	$(BIN)/python -m benchmarks $(ARGS)

torture: $(DEV) ## kill processes at random for a while and count lost jobs
	$(BIN)/python -m tests.torture $(ARGS)

soak: $(DEV) ## load a deployment for hours, with faults, and look for leaks
	$(BIN)/python -m tests.soak $(ARGS)

docs: $(DEV) ## build the documentation site strictly, in build/docs/html, and run its examples
	$(BIN)/python -m tools.site
	$(BIN)/python -m pytest -n $(JOBS) tests/docs tests/test_docs.py $(ARGS)

dist: $(DEV) ## build wheel and sdist, check them, and run the wheel in an empty environment
	$(BIN)/python -m tools.dist

sbom: $(DEV) ## write a software bill of materials (CycloneDX), and list the licenses
	$(BIN)/python -m tools.supply sbom

audit: $(DEV) ## look up known vulnerabilities of the tested dependencies (needs the internet)
	$(BIN)/python -m tools.supply audit

screenshots: $(DEV) ## take screenshots of every dashboard page into build/screenshots
	$(BIN)/python -m tools.browser --install
	$(BIN)/python -m tools.screenshots $(ARGS)

image: $(DEV) ## build the container image and test its server and workers (root, Debian or Ubuntu)
	$(BIN)/python -m tools.image $(ARGS)

clean: ## remove .venv, caches and build results
	rm -rf .venv .venv-django .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installs the tested versions once, and again only when they change; the code itself is linked, not copied.
.venv/.installed-%: pyproject.toml constraints/newest.txt | $(BIN)/pip
	@echo 'Installing Everwork and its dependencies into .venv: about a minute, once.'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints/newest.txt --editable '.[$*]'
	@touch $@

# pip is installed last into a virtual environment, so an incomplete one is created again.
$(BIN)/pip:
	@problem='Everwork needs Python 3.11 or newer; found none (looked for: $(PYTHON)).'; \
	for python in $(PYTHON); do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	  if "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	    echo "$$("$$python" --version) -> .venv"; \
	    exec "$$python" -m venv --clear .venv; \
	  fi; \
	  problem="$$python cannot create virtual environments: install its venv module (on Debian and Ubuntu: python3-venv)."; \
	done; \
	echo "$$problem" >&2; exit 1
