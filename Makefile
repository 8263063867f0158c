# make help lists what there is. Everything runs in .venv, made from the lock files.

PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# Each wheel is checked against its hash. --no-compile because pip compiles every module, most of
# them never imported, and takes three quarters of its time for it; Python compiles what it imports.
INSTALL := $(PIP) install --no-compile

# A suite starts hundreds of processes, each of which would compile all modules if none were stored.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo table1 table2 paper figures test test-fast test-integrations crash soak mutations simulate simulate-mutants test-cluster cluster-demo fuzz dist processors arm image bench bench-large conformance docs lint types imports proto lock sbom audit clean

help:            ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## /\1\t/' | expand -t 14

# What the demonstration needs, and a user: the base, [server] and [report], in two locks that share
# nothing, so that both may be installed at once. --no-deps because the locks have said what to
# install.
LOCKED := --no-deps --require-hashes
.venv/base: requirements-engine.lock requirements-demo.lock
	$(PYTHON) -m venv .venv
	touch $@

.venv/engine: .venv/base
	$(INSTALL) $(LOCKED) -r requirements-engine.lock
	touch $@

.venv/others: .venv/base
	$(INSTALL) $(LOCKED) -r requirements-demo.lock
	touch $@

# Kernels need the first lock alone, so they are compiled while the second is installed.
.venv/kernels: .venv/engine
	$(BIN)/python -c 'from divgrpc.compilation import ensure; ensure()'
	touch $@

# --no-build-isolation because hatchling is in the second lock, and one downloaded for the build
# alone would not be checked.
.venv/demo: .venv/engine .venv/others pyproject.toml
	$(INSTALL) --no-deps --no-build-isolation -e .
	touch $@

# Everything else, into the same environment. All of it is compiled at once, on every processor:
# tests make errors of warnings, and some dependencies warn while they are compiled.
SITE_PACKAGES = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
.venv/ready: .venv/demo requirements.lock
	$(INSTALL) --require-hashes -r requirements.lock
	-$(BIN)/python -m compileall -q -q -j 0 $(SITE_PACKAGES)
	touch $@

demo:            ## start a server, index real images, compare plain and diverse results
	@test -e .venv/demo || echo "making the environment .venv and compiling, about a minute, once"
	@$(MAKE) --no-print-directory -j 2 .venv/kernels .venv/demo
	$(BIN)/python -m divgrpc_lab demo $(ARGS)

table1: .venv/ready  ## the paper's Table 1 on real data; wants DIVGRPC_DATA, and ARGS="--quick" is short
	$(BIN)/python -m divgrpc_lab table1 $(ARGS)

table2: .venv/ready  ## its Table 2, of labels, in the same way
	$(BIN)/python -m divgrpc_lab table2 $(ARGS)

paper: .venv/ready   ## both tables, and one page with every claim; ARGS=--quick is short
	$(BIN)/python -m divgrpc_lab paper $(ARGS)

figures: .venv/ready  ## its figures, drawn again
	$(BIN)/python -m divgrpc_lab figures $(ARGS)

# Three processes, each with a server of its own, take one file after another: a third one uses the
# time in which tests wait. Kernels are compiled first, because a test has no time to wait for them;
# those for x86-64 too, with which a test compares answers. A second thread of BLAS would wait for work
# in a loop, and take a quarter of the time of the processor from the other processes.
test: .venv/ready .venv/node/ready  ## run the whole suite
	$(BIN)/divgrpc warm
	test "$$(uname -m)" != x86_64 || $(MAKE) --no-print-directory warm-x86-64
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Unit tests: no server, no build of more than a few hundred points, nothing compiled anew.
UNITS := $(addprefix tests/,core/kernels core/hashing core/metrics core/parameters core/test_hits.py \
    core/test_vectors.py server/codec server/ipc server/logging client/messages client/formats)
COMPILING := $(addprefix tests/core/kernels/test_,cache_files.py processors.py)
test-fast: .venv/ready  ## run the unit tests alone, about a minute
	$(BIN)/divgrpc warm
	$(BIN)/python -m pytest -q -n 2 --dist loadfile $(UNITS) $(COMPILING:%=--ignore=%)

ROUNDS ?= 1000
CRASHES := $(addprefix core/writes/test_,crash.py power_loss.py) server/test_history.py
crash: .venv/ready   ## kill processes of all roles in many rounds, about an hour; ROUNDS=100 is shorter
	$(BIN)/divgrpc warm
	DIVGRPC_CRASH_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -q -n 2 $(addprefix tests/,$(CRASHES))
	PYTHONPATH=tests $(BIN)/python -m support.loads.kill_rounds --rounds $(ROUNDS) $(ARGS)

