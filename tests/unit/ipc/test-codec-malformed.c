/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that must be refused, with the field named; and any bytes at all. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"
#include "ipc/codec.h"
#include "ipc/codec-spec.h"
#include "tests/unit/ipc/notation.h"
#include "tests/unit/ipc/prng.h"

static uint8_t bytes[NOTATION_MAX];

struct malformed {
	const char *message;
	enum kvd_code code;
	const char *field;
	uint64_t id;
};

#define G "[16, {'id': 5, 'prompt': [[0, 0, 4]], "	/* a good generate goes on with ... }] */
#define BAD_MESSAGE KVD_CODE_BAD_MESSAGE
#define BAD_FIELD KVD_CODE_BAD_FIELD

static const struct malformed malformed[] = {
	/* The shape of a message */
	{ "5", BAD_MESSAGE, "", 0 },
	{ "nil", BAD_MESSAGE, "", 0 },
	{ "[]", BAD_MESSAGE, "", 0 },
	{ "{}", BAD_MESSAGE, "", 0 },
	{ "[16]", BAD_MESSAGE, "", 0 },
	{ "[16, {}, {}]", BAD_MESSAGE, "", 0 },
	{ "['generate', {}]", BAD_MESSAGE, "", 0 },
	{ "[-1, {}]", BAD_MESSAGE, "", 0 },
	{ "[16, []]", BAD_MESSAGE, "", 0 },
	{ "[16, nil]", BAD_MESSAGE, "", 0 },
	{ "[0, {}]", BAD_MESSAGE, "", 0 },
	{ "[127, {'id': 9}]", BAD_MESSAGE, "", 9 },
	{ "[18446744073709551615, {}]", BAD_MESSAGE, "", 0 },
	{ "[272, {'id': 3}]", BAD_MESSAGE, "", 3 },	/* 16 in the low byte */
	{ "[17, {5: 6}]", BAD_MESSAGE, "", 0 },
	{ "[17, {'id': 1, nil: 6}]", BAD_MESSAGE, "", 1 },
	{ "[17, {'id': ext}]", BAD_MESSAGE, "", 0 },
	{ "[17, {'id': [[[[1]]]]}]", BAD_MESSAGE, "", 0 },
	{ "[17, {'id': 1, 'x': [@20000 0]}]", BAD_MESSAGE, "", 0 },
	{ "[17, {'id': 1, 'x': 'y'*65536}]", BAD_MESSAGE, "", 0 },

	/* hello */
	{ "[1, {}]", BAD_FIELD, "version", 0 },
	{ "[1, {'version': 5}]", BAD_FIELD, "client", 0 },
	{ "[1, {'version': '1', 'client': 'x'}]", BAD_FIELD, "version", 0 },
	{ "[1, {'version': 5.0, 'client': 'x'}]", BAD_FIELD, "version", 0 },
	{ "[1, {'version': 6, 'client': 'x'}]", KVD_CODE_VERSION, "version", 0 },
	{ "[1, {'version': 0}]", KVD_CODE_VERSION, "version", 0 },
	{ "[1, {'new': [[7]], 'version': 18446744073709551615}]", KVD_CODE_VERSION, "version", 0 },
	{ "[1, {'version': 5, 'client': ''}]", BAD_FIELD, "client", 0 },
	{ "[1, {'version': 5, 'client': 'x'*64}]", BAD_FIELD, "client", 0 },
	{ "[1, {'version': 5, 'client': 'a\\x0ab'}]", BAD_FIELD, "client", 0 },
	{ "[1, {'version': 5, 'client': 'a\\xc2\\x85'}]", BAD_FIELD, "client", 0 },
	{ "[1, {'version': 5, 'client': 'a\\x00b'}]", BAD_FIELD, "client", 0 },
	{ "[1, {'version': 5, 'client': '\\xff'}]", BAD_FIELD, "client", 0 },
	{ "[1, {'version': 5, 'client': '\\xed\\xa0\\x80'}]", BAD_FIELD, "client", 0 },
	{ "[1, {'version': 5, 'client': b'x'}]", BAD_FIELD, "client", 0 },
	{ "[1, {'version': 5, 'client': 'x', 'ring': 0}]", BAD_FIELD, "ring", 0 },
	{ "[1, {'version': 5, 'client': 'x', 'ring': 32768}]", BAD_FIELD, "ring", 0 },
	{ "[1, {'version': 5, 'client': 'x', 'ring': 65537}]", BAD_FIELD, "ring", 0 },
	{ "[1, {'version': 5, 'client': 'x', 'ring': 33554432}]", BAD_FIELD, "ring", 0 },
	{ "[1, {'version': 5, 'client': 'x', 'ring': 4295032832}]", BAD_FIELD, "ring", 0 },
	{ "[1, {'version': 5, 'client': 'x', 'arena': 4096}]", BAD_FIELD, "arena", 0 },
	{ "[1, {'version': 5, 'client': 'x', 'arena': 65540}]", BAD_FIELD, "arena", 0 },
	{ "[1, {'version': 5, 'client': 'x', 'arena': 67112960}]", BAD_FIELD, "arena", 0 },

	/* generate */
	{ "[16, {'prompt': [[0, 0, 4]]}]", BAD_FIELD, "id", 0 },
	{ "[16, {'id': 0, 'prompt': [[0, 0, 4]]}]", BAD_FIELD, "id", 0 },
	{ "[16, {'id': -1, 'prompt': [[0, 0, 4]]}]", BAD_FIELD, "id", 0 },
	{ "[16, {'id': 'a', 'prompt': [[0, 0, 4]]}]", BAD_FIELD, "id", 0 },
	{ "[16, {'id': 5}]", BAD_FIELD, "prompt", 5 },
	{ G "'messages': [['user', 0, 0, 1]]}]", BAD_FIELD, "prompt", 5 },
	{ "[16, {'id': 5, 'prompt': []}]", BAD_FIELD, "prompt", 5 },
	{ "[16, {'id': 5, 'prompt': 5}]", BAD_FIELD, "prompt", 5 },
	{ "[16, {'id': 5, 'prompt': 'text'}]", BAD_FIELD, "prompt", 5 },
	{ "[16, {'id': 5, 'prompt': [@1025 [0, 0, 1]]}]", BAD_FIELD, "prompt", 5 },
	{ "[16, {'id': 5, 'prompt': [[0, 0, 0]]}]", BAD_FIELD, "prompt", 5 },
	{ "[16, {'id': 5, 'prompt': [[0, 0]]}]", BAD_FIELD, "prompt[0]", 5 },
	{ "[16, {'id': 5, 'prompt': [[0, 0, 1, 1]]}]", BAD_FIELD, "prompt[0]", 5 },
	{ "[16, {'id': 5, 'prompt': [[0, 0, 1], {}]}]", BAD_FIELD, "prompt[1]", 5 },
	{ "[16, {'id': 5, 'prompt': [[2, 0, 1]]}]", BAD_FIELD, "prompt[0].kind", 5 },
	{ "[16, {'id': 5, 'prompt': [[0, 0, 1], [0, -1, 4]]}]", BAD_FIELD, "prompt[1].offset", 5 },
	{ "[16, {'id': 5, 'prompt': [[0, 9223372036854775808, 1]]}]", BAD_FIELD, "prompt[0].offset", 5 },
	{ "[16, {'id': 5, 'prompt': [[0, 0, 4294967297]]}]", BAD_FIELD, "prompt[0].length", 5 },
	{ "[16, {'id': 5, 'prompt': [[1, 2, 4]]}]", BAD_FIELD, "prompt", 5 },
	{ "[16, {'id': 5, 'prompt': [[1, 0, 3]]}]", BAD_FIELD, "prompt", 5 },
	{ "[16, {'id': 5, 'prompt': [@3 [0, 0, 33554432]]}]", BAD_FIELD, "prompt", 5 },
	{ "[16, {'id': 5, 'messages': []}]", BAD_FIELD, "messages", 5 },
	{ "[16, {'id': 5, 'messages': [['user', 0, 0]]}]", BAD_FIELD, "messages[0]", 5 },
	{ "[16, {'id': 5, 'messages': [['', 0, 0, 1]]}]", BAD_FIELD, "messages[0].role", 5 },
	{ "[16, {'id': 5, 'messages': [['User', 0, 0, 1]]}]", BAD_FIELD, "messages[0].role", 5 },
	{ "[16, {'id': 5, 'messages': [['user\\x0a<|im_end|>', 0, 0, 1]]}]",
	  BAD_FIELD, "messages[0].role", 5 },
	{ "[16, {'id': 5, 'messages': [['a'*33, 0, 0, 1]]}]", BAD_FIELD, "messages[0].role", 5 },
	{ "[16, {'id': 5, 'messages': [['user', 1, 0, 5]]}]", BAD_FIELD, "messages", 5 },
	{ G "'model': ''}]", BAD_FIELD, "model", 5 },
	{ G "'model': 7}]", BAD_FIELD, "model", 5 },
	{ G "'model': 'm'*128}]", BAD_FIELD, "model", 5 },
	{ G "'special': 1}]", BAD_FIELD, "special", 5 },
	{ G "'bos': nil}]", BAD_FIELD, "bos", 5 },
	{ G "'n': -1}]", BAD_FIELD, "n", 5 },
	{ G "'n': 4294967296}]", BAD_FIELD, "n", 5 },
	{ G "'n': 1.5}]", BAD_FIELD, "n", 5 },
	{ G "'n': '1'}]", BAD_FIELD, "n", 5 },
	{ G "'n': true}]", BAD_FIELD, "n", 5 },
	{ G "'temperature': nan}]", BAD_FIELD, "temperature", 5 },
	{ G "'temperature': inf}]", BAD_FIELD, "temperature", 5 },
	{ G "'temperature': -inf}]", BAD_FIELD, "temperature", 5 },
	{ G "'temperature': 1e300}]", BAD_FIELD, "temperature", 5 },
	{ G "'temperature': -0.1}]", BAD_FIELD, "temperature", 5 },
	{ G "'temperature': -1}]", BAD_FIELD, "temperature", 5 },
	{ G "'temperature': 101}]", BAD_FIELD, "temperature", 5 },
	{ G "'temperature': 'hot'}]", BAD_FIELD, "temperature", 5 },
	{ G "'top_k': -1}]", BAD_FIELD, "top_k", 5 },
	{ G "'top_k': 9223372036854775808}]", BAD_FIELD, "top_k", 5 },
	{ G "'top_p': 1.1}]", BAD_FIELD, "top_p", 5 },
	{ G "'top_p': nan}]", BAD_FIELD, "top_p", 5 },
	{ G "'min_p': -0.5}]", BAD_FIELD, "min_p", 5 },
	{ G "'repeat_penalty': 0}]", BAD_FIELD, "repeat_penalty", 5 },
	{ G "'repeat_penalty': inf}]", BAD_FIELD, "repeat_penalty", 5 },
	{ G "'repeat_last_n': -5}]", BAD_FIELD, "repeat_last_n", 5 },
	{ G "'namespace': ''}]", BAD_FIELD, "namespace", 5 },
	{ G "'namespace': 'n'*128}]", BAD_FIELD, "namespace", 5 },
	{ G "'namespace': 'a\\x0ab'}]", BAD_FIELD, "namespace", 5 },
	{ G "'namespace': nil}]", BAD_FIELD, "namespace", 5 },
	{ G "'cache_key': ''}]", BAD_FIELD, "cache_key", 5 },
	{ G "'cache_key': 'k'*65}]", BAD_FIELD, "cache_key", 5 },
	{ G "'cache_key': 'a/b'}]", BAD_FIELD, "cache_key", 5 },
	{ G "'cache_key': b'a'}]", BAD_FIELD, "cache_key", 5 },
	{ G "'ttl_s': -1}]", BAD_FIELD, "ttl_s", 5 },
	{ G "'ttl_s': 4294967296}]", BAD_FIELD, "ttl_s", 5 },
	{ G "'ttl_s': 1.5}]", BAD_FIELD, "ttl_s", 5 },
	{ G "'priority': 3}]", BAD_FIELD, "priority", 5 },
	{ G "'priority': 'high'}]", BAD_FIELD, "priority", 5 },
	{ G "'pin': 1}]", BAD_FIELD, "pin", 5 },

	/* the cache */
	{ "[54, {'id': 0}]", BAD_FIELD, "id", 0 },
	{ "[54, {'id': 5, 'namespace': ''}]", BAD_FIELD, "namespace", 5 },
	{ "[55, {'id': 5, 'cache_key': 'a/b'}]", BAD_FIELD, "cache_key", 5 },
	{ "[55, {'id': 5, 'namespace': 'public'}]", BAD_FIELD, "namespace", 5 },
	{ "[56, {'id': 5, 'count': 0}]", BAD_FIELD, "count", 5 },
	{ "[56, {'id': 5, 'count': 4294967296}]", BAD_FIELD, "count", 5 },
	{ "[48, {}]", BAD_FIELD, "id", 0 },
	{ "[48, {'id': 0}]", BAD_FIELD, "id", 0 },
	{ "[48, {'id': 5, 'after': -1}]", BAD_FIELD, "after", 5 },
	{ "[48, {'id': 5, 'namespace': ''}]", BAD_FIELD, "namespace", 5 },
	{ "[48, {'id': 5, 'model': ''}]", BAD_FIELD, "model", 5 },
	{ "[49, {'id': 5}]", BAD_FIELD, "entry", 5 },
	{ "[49, {'id': 5, 'entry': 0}]", BAD_FIELD, "entry", 5 },
	{ "[50, {'id': 5, 'entry': '1'}]", BAD_FIELD, "entry", 5 },
	{ "[50, {'id': 5, 'entry': 1, 'all': true}]", BAD_FIELD, "all", 5 },
	{ "[51, {'id': 5, 'entry': 1, 'all': 1}]", BAD_FIELD, "all", 5 },
	{ "[52, {'id': 5, 'entry': 1, 'chain': 0}]", BAD_FIELD, "chain", 5 },
	{ "[53, {'id': 5, 'all': true, 'namespace': 'own'}]", BAD_FIELD, "all", 5 },
	{ "[53, {'id': 5, 'namespace': 'n'*128}]", BAD_FIELD, "namespace", 5 },
	{ G "'seed': -1}]", BAD_FIELD, "seed", 5 },
	{ G "'seed': 1.5}]", BAD_FIELD, "seed", 5 },
	{ G "'logit_bias': {}}]", BAD_FIELD, "logit_bias", 5 },
	{ G "'logit_bias': [[0]]}]", BAD_FIELD, "logit_bias[0]", 5 },
	{ G "'logit_bias': [[1, 1.0], [-1, 1.0]]}]", BAD_FIELD, "logit_bias[1].id", 5 },
	{ G "'logit_bias': [[2147483648, 1.0]]}]", BAD_FIELD, "logit_bias[0].id", 5 },
	{ G "'logit_bias': [[0, nan]]}]", BAD_FIELD, "logit_bias[0].bias", 5 },
	{ G "'logit_bias': [[0, 1e39]]}]", BAD_FIELD, "logit_bias[0].bias", 5 },
	{ G "'logit_bias': [@1025 [0, 1.0]]}]", BAD_FIELD, "logit_bias", 5 },
	{ G "'stop': 'a'}]", BAD_FIELD, "stop", 5 },
	{ G "'stop': ['']}]", BAD_FIELD, "stop[0]", 5 },
	{ G "'stop': ['a', 'b'*257]}]", BAD_FIELD, "stop[1]", 5 },
	{ G "'stop': [1]}]", BAD_FIELD, "stop[0]", 5 },
	{ G "'stop': [b'a']}]", BAD_FIELD, "stop[0]", 5 },
	{ G "'stop': ['a\\x00b']}]", BAD_FIELD, "stop[0]", 5 },
	{ G "'stop': ['\\xe2\\x82']}]", BAD_FIELD, "stop[0]", 5 },
	{ G "'stop': [@17 'a']}]", BAD_FIELD, "stop", 5 },
	{ G "'logprobs': -1}]", BAD_FIELD, "logprobs", 5 },
	{ G "'logprobs': 33}]", BAD_FIELD, "logprobs", 5 },
	{ G "'ignore_eos': 0}]", BAD_FIELD, "ignore_eos", 5 },
	{ G "'progress': 'yes'}]", BAD_FIELD, "progress", 5 },
	{ G "'unheard_of': 1}]", BAD_FIELD, "unheard_of", 5 },
	{ G "'has_seed': true}]", BAD_FIELD, "has_seed", 5 },
	{ G "'n_prompt': 2}]", BAD_FIELD, "n_prompt", 5 },
	{ G "'Temperature': 1}]", BAD_FIELD, "Temperature", 5 },
	{ G "'a\\x1b[m\\xffb': 1}]", BAD_FIELD, "a?[m?b", 5 },
	{ G "'': 1}]", BAD_FIELD, "", 5 },
	{ G "'n': 1, 'n': 1}]", BAD_FIELD, "n", 5 },
	{ G "'id': 6}]", BAD_FIELD, "id", 5 },

	/* the others */
	{ "[17, {}]", BAD_FIELD, "id", 0 },
	{ "[18, {'id': 1}]", BAD_FIELD, "id", 1 },
	{ "[19, {'index': 1}]", BAD_FIELD, "index", 0 },
	{ "[24, {'id': 1, 'offset': 0, 'length': 4, 'out_offset': 2, 'out_length': 8}]",
	  BAD_FIELD, "out_offset", 1 },
	{ "[24, {'id': 1, 'offset': 0, 'length': 4, 'out_offset': 4, 'out_length': 7}]",
	  BAD_FIELD, "out_length", 1 },
	{ "[24, {'id': 1, 'offset': 0, 'length': 4, 'out_offset': 4}]", BAD_FIELD, "out_length", 1 },
	{ "[24, {'id': 1, 'offset': 67108865, 'length': 4, 'out_offset': 4, 'out_length': 4}]",
	  BAD_FIELD, "offset", 1 },
	{ "[32, {'id': 1, 'all': true}]", BAD_FIELD, "all", 1 },
	{ "[33, {'id': nil}]", BAD_FIELD, "id", 0 },
	{ "[34, {'id': [1]}]", BAD_FIELD, "id", 0 },
	{ "[40, {'id': 1}]", BAD_FIELD, "name", 1 },
	{ "[40, {'id': 0, 'name': 'a'}]", BAD_FIELD, "id", 0 },
	{ "[40, {'id': 1, 'name': ''}]", BAD_FIELD, "name", 1 },
	{ "[40, {'id': 1, 'name': 'x'*128}]", BAD_FIELD, "name", 1 },
	{ "[40, {'id': 1, 'name': '../a'}]", BAD_FIELD, "name", 1 },
	{ "[40, {'id': 1, 'name': 'a\\x1bb'}]", BAD_FIELD, "name", 1 },
	{ "[40, {'id': 1, 'name': '\\xff'}]", BAD_FIELD, "name", 1 },
	{ "[40, {'id': 1, 'name': 'a', 'n_ctx': 0}]", BAD_FIELD, "n_ctx", 1 },
	{ "[40, {'id': 1, 'name': 'a', 'n_ctx': 4294967296}]", BAD_FIELD, "n_ctx", 1 },
	{ "[40, {'id': 1, 'name': 'a', 'path': 'a'}]", BAD_FIELD, "path", 1 },
	{ "[41, {'id': 1}]", BAD_FIELD, "model", 1 },
	{ "[41, {'id': 1, 'model': 'm', 'now': 1}]", BAD_FIELD, "now", 1 },
	{ G "'prompt_logprobs': -1}]", BAD_FIELD, "prompt_logprobs", 5 },
	{ G "'prompt_logprobs': true}]", BAD_FIELD, "prompt_logprobs", 5 },
	{ "[129, {'version': 2}]", KVD_CODE_VERSION, "version", 0 },
	{ "[170, {'id': 2, 'percent': 101}]", BAD_FIELD, "percent", 2 },
	{ "[129, {'version': 5, 'session': 1, 'ring': 1, 'arena': 65536, 'server': '', 'state': ''}]",
	  BAD_FIELD, "ring", 0 },
	{ "[130, {'code': 0, 'message': ''}]", BAD_FIELD, "code", 0 },
	{ "[130, {'code': 21, 'message': ''}]", BAD_FIELD, "code", 0 },
	{ "[130, {'code': 1, 'message': 'x'*257}]", BAD_FIELD, "message", 0 },
	{ "[144, {'id': 2, 'code': 1, 'message': ''}]", BAD_FIELD, "field", 2 },
	{ "[146, {'id': 2}]", BAD_FIELD, "id", 2 },
	{ "[152, {'id': 2, 'count': -1}]", BAD_FIELD, "count", 2 },
	{ "[161, {'id': 2, 'models': [{'name': 'x'}]}]", BAD_FIELD, "models[0].arch", 2 },
	{ "[161, {'id': 2, 'models': [[]]}]", BAD_FIELD, "models[0]", 2 },
	{ "[161, {'id': 2, 'models': [{'name': 5}]}]", BAD_FIELD, "models[0].name", 2 },
	{ "[161, {'id': 2, 'models': [{5: 5}]}]", BAD_FIELD, "models[0]", 2 },
	{ "[162, {'id': 2, 'processes': [{'what': 1}], 'truncated': false}]",
	  BAD_FIELD, "processes[0].what", 2 },
	{ "[162, {'id': 2, 'processes': []}]", BAD_FIELD, "truncated", 2 },
};

