# The common tasks; `make help` lists them. Needs only make and Python 3.11 or newer.
#
# Everything is installed into .venv, once: a stamp file remembers it, and a second call installs
# nothing until pyproject.toml changes. Where `uv` is on the path it is used, else venv and pip; either way there is
# a pip in .venv, since one from elsewhere would install elsewhere.

VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)

# The first Python that is new enough and really runs: a name on the path may be a shim without an
# interpreter behind it, or a distribution's Python that cannot make virtual environments.
NEEDS := import sys; sys.exit(sys.version_info < (3, 11))
ifeq ($(UV),)
NEEDS := import ensurepip, venv; $(NEEDS)
endif
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	if $$python -c '$(NEEDS)' >/dev/null 2>&1; then echo $$python; break; fi; done)

# Two processes or more, each with whole test files, since the tests of a file share compiled programs.
PARALLEL ?= --numprocesses auto --maxprocesses 8 --dist loadfile

# Packages that only some commands need: `make extras EXTRAS=gymnax,wandb`. pip would ignore a name that is none.
EXTRAS ?=
CHECK_EXTRAS = import sys, tomllib; \
	known = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; \
	sys.exit(not {*'$(EXTRAS)'.split(',')} <= {*known} and 'EXTRAS must be some of ' + ','.join(known))

# Arguments handed on to the command behind a target: make train ARGS="--seeds 3"
ARGS ?=

ifeq ($(UV),)
MAKE_VENV = $(PYTHON) -m venv $(VENV)
INSTALL = $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-input
else
MAKE_VENV = $(UV) venv --quiet --seed --allow-existing --python "$(or $(PYTHON),3.11)" $(VENV)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python
endif

.DEFAULT_GOAL := help
.PHONY: help train extras test test-full test-slow lint format bench soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

train: $(VENV)/.installed ## train PPO on CartPole-v1 with 10 seeds at once and print the result
	$(BIN)/shoal train CartPole-v1 $(ARGS)

extras: $(VENV)/.installed ## install what only some commands need: make extras EXTRAS=gymnax,wandb
	@$(BIN)/python -c "$(CHECK_EXTRAS)"
	$(INSTALL) --editable '.[$(EXTRAS)]'

test: lint ## check style and types, then run the fast tests
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-full: $(VENV)/.installed-test ## run what the fast tests leave out: the same properties over many more cases
	$(BIN)/python -m pytest $(PARALLEL) -m "full and not slow" $(ARGS)

test-slow: $(VENV)/.installed-test ## run the long learning tests and checks
	XLA_FLAGS= $(BIN)/python -m pytest -m slow --timeout 3600 $(ARGS)

lint: $(VENV)/.installed-test ## check style, types and the limits of the structure only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python benchmarks/structure.py --check

format: $(VENV)/.installed-test ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## measure the speed of environments, rollouts and training
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(VENV)/.installed ## kill training processes 100 times, and compare what they end with
	$(BIN)/python benchmarks/soak.py --kills 100 $(ARGS)

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@if [ -z "$(PYTHON)$(UV)" ]; then \
		echo "no Python 3.11 or newer that can make virtual environments is on the path;" \
			"name one by make PYTHON=/path/to/python" >&2; exit 1; fi
	$(MAKE_VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing Shoal into $(VENV) (once; it takes a minute or two)"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	@echo "installing Shoal and what its tests need into $(VENV) (once; it takes a minute or two)"
	$(INSTALL) --editable '.[test]'
	$(INSTALL) --no-deps 'jaxmarl>=0.2.0' 'gymnax>=1.0.1'  # gymnax requires jax<0.12, and works with newer ones
	@touch $(VENV)/.installed $@
