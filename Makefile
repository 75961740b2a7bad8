# `make` alone prints the targets.

CARGO ?= cargo
PROMPT ?= a red heart inside a yellow star on a teal background
SEED ?= 45
PICTURE ?= picture.png
PYTHON ?= python3
# The tokenizer of the golden files: Qwen3's, which every downloaded model has.
TOKENIZER ?= models/klein-4b/tokenizer

export PROMPT SEED PICTURE
.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: picture
picture: gpu-setup build ## Build, and draw PROMPT with SEED into PICTURE (make picture PROMPT="a robot")
	target/release/flux -p "$$PROMPT" -S "$$SEED" -o "$$PICTURE"

.PHONY: build
build: ## Build target/release/flux
	$(CARGO) build --release --locked

# A machine with an NVIDIA driver but without nvcc gets nvcc and cuBLASLt into .cuda. When that fails, the CPU serves.
.PHONY: gpu-setup
gpu-setup:
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU && [ ! -e .cuda ] && [ ! -e .venv ] \
		&& ! command -v nvcc >/dev/null && [ ! -e /usr/local/cuda/bin/nvcc ] && [ -z "$$CUDA_HOME$$CUDA_PATH$$NVCC" ]; then \
		{ $(MAKE) --no-print-directory cuda-toolkit && .cuda/bin/pip install --quiet "nvidia-cublas==13.0.*"; } \
		|| { rm -rf .cuda; echo "note: no CUDA toolkit, so the CPU draws; is python3-venv installed?" >&2; }; \
	fi

.PHONY: test
test: ## Run all tests; needs no GPU and no download (those that need a GPU say that they are skipped)
	$(CARGO) test --release --locked

.PHONY: test-gpu
test-gpu: gpu-setup ## Run the tests of the CUDA backend; fails where there is no GPU
	FLUX_REQUIRE_GPU=1 $(CARGO) test --release --locked --test gpu

.PHONY: bench
bench: gpu-setup ## Measure every op on the GPU
	FLUX_REQUIRE_GPU=1 $(CARGO) bench --locked --bench ops

.PHONY: lint
lint: ## Format, clippy with warnings denied, layering, shell scripts where shellcheck is installed
	$(CARGO) fmt --check
	$(CARGO) clippy --release --locked --all-targets -- -D warnings
	$(CARGO) test --release --locked --test layering
	@if command -v shellcheck >/dev/null; then shellcheck -x scripts/*.sh .ci/run; else echo "skipped: no shellcheck"; fi

.PHONY: compare
compare: build ## Draw one picture on the CPU and on the GPU and say how far they are apart
	scripts/compare_cpu_gpu.sh -p "$$PROMPT" -S "$$SEED"

.PHONY: golden
golden: ## Make tests/golden anew from the reference; needs the packages of scripts/requirements-reference.txt and TOKENIZER
	rm -rf target/golden-models
	for preset in tiny sharded base uneven; do \
		$(CARGO) run --release --locked --example make_random_model -- $$preset target/golden-models/$$preset || exit 1; \
	done
	$(PYTHON) scripts/dump_reference.py target/golden-models $(TOKENIZER) tests/golden

.PHONY: install
install: ## Install flux into ~/.cargo/bin
	$(CARGO) install --locked --path .

.PHONY: clean
clean: ## Remove what was built; models and .cuda stay
	$(CARGO) clean
	rm -rf gpu-bundle

-include Makefile.cuda.inc
