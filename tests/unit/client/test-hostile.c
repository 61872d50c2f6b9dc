/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that lies: the library returns errors, whatever comes. */
#include "tests/unit/client/fake-daemon.h"

/* --- messages --- */

struct lie {
	const void *data;
	size_t n;
	enum kvd_message id;	/* a well-formed message instead, if not 0 */
};

static void send_lie(struct fake *f)
{
	const struct lie *lie = f->arg;

	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_STATUS));
	if (lie->id == KVD_MSG_MODELS_REPLY)
		fake_send(f, lie->id, &(struct msg_models_reply){ .id = f->msg->status.id });
	else if (lie->id == KVD_MSG_HELLO)
		fake_send(f, lie->id, &(struct msg_hello){ .version = KVD_PROTOCOL_VERSION,
								 .client = "x", .ring = KVD_RING_MIN,
			  .arena = KVD_ARENA_MIN });
	else if (lie->id == KVD_MSG_WELCOME)
		fake_welcome(f, (int[]){ f->ring.fd, f->client.fd, f->stats.fd }, 3, KVD_RING_MIN,
			     KVD_ARENA_MIN);
	else
		fake_send_raw(f, lie->data, lie->n);
	fake_receive(f);
}

static void messages(void **state)
{
	static const uint8_t deep[] = "\x91\x91\x91\x91\x91\x91";
	static const uint8_t huge[] = "\x92\xcc\xa0\xdf\xff\xff\xff\xff";
	static const struct lie lies[] = {
		{ "\xc1", 1, 0 },
		{ deep, sizeof(deep) - 1, 0 },
		{ huge, sizeof(huge) - 1, 0 },
		{ "\x92\xcc\xa0\x80", 4, 0 },	/* a status without fields */
		{ NULL, 0, KVD_MSG_MODELS_REPLY },	/* the answer to another question */
		{ NULL, 0, KVD_MSG_HELLO },
		{ NULL, 0, KVD_MSG_WELCOME },		/* with descriptors that nobody asked for */
	};
	size_t before = count_fds();
	const struct kvd_event *e;
	struct kvd_status s;
	struct fake f;

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		fake_start(&f, send_lie, (void *)&lies[i]);
		struct kvd_client *c = fake_connect(&f, 0, 0);
		assert_int_equal(kvd_status(c, &s), KVD_E_PROTOCOL);
		assert_true(kvd_client_error(c)[0]);
		/* from then on */
		assert_int_equal(kvd_status(c, &s), KVD_E_PROTOCOL);
		assert_int_equal(kvd_next(c, -1, &e), KVD_E_PROTOCOL);
		assert_true(kvd_client_error(c)[0]);
		kvd_close(c);
		fake_stop(&f);
		assert_int_equal(count_fds(), before);
	}
}

/* --- the ring --- */

struct raw_record {
	uint32_t size;
	uint16_t type;
	uint32_t words[4];	/* behind the request */
	uint64_t published;
};

static void write_raw(struct fake *f)
{
	const struct raw_record *raw = f->arg;
	struct kvd_ring_header *header;
	struct kvd_record record = { .size = raw->size, .type = raw->type };

	FAKE_EXPECT(f, fake_greet(f));
	header = segment_ring(&f->ring);
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	record.request = f->msg->generate.id;
	memcpy(segment_data(&f->ring), &record, sizeof(record));
	memcpy(segment_data(&f->ring) + sizeof(record), raw->words, sizeof(raw->words));
	atomic_store(&header->write_index, raw->published);
	fake_send(f, KVD_MSG_WAKE, &(struct msg_wake){ 0 });
	fake_receive(f);
}

static void records(void **state)
{
	static const struct raw_record raws[] = {
		{ 0, KVD_REC_TOKEN, { 0 }, 64 },
		{ 12, KVD_REC_TOKEN, { 0 }, 64 },
		{ 24, KVD_REC_TOKEN, { 0 }, 64 },		/* smaller than a token */
		{ 33, KVD_REC_TOKEN, { 0 }, 64 },
		{ 0xfffffff8, KVD_REC_TEXT, { 0 }, 64 },
		{ 72, KVD_REC_TEXT, { 0 }, 64 },		/* beyond what is published */
		{ 32, KVD_REC_TEXT, { 9 }, 64 },		/* more bytes than the record */
		{ 32, KVD_REC_TEXT, { UINT32_MAX }, 64 },
		{ 32, KVD_REC_ERROR, { 1, 100 }, 64 },
		{ 32, KVD_REC_ALTERNATIVES, { UINT32_MAX }, 64 },
		{ 32, KVD_REC_TOKEN, { 1, 0, UINT32_MAX, 0 }, 64 },
		{ 32, KVD_REC_TEXT, { 4 }, KVD_RING_MIN + 8 },	/* more than the ring holds */
		{ 32, KVD_REC_TEXT, { 4 }, UINT64_MAX - 7 },
		{ 16, KVD_REC_PAD, { 0 }, 16 },			/* does not reach the end */
	};
	const struct kvd_event *e;
	struct fake f;

	for (size_t i = 0; i < sizeof(raws) / sizeof(raws[0]); i++) {
		fake_start(&f, write_raw, (void *)&raws[i]);
		struct kvd_client *c = fake_connect(&f, KVD_RING_MIN, 0);
		fake_submit(c, "x");
		int r = kvd_next(c, 5000, &e);
		if (r != KVD_E_PROTOCOL)
			fail_msg("record %zu: %d", i, r);
		assert_int_equal(kvd_next(c, -1, &e), KVD_E_PROTOCOL);
		kvd_close(c);
		fake_stop(&f);
	}
}