static void test_malformed(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(malformed); i++) {
		const struct malformed *c = &malformed[i];
		struct codec_error error = { 0 };
		struct msg *m = NULL;
		size_t n = notation_pack(c->message, bytes);
		int r = codec_decode(&m, bytes, n, &error);

		if (r != CODEC_E_INVALID || error.code != c->code || error.id != c->id ||
		    strcmp(error.field, c->field))
			fail_msg("%s: %d, code %d, id %llu, field '%s', %s", c->message, r, error.code,
				 (unsigned long long)error.id, error.field, error.text);
		assert_null(m);
		assert_true(error.text[0] != '\0');
		/* A person who sees only the sentence also learns the field. */
		assert_non_null(strstr(error.text, c->field));
	}
}

static const char *const good[] = {
	"[1, {'version': 5, 'client': 'x', 'ring': 65536, 'arena': 65536}]",
	"[1, {'client': '\\xc3\\xa9', 'version': 5}]",
	G "'temperature': 1, 'top_p': 1, 'min_p': 0, 'repeat_penalty': 0.01, 'n': 4294967295}]",
	G "'logprobs': 0, 'seed': 18446744073709551615, 'logit_bias': [], 'stop': []}]",
	G "'model': 'm', 'stop': ['a\\x0a', 'b'*256], 'logit_bias': [[0, -3], [2147483647, 1.5]]}]",
	"[16, {'id': 5, 'messages': [['user', 0, 0, 0], ['tool-2_x', 1, 4, 8]], 'bos': false}]",
	"[17, {'id': 1}]", "[18, {}]", "[19, {}]",
	"[24, {'id': 1, 'offset': 0, 'length': 4, 'out_offset': 4, 'out_length': 0}]",
	"[32, {'id': 1}]", "[33, {'id': 1}]", "[34, {'id': 18446744073709551615}]",
	"[129, {'version': 5, 'session': 1, 'ring': 65536, 'arena': 65536, 'server': 'kvd',"
	"'state': 'ready'}]",
	"[130, {'code': 18, 'message': 'no'}]",
	"[40, {'id': 1, 'name': 'a b.c', 'n_ctx': 4294967295, 'progress': true}]",
	"[41, {'id': 1, 'model': 'm'}]", G "'prompt_logprobs': 0}]",
	"[144, {'id': 2, 'code': 1, 'message': 'a', 'field': 'b', 'count': 3}]",
	"[48, {'id': 1}]", "[48, {'id': 1, 'model': 'm', 'namespace': 'uid:1/k', 'after': 7}]",
	"[49, {'id': 1, 'entry': 1}]", "[53, {'id': 1}]", "[53, {'id': 1, 'all': true}]",
	"[178, {'id': 1, 'n_entries': 0, 'n_tokens': 0, 'bytes': 0}]",
	G "'namespace': 'own', 'cache_key': 'k', 'ttl_s': 0, 'priority': 2, 'pin': true}]",
	"[146, {}]", "[152, {'id': 2, 'count': 0}]",
	"[162, {'id': 2, 'processes': [{'session': 1, 'request': 2, 'uid': 3, 'pid': 4, 'client': 'c',"
	"'phase': 'p', 'model': 'm', 'prompt_tokens': 1, 'computed_tokens': 2, 'generated_tokens': 3, 'blocks': 4,"
	"'age_ns': 5}], 'truncated': true}]",
};

