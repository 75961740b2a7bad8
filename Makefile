# `make` alone prints the targets.

CARGO ?= cargo
PROMPT ?= a red heart inside a yellow star on a teal background
SEED ?= 45
IMAGE ?= image.png
FUZZ_RUNS ?= 100000
FUZZ_SEED ?= 1
# The number of the first run; or of a single one, or the name of a kind.
FUZZ_FIRST ?= 0
FUZZ_ONLY ?=
# How many images `fuzz-signals` begins.
COUNT ?= 500
# How long frames go through `flux live`, and how they do.
SOAK_SECONDS ?= 600
SOAK_FLAGS ?= --device cpu -s 1
PYTHON ?= python3
# What `bin` and `share` of `make install` are in. Most systems look for programs, completions and pages in ~/.local.
PREFIX ?= $(HOME)/.local
# Sections of scripts/test_cluster.sh.
CLUSTER_TESTS ?=
# Where cargo builds; what is made here beside it goes there too.
TARGET := $(or $(CARGO_TARGET_DIR),target)
FLUX := "$(TARGET)/release/flux"
# A Python with the packages of scripts/train_tiny/requirements.txt; this one is made when it is missing.
TRAIN_PYTHON ?= $(TARGET)/train-venv/bin/python
# What `bench-reference` measures.
MODEL ?= models/klein-4b
SIZES ?= 512,1024,2048
comma := ,
# The tokenizer of the golden files: Qwen3's, which every downloaded model has.
TOKENIZER ?= models/klein-4b/tokenizer
CUDA_WHEELS := nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl
CUDA_VENV := .cuda
GPU_BUNDLE := gpu-bundle
# What the tests of the bundle read, from the project's root.
BUNDLE_FOLDERS := $(shell cat scripts/gpu_check/folders.txt)
BUNDLE_TARGET := $(TARGET)/bundle
# Laid out as cargo does it, PROFILE/build/CRATE, for build.rs looks for its cache from there.
KERNELS := $(TARGET)/kernels/build/make
# The mdBook of this machine, or one that is built below the target folder when it is missing.
MDBOOK_VERSION := 0.5.4
MDBOOK := $(or $(shell command -v mdbook 2>/dev/null),$(TARGET)/tools/bin/mdbook)
# A generator of load that is beside `flux bench serve` where it is there: that of this machine, or what `make oha` built.
OHA_VERSION := 1.16.0
OHA ?= $(or $(shell command -v oha 2>/dev/null),$(wildcard $(TARGET)/tools/bin/oha))
# Where links lead that leave the book: this folder, or its address on a code host.
BOOK_SOURCE ?= file://$(CURDIR)
# As wide as the tables below them in the README.
GALLERY_SHEET := sheet --columns 4 --cell 192 --gap 0 --label none -q

export PROMPT SEED IMAGE
.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: image
image: gpu-setup build ## Build, and draw PROMPT with SEED into IMAGE (make image PROMPT="a robot")
	$(FLUX) -p "$$PROMPT" -S "$$SEED" -o "$$IMAGE"

.PHONY: build
build: ## Build target/release/flux, or below CARGO_TARGET_DIR where that is set
	$(CARGO) build --release --locked

.PHONY: cuda-toolkit
cuda-toolkit: ## Fetch nvcc 13.0 into .cuda (270 MB, no root needed); the next build compiles the kernels
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/pip install --quiet $(foreach wheel,$(CUDA_WHEELS),"$(wheel)==13.0.*")
	@ls $(CUDA_VENV)/lib/python3*/site-packages/nvidia/cu13/bin/nvcc
	@touch build.rs # so that cargo runs it again

