# libtinker: one non-recursive Makefile.  `make help` lists what it can do.
#
#   BUILD=release|clang|debug|asan|tsan|cov|fuzz   choose a variant; it lives in $(OUT)/<variant>
#   ARCH=x86|aarch64|portable                choose the engine's kernels; else the compiler's target
#   WITHOUT="zstd pcre2"                     leave out a library; what then cannot be done says so
#   OUT=build                                where everything lands
#   V=1                                      show the commands

BUILD ?= release
OUT ?= build
PREFIX ?= /usr/local
BIN ?= tinker
DESTDIR ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
WITHOUT ?=
SPACE := $() $()
B := $(OUT)/$(BUILD)$(if $(WITHOUT),-no-$(subst $(SPACE),-,$(sort $(WITHOUT))))
ifneq ($(filter-out zstd pcre2,$(WITHOUT)),)
$(error WITHOUT=$(WITHOUT): only zstd and pcre2 can be left out)
endif

# In front of a command: what it reads, or what it makes, instead of its text.
QUIET := $(if $(V),,@)
SAY_SOURCE = $(if $(V),,@echo '  $<' &&)
SAY_RESULT = $(if $(V),,@echo '  $@' &&)

VERSION := $(shell sed -n 's/^\#define TINKER_VERSION  *"\(.*\)"/\1/p' include/tinker/version.h)
ifeq ($(VERSION),)
$(error include/tinker/version.h does not say TINKER_VERSION)
endif
SOMAJOR := $(firstword $(subst ., ,$(VERSION)))
COMMIT := $(shell [ -e .git ] && git rev-parse --short=12 HEAD 2>/dev/null)

ifeq ($(filter $(BUILD),release clang debug asan tsan cov fuzz),)
$(error BUILD=$(BUILD) is none of release clang debug asan tsan cov fuzz)
endif

CC := gcc
FLAGS_release := -O2 -g
FLAGS_clang := -O2 -g
FLAGS_debug := -O0 -g3
FLAGS_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
FLAGS_cov := -O0 -g --coverage
FLAGS_fuzz := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
ifneq ($(filter $(BUILD),clang fuzz),)
CC := clang
endif

# Whose kernels are compiled: src/engine/kernels/$(ARCH), by what the compiler makes programs for.
# `make ARCH=portable` leaves out those of this machine.
ARCHES := x86 aarch64 portable
MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ARCH := $(if $(filter x86_64,$(MACHINE)),x86,$(if $(filter aarch64 arm64,$(MACHINE)),aarch64,portable))
ifeq ($(filter $(ARCH),$(ARCHES)),)
$(error ARCH=$(ARCH) is none of $(ARCHES))
endif

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
        -Wvla -Wwrite-strings -Wformat=2 -Werror
ifneq ($(filter $(BUILD),clang fuzz),) # clang's idea of -Wformat=2 refuses a format that its caller checked
WARN += -Wno-format-nonliteral
endif
CPPFLAGS += -D_POSIX_C_SOURCE=200809L -D_FILE_OFFSET_BITS=64 -Iinclude -Isrc
CFLAGS_ALL = -std=c11 -fPIC -fvisibility=hidden -pthread $(WARN) $(FLAGS_$(BUILD)) $(CFLAGS)
LDFLAGS_ALL = -pthread $(FLAGS_$(BUILD)) $(LDFLAGS)

PKG_zstd := $(if $(filter zstd,$(WITHOUT)),,libzstd)
PKG_pcre2 := $(if $(filter pcre2,$(WITHOUT)),,libpcre2-8)
PKGS_client := libcurl $(PKG_zstd) zlib $(PKG_pcre2) libutf8proc
PKGS_server := libmicrohttpd sqlite3
LIBS_client = $(shell pkg-config --libs $(PKGS_client)) -lm
LIBS_server = $(shell pkg-config --libs $(PKGS_server))
LIBS_cli = $(shell pkg-config --libs libedit)
LIBS_json := -lm
LIBS_grammar := -lm
LIBS_BENCH_json := -ljansson
LIBS_BENCH_engine := $(foreach f,gemm_forward gemm_backward gemm_left gemm_forward_left gemm_backward_left dense_nt dense_nn dense_tn dense_nt_columns dense_tn_columns dense_nn_rounded dense_tn_rounded dense_tn_columns_rounded dense_add_left dense_left,-Wl,--wrap=$(f))
LIBS_base := -lm
LIBS_engine := -lm
LIBS_autodiff := -lm
LIBS_graph := -lm
LIBS_regularizer := -lm
LIBS_wire = $(if $(PKG_zstd),$(shell pkg-config --libs $(PKG_zstd))) -lm
LIBS_http = $(shell pkg-config --libs libcurl) -lm
LIBS_unicode = $(shell pkg-config --libs libutf8proc)
LIBS_jinja = $(LIBS_unicode) -lm
LIBS_tokenizer = $(shell pkg-config --libs $(PKG_pcre2) libutf8proc) -lm
LIBS_chat = $(LIBS_tokenizer)
LIBS_recipe := -lm