static void test_good_ones_pass(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		struct codec_error error = { 0 };
		struct msg *m = NULL;
		size_t n = notation_pack(good[i], bytes);

		if (codec_decode(&m, bytes, n, &error) != 0)
			fail_msg("%s: %s", good[i], error.text);
		msg_free(m);
	}
}

/* Decodes a copy of exactly n bytes, so that a sanitizer sees reads behind them. */
static int decode_copy(const uint8_t *p, size_t n, struct msg **m, struct codec_error *error)
{
	uint8_t *copy = malloc(n ? n : 1);
	int r;

	assert_non_null(copy);
	memcpy(copy, p, n);
	r = codec_decode(m, copy, n, error);
	/* What was decoded owns all it points to. */
	memset(copy, 0xa5, n);
	free(copy);
	return r;
}

/* Where there is no memory to unpack a message, its id is found all the same. */
static void test_id_without_unpacking(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(malformed); i++) {
		size_t n = notation_pack(malformed[i].message, bytes);

		if (n <= KVD_MESSAGE_MAX && codec_scan_id(bytes, n) != malformed[i].id)
			fail_msg("%s: %llu", malformed[i].message,
				 (unsigned long long)codec_scan_id(bytes, n));
	}
	assert_int_equal(codec_scan_id(bytes, notation_pack("[34, {'x': [[], {'id': 3}], 'id': 18446744073709551615}]",
							    bytes)), UINT64_MAX);
	assert_int_equal(codec_scan_id(bytes, notation_pack("[34, {'id': 70000}]", bytes)), 70000);
	assert_int_equal(codec_scan_id(bytes, notation_pack("[34, {'x': {'id': 3}}]", bytes)), 0);
}

