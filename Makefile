# Every target prepares what it needs first: see tools/bootstrap.py.

PYTHON ?= python3
RUN := $(PYTHON) tools/bootstrap.py
WORKERS ?= 2
N ?= 1000000
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check retest soak lint format bench fuzz docs docs-serve lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  Options: make test ARGS='-k manifest -x'   make fuzz N=1000   make lock ARGS=--upgrade"

setup: ## Only prepare the environment (.venv, Java, servers for the tests)
	@$(RUN) --servers

demo: ## Run the main job: archives to a versioned cube, on Spark (two minutes)
	@$(RUN) python -m examples.demo $(ARGS)

test: ## Run the whole test suite, starting every server it needs
	@$(RUN) --servers python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: ## Run the quick checks: format, style, layers and the tests without servers (a minute)
	@$(RUN) ruff format --check .
	@$(RUN) ruff check .
	@$(RUN) lint-imports --no-logo
	@$(RUN) python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not (server or spark or interop or slow)' \
	    $(or $(ARGS),tests/architecture tests/golden tests/unit)

retest:
	@$(RUN) --servers python -m tools.retest $(ARGS)

soak: ## Let 8 processes work against each other and against faults for ten minutes
	@$(RUN) --servers python -m tests.soak $(ARGS)

lint: ## Check format, style, types, layers, spelling and plain English
	@$(RUN) ruff format --check .
	@$(RUN) ruff check .
	@$(RUN) mypy
	@$(RUN) lint-imports
	@$(RUN) codespell
	@$(RUN) python -m tools.plain_english

format: ## Rewrite the sources in the common format, with safe fixes
	@$(RUN) ruff format .
	@$(RUN) ruff check --fix .

bench: ## Measure speed, memory and size against the reference implementation
	@$(RUN) python -m bench $(ARGS)

fuzz: ## Mutate stored files N times (default a million) and decode each of them
	@$(RUN) python -m tests.fuzz $(N) $(ARGS)

docs: ## Build the documentation as a site in build/site; warnings are errors
	@$(RUN) python -m tools.site build

docs-serve: ## Serve the documentation on this machine and follow changes of its pages
	@$(RUN) python -m tools.site serve

lock: ## Recompile the pinned requirement files from pyproject.toml
	@$(RUN) python -m tools.lock $(ARGS)

clean: ## Remove everything that was made here, the environment included
	rm -rf .venv .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf build dist tools/azurite/node_modules tools/browser/node_modules spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
