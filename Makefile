# SPDX-License-Identifier: MIT
#
# `make help` lists what there is. One build folder per kind of build:
#
#   build/release  gcc -O2, asserts on          build/asan   address and undefined sanitizers
#   build/clang    the same with clang          build/fuzz   clang, libFuzzer
#   build/llhttp   the HTTP parser's sources    build/cover  gcov
#
# `make KIND=asan all` builds one of them. Sources are found by folder: a new file needs
# no line here. Handy while working: `make unit T=buf` builds and runs one unit test;
# FOLDERS="base proto" leaves the other folders of src/ out; V=1 shows the commands.

KIND    ?= release
BUILD   ?= build/$(KIND)
FOLDERS ?= $(notdir $(wildcard src/*))
PREFIX  ?= /usr/local
V       ?= 0

JOBS ?= $(shell nproc)
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(JOBS)
endif
MAKEFLAGS += --no-builtin-rules --no-print-directory

# ---- kinds -----------------------------------------------------------------------------

SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

CC_release := gcc
CC_clang   := clang
CC_asan    := gcc
CC_fuzz    := clang
CC_cover   := gcc

OPT_release := -O2
OPT_clang   := -O2
OPT_asan    := -O1 $(SANITIZE)
OPT_fuzz    := -O1 $(SANITIZE) -fsanitize=fuzzer-no-link
OPT_cover   := -O0 --coverage

CC       := $(or $(CC_$(KIND)),$(error KIND=$(KIND) is not one of: release clang asan fuzz cover))
WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes \
            -Wcast-qual -Wwrite-strings -Wformat=2 -Wundef -Wvla -Wpointer-arith -Werror
ifeq ($(CC),gcc) # texts are cut to their buffers on purpose
WARNINGS += -Wno-format-truncation
endif
CPPFLAGS := -D_GNU_SOURCE -Iinclude -isystem build/llhttp/include
CFLAGS   := -std=gnu11 -g $(OPT_$(KIND)) $(WARNINGS) $(EXTRA_CFLAGS)
LDFLAGS  := $(OPT_$(KIND)) $(EXTRA_LDFLAGS)
LDLIBS   := -levent_core -levent_pthreads -lssl -lcrypto -lz -ljansson -lyaml -lxxhash -lnettle -lhiredis -lpthread -lm

# ---- what there is to build --------------------------------------------------------------

MAIN      := src/cmd/main.c
LIB_SRC   := $(filter-out $(MAIN),$(wildcard $(FOLDERS:%=src/%/*.c)))
UNIT_SRC  := $(wildcard tests/unit/test_*.c)
HELP_SRC  := $(filter-out $(UNIT_SRC),$(wildcard tests/unit/*.c))
TLIB_SRC  := $(wildcard tests/lib/*.c)
FUZZ_SRC  := $(wildcard tests/fuzz/fuzz_*.c)
BENCH_SRC := $(wildcard bench/bench_*.c)
BLIB_SRC  := $(filter-out $(BENCH_SRC),$(wildcard bench/*.c))

OBJ      := $(BUILD)/obj
LLHTTP   := $(addprefix $(OBJ)/llhttp/,llhttp.o api.o http.o)
LIB      := $(BUILD)/libincipit.a
LIB_OBJ  := $(LIB_SRC:%.c=$(OBJ)/%.o) $(LLHTTP)
HELP_OBJ := $(HELP_SRC:%.c=$(OBJ)/%.o)
TLIB_OBJ := $(TLIB_SRC:%.c=$(OBJ)/%.o)
BLIB_OBJ := $(BLIB_SRC:%.c=$(OBJ)/%.o)
UNIT     := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/%)
CORPUS   := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/corpus/%)
FUZZ     := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/fuzz/%)
BENCH    := $(BENCH_SRC:bench/%.c=$(BUILD)/bench/%)
PROGRAM  := $(if $(filter cmd,$(FOLDERS)),$(BUILD)/incipit)

.PHONY: all programs demo demo-llama test test-engines test-clients test-faults families mutants unit valgrind lint \
        format asan fuzz fuzz-programs cover bench bench-store bench-clients raw-table install clean \
        distclean help force
.DELETE_ON_ERROR:
.PRECIOUS: $(BUILD)/obj/%.o
.DEFAULT_GOAL := all

all: $(LIB) $(PROGRAM) ## Build the gateway: build/release/incipit
programs: all $(UNIT) $(CORPUS)

# ---- rules -------------------------------------------------------------------------------

say_0 = @printf '  %-5s %s\n'
say_1 = @: #
say   = $(say_$(V))
Q     = $(if $(filter 0,$(V)),@)

build/deps.stamp: tools/deps.sh
	$(Q)tools/deps.sh build/llhttp
	@touch $@

# Everything depends on the command line that made it.
$(BUILD)/flags: force
	@mkdir -p $(@D)
	@echo '$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $(LDLIBS)' | cmp -s - $@ || \
	 echo '$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $(LDLIBS)' > $@

$(OBJ)/%.o: %.c $(BUILD)/flags | build/deps.stamp
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# Equal bits whatever is computed together: never one rounding instead of two.
$(OBJ)/src/lab/%.o: CFLAGS += -ffp-contract=off

$(OBJ)/llhttp/%.o: $(BUILD)/flags | build/deps.stamp
	$(say) CC build/llhttp/$*.c
	@mkdir -p $(@D)
	$(Q)$(CC) -Ibuild/llhttp/include -g $(OPT_$(KIND)) -w -c -o $@ build/llhttp/$*.c

$(LIB): $(LIB_OBJ)
	$(say) AR $@
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/incipit: $(OBJ)/$(MAIN:.c=.o) $(LIB)
	$(say) LD $@
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Second opinions (oracles) that unit tests and fuzz targets share.
$(BUILD)/libtests.a: $(TLIB_OBJ)
	$(say) AR $@
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/libhelp.a: $(HELP_OBJ)
	$(say) AR $@
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/tests/%: $(OBJ)/tests/unit/%.o $(BUILD)/libhelp.a $(BUILD)/libtests.a $(LIB)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

# Its system calls come through the test, which lets them fail.
WRAPPED := open openat read write fdatasync fsync rename renameat unlinkat mkdir mkdirat \
           fstat fstatat ftruncate fchmod utimensat futimens
$(BUILD)/tests/test_store_faults: private LDFLAGS += $(WRAPPED:%=-Wl,--wrap=%)

$(BUILD)/corpus/%: $(OBJ)/tests/fuzz/%.o $(OBJ)/tests/fuzz/replay_main.o $(BUILD)/libtests.a $(LIB)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/fuzz/%: $(OBJ)/tests/fuzz/%.o $(BUILD)/libtests.a $(LIB)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

$(BUILD)/bench/%: $(OBJ)/bench/%.o $(BLIB_OBJ) $(LIB)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)

# ---- tests -------------------------------------------------------------------------------

test: ## Build with gcc, clang and sanitizers; run unit, corpus and e2e tests
	$(Q)$(MAKE) KIND=release programs
	$(Q)$(MAKE) KIND=clang programs
	$(Q)$(MAKE) KIND=asan programs
	$(Q)python3 tests/run.py build/release build/asan

unit: $(BUILD)/tests/test_$(T) ## Build and run one unit test: make unit T=buf
	$(Q)$<

asan: ## The tests on the build with sanitizers alone
	$(Q)$(MAKE) KIND=asan programs
	$(Q)python3 tests/run.py build/asan

valgrind: ## Unit and corpus tests, and gateways of end-to-end tests, under memcheck
	$(Q)$(MAKE) KIND=release programs
	$(Q)python3 tests/run.py --valgrind build/release

test-engines: ## Run against a real llama-server (downloads one, about 180 MB)
	$(Q)$(MAKE) KIND=release programs
	$(Q)python3 tests/run.py --engines build/release

test-clients: $(PROGRAM) ## Client libraries through the gateway (downloads them, about 450 MB unpacked)
	$(Q)INCIPIT_BIN=$(abspath $(PROGRAM)) python3 tests/run_clients.py

ROUNDS ?= 20
test-faults: $(PROGRAM) ## Faults at random moments: ROUNDS of them (20); SEED repeats a run
	$(Q)python3 tests/run_faults.py -v -n $(ROUNDS) $(if $(SEED),--seed $(SEED))

FAMILIES ?=
families: $(PROGRAM) $(UNIT) ## The tests that docs/field-reports.md names, and no others; FAMILIES="K11 H05"
	$(Q)python3 tests/run_families.py $(FAMILIES)

mutants: $(PROGRAM) ## Deliberate faults in a copy of the tree: does a test fail? FAMILIES="K11 H05"
	$(Q)python3 tools/mutants.py $(FAMILIES)

FUZZ_SECONDS ?= 60
fuzz: ## Fuzz each target for FUZZ_SECONDS (60)
	$(Q)$(MAKE) KIND=fuzz fuzz-programs
	$(Q)tools/fuzz.sh build/fuzz $(FUZZ_SECONDS)

fuzz-programs: $(FUZZ)

cover: ## Line coverage of the tests, by file
	$(Q)$(MAKE) KIND=cover programs
	$(Q)find build/cover -name '*.gcda' -delete
	$(Q)python3 tests/run.py build/cover
	$(Q)tools/cover.sh build/cover/obj

bench: $(PROGRAM) $(BENCH) ## Run the benchmarks; results go to bench/results/
	$(Q)tools/bench.sh $(BUILD)/bench $(BENCH_SRC)

BENCH_STORE ?= --quick
bench-store: $(PROGRAM) $(BUILD)/bench/bench_slotfile ## The block store on llama-server against what else there is; BENCH_STORE= for all of it
	$(Q)python3 bench/store/run.py $(PROGRAM) $(BENCH_STORE)

bench-clients: $(PROGRAM) ## What the cache saves, by two clients and by the gateway (downloads one, about 700 MB unpacked)
	$(Q)python3 bench/clients.py $(PROGRAM)

raw-table: $(PROGRAM) ## Odd requests to incipit, nginx and HAProxy: the table of docs/raw-http.md
	$(Q)python3 tests/raw_table.py -o docs/raw-http.md

lint: build/deps.stamp ## Layers, names, headers, sizes, format, configuration keys, named tests
	$(Q)$(MAKE) KIND=release programs
	$(Q)$(MAKE) KIND=clang programs
	$(Q)tools/lint/all.sh

C_FILES = $(shell find include src tests bench -name '*.[ch]')
format: ## Reformat all C files
	$(Q)clang-format -i $(C_FILES)

# ---- the rest ----------------------------------------------------------------------------

demo: $(PROGRAM) ## The built-in engine, alone and behind the gateway: what is reused
	$(Q)python3 tools/demo.py lab $(BUILD)/incipit

demo-llama: $(PROGRAM) ## A real engine with a small model (180 MB), alone and behind the gateway
	$(Q)tools/demo_llama.sh $(BUILD)/incipit

install: all ## Install to PREFIX (/usr/local); DESTDIR is honoured
	install -D -m 755 $(BUILD)/incipit $(DESTDIR)$(PREFIX)/bin/incipit
	install -D -m 644 conf/incipit.yaml $(DESTDIR)$(PREFIX)/share/incipit/incipit.yaml
	install -D -m 644 conf/minimal.yaml $(DESTDIR)$(PREFIX)/share/incipit/minimal.yaml

clean: ## Remove what was built (not build/llhttp)
	rm -rf build/release build/clang build/asan build/fuzz build/cover

distclean: ## Remove build/ altogether
	rm -rf build

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | \
	 sed -E 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/' | \
	 while IFS="$$(printf '\t')" read -r t h; do printf '  %-14s %s\n' "$$t" "$$h"; done