# build.rs needs no other crate, so it is run by itself. It compiles the kernels that are not in target/kernels yet, where
# `cargo build` finds them too.
.PHONY: kernels
kernels: ## Compile all kernels for all GPUs; fails where one does not compile or nvcc is missing
	@mkdir -p $(KERNELS)/out
	rustc --edition 2024 -O -o $(KERNELS)/script build.rs
	@CARGO_MANIFEST_DIR="$(CURDIR)" OUT_DIR="$(abspath $(KERNELS))/out" FLUX_CUDA_ARCHS= FLUX_REQUIRE_NVCC=1 \
		NUM_JOBS="$${NUM_JOBS:-$$(getconf _NPROCESSORS_ONLN)}" $(KERNELS)/script > $(KERNELS)/log \
		|| { sed -n 's/^cargo::error=/error: /p' $(KERNELS)/log >&2; exit 1; }
	@echo "$$(grep -c include_bytes $(KERNELS)/out/kernels.rs) kernel files are compiled, in $(TARGET)/kernels"
	@made=$(KERNELS)/out/resources.txt; \
	if [ -n "$(UPDATE_SNAPSHOTS)" ]; then cp "$$made" cuda/resources.txt; \
	elif [ "$$(head -n 1 "$$made")" != "$$(head -n 1 cuda/resources.txt)" ]; then \
		echo "cuda/resources.txt is of another compiler, and not compared: $$(head -n 1 cuda/resources.txt | cut -d : -f 1)"; \
	else \
		diff cuda/resources.txt "$$made" || { \
			echo "error: kernels take other registers or shared memory than cuda/resources.txt says; if that is meant: UPDATE_SNAPSHOTS=1 make kernels" >&2; \
			exit 1; \
		}; \
	fi

# On a machine with an NVIDIA driver but without nvcc, fetches nvcc and cuBLASLt into .cuda. When that fails, the program is
# built for the CPU alone.
.PHONY: gpu-setup
gpu-setup:
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU && [ ! -e .cuda ] && [ ! -e .venv ] \
		&& ! command -v nvcc >/dev/null && [ ! -e /usr/local/cuda/bin/nvcc ] && [ -z "$$CUDA_HOME$$CUDA_PATH$$NVCC" ]; then \
		{ $(MAKE) --no-print-directory cuda-toolkit && .cuda/bin/pip install --quiet "nvidia-cublas==13.0.*"; } \
		|| { rm -rf .cuda; echo "note: no CUDA toolkit, so the CPU draws; is python3-venv installed?" >&2; }; \
	fi

