/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-keys.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/hash.h"

#define WEIGHT_DEFAULT 100u
#define WEIGHT_MAX 10000u
#define OPTIONS_MAX 8u	/* there are 7, and none may be there twice */

/* --- words -------------------------------------------------------------------------------- */

/* The next word of a line, cut out of it; NULL: none. */
static char *next_word(char **rest)
{
	char *word = *rest + strspn(*rest, " \t");

	if (!*word || *word == '#')
		return NULL;
	*rest = word + strcspn(word, " \t");
	if (**rest)
		*(*rest)++ = '\0';
	return word;
}

static bool is_name(const char *s)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

	return n && !s[n] && n <= HTTP_KEY_NAME_MAX;
}

static bool is_secret(const char *s)
{
	size_t n = strlen(s);

	for (size_t i = 0; i < n; i++) {
		if (s[i] <= 0x20 || s[i] >= 0x7f)
			return false;
	}
	return n >= HTTP_KEY_MIN && n <= HTTP_KEY_MAX;
}

/* Digits, and where sizes are meant a suffix K, M, G or T. */
static bool parse_number(const char *s, bool is_size, uint64_t min, uint64_t max, uint64_t *out)
{
	static const char units[] = "KMGT";
	uint64_t v = 0;
	const char *p = s, *unit;

	for (; *p >= '0' && *p <= '9'; p++) {
		if (!checked_mul_u64(v, 10, &v) || !checked_add_u64(v, (uint64_t)(*p - '0'), &v))
			return false;
	}
	if (p == s)
		return false;
	unit = is_size && *p ? strchr(units, *p) : NULL;
	if (unit) {
		if (!checked_mul_u64(v, 1ull << 10 * (unit - units + 1), &v))
			return false;
		p++;
	}
	if (*p || v < min || v > max)
		return false;
	*out = v;
	return true;
}

/* --- options ------------------------------------------------------------------------------- */

static bool is_namespace(const char *s)
{
	uint64_t uid;

	if (!strcmp(s, "public"))
		return true;
	if (!strncmp(s, "uid:", 4))
		return parse_number(s + 4, false, 0, ACCOUNT_ID_NOBODY - 1, &uid) && (s[4] != '0' || !s[5]);
	return !strncmp(s, "group:", 6) && is_name(s + 6);
}

static int set_option(struct http_key *k, const char *name, const char *value)
{
	static const struct { const char *name; enum account_kind kind; bool is_size; uint64_t min; } limits[] = {
		{ "sessions", ACCOUNT_SESSIONS, false, 1 },
		{ "requests", ACCOUNT_REQUESTS, false, 1 },
		{ "memory", ACCOUNT_MEMORY, true, 1 << 20 },
		{ "kv-memory", ACCOUNT_KV, true, 1 << 20 },
	};
	uint64_t v;

	if (!strcmp(name, "weight")) {
		if (!parse_number(value, false, 1, WEIGHT_MAX, &v))
			return -EINVAL;
		k->weight = (uint32_t)v;
		return 0;
	}
	if (!strcmp(name, "metrics")) {
		k->all_metrics = !strcmp(value, "all");
		return k->all_metrics || !strcmp(value, "own") ? 0 : -EINVAL;
	}
	if (!strcmp(name, "namespace")) {
		if (!strcmp(value, "none"))
			k->own[0] = '\0';
		else if (strlen(value) > KVD_NAMESPACE_MAX - KVD_CACHE_KEY_MAX - 1 || !is_namespace(value))
			return -EINVAL;
		else
			memcpy(k->own, value, strlen(value) + 1);
		return 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		if (!strcmp(name, limits[i].name))
			return parse_number(value, limits[i].is_size, limits[i].min, 1ull << 50,
					    &k->limits.max[limits[i].kind]) ? 0 : -EINVAL;
	}
	return -EINVAL;
}

/* --- lines ----------------------------------------------------------------------------------- */

