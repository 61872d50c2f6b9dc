/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config.h"

#include <ctype.h>
#include <getopt.h>
#include <ini.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "daemon/model/synthetic.h"
#include "daemon/server/http-address.h"
#include "daemon/server/namespace.h"
#include "daemon/server/fair-weights.h"
#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"
#include "ipc/protocol.h"
#include "kernels/backend.h"

#define LINE_MAX_BYTES 197	/* of a line without its end, which inih's buffer has room for */

enum kind {
	KIND_STRING,	/* char * */
	KIND_LIST,	/* one more of a char **; min: where its size_t count is */
	KIND_NUMBER,	/* uint32_t within min..max; "auto" where min is 0 */
	KIND_SIZE,	/* uint64_t, K, M and G suffixes */
	KIND_SIZE_AUTO,	/* the same, or "auto" = 0 */
	KIND_SIZE_OFF,	/* the same, or "off" = 0 */
	KIND_SIZE_DISK,	/* the same, or "auto" = SERVER_DISK_AUTO */
	KIND_FLAG,	/* bool; in a file yes or no */
	KIND_MODE,	/* int, octal */
	KIND_CHOICE,	/* one word of `choices`; refused ones have a reason in set_choice() */
	KIND_ACTION,	/* command line only */
};

struct option_row {
	const char *name;
	enum kind kind;
	size_t offset;		/* in struct config; 0 where nothing is stored */
	uint64_t min, max;
	const char *argument, *help;
};

#define FIELD(f) offsetof(struct config, f)

