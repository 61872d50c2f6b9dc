/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's commands of libkvd: every member arrives; pages become one list; lies are found out. */
#include "tests/unit/client/fake-daemon.h"

static struct msg_cache_entry entry_of(uint64_t number)
{
	return (struct msg_cache_entry){
		number, number / 2, "uid:7/k", 7, 16, 32, true, 1ull << 33, "memory", 1ull << 40, 5, 6, 8, 9, 10, 2,
		true, "Once",
	};
}

static void check_entry(const struct kvd_cache_entry *e, uint64_t number)
{
	assert_int_equal(e->entry, number);
	assert_int_equal(e->parent, number / 2);
	assert_string_equal(e->ns, "uid:7/k");
	assert_true(e->uid == 7 && e->n_tokens == 16 && e->first == 32 && e->joined == 1 && e->bytes == 1ull << 33);
	assert_string_equal(e->tier, "memory");
	assert_true(e->age_ns == 1ull << 40 && e->idle_ns == 5 && e->ttl_ns == 6 && e->hits == 8 && e->n_users == 9);
	assert_true(e->n_pins == 10 && e->priority == KVD_CACHE_HIGH && e->pinned == 1);
	assert_string_equal(e->words, "Once");
}

/* 300 entries, the numbers going down. */
static void answer_all(struct fake *f)
{
	static const uint32_t uids[2] = { 3, UINT32_MAX };
	struct msg_cache_entry entries[KVD_CACHE_LS_MAX];

	FAKE_EXPECT(f, fake_greet(f));
	while (fake_receive(f)) {
		const struct msg *m = f->msg;
		struct msg_cache_ls_reply page = { .id = m->status.id, .model = "m", .block_tokens = 16,
						   .entries = entries };
		struct msg_cache_entry one = entry_of(99);
		uint64_t n;

		switch (m->id) {
		case KVD_MSG_CACHE_LS:
			FAKE_EXPECT(f, !strcmp(m->cache_ls.model, "m") && !strcmp(m->cache_ls.namespace, "own"));
			n = m->cache_ls.after ? m->cache_ls.after : 301;
			while (--n && page.n_entries < KVD_CACHE_LS_MAX)
				entries[page.n_entries++] = entry_of(n);
			page.next = entries[page.n_entries - 1].entry > 1 ? entries[page.n_entries - 1].entry : 0;
			fake_send(f, KVD_MSG_CACHE_LS_REPLY, &page);
			break;
		case KVD_MSG_CACHE_SHOW:
			FAKE_EXPECT(f, m->cache_show.entry == 99 && !m->cache_show.model);
			fake_send(f, KVD_MSG_CACHE_SHOW_REPLY, &(struct msg_cache_show_reply){
				m->status.id, "m", &one, 1, 97, 3, 4, uids, 2, "Once upon", "upon" });
			break;
		case KVD_MSG_CACHE_PIN:
			FAKE_EXPECT(f, m->cache_pin.entry == 5);
			fake_send(f, KVD_MSG_CACHE_DONE, &(struct msg_cache_done){ m->status.id, 1, 2, 3 });
			break;
		case KVD_MSG_CACHE_UNPIN:
			FAKE_EXPECT(f, m->cache_unpin.entry == 6 && m->cache_unpin.all);
			fake_send(f, KVD_MSG_CACHE_DONE, &(struct msg_cache_done){ m->status.id, 4, 5, 6 });
			break;
		case KVD_MSG_CACHE_DROP:
			FAKE_EXPECT(f, m->cache_drop.entry == 7 && m->cache_drop.chain);
			FAKE_EXPECT(f, !strcmp(m->cache_drop.model, "x"));
			fake_send(f, KVD_MSG_ERROR, &(struct msg_error){
				m->status.id, KVD_CODE_NO_ENTRY, "entry", "there is none", 0 });
			break;
		case KVD_MSG_CACHE_WIPE:
			FAKE_EXPECT(f, m->cache_wipe.all || !strcmp(m->cache_wipe.namespace, "own/k"));
			FAKE_EXPECT(f, !m->cache_wipe.model);
			fake_send(f, KVD_MSG_CACHE_DONE, &(struct msg_cache_done){
				m->status.id, m->cache_wipe.all, 0, UINT64_MAX });
			break;
		default:
			f->failed = "another question";
		}
	}
}