static uid_t account_of(const char *name)
{
	return ACCOUNT_ID_KEYS + (uid_t)(hash_u64(name, strlen(name), 0) % (UINT32_MAX - ACCOUNT_ID_KEYS));
}

/* A line that is no comment.  diag gets what is wrong with it, without the key. */
static int parse_line(struct http_key *k, const char *name, char *rest, struct diag *diag)
{
	const char *secret = next_word(&rest);
	char *words[OPTIONS_MAX], *word;
	size_t n_words = 0;

	*k = (struct http_key){ .weight = WEIGHT_DEFAULT };
	for (int i = 0; i < ACCOUNT_N_KINDS; i++)
		k->limits.max[i] = UINT64_MAX;
	if (!is_name(name))
		return diag_set(diag, -EINVAL, "a name has 1 to %d letters, digits, dots, '-' and '_'",
				HTTP_KEY_NAME_MAX);
	if (!secret || !is_secret(secret))
		return diag_set(diag, -EINVAL, "the key of %s has not %d to %d visible characters", name,
				HTTP_KEY_MIN, HTTP_KEY_MAX);
	memcpy(k->name, name, strlen(name) + 1);
	k->account = account_of(name);
	snprintf(k->own, sizeof(k->own), "key:%s", name);
	k->n_secret = strlen(secret);
	memcpy(k->secret, secret, k->n_secret);
	while ((word = next_word(&rest))) {
		char *value = strchr(word, '=');

		if (value)
			*value++ = '\0';
		if (!value || set_option(k, word, value))
			return diag_set(diag, -EINVAL, "%.40s of %s is not known, or its value is not possible", word,
					name);
		for (size_t i = 0; i < n_words; i++) {
			if (!strcmp(words[i], word))
				return diag_set(diag, -EINVAL, "%s of %s is there twice", word, name);
		}
		words[n_words++] = word;
	}
	return 0;
}

static int check_unique(const struct http_keys *keys, const struct http_key *k, struct diag *diag)
{
	for (size_t i = 0; i < keys->n; i++) {
		const struct http_key *other = &keys->keys[i];

		if (!strcmp(other->name, k->name))
			return diag_set(diag, -EINVAL, "%s is there twice", k->name);
		if (other->n_secret == k->n_secret && !memcmp(other->secret, k->secret, k->n_secret))
			return diag_set(diag, -EINVAL, "%s and %s have the same key", other->name, k->name);
		if (other->account == k->account)
			return diag_set(diag, -EINVAL, "%s and %s can't be told apart: rename one", other->name,
					k->name);
	}
	return 0;
}

static int add_line(struct http_keys *keys, char *line, struct diag *diag)
{
	char *rest = line, *name = next_word(&rest);
	struct http_key *k = &keys->keys[keys->n];
	int r;

	if (!name)
		return 0;
	if (keys->n == HTTP_KEYS_MAX)
		return diag_set(diag, -EINVAL, "more than %d keys", HTTP_KEYS_MAX);
	r = parse_line(k, name, rest, diag);
	if (!r)
		r = check_unique(keys, k, diag);
	if (!r)
		keys->n++;
	return r;
}

static void wipe_free(char **text)
{
	if (*text)
		explicit_bzero(*text, strlen(*text));
	free(*text);
}

int http_keys_parse(struct http_keys **out, const char *text, size_t n, const char *where, struct diag *diag)
{
	_cleanup_(http_keys_freep) struct http_keys *keys =
		calloc(1, sizeof(*keys) + HTTP_KEYS_MAX * sizeof(keys->keys[0]));
	_cleanup_(wipe_free) char *line = NULL;
	unsigned number = 0;

	if (!keys)
		return -ENOMEM;
	for (size_t at = 0, length; at < n; at += length + 1) {
		const char *end = memchr(text + at, '\n', n - at);
		struct diag why = DIAG_NULL;
		int r;

		length = end ? (size_t)(end - (text + at)) : n - at;
		number++;
		if (memchr(text + at, '\0', length))
			return diag_set(diag, -EINVAL, "http-keys: %s:%u: there is a NUL byte", where, number);
		wipe_free(&line);
		line = strndup(text + at, length);
		if (!line)
			return -ENOMEM;
		r = add_line(keys, line, &why);
		if (r)
			return diag_set(diag, r, "http-keys: %s:%u: %s", where, number, why.text);
	}
	if (!keys->n)
		return diag_set(diag, -EINVAL, "http-keys: %s holds no key", where);
	*out = steal_ptr(keys);
	return 0;
}

