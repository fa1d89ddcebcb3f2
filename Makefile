# Everything a fresh machine needs is made here: python3 (3.11+), git and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS := 1

.PHONY: demo test test-data check bench soak clean
.DEFAULT_GOAL := demo

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing polyfed and what it needs into $(VENV): about a minute"
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "installing what the tests need"
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.core  ## install, then train one network under two objectives over 100 clients
	$(BIN)/polyfed run two-digits

test: $(VENV)/.dev  ## all set-up, then all tests
	$(BIN)/python -m pytest -n 2 -m "not soak and not processes"
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not soak and processes" --ignore tests/deploy/test_ray.py tests/deploy
	$(BIN)/python -m pytest -m processes tests/deploy/test_ray.py

test-data: $(VENV)/.dev  ## the tests on whole real data sets, in the folder that POLYFED_DATA names
	@test -d "$$POLYFED_DATA" || { echo "set POLYFED_DATA to the folder that has the data sets" >&2; exit 2; }
	$(BIN)/python -m pytest -m whole_data

check: $(VENV)/.dev  ## lint, format, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.dev  ## the figures of benchmarks/README.md
	$(BIN)/python benchmarks/core.py

soak: $(VENV)/.dev  ## every method on a real Flower deployment on loopback: about ten minutes
	$(BIN)/python -m pytest -m "soak or not soak" tests/deploy

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