static void every_member(void **state)
{
	struct kvd_cache_entry *entries = NULL;
	struct kvd_cache_details d;
	struct kvd_cache_change change;
	struct fake f;
	size_t n = 0;

	fake_start(&f, answer_all, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	assert_int_equal(kvd_cache_ls(c, "m", "own", &entries, &n), 0);
	assert_int_equal(n, 300);
	for (size_t i = 0; i < n; i++)
		check_entry(&entries[i], 300 - i);
	free(entries);
	assert_int_equal(kvd_cache_show(c, NULL, 99, &d), 0);
	check_entry(&d.entry, 99);
	assert_true(d.chain == 97 && d.n_path == 3 && d.n_below == 4 && d.n_pinned_by == 2);
	assert_true(d.pinned_by[0] == 3 && d.pinned_by[1] == UINT32_MAX);
	assert_string_equal(d.text, "Once upon");
	assert_string_equal(d.own, "upon");
	assert_int_equal(kvd_cache_pin(c, NULL, 5, &change), 0);
	assert_true(change.n_entries == 1 && change.n_tokens == 2 && change.bytes == 3);
	assert_int_equal(kvd_cache_unpin(c, NULL, 6, KVD_CACHE_ALL, NULL), 0);
	assert_int_equal(kvd_cache_drop(c, "x", 7, KVD_CACHE_CHAIN, &change), KVD_E_REFUSED);
	assert_int_equal(kvd_client_code(c), KVD_REFUSED_NO_ENTRY);
	assert_string_equal(kvd_client_error(c), "there is none");
	assert_int_equal(change.n_entries, 1);
	assert_int_equal(kvd_cache_wipe(c, NULL, "own/k", 0, &change), 0);
	assert_true(change.n_entries == 0 && change.bytes == UINT64_MAX);
	assert_int_equal(kvd_cache_wipe(c, NULL, NULL, KVD_CACHE_ALL, &change), 0);
	assert_int_equal(change.n_entries, 1);
	/* What is not sent at all. */
	assert_int_equal(kvd_cache_show(c, NULL, 0, &d), -EINVAL);
	assert_int_equal(kvd_cache_wipe(c, NULL, "own", KVD_CACHE_ALL, NULL), -EINVAL);
	assert_int_equal(kvd_cache_ls(c, "", NULL, &entries, &n), -EINVAL);
	kvd_close(c);
	fake_stop(&f);
}

/* Says that there is more, of an empty page or of another entry than its last. */
static void lie(struct fake *f)
{
	struct msg_cache_entry entries[2] = { entry_of(5), entry_of(6) };
	size_t n = *(size_t *)f->arg;

	FAKE_EXPECT(f, fake_greet(f));
	while (fake_receive(f))
		fake_send(f, KVD_MSG_CACHE_LS_REPLY, &(struct msg_cache_ls_reply){
			f->msg->cache_ls.id, "m", 16, entries, n, 5 });
}

static void lists_without_end(void **state)
{
	for (size_t n = 0; n <= 2; n += 2) {
		struct kvd_cache_entry *entries = (struct kvd_cache_entry *)&entries;
		size_t n_entries = 99;
		struct fake f;

		fake_start(&f, lie, &n);
		struct kvd_client *c = fake_connect(&f, 0, 0);
		assert_int_equal(kvd_cache_ls(c, NULL, NULL, &entries, &n_entries), KVD_E_PROTOCOL);
		assert_ptr_equal(entries, &entries);
		assert_int_equal(n_entries, 99);
		kvd_close(c);
		fake_stop(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_member),
		cmocka_unit_test(lists_without_end),
	};

	return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
