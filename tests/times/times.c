/* SPDX-License-Identifier: Apache-2.0 */
/*
 * times.c - kvd that notes when each token was drawn, for measurements.
 *
 * Linked into tests/kvd-times, which is kvd's own objects with the sampler wrapped by the linker. KVD_TEST_TIMES
 * names a file of struct load_time, mapped shared: what stream-load --times notes when it has a
 * token, under the same seed and index. The first entry says in `index` how many follow.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/engine/sampler.h"
#include "ipc/base/clock.h"
#include "tests/load/load.h"

#define ENTRIES_MAX 4000000u

static struct load_time *entries;	/* [ENTRIES_MAX]; NULL: nobody wants to know */
static uint64_t last_seed[1024], n_of[1024];	/* tokens of the requests that were last seen, by seed */

int __real_sampler_sample(struct sampler *s, const struct sampler_params *p, struct sampler_rng *rng,
			  const float *logits, const struct sampler_history *history, struct sampler_result *out);
int __wrap_sampler_sample(struct sampler *s, const struct sampler_params *p, struct sampler_rng *rng,
			  const float *logits, const struct sampler_history *history, struct sampler_result *out);
int __wrap_sampler_sample(struct sampler *s, const struct sampler_params *p, struct sampler_rng *rng,
			  const float *logits, const struct sampler_history *history, struct sampler_result *out)
{
	int r = __real_sampler_sample(s, p, rng, logits, history, out);
	size_t slot = p->seed % 1024;

	if (!entries || entries[0].index + 1 >= ENTRIES_MAX)
		return r;
	if (last_seed[slot] != p->seed) {
		last_seed[slot] = p->seed;
		n_of[slot] = 0;
	}
	entries[entries[0].index + 1] = (struct load_time){ .seed = p->seed, .index = n_of[slot]++, .ns = clock_ns() };
	entries[0].index++;
	return r;
}

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("KVD_TEST_TIMES");
	size_t n = ENTRIES_MAX * sizeof(struct load_time);
	void *at;
	int fd;

	if (!path)
		return;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)n) < 0) {
		perror(path);
		_exit(99);
	}
	at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED) {
		perror(path);
		_exit(99);
	}
	entries = at;
}