static uint32_t next_random(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

/* Noise in the ring's words, its data and on the socket, for a client that keeps reading. */
static void noise(struct fake *f)
{
	uint32_t rng = *(uint32_t *)f->arg;
	uint8_t datagram[96];

	FAKE_EXPECT(f, fake_greet(f));
	for (int i = 0; i < 3; i++)
		FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	struct kvd_ring_header *header = segment_ring(&f->ring);
	uint8_t *data = segment_data(&f->ring);
	for (int i = 0; i < 200; i++) {
		uint64_t at = atomic_load(&header->write_index);
		size_t n = (next_random(&rng) % 16 + (next_random(&rng) % 8 ? 7 : 2)) * 8;
		for (size_t k = 0; k < n; k++)
			data[(at + k) % KVD_RING_MIN] = (uint8_t)next_random(&rng);
		uint32_t type = next_random(&rng) % 20 ? 1 + next_random(&rng) % 9 : KVD_REC_PAD;
		struct kvd_record head = { .size = (uint32_t)n, .type = (uint16_t)type,
					   .request = next_random(&rng) % 4 };
		if (next_random(&rng) % 64 && at % KVD_RING_MIN + n <= KVD_RING_MIN) {
			memcpy(data + at % KVD_RING_MIN, &head, sizeof(head));
			/* lengths that are often right */
			for (size_t k = 16; k < n; k += 4) {
				uint32_t v = next_random(&rng) % 24;
				memcpy(data + at % KVD_RING_MIN + k, &v, 4);
			}
		}
		atomic_store(&header->write_index, at + (next_random(&rng) % 200 ? n : next_random(&rng)));
		atomic_store(&header->writer_waiting, next_random(&rng) % 3);
		if (next_random(&rng) % 64)
			continue;
		size_t size = next_random(&rng) % sizeof(datagram) + 1;
		for (size_t k = 0; k < size; k++)
			datagram[k] = (uint8_t)next_random(&rng);
		if (next_random(&rng) % 4)
			memcpy(datagram, "\x92\xcc\x92\x80", size = 4);
		fdpass_send(f->sock, datagram, size, NULL, 0, FDPASS_DONTWAIT);
	}
}

static void fuzz(void **state)
{
	const char *full = getenv("KVD_TEST_LONG");
	uint32_t rounds = full && *full == '1' ? 20000 : 300;
	const struct kvd_event *e;
	unsigned long sum = 0, events = 0;
	struct fake f;

	/* More where the noise was mostly faster than the reader, who then sees little of it. */
	for (uint32_t seed = 1; seed <= rounds || (events <= rounds && seed < 20 * rounds); seed++) {
		fake_start(&f, noise, &seed);
		struct kvd_client *c = fake_connect(&f, KVD_RING_MIN, KVD_ARENA_MIN);
		for (int i = 0; i < 3; i++)
			fake_submit(c, "prompt");
		int r;
		while (!(r = kvd_next(c, 5000, &e))) {
			/* what is given out can be read */
			for (size_t k = 0; k < e->n_bytes; k++)
				sum += e->bytes[k];
			for (size_t k = 0; k < e->n_alternatives; k++)
				for (size_t b = 0; b < e->alternatives[k].n_bytes; b++)
					sum += e->alternatives[k].bytes[b];
			if (e->type == KVD_EVENT_ERROR)
				sum += strlen(e->field);
			events++;
		}
		if (r != KVD_E_PROTOCOL && r != KVD_E_CLOSED)
			fail_msg("seed %u: %d", seed, r);
		kvd_close(c);
		fake_stop(&f);
	}
	/* it got beyond the first record */
	assert_true(events > rounds && sum);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages),
		cmocka_unit_test(records),
		cmocka_unit_test(fuzz),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
