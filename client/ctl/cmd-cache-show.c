/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl cache show: one entry of the cache. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/cache-entry.h"
#include "client/ctl/cmd-cache.h"
#include "client/ctl/connect.h"
#include "client/ctl/json.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"

static int print_json(const struct ctl *ctl, const struct kvd_cache_details *d)
{
	json_t *v = cache_entry_json(&d->entry), *pins = json_array();

	for (uint32_t i = 0; pins && i < d->n_pinned_by; i++)
		json_array_append_new(pins, json_u64(d->pinned_by[i]));
	if (v) {
		json_object_set_new(v, "chain", json_u64(d->chain));
		json_object_set_new(v, "n_path", json_u64(d->n_path));
		json_object_set_new(v, "n_below", json_u64(d->n_below));
		json_object_set_new(v, "pinned_by", pins);
		json_object_set_new(v, "text", json_string(d->text));
		json_object_set_new(v, "own", json_string(d->own));
	}
	return json_print(ctl, v);
}

static void print_text(const char *title, const char *text)
{
	printf("%-12s", title);
	text_print_visible(stdout, text, strlen(text));
	putchar('\n');
}

static void print_pins(const struct kvd_cache_details *d)
{
	printf("%-12s", "pinned");
	if (!d->n_pinned_by)
		printf("no");
	for (uint32_t i = 0; i < d->n_pinned_by; i++)
		printf("%suid %" PRIu32, i ? ", " : "by ", d->pinned_by[i]);
	putchar('\n');
}

static void print_page(const struct kvd_cache_details *d)
{
	const struct kvd_cache_entry *e = &d->entry;
	char a[FORMAT_MAX], b[FORMAT_MAX];

	printf("%-12s%" PRIu64 ", after %" PRIu64 ", of the chain from %" PRIu64 " on\n", "entry", e->entry, e->parent,
	       d->chain);
	print_text("namespace", e->ns);
	printf("%-12suid %" PRIu32 "\n", "charged to", e->uid);
	printf("%-12s%" PRIu32 ", at positions %" PRIu32 " to %" PRIu32 "\n", "tokens", e->n_tokens, e->first,
	       e->first + e->n_tokens - 1);
	printf("%-12s%s, in %s\n", "size", format_bytes(a, e->bytes), e->tier);
	printf("%-12s%" PRIu32 " to it, %" PRIu32 " below it\n", "entries", d->n_path, d->n_below);
	printf("%-12s%s ago, used %s ago and %" PRIu32 " time%s since, by %" PRIu32 " request%s now\n", "made",
	       format_duration(a, e->age_ns), format_duration(b, e->idle_ns), e->hits, e->hits == 1 ? "" : "s",
	       e->n_users, e->n_users == 1 ? "" : "s");
	printf("%-12s%s%s, priority %s\n", "expires", e->ttl_ns ? "in " : "never",
	       e->ttl_ns ? format_duration(a, e->ttl_ns) : "", cache_priority_name(e->priority));
	print_pins(d);
	print_text("prompt", d->text);
	print_text("own text", d->own);
}

int cmd_cache_show(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = { { "model", required_argument, NULL, 'm' }, CTL_GLOBAL_OPTIONS, { 0 } };
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:", .longs = longs };
	struct kvd_cache_details d;
	struct kvd_client *c = NULL;
	const char *model = NULL;
	uint64_t entry;
	int status, r;

	while ((r = ctl_options_next(&o)) != CTL_OPTIONS_END) {
		if (r == CTL_OPTIONS_EXIT)
			return o.status;
		model = optarg;
	}
	if (optind + 1 != argc)
		return optind == argc ? ctl_usage(ctl, "no entry given") :
			ctl_usage(ctl, "one entry only: %s", argv[optind + 1]);
	status = cache_entry_number(ctl, argv[optind], &entry);
	if (!status)
		status = connect_running(ctl, &c);
	if (status)
		return status;
	r = kvd_cache_show(c, model, entry, &d);
	if (r)
		status = ctl_client_failed(ctl, c, r, "cannot show the entry");
	else if (ctl->json)
		status = print_json(ctl, &d);
	else
		print_page(&d);
	kvd_close(c);
	return status;
}