# ---- the rooms, and which of ours each may link: the layering rule once more -------------------
ROOMS := base json gguf grammar wire http unicode tokenizer jinja chat autodiff graph regularizer engine client recipe server cli
TEXT := chat jinja tokenizer unicode
LINK_base := base
LINK_json := json base
LINK_gguf := gguf base
LINK_grammar := grammar json base
LINK_wire := wire json base
LINK_http := http base
LINK_unicode := unicode base
LINK_tokenizer := tokenizer unicode gguf json base
LINK_jinja := jinja unicode json base
LINK_chat := $(TEXT) gguf json base
LINK_autodiff := autodiff base
LINK_graph := graph autodiff json base
LINK_regularizer := regularizer autodiff base
LINK_engine := engine gguf json base
LINK_client := client regularizer autodiff $(TEXT) http wire gguf json base
LINK_recipe := recipe $(LINK_client)
LINK_server := server $(TEXT) wire grammar graph autodiff engine gguf json base
LINK_cli := cli server engine recipe client regularizer graph autodiff $(TEXT) http wire grammar gguf json base

# A room's sources lie in its folder and one or two levels below it.
$(foreach r,$(ROOMS),$(eval SRC_$(r) := $(wildcard src/$(r)/*.c src/$(r)/*/*.c src/$(r)/*/*/*.c)))
SRC_engine := $(filter-out $(foreach a,$(filter-out $(ARCH),$(ARCHES)),src/engine/kernels/$(a)/%),$(SRC_engine))
# A library that is left out has a file that says so in its place.
SRC_wire := $(filter-out src/wire/zstd$(if $(PKG_zstd),_absent).c,$(SRC_wire))
SRC_tokenizer := $(filter-out src/tokenizer/split/split_regex$(if $(PKG_pcre2),_absent).c,$(SRC_tokenizer))
$(foreach r,$(ROOMS),$(eval OBJ_$(r) := $(patsubst src/%.c,$(B)/obj/%.o,$(SRC_$(r)))))
# The page at / is compiled in: see tools/embed-page.
PAGE := $(wildcard src/server/page/*)
OBJ_server += $(B)/obj/server/page/page_files.o
archives = $(foreach r,$(LINK_$(1)),$(B)/room/$(r).a)
libs = $(LIBS_$(1)) $(if $(filter server,$(LINK_$(1))),$(LIBS_server) $(LIBS_client)) \
       $(if $(filter client,$(LINK_$(1))),$(LIBS_client))

# ---- what is built ------------------------------------------------------------------------------
LIB_OBJS = $(foreach r,$(LINK_recipe),$(OBJ_$(r)))
ENGINE_OBJS = $(foreach r,$(LINK_engine),$(OBJ_$(r)))
TARGETS := $(B)/libtinker.a $(B)/libtinker.so $(B)/libtinker-engine.a $(B)/tinker $(B)/tinker.pc $(B)/tinker-engine.pc
EXAMPLES := $(patsubst examples/%.c,$(B)/examples/%,$(wildcard examples/*.c))
TOOLS := $(patsubst tools/%.c,$(B)/tools/%,$(wildcard tools/*.c))
BENCHES := $(patsubst bench/%.c,$(B)/bench/%,$(wildcard bench/*.c))
FUZZERS := $(patsubst fuzz/%.c,$(B)/fuzz/%,$(wildcard fuzz/*.c))
DOCUMENTED := $(filter-out %/tinker.h,$(wildcard include/tinker/*.h include/tinker/extra/*.h))
HEADERPAGES := $(foreach h,$(DOCUMENTED),$(OUT)/man/tinker_$(basename $(notdir $(h))).3) $(OUT)/man/libtinker.3
COMMANDPAGES := $(patsubst docs/man/%.scd,$(OUT)/man/%,$(wildcard docs/man/*.1.scd))
MANPAGES := $(COMMANDPAGES) $(HEADERPAGES)

TEST_ROOMS := $(foreach r,$(ROOMS),$(if $(wildcard tests/$(r)/*.c),$(r)))
tests_of = $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/$(1)/*.c tests/$(1)/$(ARCH)/*.c))
ALL_TESTS := $(foreach r,$(TEST_ROOMS),$(call tests_of,$(r)))
E2E_TESTS := $(wildcard tests/e2e/*.sh)
CLI_TESTS := $(wildcard tests/cli/*.sh)
SUPPORT_client := $(patsubst tests/%.c,$(B)/obj/tests/%.o,$(wildcard tests/support/fake_*.c))

.PHONY: all deps quickstart test conformance lint fuzz bench install uninstall clean help layers \
        man examples check-headers compile_commands.json
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make all            the library, the engine, the tinker program, the examples
all: layers $(TARGETS) $(EXAMPLES) links man compile_commands.json

.PHONY: links
links: $(TARGETS)
ifeq ($(BUILD),release)
	@for f in tinker libtinker.a libtinker.so libtinker-engine.a; do ln -sfn release/$$f $(OUT)/$$f; done
endif

layers:
	@tools/check-layers .

## make man            the man pages: of functions from the headers, of commands if scdoc is there
man: $(HEADERPAGES) $(if $(shell command -v scdoc 2>/dev/null),$(COMMANDPAGES))

# ---- rules --------------------------------------------------------------------------------------
# The name under which the loader finds a library that the linker finds as -lNAME.
soname = $(or $(shell readelf -d $$($(CC) -print-file-name=lib$(1).so) 2>/dev/null | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p'),lib$(1).so)
# kernels for one instruction set say so in their file name
FLAGS_FILE = $(if $(findstring _amx.c,$<),-mamx-tile -mamx-bf16 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx512vnni -mavx2 -mfma, \
             $(if $(findstring _avx512bf16.c,$<),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx2 -mfma, \
             $(if $(findstring _avx512vnni.c,$<),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 -mfma, \
             $(if $(findstring _avx512.c,$<),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma, \
             $(if $(findstring _avx2.c,$<),-mavx2 -mfma -mf16c))))) \
             $(if $(filter fuzz,$(BUILD)),$(if $(findstring /kernels/,$<),-fno-sanitize=all)) \
             $(if $(findstring cmd_version.c,$<),-DTINKER_COMMIT='"$(COMMIT)"') \
             $(if $(findstring /lazy_curl.c,$<),-DLAZY_CURL='"$(call soname,curl)"') \
             $(if $(findstring /lazy_microhttpd.c,$<),-DLAZY_MICROHTTPD='"$(call soname,microhttpd)"')
$(B)/obj/%.o: src/%.c $(B)/flags
	@mkdir -p $(@D)
	$(SAY_SOURCE)$(CC) $(CPPFLAGS) $(CFLAGS_ALL) $(if $(findstring /engine/,$<),-O2 -ffp-contract=off) $(FLAGS_FILE) -MMD -MP -c -o $@ $<
$(B)/obj/tests/%.o: tests/%.c $(B)/flags
	@mkdir -p $(@D)
	$(SAY_SOURCE)$(CC) $(CPPFLAGS) -Itests $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

$(B)/obj/server/page/page_files.c: $(PAGE) tools/embed-page
	@mkdir -p $(@D)
	$(SAY_RESULT)tools/embed-page src/server/page > $@
$(B)/obj/server/page/page_files.o: $(B)/obj/server/page/page_files.c $(B)/flags
	$(SAY_SOURCE)$(CC) $(CPPFLAGS) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

# what `tinker version --json` tells
$(B)/obj/cli/program/cmd_version.o: $(B)/commit
$(B)/commit: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@

# rebuild when the flags change
$(B)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CPPFLAGS) $(CFLAGS_ALL) $(ARCH)' | cmp -s - $@ || echo '$(CC) $(CPPFLAGS) $(CFLAGS_ALL) $(ARCH)' > $@
.PHONY: FORCE
FORCE:

define room_rule
$(B)/room/$(1).a: $(OBJ_$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(SAY_RESULT)ar qcs $$@ $$^
endef
$(foreach r,$(ROOMS),$(eval $(call room_rule,$(r))))

# A static library of one object in which only tinker_* is visible.
$(B)/libtinker.a: $(LIB_OBJS)
	$(SAY_RESULT)ld -r -o $(B)/libtinker.o $^
	$(QUIET)objcopy --localize-hidden $(B)/libtinker.o
	@rm -f $@
	$(QUIET)ar rcs $@ $(B)/libtinker.o
# weak: a program with both libraries has the public functions that both have once
$(B)/libtinker-engine.a: $(ENGINE_OBJS) Makefile
	$(SAY_RESULT)ld -r -o $(B)/libtinker-engine.o $(ENGINE_OBJS)
	$(QUIET)objcopy --localize-hidden $(B)/libtinker-engine.o
	$(QUIET)nm -gj --defined-only $(B)/libtinker-engine.o > $(B)/libtinker-engine.names
	$(QUIET)objcopy --weaken-symbols=$(B)/libtinker-engine.names $(B)/libtinker-engine.o
	@rm -f $@
	$(QUIET)ar rcs $@ $(B)/libtinker-engine.o
$(B)/libtinker.so: $(LIB_OBJS) src/client/libtinker.map Makefile
	$(SAY_RESULT)$(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,libtinker.so.$(SOMAJOR) \
	    -Wl,--version-script=src/client/libtinker.map -Wl,-z,defs -o $@ $(LIB_OBJS) $(LIBS_client)
	@ln -sfn libtinker.so $(B)/libtinker.so.$(SOMAJOR)
# without the two that src/cli/lazy loads when they are needed
$(B)/tinker: $(call archives,cli)
	$(SAY_RESULT)$(CC) $(LDFLAGS_ALL) -o $@ -Wl,--start-group $^ -Wl,--end-group \
	    $(filter-out -lcurl -lmicrohttpd,$(LIBS_server) $(LIBS_client)) $(LIBS_cli) -ldl
# For pkg-config.  What the static library needs is named as it is linked here: by Requires.private
# one would get what a static libcurl needs, too, which nobody has installed.
PC_tinker := fine-tuning and sampling of language models through the Tinker API
PC_tinker-engine := training and sampling of language models on this CPU
$(B)/tinker.pc: PC_LIBS = Libs: -L$${libdir} -ltinker\nLibs.private: $(LIBS_client) -pthread
$(B)/tinker-engine.pc: PC_LIBS = Libs: -L$${libdir} -ltinker-engine $(LIBS_engine) -pthread
$(B)/%.pc: Makefile include/tinker/version.h FORCE
	@mkdir -p $(@D)
	@printf 'prefix=%s\nlibdir=$${prefix}/lib\nincludedir=$${prefix}/include\n\nName: $*\nDescription: $(PC_$*)\nVersion: %s\n$(PC_LIBS)\nCflags: -I$${includedir}\n' '$(PREFIX)' '$(VERSION)' > $@

$(B)/examples/local_engine: $(B)/libtinker-engine.a
$(B)/examples/%: examples/%.c $(B)/libtinker.a
	@mkdir -p $(@D)
	$(SAY_RESULT)$(CC) -std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror $(FLAGS_$(BUILD)) -Iinclude -MMD -MP -o $@ $< $(filter %.a,$^) $(LIBS_client) -pthread
# tools may use any room but the ones that serve
$(B)/tools/%: tools/%.c $(call archives,cli)
	@mkdir -p $(@D)
	$(SAY_RESULT)$(CC) $(CPPFLAGS) $(CFLAGS_ALL) $(LDFLAGS_ALL) -MMD -MP -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_server) $(LIBS_client)
$(B)/bench/%: bench/%.c $(call archives,cli)
	@mkdir -p $(@D)
	$(SAY_RESULT)$(CC) $(CPPFLAGS) -Itests $(CFLAGS_ALL) $(LDFLAGS_ALL) -MMD -MP -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_server) $(LIBS_client) $(LIBS_BENCH_$*)
# A fuzz target names its room in its first line: /* room: json ... */
$(B)/fuzz/%: fuzz/%.c $(foreach r,$(ROOMS),$(B)/room/$(r).a)
	@mkdir -p $(@D)
	$(SAY_RESULT)$(CC) $(CPPFLAGS) -Itests -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -pthread -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_server) $(LIBS_client)

