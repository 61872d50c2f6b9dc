# SPDX-License-Identifier: Apache-2.0
# kvd: one non-recursive Makefile, everything built below $(BUILD).
#
#   make                 kvd, kvctl, libkvd, kvd-bench
#   make check           unit, kernel, model and daemon tests (minutes)
#   make check-long      the full counts
#   make fuzz            the fuzz targets, by clang with libFuzzer
#   make fuzz-run SECONDS=20 [FUZZ="gguf codec"]    runs each for so long
#   make lint            layer rules, man pages, style of the tree
#   make tidy cppcheck   static analysis
#   make bench           kvd-bench on MODEL
#   make bench-peer PEER_PYTHON=...    in turn with llama-cpp-python
#   make bench-prefix [PEER_PYTHON=...]    prefixes that are shared or cached, through the daemon
#   make bench-restart   the first token after a restart
#   make bench-load      how fast a model loads out of the page cache, and with how much memory
#   make bench-fair      what users, and other processes, do to each other
#   make bench-disk     what writing the cache to disk costs
#   make bench-http     the same streams through HTTP and through shared memory
#   make install         honours DESTDIR, prefix, libdir, ...
#   make SANITIZER=address,undefined check    (or thread); builds in a folder of its own
#
# CFLAGS, CPPFLAGS, LDFLAGS are the packager's; our own flags are apart.

VERSION := 0.1.0
SOVERSION := 0

CC ?= gcc
AR ?= ar
PKG_CONFIG ?= pkg-config
INSTALL ?= install
CLANG_TIDY ?= clang-tidy
CPPCHECK ?= cppcheck
PYTHON ?= /usr/bin/python3
CFLAGS ?= -O2 -g
SANITIZER ?=
WERROR ?=
comma := ,
BUILD ?= build$(if $(SANITIZER),/sanitize-$(subst $(comma),-,$(SANITIZER)))

prefix ?= /usr/local
bindir ?= $(prefix)/bin
sbindir ?= $(prefix)/sbin
libdir ?= $(prefix)/lib
includedir ?= $(prefix)/include
mandir ?= $(prefix)/share/man
docdir ?= $(prefix)/share/doc/kvd

# -ffp-contract=off: where a multiply-add is fused is part of the numerics and
# is written out in the source.
OWN_CFLAGS := -std=gnu17 -fPIC -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -fno-math-errno \
	-fstack-protector-strong -pthread \
	-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wwrite-strings \
	-Wvla -Wformat=2 -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers \
	$(if $(WERROR),-Werror) $(if $(SANITIZER),-fsanitize=$(SANITIZER) -fno-omit-frame-pointer) \
	$(if $(findstring undefined,$(SANITIZER)),-fno-sanitize-recover=undefined)
OWN_CPPFLAGS := -I. -D_GNU_SOURCE -DKVD_VERSION='"$(VERSION)"'
OWN_LDFLAGS := -pthread -Wl,-z,relro,-z,now -Wl,--as-needed $(if $(SANITIZER),-fsanitize=$(SANITIZER))

ALL_CFLAGS = $(OWN_CFLAGS) $(CFLAGS) $(LEVEL_CFLAGS)
ALL_CPPFLAGS = $(OWN_CPPFLAGS) $(CPPFLAGS) $(LAYER_CPPFLAGS)
ALL_LDFLAGS = $(OWN_LDFLAGS) $(LDFLAGS)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
MAKEFLAGS += --no-builtin-rules

# --- layers -----------------------------------------------------------------

LAYERS := base ipc kernels model cache engine server
base_DIR := ipc/base
ipc_DIR := ipc
kernels_DIR := kernels/cpu
model_DIR := daemon/model
cache_DIR := daemon/cache
engine_DIR := daemon/engine
server_DIR := daemon/server

# Sanitized, the loops of the CPU levels are instrumented for the kernels' own tests alone: ten times slower, they
# would make up most of what the tests of the daemon compute.
KERNELS := $(if $(filter-out fuzzer%,$(SANITIZER)),kernels-plain,kernels)

# What each layer links, itself first; the include rules are in tools/lint-layers.
base_ARCHIVES := base
ipc_ARCHIVES := ipc base
kernels_ARCHIVES := kernels
model_ARCHIVES := model $(KERNELS) base
cache_ARCHIVES := cache $(KERNELS) base
engine_ARCHIVES := engine model cache $(KERNELS) base
server_ARCHIVES := server engine model cache $(KERNELS) ipc base