/* --- the file ---------------------------------------------------------------------------------- */

/* Who can read it can be anybody in it; who can write it, too. */
static int check_file(int fd, const char *path, struct diag *diag)
{
	struct stat st;
	bool by_group;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return diag_set(diag, -EACCES, "http-keys: %s is not a regular file", path);
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return diag_set(diag, -EACCES, "http-keys: %s belongs to uid %u, not to root or to the daemon's user",
				path, (unsigned)st.st_uid);
	by_group = st.st_uid == 0 && st.st_gid == getegid() && !(st.st_mode & 0037);
	if ((st.st_mode & 0077) && !by_group)
		return diag_set(diag, -EACCES, "http-keys: others can read or write %s: its mode must be 0600, or 0640 "
				"if it is root's and its group the daemon's", path);
	if (st.st_size > HTTP_KEYS_FILE_MAX)
		return diag_set(diag, -EINVAL, "http-keys: %s is larger than %d bytes", path, HTTP_KEYS_FILE_MAX);
	return 0;
}

int http_keys_load(struct http_keys **out, const char *path, struct diag *diag)
{
	/* What is no regular file may not answer to being opened. */
	_cleanup_(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	_cleanup_(freep) char *text = NULL;
	ssize_t n;
	int r;

	if (fd < 0)
		return diag_set(diag, -errno, "http-keys: cannot open %s: %s", path, strerror(errno));
	r = check_file(fd, path, diag);
	if (r)
		return r;
	text = malloc(HTTP_KEYS_FILE_MAX + 1);
	if (!text)
		return -ENOMEM;
	n = pread(fd, text, HTTP_KEYS_FILE_MAX + 1, 0);
	if (n < 0 || n > HTTP_KEYS_FILE_MAX)
		return diag_set(diag, n < 0 ? -errno : -EINVAL, "http-keys: cannot read %s", path);
	r = http_keys_parse(out, text, (size_t)n, path, diag);
	explicit_bzero(text, (size_t)n);
	return r;
}

void http_keys_free(struct http_keys *keys)
{
	if (keys)
		explicit_bzero(keys, sizeof(*keys) + HTTP_KEYS_MAX * sizeof(keys->keys[0]));
	free(keys);
}

/* --- finding -------------------------------------------------------------------------------------- */

/* 1 where all bytes and the lengths are the same, 0 where not, in the same time. */
static size_t same(const struct http_key *k, const volatile char *secret, size_t n)
{
	size_t differs = k->n_secret ^ n;

	for (size_t i = 0; i < HTTP_KEY_MAX; i++)
		differs |= (size_t)(unsigned char)(k->secret[i] ^ secret[i]);
	return ((differs | (0 - differs)) >> (sizeof(differs) * 8 - 1)) ^ 1;
}

const struct http_key *http_keys_find(const struct http_keys *keys, const char *secret)
{
	char padded[HTTP_KEY_MAX] = { 0 };
	size_t n = strlen(secret), found = 0;

	memcpy(padded, secret, MIN(n, sizeof(padded)));
	/* No early end: which one it is, or how much of it is right, must not show. */
	for (size_t i = 0; i < keys->n; i++)
		found |= (i + 1) * same(&keys->keys[i], padded, n);
	explicit_bzero(padded, sizeof(padded));
	return found ? &keys->keys[found - 1] : NULL;
}

const struct http_key *http_keys_of(const struct http_keys *keys, uid_t account)
{
	for (size_t i = 0; keys && i < keys->n; i++) {
		if (keys->keys[i].account == account)
			return &keys->keys[i];
	}
	return NULL;
}