static const struct option_row rows[] = {
	{ "config", KIND_STRING, FIELD(file), 0, 0, "FILE", "read settings from FILE" },
	{ "model", KIND_LIST, FIELD(models), FIELD(server.n_models), 0, "FILE",
	  "a model, a GGUF file; may be repeated" },
	{ "synthetic", KIND_LIST, FIELD(synthetic), FIELD(server.n_synthetic), 0, "NAME:TYPE",
	  "a model with random weights, for measurements; may be repeated" },
	{ "state-dir", KIND_STRING, FIELD(state_dir), 0, 0, "DIR", "where what is kept for good lies" },
	{ "socket", KIND_STRING, FIELD(socket), 0, 0, "PATH", "listen on PATH" },
	{ "socket-mode", KIND_MODE, FIELD(socket_mode), 0, 0777, "MODE", "permissions of the socket, octal" },
	{ "http", KIND_LIST, FIELD(http), FIELD(server.n_http), 0, "ADDR:PORT|unix:PATH|off",
	  "serve HTTP there too; may be repeated" },
	{ "http-keys", KIND_STRING, FIELD(http_keys), 0, 0, "FILE", "who may come over TCP" },
	{ "http-hosts", KIND_STRING, FIELD(http_hosts), 0, 0, "NAMES",
	  "more names, between commas, that it has over TCP" },
	{ "http-origins", KIND_STRING, FIELD(http_origins), 0, 0, "ORIGINS",
	  "web pages, between commas, that may use it" },
	{ "http-max-body", KIND_SIZE, FIELD(server.http_max_body), 64 << 10, 1ull << 30, "SIZE",
	  "largest body of an HTTP request" },
	{ "http-request-time", KIND_NUMBER, FIELD(server.http_request_s), 1, 3600, "SECONDS",
	  "in which an HTTP request must have come" },
	{ "http-idle-time", KIND_NUMBER, FIELD(server.http_idle_s), 1, 86400, "SECONDS",
	  "for which an HTTP connection may do nothing" },
	{ "kv-type", KIND_CHOICE, 0, 0, 0, "f16|q8|q4", "how keys and values are stored" },
	{ "block-tokens", KIND_NUMBER, FIELD(server.block_tokens), 0, 64, "N",
	  "tokens in a block: 16, 32 or 64; of q4 32" },
	{ "kv-memory", KIND_SIZE_AUTO, FIELD(server.kv_memory), 2 << 20, 1ull << 50, "SIZE",
	  "memory for keys and values, e.g. 512M" },
	{ "host-memory", KIND_SIZE_OFF, FIELD(server.host_memory), 8 << 20, 1ull << 43, "SIZE",
	  "memory for compressed keys and values behind that; off: none" },
	{ "disk", KIND_SIZE_DISK, FIELD(server.disk), 2 << 20, 1ull << 50, "SIZE",
	  "disk space in the state directory for the cache; off: none" },
	{ "ctx", KIND_NUMBER, FIELD(server.n_ctx), 0, 1u << 24, "N", "longest sequence, in tokens" },
	{ "max-seqs", KIND_NUMBER, FIELD(server.max_seqs), 1, 1024, "N", "sequences that run at once" },
	{ "threads", KIND_NUMBER, FIELD(server.n_threads), 0, 1024, "N", "threads that compute" },
	{ "device", KIND_CHOICE, 0, 0, 0, "auto|cpu", "where to compute" },
	{ "cpu-level", KIND_CHOICE, FIELD(cpu_level), 0, 0, "c|avx2|avx512|avx512vnni|amx", "CPU instructions to use" },
	{ "prefill-quantum", KIND_NUMBER, FIELD(server.prefill_quantum), 1, 8192, "N",
	  "prompt tokens in one step beside running sequences" },
	{ "prefill-ratio", KIND_NUMBER, FIELD(server.prefill_ratio), 110, 100000, "PERCENT",
	  "how long a step with prompt tokens takes, against one without" },
	{ "fairness", KIND_CHOICE, 0, 0, 0, "tokens|none", "what users with work at once have equal shares of" },
	{ "fair-weights", KIND_STRING, FIELD(fair_weights), 0, 0, "USER:WEIGHT,...",
	  "shares of users; who is not named has 100" },
	{ "stuck-limit", KIND_NUMBER, FIELD(server.stuck_limit_s), 1, 86400, "SECONDS",
	  "an engine that is at one step for so long is stuck" },
	{ "max-sessions", KIND_NUMBER, FIELD(server.max_sessions), 1, 65536, "N", "attached programs in all" },
	{ "max-queue", KIND_NUMBER, FIELD(server.max_queue), 1, 65536, "N", "waiting requests in all" },
	{ "uid-sessions", KIND_NUMBER, FIELD(server.uid_sessions), 1, 65536, "N", "attached programs of one user" },
	{ "uid-requests", KIND_NUMBER, FIELD(server.uid_requests), 1, 65536, "N",
	  "waiting and running requests of one user" },
	{ "uid-memory", KIND_SIZE, FIELD(server.uid_memory), 1 << 20, 1ull << 50, "SIZE",
	  "shared memory and prompts of one user" },
	{ "uid-kv-memory", KIND_SIZE_AUTO, FIELD(server.uid_kv_memory), 1 << 20, 1ull << 50, "SIZE",
	  "keys and values of one user; auto: no limit" },
	{ "uid-weights", KIND_SIZE, FIELD(server.uid_weights), 0, 1ull << 50, "SIZE",
	  "model files that one user may load; root and ours: any" },
	{ "cache-groups", KIND_STRING, FIELD(cache_groups), 0, 0, "NAMES",
	  "groups, between commas, whose members may share a cache" },
	{ "cache-public", KIND_FLAG, FIELD(server.cache_public), 0, 0, NULL,
	  "all users may share a cache, if they ask for it" },
	{ "deterministic", KIND_FLAG, 0, 0, 0, NULL, "same tokens, same bits: always so on the CPU" },
	{ "attention-mass", KIND_FLAG, FIELD(server.attention_mass), 0, 0, "yes|no",
	  "measure which cached blocks are attended to" },
	{ "no-cache", KIND_FLAG, FIELD(server.no_cache), 0, 0, NULL,
	  "recompute the whole sequence for every token" },
	{ "idle-exit", KIND_NUMBER, FIELD(server.idle_exit_s), 0, 1u << 30, "SECONDS",
	  "exit when no program was attached for so long" },
	{ "check-config", KIND_ACTION, 0, CONFIG_CHECK, 0, NULL, "check options and file, then exit" },
	{ "print-config", KIND_ACTION, 0, CONFIG_PRINT, 0, NULL, "print the settings in effect, then exit" },
	{ "version", KIND_ACTION, 0, CONFIG_VERSION, 0, NULL, "print the version, then exit" },
	{ "help", KIND_ACTION, 0, CONFIG_HELP, 0, NULL, "print this, then exit" },
};

static const struct option_row *find_row(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (strcmp(rows[i].name, name) == 0)
			return &rows[i];
	}
	return NULL;
}

/* --- values ----------------------------------------------------------------- */

