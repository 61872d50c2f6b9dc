/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of keys.  What was understood is written down again in one plain form: that must be understood in the
 * same way, and each key be found by its secret and by nothing that is nearly it.
 */
#include "daemon/server/http-keys.h"
#include "tests/fuzz/fuzz.h"

static size_t put_limit(char *out, size_t n, const char *name, uint64_t v)
{
	return v == UINT64_MAX ? 0 : (size_t)snprintf(out, n, " %s=%llu", name, (unsigned long long)v);
}

/* Namespaces that are a key's own are not written. */
static char *write_down(const struct http_keys *keys)
{
	size_t capacity = keys->n * 1024 + 1, n = 0;
	char *text = malloc(capacity);

	FUZZ_CHECK(text);
	text[0] = '\0';
	for (size_t i = 0; i < keys->n; i++) {
		const struct http_key *k = &keys->keys[i];
		const uint64_t *max = k->limits.max;

		n += (size_t)snprintf(text + n, capacity - n, "%s %.*s weight=%u", k->name, (int)k->n_secret, k->secret,
				      k->weight);
		if (strncmp(k->own, "key:", 4) != 0)
			n += (size_t)snprintf(text + n, capacity - n, " namespace=%s", *k->own ? k->own : "none");
		if (k->all_metrics)
			n += (size_t)snprintf(text + n, capacity - n, " metrics=all");
		n += put_limit(text + n, capacity - n, "sessions", max[ACCOUNT_SESSIONS]);
		n += put_limit(text + n, capacity - n, "requests", max[ACCOUNT_REQUESTS]);
		n += put_limit(text + n, capacity - n, "memory", max[ACCOUNT_MEMORY]);
		n += put_limit(text + n, capacity - n, "kv-memory", max[ACCOUNT_KV]);
		n += (size_t)snprintf(text + n, capacity - n, "\n");
		FUZZ_CHECK(n < capacity);
	}
	return text;
}

static void check_key(const struct http_keys *keys, const struct http_key *k)
{
	char secret[HTTP_KEY_MAX + 2] = "";

	FUZZ_CHECK(k->n_secret >= HTTP_KEY_MIN && k->n_secret <= HTTP_KEY_MAX);
	FUZZ_CHECK(k->account >= ACCOUNT_ID_KEYS && k->account < UINT32_MAX && k->weight && *k->name);
	memcpy(secret, k->secret, k->n_secret);
	FUZZ_CHECK(strlen(secret) == k->n_secret && http_keys_find(keys, secret) == k);
	FUZZ_CHECK(http_keys_of(keys, k->account) == k);
	secret[k->n_secret] = secret[0];
	FUZZ_CHECK(http_keys_find(keys, secret) != k);
	secret[k->n_secret - 1] = '\0';
	FUZZ_CHECK(http_keys_find(keys, secret) != k);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	char *text = (char *)fuzz_copy(data, n), *again;
	struct http_keys *keys = NULL, *second = NULL;
	struct diag diag = DIAG_NULL;
	int r = http_keys_parse(&keys, text, n, "keys", &diag);

	free(text);
	FUZZ_CHECK(r == 0 || (r == -EINVAL && !keys && diag.text[0]));
	if (r)
		return 0;
	FUZZ_CHECK(keys->n && keys->n <= HTTP_KEYS_MAX);
	for (size_t i = 0; i < keys->n; i++)
		check_key(keys, &keys->keys[i]);
	again = write_down(keys);
	FUZZ_CHECK(http_keys_parse(&second, again, strlen(again), "again", &diag) == 0);
	FUZZ_CHECK(second->n == keys->n && !memcmp(second->keys, keys->keys, keys->n * sizeof(keys->keys[0])));
	free(again);
	http_keys_free(second);
	http_keys_free(keys);
	return 0;
}
