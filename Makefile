# make setup   .venv with what the program needs at run time (no browser, no test tools)
# make run     the bundled demo in the foreground
# make test    everything that must hold before a change is merged
# make bench   the measurements
# make lint    only the quick checks
# make lock    new versions into requirements/*.txt
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8420
CHROMIUM := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

.PHONY: setup run test bench lint lock check-python dev browser

setup: $(BIN)/.run-installed

check-python:
	@test -n "$(PYTHON)" || { echo "No python3 found: install Python 3.11 or newer."; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: call make with PYTHON=/path/to/python3.11."; exit 2; }

# A Python without ensurepip (Debian's python3 without python3-venv) cannot fill a venv itself; a pip from outside can.
$(BIN)/python: | check-python
	@"$(PYTHON)" -m venv $(VENV) >$(VENV).log 2>&1 \
	  || { rm -rf $(VENV); "$(PYTHON)" -m venv --without-pip $(VENV) >>$(VENV).log 2>&1 && "$(PYTHON)" -m pip --python $(BIN)/python install -q pip >>$(VENV).log 2>&1; } \
	  || { cat $(VENV).log; rm -rf $(VENV) $(VENV).log; echo "$(PYTHON) can make no virtual environment: install its venv and pip modules (Debian: apt-get install python3-venv python3-pip)."; exit 2; }
	@rm -f $(VENV).log

$(BIN)/.run-installed: $(BIN)/python requirements/build.txt requirements/run.txt pyproject.toml
	$(BIN)/python -m pip install -qq --require-hashes -r requirements/build.txt -r requirements/run.txt
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e .
	$(BIN)/python -m frontend.static
	@touch $@

run: setup
	@exec $(BIN)/rlvitals demo --port $(PORT)

dev: $(BIN)/.dev-installed

$(BIN)/.dev-installed: $(BIN)/.run-installed requirements/dev.txt
	$(BIN)/python -m pip install -qq --require-hashes -r requirements/dev.txt
	@touch $@

browser:
ifeq ($(CHROMIUM)$(RLVITALS_CHROMIUM),)
	@sh .ci/chromium
endif

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: dev browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/rlvitals rules docs --check
	$(BIN)/rlvitals metrics --docs --check
	$(BIN)/pytest -q -n 2

bench: dev
	$(BIN)/python -m benchmarks

lock: $(BIN)/python
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q $(LOCK) --group build -o requirements/build.txt
	$(BIN)/uv pip compile -q $(LOCK) pyproject.toml -o requirements/run.txt
	$(BIN)/uv pip compile -q $(LOCK) pyproject.toml --group dev -c requirements/run.txt -c requirements/build.txt -o requirements/dev.txt

LOCK := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock" --upgrade