static int set_string(char **field, const char *name, const char *value, struct diag *diag)
{
	char *copy;

	if (!value[0])
		return diag_set(diag, -EINVAL, "%s: the value is empty", name);
	copy = strdup(value);
	if (!copy)
		return -ENOMEM;
	free(*field);
	*field = copy;
	return 0;
}

/* A list in the configuration. */
struct list_field {
	char ***items;
	size_t *n;
};

static struct list_field list_of(struct config *c, const struct option_row *row)
{
	return (struct list_field){ (char ***)((char *)c + row->offset), (size_t *)((char *)c + row->min) };
}

static void clear_list(struct list_field list)
{
	for (size_t i = 0; i < *list.n; i++)
		free((*list.items)[i]);
	free(*list.items);
	*list.items = NULL;
	*list.n = 0;
}

/* One more; the first of a file or of the command line begins the list anew. */
static int add_to_list(struct list_field list, const struct option_row *row, const char *value, bool first,
		       struct diag *diag)
{
	char *copy = NULL, **items;
	int r;

	if (first)
		clear_list(list);
	r = set_string(&copy, row->name, value, diag);
	if (r)
		return r;
	items = reallocarray(*list.items, *list.n + 1, sizeof(*items));
	if (!items) {
		free(copy);
		return -ENOMEM;
	}
	items[(*list.n)++] = copy;
	*list.items = items;
	return 0;
}

/* Digits only: strtoull() alone takes signs, blanks and hexadecimal. */
static int parse_digits(const char *s, int base, const char **end, uint64_t *out)
{
	uint64_t v = 0;
	const char *p;

	for (p = s; *p >= '0' && *p < '0' + base; p++) {
		if (!checked_mul_u64(v, (uint64_t)base, &v) || !checked_add_u64(v, (uint64_t)(*p - '0'), &v))
			return -ERANGE;
	}
	if (p == s)
		return -EINVAL;
	*end = p;
	*out = v;
	return 0;
}

static int set_number(uint32_t *field, const struct option_row *row, const char *value, struct diag *diag)
{
	const char *end;
	uint64_t v;
	int r;

	if (row->min == 0 && strcmp(value, "auto") == 0) {
		*field = 0;
		return 0;
	}
	r = parse_digits(value, 10, &end, &v);
	if (r == -EINVAL || (!r && *end))
		return diag_set(diag, -EINVAL, "%s: \"%s\" is not a number", row->name, value);
	if (r || v < row->min || v > row->max)
		return diag_set(diag, -EINVAL, "%s: %s is not within %llu..%llu", row->name, value,
				(unsigned long long)row->min, (unsigned long long)row->max);
	if (strcmp(row->name, "block-tokens") == 0 && v != 16 && v != 32 && v != 64)
		return diag_set(diag, -EINVAL, "block-tokens: %s is not 16, 32, 64 or auto", value);
	*field = (uint32_t)v;
	return 0;
}

static int set_size(uint64_t *field, const struct option_row *row, const char *value, struct diag *diag)
{
	const char *end;
	uint64_t v, unit = 1;
	int r;

	if ((row->kind == KIND_SIZE_AUTO && strcmp(value, "auto") == 0) ||
	    ((row->kind == KIND_SIZE_OFF || row->kind == KIND_SIZE_DISK) &&
	     (strcmp(value, "off") == 0 || strcmp(value, "0") == 0))) {
		*field = 0;
		return 0;
	}
	if (row->kind == KIND_SIZE_DISK && strcmp(value, "auto") == 0) {
		*field = SERVER_DISK_AUTO;
		return 0;
	}
	r = parse_digits(value, 10, &end, &v);
	if (!r && *end) {
		switch (toupper((unsigned char)*end++)) {
		case 'K': unit = 1ull << 10; break;
		case 'M': unit = 1ull << 20; break;
		case 'G': unit = 1ull << 30; break;
		case 'T': unit = 1ull << 40; break;
		default: r = -EINVAL;
		}
		if (*end)
			r = -EINVAL;
	}
	if (r == -EINVAL)
		return diag_set(diag, -EINVAL, "%s: \"%s\" is not a size like 512M or 4G", row->name, value);
	if (r || !checked_mul_u64(v, unit, &v) || v < row->min || v > row->max)
		return diag_set(diag, -EINVAL, "%s: %s is not within %lluM..%lluG", row->name, value,
				(unsigned long long)row->min >> 20, (unsigned long long)row->max >> 30);
	*field = v;
	return 0;
}

