# Thin shortcuts over CMake's presets. `make` alone lists them. Each target installs what it needs
# (tools/install-deps.sh), configures, builds and runs.

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
BENCH_DIR ?= /dev/shm
BENCH_ARGS ?= --records 10M --operations 10M --domain line --folder $(BENCH_DIR)
FUZZ_SECONDS ?= 60
ROUNDS ?= 20
PAUSES_FROM ?= 1
PAUSES_SEEDS ?= 5
FAILING ?= FailingMediumTest
CRASH_BUDGET ?= 1h
CRASH_ARGS ?= --operations 2k --prepared 0 --capacity 4M --schedules 10 --recoveries 64

# The tests that are worth repeating under sanitizers and with other seeds.
SUITES = '^(pm|index|store|buffer|lsm|scenario|server)$$'

SOURCES = $(shell find include src lab tests examples -name '*.h' -o -name '*.cc')
TEXTS = *.md $(shell find docs lab examples python -name '*.md')
# Tests in which one thread works: the thread sanitizer has nothing to see there, and takes long.
ONE_THREAD = '^Catalog/(Batches|Boundaries|Damage|DropPower|FailingMediumTest|FailingTransaction|FullMedium|FullPool|Neighbours|OrderedModel|PoolMedium|Raise|RaiseCrash|RandomOperations|Refill|Shrink|ShrinkCrash|TornTransaction)[./]|$\
^(BulkEpochs|HashTables|Hot|LongDrop|NvTree|PlushTest|PoolInput|Raising|RaisingPlush|TryWrites)[./]|^Nodes/HotCombs|^Domains/(RaisingCrash|ManyNamesCrash)|^ManyNames[.](AreAs|Damage)|$\
^ManyStructures[.]AsMany|^Sheaf[.](AFullPool|AProcessDies)|^FollowPlacing[.]APower|^TypedTransactions[.](RefuseToOpenWith|AFlippedBit)|$\
/Store[PmIndex]*DamageTest|/Store(Cache|Power)Test|/StoreRunsTest/[^W]|^PlushGrowthTest.OverflowsOfEarlierSessionsCount|/LargeResp/|^StoreTest.(EveryRecordOfAFullStore|OverwritingIsBounded)'
# Those in which several do, where pauses matter.
SEVERAL_THREADS = '^(Catalog/(Concurrent|Pauses)|BzTree|BwTree|Structures/Tries/|Orders/PlushThreads|Runtime|Task|Balancer)|^Cuts/StoreCursorTest/|$\
StoreTaskTest|/StoreSnapshotTest/|^DatabaseTest.(ManyThreads|TransactSucceeds)'
# Thread sanitizer needs a predictable address space where the kernel randomises more than it knows.
FIXED_ADDRESSES = $(shell setarch -R true 2>/dev/null && echo setarch -R)

# What `make test` leaves to `make test-more`: four of five cases of long scenarios (tests/support/scenario.h), and
# the longest of the single tests.
MORE = '_more( |$$)|/GalleryTwin/|ManyNamesCrash|/Store(Pm)?IndexDamageTest/|/StoreCacheTest/|$\
/StorePowerTest/Pm|/Backup/tmpfs_large|^(BlockCacheCrash[.]Flushes|BufferStudyCommand[.]StandsBeside|DamagedPool[.]EveryCommandEnds|DatabasePower[.]|$\
DropCrash[.]Most|LongDrop[.]|LsmStudyCommand[.]HasItsFigures|ManyStructures[.]AsMany|[.]WhatNothingMisses|$\
RangeStudyCommand[.](Ends|GoesOn|Measures)|Sheaf[.]A(ProcessDies|FullPool)|StudyCommand[.]Counts)'
# Those that explore as many crashes as they are told to.
CRASHES = '(Catalog|Growth|Bulk|Rare|Database|Store)Crash[./]|(Drop|Files|Transaction)Crash[.]EveryState'

.DEFAULT_GOAL := help
.PHONY: help quickstart build test test-asan test-tsan test-ubsan test-pauses test-long test-more test-failing test-python crash-campaign put-backs bench bench-peers bench-servers lint format fuzz \
  docs-figures docs docs-look install packages test-packages clean deps deps-docs deps-lint deps-python deps-packages deps-peers deps-servers

help: ## List these targets
	@echo "Targets of make:"
	@sed -n "s,^\(# \)*\([a-z-]*\):.*## ,  \2\t,p" Makefile | expand -t 16

quickstart: deps ## Build; load a real data set, kill the loader, recover, verify (perdure-data/)
	@cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS) --target perdure_command
	build/release/perdure quickstart --keep

