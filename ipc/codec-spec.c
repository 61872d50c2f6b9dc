/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/codec-spec.h"

#include <errno.h>
#include <float.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

/* A field of struct T with the same name as the message's. */
#define U32(T, M, P, LO, HI) \
	{ .name = #M, .type = CODEC_U32, .presence = P, .offset = offsetof(struct T, M), \
	  .min = LO, .max = HI }
#define U64(T, M, P, LO) \
	{ .name = #M, .type = CODEC_U64, .presence = P, .offset = offsetof(struct T, M), \
	  .min = LO, .max = UINT64_MAX }
#define F32(T, M, P, LO, HI) \
	{ .name = #M, .type = CODEC_F32, .presence = P, .offset = offsetof(struct T, M), \
	  .fmin = LO, .fmax = HI }
#define BOOL(T, M, P) \
	{ .name = #M, .type = CODEC_BOOL, .presence = P, .offset = offsetof(struct T, M) }
#define STRING(T, M, P, KIND, LO, HI) \
	{ .name = #M, .type = CODEC_STRING, .presence = P, .text = KIND, .offset = offsetof(struct T, M), \
	  .min = LO, .max = HI }
#define ARRAY(T, M, P, ELEMENT, LO, HI) \
	{ .name = #M, .type = CODEC_ARRAY, .presence = P, .offset = offsetof(struct T, M), \
	  .aux = offsetof(struct T, n_##M), .min = LO, .max = HI, .element = &(ELEMENT) }

#define ANY_U32(T, M) U32(T, M, CODEC_REQUIRED, 0, UINT32_MAX)
#define ANY_U64(T, M) U64(T, M, CODEC_REQUIRED, 0)
#define ID(T) U64(T, id, CODEC_REQUIRED, 1)
#define WORD(T, M) STRING(T, M, CODEC_REQUIRED, CODEC_NAME, 0, KVD_WORD_MAX)

#define ELEMENT(VAR, T, SHAPE, FIELDS) \
	static const struct codec_spec VAR = { \
		.shape = SHAPE, .size = sizeof(T), .fields = FIELDS, .n_fields = ARRAY_SIZE(FIELDS), \
	}

/* --- elements of arrays ------------------------------------------------------------ */

static const struct codec_field part_fields[] = {
	U32(msg_part, kind, CODEC_REQUIRED, KVD_PART_TEXT, KVD_PART_IDS),
	U32(msg_part, offset, CODEC_REQUIRED, 0, KVD_ARENA_MAX),
	U32(msg_part, length, CODEC_REQUIRED, 0, KVD_ARENA_MAX),
};
ELEMENT(part_spec, struct msg_part, CODEC_TUPLE, part_fields);

static const struct codec_field chat_fields[] = {
	STRING(msg_chat, role, CODEC_REQUIRED, CODEC_ROLE, 1, KVD_ROLE_MAX),
	U32(msg_chat, kind, CODEC_REQUIRED, KVD_PART_TEXT, KVD_PART_IDS),
	U32(msg_chat, offset, CODEC_REQUIRED, 0, KVD_ARENA_MAX),
	U32(msg_chat, length, CODEC_REQUIRED, 0, KVD_ARENA_MAX),
};
ELEMENT(chat_spec, struct msg_chat, CODEC_TUPLE, chat_fields);

static const struct codec_field bias_fields[] = {
	U32(msg_bias, id, CODEC_REQUIRED, 0, INT32_MAX),
	F32(msg_bias, bias, CODEC_REQUIRED, -FLT_MAX, FLT_MAX),
};
ELEMENT(bias_spec, struct msg_bias, CODEC_TUPLE, bias_fields);

static const struct codec_field stop_fields[] = {
	{ .name = "stop", .type = CODEC_STRING, .text = CODEC_TEXT, .min = 1, .max = KVD_STOP_BYTES_MAX },
};
ELEMENT(stop_spec, const char *, CODEC_SCALAR, stop_fields);

static const struct codec_field model_fields[] = {
	STRING(msg_model, name, CODEC_REQUIRED, CODEC_NAME, 0, KVD_MODEL_NAME_MAX),
	WORD(msg_model, arch),
	STRING(msg_model, title, CODEC_REQUIRED, CODEC_NAME, 0, KVD_TITLE_MAX),
	WORD(msg_model, state),
	WORD(msg_model, chat_template),
	ANY_U32(msg_model, n_ctx), ANY_U32(msg_model, n_ctx_train), ANY_U32(msg_model, n_vocab),
	ANY_U32(msg_model, n_layers), ANY_U32(msg_model, n_embd),
	ANY_U64(msg_model, n_params), ANY_U64(msg_model, file_bytes), ANY_U64(msg_model, weight_bytes),
	STRING(msg_model, hash, CODEC_REQUIRED, CODEC_NAME, 0, KVD_HASH_MAX),
	U32(msg_model, percent, CODEC_REQUIRED, 0, 100), ANY_U32(msg_model, uid),
	BOOL(msg_model, is_default, CODEC_REQUIRED),
	ANY_U32(msg_model, block_tokens), ANY_U64(msg_model, block_bytes),
	STRING(msg_model, block_tokens_by, CODEC_NOT_ZERO, CODEC_NAME, 1, KVD_WORD_MAX),
};
ELEMENT(model_spec, struct msg_model, CODEC_MAP, model_fields);

static const struct codec_field process_fields[] = {
	ANY_U64(msg_process, session), ANY_U64(msg_process, request),
	ANY_U32(msg_process, uid), ANY_U32(msg_process, pid),
	STRING(msg_process, client, CODEC_REQUIRED, CODEC_NAME, 0, KVD_CLIENT_NAME_MAX),
	STRING(msg_process, phase, CODEC_REQUIRED, CODEC_NAME, 0, KVD_PHASE_MAX),
	STRING(msg_process, model, CODEC_REQUIRED, CODEC_NAME, 0, KVD_MODEL_NAME_MAX),
	ANY_U32(msg_process, prompt_tokens), ANY_U32(msg_process, computed_tokens),
	ANY_U32(msg_process, generated_tokens), ANY_U32(msg_process, blocks),
	ANY_U64(msg_process, age_ns),
};
ELEMENT(process_spec, struct msg_process, CODEC_MAP, process_fields);

#define T msg_cache_entry
static const struct codec_field cache_entry_fields[] = {
	U64(T, entry, CODEC_REQUIRED, 1), ANY_U64(T, parent),
	STRING(T, namespace, CODEC_REQUIRED, CODEC_NAME, 0, KVD_NAMESPACE_MAX),
	ANY_U32(T, uid), ANY_U32(T, n_tokens), ANY_U32(T, first),
	BOOL(T, joined, CODEC_REQUIRED),
	ANY_U64(T, bytes),
	WORD(T, tier),
	ANY_U64(T, age_ns), ANY_U64(T, idle_ns), U64(T, ttl_ns, CODEC_NOT_ZERO, 0),
	ANY_U32(T, hits), ANY_U32(T, n_users), ANY_U32(T, n_pins),
	U32(T, priority, CODEC_REQUIRED, 0, KVD_PRIORITY_HIGH),
	BOOL(T, pinned, CODEC_REQUIRED),
	STRING(T, words, CODEC_REQUIRED, CODEC_NAME, 0, KVD_CACHE_WORDS_MAX),
};
#undef T
ELEMENT(cache_entry_spec, struct msg_cache_entry, CODEC_MAP, cache_entry_fields);

static const struct codec_field pinned_by_fields[] = {
	{ .name = "pinned_by", .type = CODEC_U32, .max = UINT32_MAX },
};
ELEMENT(pinned_by_spec, uint32_t, CODEC_SCALAR, pinned_by_fields);

/* --- client to daemon ---------------------------------------------------------------- */

static const struct codec_field hello_fields[] = {
	U32(msg_hello, version, CODEC_REQUIRED, KVD_PROTOCOL_VERSION, KVD_PROTOCOL_VERSION),
	STRING(msg_hello, client, CODEC_REQUIRED, CODEC_NAME, 1, KVD_CLIENT_NAME_MAX),
	U32(msg_hello, ring, CODEC_NOT_ZERO, KVD_RING_MIN, KVD_RING_MAX),
	U32(msg_hello, arena, CODEC_NOT_ZERO, KVD_ARENA_MIN, KVD_ARENA_MAX),
};
static const struct msg_hello hello_defaults = { .ring = KVD_RING_DEFAULT, .arena = KVD_ARENA_DEFAULT };

static int hello_check(const void *object, const char **field, const char **text)
{
	const struct msg_hello *m = object;

	if ((m->ring & (m->ring - 1)) != 0) {
		*field = "ring";
		*text = "must be a power of two";
		return -EINVAL;
	}
	if (m->arena % 4096 != 0) {
		*field = "arena";
		*text = "must be a multiple of 4096";
		return -EINVAL;
	}
	return 0;
}

static const struct codec_field generate_fields[] = {
	ID(msg_generate),
	STRING(msg_generate, model, CODEC_NOT_ZERO, CODEC_NAME, 1, KVD_MODEL_NAME_MAX),
	ARRAY(msg_generate, prompt, CODEC_NOT_ZERO, part_spec, 1, KVD_PARTS_MAX),
	ARRAY(msg_generate, messages, CODEC_NOT_ZERO, chat_spec, 1, KVD_PARTS_MAX),
	BOOL(msg_generate, special, CODEC_DEFAULT),
	BOOL(msg_generate, bos, CODEC_DEFAULT),
	U32(msg_generate, n, CODEC_DEFAULT, 0, UINT32_MAX),
	F32(msg_generate, temperature, CODEC_DEFAULT, 0, 100),
	U32(msg_generate, top_k, CODEC_DEFAULT, 0, UINT32_MAX),
	F32(msg_generate, top_p, CODEC_DEFAULT, 0, 1),
	F32(msg_generate, min_p, CODEC_DEFAULT, 0, 1),
	F32(msg_generate, repeat_penalty, CODEC_DEFAULT, 0.01f, 100),
	U32(msg_generate, repeat_last_n, CODEC_DEFAULT, 0, UINT32_MAX),
	{ .name = "seed", .type = CODEC_U64, .presence = CODEC_HAS,
	  .offset = offsetof(struct msg_generate, seed),
	  .aux = offsetof(struct msg_generate, has_seed), .max = UINT64_MAX },
	ARRAY(msg_generate, logit_bias, CODEC_NOT_ZERO, bias_spec, 0, KVD_LOGIT_BIAS_MAX),
	ARRAY(msg_generate, stop, CODEC_NOT_ZERO, stop_spec, 0, KVD_STOP_MAX),
	{ .name = "logprobs", .type = CODEC_U32, .presence = CODEC_HAS,
	  .offset = offsetof(struct msg_generate, logprobs),
	  .aux = offsetof(struct msg_generate, has_logprobs), .max = KVD_LOGPROBS_MAX },
	BOOL(msg_generate, ignore_eos, CODEC_DEFAULT),
	BOOL(msg_generate, progress, CODEC_DEFAULT),
	{ .name = "prompt_logprobs", .type = CODEC_U32, .presence = CODEC_HAS,
	  .offset = offsetof(struct msg_generate, prompt_logprobs),
	  .aux = offsetof(struct msg_generate, has_prompt_logprobs), .max = UINT32_MAX },
	STRING(msg_generate, namespace, CODEC_NOT_ZERO, CODEC_NAME, 1, KVD_NAMESPACE_MAX),
	STRING(msg_generate, cache_key, CODEC_NOT_ZERO, CODEC_FILE, 1, KVD_CACHE_KEY_MAX),
	U32(msg_generate, ttl_s, CODEC_NOT_ZERO, 0, UINT32_MAX),
	U32(msg_generate, priority, CODEC_DEFAULT, 0, KVD_PRIORITY_HIGH),
	BOOL(msg_generate, pin, CODEC_DEFAULT),
};
static const struct msg_generate generate_defaults = {
	.bos = true, .n = 512, .temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f,
	.repeat_penalty = 1, .repeat_last_n = 64, .priority = KVD_PRIORITY_NORMAL,
};

void msg_generate_init(struct msg_generate *m)
{
	*m = generate_defaults;
}

/* Adds a part's length to *total.  False: ids that are not whole. */
static bool add_part(uint32_t kind, uint32_t offset, uint32_t length, uint64_t *total)
{
	*total += length;
	return kind != KVD_PART_IDS || (offset % 4 == 0 && length % 4 == 0);
}

static int generate_check(const void *object, const char **field, const char **text)
{
	const struct msg_generate *m = object;
	uint64_t total = 0;
	bool whole = true;

	*field = m->n_messages > 0 ? "messages" : "prompt";
	if ((m->n_prompt > 0) == (m->n_messages > 0)) {
		*field = "prompt";
		*text = "exactly one of prompt and messages is needed";
		return -EINVAL;
	}
	for (size_t i = 0; i < m->n_prompt; i++)
		whole &= add_part(m->prompt[i].kind, m->prompt[i].offset, m->prompt[i].length, &total);
	for (size_t i = 0; i < m->n_messages; i++)
		whole &= add_part(m->messages[i].kind, m->messages[i].offset, m->messages[i].length, &total);
	if (!whole) {
		*text = "offset and length of ids must be multiples of 4";
		return -EINVAL;
	}
	if (total > KVD_ARENA_MAX) {
		*text = "all lengths together pass the largest arena";
		return -EINVAL;
	}
	if (total == 0 && m->n_prompt > 0) {
		*text = "is empty";
		return -EINVAL;
	}
	return 0;
}

static const struct codec_field tokenize_fields[] = {
	ID(msg_tokenize),
	STRING(msg_tokenize, model, CODEC_NOT_ZERO, CODEC_NAME, 1, KVD_MODEL_NAME_MAX),
	U32(msg_tokenize, offset, CODEC_REQUIRED, 0, KVD_ARENA_MAX),
	U32(msg_tokenize, length, CODEC_REQUIRED, 0, KVD_ARENA_MAX),
	BOOL(msg_tokenize, special, CODEC_DEFAULT),
	BOOL(msg_tokenize, bos, CODEC_DEFAULT),
	BOOL(msg_tokenize, pieces, CODEC_DEFAULT),
	U32(msg_tokenize, out_offset, CODEC_REQUIRED, 0, KVD_ARENA_MAX),
	U32(msg_tokenize, out_length, CODEC_REQUIRED, 0, KVD_ARENA_MAX),
};

static int tokenize_check(const void *object, const char **field, const char **text)
{
	const struct msg_tokenize *m = object;

	*text = "must be a multiple of 4";
	*field = "out_offset";
	if (m->out_offset % 4)
		return -EINVAL;
	*field = "out_length";
	return m->out_length % 4 ? -EINVAL : 0;
}

static const struct codec_field cancel_fields[] = { ID(msg_cancel) };
static const struct codec_field status_fields[] = { ID(msg_status) };
static const struct codec_field models_fields[] = { ID(msg_models) };
static const struct codec_field ps_fields[] = { ID(msg_ps) };

static const struct codec_field load_fields[] = {
	ID(msg_load),
	STRING(msg_load, name, CODEC_REQUIRED, CODEC_FILE, 1, KVD_MODEL_NAME_MAX),
	U32(msg_load, n_ctx, CODEC_NOT_ZERO, 1, UINT32_MAX),
	BOOL(msg_load, progress, CODEC_DEFAULT),
};

static const struct codec_field unload_fields[] = {
	ID(msg_unload),
	STRING(msg_unload, model, CODEC_REQUIRED, CODEC_NAME, 1, KVD_MODEL_NAME_MAX),
	BOOL(msg_unload, now, CODEC_DEFAULT),
};

#define CACHE_MODEL(T) STRING(T, model, CODEC_NOT_ZERO, CODEC_NAME, 1, KVD_MODEL_NAME_MAX)
#define CACHE_NAMESPACE(T) STRING(T, namespace, CODEC_NOT_ZERO, CODEC_NAME, 1, KVD_NAMESPACE_MAX)
#define CACHE_ENTRY(T) ID(T), CACHE_MODEL(T), U64(T, entry, CODEC_REQUIRED, 1)

static const struct codec_field cache_ls_fields[] = {
	ID(msg_cache_ls), CACHE_MODEL(msg_cache_ls), CACHE_NAMESPACE(msg_cache_ls),
	U64(msg_cache_ls, after, CODEC_NOT_ZERO, 0),
};
static const struct codec_field cache_show_fields[] = { CACHE_ENTRY(msg_cache_show) };
static const struct codec_field cache_pin_fields[] = { CACHE_ENTRY(msg_cache_pin) };
static const struct codec_field cache_unpin_fields[] = {
	CACHE_ENTRY(msg_cache_unpin), BOOL(msg_cache_unpin, all, CODEC_DEFAULT),
};
static const struct codec_field cache_drop_fields[] = {
	CACHE_ENTRY(msg_cache_drop), BOOL(msg_cache_drop, chain, CODEC_DEFAULT),
};
static const struct codec_field cache_wipe_fields[] = {
	ID(msg_cache_wipe), CACHE_MODEL(msg_cache_wipe), CACHE_NAMESPACE(msg_cache_wipe),
	BOOL(msg_cache_wipe, all, CODEC_DEFAULT),
};

static const struct codec_field cache_export_fields[] = {
	ID(msg_cache_export), CACHE_MODEL(msg_cache_export), CACHE_NAMESPACE(msg_cache_export),
	BOOL(msg_cache_export, progress, CODEC_DEFAULT),
};
static const struct codec_field cache_import_fields[] = {
	ID(msg_cache_import), CACHE_MODEL(msg_cache_import),
	STRING(msg_cache_import, cache_key, CODEC_NOT_ZERO, CODEC_FILE, 1, KVD_CACHE_KEY_MAX),
	BOOL(msg_cache_import, progress, CODEC_DEFAULT),
};
static const struct codec_field cache_verify_fields[] = {
	ID(msg_cache_verify), CACHE_MODEL(msg_cache_verify), CACHE_NAMESPACE(msg_cache_verify),
	U32(msg_cache_verify, count, CODEC_NOT_ZERO, 1, UINT32_MAX),
	BOOL(msg_cache_verify, progress, CODEC_DEFAULT),
};

static int cache_wipe_check(const void *object, const char **field, const char **text)
{
	const struct msg_cache_wipe *m = object;

	*field = "all";
	*text = "excludes a namespace";
	return m->all && m->namespace ? -EINVAL : 0;
}

/* --- daemon to client ---------------------------------------------------------------- */

static const struct codec_field welcome_fields[] = {
	U32(msg_welcome, version, CODEC_REQUIRED, KVD_PROTOCOL_VERSION, KVD_PROTOCOL_VERSION),
	ANY_U64(msg_welcome, session),
	U32(msg_welcome, ring, CODEC_REQUIRED, KVD_RING_MIN, KVD_RING_MAX),
	U32(msg_welcome, arena, CODEC_REQUIRED, KVD_ARENA_MIN, KVD_ARENA_MAX),
	WORD(msg_welcome, server),
	WORD(msg_welcome, state),
};

static const struct codec_field refused_fields[] = {
	U32(msg_refused, code, CODEC_REQUIRED, KVD_CODE_BAD_MESSAGE, KVD_CODE_LAST),
	STRING(msg_refused, message, CODEC_REQUIRED, CODEC_TEXT, 0, KVD_ERROR_TEXT_MAX),
};

static const struct codec_field error_fields[] = {
	ANY_U64(msg_error, id),
	U32(msg_error, code, CODEC_REQUIRED, KVD_CODE_BAD_MESSAGE, KVD_CODE_LAST),
	STRING(msg_error, field, CODEC_REQUIRED, CODEC_TEXT, 0, KVD_FIELD_MAX),
	STRING(msg_error, message, CODEC_REQUIRED, CODEC_TEXT, 0, KVD_ERROR_TEXT_MAX),
	U64(msg_error, count, CODEC_NOT_ZERO, 0),
};

static const struct codec_field tokenized_fields[] = { ID(msg_tokenized), ANY_U32(msg_tokenized, count) };

#define T msg_status_reply
static const struct codec_field status_reply_fields[] = {
	ID(T), WORD(T, version), WORD(T, device), WORD(T, level), WORD(T, state),
	ANY_U32(T, pid), ANY_U32(T, n_threads), ANY_U32(T, n_models), ANY_U32(T, n_sessions),
	ANY_U32(T, n_running), ANY_U32(T, n_queued), ANY_U32(T, n_parked),
	ANY_U64(T, uptime_ns), ANY_U64(T, kv_bytes), ANY_U64(T, kv_bytes_used), ANY_U64(T, weight_bytes),
	ANY_U64(T, prompt_tokens), ANY_U64(T, generated_tokens),
	ANY_U64(T, requests_done), ANY_U64(T, requests_cancelled), ANY_U64(T, preemptions),
	U32(T, loading_percent, CODEC_REQUIRED, 0, 100),
	BOOL(T, no_cache, CODEC_REQUIRED),
	ANY_U64(T, blocks_used), ANY_U64(T, blocks_cached), ANY_U64(T, blocks_free),
	ANY_U64(T, cache_lookups), ANY_U64(T, cache_hits), ANY_U64(T, cached_tokens), ANY_U64(T, cache_evicted),
	U64(T, host_bytes, CODEC_NOT_ZERO, 0), U64(T, host_bytes_used, CODEC_NOT_ZERO, 0),
	U64(T, host_blocks, CODEC_NOT_ZERO, 0), U64(T, host_stored, CODEC_NOT_ZERO, 0),
	U64(T, host_restored, CODEC_NOT_ZERO, 0),
	U64(T, disk_bytes, CODEC_NOT_ZERO, 0), U64(T, disk_bytes_used, CODEC_NOT_ZERO, 0),
	U64(T, disk_blocks, CODEC_NOT_ZERO, 0), U64(T, disk_lookups, CODEC_NOT_ZERO, 0),
	U64(T, disk_hits, CODEC_NOT_ZERO, 0), U64(T, disk_written, CODEC_NOT_ZERO, 0),
	U64(T, disk_read, CODEC_NOT_ZERO, 0), U64(T, disk_evicted, CODEC_NOT_ZERO, 0),
	U64(T, disk_damaged, CODEC_NOT_ZERO, 0), U64(T, disk_errors, CODEC_NOT_ZERO, 0),
	STRING(T, disk_trouble, CODEC_NOT_ZERO, CODEC_NAME, 1, KVD_TROUBLE_MAX),
	WORD(T, kv_type), U64(T, open_bytes, CODEC_NOT_ZERO, 0),
};
#undef T

static const struct codec_field models_reply_fields[] = {
	ID(msg_models_reply),
	ARRAY(msg_models_reply, models, CODEC_REQUIRED, model_spec, 0, KVD_MODELS_MAX),
};

static const struct codec_field ps_reply_fields[] = {
	ID(msg_ps_reply),
	ARRAY(msg_ps_reply, processes, CODEC_REQUIRED, process_spec, 0, KVD_PS_MAX),
	BOOL(msg_ps_reply, truncated, CODEC_REQUIRED),
};

static const struct codec_field loaded_fields[] = {
	ID(msg_loaded),
	STRING(msg_loaded, name, CODEC_REQUIRED, CODEC_NAME, 0, KVD_MODEL_NAME_MAX),
	ANY_U32(msg_loaded, n_ctx), ANY_U64(msg_loaded, weight_bytes),
};

static const struct codec_field unloaded_fields[] = { ID(msg_unloaded) };

static const struct codec_field loading_fields[] = {
	ID(msg_loading),
	U32(msg_loading, percent, CODEC_REQUIRED, 0, 100),
};

static const struct codec_field cache_ls_reply_fields[] = {
	ID(msg_cache_ls_reply),
	STRING(msg_cache_ls_reply, model, CODEC_REQUIRED, CODEC_NAME, 0, KVD_MODEL_NAME_MAX),
	ANY_U32(msg_cache_ls_reply, block_tokens),
	ARRAY(msg_cache_ls_reply, entries, CODEC_REQUIRED, cache_entry_spec, 0, KVD_CACHE_LS_MAX),
	U64(msg_cache_ls_reply, next, CODEC_NOT_ZERO, 0),
};

#define T msg_cache_show_reply
static const struct codec_field cache_show_reply_fields[] = {
	ID(T),
	STRING(T, model, CODEC_REQUIRED, CODEC_NAME, 0, KVD_MODEL_NAME_MAX),
	ARRAY(T, entries, CODEC_REQUIRED, cache_entry_spec, 1, 1),
	ANY_U64(T, chain), ANY_U32(T, n_path), ANY_U32(T, n_below),
	ARRAY(T, pinned_by, CODEC_REQUIRED, pinned_by_spec, 0, KVD_CACHE_PINS_MAX),
	STRING(T, text, CODEC_REQUIRED, CODEC_NAME, 0, KVD_CACHE_TEXT_MAX),
	STRING(T, own, CODEC_REQUIRED, CODEC_NAME, 0, KVD_CACHE_TEXT_MAX),
};
#undef T

static const struct codec_field cache_done_fields[] = {
	ID(msg_cache_done), ANY_U64(msg_cache_done, n_entries), ANY_U64(msg_cache_done, n_tokens),
	ANY_U64(msg_cache_done, bytes),
	U64(msg_cache_done, disk_entries, CODEC_NOT_ZERO, 0), U64(msg_cache_done, disk_bytes, CODEC_NOT_ZERO, 0),
};

#define T msg_cache_shared
static const struct codec_field cache_shared_fields[] = {
	ID(T), ANY_U64(T, n_entries), ANY_U64(T, n_tokens), ANY_U64(T, bytes), ANY_U64(T, n_there), ANY_U64(T, n_left),
	U32(T, code, CODEC_REQUIRED, 0, KVD_CODE_LAST),
	STRING(T, message, CODEC_REQUIRED, CODEC_TEXT, 0, KVD_ERROR_TEXT_MAX),
};
#undef T

#define T msg_cache_verified
static const struct codec_field cache_verified_fields[] = {
	ID(T), ANY_U64(T, n_entries), ANY_U64(T, n_tokens), ANY_U64(T, bytes), ANY_U64(T, n_differ),
	ANY_U64(T, compute_ns), STRING(T, message, CODEC_REQUIRED, CODEC_TEXT, 0, KVD_ERROR_TEXT_MAX),
};
#undef T

static const struct codec_field cache_progress_fields[] = {
	ID(msg_cache_progress), ANY_U64(msg_cache_progress, done), ANY_U64(msg_cache_progress, total),
};

/* --- the table ------------------------------------------------------------------------- */

#define MESSAGE(ID_, NAME, FROM_CLIENT) \
	.id = ID_, .name = #NAME, .from_client = FROM_CLIENT, .shape = CODEC_MAP, \
	.size = sizeof(struct msg_##NAME)
#define FIELDS(NAME) .fields = NAME##_fields, .n_fields = ARRAY_SIZE(NAME##_fields)

static const struct codec_spec messages[] = {
	{ MESSAGE(KVD_MSG_HELLO, hello, true), FIELDS(hello), .defaults = &hello_defaults,
	  .check = hello_check, .versioned = true },
	{ MESSAGE(KVD_MSG_GENERATE, generate, true), FIELDS(generate), .defaults = &generate_defaults,
	  .check = generate_check },
	{ MESSAGE(KVD_MSG_CANCEL, cancel, true), FIELDS(cancel) },
	{ MESSAGE(KVD_MSG_ROOM, room, true) },
	{ MESSAGE(KVD_MSG_WAIT, wait, true) },
	{ MESSAGE(KVD_MSG_TOKENIZE, tokenize, true), FIELDS(tokenize), .check = tokenize_check },
	{ MESSAGE(KVD_MSG_STATUS, status, true), FIELDS(status) },
	{ MESSAGE(KVD_MSG_MODELS, models, true), FIELDS(models) },
	{ MESSAGE(KVD_MSG_PS, ps, true), FIELDS(ps) },
	{ MESSAGE(KVD_MSG_LOAD, load, true), FIELDS(load) },
	{ MESSAGE(KVD_MSG_UNLOAD, unload, true), FIELDS(unload) },
	{ MESSAGE(KVD_MSG_CACHE_LS, cache_ls, true), FIELDS(cache_ls) },
	{ MESSAGE(KVD_MSG_CACHE_SHOW, cache_show, true), FIELDS(cache_show) },
	{ MESSAGE(KVD_MSG_CACHE_PIN, cache_pin, true), FIELDS(cache_pin) },
	{ MESSAGE(KVD_MSG_CACHE_UNPIN, cache_unpin, true), FIELDS(cache_unpin) },
	{ MESSAGE(KVD_MSG_CACHE_DROP, cache_drop, true), FIELDS(cache_drop) },
	{ MESSAGE(KVD_MSG_CACHE_WIPE, cache_wipe, true), FIELDS(cache_wipe), .check = cache_wipe_check },
	{ MESSAGE(KVD_MSG_CACHE_EXPORT, cache_export, true), FIELDS(cache_export) },
	{ MESSAGE(KVD_MSG_CACHE_IMPORT, cache_import, true), FIELDS(cache_import) },
	{ MESSAGE(KVD_MSG_CACHE_VERIFY, cache_verify, true), FIELDS(cache_verify) },
	{ MESSAGE(KVD_MSG_WELCOME, welcome, false), FIELDS(welcome), .versioned = true },
	{ MESSAGE(KVD_MSG_REFUSED, refused, false), FIELDS(refused) },
	{ MESSAGE(KVD_MSG_ERROR, error, false), FIELDS(error) },
	{ MESSAGE(KVD_MSG_WAKE, wake, false) },
	{ MESSAGE(KVD_MSG_TOKENIZED, tokenized, false), FIELDS(tokenized) },
	{ MESSAGE(KVD_MSG_STATUS_REPLY, status_reply, false), FIELDS(status_reply) },
	{ MESSAGE(KVD_MSG_MODELS_REPLY, models_reply, false), FIELDS(models_reply) },
	{ MESSAGE(KVD_MSG_PS_REPLY, ps_reply, false), FIELDS(ps_reply) },
	{ MESSAGE(KVD_MSG_LOADED, loaded, false), FIELDS(loaded) },
	{ MESSAGE(KVD_MSG_UNLOADED, unloaded, false), FIELDS(unloaded) },
	{ MESSAGE(KVD_MSG_LOADING, loading, false), FIELDS(loading) },
	{ MESSAGE(KVD_MSG_CACHE_LS_REPLY, cache_ls_reply, false), FIELDS(cache_ls_reply) },
	{ MESSAGE(KVD_MSG_CACHE_SHOW_REPLY, cache_show_reply, false), FIELDS(cache_show_reply) },
	{ MESSAGE(KVD_MSG_CACHE_DONE, cache_done, false), FIELDS(cache_done) },
	{ MESSAGE(KVD_MSG_CACHE_SHARED, cache_shared, false), FIELDS(cache_shared) },
	{ MESSAGE(KVD_MSG_CACHE_VERIFIED, cache_verified, false), FIELDS(cache_verified) },
	{ MESSAGE(KVD_MSG_CACHE_PROGRESS, cache_progress, false), FIELDS(cache_progress) },
};

const struct codec_spec *codec_spec_of(uint64_t id)
{
	for (size_t i = 0; i < ARRAY_SIZE(messages); i++)
		if (messages[i].id == id)
			return &messages[i];
	return NULL;
}

bool codec_from_client(enum kvd_message id)
{
	const struct codec_spec *spec = codec_spec_of(id);

	return spec && spec->from_client;
}

const char *codec_name(enum kvd_message id)
{
	const struct codec_spec *spec = codec_spec_of(id);

	return spec ? spec->name : "unknown";
}

static bool is_role(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') ||
		      s[i] == '_' || s[i] == '-'))
			return false;
	return true;
}

static bool has_control(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] < 0x20 || p[i] == 0x7f || (p[i] == 0xc2 && i + 1 < n && p[i + 1] < 0xa0))
			return true;
	return false;
}

bool codec_text_valid(enum codec_text text, const char *s, size_t n)
{
	if (text == CODEC_ROLE)
		return is_role(s, n);
	if (n == 0)
		return true;
	if (memchr(s, '\0', n) || !utf8_valid((const uint8_t *)s, n))
		return false;
	if (text == CODEC_FILE && memchr(s, '/', n))
		return false;
	return text == CODEC_TEXT || !has_control((const uint8_t *)s, n);
}

bool codec_model_name_valid(const char *name)
{
	size_t n = strnlen(name, KVD_MODEL_NAME_MAX + 1);

	return n > 0 && n <= KVD_MODEL_NAME_MAX && codec_text_valid(CODEC_FILE, name, n);
}