static int set_mode(int *field, const struct option_row *row, const char *value, struct diag *diag)
{
	const char *end;
	uint64_t v;

	if (parse_digits(value, 8, &end, &v) || *end || v > row->max)
		return diag_set(diag, -EINVAL, "%s: \"%s\" is not an octal mode like 0660", row->name, value);
	*field = (int)v;
	return 0;
}

static int set_choice(struct config *c, const struct option_row *row, const char *value, struct diag *diag)
{
	if (strcmp(row->name, "kv-type") == 0) {
		if (!kv_type_parse(value, &c->server.kv_type))
			return diag_set(diag, -EINVAL, "kv-type: \"%s\" is not f16, q8 or q4", value);
		return 0;
	}
	if (strcmp(row->name, "device") == 0) {
		if (strcmp(value, "auto") == 0 || strcmp(value, "cpu") == 0)
			return 0;
		if (strcmp(value, "cuda") == 0 || strncmp(value, "cuda:", 5) == 0)
			return diag_set(diag, -EINVAL, "device: CUDA is not part of this build");
		return diag_set(diag, -EINVAL, "device: \"%s\" is not auto or cpu", value);
	}
	if (strcmp(row->name, "fairness") == 0) {
		if (strcmp(value, "tokens") && strcmp(value, "none"))
			return diag_set(diag, -EINVAL, "fairness: \"%s\" is not tokens or none", value);
		c->server.no_fairness = strcmp(value, "none") == 0;
		return 0;
	}
	if (strcmp(value, "c") && strcmp(value, "avx2") && strcmp(value, "avx512") && strcmp(value, "avx512vnni") &&
	    strcmp(value, "amx"))
		return diag_set(diag, -EINVAL, "cpu-level: \"%s\" is not c, avx2, avx512, avx512vnni or amx", value);
	return set_string(&c->cpu_level, row->name, value, diag);
}

static int set_flag(bool *field, const struct option_row *row, const char *value, struct diag *diag)
{
	bool v;

	if (!value || strcasecmp(value, "yes") == 0 || strcasecmp(value, "true") == 0 ||
	    strcmp(value, "1") == 0)
		v = true;
	else if (strcasecmp(value, "no") == 0 || strcasecmp(value, "false") == 0 || strcmp(value, "0") == 0)
		v = false;
	else
		return diag_set(diag, -EINVAL, "%s: \"%s\" is not yes or no", row->name, value);
	if (field)
		*field = v;
	return 0;
}

static int set_value(struct config *c, const struct option_row *row, const char *value, struct diag *diag)
{
	void *field = (char *)c + row->offset;
	uint64_t bit = 1ull << (row - rows);

	bool first = !(c->given & bit);

	if (!first && row->kind != KIND_ACTION && row->kind != KIND_LIST)
		return diag_set(diag, -EINVAL, "%s: given twice", row->name);
	c->given |= bit;
	switch (row->kind) {
	case KIND_STRING:
		return set_string(field, row->name, value, diag);
	case KIND_LIST:
		return add_to_list(list_of(c, row), row, value, first, diag);
	case KIND_NUMBER:
		return set_number(field, row, value, diag);
	case KIND_SIZE:
	case KIND_SIZE_AUTO:
	case KIND_SIZE_OFF:
	case KIND_SIZE_DISK:
		return set_size(field, row, value, diag);
	case KIND_FLAG:
		return set_flag(row->offset ? field : NULL, row, value, diag);
	case KIND_MODE:
		return set_mode(field, row, value, diag);
	case KIND_CHOICE:
		return set_choice(c, row, value, diag);
	case KIND_ACTION:
		c->action = (enum config_action)row->min;
		return 0;
	}
	return -EINVAL;
}

/* --- command line -------------------------------------------------------------- */

