# `make` lists the targets. `make demo` and `make test` need nothing before them: they set up what is missing.

SCENARIO ?= scenarios/demo.yaml
RUN      ?= $(lastword $(sort $(wildcard comparisons/*)))
TRACE    ?= scenarios/traces/cloud.csv
FABRIC   ?= docker
SECONDS  ?= 60
EXAMPLE  ?= char_ddp
LINKS    ?= examples/four.yaml
EXEC     ?= netns
RUNNER   ?= python
SIZE     ?= small
NEEDED   := $(if $(filter sim,$(FABRIC)),environment,setup)

ifndef PYTHON
PYTHON  := $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do if \
             $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$name; break; fi; done)
endif
BIN     := .venv/bin
SETUP    = $(if $(PYTHON),$(PYTHON),$(error Python 3.11 or newer is needed, e.g. apt-get install python3.11)) -m testbed.host

.DEFAULT_GOAL := help
.PHONY: help setup setup-stop environment lower-bounds release demo test nightly coverage mutants test-times lock lint docs run compare replicate replay examples example gpu plots images observe guest doctor clean

help:  ## this list
	@echo "make TARGET [SCENARIO=…] [RUN=…] [TRACE=…] [FABRIC=docker|netns|swarm|sim] [SECONDS=…]"; echo
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1 \2/p' $(MAKEFILE_LIST) | awk '{ name = $$1; $$1 = ""; printf "  %-13s%s\n", name, $$0 }'

setup:  ## everything that the other targets need: environment, engine, images; YES=1: without asking
	@$(SETUP) $(if $(YES),--yes) all

setup-stop:  ## stop the engine that `make setup` has started, and restore the forwarding and filters that it changed
	@$(SETUP) stop

environment:
	@$(SETUP) environment

demo: $(NEEDED) $(if $(OBSERVE),observe)  ## train 4 workers and a server on FABRIC while a link's rate falls and rises, then the report; OBSERVE=1: watched by Prometheus
	@$(BIN)/testbed run scenarios/demo.yaml --fabric $(FABRIC) $(if $(OBSERVE),--observe)

test: setup  ## every test that this machine can run; results in build/
	@export NARROWS_REQUIRE=$${NARROWS_REQUIRE-$$($(SETUP) capabilities)}; $(BIN)/python tests/suite.py

nightly: setup observe  ## all of them and what takes long: every fault, ten times as many kills, fifty times as many hostile files, benchmarks; LANE="unit docker": these alone
	@export NARROWS_REQUIRE=$${NARROWS_REQUIRE-$$($(SETUP) capabilities)} NARROWS_KILLS=300 NARROWS_FUZZ=10000; $(BIN)/python tests/suite.py --nightly $(addprefix --lane ,$(LANE))

coverage: setup  ## the same, and which modules the tests hardly run
	@export NARROWS_REQUIRE=$${NARROWS_REQUIRE-$$($(SETUP) capabilities)}; $(BIN)/python tests/suite.py --coverage

test-times: environment  ## where the last `make test` spent its time: the slowest 40 files
	@$(BIN)/python tests/suite.py --times

mutants: environment  ## MUTANTS="--group control": small changes of the product, and how many of them the unit tests find
	@$(BIN)/python -m pip install -q $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["mutants"])')
	@$(BIN)/python tests/mutants $(MUTANTS)

lock: environment  ## locks/ anew: exact versions of all packages with the hashes of their files; UPGRADE=1: the newest
	@$(BIN)/python -m pip install -q $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["lock"])')
	@$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

lower-bounds: environment  ## the unit tests with the lowest versions that pyproject.toml allows; TESTS="tests/unit/test_units.py": these alone
	@$(BIN)/python -m pip install -q $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["lock"])')
	@$(BIN)/python tools/lower_bounds.py $(TESTS)

release: environment  ## what a release consists of, in build/release: wheel, source archive, bill of materials, repository, hashes
	@$(BIN)/python -m pip install -q $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["release"])')
	@$(BIN)/python tools/release.py

lint: environment  ## style, format, types, and which rooms import which
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

docs: environment  ## the documentation as a site, in build/site
	@$(BIN)/python -m pip install -q $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["docs"])')
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

run: $(NEEDED)  ## SCENARIO on FABRIC
	@$(BIN)/testbed run $(SCENARIO) --fabric $(FABRIC)

compare: $(NEEDED)  ## SCENARIO on FABRIC, seeds interleaved and paired
	@$(BIN)/testbed compare $(SCENARIO) --fabric $(FABRIC)

replay: setup  ## TRACE on a link of FABRIC for SECONDS, and how exactly it was followed
	@$(BIN)/testbed replay $(TRACE) --fabric $(FABRIC) --seconds $(SECONDS)

examples: setup  ## a training script under three gradient hooks, five seeds each, timed at 100 Mbit/s: half an hour, goes on where it was
	@$(BIN)/python examples/hook_speed.py --out measurements/hook-speed

example: setup  ## EXAMPLE="char_diloco --every 20" on the nodes of LINKS, and its figures; BESIDE="char_ddp" draws the newest run of that over the same links, too
	@PATH="$(CURDIR)/$(BIN):$$PATH" testbed exec $(LINKS) --fabric $(EXEC) --name $(firstword $(EXAMPLE)) --out measurements -- $(RUNNER) examples/$(firstword $(EXAMPLE)).py $(wordlist 2,99,$(EXAMPLE)); status=$$?; \
		own=$$(ls -d measurements/runs/*_$(firstword $(EXAMPLE))_s0_* | tail -1); \
		$(BIN)/testbed report $$(for name in $(BESIDE); do ls -d measurements/runs/*_$${name}_s0_$${own##*_} | tail -1; done) $$own --out measurements/$(firstword $(EXAMPLE)) && exit $$status

replicate: environment  ## the page of PAPER=adatopk|algc|cssgd|laplacian-threshold from runs in virtual time; SIZE=full DATA=…: the paper's own set-up
	@$(BIN)/testbed bench replicate scenarios/papers/$(or $(PAPER),$(error PAPER=… names a folder of scenarios/papers)) --size $(SIZE) --fabric $(if $(filter full gpu,$(SIZE)),netns,sim) $(if $(DATA),--data $(DATA)) --parallel 2

gpu: setup  ## on a machine with a GPU: its tests, benchmarks, demonstration, a scenario of each paper, Table 1 of AdaTopK; into build/gpu; PART="tests bench": these alone
	@$(BIN)/python tools/gpu_results.py $(addprefix --part ,$(PART))

plots: environment  ## table and figures of RUN again (default: the last comparison)
	@$(BIN)/testbed report $(or $(RUN),$(error there is no comparison to draw: `make run` makes one))

images: environment  ## the container images, where missing or outdated
	@$(SETUP) images

observe: environment  ## Prometheus for `testbed run --observe`, unpacked in build/ where this machine has none
	@$(SETUP) $(if $(YES),--yes) observe

guest: setup  ## the disk that `--fabric docker --guest` needs, for users who are not root
	@$(SETUP) guest

doctor: environment  ## what this machine has and lacks
	@$(BIN)/testbed doctor

clean:  ## what killed runs left in the kernel and the engine; caches of the build
	@[ ! -x $(BIN)/testbed ] || $(BIN)/testbed clean
	@rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis
