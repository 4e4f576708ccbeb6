# make demo   set everything up in .venv, run the examples on the GPU if there is one
# make test   set everything up, run the whole suite
# make check  lint and types
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: demo test check format clean

# A stamp per state of pyproject.toml: installing again costs seconds, being out of date costs hours.
$(VENV)/.installed: pyproject.toml
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(RUN) examples/demo.py

test: $(VENV)/.installed
	$(RUN) -m pytest --numprocesses $(WORKERS) --dist worksteal

check: $(VENV)/.installed
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m pyright

format: $(VENV)/.installed
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

clean:
	rm -rf $(VENV) build dist *.egg-info
