# `make bundle` and `make test` need Python (3.10 or newer) and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install bundle test emulator check bench bench-gpu torture registry fuzz docs clean

install: $(VENV)/.installed

bundle: $(VENV)/.installed
	$(BIN)/cutlass-aot build manifests/sm100.toml

# A file of tests stays in one process, which shares what it has compiled. There is one process more than cores,
# since tests wait for processes and clocks, and never more than four, which would take more memory than they save
# time: many tests compile with processes of their own. In the order of the folders: files that compile take
# longest, and one of them begun last would leave a process alone with it at the end. Tests start hundreds of
# Python processes, which would all compile the package where PYTHONDONTWRITEBYTECODE is set. Libraries of linear
# algebra have a thread each: they would have one a core in each of the processes.
TEST_PROCESSES = $(shell n=$$(nproc); echo $$((n < 4 ? n + 1 : 4)))

test: bundle
	-$(BIN)/python -m tools.check.emulator
	-$(MAKE) registry
	$(BIN)/python -m compileall -q cutlass_aot tests/support tools
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# What the tests of libraries for aarch64 run in: docs/guides/aarch64.md. `make test` does without where it cannot be had.
emulator: $(VENV)/.installed
	$(BIN)/python -m tools.check.emulator

# Style, types and layers.
check: $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation as a site, in build/site/index.html. A dead link fails it.
docs: $(VENV)/.installed
	$(BIN)/mkdocs build --strict

# Benchmarks: tools/bench/gpu.py --report prints the tables of docs/results/benchmarks.md from what these write.
bench: bundle
	$(BIN)/python -m tools.bench.cpu -o build/bench-cpu.json
	$(BIN)/python -m tools.bench.build --store build/bench -o build/bench-build.json
	$(BIN)/python -m tools.bench.size --store build/bench -o build/bench-size.json

# Builders killed at random points on a store that is damaged meanwhile: 200 kills, 20 minutes on two cores. First,
# registries that answer slowly, for ever, or lead elsewhere, a minute, and what other users and killed builders leave,
# two minutes.
torture: $(VENV)/.installed
	$(BIN)/python -m tools.torture.registry
	$(BIN)/python -m tools.torture.neighbours
	$(BIN)/python -m tools.torture.torture

# A million damaged files for the readers of files: some fifteen minutes on two cores. First, the native sources under
# sanitizers, a minute, small files that are much when they are unpacked or listed, and wheels that say one thing to one
# installer and another to the next, five minutes, for which 18 releases of installers are fetched from the package
# index. docs/results/fuzz-results.md, docs/results/installers.md
fuzz: $(VENV)/.installed
	$(BIN)/python -m tools.fuzz.native
	$(BIN)/cutlass-aot build manifests/smoke.toml
	$(BIN)/python -m tools.fuzz.expansion build/bundles/smoke
	$(BIN)/python -m tools.check.installers build/bundles/smoke
	$(BIN)/python -m tools.fuzz.readers build/bundles/smoke

# A registry for the tests of bundle push and pull: Debian's; needs no root. `make test` does without where it
# cannot be had. Unpacked beside its place, so that one that was interrupted is fetched again.
registry: build/docker-registry/usr/bin/docker-registry

build/docker-registry/usr/bin/docker-registry:
	rm -rf build/.docker-registry
	mkdir -p build/.docker-registry
	cd build/.docker-registry && apt-get download docker-registry && dpkg -x docker-registry_*.deb .
	rm -rf build/docker-registry
	mv build/.docker-registry build/docker-registry

# Needs a GPU, and a torch that can use it.
bench-gpu: $(VENV)/.installed
	$(BIN)/cutlass-aot build manifests/sm90.toml
	$(BIN)/python -m tools.bench.gpu build/bundles/sm90 --halfway -o build/bench-gpu.json

# Everything by its hashes, then torch, whose builds have many, with what its build asks for beside, and last the
# project, by a build backend that is there by then. `pip check` is not run: it would miss what FlashInfer names
# beside its kernels' needs (examples/programs/requirements.txt).
$(VENV)/.installed: pyproject.toml constraints.txt hashes.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement hashes.txt
	@echo "Of FlashInfer, pip names packages below that are not installed: they are not needed here."
	$(BIN)/python -m pip install --quiet $$(sed -n '/^torch==/p' constraints.txt)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) build/store build/bundles build/wheels
