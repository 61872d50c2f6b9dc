/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at the bytes before they are unpacked: unpacking takes 24 bytes for each
 * object and keeps a stack for nested ones, so both are limited here first.
 */
#include "ipc/codec-spec.h"

#include <string.h>

/* What follows a type byte. */
struct item {
	unsigned n_length;	/* bytes of big-endian length that follow */
	uint64_t length;	/* if n_length is 0 */
	unsigned per;		/* values per counted element: 1 array, 2 map; 0: bytes of data */
};

/* The msgpack specification, "Formats".  False: a type that no message has. */
static bool item_of(uint8_t b, struct item *out)
{
	static const uint8_t numbers[] = { 4, 8, 1, 2, 4, 8, 1, 2, 4, 8 };	/* 0xca ... 0xd3 */

	*out = (struct item){ 0 };
	if (b == 0xc1 || (b >= 0xc7 && b <= 0xc9) || (b >= 0xd4 && b <= 0xd8))
		return false;				/* never used; ext; fixext */
	if (b <= 0x7f || b >= 0xe0 || (b >= 0xc0 && b <= 0xc3))
		return true;				/* small numbers, nil, false, true */
	if (b <= 0x8f)
		*out = (struct item){ .length = b & 15u, .per = 2 };
	else if (b <= 0x9f)
		*out = (struct item){ .length = b & 15u, .per = 1 };
	else if (b <= 0xbf)
		*out = (struct item){ .length = b & 31u };
	else if (b <= 0xc6)
		out->n_length = 1u << (b - 0xc4);	/* bin */
	else if (b >= 0xca && b <= 0xd3)
		out->length = numbers[b - 0xca];
	else if (b <= 0xdb)
		out->n_length = 1u << (b - 0xd9);	/* str */
	else
		*out = (struct item){ .n_length = b & 1 ? 4 : 2, .per = b <= 0xdd ? 1 : 2 };
	return true;
}

const char *codec_scan(const uint8_t *p, size_t n)
{
	uint64_t left[KVD_MESSAGE_DEPTH_MAX + 1];	/* values still to come, by depth */
	size_t depth = 0, at = 0, n_objects = 0;

	left[0] = 1;
	for (;;) {
		struct item item;
		uint64_t length;

		while (left[depth] == 0) {
			if (depth == 0)
				return at == n ? NULL : "there is more behind the message";
			depth--;
		}
		left[depth]--;
		if (++n_objects > KVD_MESSAGE_OBJECTS_MAX)
			return "too many objects";
		if (at == n)
			return "the message is cut off";
		if (!item_of(p[at++], &item))
			return "a msgpack type that no message has";
		if (item.n_length > n - at)
			return "the message is cut off";
		length = item.length;
		for (unsigned i = 0; i < item.n_length; i++)
			length = length << 8 | p[at++];
		if (item.per > 0) {
			if (depth == KVD_MESSAGE_DEPTH_MAX)
				return "nested too deeply";
			/* Each value takes a byte at least. */
			if (length * item.per > n - at)
				return "the message is cut off";
			left[++depth] = length * item.per;
		} else {
			if (length > n - at)
				return "the message is cut off";
			at += length;
		}
	}
}

/* Past the head of the item at p[at]; item->length is the number that follows, too. */
static size_t read_head(const uint8_t *p, size_t at, struct item *item)
{
	item_of(p[at++], item);
	for (unsigned i = 0; i < item->n_length; i++)
		item->length = item->length << 8 | p[at++];
	return at;
}

/* Past the value at p[at], which codec_scan() has checked. */
static size_t skip(const uint8_t *p, size_t at)
{
	uint64_t left = 1;

	while (left--) {
		struct item item;

		at = read_head(p, at, &item);
		if (item.per > 0)
			left += item.length * item.per;
		else
			at += item.length;
	}
	return at;
}

static bool is_string(uint8_t head)
{
	return (head >= 0xa0 && head <= 0xbf) || (head >= 0xd9 && head <= 0xdb);
}

/* The number at p[at], 0 if it is something else or negative. */
static uint64_t number_at(const uint8_t *p, size_t at)
{
	const uint8_t b = p[at];
	const unsigned n = 1u << (b & 3);
	uint64_t v = 0;

	if (b <= 0x7f)
		return b;
	if (b < 0xcc || b > 0xd3 || (b >= 0xd0 && p[at + 1] > 0x7f))
		return 0;
	for (unsigned i = 1; i <= n; i++)
		v = v << 8 | p[at + i];
	return v;
}

uint64_t codec_scan_id(const uint8_t *p, size_t n)
{
	struct item message, map;
	uint64_t n_fields;
	size_t at;

	if (codec_scan(p, n))
		return 0;
	at = read_head(p, 0, &message);
	if (message.per != 1 || message.length != 2)
		return 0;
	at = read_head(p, skip(p, at), &map);
	if (map.per != 2)
		return 0;
	for (n_fields = map.length; n_fields; n_fields--) {
		struct item key;
		size_t text = read_head(p, at, &key);

		if (is_string(p[at]) && key.length == 2 && memcmp(p + text, "id", 2) == 0)
			return number_at(p, text + 2);
		at = skip(p, skip(p, at));
	}
	return 0;
}
