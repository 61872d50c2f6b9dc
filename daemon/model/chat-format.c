/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/chat-format.h"

#include <string.h>

#include "ipc/base/checked.h"

const char *const chat_role_names[CHAT_N_ROLES] = { "system", "user", "assistant" };

#define SAME_TURNS(BEFORE, AFTER, END) \
	{ { BEFORE "system" AFTER, END }, { BEFORE "user" AFTER, END }, { BEFORE "assistant" AFTER, END } }

const struct chat_format chat_formats[] = {
	{
		.name = "chatml",
		.turns = SAME_TURNS("<|im_start|>", "\n", "<|im_end|>\n"),
		.reply = "<|im_start|>assistant\n",
		.markers = { "<|im_start|>", "<|im_end|>" },
		.n_required = 2,
	},
	{
		.name = "gemma",
		.turns = { { "", "\n\n" },
			   { "<start_of_turn>user\n", "<end_of_turn>\n" },
			   { "<start_of_turn>model\n", "<end_of_turn>\n" } },
		.reply = "<start_of_turn>model\n",
		.system = CHAT_SYSTEM_FIRST_USER,
		.markers = { "<start_of_turn>", "<end_of_turn>" },
		.n_required = 2,
	},
	{
		.name = "llama3",
		.turns = SAME_TURNS("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
		.reply = "<|start_header_id|>assistant<|end_header_id|>\n\n",
		.markers = { "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>" },
		.n_required = 3,
	},
	{
		.name = "llama4",
		.turns = SAME_TURNS("<|header_start|>", "<|header_end|>\n\n", "<|eot|>"),
		.reply = "<|header_start|>assistant<|header_end|>\n\n",
		.markers = { "<|header_start|>", "<|header_end|>", "<|eot|>" },
		.n_required = 3,
	},
	{
		.name = "phi3",
		.turns = { { "<|system|>\n", "<|end|>\n" },
			   { "<|user|>\n", "<|end|>\n" },
			   { "<|assistant|>\n", "<|end|>\n" } },
		.reply = "<|assistant|>\n",
		.markers = { "<|user|>", "<|assistant|>", "<|end|>", "<|system|>" },
		.n_required = 3,
		.spaces_skipped = true,
	},
	{
		.name = "phi4",
		.turns = SAME_TURNS("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
		.reply = "<|im_start|>assistant<|im_sep|>",
		.markers = { "<|im_start|>", "<|im_sep|>", "<|im_end|>" },
		.n_required = 3,
	},
	{
		.name = "zephyr",
		.turns = { { "<|system|>\n", CHAT_EOS "\n" },
			   { "<|user|>\n", CHAT_EOS "\n" },
			   { "<|assistant|>\n", CHAT_EOS "\n" } },
		.reply = "<|assistant|>\n",
		.markers = { "<|user|>", "<|assistant|>", "<|system|>" },
	},
	{
		.name = "llama2",
		.turns = { { "<<SYS>>\n", "\n<</SYS>>\n\n" },
			   { CHAT_BOS "[INST] ", " [/INST]" },
			   { " ", " " CHAT_EOS } },
		.reply = "",
		.system = CHAT_SYSTEM_FIRST_USER,
	},
	/* Mistral AI's, from the oldest to the newest. */
	{
		.name = "mistral",
		.turns = { { "", "\n\n" }, { "[INST] ", " [/INST]" }, { "", CHAT_EOS " " } },
		.reply = "",
		.system = CHAT_SYSTEM_FIRST_USER,
	},
	{
		.name = "mistral",
		.turns = { { "", "\n\n" }, { "[INST] ", " [/INST]" }, { "", CHAT_EOS } },
		.reply = "",
		.system = CHAT_SYSTEM_FIRST_USER,
	},
	{
		.name = "mistral",
		.turns = { { "", "\n\n" }, { " [INST] ", " [/INST]" }, { " ", CHAT_EOS } },
		.reply = "",
		.system = CHAT_SYSTEM_FIRST_USER,
	},
	{
		.name = "mistral",
		.turns = { { "", "\n\n" }, { "[INST] ", "[/INST]" }, { " ", CHAT_EOS } },
		.reply = "",
		.system = CHAT_SYSTEM_LAST_USER,
		.markers = { "[INST]", "[/INST]" },
	},
	{
		.name = "mistral",
		.turns = { { "", "\n\n" }, { "[INST]", "[/INST]" }, { "", CHAT_EOS } },
		.reply = "",
		.system = CHAT_SYSTEM_LAST_USER,
		.markers = { "[INST]", "[/INST]" },
		.n_required = 2,
	},
	{
		.name = "mistral",
		.turns = { { "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]" }, { "[INST]", "[/INST]" }, { "", CHAT_EOS } },
		.reply = "",
		.markers = { "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]" },
		.n_required = 4,
	},
};

const size_t chat_n_formats = ARRAY_SIZE(chat_formats);

bool chat_role_find(const char *name, enum chat_role *role)
{
	for (int i = 0; i < CHAT_N_ROLES; i++)
		if (strcmp(name, chat_role_names[i]) == 0) {
			*role = (enum chat_role)i;
			return true;
		}
	return false;
}
