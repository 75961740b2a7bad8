# `make` alone prints the targets.

CARGO ?= cargo
PROMPT ?= a red heart inside a yellow star on a teal background
SEED ?= 45
IMAGE ?= image.png
FUZZ_RUNS ?= 100000
FUZZ_SEED ?= 1
# The number of the first run; or the number of a single run, or the name of a kind.
FUZZ_FIRST ?= 0
FUZZ_ONLY ?=
# Cargo's profile for the first image and for tests: it compiles faster than `release`.
PROFILE ?= quick
# Cargo's profile for `wheel`.
WHEEL_PROFILE ?= release
# The number of images that `fuzz-signals` starts.
COUNT ?= 500
# The duration and the flags of `soak-live`.
SOAK_SECONDS ?= 600
SOAK_FLAGS ?= --device cpu -s 1
PYTHON ?= python3
# The parent folder of `bin` and `share` for `make install`. Most systems look for programs, completions and man pages in
# ~/.local.
PREFIX ?= $(HOME)/.local
# Sections of scripts/test_cluster.sh.
CLUSTER_TESTS ?=
# The target folder of cargo. Other outputs go there too.
TARGET := $(or $(CARGO_TARGET_DIR),target)
FLUX := "$(TARGET)/release/flux"
# A Python with the packages of scripts/train_tiny/requirements.txt. The default one is created if it is missing.
TRAIN_PYTHON ?= $(TARGET)/train-venv/bin/python
# The model and sizes for `bench-reference`.
MODEL ?= models/klein-4b
SIZES ?= 512,1024,2048
comma := ,
# The tokenizer for the golden files: that of Qwen3, which every downloaded model includes.
TOKENIZER ?= models/klein-4b/tokenizer
CUDA_WHEELS := nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl
CUDA_VENV := .cuda
GPU_BUNDLE := gpu-bundle
# Folders that the tests of the bundle read, relative to the project's root.
BUNDLE_FOLDERS := $(shell cat scripts/gpu_check/folders.txt)
BUNDLE_TARGET := $(TARGET)/bundle
# The layout is that of cargo, PROFILE/build/CRATE, because build.rs derives its cache folder from it.
KERNELS := $(TARGET)/kernels/build/make
# The installed mdBook, or one that is built in the target folder if none is installed.
MDBOOK_VERSION := 0.5.4
MDBOOK := $(or $(shell command -v mdbook 2>/dev/null),$(TARGET)/tools/bin/mdbook)
# A load generator that runs next to `flux bench serve` if available: the installed one, or the one that `make oha` built.
OHA_VERSION := 1.16.0
OHA ?= $(or $(shell command -v oha 2>/dev/null),$(wildcard $(TARGET)/tools/bin/oha))
# The base of links that leave the book: this folder, or its address on a code host.
BOOK_SOURCE ?= file://$(CURDIR)
# The same width as the tables below the sheets in the README.
GALLERY_SHEET := sheet --columns 4 --cell 192 --gap 0 --label none -q

export PROMPT SEED IMAGE
.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: image
image: gpu-setup ## Build in PROFILE (quick), and generate IMAGE from PROMPT with SEED (make image PROMPT="a robot")
	$(CARGO) build --profile $(PROFILE) --locked
	"$(TARGET)/$(PROFILE)/flux" -p "$$PROMPT" -S "$$SEED" -o "$$IMAGE"

.PHONY: build
build: ## Build target/release/flux, or in CARGO_TARGET_DIR if set
	$(CARGO) build --release --locked

.PHONY: cuda-toolkit
cuda-toolkit: ## Download nvcc 13.0 into .cuda (270 MB, no root needed); the next build compiles the kernels
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/pip install --quiet $(foreach wheel,$(CUDA_WHEELS),"$(wheel)==13.0.*")
	@ls $(CUDA_VENV)/lib/python3*/site-packages/nvidia/cu13/bin/nvcc
	@touch build.rs # so that cargo runs it again

