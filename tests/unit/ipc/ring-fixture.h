/* SPDX-License-Identifier: Apache-2.0 */
/* A writer and a reader on one pair of segments, in one process. */
#ifndef KVD_TEST_RING_FIXTURE_H
#define KVD_TEST_RING_FIXTURE_H

#include "ipc/ring.h"

struct ring_fixture {
	struct segment ring, client;
	struct ring_writer writer;
	struct ring_reader reader;
};

static void ring_fixture_init(struct ring_fixture *f, uint32_t size, uint64_t start)
{
	assert_int_equal(segment_new_ring(&f->ring, size), 0);
	assert_int_equal(segment_new_client(&f->client, KVD_ARENA_MIN), 0);
	assert_int_equal(ring_writer_init(&f->writer, &f->ring, &f->client, start), 0);
	ring_reader_init(&f->reader, &f->ring, &f->client);
}

static void ring_fixture_deinit(struct ring_fixture *f)
{
	ring_writer_deinit(&f->writer);
	segment_deinit(&f->ring);
	segment_deinit(&f->client);
}

#endif
