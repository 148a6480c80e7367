# Every target makes .venv and installs what it needs first; all are safe to repeat.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help app notebooks lessons html check test lint benchmark clean

help:
	@echo "make app        the demo in your browser; ARGS=\"--port 7861\" goes to app.py"
	@echo "make notebooks  the lessons in JupyterLab"
	@echo "make lessons    both notebooks of each lesson from its source; ARGS=\"03 --execute\" runs one anew"
	@echo "make html       the lessons as web pages, in site/"
	@echo "make check      the unit tests, in a minute"
	@echo "make test       all tests: also slow ones, the page in a browser, the lessons"
	@echo "make lint       style, types, and the order of imports"
	@echo "make benchmark  how fast it is here; ARGS=\"--only pooling\" for one section"

app: $(VENV)/installed-app
	$(BIN)/python app.py $(ARGS)

notebooks: $(VENV)/installed-notebooks
	$(BIN)/jupyter lab notebooks $(ARGS)

lessons: $(VENV)/installed-notebooks
	$(BIN)/python scripts/make_notebooks.py $(ARGS)

html: $(VENV)/installed-notebooks
	$(BIN)/python scripts/make_site.py --out site

check: $(VENV)/installed-check
	$(BIN)/python -m pytest -m "not slow and not browser and not notebook" tests vse_demo $(ARGS)

test: $(VENV)/installed-test
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

benchmark: $(VENV)/installed-benchmark
	$(BIN)/python -m benchmarks.run $(ARGS)

clean:
	rm -rf $(VENV) build site *.egg-info

# One stamp per set of extras: a changed pyproject.toml or constraints.txt installs again.
$(VENV)/installed-%: pyproject.toml constraints.txt | $(VENV)
	$(BIN)/pip install --constraint constraints.txt --editable ".[$*]"
	touch $@

$(VENV):
	$(PYTHON) -m venv $(VENV)
