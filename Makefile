# Everything a newcomer needs: `make run` serves (`make run PORT=8090` elsewhere), `make test` checks.
# Needs only Python 3.11 or later with pip, and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: run setup test live bench lock docs clean

run: setup
	@exec $(BIN)/antiphon serve $(if $(PORT),--port $(PORT))

setup: $(VENV)/.run-stamp

# A stamp instead of asking pip each time: a second start needs no network.
$(VENV)/.run-stamp: requirements/run.txt pyproject.toml
	@echo "antiphon: installing into $(VENV) (once, from the lock file)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --disable-pip-version-check install --progress-bar on --quiet --require-hashes -r requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@$(BIN)/antiphon fetch
	@touch $@

$(VENV)/.dev-stamp: requirements/dev.txt $(VENV)/.run-stamp
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

# The live suites (a real model, time-boxed fuzzing) are `make live`; where nothing may be left out, as in
# continuous integration, they are part of this, but for those that take minutes.
test: $(VENV)/.dev-stamp
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/python tests/clients/install.py
ifeq ($(ANTIPHON_REQUIRE_ALL),1)
	@$(BIN)/python -m pytest -m "not long"
else
	@$(BIN)/python -m pytest -m "not live"
	@echo "left out: the live suites (make live)"
endif

live: $(VENV)/.dev-stamp
	@$(BIN)/python -m pytest -m live

bench: $(VENV)/.dev-stamp
	@$(BIN)/python bench/stream_cpu.py

docs: $(VENV)/.dev-stamp
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/compatibility.py

# The locks are made by pip-tools, kept out of the environment that they describe.
lock:
	$(PYTHON) -m venv .lock-venv && .lock-venv/bin/pip install --quiet pip-tools
	cd requirements && for name in run dev sdk-0 sdk-1 sdk-2 sdk-openai-1 sdk-openai-2 sdk-openai-3; do ../.lock-venv/bin/pip-compile --quiet --generate-hashes --strip-extras --upgrade \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-annotate --no-header -o $$name.txt $$name.in; done
	rm -rf .lock-venv

clean:
	rm -rf $(VENV) .lock-venv .sdk tests/clients/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
