/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sizes of the format's types: docs/gguf.md and ggml.c's type_traits. */
#include "daemon/model/gguf-private.h"
#include "ipc/base/checked.h"

const char *gguf_type_name(uint32_t type)
{
	static const char *const names[] = {
		[GGUF_U8] = "u8",         [GGUF_I8] = "i8",       [GGUF_U16] = "u16", [GGUF_I16] = "i16",
		[GGUF_U32] = "u32",       [GGUF_I32] = "i32",     [GGUF_F32] = "f32", [GGUF_BOOL] = "bool",
		[GGUF_STRING] = "string", [GGUF_ARRAY] = "array", [GGUF_U64] = "u64", [GGUF_I64] = "i64",
		[GGUF_F64] = "f64",
	};

	return type < ARRAY_SIZE(names) ? names[type] : "unknown";
}

uint32_t gguf_type_bytes(uint32_t type)
{
	static const uint8_t bytes[] = {
		[GGUF_U8] = 1, [GGUF_I8] = 1, [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
		[GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
	};

	return type < ARRAY_SIZE(bytes) ? bytes[type] : 0;
}

struct tensor_type {
	const char *name;
	uint32_t n_elements, n_bytes;	/* of one block */
};

static const struct tensor_type tensor_types[] = {
	[0] = { "F32", 1, 4 },
	[1] = { "F16", 1, 2 },
	[2] = { "Q4_0", 32, 18 },
	[3] = { "Q4_1", 32, 20 },
	[6] = { "Q5_0", 32, 22 },
	[7] = { "Q5_1", 32, 24 },
	[8] = { "Q8_0", 32, 34 },
	[9] = { "Q8_1", 32, 36 },
	[10] = { "Q2_K", 256, 84 },
	[11] = { "Q3_K", 256, 110 },
	[12] = { "Q4_K", 256, 144 },
	[13] = { "Q5_K", 256, 176 },
	[14] = { "Q6_K", 256, 210 },
	[15] = { "Q8_K", 256, 292 },
	[16] = { "IQ2_XXS", 256, 66 },
	[17] = { "IQ2_XS", 256, 74 },
	[18] = { "IQ3_XXS", 256, 98 },
	[19] = { "IQ1_S", 256, 50 },
	[20] = { "IQ4_NL", 32, 18 },
	[21] = { "IQ3_S", 256, 110 },
	[22] = { "IQ2_S", 256, 82 },
	[23] = { "IQ4_XS", 256, 136 },
	[24] = { "I8", 1, 1 },
	[25] = { "I16", 1, 2 },
	[26] = { "I32", 1, 4 },
	[27] = { "I64", 1, 8 },
	[28] = { "F64", 1, 8 },
	[29] = { "IQ1_M", 256, 56 },
	[30] = { "BF16", 1, 2 },
	[34] = { "TQ1_0", 256, 54 },
	[35] = { "TQ2_0", 256, 66 },
	[39] = { "MXFP4", 32, 17 },
};

const char *gguf_tensor_type_name(uint32_t type)
{
	return type < ARRAY_SIZE(tensor_types) ? tensor_types[type].name : NULL;
}

bool gguf_tensor_type_block(uint32_t type, uint32_t *n_elements, uint32_t *n_bytes)
{
	if (!gguf_tensor_type_name(type))
		return false;
	*n_elements = tensor_types[type].n_elements;
	*n_bytes = tensor_types[type].n_bytes;
	return true;
}
