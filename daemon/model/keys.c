/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/keys.h"

#include <stdio.h>
#include <string.h>

#include "daemon/model/gguf-private.h"
#include "ipc/base/checked.h"

/* What describes a model or another part of it, and enters into no sum here; a dot at the end: all below. */
static const char *const descriptive[] = {
	"attention.layer_norm_epsilon",	/* of norms with a mean, which no architecture here has */
	"expert_used_count",		/* no experts: expert_count says so */
	"mm.",				/* of the part that reads images */
	"pooling_type",			/* how embeddings are summed up, after the last layer */
	"rope.scaling.finetuned",
	"tensor_data_layout",
	"vision.",
};

struct keys_name keys_name(const struct keys *k, const char *suffix)
{
	struct keys_name name;

	snprintf(name.text, sizeof(name.text), "%s.%s", k->arch, suffix);
	return name;
}

static struct keys_name ask(struct keys *k, const char *suffix)
{
	if (k->n_asked < KEYS_MAX_ASKED)
		k->asked[k->n_asked++] = suffix;
	return keys_name(k, suffix);
}

static int missing(const struct keys *k, const char *suffix)
{
	return diag_set(k->diag, -EINVAL, "metadata key \"%s\": missing", keys_name(k, suffix).text);
}

int keys_u32(struct keys *k, const char *suffix, uint32_t min, uint32_t max, uint32_t *out)
{
	int r = gguf_get_u32(k->g, ask(k, suffix).text, min, max, out, k->diag);

	return r == GGUF_E_ABSENT ? missing(k, suffix) : r;
}

int keys_u32_or(struct keys *k, const char *suffix, uint32_t min, uint32_t max, uint32_t *out)
{
	int r = gguf_get_u32(k->g, ask(k, suffix).text, min, max, out, k->diag);

	return r == GGUF_E_ABSENT ? 0 : r;
}

int keys_positive(struct keys *k, const char *suffix, float max, float *out)
{
	float v = *out;
	int r = gguf_get_f32(k->g, ask(k, suffix).text, &v, k->diag);

	if (r < 0)
		return r;
	if (r == GGUF_E_ABSENT)
		return v > 0 ? 0 : missing(k, suffix);
	if (!(v > 0 && v <= max))
		return diag_set(k->diag, -EINVAL,
				"metadata key \"%s\": %g is out of range (above 0, at most %g)",
				keys_name(k, suffix).text, (double)v, (double)max);
	*out = v;
	return 0;
}

int keys_positive_alias(struct keys *k, const char *suffix, const char *alias, float max, float *out)
{
	float first = *out, other;
	int r;

	r = keys_positive(k, suffix, max, &first);
	if (r)
		return r;
	other = first;
	r = keys_positive(k, alias, max, &other);
	if (r)
		return r;
	if (other != first && gguf_has(k->g, keys_name(k, suffix).text))
		return diag_set(k->diag, -EINVAL, "metadata key \"%s\": differs from \"%s\"",
				keys_name(k, alias).text, suffix);
	*out = other;
	return 0;
}

int keys_not_negative(struct keys *k, const char *suffix, float max, float *out)
{
	float v = *out;
	int r = gguf_get_f32(k->g, ask(k, suffix).text, &v, k->diag);

	if (r)
		return r == GGUF_E_ABSENT ? 0 : r;
	if (!(v >= 0 && v <= max))
		return diag_set(k->diag, -EINVAL, "metadata key \"%s\": %g is out of range (0 to %g)",
				keys_name(k, suffix).text, (double)v, (double)max);
	*out = v;
	return 0;
}

int keys_bool_or(struct keys *k, const char *suffix, bool *out)
{
	int r = gguf_get_bool(k->g, ask(k, suffix).text, out, k->diag);

	return r == GGUF_E_ABSENT ? 0 : r;
}

int keys_string(struct keys *k, const char *suffix, struct gguf_string *out)
{
	return gguf_get_string(k->g, ask(k, suffix).text, out, k->diag);
}

int keys_array(struct keys *k, const char *suffix, struct gguf_array *out)
{
	return gguf_get_any_array(k->g, ask(k, suffix).text, out, NULL) ? GGUF_E_ABSENT : 0;
}

static bool is_known(const struct keys *k, struct gguf_string suffix)
{
	for (size_t i = 0; i < k->n_asked; i++)
		if (gguf_string_eq(suffix, k->asked[i]))
			return true;
	for (size_t i = 0; i < ARRAY_SIZE(descriptive); i++) {
		size_t n = strlen(descriptive[i]);

		if (gguf_string_eq(suffix, descriptive[i]))
			return true;
		if (descriptive[i][n - 1] == '.' && suffix.n > n && !memcmp(suffix.data, descriptive[i], n))
			return true;
	}
	return false;
}

int keys_check_rest(const struct keys *k)
{
	size_t n = strlen(k->arch);

	for (uint32_t i = 0; i < k->g->n_kv; i++) {
		struct gguf_string key = gguf_kv_key(k->g, i);

		if (key.n <= n || memcmp(key.data, k->arch, n) || key.data[n] != '.')
			continue;
		if (!is_known(k, (struct gguf_string){ key.data + n + 1, key.n - n - 1 }))
			return diag_set(k->diag, -EINVAL,
					"metadata key \"%s\": not known; it could change the model's results",
					gguf_quote(key).text);
	}
	return 0;
}
