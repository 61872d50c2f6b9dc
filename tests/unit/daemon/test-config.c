/* SPDX-License-Identifier: Apache-2.0 */
/* Options, configuration file, defaults; every refusal names what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config.h"
#include "ipc/base/checked.h"
#include "ipc/protocol.h"

#define ARGS(...) ((const char *const[]){ "kvd", __VA_ARGS__, NULL })

static int parse(struct config *c, const char *const *args, struct diag *diag)
{
	char *argv[64];
	int argc = 0;

	for (; args[argc]; argc++)
		argv[argc] = (char *)args[argc];
	argv[argc] = NULL;
	*diag = DIAG_NULL;
	return config_init(c, argc, argv, diag);
}

static void refused(const char *const *args, const char *word)
{
	struct config c;
	struct diag diag;

	assert_int_equal(parse(&c, args, &diag), -EINVAL);
	if (!strstr(diag.text, word))
		fail_msg("\"%s\" does not say \"%s\"", diag.text, word);
	config_deinit(&c);
}

/* A file with this text; the caller unlinks it. */
static const char *file_of(const void *text, size_t n)
{
	static char path[] = "/tmp/kvd-config-XXXXXX";
	int fd;

	strcpy(path, "/tmp/kvd-config-XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, n), n);
	close(fd);
	return path;
}

static void file_refused(const char *text, const char *word, int line)
{
	const char *path = file_of(text, strlen(text));
	struct config c;
	struct diag diag;
	char where[32];

	assert_int_equal(parse(&c, ARGS("--config", path, "--model", "m"), &diag), -EINVAL);
	snprintf(where, sizeof(where), ":%d:", line);
	if (!strstr(diag.text, word) || !strstr(diag.text, where))
		fail_msg("\"%s\" does not say \"%s\" and \"%s\"", diag.text, word, where);
	config_deinit(&c);
	unlink(path);
}

static void test_defaults(void **state)
{
	struct config c;
	struct diag diag;

	setenv("KVD_SOCKET", "/somewhere/s", 1);
	assert_int_equal(parse(&c, ARGS("--model", "m.gguf"), &diag), 0);
	assert_int_equal(c.action, CONFIG_RUN);
	assert_int_equal(c.server.n_models, 1);
	assert_string_equal(c.server.models[0], "m.gguf");
	assert_true(c.server.uid_weights == 0);
	assert_string_equal(c.server.socket_path, "/somewhere/s");
	assert_int_equal(c.server.socket_mode, geteuid() == 0 ? 0666 : 0600);
	assert_int_equal(c.server.kv_memory, 0);
	assert_int_equal(c.server.block_tokens, 0);
	assert_int_equal(c.server.idle_exit_s, 0);
	assert_int_equal(c.server.step_delay_ns, 0);
	assert_null(c.server.cpu_level);
	assert_false(c.server.no_cache);
	assert_true(c.server.attention_mass);
	config_deinit(&c);

	unsetenv("KVD_SOCKET");
	setenv("XDG_RUNTIME_DIR", "/run/user/77", 1);
	assert_int_equal(parse(&c, ARGS("--model", "m.gguf"), &diag), 0);
	assert_string_equal(c.server.socket_path,
			    geteuid() == 0 ? "/run/kvd/kvd.sock" : "/run/user/77/kvd/kvd.sock");
	config_deinit(&c);
	unsetenv("XDG_RUNTIME_DIR");
	assert_int_equal(parse(&c, ARGS("--model", "m.gguf"), &diag), 0);
	assert_string_equal(c.server.socket_path, "/run/kvd/kvd.sock");
	config_deinit(&c);
}

/* Nothing is kept for good unless somebody says so. */
static void test_state_dir(void **state)
{
	struct config c;
	struct diag diag;

	unsetenv("STATE_DIRECTORY");
	setenv("XDG_STATE_HOME", "/srv/x/state", 1);
	assert_int_equal(parse(&c, ARGS("--model", "m.gguf"), &diag), 0);
	assert_true(c.server.disk == 0);
	assert_false(c.server.state_dir_named);
	config_deinit(&c);
	assert_int_equal(parse(&c, ARGS("--disk", "3G"), &diag), 0);
	assert_true(c.server.disk == 3ull << 30);
	assert_false(c.server.state_dir_named);
	assert_string_equal(c.server.state_dir, geteuid() == 0 ? "/var/lib/kvd" : "/srv/x/state/kvd");
	config_deinit(&c);
	assert_int_equal(parse(&c, ARGS("--state-dir", "/s"), &diag), 0);
	assert_true(c.server.disk == SERVER_DISK_AUTO);
	assert_true(c.server.state_dir_named);
	assert_string_equal(c.server.state_dir, "/s");
	config_deinit(&c);
	setenv("STATE_DIRECTORY", "/var/lib/a:/var/lib/b", 1);
	assert_int_equal(parse(&c, ARGS("--model", "m.gguf"), &diag), 0);
	assert_true(c.server.disk == SERVER_DISK_AUTO);
	assert_true(c.server.state_dir_named);
	assert_string_equal(c.server.state_dir, "/var/lib/a");
	config_deinit(&c);
	assert_int_equal(parse(&c, ARGS("--disk=off", "--state-dir=/s"), &diag), 0);
	assert_true(c.server.disk == 0);
	assert_string_equal(c.server.state_dir, "/s");
	config_deinit(&c);
	unsetenv("STATE_DIRECTORY");
	unsetenv("XDG_STATE_HOME");
	refused(ARGS("--disk", "1M"), "disk");
	refused(ARGS("--disk", "much"), "disk");
	refused(ARGS("--state-dir", ""), "state-dir");
	refused(ARGS("--fairness", "some"), "fairness");
	refused(ARGS("--model", "m", "--fair-weights", "7", "--check-config"), "fair-weights");
}

static void test_all_options(void **state)
{
	struct config c;
	struct diag diag;

	assert_int_equal(parse(&c, ARGS("--model=a", "--socket=/s", "--socket-mode=0640", "--kv-type=f16",
					"--block-tokens=64", "--kv-memory=3G", "--ctx=4096", "--max-seqs=3",
					"--threads=2", "--device=cpu", "--cpu-level=c",
					"--host-memory=4G"), &diag), 0);
	assert_true(c.server.host_memory == 4ull << 30);
	assert_int_equal(c.server.socket_mode, 0640);
	assert_int_equal(c.server.block_tokens, 64);
	assert_true(c.server.kv_memory == 3ull << 30);
	assert_int_equal(c.server.n_ctx, 4096);
	assert_int_equal(c.server.max_seqs, 3);
	assert_int_equal(c.server.n_threads, 2);
	assert_string_equal(c.server.cpu_level, "c");
	config_deinit(&c);
	assert_int_equal(parse(&c,
			       ARGS("--model", "a", "--no-cache", "--deterministic", "--idle-exit", "30",
				    "--prefill-quantum", "7", "--device", "auto", "--ctx", "auto",
				    "--attention-mass", "no", "--fairness", "none",
				    "--prefill-ratio", "500", "--fair-weights", "7:50"),
			       &diag),
			 0);
	assert_true(c.server.no_cache);
	assert_true(c.server.no_fairness);
	assert_int_equal(c.server.prefill_ratio, 500);
	assert_string_equal(c.server.fair_weights, "7:50");
	assert_false(c.server.attention_mass);
	assert_int_equal(c.server.idle_exit_s, 30);
	assert_int_equal(c.server.prefill_quantum, 7);
	assert_int_equal(c.server.n_ctx, 0);
	config_deinit(&c);
	assert_int_equal(parse(&c,
			       ARGS("--model", "a", "--max-sessions=3", "--max-queue=4", "--uid-sessions=5",
				    "--uid-requests=6", "--uid-memory=7M", "--uid-kv-memory=8M"),
			       &diag),
			 0);
	assert_int_equal(c.server.max_sessions, 3);
	assert_int_equal(c.server.max_queue, 4);
	assert_int_equal(c.server.uid_sessions, 5);
	assert_int_equal(c.server.uid_requests, 6);
	assert_true(c.server.uid_memory == 7 << 20);
	assert_true(c.server.uid_kv_memory == 8 << 20);
	config_deinit(&c);
}

static void test_actions(void **state)
{
	static const struct { const char *option; enum config_action action; } cases[] = {
		{ "--check-config", CONFIG_CHECK }, { "--print-config", CONFIG_PRINT },
		{ "--version", CONFIG_VERSION }, { "--help", CONFIG_HELP }, { "-h", CONFIG_HELP },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct config c;
		struct diag diag;

		assert_int_equal(parse(&c, ARGS("--model", "m", cases[i].option), &diag), 0);
		assert_int_equal(c.action, cases[i].action);
		config_deinit(&c);
	}
}

static void test_sizes(void **state)
{
	static const struct { const char *text; uint64_t bytes; } cases[] = {
		{ "2097152", 2 << 20 }, { "2048K", 2 << 20 }, { "2m", 2 << 20 }, { "64M", 64 << 20 },
		{ "4G", 4ull << 30 }, { "1T", 1ull << 40 }, { "auto", 0 },
	};
	static const char *const bad[] = {
		"", "0", "1", "1K", "G", "-1G", "+1G", " 1G", "1G ", "1GB", "1.5G", "0x100000", "1e9", "nan",
		"18446744073709551616", "18014398509481984G", "99999999999999999999999999",
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct config c;
		struct diag diag;

		assert_int_equal(parse(&c, ARGS("--model", "m", "--kv-memory", cases[i].text), &diag), 0);
		assert_true(c.server.kv_memory == cases[i].bytes);
		config_deinit(&c);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		refused(ARGS("--model", "m", "--kv-memory", bad[i]), "kv-memory");
	/* Nothing, by name or number, or enough to be of use. */
	for (size_t i = 0; i < 3; i++) {
		static const char *const off[] = { "off", "0", "8M" };
		struct config c;
		struct diag diag;

		assert_int_equal(parse(&c, ARGS("--model", "m", "--host-memory", off[i]), &diag), 0);
		assert_true(c.server.host_memory == (i < 2 ? 0 : 8 << 20));
		config_deinit(&c);
	}
	refused(ARGS("--model", "m", "--host-memory", "auto"), "host-memory");
	refused(ARGS("--model", "m", "--host-memory", "7M"), "host-memory");
	/* A limit that has no automatic value. */
	refused(ARGS("--model", "m", "--uid-memory", "auto"), "uid-memory");
	refused(ARGS("--model", "m", "--uid-memory", "1K"), "uid-memory");
}

static void test_refusals(void **state)
{
	refused(ARGS("--version=1"), "unknown option");
	refused(ARGS("--model", "a/m.gguf", "--model", "b/m.gguf"), "the same name, \"m\"");
	refused(ARGS("--model", "m", "--model", "m.gguf"), "the same name");
	refused(ARGS("--model", "a", "--model", "b\nc"), "model: the name of");
	refused(ARGS("--model", "a", "--model", "/x/"), "model: the name of");
	refused(ARGS("--model", "a", "--model", "\xff"), "model: the name of");
	refused(ARGS("--model", ""), "model");
	refused(ARGS("--model"), "--model needs a value");
	refused(ARGS("--model", "m", "extra"), "extra");
	/* What the design has for later is unknown now, not ignored. */
	static const char *const later[] = {
		"--gpu-layers", "--colour",
	};
	for (size_t i = 0; i < ARRAY_SIZE(later); i++)
		refused(ARGS("--model", "m", later[i], "x"), later[i]);
	refused(ARGS("--http", "8080"), "not ADDRESS:PORT");
	refused(ARGS("--http", "127.0.0.1"), "not ADDRESS:PORT");
	refused(ARGS("--http", "127.0.0.1:65536"), "not ADDRESS:PORT");
	refused(ARGS("--http", "127.0.0.1:+80"), "not ADDRESS:PORT");
	refused(ARGS("--http", ":80"), "not ADDRESS:PORT");
	refused(ARGS("--http", "unix:"), "path");
	refused(ARGS("--http", "example.org:80"), "\"example.org\"");
	refused(ARGS("--http", "::1:80"), "IPv6");
	refused(ARGS("--http", "[::ffff:127.0.0.1]:80"), "IPv6");
	refused(ARGS("--http", "off", "--http", "127.0.0.1:80"), "\"off\"");
	refused(ARGS("--http", "0.0.0.0:80"), "http-keys");
	refused(ARGS("--http", "[::]:80"), "http-keys");
	refused(ARGS("--http", "127.0.0.1:0", "--http", "192.168.1.2:80"), "http-keys");
	refused(ARGS("--model", "m", "-x"), "unknown option");
	refused(ARGS("--model", "m", "--kv-type", "q4", "--block-tokens", "16"),
		"a block of kv-type q4 has 32 tokens, not 16");
	refused(ARGS("--model", "m", "--block-tokens", "64", "--kv-type", "q4"), "32 tokens, not 64");
	refused(ARGS("--model", "m", "--kv-type", "Q4"), "not f16, q8 or q4");
	refused(ARGS("--model", "m", "--kv-type", "f32"), "kv-type");
	refused(ARGS("--model", "m", "--device", "cuda"), "CUDA is not part of this build");
	refused(ARGS("--model", "m", "--device", "cuda:1"), "CUDA");
	refused(ARGS("--model", "m", "--device", "cudax"), "not auto or cpu");
	refused(ARGS("--model", "m", "--cpu-level", "sse"), "cpu-level");
	refused(ARGS("--model", "m", "--block-tokens", "48"), "block-tokens");
	refused(ARGS("--model", "m", "--block-tokens", "0"), "block-tokens");
	refused(ARGS("--model", "m", "--max-seqs", "0"), "max-seqs");
	refused(ARGS("--model", "m", "--max-seqs", "auto"), "max-seqs");
	refused(ARGS("--model", "m", "--ctx", "1e3"), "ctx");
	refused(ARGS("--model", "m", "--ctx", "4294967296"), "ctx");
	refused(ARGS("--model", "m", "--threads", "99999999999999999999"), "threads");
	refused(ARGS("--model", "m", "--idle-exit", "-5"), "idle-exit");
	refused(ARGS("--model", "m", "--socket-mode", "0888"), "socket-mode");
	refused(ARGS("--model", "m", "--socket-mode", "1777"), "socket-mode");
	setenv("KVD_TEST_STEP_DELAY_MS", "soon", 1);
	refused(ARGS("--model", "m"), "KVD_TEST_STEP_DELAY_MS");
	unsetenv("KVD_TEST_STEP_DELAY_MS");
	setenv("KVD_TEST_LOAD_DELAY_MS", "60001", 1);
	refused(ARGS("--model", "m"), "KVD_TEST_LOAD_DELAY_MS");
	unsetenv("KVD_TEST_LOAD_DELAY_MS");
}

static void test_file(void **state)
{
	static const char text[] =
		"# comment\n; another\n[kvd]\nmodel = /m/x.gguf\nkv-memory = 96M ; inline\nno-cache = yes\n"
		"ctx=512\nsocket = /s\nsocket-mode = 660\nthreads = auto\n";
	const char *path = file_of(text, strlen(text));
	struct config c;
	struct diag diag;

	assert_int_equal(parse(&c, ARGS("--config", path), &diag), 0);
	assert_int_equal(c.server.n_models, 1);
	assert_string_equal(c.server.models[0], "/m/x.gguf");
	assert_true(c.server.kv_memory == 96 << 20);
	assert_true(c.server.no_cache);
	assert_int_equal(c.server.n_ctx, 512);
	assert_int_equal(c.server.socket_mode, 0660);
	config_deinit(&c);
	/* The command line wins, whatever the order. */
	assert_int_equal(parse(&c, ARGS("--ctx", "64", "--config", path, "--model", "other"), &diag), 0);
	assert_int_equal(c.server.n_models, 1);
	assert_string_equal(c.server.models[0], "other");
	assert_int_equal(c.server.n_ctx, 64);
	assert_true(c.server.no_cache);
	config_deinit(&c);
	unlink(path);
}

static void test_several_models(void **state)
{
	static const char text[] = "[kvd]\nmodel = /m/x.gguf\nctx = 5\nmodel = /m/y.gguf\n";
	const char *path = file_of(text, strlen(text)), *args[2 * KVD_MODELS_MAX + 4] = { "kvd" };
	char names[KVD_MODELS_MAX + 1][8];
	struct config c;
	struct diag diag;

	assert_int_equal(parse(&c, ARGS("--check-config"), &diag), 0);
	assert_int_equal(c.server.n_models, 0);
	config_deinit(&c);
	assert_int_equal(parse(&c, ARGS("--config", path), &diag), 0);
	assert_int_equal(c.server.n_models, 2);
	assert_string_equal(c.server.models[0], "/m/x.gguf");
	assert_string_equal(c.server.models[1], "/m/y.gguf");
	config_deinit(&c);
	/* Those of the command line replace them all. */
	assert_int_equal(parse(&c, ARGS("--model", "a", "--config", path, "--model", "b"), &diag), 0);
	assert_int_equal(c.server.n_models, 2);
	assert_string_equal(c.server.models[0], "a");
	assert_string_equal(c.server.models[1], "b");
	assert_int_equal(c.server.n_ctx, 5);
	config_deinit(&c);
	unlink(path);
	for (int i = 0; i <= KVD_MODELS_MAX; i++) {
		snprintf(names[i], sizeof(names[i]), "m%d", i);
		args[2 * i + 1] = "--model";
		args[2 * i + 2] = names[i];
	}
	refused(args, "at most 16");
	args[2 * KVD_MODELS_MAX + 1] = NULL;
	assert_int_equal(parse(&c, args, &diag), 0);
	assert_int_equal(c.server.n_models, KVD_MODELS_MAX);
	config_deinit(&c);
}

static void test_synthetic(void **state)
{
	struct config c;
	struct diag diag;

	assert_int_equal(parse(&c, ARGS("--synthetic", "tiny:q4_0", "--model", "m", "--synthetic", "llama-2-7b:f16"),
			       &diag), 0);
	assert_int_equal(c.server.n_models, 1);
	assert_int_equal(c.server.n_synthetic, 2);
	assert_string_equal(c.server.synthetic[0], "tiny:q4_0");
	assert_string_equal(c.server.synthetic[1], "llama-2-7b:f16");
	config_deinit(&c);
	refused(ARGS("--synthetic", "huge:q4_0"), "no \"huge:q4_0\"; there are smollm2-135m");
	refused(ARGS("--synthetic", "tiny:q4"), "not NAME:TYPE");
	refused(ARGS("--synthetic", "tiny:q4_0", "--synthetic", "tiny:q4_0"), "same name, \"tiny:q4_0\"");
	refused(ARGS("--model", "/m/tiny:q4_0.gguf", "--synthetic", "tiny:q4_0"), "same name, \"tiny:q4_0\"");
	refused(ARGS("--synthetic", ""), "empty");
}

static void test_file_refusals(void **state)
{
	char line[600];

	file_refused("[kvd]\nctx = 5\ncolour = 1\n", "unknown setting \"colour\"", 3);
	file_refused("[kvd]\nversion = 1\n", "version", 2);
	file_refused("[kvd]\nconfig = x\n", "config", 2);
	file_refused("[other]\nctx = 5\n", "[other]", 2);
	file_refused("ctx = 5\n", "[kvd]", 1);
	file_refused("[kvd]\nctx = lots\n", "ctx", 2);
	file_refused("[kvd]\n\nctx = 5\nctx = 6\n", "given twice", 4);
	file_refused("[kvd]\nno-cache = perhaps\n", "no-cache", 2);
	file_refused("[kvd]\nnonsense\n", "name = value", 2);
	file_refused("[kvd\n", "name = value", 1);
	/* Neither a setting nor part of the one above. */
	file_refused("[kvd]\nctx = 5\n  6\n", "begins with a blank", 3);
	file_refused("[kvd]\nmodel = a\n\tb ; c\n", "begins with a blank", 3);
	memset(line, 'x', sizeof(line));
	memcpy(line, "[kvd]\nmodel = ", 14);
	line[sizeof(line) - 1] = '\0';
	file_refused(line, "too long", 2);
	memcpy(line + sizeof(line) - 7, "\nctx=5", 7);
	file_refused(line, "too long", 2);
}

static void test_file_that_is_none(void **state)
{
	static const char nul[] = "[kvd]\nctx = 5\0\nno-cache = yes\n";
	const char *path = file_of(nul, sizeof(nul) - 1);
	struct config c;
	struct diag diag;

	assert_int_equal(parse(&c, ARGS("--model", "m", "--config", path), &diag), -EINVAL);
	config_deinit(&c);
	unlink(path);
	assert_int_equal(parse(&c, ARGS("--model", "m", "--config", "/nonexistent/file"), &diag), -ENOENT);
	assert_non_null(strstr(diag.text, "/nonexistent/file"));
	config_deinit(&c);
	assert_true(parse(&c, ARGS("--model", "m", "--config", "/tmp"), &diag) < 0);
	assert_non_null(strstr(diag.text, "/tmp"));
	config_deinit(&c);
}

/* The size of blocks follows from the type where it is not given, wherever that is. */
static void test_kv_type(void **state)
{
	static const struct {
		const char *file, *type;
		enum kb_kv_type want;
		uint32_t block_tokens;
	} cases[] = {
		{ "[kvd]\n", "f16", KB_KV_F16, 0 },
		{ "[kvd]\n", "q8", KB_KV_Q8, 0 },
		{ "[kvd]\nblock-tokens = auto\n", "q4", KB_KV_Q4, 0 },
		{ "[kvd]\nblock-tokens = 64\n", "q8", KB_KV_Q8, 64 },
		{ "[kvd]\nblock-tokens = 32\n", "q4", KB_KV_Q4, 32 },
		{ "[kvd]\nkv-type = q4\n", "f16", KB_KV_F16, 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *path = file_of(cases[i].file, strlen(cases[i].file));
		struct config c;
		struct diag diag;

		assert_int_equal(parse(&c, ARGS("--config", path, "--kv-type", cases[i].type), &diag), 0);
		assert_int_equal(c.server.kv_type, cases[i].want);
		assert_int_equal(c.server.block_tokens, cases[i].block_tokens);
		unlink(path);
		config_deinit(&c);
	}
	file_refused("[kvd]\nkv-type = q5\n", "q5", 2);
}

/* What --print-config prints is a file that means the same. */
static void test_print_reads_back(void **state)
{
	const char *const *sets[] = {
		ARGS("--model", "m", "--socket", "/s"),
		ARGS("--model", "m", "--kv-memory", "2097153", "--no-cache", "--socket-mode", "0600",
		     "--cpu-level", "c"),
		ARGS("--model", "m", "--kv-memory", "64G", "--idle-exit", "9", "--block-tokens", "32",
		     "--threads", "1", "--attention-mass=no"),
		ARGS("--model", "m", "--max-sessions=3", "--max-queue=4", "--uid-sessions=5", "--uid-requests=6",
		     "--uid-memory=7M", "--uid-kv-memory=8M", "--uid-weights=9G", "--host-memory=10M"),
		ARGS("--model", "m", "--model", "n"),
		ARGS("--model", "m", "--kv-type", "q8", "--block-tokens", "64"),
		ARGS("--model", "m", "--kv-type", "q4"),
		ARGS("--socket", "/s"),
	};

	for (size_t i = 0; i < ARRAY_SIZE(sets); i++) {
		struct config a, b;
		struct diag diag;
		char *text, *again;
		size_t n, n_again;
		const char *path;
		FILE *f;

		assert_int_equal(parse(&a, sets[i], &diag), 0);
		f = open_memstream(&text, &n);
		config_print(&a, f);
		fclose(f);
		path = file_of(text, n);
		assert_int_equal(parse(&b, ARGS("--config", path), &diag), 0);
		f = open_memstream(&again, &n_again);
		config_print(&b, f);
		fclose(f);
		assert_string_equal(text, again);
		assert_true(a.server.kv_memory == b.server.kv_memory);
		assert_true(a.server.host_memory == b.server.host_memory);
		assert_true(a.server.uid_kv_memory == b.server.uid_kv_memory);
		assert_true(a.server.uid_memory == b.server.uid_memory);
		assert_true(a.server.uid_weights == b.server.uid_weights);
		assert_true(a.server.attention_mass == b.server.attention_mass);
		assert_int_equal(a.server.n_models, b.server.n_models);
		assert_int_equal(a.server.max_queue, b.server.max_queue);
		assert_int_equal(a.server.kv_type, b.server.kv_type);
		assert_int_equal(a.server.block_tokens, b.server.block_tokens);
		free(text);
		free(again);
		unlink(path);
		config_deinit(&a);
		config_deinit(&b);
	}
}

/* One line for programs that read the version, one with the levels, of which plain C is always there. */
static void test_version(void **state)
{
	char *text;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	config_version(f);
	fclose(f);
	assert_memory_equal(text, "kvd " KVD_VERSION "\nCPU levels", strlen("kvd " KVD_VERSION "\nCPU levels"));
	assert_string_equal(text + n - 3, " c\n");
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_state_dir),
		cmocka_unit_test(test_all_options),
		cmocka_unit_test(test_actions),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_several_models),
		cmocka_unit_test(test_synthetic),
		cmocka_unit_test(test_file_refusals),
		cmocka_unit_test(test_file_that_is_none),
		cmocka_unit_test(test_kv_type),
		cmocka_unit_test(test_print_reads_back),
		cmocka_unit_test(test_version),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