.PHONY: gallery
gallery: build ## Draw docs/gallery.png and docs/edits.png anew, on the CPU: the lists beside them, the first prompt with SEED
	rm -rf "$(TARGET)/gallery" "$(TARGET)/edits"
	FLUX_BIN=$(FLUX) scripts/generate_batch.sh docs/gallery.txt "$(TARGET)/gallery" -S "$$SEED" --device cpu -q
	$(FLUX) $(GALLERY_SHEET) -o docs/gallery.png "$(TARGET)"/gallery/*.png
	FLUX_BIN=$(FLUX) scripts/draw_edits.sh docs/edits.txt "$(TARGET)/edits" --device cpu -q
	$(FLUX) $(GALLERY_SHEET) -o docs/edits.png "$(TARGET)"/edits/before-*.png "$(TARGET)"/edits/after-*.png

$(TARGET)/tools/bin/mdbook:
	$(CARGO) install --locked mdbook --version $(MDBOOK_VERSION) --no-default-features --features search --root "$(TARGET)/tools"

.PHONY: mdbook
mdbook: $(MDBOOK)

# mdBook takes every link to a Markdown file for one to a page of the book, also where it leads out of docs/.
.PHONY: book
book: $(MDBOOK) ## Build the pages of docs/ as a book, below target/book; builds mdBook first where it is missing
	"$(MDBOOK)" build --dest-dir "$(TARGET)/book"
	@for page in "$(TARGET)"/book/*.html; do \
		sed -e 's|href="\.\./\([^"]*\)\.html|href="$(BOOK_SOURCE)/\1.md|g' -e 's|href="\.\./|href="$(BOOK_SOURCE)/|g' "$$page" > "$$page.new" \
			&& mv "$$page.new" "$$page" || exit 1; \
	done
	@echo "$(TARGET)/book/index.html"

.PHONY: test
test: ## Run all Rust tests, with those on a GPU where there is one; those that need AMX or a full-size model pass without it
	$(CARGO) test --release --locked
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then \
		$(CARGO) test --release --locked --test gpu; \
	fi

.PHONY: ci
ci: ## Run what CI runs: format, clippy, all tests; ALL=1: in two profiles, and all kernels
	.ci/run $(if $(ALL),--all)

.PHONY: fuzz
fuzz: ## Run the program FUZZ_RUNS times with hostile files, prompts and arguments, which FUZZ_SEED chooses
	FLUX_FUZZ_RUNS="$(FUZZ_RUNS)" FLUX_FUZZ_SEED="$(FUZZ_SEED)" FLUX_FUZZ_FIRST="$(FUZZ_FIRST)" FLUX_FUZZ_ONLY="$(FUZZ_ONLY)" \
		$(CARGO) test --release --locked --test fuzz -- --nocapture

.PHONY: fuzz-signals
fuzz-signals: build ## Begin COUNT images, end each by signals at moments that SEED chooses, and look at what is left
	scripts/fuzz_signals.sh $(FLUX) "$(COUNT)" "$$SEED"

.PHONY: oha
oha: ## Build oha, a generator of load, for `test-server` and `gpu-bundle`
	$(CARGO) install --locked oha --version $(OHA_VERSION) --no-default-features --features rustls --root "$(TARGET)/tools"

.PHONY: test-server
test-server: build ## Run clients and a browser against `flux serve`; installs the clients below target/
	FLUX_BIN=$(FLUX) CLIENTS="$(TARGET)/clients" OHA="$(OHA)" scripts/test_server.sh
	FLUX_BIN=$(FLUX) CLIENTS="$(TARGET)/clients" scripts/test_page.sh "$(TARGET)/page"

.PHONY: soak-live
soak-live: build ## Frames through `flux live` for SOAK_SECONDS: each in its order, the same image for the same frame, and nothing grows
	$(PYTHON) scripts/soak_live.py "$(SOAK_SECONDS)" $(FLUX) $(SOAK_FLAGS)

.PHONY: test-cluster
test-cluster: build ## Run workers on RabbitMQ, S3 and Slurm, and kill them (CLUSTER_TESTS=short); installs these where apt-get may
	FLUX_BIN=$(FLUX) CLUSTER="$(TARGET)/cluster" scripts/test_cluster.sh $(CLUSTER_TESTS)

.PHONY: test-gpu
test-gpu: gpu-setup ## Run the tests that need a GPU; fails where there is none
	FLUX_REQUIRE_GPU=1 $(CARGO) test --release --locked --test gpu

.PHONY: bench
bench: gpu-setup build ## Measure the stages of an image and every op on the GPU (make bench BENCH="linear --size 512")
	$(FLUX) bench --device cuda $(BENCH)

.PHONY: bench-reference
bench-reference: gpu-setup build ## Measure the stages of MODEL beside those of the reference; needs the packages of scripts/requirements-reference.txt
	$(FLUX) bench stages/ -d "$(MODEL)" --device cuda --steps 4 --size $(SIZES) --json
	$(PYTHON) scripts/bench_reference.py "$(MODEL)" --steps 4 --size $(subst $(comma), ,$(SIZES))

# What cargo said it built: KIND, NAME.
executable = $$(sed -n 's/.*"kind":\["$(1)"\].*"name":"$(2)".*"executable":"\([^"]*\)".*/\1/p' $(BUNDLE_TARGET)/built.json)

# The programs are built without the default model, which the project's root has, and in a target folder of their own, so
# that target/release/flux stays as it is; compiled kernels are shared. The reference's wheels are added where pip can fetch them.
# FLUX_CUDA_ARCHS=75,90a builds the kernels for one GPU and for fp16 only, which is quicker.
.PHONY: gpu-bundle
gpu-bundle: ## Gather what scripts/gpu_check needs on a machine without Rust (STANDALONE=1: and without this folder; BASE=PROGRAM: with a program to compare; OHA=PROGRAM: with oha)
	mkdir -p $(TARGET)/kernels $(BUNDLE_TARGET)
	ln -sfn ../kernels $(BUNDLE_TARGET)/kernels
	cksum $(FLUX) > $(BUNDLE_TARGET)/before 2>/dev/null || true
	CARGO_TARGET_DIR=$(BUNDLE_TARGET) $(CARGO) test --release --locked --no-default-features --features server --no-run \
		--lib --test gpu --test cpu_gemm --message-format json > $(BUNDLE_TARGET)/built.json
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
		"$$(grep '^diffusers==' scripts/requirements-reference.txt)" || echo "note: no wheels of the reference, so it is not measured" >&2
	@if [ -n "$(STANDALONE)" ]; then tar -cf - $(BUNDLE_FOLDERS) | tar -xf - -C $(GPU_BUNDLE); fi
	@cksum $(FLUX) 2>/dev/null | cmp - $(BUNDLE_TARGET)/before \
		|| { echo "error: the bundle's build has changed" $(FLUX) >&2; exit 1; }
	@du -sh $(GPU_BUNDLE)