build: deps ## Build everything into build/release; the command is build/release/perdure
	@cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS)

test: build ## Build and test: every scenario, those that take long over a fifth of the structures each (on two processors some ten minutes, after ten to build all)
	ctest --preset release -E $(MORE) $(CTEST_ARGS)

test-asan: deps-lint
test-asan test-tsan test-ubsan: test-%: deps
	@cmake --preset $* >/dev/null
	cmake --build --preset $* -j $(JOBS) --target pm_tests index_tests store_tests buffer_tests lsm_tests scenario_tests server_tests
	$(if $(filter tsan,$*),$(FIXED_ADDRESSES)) ctest --preset $* -L $(SUITES) \
	  $(if $(filter tsan,$*),-E $(ONE_THREAD)) $(CTEST_ARGS)

test-pauses: deps ## Let threads pause on purpose: PAUSES_SEEDS runs of the scenarios with several threads
	@cmake --preset pauses >/dev/null
	cmake --build --preset pauses -j $(JOBS) --target index_tests scenario_tests store_tests buffer_tests
	@set -e; for seed in $$(seq $(PAUSES_SEEDS)); do \
	  seed=$$(($(PAUSES_FROM) + seed - 1)); echo "== PERDURE_PAUSES=$$seed"; \
	  PERDURE_PAUSES=$$seed PERDURE_SEED=$$seed ctest --preset pauses -R $(SEVERAL_THREADS) --progress; \
	done

# For the list of targets:
# test-asan: ## Run the pm, index, store, buffer, lsm, scenario and server suites under the address, leak and undefined-behaviour sanitizers
# test-tsan: ## Run them under the thread sanitizer
# test-ubsan: ## Run them under the undefined-behaviour sanitizer alone

test-long: build ## Run the pm, index, store, buffer, lsm, scenario and server suites ROUNDS times, each with a new seed and longer (PERDURE_ROUNDS, 4)
	@set -e; for round in $$(seq $(ROUNDS)); do \
	  seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); \
	  echo "== round $$round of $(ROUNDS): PERDURE_SEED=$$seed"; \
	  PERDURE_SEED=$$seed PERDURE_ROUNDS=$${PERDURE_ROUNDS:-4} ctest --preset release -L $(SUITES) --progress; \
	done

test-more: build ## Run what `make test` leaves out: the scenarios that take long over the other structures, and all crashes of which it explores a quarter
	PERDURE_CRASHES=all ctest --preset release -R $(MORE)'|'$(CRASHES) $(CTEST_ARGS)

test-failing: build ## Refuse every persist of the failing-medium scenarios, one after the other (FAILING: names of tests, as a regular expression)
	PERDURE_EIO=all ctest --preset release -R '$(FAILING)' --timeout 3600 --progress

test-python: deps deps-python ## Build the Python package in a virtual environment (build/python-venv), and run its tests
	@test -x build/python-venv/bin/pip || python3 -m venv build/python-venv
	build/python-venv/bin/pip install --quiet './python[test]'
	build/python-venv/bin/mypy --cache-dir build/mypy --config-file python/pyproject.toml python/src/perdure
	build/python-venv/bin/pytest -p no:cacheprovider python/tests
	rm -f build/python-words.pool; build/python-venv/bin/python python/examples/count_words.py build/python-words.pool README.md CHANGELOG.md

crash-campaign: build ## Explore crashes of every structure for CRASH_BUDGET (1h); report in crash-campaign.html
	build/release/perdure crash all --crashes 3 --recoveries 48 --budget $(CRASH_BUDGET) $(CRASH_ARGS) --html crash-campaign.html

put-backs: deps ## Put old faults back into a copy, one at a time: does each instrument find its own? (PUT_BACKS: names)
	JOBS=$(JOBS) tools/put-backs $(PUT_BACKS)

bench: build ## Measure inserts, lookups and a mix on /dev/shm (BENCH_ARGS, BENCH_DIR)
	build/release/perdure bench plush --mix insert=1 --mix lookup=1 --mix lookup=.5,update=.5 \
	  --threads 1,$(JOBS) $(BENCH_ARGS)

bench-peers: deps-peers build ## Measure YCSB A beside RocksDB, LevelDB, LMDB and volatile tables (BENCH_ARGS)
	build/release/perdure bench plush rocksdb rocksdb-nosync leveldb leveldb-nosync lmdb lmdb-nosync \
	  dram-hash dram-btree --workload a --workload c --threads $(JOBS) --time 60s $(BENCH_ARGS)

