/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h - work on request, for bench-peer, which has another program do the same in turn.
 *
 * A line of standard input asks, a line of standard output has the tokens per second, or "- REASON":
 *
 *     prefill N          a prompt of N tokens, F16 keys and values
 *     decode S C N TYPE  N tokens of each of S sequences, behind C tokens (whole blocks; 0 unless S is 1),
 *                        with keys and values of a type: f16, q8, q4
 *     about              a line of words: version, architecture, level, threads
 */
#ifndef KVD_BENCH_PEER_H
#define KVD_BENCH_PEER_H

#include "tests/bench/tables.h"

/* Until the input ends.  0 or -errno, said. */
int peer_run(const struct bench_options *options);

#endif
