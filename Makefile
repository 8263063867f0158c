# make help lists what there is. Everything runs in .venv, made from the lock file.

PYTHON ?= python3.11
BIN := .venv/bin
PROTOS := $(wildcard protos/divgrpc_protos/v1/*.proto)

.PHONY: help demo test bench lint types imports proto lock clean

help:            ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /\1\t/' | expand -t 12

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: .venv/ready    ## start a server, index real images, compare plain and diverse results
	$(BIN)/divgrpc demo

test: .venv/ready    ## run the whole suite
	$(BIN)/python -m pytest

bench: .venv/ready   ## measure speed and quality; figures go to standard output
	$(BIN)/python -m benchmarks

lint: .venv/ready    ## format and lint rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready   ## mypy, strict
	$(BIN)/mypy

imports: .venv/ready ## imports run one way
	$(BIN)/lint-imports

proto: .venv/ready   ## regenerate the code made from the .proto files
	$(BIN)/python -m grpc_tools.protoc -I protos \
	    -I $$($(BIN)/python -c 'import google.rpc, os; print(os.path.dirname(os.path.dirname(os.path.dirname(google.rpc.__path__[0] + "/x"))))') \
	    --python_out=protos --grpc_python_out=protos --mypy_out=protos --mypy_grpc_out=protos $(PROTOS)

lock: .venv/ready    ## resolve the dependencies anew
	$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	    --extra server --extra report --extra load --extra dev --extra bench \
	    --output-file requirements.lock pyproject.toml

clean:           ## remove the environment and what tools left behind
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist demo