bench-servers: deps-servers build ## Measure perdure serve beside Redis and memcached, YCSB A and C, at rates and at the peak (BENCH_ARGS)
	build/release/perdure bench --server perdure --server perdure:hash --server redis --server redis+aof --server memcached \
	  --workload a --workload c --rate peak,50%,80% --time 10s $(BENCH_ARGS)

lint: deps deps-lint ## Check format and run clang-tidy over src/ and lab/ (a few minutes)
	@! grep -rn '#include "lab/' include src || { echo "src/ includes lab/" >&2; exit 1; }
	@tools/wrap-text --check $(SOURCES) $(TEXTS)
	@set -e; for fault in lab/put_backs/*.patch; do git apply --check $$fault; done
	@set -e; for tests in $(ONE_THREAD) $(MORE)'|'$(CRASHES) $(SEVERAL_THREADS); do \
	  test $$(echo "$$tests" | tr -cd '(' | wc -c) -le 9 || \
	    { echo "more than the nine groups that CTest knows, so it would match nothing: $$tests" >&2; exit 1; }; done
	@clang-format-19 --dry-run -Werror $(SOURCES)
	@cmake --preset clang -B build/lint -DPERDURE_UNITY=ON -DPERDURE_BUILD_TESTS=OFF \
	  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
	@cmake --build build/lint --target perdure_build_info >/dev/null
	run-clang-tidy-19 -quiet -j $(JOBS) -p build/lint '^(?!.*/src/fmt[.]cc$$)'

format: deps-lint ## Format all sources in place, and wrap comments and pages at 100 columns
	tools/wrap-text $(SOURCES) $(TEXTS)
	clang-format-19 -i $(SOURCES)

fuzz: deps deps-lint ## Run each fuzz target for FUZZ_SECONDS, JOBS at a time, that of pools for each structure (FUZZ_ARGS for libFuzzer)
	@cmake --preset fuzz >/dev/null
	cmake --build --preset fuzz -j $(JOBS) --target fuzz_pool fuzz_database fuzz_server fuzz_sync fuzz_dump fuzz_trace fuzz_reply
	tools/fuzz $(FUZZ_SECONDS) $(JOBS) $(FUZZ_ARGS)

docs-figures: build ## Write the figures in docs/ that commands print and tests compare
	PERDURE_WRITE_DOCS=1 build/release/lab/tests/lab_cli_tests --gtest_filter='DocsFigures.*' --gtest_brief=1
	PERDURE_WRITE_DOCS=1 build/release/lab/tests/lab_tests --gtest_filter='ModelFacts.TheDocument*' --gtest_brief=1
	PERDURE_WRITE_DOCS=1 build/release/tests/index_tests --gtest_filter='LimitsPage.*' --gtest_brief=1

docs: deps-docs ## Build the documentation as a site, with the reference of the headers (build/site/index.html)
	@test -x build/docs-venv/bin/mkdocs && build/docs-venv/bin/pip freeze | cmp -s - docs/requirements.txt || \
	  { python3 -m venv --clear build/docs-venv && \
	    build/docs-venv/bin/pip install --quiet --disable-pip-version-check -r docs/requirements.txt; }
	NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --strict
	@echo "build/site/index.html"

docs-look: docs ## Open every page of that site in Chromium, without a window, and look for what is missing
	python3 tools/site/look.py build/site

install: build ## Install to PREFIX (/usr/local)
	cmake --install build/release --prefix $(PREFIX)

# Debian's place for libraries. (What `make install` does afterwards uses it, too.)
packages: deps deps-packages ## Make Debian packages of library, headers, command, instruments, Python module (build/release/packages)
	@cmake --preset release -DCMAKE_INSTALL_LIBDIR=lib/$$(dpkg-architecture -qDEB_HOST_MULTIARCH) >/dev/null
	cmake --build --preset release -j $(JOBS) --target perdure_packaged
	rm -rf build/release/packages
	cd build/release && umask 022 && cpack -G DEB >cpack.log || { cat cpack.log; exit 1; }
	@ls -l build/release/packages/*.deb

test-packages: packages ## Install the packages into a folder of their own, and build and run the examples there
	tests/package/install_packages.sh build/release/packages

clean: ## Remove all builds
	rm -rf build

deps:
	@tools/install-deps.sh base
deps-lint:
	@tools/install-deps.sh lint
deps-python:
	@tools/install-deps.sh python
deps-docs:
	@tools/install-deps.sh docs
deps-packages:
	@tools/install-deps.sh packages
deps-servers:
	@tools/install-deps.sh servers
deps-peers:
	@tools/install-deps.sh peers