comma := ,
# a test whose name ends in _nomem meets an allocator that fails on demand
NOMEM_ALWAYS := tests/support/failmalloc.c $(foreach f,malloc calloc realloc aligned_alloc strdup strndup,-Wl$(comma)--wrap=$(f))
NOMEM = $(if $(filter %_nomem,$@),$(NOMEM_ALWAYS))
# one test's own flags: it acts between two steps of the server; it computes with AVX2
TEST_FLAGS_server_samplers := -Wl,--wrap=store_get_sampler
TEST_FLAGS_engine_kernels_tiles := -mavx2 -mfma -mf16c
define test_rule
$(B)/tests/$(1)/%: tests/$(1)/%.c $(call archives,$(1)) $(SUPPORT_$(1))
	@mkdir -p $$(@D)
	$$(SAY_RESULT)$$(CC) $$(CPPFLAGS) -Itests $$(CFLAGS_ALL) -Wno-missing-prototypes -Wno-unused-function $$(LDFLAGS_ALL) -MMD -MP -o $$@ $$< $$(NOMEM) $$(TEST_FLAGS_$(1)_$$(@F)) $(SUPPORT_$(1)) -Wl,--start-group $(call archives,$(1)) -Wl,--end-group $$(call libs,$(1)) $$(LIBS_TEST_$(1))