# build.rs needs no other crate, so it runs by itself. It compiles the kernels that are not yet in target/kernels, which
# `cargo build` shares.
.PHONY: kernels
kernels: ## Compile all kernels for all GPUs; fails if a kernel does not compile or nvcc is missing
	@mkdir -p $(KERNELS)/out
	rustc --edition 2024 -O -o $(KERNELS)/script build.rs
	@CARGO_MANIFEST_DIR="$(CURDIR)" OUT_DIR="$(abspath $(KERNELS))/out" FLUX_CUDA_ARCHS=all FLUX_REQUIRE_NVCC=1 \
		NUM_JOBS="$${NUM_JOBS:-$$(getconf _NPROCESSORS_ONLN)}" $(KERNELS)/script > $(KERNELS)/log \
		|| { sed -n 's/^cargo::error=/error: /p' $(KERNELS)/log >&2; exit 1; }
	@echo "$$(grep -c include_bytes $(KERNELS)/out/kernels.rs) kernel files compiled into $(TARGET)/kernels"
	@made=$(KERNELS)/out/resources.txt; \
	if [ -n "$(UPDATE_SNAPSHOTS)" ]; then cp "$$made" cuda/resources.txt; \
	elif [ "$$(head -n 1 "$$made")" != "$$(head -n 1 cuda/resources.txt)" ]; then \
		echo "note: cuda/resources.txt is from another compiler, so it is not compared: $$(head -n 1 cuda/resources.txt | cut -d : -f 1)"; \
	else \
		diff cuda/resources.txt "$$made" || { \
			echo "error: the registers or shared memory of kernels differ from cuda/resources.txt; to update the file, run: UPDATE_SNAPSHOTS=1 make kernels" >&2; \
			exit 1; \
		}; \
	fi

# On a machine with an NVIDIA driver but without nvcc, downloads nvcc and cuBLASLt into .cuda. If that fails, the program is
# built for the CPU only.
.PHONY: gpu-setup
gpu-setup:
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU && [ ! -e .cuda ] && [ ! -e .venv ] \
		&& ! command -v nvcc >/dev/null && [ ! -e /usr/local/cuda/bin/nvcc ] && [ -z "$$CUDA_HOME$$CUDA_PATH$$NVCC" ]; then \
		{ $(MAKE) --no-print-directory cuda-toolkit && .cuda/bin/pip install --quiet "nvidia-cublas==13.0.*"; } \
		|| { rm -rf .cuda; echo "note: the CUDA toolkit could not be installed, so flux runs on the CPU; check that python3-venv is installed" >&2; }; \
	fi

