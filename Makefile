# From a bare clone: `make demo` or `make test` alone does all the set-up it needs (Python ≥ 3.11 with pip).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-fast lint style docs fuzz faults dist audit clean

demo: $(VENV)/.installed
	$(BIN)/reshift demo

# Style first, for it takes a second. Then mypy beside the tests, its output below theirs; both run to the end and must pass.
test: style
	@out=$$(mktemp); $(BIN)/mypy >"$$out" 2>&1 & types=$$!; \
	trap 'kill $$types 2>/dev/null; rm -f "$$out"' EXIT; \
	$(BIN)/python -m pytest; tests=$$?; \
	wait $$types; checked=$$?; trap 'rm -f "$$out"' EXIT; echo "mypy:"; cat "$$out"; \
	[ $$tests -eq 0 ] && [ $$checked -eq 0 ]

# For every save: without the tests that train, start processes or wait (marker "slow").
test-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow"

lint: style
	$(BIN)/mypy

style: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# The site, strictly: a broken link or a page outside the navigation stops it.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# Minutes: every kind of input, guided by coverage; what falls is in build/fuzz. FUZZ_SECONDS is for each of eleven targets.
FUZZ_SECONDS ?= 20
fuzz: $(VENV)/.installed-dev
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) --out build/fuzz

# Minutes: runs that are killed, meet a full disk, … and are run again.
faults: $(VENV)/.installed-dev
	$(BIN)/python tests/faults/rounds.py --rounds 200 --seed 0

# The wheel, and beside it the list of what it needs.
dist: $(VENV)/.installed-dev
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(BIN)/python tools/sbom.py > dist/reshift.cdx.json

# Needs the internet.
audit: $(VENV)/.installed-dev
	$(PIP) pip-audit
	$(BIN)/python -m pip_audit --skip-editable

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache

# Some systems ship Python without ensurepip; virtualenv brings its own.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "reshift needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv $(VENV); }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[features]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.installed