.PHONY: test-$(1)
test-$(1): $(call tests_of,$(1))
	@JOBS=$(JOBS) tools/run-tests $(B) $$^
endef
$(foreach r,$(TEST_ROOMS),$(eval $(call test_rule,$(r))))
LIBS_TEST_json := $(shell pkg-config --libs jansson 2>/dev/null)
LIBS_TEST_wire := $(LIBS_TEST_json)

# ---- tests --------------------------------------------------------------------------------------
.PHONY: build-tests
build-tests: all $(ALL_TESTS) $(TOOLS)

## make test           install what is missing, build, run every test that needs Debian packages only
test: deps
	@$(MAKE) --no-print-directory -j$(JOBS) run-tests
.PHONY: run-tests
run-tests: build-tests check-headers
	@JOBS=$(JOBS) BUILD_DIR=$(B) tools/run-tests $(B) $(ALL_TESTS) $(E2E_TESTS) $(CLI_TESTS)

check-headers:
	@tools/check-headers

## make conformance    compare with the official SDK and other oracles from PyPI and npm
conformance:
	@tools/deps conformance
	@$(MAKE) --no-print-directory -j$(JOBS) all $(TOOLS)
	@BUILD_DIR=$(B) tests/conformance/run

## make newest         compare the newest SDK of the registry with what tests/conformance/sdk_map.tsv has
.PHONY: newest
newest:
	@tools/deps conformance
	@tools/newest

