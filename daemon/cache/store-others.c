/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is on disk of a model, but of another identity: a daemon with other options, of another version or on another
 * processor has left it.  It is not lost, since those may come back; and it is the first to go when room is needed.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/cache/store-root.h"
#include "ipc/base/checked.h"

#define OTHERS_NAMED 3u

struct others {
	uint64_t bytes;
	uint32_t n;
	char text[320];			/* how the first of them differ */
	size_t n_text;
};

static void describe(const struct disk *d, const struct store_field *f, char *out, size_t size)
{
	out[0] = '\0';
	if (d->describe)
		d->describe(f, out, size);
}

/* "the type of keys and values was q8, is f16" */
static void add_text(struct others *o, const struct disk *d, const struct store_field *ours,
		     const struct store_field *theirs)
{
	const char *separator = o->n_text ? "; " : "";
	char is[64], was[64];
	int n;

	describe(d, ours, is, sizeof(is));
	describe(d, theirs, was, sizeof(was));
	if (is[0] && was[0] && strcmp(is, was))
		n = snprintf(o->text + o->n_text, sizeof(o->text) - o->n_text, "%s%s was %s, is %s", separator,
			     store_tag_name(ours->tag), was, is);
	else
		n = snprintf(o->text + o->n_text, sizeof(o->text) - o->n_text, "%s%s differs", separator,
			     store_tag_name(ours->tag));
	o->n_text = MIN(o->n_text + (size_t)MAX(n, 0), sizeof(o->text) - 1);
}

/* Whether `other` is of the same model; *ours, *theirs: the first field in which they differ. */
static bool is_same_model(const struct disk_root *r, const struct disk_root *other, struct store_field *ours,
			  struct store_field *theirs)
{
	uint32_t n, n_other;
	const uint8_t *fields = disk_root_fields(r, &n), *other_fields = disk_root_fields(other, &n_other);
	struct store_field a, b;

	if (!store_identity_find(fields, n, STORE_TAG_MODEL, &a) ||
	    !store_identity_find(other_fields, n_other, STORE_TAG_MODEL, &b))
		return false;
	if (a.n != b.n || memcmp(a.data, b.data, a.n))
		return false;
	*ours = *theirs = (struct store_field){ 0 };
	if (store_identity_differing(fields, n, other_fields, n_other, ours) &&
	    !store_identity_find(other_fields, n_other, ours->tag, theirs))
		*theirs = (struct store_field){ .tag = ours->tag };
	return true;
}

void disk_note_others(struct disk_root *r, const char *model)
{
	struct disk *d = r->disk;
	struct others o = { 0 };
	char line[512];

	r->other = false;
	list_for_each(l, &d->roots) {
		struct disk_root *other = list_entry(l, struct disk_root, link);
		struct store_field ours, theirs;

		if (other->n_users || disk_root_identify(other) || !is_same_model(r, other, &ours, &theirs))
			continue;
		other->other = true;
		o.bytes += disk_root_bytes(other);
		if (o.n++ < OTHERS_NAMED)
			add_text(&o, d, &ours, &theirs);
	}
	if (!o.n || !d->note)
		return;
	snprintf(line, sizeof(line),
		 "%.64s: %llu MiB of the cache on disk are of no use to it now, and go first when room is needed: %s%s",
		 model, (unsigned long long)((o.bytes + (UINT64_C(1) << 20) - 1) >> 20), o.text,
		 o.n > OTHERS_NAMED ? "; and others" : "");
	d->note(d->arg, line);
}

uint64_t disk_useless_bytes(const struct disk *d)
{
	uint64_t bytes = 0;

	list_for_each(l, &d->roots) {
		const struct disk_root *r = list_entry(l, struct disk_root, link);

		if (r->other && !r->n_users)
			bytes += disk_root_bytes(r);
	}
	return bytes;
}
