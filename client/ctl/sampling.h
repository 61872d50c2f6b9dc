/* SPDX-License-Identifier: Apache-2.0 */
/* sampling.h - the options that generate and chat share. */
#ifndef KVD_CTL_SAMPLING_H
#define KVD_CTL_SAMPLING_H

#include "client/ctl/ctl.h"

#define SAMPLING_STOP_MAX 16		/* stop strings; a limit of the protocol */
#define SAMPLING_STOP_BYTES_MAX 256	/* of each */
#define SAMPLING_LOGPROBS_MAX 32
#define SAMPLING_NAMESPACE_MAX 127
#define SAMPLING_CACHE_KEY_MAX 64

struct sampling {
	struct kvd_params params;	/* model, sampling, stop */
	const char *stop[SAMPLING_STOP_MAX];
	const char *system;		/* NULL: none */
	bool quiet;
};

#define SAMPLING_SHORTS "m:n:t:q"
#define SAMPLING_LONGS \
	{ "model", required_argument, NULL, 'm' }, \
	{ "n-predict", required_argument, NULL, 'n' }, \
	{ "temperature", required_argument, NULL, 't' }, \
	{ "top-k", required_argument, NULL, CTL_OPT_TOP_K }, \
	{ "top-p", required_argument, NULL, CTL_OPT_TOP_P }, \
	{ "min-p", required_argument, NULL, CTL_OPT_MIN_P }, \
	{ "repeat-penalty", required_argument, NULL, CTL_OPT_REPEAT_PENALTY }, \
	{ "seed", required_argument, NULL, CTL_OPT_SEED }, \
	{ "stop", required_argument, NULL, CTL_OPT_STOP }, \
	{ "system", required_argument, NULL, CTL_OPT_SYSTEM }, \
	{ "quiet", no_argument, NULL, 'q' }, \
	CACHE_LONGS, \
	{ "no-cache", no_argument, NULL, CTL_OPT_NO_CACHE }

/* Of whose cache it uses, and how: a part of them. */
#define CACHE_LONGS \
	{ "namespace", required_argument, NULL, CTL_OPT_NAMESPACE }, \
	{ "cache-key", required_argument, NULL, CTL_OPT_CACHE_KEY }, \
	{ "ttl", required_argument, NULL, CTL_OPT_TTL }, \
	{ "priority", required_argument, NULL, CTL_OPT_PRIORITY }, \
	{ "pin", no_argument, NULL, CTL_OPT_PIN }

void sampling_init(struct sampling *s);
/* c from ctl_options_next(): 0 if it was taken; 1 if it is another command's; CTL_OPTIONS_EXIT. */
int sampling_option(struct sampling *s, struct ctl_options *o, int c);

#endif
