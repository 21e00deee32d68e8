# From a fresh clone: make demo, make test. Needs Python 3.11+, Java 17+ and make.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
ROUNDS ?= 10
WARM := $(BIN)/python -c 'from headrace.state.warming import warm; warm()'
# Parts that run at the same time say all they have to say at once, when they end.
IN_PIECES := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.PHONY: help setup kernels demo test check static unit sessions processes soak bench java clean

help:
	@echo "make demo    run the demo            (DEMO_ARGS='--seconds 60')"
	@echo "make test    static checks and all tests"
	@echo "make check   static checks and unit tests, without Spark"
	@echo "make soak    tests of properties on new examples, again and again (ROUNDS=100)"
	@echo "make bench   list the experiments    (BENCH_ARGS='latency --rate 2000')"
	@echo "make setup   only make the environment in .venv"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Headrace needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1): install it, or name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing: install it (for example 'apt-get install python3-venv')"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(WARM)
	@touch $(STAMP)

# Those that have changed since setup are compiled once, for all processes that use them.
kernels: setup
	@$(WARM)

# One sentence instead of Spark's stack trace.
java:
	@version=$$($(JAVA) -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1); \
	if [ "$${version:-0}" -lt 17 ]; then \
	  echo "Spark needs Java 17 or newer, and $(JAVA) is $${version:-not there}: install it (for example 'apt-get install openjdk-17-jre-headless') or set JAVA_HOME."; \
	  exit 1; \
	fi

demo: java setup
	@$(BIN)/headrace demo $(DEMO_ARGS)

# All parts always run, at the same time: what computes has less priority than what mostly waits for Spark.
test: java kernels
	@$(MAKE) --no-print-directory --keep-going --jobs=4 $(IN_PIECES) COMPUTING='nice -n 10' static unit sessions processes

check: static unit

static: setup
	@status=0; \
	for check in "ruff check ." "ruff format --check ." "mypy" "lint-imports --no-logo"; do \
	  echo "$$check"; $(COMPUTING) $(BIN)/$$check || status=1; \
	done; \
	exit $$status

unit: kernels
	$(COMPUTING) $(BIN)/pytest -n 2 tests/unit tests/cli tests/firsthour --ignore tests/cli/test_cli_spark.py $(PYTEST_ARGS)

# Jobs in one Spark session that they share.
sessions: java setup
	$(BIN)/pytest tests/spark $(PYTEST_ARGS)

# Jobs in processes with a session of their own, some of which are killed.
processes: java setup
	$(BIN)/pytest tests/recovery tests/cli/test_cli_spark.py $(PYTEST_ARGS)

soak: kernels
	@for round in $$(seq $(ROUNDS)); do \
	  echo "round $$round of $(ROUNDS)"; \
	  HEADRACE_HYPOTHESIS=explore HEADRACE_EXAMPLES=5 $(BIN)/pytest -n 2 tests/unit -m "hypothesis or soak" $(PYTEST_ARGS) \
	    || exit 1; \
	done

bench: java setup
	@$(BIN)/headrace bench $(or $(BENCH_ARGS),--list)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis out
