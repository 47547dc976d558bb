# What a person types. `make` alone lists the targets.
# Everything runs in .venv, which `make setup` fills; another interpreter: make PYTHON=python3.12 ...

PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
JOBS ?= 2
SUITE ?= quick
SETUP = $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup llvm demo test slow gpu gpu-sanitize lint format type asm-check bench gpu-bench accuracy clean

help:
	@echo 'make setup      virtual environment with the package and its tools (keeps an installed torch)'
	@echo 'make demo       machine code for gfx950, run on this CPU: table and picture in demo/'
	@echo 'make test       the unit and assembly tiers (needs LLVM 22: make llvm)'
	@echo 'make slow       the tests that take minutes'
	@echo 'make gpu        the GPU tier, on whatever device Triton finds'
	@echo 'make gpu-sanitize  the Hopper kernels under compute-sanitizer: memory, synchronisation, races'
	@echo 'make lint type  ruff; mypy'
	@echo 'make asm-check  regenerates generated files and fails if one differs'
	@echo 'make bench      speed of the emulator'
	@echo 'make gpu-bench  attention beside its peers on this GPU: SUITE=headline (zyfa bench lists them)'
	@echo 'make accuracy   docs/accuracy.md from captured activations: ACTIVATIONS=FOLDER'
	@echo 'make clean      removes the environment and what was built'

setup: $(SETUP)

$(SETUP): pyproject.toml scripts/setup_venv.sh
	PYTHON='$(PYTHON)' bash scripts/setup_venv.sh '$(VENV)'
	@touch $@

llvm:
	bash scripts/ensure_llvm.sh

demo: $(SETUP)
	$(RUN) -m zyfa_triton demo -o demo

test: $(SETUP) llvm
	$(RUN) -m pytest tests/unit tests/asm --require-tiers unit,asm -n $(JOBS) --dist loadfile

slow: $(SETUP) llvm
	$(RUN) -m pytest tests/unit tests/asm -m slow

gpu: $(SETUP)
	$(RUN) -m pytest tests/gpu --require-tiers gpu

gpu-sanitize: $(SETUP)
	for tool in memcheck synccheck; do \
	  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $$tool --error-exitcode 1 \
	    $(RUN) -m pytest tests/gpu/test_hopper.py tests/gpu/test_hopper_ptx.py \
	    -k 'test_lengths and (127 or 257 or 2100)' || exit 1; \
	done
	$(RUN) -m tests.gpu.races

lint: $(SETUP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

format: $(SETUP)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

type: $(SETUP)
	$(RUN) -m mypy

asm-check: $(SETUP)
	$(RUN) scripts/generate.py
	git diff --exit-code -- docs/env.md

bench: $(SETUP)
	$(RUN) bench/emulator.py

gpu-bench: $(SETUP)
	$(RUN) bench/attention.py --suite '$(SUITE)'

accuracy: $(SETUP)
	@test -n '$(ACTIVATIONS)' || { echo 'usage: make accuracy ACTIVATIONS=FOLDER_WITH_NPZ_FILES'; exit 2; }
	$(RUN) bench/accuracy.py '$(ACTIVATIONS)' -o docs/accuracy.md

clean:
	rm -rf $(VENV) build dist demo *.egg-info .mypy_cache .pytest_cache .ruff_cache