SEEDS ?= 1000
SIMULATE = PYTHONPATH=tests $(BIN)/python -m simulation
simulate: .venv/ready  ## run writes and serving under SEEDS=1000 seeds; ARGS="--part writes --seed 7" prints one
	$(BIN)/divgrpc warm
	$(SIMULATE) --seeds $(SEEDS) $(ARGS)

simulate-mutants: .venv/ready  ## look for each known defect with the simulator
	$(BIN)/divgrpc warm
	$(SIMULATE) --mutants --seeds $(SEEDS) $(ARGS)

# A defect that a release had: the reverse of its fix.
simulate-issue-%: .venv/ready
	$(SIMULATE) --mutant issue-$* --seeds $(SEEDS) $(ARGS)

MINUTES ?= 30
soak: .venv/ready    ## load a server with reads, writes, builds, cancellations and kills; MINUTES=10 is shorter
	$(BIN)/divgrpc warm
	PYTHONPATH=tests $(BIN)/python -m support.loads.soak --minutes $(MINUTES)

# Each integration has an environment of its own, with the wheels of the client and of the integration
# beside its library. The server of its tests runs in .venv. divgrpc is not on PyPI, so locks leave it
# out.
INTEGRATIONS := $(patsubst client/integrations/%/pyproject.toml,%,$(wildcard client/integrations/*/pyproject.toml))
WHEELS := $(abspath .integrations/wheels)
test-integrations: $(INTEGRATIONS:%=test-in-%)  ## test the packages for LangChain and others, in environments of their own

test-in-%: .integrations/%/ready
	rm -rf $(WHEELS)
	$(BIN)/hatchling build -t wheel -d $(WHEELS)
	cd client/integrations/$* && $(abspath $(BIN))/hatchling build -t wheel -d $(WHEELS)
	.integrations/$*/bin/python -m pip --quiet --disable-pip-version-check install \
	    --force-reinstall --no-deps $(WHEELS)/*.whl
	cd client/integrations/$* && $(abspath .integrations/$*/bin/python) -m pytest $(ARGS)

.PRECIOUS: .integrations/%/ready
.integrations/%/ready: client/integrations/%/requirements.lock .venv/ready
	$(PYTHON) -m venv .integrations/$*
	.integrations/$*/bin/python -m pip --quiet --disable-pip-version-check install \
	    --no-compile $(LOCKED) -r $<
	touch $@

dist: .venv/ready    ## make a wheel and a source distribution in dist/
	rm -rf dist
	$(BIN)/hatchling build -d dist

# Compile the kernels for an older processor, once.
warm-%: .venv/kernels
	NUMBA_CPU_NAME=$* NUMBA_CPU_FEATURES= $(BIN)/python -c 'from divgrpc.compilation import ensure; ensure()'

# The suite itself does the same for x86-64; x86-64-v2 computes with the same 128 bits.
processors: .venv/ready warm-x86-64-v3  ## compile the kernels for AVX2 and compare the answers, byte for byte
	DIVGRPC_PROCESSORS=x86-64-v3 $(BIN)/python -m pytest -v -p no:xdist tests/core/kernels/test_processors.py -k older

# Debian's qemu-user-static runs programs for ARM, and its mmdebstrap unpacks Python 3.11 for ARM. The
# tools of tests come from .venv, because they are pure Python, except hypothesis.
.arm/ready: .venv/ready
	rm -rf .arm
	mkdir -p .arm/debian
	mmdebstrap --quiet --variant=extract --architectures=arm64 --include=python3.11,libstdc++6 \
	    --skip=output/dev bookworm | tar -x -C .arm/debian
	sed -n '/^hypothesis==/,/[^\\]$$/p' requirements.lock > .arm/hypothesis.lock
	$(INSTALL) $(LOCKED) --target .arm/site --python-version 3.11 --only-binary :all: \
	    $(addprefix --platform ,manylinux_2_28_aarch64 manylinux2014_aarch64) \
	    -r requirements-engine.lock -r requirements-demo.lock -r .arm/hypothesis.lock
	touch $@

IMPORTED := . client server protos tests .arm/site .venv/lib/python3.11/site-packages
ON_ARM = PYTHONPATH=$$(printf '$(CURDIR)/%s:' $(IMPORTED)) QEMU_LD_PREFIX=$(abspath .arm/debian) \
    QEMU_CPU=neoverse-n1 DIVGRPC_KERNEL_CACHE=$(abspath .arm/kernels) DIVGRPC_PHASE_SECONDS=3600 \
    .arm/debian/usr/bin/python3.11
arm: .arm/ready      ## run kernels on an emulated ARM processor and compare the answers with those recorded
	$(ON_ARM) -m divgrpc_client warm
	$(ON_ARM) -m pytest -q -p no:xdist -o faulthandler_timeout=3600 \
	    $(or $(ARGS),tests/core/storage/test_golden*.py \
	    $(addprefix tests/core/kernels/test_,look_ups.py processors.py::test_sums_have_the_recorded_bytes))

# Debian's buildah builds it without a daemon, and its mmdebstrap makes the base.
.image/base.tar:
	mkdir -p .image
	mmdebstrap --quiet --variant=minbase --include=python3,python3-venv --skip=output/dev bookworm $@

image: .image/base.tar  ## build the container image on Debian, without a registry; ARGS has options of buildah
	base=$$(buildah from scratch) && buildah add --quiet $$base $< / && \
	    buildah commit --quiet --rm $$base localhost/divgrpc-base
	buildah build --isolation chroot --network host --build-arg BASE=localhost/divgrpc-base $(ARGS) \
	    --file server/deploy/Containerfile --tag localhost/divgrpc .

# atheris has no place in the locks, because only this needs it, and its wheels are for Linux alone.
.venv/fuzzer: .venv/ready
	$(PIP) install --no-deps atheris==3.0.0
	touch $@

fuzz: .venv/fuzzer   ## look for bytes that readers of requests and files do not expect; ARGS="query --seconds 60"
	PYTHONPATH=tests $(BIN)/python -m fuzzing $(ARGS)

# Requests to a running server, and frames between its processes.
REQUESTS ?= 200000
mutations: .venv/ready  ## send 200,000 changed requests to a server, and read as many changed frames; REQUESTS=1000 is shorter
	$(BIN)/divgrpc warm
	PYTHONPATH=tests $(BIN)/python -m fuzzing.mutants --count $$(($(REQUESTS) / 5))
	PYTHONPATH=tests $(BIN)/python -m support.requests.mutations --requests $(REQUESTS) $(ARGS)

# What the example for Node imports. Where there is no npm, its test says so.
.venv/node/ready: .venv/ready docs/examples/node/package.json docs/examples/node/package-lock.json
	mkdir -p .venv/node
	cp docs/examples/node/package.json docs/examples/node/package-lock.json .venv/node
	-cd .venv/node && npm ci --ignore-scripts --no-audit --no-fund && touch ready

bench: .venv/ready .venv/rivals  ## measure quality and speed; ARGS="peers --help" says how
	PYTHONPATH=tests $(BIN)/python -m benchmarks $(ARGS)

bench-large: .venv/ready  ## train labels in the size of LSHTC3, some ten minutes; ARGS="--share 0.1" is shorter
	PYTHONPATH=tests $(BIN)/python -m benchmarks training --share 1 $(ARGS)

# hnswlib is source alone, so a compiler is asked for; the others have wheels for x86-64 alone. Where
# one cannot be installed, benchmarks say so and go on.
.venv/rivals: .venv/ready requirements-rivals.lock
	-$(PIP) install --no-deps hnswlib==0.8.0
	-$(INSTALL) $(LOCKED) -r requirements-rivals.lock
	touch $@

# What `--engine ray` needs. Where it cannot be installed, tests that need it are skipped and counted.
.venv/ray: .venv/ready requirements-ray.lock
	$(INSTALL) $(LOCKED) -r requirements-ray.lock
	touch $@

CLUSTER = PYTHONPATH=tests $(BIN)/python -m support.loads.cluster
cluster-demo: .venv/ray  ## run a Ray cluster on this machine, and kill a node while queries run
	$(BIN)/divgrpc warm
	$(CLUSTER) --demo

test-cluster: .venv/ray  ## kill and stop nodes of a Ray cluster under load; ARGS="--namespaces" cuts links of hosts
	$(BIN)/divgrpc warm
	$(BIN)/python -m pytest -q -p no:xdist tests/server/test_engines.py -k "refused or kept"
	$(CLUSTER) $(ARGS)

# In an environment of its own, because the other stores bring some hundred packages.
.conformance/ready: requirements-conformance.lock
	$(PYTHON) -m venv .conformance
	.conformance/bin/python -m pip --quiet --disable-pip-version-check install --no-compile $(LOCKED) -r $<
	touch $@

conformance: .conformance/ready  ## check what divgrpc and other stores promise about diverse results
	PYTHONPATH=tests:client:protos .conformance/bin/python -m benchmarks.conformance $(ARGS)

# An environment of its own, so that neither the tests nor the demonstration install what only the
# pages need. The package itself is not installed: its docstrings are read from the source.
.docs/ready: requirements-docs.lock
	$(PYTHON) -m venv .docs
	.docs/bin/python -m pip --quiet --disable-pip-version-check install --no-compile $(LOCKED) -r requirements-docs.lock
	touch $@

docs: .docs/ready    ## build the site into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs --quiet build --strict --config-file docs/mkdocs.yml $(ARGS)

lint: .venv/ready    ## format and lint rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready   ## mypy, strict
	$(BIN)/mypy

imports: .venv/ready ## imports run one way
	$(BIN)/lint-imports --no-logo

# The generated code goes beside its .proto; a test makes it once more with OUT elsewhere and
# compares. google/rpc/status.proto is a copy of the one in googleapis-common-protos. Only
# diverse_index.proto has a service, so only it gets a _pb2_grpc module.
OUT ?= protos
MESSAGES := $(sort $(wildcard protos/divgrpc_protos/v1/*.proto))
SERVICES := protos/divgrpc_protos/v1/diverse_index.proto
PROTOC = PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc
# Stubs are made from descriptors, which have no comments: these would double their size.
STUBS = --descriptor_set_in=$(OUT)/descriptors
SOURCES := -I protos -I protos/third_party

proto: .venv/ready   ## regenerate the code made from the .proto files
	$(PROTOC) $(SOURCES) --python_out=$(OUT) $(MESSAGES)
	$(PROTOC) $(SOURCES) --grpc_python_out=$(OUT) $(SERVICES)
	$(PROTOC) $(SOURCES) --include_imports --descriptor_set_out=$(OUT)/descriptors $(MESSAGES)
	$(PROTOC) $(STUBS) --mypy_out=quiet,readable_stubs:$(OUT) $(MESSAGES:protos/%=%)
	$(PROTOC) $(STUBS) --mypy_grpc_out=quiet:$(OUT) $(SERVICES:protos/%=%)
	rm $(OUT)/descriptors

# The second and the fourth lock hold parts of the first, at the same versions; the third, of the
# site, shares versions with it where both name a package. --unsafe-package is
# the word of pip-compile for what is left out.
ENGINE := llvmlite numba numpy scipy threadpoolctl
LOCK = $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: .venv/ready    ## resolve the dependencies anew
	$(LOCK) --extra server --extra tracing --extra report --extra dev --extra bench \
	    --output-file requirements.lock pyproject.toml
	$(filter-out --allow-unsafe,$(LOCK)) $(ENGINE:%=--unsafe-package %) \
	    --extra server --extra report --build-deps-for editable \
	    --constraint requirements.lock --output-file requirements-demo.lock pyproject.toml
	$(filter-out --allow-unsafe,$(LOCK)) --extra server --build-deps-for wheel \
	    --constraint requirements.lock --output-file requirements-server.lock pyproject.toml
	$(LOCK) --extra docs --constraint requirements.lock --output-file requirements-docs.lock pyproject.toml
	$(LOCK) --extra rivals --constraint requirements.lock \
	    --output-file requirements-rivals.lock pyproject.toml
	$(LOCK) --extra ray --constraint requirements.lock \
	    --output-file requirements-ray.lock pyproject.toml
	$(LOCK) --extra server --extra conformance --constraint requirements.lock \
	    --output-file requirements-conformance.lock pyproject.toml
	$(BIN)/hatchling build -t wheel -d $(WHEELS)
	for name in $(INTEGRATIONS); do \
	    PIP_FIND_LINKS=$(WHEELS) $(filter-out --allow-unsafe,$(LOCK)) --extra test \
	        --unsafe-package divgrpc --constraint requirements.lock \
	        --output-file client/integrations/$$name/requirements.lock \
	        client/integrations/$$name/pyproject.toml || exit; \
	done
	printf '%s\n' $(ENGINE) | $(LOCK) --constraint requirements.lock \
	    --output-file requirements-engine.lock -

sbom: .venv/ready    ## list the packages of an installation in sbom.json, as CycloneDX
	$(BIN)/python docs/supply_chain.py sbom > sbom.json

# In an environment of its own, because nothing of the project needs it. Its data come from PyPI, so
# where there is no network this says that nothing was checked, and fails with code 3.
.audit/bin/pip-audit:
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip --quiet --disable-pip-version-check --retries 0 --timeout 5 install pip-audit==2.10.1

audit:           ## compare the lock files with known vulnerabilities; needs the network
	-$(MAKE) --no-print-directory .audit/bin/pip-audit
	$(PYTHON) docs/supply_chain.py audit .audit/bin/pip-audit .audit/report.json

clean:           ## remove the environment and what tools left behind
	rm -rf .audit sbom.json .venv .docs .conformance .integrations .arm .image site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist demo