.PHONY: gallery
gallery: build ## Regenerate docs/gallery.png and docs/edits.png on the CPU from the lists next to them, the first prompt with SEED
	rm -rf "$(TARGET)/gallery" "$(TARGET)/edits"
	FLUX_BIN=$(FLUX) scripts/generate_batch.sh docs/gallery.txt "$(TARGET)/gallery" -S "$$SEED" --device cpu -q
	$(FLUX) $(GALLERY_SHEET) -o docs/gallery.png "$(TARGET)"/gallery/*.png
	FLUX_BIN=$(FLUX) scripts/draw_edits.sh docs/edits.txt "$(TARGET)/edits" --device cpu -q
	$(FLUX) $(GALLERY_SHEET) -o docs/edits.png "$(TARGET)"/edits/before-*.png "$(TARGET)"/edits/after-*.png

$(TARGET)/tools/bin/mdbook:
	$(CARGO) install --locked mdbook --version $(MDBOOK_VERSION) --no-default-features --features search --root "$(TARGET)/tools"

.PHONY: mdbook
mdbook: $(MDBOOK)

# mdBook treats every link to a Markdown file as a link to a page of the book, also outside docs/.
.PHONY: book
book: $(MDBOOK) ## Build docs/ as a book in target/book; builds mdBook first if it is missing
	"$(MDBOOK)" build --dest-dir "$(TARGET)/book"
	@for page in "$(TARGET)"/book/*.html; do \
		sed -e 's|href="\.\./\([^"]*\)\.html|href="$(BOOK_SOURCE)/\1.md|g' -e 's|href="\.\./|href="$(BOOK_SOURCE)/|g' "$$page" > "$$page.new" \
			&& mv "$$page.new" "$$page" || exit 1; \
	done
	@echo "$(TARGET)/book/index.html"

.PHONY: test
test: ## Run all Rust tests; skips those that need a missing GPU, AMX or full-size model
	$(CARGO) test --profile $(PROFILE) --locked
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then \
		$(CARGO) test --profile $(PROFILE) --locked --test gpu; \
	fi

.PHONY: ci
ci: ## Run the checks of CI: format, clippy, all tests; ALL=1: with overflow checks, and all kernels
	.ci/run $(if $(ALL),--all)

.PHONY: fuzz
fuzz: ## Run the program FUZZ_RUNS times with hostile files, prompts and arguments from FUZZ_SEED
	FLUX_FUZZ_RUNS="$(FUZZ_RUNS)" FLUX_FUZZ_SEED="$(FUZZ_SEED)" FLUX_FUZZ_FIRST="$(FUZZ_FIRST)" FLUX_FUZZ_ONLY="$(FUZZ_ONLY)" \
		$(CARGO) test --profile $(PROFILE) --locked --test fuzz -- --nocapture

.PHONY: fuzz-signals
fuzz-signals: build ## Start COUNT images, end each by signals at random times from SEED, and check the files left behind
	scripts/fuzz_signals.sh $(FLUX) "$(COUNT)" "$$SEED"

.PHONY: oha
oha: ## Build oha, a load generator, for `test-server` and `gpu-bundle`
	$(CARGO) install --locked oha --version $(OHA_VERSION) --no-default-features --features rustls --root "$(TARGET)/tools"

.PHONY: test-server
test-server: build ## Run clients and a browser against `flux serve`; installs the clients in target/
	FLUX_BIN=$(FLUX) CLIENTS="$(TARGET)/clients" OHA="$(OHA)" scripts/test_server.sh
	FLUX_BIN=$(FLUX) CLIENTS="$(TARGET)/clients" scripts/test_page.sh "$(TARGET)/page"

.PHONY: soak-live
soak-live: build ## Run frames through `flux live` for SOAK_SECONDS; checks order, equal images for equal frames, and memory
	$(PYTHON) scripts/soak_live.py "$(SOAK_SECONDS)" $(FLUX) $(SOAK_FLAGS)

.PHONY: test-cluster
test-cluster: build ## Run workers on RabbitMQ, S3 and Slurm, and kill them (CLUSTER_TESTS=short); installs these with apt-get if it can
	FLUX_BIN=$(FLUX) CLUSTER="$(TARGET)/cluster" scripts/test_cluster.sh $(CLUSTER_TESTS)

.PHONY: test-gpu
test-gpu: gpu-setup ## Run the tests that need a GPU; fails without one
	FLUX_REQUIRE_GPU=1 $(CARGO) test --profile $(PROFILE) --locked --test gpu

.PHONY: bench
bench: gpu-setup build ## Measure the stages of an image and every op on the GPU (make bench BENCH="linear --size 512")
	$(FLUX) bench --device cuda $(BENCH)

.PHONY: bench-reference
bench-reference: gpu-setup build ## Compare the speed of MODEL with the reference; needs the packages of scripts/requirements-reference.txt
	$(FLUX) bench stages/ -d "$(MODEL)" --device cuda --steps 4 --size $(SIZES) --json
	$(PYTHON) scripts/bench_reference.py "$(MODEL)" --steps 4 --size $(subst $(comma), ,$(SIZES))

# The path of an executable that cargo reported: KIND, NAME.
executable = $$(sed -n 's/.*"kind":\["$(1)"\].*"name":"$(2)".*"executable":"\([^"]*\)".*/\1/p' $(BUNDLE_TARGET)/built.json)

