/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/ctl/json.h"
#include "client/ctl/text.h"

json_t *json_text(const void *p, size_t n)
{
	char *utf8 = malloc(n * 3 + 1);

	if (!utf8)
		return NULL;
	json_t *v = json_stringn(utf8, text_utf8(p, n, utf8));
	free(utf8);
	return v;
}

json_t *json_bytes(const void *p, size_t n)
{
	const uint8_t *s = p;
	json_t *v = json_array();

	for (size_t i = 0; v && i < n; i++)
		json_array_append_new(v, json_integer(s[i]));
	return v;
}

json_t *json_number(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

json_t *json_u64(uint64_t v)
{
	return v <= INT64_MAX ? json_integer((json_int_t)v) : json_real((double)v);
}

static int print(const struct ctl *ctl, json_t *v, size_t flags)
{
	if (!v) {
		ctl_error(ctl, "out of memory");
		return CTL_FAILED;
	}
	int r = json_dumpf(v, stdout, flags | JSON_REAL_PRECISION(9));
	json_decref(v);
	if (r || putchar('\n') == EOF) {
		ctl_error(ctl, "cannot write the output");
		return CTL_FAILED;
	}
	return CTL_OK;
}

int json_print(const struct ctl *ctl, json_t *v)
{
	return print(ctl, v, JSON_INDENT(2));
}

int json_print_line(const struct ctl *ctl, json_t *v)
{
	return print(ctl, v, JSON_COMPACT);
}