static int read_command_line(struct config *c, int argc, char **argv, struct diag *diag)
{
	struct option options[ARRAY_SIZE(rows) + 1] = { 0 };
	int i, index, r;

	for (size_t k = 0; k < ARRAY_SIZE(rows); k++) {
		options[k].name = rows[k].name;
		options[k].has_arg = rows[k].argument ? required_argument : no_argument;
		options[k].val = 0x100;
	}
	optind = 0;	/* glibc: start anew, also when called again */
	opterr = 0;
	while ((i = getopt_long(argc, argv, ":h", options, &index)) != -1) {
		if (i == ':')
			return diag_set(diag, -EINVAL, "%s needs a value", argv[optind - 1]);
		if (i == 'h') {
			c->action = CONFIG_HELP;
			continue;
		}
		if (i != 0x100)
			return diag_set(diag, -EINVAL, "unknown option %s", argv[optind - 1]);
		r = set_value(c, &rows[index], optarg, diag);
		if (r)
			return r;
	}
	if (optind < argc)
		return diag_set(diag, -EINVAL, "unexpected argument \"%s\"", argv[optind]);
	return 0;
}

/* --- file ------------------------------------------------------------------------ */

struct file_reader {
	struct config *c;
	struct diag *diag;
	FILE *stream;
	int line;	/* of the line last read */
	int result;
};

static int file_error(struct file_reader *reader, int err, const char *text)
{
	if (!reader->result) {
		reader->result = err;
		diag_set(reader->diag, err, "%s:%d: %s", reader->c->file, reader->line, text);
	}
	return 0;	/* inih's failure */
}

static char *file_line(char *buf, int n, void *arg)
{
	struct file_reader *reader = arg;
	size_t len;
	bool ended;

	if (reader->result || !fgets(buf, n, reader->stream))
		return NULL;
	reader->line++;
	len = strlen(buf);
	ended = len && buf[len - 1] == '\n';
	if (len - ended > LINE_MAX_BYTES || (len && !ended && !feof(reader->stream))) {
		file_error(reader, -EINVAL, "the line is too long, or holds a NUL byte");
		return NULL;
	}
	/* inih would take it for one more value of the line above, with comments and all. */
	if (isspace((unsigned char)buf[0]) && buf[strspn(buf, " \t\r\n\v\f")]) {
		file_error(reader, -EINVAL, "the line begins with a blank");
		return NULL;
	}
	return buf;
}

static int file_value(void *arg, const char *section, const char *name, const char *value)
{
	struct file_reader *reader = arg;
	const struct option_row *row = find_row(name);
	struct diag why = DIAG_NULL;
	int r;

	if (reader->result)
		return 0;
	if (strcmp(section, "kvd") != 0) {
		diag_set(&why, 0, "unknown section [%s]: settings belong in [kvd]", section);
		return file_error(reader, -EINVAL, why.text);
	}
	if (!row || row->kind == KIND_ACTION || strcmp(name, "config") == 0) {
		diag_set(&why, 0, "unknown setting \"%s\"", name);
		return file_error(reader, -EINVAL, why.text);
	}
	r = set_value(reader->c, row, value, &why);
	if (r)
		return file_error(reader, r, why.text[0] ? why.text : strerror(-r));
	return 1;
}

static int read_file(struct config *c, struct diag *diag)
{
	struct file_reader reader = { .c = c, .diag = diag };
	int r;

	reader.stream = fopen(c->file, "re");
	if (!reader.stream)
		return diag_set(diag, -errno, "config: cannot open %s: %s", c->file, strerror(errno));
	r = ini_parse_stream(file_line, &reader, file_value, &reader);
	if (ferror(reader.stream))
		r = diag_set(diag, -EIO, "config: cannot read %s", c->file);
	else if (reader.result)
		r = reader.result;
	else if (r > 0)
		r = diag_set(diag, -EINVAL, "%s:%d: not a \"name = value\" line", c->file, r);
	else if (r < 0)
		r = -ENOMEM;
	fclose(reader.stream);
	return r;
}

/* --- defaults --------------------------------------------------------------------- */