# The programs are built without the default model, which the project's root contains, and in their own target folder, so
# that target/release/flux does not change; compiled kernels are shared. The wheels of the reference are added if pip can
# download them. FLUX_CUDA_ARCHS=75,90a builds the kernels for one GPU and for fp16 only, which is faster.
gpu-bundle: export FLUX_CUDA_ARCHS ?= all
.PHONY: gpu-bundle
gpu-bundle: ## Collect the files for scripts/gpu_check on a machine without Rust (STANDALONE=1: also without this folder; BASE=PROGRAM: add a program to compare; OHA=PROGRAM: add oha)
	mkdir -p $(TARGET)/kernels $(BUNDLE_TARGET)
	ln -sfn ../kernels $(BUNDLE_TARGET)/kernels
	cksum $(FLUX) > $(BUNDLE_TARGET)/before 2>/dev/null || true
	CARGO_TARGET_DIR=$(BUNDLE_TARGET) $(CARGO) test --release --locked -p flux -p flux-cli --no-default-features --features flux-cli/server \
		--no-run --lib --test gpu --test cpu_gemm --message-format json > $(BUNDLE_TARGET)/built.json
	rm -rf $(GPU_BUNDLE) $(BUNDLE_TARGET)/bin
	mkdir -p $(GPU_BUNDLE) $(BUNDLE_TARGET)/bin
	strip -o $(BUNDLE_TARGET)/bin/flux "$(call executable,bin,flux)"
	strip -o $(BUNDLE_TARGET)/bin/units "$(call executable,lib,flux)"
	strip -o $(BUNDLE_TARGET)/bin/gpu "$(call executable,test,gpu)"
	strip -o $(BUNDLE_TARGET)/bin/cpu_gemm "$(call executable,test,cpu_gemm)"
	@if [ -n "$(BASE)" ]; then strip -o $(BUNDLE_TARGET)/bin/base "$(BASE)"; fi
	@if [ -n "$(OHA)" ]; then strip -o $(BUNDLE_TARGET)/bin/oha "$(OHA)"; fi
	XZ_OPT=-9 tar -C $(BUNDLE_TARGET)/bin -cJf $(GPU_BUNDLE)/bin.tar.xz .
	git describe --always --dirty > $(GPU_BUNDLE)/COMMIT
	tar --exclude=__pycache__ -cf - scripts/gpu_check scripts/make_full_size_model.py scripts/random_models \
		scripts/bench_reference.py scripts/bench_reference_flux3.py scripts/bench_nccl.py scripts/soak_server.py \
		scripts/soak_live.py scripts/soaking.py | tar -xf - -C $(GPU_BUNDLE)
	@$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --dest $(GPU_BUNDLE)/wheels importlib_metadata zipp \
		"$$(grep '^diffusers==' scripts/requirements-reference.txt)" || echo "note: the wheels of the reference could not be downloaded, so it is not measured" >&2
	@if [ -n "$(STANDALONE)" ]; then tar -cf - $(BUNDLE_FOLDERS) | tar -xf - -C $(GPU_BUNDLE); fi
	@cksum $(FLUX) 2>/dev/null | cmp - $(BUNDLE_TARGET)/before \
		|| { echo "error: the build of the bundle has changed" $(FLUX) >&2; exit 1; }
	@du -sh $(GPU_BUNDLE)

.PHONY: lint
lint: ## Check format, clippy with warnings denied, layering, and shell scripts if shellcheck is installed
	$(CARGO) fmt --check
	$(CARGO) clippy --profile $(PROFILE) --locked --all-targets -- -D warnings
	$(CARGO) test --profile $(PROFILE) --locked --test sources layering::
	@if command -v shellcheck >/dev/null; then shellcheck -x scripts/*.sh scripts/*/*.sh .ci/run; else echo "skipped: shellcheck is not installed"; fi

# The advisory database is downloaded each time. If that fails, advisories are not checked.
.PHONY: deny
deny: ## Check licences, origins and versions of the dependencies with cargo-deny, and advisories if they can be downloaded
	$(CARGO) deny --offline --locked check --hide-inclusion-graph licenses bans sources
	@if log=$$($(CARGO) deny fetch db 2>&1); then \
		$(CARGO) deny --offline --locked check --hide-inclusion-graph advisories; \
	else \
		echo "skipped: the advisory database could not be downloaded: $$(echo "$$log" | grep . | tail -n 1)"; \
	fi

.PHONY: compare
compare: build ## Generate one image on the CPU and on the GPU, and print the differences
	scripts/compare_cpu_gpu.sh -p "$$PROMPT" -S "$$SEED"

.PHONY: golden
golden: ## Regenerate tests/golden, tests/formats and tests/input from the reference; needs the packages of scripts/requirements-reference.txt and TOKENIZER
	rm -rf "$(TARGET)/golden-models"
	for preset in tiny sharded base uneven kv; do \
		$(CARGO) run --profile $(PROFILE) --locked --example make_random_model -- $$preset "$(TARGET)/golden-models/$$preset" || exit 1; \
	done
	$(PYTHON) scripts/dump_reference.py "$(TARGET)/golden-models" $(TOKENIZER) tests/golden
	$(PYTHON) scripts/dump_encoder.py "$(TARGET)/golden-models" tests/golden
	$(PYTHON) scripts/dump_reference_editing.py "$(TARGET)/golden-models" tests/golden/editing
	$(PYTHON) scripts/draw_by_reference.py models/tiny tests/golden/default-model
	$(PYTHON) scripts/dump_reference_sampling.py "$(TARGET)/golden-models" tests/golden
	$(PYTHON) scripts/make_full_size_model.py flux3-tiny tests/golden/flux3/model --text-encoder-shards 1
	$(PYTHON) scripts/make_full_size_model.py flux3-tiny "$(TARGET)/golden-models/flux3-base" --base --text-encoder-shards 1
	$(PYTHON) scripts/dump_reference_flux3.py tests/golden/flux3/model "$(TARGET)/golden-models/flux3-base" tests/golden/flux3
	$(PYTHON) scripts/dump_formats.py tests/formats
	$(PYTHON) scripts/dump_upscalers.py tests/upscaler
	$(PYTHON) scripts/dump_input_reference.py tests/input

