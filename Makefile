# Everything a fresh machine needs is made here: python3 (3.11+), git and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS := 1

.PHONY: demo test test-data test-lowest check docs bench soak nginx browser release-check clean
.DEFAULT_GOAL := demo

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing polyfed and what it needs into $(VENV): about a minute"
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "installing polyfed and what its tests need into $(VENV): one or two minutes"
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(VENV)/.core $@

$(VENV)/.release: $(VENV)/.core
	@echo "installing what builds and checks a release"
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[release]'
	touch $@

$(VENV)-lowest/.dev: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(VENV)-lowest
	@echo "installing the lowest versions that are allowed into $(VENV)-lowest"
	$(VENV)-lowest/bin/pip install -q --disable-pip-version-check -c constraints-lowest.txt -e '.[dev]'
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

test-lowest: $(VENV)-lowest/.dev  ## the tests on the lowest versions that pyproject.toml allows; Python 3.11
	$(VENV)-lowest/bin/python -m pytest -n 2 -m "not soak and not processes"

check: $(VENV)/.dev  ## lint, format, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/.dev  ## the site, into docs/_build/html; a warning is an error
	rm -rf docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -E -d docs/_build/doctrees -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

bench: $(VENV)/.dev  ## the figures of benchmarks/README.md
	$(BIN)/python benchmarks/core.py

soak: $(VENV)/.dev  ## 200,000 cases of fuzzing, 300 kills, every method on a real deployment: an hour on two processors
	$(BIN)/python -m pytest -n auto -m soak tests --ignore tests/deploy
	$(BIN)/python -m pytest -m "soak or not soak" tests/deploy

nginx:  ## Debian's nginx, openssl and ssh-keygen, for the tests of a deployment behind a proxy; needs root
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx || \
	    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends nginx; }
	@command -v openssl >/dev/null && command -v ssh-keygen >/dev/null || \
	    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
	      openssl openssh-client; }

browser:  ## Debian's chromium, for the tests that open the pages in a browser; needs root
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
	      chromium fonts-liberation; }

release-check: $(VENV)/.release  ## build, look into and install what would be published: about ten minutes
	$(BIN)/python tools/release_check.py

clean:
	rm -rf $(VENV) $(VENV)-lowest build dist docs/_build docs/catalogue docs/tour.ipynb .pytest_cache .mypy_cache .ruff_cache .hypothesis