.PHONY: lint
lint: ## Format, clippy with warnings denied, layering, shell scripts where shellcheck is installed
	$(CARGO) fmt --check
	$(CARGO) clippy --release --locked --all-targets -- -D warnings
	$(CARGO) test --release --locked --test sources layering::
	@if command -v shellcheck >/dev/null; then shellcheck -x scripts/*.sh scripts/*/*.sh .ci/run; else echo "skipped: no shellcheck"; fi

# The database of advisories is fetched anew. Where that fails, they are not looked at.
.PHONY: deny
deny: ## Check licences, origins and versions of the dependencies with cargo-deny, and advisories where they can be fetched
	$(CARGO) deny --offline --locked check --hide-inclusion-graph licenses bans sources
	@if log=$$($(CARGO) deny fetch db 2>&1); then \
		$(CARGO) deny --offline --locked check --hide-inclusion-graph advisories; \
	else \
		echo "skipped: no database of advisories: $$(echo "$$log" | grep . | tail -n 1)"; \
	fi

.PHONY: compare
compare: build ## Draw one image on the CPU and on the GPU and say how far they are apart
	scripts/compare_cpu_gpu.sh -p "$$PROMPT" -S "$$SEED"

.PHONY: golden
golden: ## Make tests/golden, tests/formats and tests/input anew from the reference; needs the packages of scripts/requirements-reference.txt and TOKENIZER
	rm -rf "$(TARGET)/golden-models"
	for preset in tiny sharded base uneven kv; do \
		$(CARGO) run --release --locked --example make_random_model -- $$preset "$(TARGET)/golden-models/$$preset" || exit 1; \
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
	$(PYTHON) scripts/dump_input_reference.py tests/input

$(TARGET)/train-venv/bin/python: scripts/train_tiny/requirements.txt
	$(PYTHON) -m venv --clear $(TARGET)/train-venv
	$(TARGET)/train-venv/bin/pip install --quiet -r $<
	touch $@

.PHONY: test-training
test-training: build $(TRAIN_PYTHON) ## Train a toy model on the CPU, all phases, then draw and edit with it; needs npm and Python 3.11 or newer
	rm -rf "$(TARGET)/train-toy"
	$(TRAIN_PYTHON) scripts/train_tiny all --toy --work "$(TARGET)/train-toy"
	cp -r "$(TARGET)/train-toy/model" "$(TARGET)/train-toy/shipped"
	$(TRAIN_PYTHON) scripts/train_tiny start refine export --toy --shipped "$(TARGET)/train-toy/shipped" --work "$(TARGET)/train-toy"
	$(FLUX) -d "$(TARGET)/train-toy/model" -p "$$PROMPT" -S "$$SEED" --device cpu -o "$(TARGET)/train-toy/image.png"
	$(FLUX) -d "$(TARGET)/train-toy/model" -i "$(TARGET)/train-toy/image.png" -p "make it blue" -S "$$SEED" --device cpu -o "$(TARGET)/train-toy/edited.png"

.PHONY: install
install: build ## Install flux, completions and man pages into PREFIX (~/.local), below DESTDIR where that is set
	scripts/dist/install.sh $(FLUX) "$(DESTDIR)$(PREFIX)"
	@echo "installed $(DESTDIR)$(PREFIX)/bin/flux"

.PHONY: uninstall
uninstall: ## Remove what `make install` installed into PREFIX
	scripts/dist/install.sh --remove "$(DESTDIR)$(PREFIX)"

.PHONY: dist
dist: build ## Make an archive and a Debian package of the program, with completions, man pages and licences, in target/dist
	scripts/dist/make_dist.sh $(FLUX) "$(TARGET)/dist"

.PHONY: test-dist
test-dist: dist ## Install what `make dist` made into clean roots, also by the steps of the Containerfile, and draw there
	scripts/check_dist.sh "$(TARGET)/dist"

.PHONY: clean
clean: ## Remove what was built; models and .cuda stay
	$(CARGO) clean
	rm -rf $(GPU_BUNDLE)