## make live           examples and checks against the service of TINKER_BASE_URL, with your key: costs money
.PHONY: live
live: deps
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@BUILD_DIR=$(B) tools/live $(NAMES)

## make lint           formatting, layering, static checks
lint:
	@tools/deps lint
	@$(MAKE) --no-print-directory -j$(JOBS) all >/dev/null
	@tools/lint

## make fuzz           run every fuzz target for FUZZ_SECONDS (default 10)
fuzz:
	@tools/deps fuzz
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=fuzz run-fuzz
.PHONY: run-fuzz
run-fuzz: $(FUZZERS)
	@tools/run-fuzz $(B) $(FUZZERS)

## make fuzz-hours     every fuzz target in turns for an hour of the processor in all, counted in fuzz/hours.tsv
.PHONY: fuzz-hours
fuzz-hours:
	@tools/deps fuzz
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=fuzz $(subst $(B)/,$(OUT)/fuzz/,$(FUZZERS))
	@tools/fuzz-hours $(OUT)/fuzz --jobs $(JOBS) $(if $(MINUTES),--minutes $(MINUTES))

## make bench          measure, report ratios
bench:
	@tools/deps conformance bench
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=release all $(BENCHES)
	@tools/run-bench $(OUT)/release

## make trials         hours of faults against real clients and a real server; SHORT=1: what CI runs
.PHONY: trials
trials: deps
	@$(MAKE) --no-print-directory -j$(JOBS) build-tests
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=asan all build/asan/tools/make-tiny-model
	@tools/trials $(if $(SHORT),--short)

## make mutants        change single lines of the sources; do the tests notice?  COUNT=100, SEED=1, FOLDERS="src/client ..."
.PHONY: mutants
mutants: deps
	@JOBS=$(JOBS) tools/mutants --count $(or $(COUNT),100) --seed $(or $(SEED),1) --bar 90 --scripts $(or $(SCRIPTS),openai,stream,sessions) $(FOLDERS)

## make deps           name and install missing Debian packages
deps:
	@tools/deps