$(TARGET)/train-venv/bin/python: scripts/train_tiny/requirements.txt
	$(PYTHON) -m venv --clear $(TARGET)/train-venv
	$(TARGET)/train-venv/bin/pip install --quiet -r $<
	touch $@

.PHONY: test-training
test-training: build $(TRAIN_PYTHON) ## Train a toy model on the CPU, all phases, then generate and edit with it; needs npm and Python 3.11 or newer
	rm -rf "$(TARGET)/train-toy"
	$(TRAIN_PYTHON) scripts/train_tiny all --toy --work "$(TARGET)/train-toy"
	cp -r "$(TARGET)/train-toy/model" "$(TARGET)/train-toy/shipped"
	$(TRAIN_PYTHON) scripts/train_tiny start refine export --toy --shipped "$(TARGET)/train-toy/shipped" --work "$(TARGET)/train-toy"
	$(FLUX) -d "$(TARGET)/train-toy/model" -p "$$PROMPT" -S "$$SEED" --device cpu -o "$(TARGET)/train-toy/image.png"
	$(FLUX) -d "$(TARGET)/train-toy/model" -i "$(TARGET)/train-toy/image.png" -p "make it blue" -S "$$SEED" --device cpu -o "$(TARGET)/train-toy/edited.png"

.PHONY: install
install: build ## Install flux, completions and man pages into PREFIX (~/.local), below DESTDIR if set
	scripts/dist/install.sh $(FLUX) "$(DESTDIR)$(PREFIX)"
	@echo "installed $(DESTDIR)$(PREFIX)/bin/flux"

.PHONY: uninstall
uninstall: ## Remove what `make install` installed into PREFIX
	scripts/dist/install.sh --remove "$(DESTDIR)$(PREFIX)"

# Elsewhere a build is for all GPUs anyway, and another value of the variable would build again.
ifneq ($(shell command -v nvidia-smi 2>/dev/null),)
dist: export FLUX_CUDA_ARCHS = all
endif
.PHONY: dist
dist: build ## Create an archive and a Debian package with completions, man pages and licences in target/dist
	scripts/dist/make_dist.sh $(FLUX) "$(TARGET)/dist"

.PHONY: test-dist
test-dist: dist ## Install the results of `make dist` in clean roots, also by the Containerfile, and generate images there
	scripts/check_dist.sh "$(TARGET)/dist"

WHEEL_VENV := $(TARGET)/wheel-venv
WHEELS := $(TARGET)/wheels
MATURIN_VERSION := 1.16.0

$(WHEEL_VENV)/bin/maturin:
	$(PYTHON) -m venv --clear $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/pip install --quiet --disable-pip-version-check "maturin==$(MATURIN_VERSION)"

# After `make build`, only the extension itself is compiled and linked: its features are those of the program.
.PHONY: wheel
wheel: gpu-setup $(WHEEL_VENV)/bin/maturin ## Build the Python package as a wheel in target/wheels
	rm -rf "$(WHEELS)"
	$(WHEEL_VENV)/bin/maturin build --quiet --profile $(WHEEL_PROFILE) --locked --manifest-path crates/flux-python/Cargo.toml --out "$(WHEELS)"
	@ls "$(WHEELS)"/*.whl

.PHONY: test-python
test-python: wheel ## Install the wheel in a new virtual environment in target/python, and test it
	scripts/test_python.sh "$(WHEELS)"/*.whl

.PHONY: clean
clean: ## Remove build outputs; keeps models and .cuda
	$(CARGO) clean
	rm -rf $(GPU_BUNDLE)
