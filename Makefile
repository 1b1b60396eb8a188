# `make demo` shows ddlprof at work, `make test` runs the short test suite and `make test-all` everything that can be
# tested on this machine; all set themselves up in .venv.
# Another interpreter: make PYTHON=python3.12 ...

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := ddlprof-runs/demo

.PHONY: demo test test-all check coverage clean

demo: $(INSTALLED)
	@rm -rf $(DEMO)
	$(BIN)/ddlprof run --quiet --out $(DEMO)/one-process examples/digits.py
	OMP_NUM_THREADS=1 $(BIN)/ddlprof run --quiet --out $(DEMO)/two-ranks --nproc-per-node 2 examples/digits.py
	$(BIN)/ddlprof export $(DEMO)/two-ranks --format csv --out $(DEMO)/two-ranks-csv
	$(BIN)/ddlprof report $(DEMO)/two-ranks --instance g5.12xlarge -o - -o $(DEMO)/page.html -o $(DEMO)/run.json
	@printf '\nWhich machine trains GPT-2 large on 300 million tokens within 12 hours?\n\n'
	$(BIN)/ddlprof recommend examples/gpt2-large.json --batch 2,4,8 --samples 300000 --budget 12h --top 5 \
	  -o - -o $(DEMO)/plans.json
	@echo
	@$(BIN)/python -m scripts.demo_answer $(DEMO)

test: $(INSTALLED)
	scripts/test

test-all: $(INSTALLED)
	scripts/test-all

check: $(INSTALLED)
	scripts/check

coverage: $(INSTALLED)
	scripts/coverage

clean:
	rm -rf $(VENV) .frameworks $(DEMO) .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml setup.py ddlprof/collect/_core.c constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "ddlprof needs Python 3.10 or later and $(PYTHON) is %d.%d: try make PYTHON=python3.12" % sys.version_info[:2])'
	@echo "installing ddlprof and what its development needs into $(VENV): two minutes, once"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]' # -qq: errors only
	@touch $@