static void test_every_truncation(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		size_t n = notation_pack(good[i], bytes);

		for (size_t k = 0; k < n; k++) {
			struct codec_error error = { 0 };
			struct msg *m = NULL;

			assert_int_equal(decode_copy(bytes, k, &m, &error), CODEC_E_INVALID);
			assert_int_equal(error.code, KVD_CODE_BAD_MESSAGE);
		}
		bytes[n] = 0;
		assert_int_equal(decode_copy(bytes, n + 1, &(struct msg *){ NULL },
					     &(struct codec_error){ 0 }), CODEC_E_INVALID);
	}
}

static void check_string(const char *s, size_t max)
{
	if (s) {
		assert_true(strlen(s) <= max);
		assert_true(!*s || utf8_valid((const uint8_t *)s, strlen(s)));
	}
}

/* What must hold for anything that the decoder lets through. */
static void check_generate(const struct msg_generate *g)
{
	uint64_t total = 0;

	assert_true(g->id != 0);
	assert_true((g->n_prompt > 0) != (g->n_messages > 0));
	assert_true(g->n_prompt <= KVD_PARTS_MAX && g->n_messages <= KVD_PARTS_MAX);
	for (size_t i = 0; i < g->n_prompt; i++)
		total += g->prompt[i].length;
	for (size_t i = 0; i < g->n_messages; i++) {
		total += g->messages[i].length;
		check_string(g->messages[i].role, KVD_ROLE_MAX);
	}
	assert_true(total <= KVD_ARENA_MAX);
	assert_true(g->temperature >= 0 && g->temperature <= 100 && g->top_p >= 0 && g->top_p <= 1);
	assert_true(g->min_p >= 0 && g->min_p <= 1 && g->repeat_penalty > 0 && g->repeat_penalty <= 100);
	assert_true(g->n_logit_bias <= KVD_LOGIT_BIAS_MAX && g->n_stop <= KVD_STOP_MAX);
	for (size_t i = 0; i < g->n_logit_bias; i++)
		assert_true(isfinite(g->logit_bias[i].bias) && g->logit_bias[i].id >= 0);
	for (size_t i = 0; i < g->n_stop; i++)
		check_string(g->stop[i], KVD_STOP_BYTES_MAX);
	check_string(g->model, KVD_MODEL_NAME_MAX);
	assert_true(!g->has_logprobs || g->logprobs <= KVD_LOGPROBS_MAX);
}

