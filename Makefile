# make demo: a first run, from nothing.   make test: everything that must stay green.   make site: the manual, in site/.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PYTHONDONTWRITEBYTECODE :=  # the tests start many interpreters: let them share compiled files

# make cluster-demo: ranks, engines and reward workers on a Ray cluster of two nodes.
.PHONY: demo cluster-demo site test pytest lint install clean

demo: .venv/installed
	$(BIN)/whet train grpo

cluster-demo: .venv/installed
	$(PIP) install -q -c constraints.txt -e '.[ray]'
	$(BIN)/whet cluster-demo

site: .venv/installed
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # open site/index.html

test: .venv/developing
	@$(MAKE) --no-print-directory -j2 lint pytest  # beside each other: mypy runs on one core

pytest: .venv/developing
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --workers auto

lint: .venv/developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: .venv/installed

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "whet needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

.venv/developing: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	$(PIP) install -q -c constraints.txt --no-deps bfcl-eval skyrl-gym  # what they declare does not fit beside torch of today
	@touch .venv/installed $@

clean:
	rm -rf .venv site *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