static int default_socket(char **out)
{
	const char *env = getenv("KVD_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
	char *path;
	int r;

	if (env && env[0])
		r = asprintf(&path, "%s", env);
	else if (geteuid() != 0 && runtime && runtime[0] == '/')
		r = asprintf(&path, "%s/kvd/kvd.sock", runtime);
	else
		r = asprintf(&path, "/run/kvd/kvd.sock");
	if (r < 0)
		return -ENOMEM;
	*out = path;
	return 0;
}

/*
 * What is kept for good is so only where somebody has said that it may: by naming a directory, by $STATE_DIRECTORY
 * of the service manager, or by a size.  *out stays NULL where there is no place.
 */
static int default_state_dir(struct config *c)
{
	const char *service = getenv("STATE_DIRECTORY"), *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	int r = 0;

	c->server.state_dir_named = c->state_dir || (service && service[0] == '/');
	if (c->state_dir)
		return 0;
	if (c->server.state_dir_named)
		r = asprintf(&c->state_dir, "%.*s", (int)strcspn(service, ":"), service);
	else if (geteuid() == 0)
		r = asprintf(&c->state_dir, "/var/lib/kvd");
	else if (state && state[0] == '/')
		r = asprintf(&c->state_dir, "%s/kvd", state);
	else if (home && home[0] == '/')
		r = asprintf(&c->state_dir, "%s/.local/state/kvd", home);
	if (r < 0)
		c->state_dir = NULL;
	return r < 0 ? -ENOMEM : 0;
}

static int fill_disk(struct config *c)
{
	int r = default_state_dir(c);

	if (!r && c->server.disk == SERVER_DISK_AUTO && !c->server.state_dir_named)
		c->server.disk = 0;
	c->server.state_dir = c->state_dir;
	return r;
}

/* Milliseconds of the environment, for tests. */
static int read_delay(const char *name, uint64_t *out_ns, struct diag *diag)
{
	const char *delay = getenv(name), *end;
	uint64_t ms;

	if (!delay || !delay[0])
		return 0;
	if (parse_digits(delay, 10, &end, &ms) || *end || ms > 60000)
		return diag_set(diag, -EINVAL, "%s: \"%s\" is not within 0..60000", name, delay);
	*out_ns = ms * 1000000;
	return 0;
}

/* Three times between commas, for tests: what the sizes of blocks are to have taken. */
static int read_block_times(uint64_t out[3], struct diag *diag)
{
	static const char name[] = "KVD_TEST_BLOCK_TIMES";
	const char *p = getenv(name);

	for (int i = 0; p && p[0] && i < 3; i++, p++) {
		if (parse_digits(p, 10, &p, &out[i]) || !out[i] || *p != (i < 2 ? ',' : '\0'))
			return diag_set(diag, -EINVAL, "%s: not three numbers above 0", name);
	}
	return 0;
}

static int fill_defaults(struct config *c, struct diag *diag)
{
	int r;

	if (!c->socket) {
		r = default_socket(&c->socket);
		if (r)
			return r;
	}
	/* Who a peer is comes from the kernel, so a system daemon may be open to all. */
	if (c->socket_mode < 0)
		c->socket_mode = geteuid() == 0 ? 0666 : 0600;
	r = read_delay("KVD_TEST_STEP_DELAY_MS", &c->server.step_delay_ns, diag);
	if (!r)
		r = read_delay("KVD_TEST_LOAD_DELAY_MS", &c->server.load_delay_ns, diag);
	if (!r)
		r = read_block_times(c->server.block_times, diag);
	if (!r)
		r = fill_disk(c);
	if (r)
		return r;
	c->server.proc_dir = getenv("KVD_TEST_PROC");
	c->server.socket_path = c->socket;
	c->server.socket_mode = (mode_t)c->socket_mode;
	c->server.models = (const char *const *)c->models;
	c->server.synthetic = (const char *const *)c->synthetic;
	c->server.http = (const char *const *)c->http;
	c->server.cpu_level = c->cpu_level;
	c->server.cache_groups = c->cache_groups;
	c->server.fair_weights = c->fair_weights;
	c->server.http_keys = c->http_keys;
	c->server.http_hosts = c->http_hosts;
	c->server.http_origins = c->http_origins;
	return 0;
}

static void set_defaults(struct config *c)
{
	*c = (struct config){
		.socket_mode = -1,
		.server = {
			.attention_mass = true,
			.disk = SERVER_DISK_AUTO,
			.max_seqs = 16,
			.prefill_quantum = 256,
			.prefill_ratio = 250,
			.stuck_limit_s = 30,
			.max_sessions = 1024,
			.uid_sessions = 64,
			.uid_memory = 1ull << 30,
			.uid_requests = 256,
			.max_queue = 1024,
			.http_max_body = 32 << 20,
			.http_request_s = 30,
			.http_idle_s = 60,
		},
	};
}

/* Applies the file that the command line names, then the command line anew over it. */
static int read_file_below(struct config *c, int argc, char **argv, struct diag *diag)
{
	char *file = steal_ptr(c->file);
	int r;

	config_deinit(c);
	set_defaults(c);
	c->file = file;
	r = read_file(c, diag);
	if (r)
		return r;
	c->given = 0;
	return read_command_line(c, argc, argv, diag);
}

/* Those of files, then those made up. */
static const char *model_of(const struct config *c, size_t i)
{
	return i < c->server.n_models ? c->models[i] : c->synthetic[i - c->server.n_models];
}

/* Models are asked for by the names of their files: each must have one of its own. */
static int check_models(const struct config *c, struct diag *diag)
{
	size_t n_models = c->server.n_models, n_all = n_models + c->server.n_synthetic;
	char names[KVD_MODELS_MAX][KVD_MODEL_NAME_MAX + 1];

	if (n_all > KVD_MODELS_MAX)
		return diag_set(diag, -EINVAL, "model: given %zu times, at most %u are possible",
				n_all, KVD_MODELS_MAX);
	for (size_t i = 0; i < n_all; i++) {
		if (i >= n_models && synthetic_check(model_of(c, i), diag))
			return -EINVAL;
		if (server_model_name(model_of(c, i), names[i], sizeof(names[i])))
			return diag_set(diag, -EINVAL, "model: the name of %s is not 1 to %u bytes of UTF-8 "
					"without control characters", model_of(c, i), KVD_MODEL_NAME_MAX);
		for (size_t k = 0; k < i; k++) {
			if (strcmp(names[k], names[i]) == 0)
				return diag_set(diag, -EINVAL, "model: %s and %s would have the same name, \"%s\"",
						model_of(c, k), model_of(c, i), names[i]);
		}
	}
	return 0;
}

/* "off" stands alone; the rest are addresses. */
static int check_http(struct config *c, struct diag *diag)
{
	struct http_address address;
	int r = 0;

	if (c->server.n_http == 1 && strcmp(c->http[0], "off") == 0)
		clear_list((struct list_field){ &c->http, &c->server.n_http });
	for (size_t i = 0; i < c->server.n_http && !r; i++) {
		r = http_address_parse(&address, c->http[i], diag);
		if (!r && !c->http_keys && !http_address_is_local(&address))
			r = diag_set(diag, -EINVAL, "http: %s is not only for this machine: that needs http-keys",
				     c->http[i]);
	}
	return r;
}

/* Q4 has scales of keys for a whole block: its size is not free. */
static int check_block_tokens(struct config *c, struct diag *diag)
{
	if (c->server.kv_type == KB_KV_Q4 && c->server.block_tokens && c->server.block_tokens != KB_Q4_BLOCK_TOKENS)
		return diag_set(diag, -EINVAL, "block-tokens: a block of kv-type q4 has %u tokens, not %u",
				KB_Q4_BLOCK_TOKENS, c->server.block_tokens);
	return 0;
}

int config_init(struct config *c, int argc, char **argv, struct diag *diag)
{
	int r;

	set_defaults(c);
	r = read_command_line(c, argc, argv, diag);
	if (!r && c->file && c->action != CONFIG_HELP && c->action != CONFIG_VERSION)
		r = read_file_below(c, argc, argv, diag);
	if (!r)
		r = check_http(c, diag);
	if (!r)
		r = check_block_tokens(c, diag);
	if (!r)
		r = fill_defaults(c, diag);
	if (!r && (c->action == CONFIG_RUN || c->action == CONFIG_CHECK))
		r = check_models(c, diag);
	if (!r && c->action == CONFIG_CHECK)
		r = namespaces_init(&(struct namespaces){ .public = false }, c->cache_groups, false, diag);
	if (!r && c->action == CONFIG_CHECK)
		r = fair_weights_init(&(struct fair_weights){ .n_users = 0 }, c->fair_weights, diag);
	return r;
}

void config_deinit(struct config *c)
{
	free(c->file);
	clear_list((struct list_field){ &c->models, &c->server.n_models });
	clear_list((struct list_field){ &c->synthetic, &c->server.n_synthetic });
	clear_list((struct list_field){ &c->http, &c->server.n_http });
	free(c->socket);
	free(c->cpu_level);
	free(c->cache_groups);
	free(c->fair_weights);
	free(c->state_dir);
	free(c->http_keys);
	free(c->http_hosts);
	free(c->http_origins);
	*c = (struct config){ 0 };
}

/* --- output ------------------------------------------------------------------------ */

static void print_size(FILE *f, const char *name, uint64_t v, const char *zero)
{
	static const char units[] = "\0KMGT";
	unsigned i = 0;

	if (!v) {
		fprintf(f, "%s = %s\n", name, zero);
		return;
	}
	while (units[i + 1] && v % 1024 == 0) {
		v /= 1024;
		i++;
	}
	fprintf(f, units[i] ? "%s = %llu%c\n" : "%s = %llu\n", name, (unsigned long long)v, units[i]);
}

/* A value that begins as a comment does, or makes the longest line, is set without blanks. */
static void print_string(FILE *f, const char *name, const char *value)
{
	bool tight = value[0] == ';' || strlen(name) + strlen(" = ") + strlen(value) > LINE_MAX_BYTES;

	fprintf(f, tight ? "%s=%s\n" : "%s = %s\n", name, value);
}

static void print_row(const struct config *c, const struct option_row *row, FILE *f)
{
	const void *field = (const char *)c + row->offset;
	uint32_t n;

	switch (row->kind) {
	case KIND_STRING:
		if (*(char *const *)field)
			print_string(f, row->name, *(char *const *)field);
		break;
	case KIND_LIST:
		n = (uint32_t)*(const size_t *)((const char *)c + row->min);
		for (uint32_t i = 0; i < n; i++)
			print_string(f, row->name, (*(char *const *const *)field)[i]);
		if (!n && strcmp(row->name, "http") == 0)
			print_string(f, row->name, "off");
		break;
	case KIND_NUMBER:
		n = *(const uint32_t *)field;
		if (n || row->min || strcmp(row->name, "idle-exit") == 0)
			fprintf(f, "%s = %u\n", row->name, n);
		else
			fprintf(f, "%s = auto\n", row->name);
		break;
	case KIND_SIZE:
		print_size(f, row->name, *(const uint64_t *)field, "0");
		break;
	case KIND_SIZE_AUTO:
		print_size(f, row->name, *(const uint64_t *)field, "auto");
		break;
	case KIND_SIZE_OFF:
		print_size(f, row->name, *(const uint64_t *)field, "off");
		break;
	case KIND_SIZE_DISK:
		if (*(const uint64_t *)field == SERVER_DISK_AUTO)
			fprintf(f, "%s = auto\n", row->name);
		else
			print_size(f, row->name, *(const uint64_t *)field, "off");
		break;
	case KIND_FLAG:
		fprintf(f, "%s = %s\n", row->name, !row->offset || *(const bool *)field ? "yes" : "no");
		break;
	case KIND_MODE:
		fprintf(f, "%s = %04o\n", row->name, (unsigned)*(const int *)field);
		break;
	case KIND_CHOICE:
		if (strcmp(row->name, "kv-type") == 0)
			fprintf(f, "kv-type = %s\n", kv_type_name(c->server.kv_type));
		else if (strcmp(row->name, "device") == 0)
			fputs("device = cpu\n", f);
		else if (strcmp(row->name, "fairness") == 0)
			fprintf(f, "fairness = %s\n", c->server.no_fairness ? "none" : "tokens");
		else if (c->cpu_level)
			fprintf(f, "%s = %s\n", row->name, c->cpu_level);
		break;
	case KIND_ACTION:
		break;
	}
}

void config_print(const struct config *c, FILE *f)
{
	fputs("[kvd]\n", f);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (strcmp(rows[i].name, "config") != 0)
			print_row(c, &rows[i], f);
	}
}

void config_version(FILE *f)
{
	fprintf(f, "kvd %s\nCPU levels, best first:", KVD_VERSION);
	for (const char *const *level = kb_cpu_levels(); *level; level++)
		fprintf(f, " %s", *level);
	fputc('\n', f);
}

void config_help(FILE *f)
{
	fputs("usage: kvd [--model FILE]... [options]\n\n"
	      "Serves language models to local programs over a Unix socket; see kvd(8).\n\n", f);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char left[64];

		snprintf(left, sizeof(left), "--%s%s%s", rows[i].name, rows[i].argument ? " " : "",
			 rows[i].argument ? rows[i].argument : "");
		fprintf(f, "  %-30s %s\n", left, rows[i].help);
	}
}
