/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/arch.h"

#include <string.h>

#include "daemon/model/gguf-private.h"
#include "ipc/base/checked.h"

static const struct arch *const archs[] = {
	&arch_llama, &arch_gemma3, &arch_qwen2, &arch_qwen3, &arch_phi3,
};

int arch_find(const struct arch **out, const struct gguf *g, struct diag *diag)
{
	struct gguf_string name;
	char supported[96] = "";
	int r;

	r = gguf_get_string(g, "general.architecture", &name, diag);
	if (r == GGUF_E_ABSENT)
		return diag_set(diag, -EINVAL, "metadata key \"general.architecture\": missing");
	if (r)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(archs); i++) {
		size_t n = strlen(supported);

		if (gguf_string_eq(name, archs[i]->name)) {
			*out = archs[i];
			return 0;
		}
		snprintf(supported + n, sizeof(supported) - n, "%s%s", i ? ", " : "", archs[i]->name);
	}
	return diag_set(diag, -EINVAL, "general.architecture: \"%s\" is not supported (supported: %s)",
			gguf_quote(name).text, supported);
}