static void mutate(uint8_t *p, size_t *n, uint64_t *seed)
{
	static const uint8_t heads[] = {
		0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc6, 0xc7,
		0xca, 0xcb, 0xcf, 0xd3, 0xd4, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xe0, 0xff,
	};
	size_t at = prng_below(seed, (uint32_t)*n), k;

	switch (prng_below(seed, 5)) {
	case 0:
		p[at] ^= (uint8_t)(1u << prng_below(seed, 8));
		break;
	case 1:
		p[at] = heads[prng_below(seed, ARRAY_SIZE(heads))];
		break;
	case 2:
		p[at] = (uint8_t)prng(seed);
		break;
	case 3:		/* take some bytes out */
		k = MIN((size_t)prng_below(seed, 9), *n - at);
		memmove(p + at, p + at + k, *n - at - k);
		*n -= k;
		break;
	default:	/* repeat some */
		k = MIN((size_t)prng_below(seed, 9), *n - at);
		memmove(p + at + k, p + at, *n - at);
		*n += k;
		break;
	}
	if (*n == 0)
		*n = 1;
}

static void test_mutations(void **state)
{
	const int rounds = getenv("KVD_TEST_LONG") ? 3000000 : 150000;
	static uint8_t base[NOTATION_MAX];
	size_t n_accepted = 0;
	uint64_t seed = 1;

	for (int i = 0; i < rounds; i++) {
		size_t n = notation_pack(good[prng_below(&seed, ARRAY_SIZE(good))], base);
		struct codec_error error = { 0 };
		struct msg *m = NULL;
		int r;

		for (uint32_t k = prng_below(&seed, 6); k > 0; k--)
			mutate(base, &n, &seed);
		r = decode_copy(base, n, &m, &error);
		/* It reads no further than the checked structure, whatever that is. */
		codec_scan_id(base, n);
		if (r == 0) {
			n_accepted++;
			if (m->id == KVD_MSG_GENERATE)
				check_generate(&m->generate);
			msg_free(m);
			continue;
		}
		assert_int_equal(r, CODEC_E_INVALID);
		assert_in_range(error.code, KVD_CODE_BAD_MESSAGE, KVD_CODE_VERSION);
		assert_true(error.text[0] != '\0' && memchr(error.text, 0, sizeof(error.text)));
		for (const char *s = error.text; *s; s++)
			assert_true(*s >= 0x20 && *s < 0x7f);
	}
	/* Most of the mutations must break something, and not all. */
	assert_in_range(n_accepted, rounds / 20, rounds * 3 / 4);
}