# Outside libraries by layer (system headers need no -I on Debian).
base_LIBS := -lxxhash
ipc_LIBS := -lmsgpackc -lxxhash
kernels_LIBS := -lm
model_LIBS := -lpcre2-8 -lxxhash -lm
cache_LIBS := -lsqlite3 -lzstd -lxxhash -lm
engine_LIBS := -lpcre2-8 -lsqlite3 -lzstd -lxxhash -lm
server_LIBS := -levent_core -levent_pthreads -ljansson -lsystemd -lmsgpackc -lpcre2-8 -lsqlite3 -lzstd -lxxhash -lm

define layer_template
$(1)_SRC := $$(wildcard $$($(1)_DIR)/*.c)
$(1)_OBJ := $$($(1)_SRC:%.c=$$(BUILD)/obj/%.o)
$$(BUILD)/lib/lib$(1).a: $$($(1)_OBJ)
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(AR) rcs $$@ $$^
endef
$(foreach l,$(LAYERS),$(eval $(call layer_template,$(l))))
archives = $(foreach a,$($(1)_ARCHIVES),$(BUILD)/lib/lib$(a).a)

# One kernel source per CPU level; chosen at run time by CPUID.  Unrolled and
# instrumented kernels would take minutes to compile.
KERNEL_CFLAGS = $(if $(SANITIZER),$(if $(findstring /obj/plain/,$@),-O3,-O1 -DKC_NO_UNROLL),-O3)
$(BUILD)/obj/kernels/%.o: LEVEL_CFLAGS = $(KERNEL_CFLAGS)
AVX512_CFLAGS := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
$(BUILD)/obj/%/level-avx2.o: LEVEL_CFLAGS = $(KERNEL_CFLAGS) -mavx2 -mfma -mf16c
$(BUILD)/obj/%/level-avx512.o: LEVEL_CFLAGS = $(KERNEL_CFLAGS) $(AVX512_CFLAGS)
$(BUILD)/obj/%/level-avx512vnni.o: LEVEL_CFLAGS = $(KERNEL_CFLAGS) $(AVX512_CFLAGS) -mavx512vnni
$(BUILD)/obj/%/level-amx.o: LEVEL_CFLAGS = $(KERNEL_CFLAGS) $(AVX512_CFLAGS) -mavx512vnni -mamx-tile -mamx-int8
# The AVX-512 kernels again, emulated by SIMDe (libsimde-dev) on AVX2, for a test.
# Unrolled they take ninety seconds to compile instead of three.
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
$(BUILD)/obj/tests/unit/kernels/test-simde-%.o: LEVEL_CFLAGS = -O1 -DKC_NO_UNROLL -mavx2 -mfma -mf16c -Wno-psabi -Wno-maybe-uninitialized
endif

# Its loops over bytes are as fast as memory only as vectors.
$(BUILD)/obj/daemon/cache/coding.o: LEVEL_CFLAGS = $(if $(SANITIZER),,-O3)

# The document that it serves is part of it.
$(BUILD)/obj/daemon/server/http-openapi.o: daemon/server/openapi.json

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

PLAIN_CFLAGS = $(filter-out -fsanitize=% -fno-sanitize-recover=%,$(ALL_CFLAGS))
$(BUILD)/obj/plain/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(PLAIN_CFLAGS) -MMD -MP -c -o $@ $<

KERNEL_LEVELS := $(filter $(kernels_DIR)/level-%,$(kernels_SRC))
$(BUILD)/lib/libkernels-plain.a: $(KERNEL_LEVELS:%.c=$(BUILD)/obj/plain/%.o) \
		$(filter-out $(KERNEL_LEVELS:%.c=$(BUILD)/obj/%.o),$(kernels_OBJ))
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^

# kernels/cuda/ has no sources yet.  When it has, NVCC ?= $(shell command -v nvcc)
# builds them as one more archive of KVD's link line; without nvcc nothing changes.

# --- programs and the library -------------------------------------------------

LIBKVD_SRC := $(wildcard client/lib/*.c)
LIBKVD_OBJ := $(LIBKVD_SRC:%.c=$(BUILD)/obj/%.o) $(ipc_OBJ) $(base_OBJ)
KVCTL_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard client/ctl/*.c))
KVD_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard daemon/*.c))
# With the readers of streams, without their program.
BENCH_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/bench/*.c) tests/load/load-http.c tests/load/load-ring.c)
EXAMPLES := $(patsubst client/examples/%.c,$(BUILD)/examples/%,$(wildcard client/examples/*.c))

KVD := $(BUILD)/bin/kvd
KVCTL := $(BUILD)/bin/kvctl
LIBKVD_A := $(BUILD)/lib/libkvd.a
LIBKVD_SO := $(BUILD)/lib/libkvd.so.$(SOVERSION)

all: $(KVD) $(KVCTL) $(LIBKVD_A) $(LIBKVD_SO) $(BUILD)/bin/kvd-bench $(EXAMPLES)

$(KVD): $(KVD_OBJ) $(call archives,server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(server_LIBS) -linih

$(LIBKVD_A): $(LIBKVD_OBJ)
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^

$(LIBKVD_SO): $(LIBKVD_OBJ) client/lib/libkvd.map
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -shared -Wl,-soname,libkvd.so.$(SOVERSION) \
		-Wl,--version-script=client/lib/libkvd.map -o $@ $(filter %.o,$^) -lmsgpackc -lxxhash
	ln -sf libkvd.so.$(SOVERSION) $(BUILD)/lib/libkvd.so

# kvctl is linked statically with libkvd, so that it runs from the build folder.
$(KVCTL): $(KVCTL_OBJ) $(LIBKVD_A)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ -lmsgpackc -ljansson -lxxhash -lm

$(BUILD)/examples/%: $(BUILD)/obj/client/examples/%.o $(LIBKVD_A)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ -lmsgpackc -lxxhash -lm

$(BUILD)/bin/kvd-bench: $(BENCH_OBJ) $(LIBKVD_A) $(call archives,server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(server_LIBS)

# --- tests ------------------------------------------------------------------
# tests/unit/LAYER/test-X.c links that layer and the ones below it, no more.

define unit_template
$(1)_TESTS := $$(patsubst tests/unit/$(1)/%.c,$$(BUILD)/tests/unit/$(1)/%,$$(wildcard tests/unit/$(1)/test-*.c))
$$(BUILD)/tests/unit/$(1)/%: $$(BUILD)/obj/tests/unit/$(1)/%.o $$(call archives,$(1))
	@mkdir -p $$(@D)
	$$(CC) $$(ALL_CFLAGS) $$(ALL_LDFLAGS) -o $$@ $$^ -lcmocka $$($(1)_LIBS)
endef
$(foreach l,$(LAYERS),$(eval $(call unit_template,$(l))))
client_TESTS := $(patsubst tests/unit/client/%.c,$(BUILD)/tests/unit/client/%,$(wildcard tests/unit/client/test-*.c))
$(BUILD)/tests/unit/client/%: $(BUILD)/obj/tests/unit/client/%.o $(LIBKVD_A)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ -lcmocka -lmsgpackc -lxxhash -lm
daemon_TESTS := $(patsubst tests/unit/daemon/%.c,$(BUILD)/tests/unit/daemon/%,$(wildcard tests/unit/daemon/test-*.c))
$(BUILD)/tests/unit/daemon/%: $(BUILD)/obj/tests/unit/daemon/%.o $(BUILD)/obj/daemon/config.o $(call archives,server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(server_LIBS) -linih
UNIT_TESTS := $(foreach l,$(LAYERS) client daemon,$($(l)_TESTS))

# Programs that other tests run; they may link the whole daemon.
TEST_TOOLS := $(patsubst tests/tools/%.c,$(BUILD)/tests/tools/%,$(wildcard tests/tools/*.c))
$(BUILD)/tests/tools/%: $(BUILD)/obj/tests/tools/%.o $(call archives,server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(server_LIBS)

# kvd with faults: the same objects, with functions wrapped that tests let fail.
FAULT_POINTS := malloc calloc realloc reallocarray aligned_alloc strdup strndup asprintf \
	msgpack_zone_new msgpack_zone_malloc_expand XXH3_createState \
	pcre2_compile_8 pcre2_match_data_create_8 pcre2_match_context_create_8 \
	read pread mmap pthread_create memfd_create ftruncate eventfd preadv pwritev fdatasync clock_gettime
KVD_FAULTS := $(BUILD)/tests/kvd-faults
$(KVD_FAULTS): $(BUILD)/obj/tests/faults/faults.o $(KVD_OBJ) $(call archives,server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(FAULT_POINTS:%=-Wl,--wrap=%) -o $@ $^ $(server_LIBS) -linih

# kvd whose prefixes are found by a hash of 8 bits; it tells at the end how many collided.
KVD_HASH8 := $(BUILD)/tests/kvd-hash8
$(BUILD)/obj/tests/hash8/engine-model.o: daemon/engine/engine-model.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) -DKVD_TEST_HASH_BITS=8 $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
$(KVD_HASH8): $(BUILD)/obj/tests/hash8/engine-model.o $(BUILD)/obj/tests/hash8/report.o $(KVD_OBJ) $(call archives,server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -Wl,--wrap=tree_free -o $@ $^ $(server_LIBS) -linih

# kvd that notes when each token was drawn, and many streams of tokens at once: for measurements.
KVD_TIMES := $(BUILD)/tests/kvd-times
$(KVD_TIMES): $(BUILD)/obj/tests/times/times.o $(KVD_OBJ) $(call archives,server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -Wl,--wrap=sampler_sample -o $@ $^ $(server_LIBS) -linih
STREAM_LOAD := $(BUILD)/tests/stream-load
$(STREAM_LOAD): $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/load/*.c)) $(LIBKVD_A)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ -lmsgpackc -lxxhash -lm

# --- fuzzing ----------------------------------------------------------------
# tests/fuzz/fuzz-X.c is linked with replay.c, which gives it its seeds and past findings
# (part of `check`, with any compiler), and by `make fuzz` with libFuzzer.

FUZZ_NAMES := $(patsubst tests/fuzz/fuzz-%.c,%,$(wildcard tests/fuzz/fuzz-*.c))
FUZZ_CC ?= clang
SECONDS ?= 20
FUZZ_LINKED = $(BUILD)/obj/daemon/config.o $(call archives,server)
FUZZ_REPLAYS := $(FUZZ_NAMES:%=$(BUILD)/tests/fuzz/replay-%)

$(BUILD)/tests/fuzz/replay-%: $(BUILD)/obj/tests/fuzz/fuzz-%.o $(BUILD)/obj/tests/fuzz/replay.o $(FUZZ_LINKED)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(server_LIBS) -linih

$(BUILD)/bin/fuzz-%: $(BUILD)/obj/tests/fuzz/fuzz-%.o $(FUZZ_LINKED)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(server_LIBS) -linih

fuzzers: $(FUZZ_NAMES:%=$(BUILD)/bin/fuzz-%)

fuzz:
	$(MAKE) CC='$(FUZZ_CC)' SANITIZER=fuzzer-no-link,address,undefined BUILD='$(BUILD)/fuzz' fuzzers

fuzz-run: fuzz
	tests/fuzz/run --build '$(BUILD)/fuzz' --seconds $(SECONDS) $(FUZZ)

tests: $(UNIT_TESTS) $(TEST_TOOLS) $(KVD_FAULTS) $(KVD_HASH8) $(KVD_TIMES) $(STREAM_LOAD) $(FUZZ_REPLAYS)

check: all tests
	tests/run --build $(BUILD)

check-long: all tests
	tests/run --build $(BUILD) --long

# --- benchmarks -------------------------------------------------------------

MODEL ?= $(shell tools/fetch-model --cached)

bench: $(BUILD)/bin/kvd-bench
	$< -m '$(MODEL)' $(BENCH_OPTIONS)

# Both models, where they are, unless MODEL names one.
PEER_MODELS ?= $(MODEL) $(if $(filter file,$(origin MODEL)),$(shell tools/fetch-model --cached gemma3-270m))

bench-peer: $(BUILD)/bin/kvd-bench
	tests/bench/bench-peer --build $(BUILD) $(PEER_MODELS:%=-m '%') --peer-python '$(PEER_PYTHON)' $(BENCH_OPTIONS)

bench-prefix: $(KVD)
	tests/bench/bench-prefix --build $(BUILD) -m '$(MODEL)' $(if $(PEER_PYTHON),--peer-python '$(PEER_PYTHON)') \
		$(BENCH_OPTIONS)

bench-disk: $(KVD)
	tests/bench/bench-disk --build $(BUILD) -m '$(MODEL)' $(BENCH_OPTIONS)

bench-http: $(KVD) $(KVD_TIMES) $(STREAM_LOAD)
	tests/bench/bench-http --build $(BUILD) -m '$(MODEL)' $(BENCH_OPTIONS)

bench-fair: $(KVD)
	tests/bench/bench-fair --build $(BUILD) -m '$(MODEL)' $(BENCH_OPTIONS)

bench-load: $(BUILD)/tests/tools/load-bench
	$< '$(MODEL)' smollm2-1.7b:q4_0 $(BENCH_OPTIONS)

bench-restart: $(KVD) $(BUILD)/tests/tools/pass-fds
	tests/bench/bench-restart --build $(BUILD) -m '$(MODEL)' $(BENCH_OPTIONS)

# --- lint -------------------------------------------------------------------

C_FOLDERS := ipc kernels daemon client tests
C_SRC = $(shell find $(C_FOLDERS) -name '*.c')

lint:
	tools/lint-layers --self-test
	tools/lint-layers
	tools/lint-tree --build $(BUILD)
	@if command -v mandoc >/dev/null; then mandoc -T lint -W warning man/*.[0-9]; else echo "mandoc is not installed: man pages not checked"; fi

# The AVX-512 sources differ from the AVX2 ones in their vectors only.
tidy:
	@printf '%s\0' $(filter-out %-avx512.c %-avx512vnni.c %/level-amx.c,$(C_SRC)) | xargs -0 -P 2 -I FILE sh -c \
		'out=$$($(CLANG_TIDY) --quiet FILE -- -std=gnu17 -I. -D_GNU_SOURCE -DKVD_VERSION=\"\" -mavx2 -mfma -mf16c 2>&1) || \
		{ printf "%s\n" "$$out"; exit 1; }'

# Leaks: it does not know the cleanup attribute; the sanitizers find them.
# Not the tests: it misreads their macros, and clang-tidy covers them.
cppcheck:
	$(CPPCHECK) --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability --inline-suppr -j 2 \
		--suppress=memleak --suppress=resourceLeak -I. -D_GNU_SOURCE -D__x86_64__ $(filter-out tests,$(C_FOLDERS))

# --- install ----------------------------------------------------------------

install: all
	$(INSTALL) -d $(DESTDIR)$(bindir) $(DESTDIR)$(sbindir) $(DESTDIR)$(libdir)/pkgconfig $(DESTDIR)$(includedir) \
		$(DESTDIR)$(mandir)/man1 $(DESTDIR)$(mandir)/man3 $(DESTDIR)$(mandir)/man5 \
		$(DESTDIR)$(mandir)/man7 $(DESTDIR)$(mandir)/man8 $(DESTDIR)$(docdir)
	$(INSTALL) -m 755 $(KVCTL) $(BUILD)/bin/kvd-bench $(DESTDIR)$(bindir)
	$(INSTALL) -m 755 $(KVD) $(DESTDIR)$(sbindir)
	$(INSTALL) -m 644 $(LIBKVD_A) $(DESTDIR)$(libdir)
	$(INSTALL) -m 755 $(LIBKVD_SO) $(DESTDIR)$(libdir)
	ln -sf libkvd.so.$(SOVERSION) $(DESTDIR)$(libdir)/libkvd.so
	$(INSTALL) -m 644 daemon/server/openapi.json $(DESTDIR)$(docdir)
	$(INSTALL) -m 644 client/kvd.h $(DESTDIR)$(includedir)
	sed -e 's|@prefix@|$(prefix)|;s|@libdir@|$(libdir)|;s|@includedir@|$(includedir)|;s|@version@|$(VERSION)|' \
		client/lib/kvd.pc.in > $(DESTDIR)$(libdir)/pkgconfig/kvd.pc
	$(INSTALL) -m 644 man/kvctl.1 $(DESTDIR)$(mandir)/man1
	$(INSTALL) -m 644 man/libkvd.3 $(DESTDIR)$(mandir)/man3
	$(INSTALL) -m 644 man/kvd.conf.5 $(DESTDIR)$(mandir)/man5
	$(INSTALL) -m 644 man/kvd-cache.7 man/kvd-http.7 $(DESTDIR)$(mandir)/man7
	$(INSTALL) -m 644 man/kvd.8 $(DESTDIR)$(mandir)/man8

clean:
	rm -rf $(BUILD)

.PHONY: all tests check check-long fuzz fuzzers fuzz-run bench bench-load bench-peer bench-prefix bench-restart bench-fair bench-disk bench-http lint tidy cppcheck install clean

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
