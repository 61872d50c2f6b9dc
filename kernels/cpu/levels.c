/* SPDX-License-Identifier: Apache-2.0 */
/* The levels, and the choice among them. */
#include "levels.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "cpu.h"
#include "self-check.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Plain C is what it is compared with. */
static int check(struct kc_choice *choice)
{
	int r = 0;

	if (choice->level == &kc_level_c)
		return 0;
	if (!choice->checked) {
		r = kc_self_check(choice->level, &choice->right, choice->fault, sizeof(choice->fault));
		choice->checked = !r;
	}
	if (r)
		return r;
	return choice->right ? 0 : -EIO;
}

int kc_levels_choose(struct kc_choice *choices, size_t n, const char *name, const struct kc_level **out)
{
	int r = name ? -EINVAL : -ENOTSUP;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n; i++) {
		if (name && strcmp(name, choices[i].level->name))
			continue;
		r = choices[i].level->supported() ? check(&choices[i]) : -ENOTSUP;
		if (!r) {
			*out = choices[i].level;
			break;
		}
		if (r == -ENOMEM)
			break;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

const char *kc_levels_fault(const struct kc_choice *choices, size_t n, const char *name)
{
	const char *fault = NULL;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n; i++) {
		if (!strcmp(name, choices[i].level->name) && choices[i].checked && !choices[i].right)
			fault = choices[i].fault;
	}
	pthread_mutex_unlock(&lock);
	return fault;
}

/* Best first. */
static struct kc_choice levels[] = {
#ifdef __x86_64__
	{ &kc_level_amx },
	{ &kc_level_avx512vnni },
	{ &kc_level_avx512 },
	{ &kc_level_avx2 },
#endif
	{ &kc_level_c },
};
#define N_LEVELS (sizeof(levels) / sizeof(levels[0]))

int kc_levels_find(const char *name, const struct kc_level **out)
{
	return kc_levels_choose(levels, N_LEVELS, name, out);
}

static const char *level_names[N_LEVELS + 1];

static void list_levels(void)
{
	size_t n = 0;

	for (size_t i = 0; i < N_LEVELS; i++) {
		if (levels[i].level->supported())
			level_names[n++] = levels[i].level->name;
	}
}

const char *const *kb_cpu_levels(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, list_levels);
	return level_names;
}

const char *kb_cpu_fault(const char *level)
{
	return kc_levels_fault(levels, N_LEVELS, level);
}