/* What may be in 64 KiB at most: each must be refused or taken, not be out of memory. */
static int decode_large(void)
{
	static const char *const large[] = {
		"[17, {'id': 1, 'x': [@16000 0]}]",
		"[17, {'id': 1, 'x': [@20000 0]}]",
		"[17, {'id': 1, 'x': [@5000 [[]]]}]",
		"[16, {'id': 5, 'prompt': [@1024 [0, 0, 1]], 'logit_bias': [@1024 [1, 1]]}]",
	};
	static const struct { const char *head; size_t n; uint8_t rest; } bombs[] = {
		{ "\x92\x10\xdf\x7f\xff\xff\xff", 7, 0xc0 },
		{ "\x92\x10\x81\xdb\xff\xff\xff\xff", 8, 0xc0 },
		{ "\xdd\xff\xff\xff\xff", 5, 0xc0 },
		{ "\x92\x10\x81\xa1x\xdd\x00\x00\xff\xf6", 10, 0xc0 },	/* 65,526 nils: well-formed */
		{ "\x92\x10\x81\xa1x\xdf\x80\x00\x00\x00", 10, 0xc0 },
		{ "\x91", 1, 0x91 }, { "\x81", 1, 0x81 },		/* nested to the end */
	};
	struct codec_error error;
	struct msg *m;
	int bad = 0;

	for (size_t i = 0; i < ARRAY_SIZE(bombs); i++) {
		memset(bytes, bombs[i].rest, KVD_MESSAGE_MAX);
		memcpy(bytes, bombs[i].head, bombs[i].n);
		bad += codec_decode(&m, bytes, KVD_MESSAGE_MAX, &error) != CODEC_E_INVALID;
	}
	for (size_t i = 0; i < ARRAY_SIZE(large); i++) {
		size_t n = notation_pack(large[i], bytes);
		int r;

		m = NULL;
		r = codec_decode(&m, bytes, n, &error);
		bad += r < 0;
		msg_free(m);
	}
	bad += codec_decode(&m, bytes, KVD_MESSAGE_MAX + 1, &error) != CODEC_E_INVALID;
	return bad;
}

/* In a process that may map 1 MiB more than it has (sanitizers need more: there, only the results count). */
static void test_memory_is_bounded(void **state)
{
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
		FILE *f = fopen("/proc/self/statm", "r");
		struct rlimit limit;
		char line[64];

		if (!f || !fgets(line, sizeof(line), f))
			_exit(100);
		fclose(f);
		limit.rlim_cur = limit.rlim_max = strtoul(line, NULL, 10) * 4096 + (1u << 20);
		setrlimit(RLIMIT_AS, &limit);
#endif
		_exit(decode_large());
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_good_ones_pass),
		cmocka_unit_test(test_id_without_unpacking),
		cmocka_unit_test(test_every_truncation),
		cmocka_unit_test(test_mutations),
		cmocka_unit_test(test_memory_is_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
