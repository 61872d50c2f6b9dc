/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-vector.h"

#include <math.h>

bool http_vector_is_finite(const float *values, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!isfinite(values[i]))
			return false;
	return true;
}

/* No square of a float is too large for a double, nor the sum of fewer than 2^32. */
static double divisor(const float *values, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += (double)values[i] * (double)values[i];
	return sum > 0 ? sqrt(sum) : 1;
}

void http_put_vector(struct http_writer *w, const float *values, uint32_t n)
{
	double d = divisor(values, n);

	http_put(w, "[", 1);
	for (uint32_t i = 0; i < n; i++) {
		if (i)
			http_put(w, ",", 1);
		http_put_float(w, (float)((double)values[i] / d));
	}
	http_put(w, "]", 1);
}

/* Three bytes, of which the first n count. */
static void put_base64(struct http_writer *w, const uint8_t *bytes, unsigned n)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	uint32_t v = (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 8 | bytes[2];
	char text[4];

	for (unsigned i = 0; i < 4; i++)
		text[i] = i <= n ? digits[v >> (18 - 6 * i) & 63] : '=';
	http_put(w, text, sizeof(text));
}

void http_put_vector_base64(struct http_writer *w, const float *values, uint32_t n)
{
	double d = divisor(values, n);
	uint8_t group[3] = { 0 };
	unsigned n_group = 0;

	http_put(w, "\"", 1);
	for (uint32_t i = 0; i < n; i++) {
		float value = (float)((double)values[i] / d);
		uint32_t bits;

		memcpy(&bits, &value, sizeof(bits));
		for (unsigned k = 0; k < 32; k += 8) {
			group[n_group++] = (uint8_t)(bits >> k);
			if (n_group < 3)
				continue;
			put_base64(w, group, 3);
			memset(group, 0, sizeof(group));
			n_group = 0;
		}
	}
	if (n_group)
		put_base64(w, group, n_group);
	http_put(w, "\"", 1);
}