## make quickstart     install what is missing, build, fine-tune the bundled model, show the effect
quickstart: deps
	@echo 'quickstart: building (a minute or two the first time; make all shows the files)'
	@mkdir -p $(B)
	@$(MAKE) --no-print-directory -j$(JOBS) all >$(B)/quickstart.log 2>&1 || { cat $(B)/quickstart.log; exit 1; }
	@BUILD_DIR=$(B) tools/quickstart

## make examples       install what is missing, build, run every program of examples/, stop at a failure
examples: deps
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@BUILD_DIR=$(B) tools/run-examples $(NAMES)

## make install        into PREFIX (default /usr/local); BIN=name renames the program
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/tinker/extra
	install -s -m 755 $(B)/tinker $(DESTDIR)$(PREFIX)/bin/$(BIN)
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/tinker $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(B)/tinker completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$(BIN)
	$(B)/tinker completion zsh > $(DESTDIR)$(PREFIX)/share/tinker/completion.zsh
	$(B)/tinker completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$(BIN).fish
	install -m 644 include/tinker/*.h $(DESTDIR)$(PREFIX)/include/tinker
	install -m 644 include/tinker/extra/*.h $(DESTDIR)$(PREFIX)/include/tinker/extra
	install -m 644 $(B)/libtinker.a $(B)/libtinker-engine.a $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(B)/libtinker.so $(DESTDIR)$(PREFIX)/lib/libtinker.so.$(VERSION)
	ln -sfn libtinker.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libtinker.so.$(SOMAJOR)
	ln -sfn libtinker.so.$(SOMAJOR) $(DESTDIR)$(PREFIX)/lib/libtinker.so
	install -m 644 $(B)/tinker.pc $(B)/tinker-engine.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig
	install -d $(DESTDIR)$(PREFIX)/share/tinker/models/tiny
	install -m 644 models/tiny/*.json models/tiny/*.safetensors models/tiny/README.md $(DESTDIR)$(PREFIX)/share/tinker/models/tiny
	@tools/install-man '$(DESTDIR)$(PREFIX)/share/man' $(abspath $(MANPAGES))
	@[ -n '$(DESTDIR)' ] || PATH=$$PATH:/usr/sbin:/sbin ldconfig 2>/dev/null || true # or the loader does not find it

## make uninstall      remove what install put there
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$(BIN) $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$(BIN).fish
	rm -f $(DESTDIR)$(PREFIX)/bin/$(BIN) $(DESTDIR)$(PREFIX)/lib/libtinker.a $(DESTDIR)$(PREFIX)/lib/libtinker-engine.a
	rm -f $(DESTDIR)$(PREFIX)/lib/libtinker.so* $(DESTDIR)$(PREFIX)/lib/pkgconfig/tinker.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/tinker-engine.pc
	rm -rf $(DESTDIR)$(PREFIX)/include/tinker $(DESTDIR)$(PREFIX)/share/tinker
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/tinker.1 $(DESTDIR)$(PREFIX)/share/man/man1/tinker-*.1
	rm -f $(DESTDIR)$(PREFIX)/share/man/man3/libtinker.3 $(DESTDIR)$(PREFIX)/share/man/man3/tinker_*.3
	@for d in share/bash-completion/completions share/bash-completion share/fish/vendor_completions.d share/fish lib/pkgconfig share/man/man1 share/man/man3; do rmdir $(DESTDIR)$(PREFIX)/$$d 2>/dev/null || true; done # if empty
	@[ -n '$(DESTDIR)' ] || PATH=$$PATH:/usr/sbin:/sbin ldconfig 2>/dev/null || true

## make clean          remove everything built
clean:
	rm -rf $(OUT) compile_commands.json

# header_page HEADER PAGE: the man page of a header's comments
define header_page
$(OUT)/man/$(2): $(1) include/tinker/version.h tools/gen-man
	@mkdir -p $$(@D)
	$$(SAY_RESULT)tools/gen-man $$< $(VERSION) > $$@
endef
$(eval $(call header_page,include/tinker/tinker.h,libtinker.3))
$(foreach h,$(DOCUMENTED),$(eval $(call header_page,$(h),tinker_$(basename $(notdir $(h))).3)))
$(OUT)/man/%: docs/man/%.scd
	@mkdir -p $(@D)
	$(SAY_RESULT)scdoc < $< > $@

compile_commands.json:
	@tools/compile-commands '$(CURDIR)' '$(CC) $(CPPFLAGS) $(CFLAGS_ALL)' $(foreach r,$(ROOMS),$(SRC_$(r))) > $@.tmp && mv $@.tmp $@

-include $(shell find $(B) -name '*.d' 2>/dev/null)
