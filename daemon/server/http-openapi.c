/* SPDX-License-Identifier: Apache-2.0 */
/* GET /openapi.json: the contract, as it lies beside this file. */
#include "daemon/server/http-exchange.h"

/* The assembler finds the file from where the compiler runs, the top of the tree. */
__asm__(".pushsection .rodata\n"
	"http_openapi_text:\n"
	".incbin \"daemon/server/openapi.json\"\n"
	"http_openapi_end:\n"
	".balign 8\n"
	"http_openapi_size: .quad http_openapi_end - http_openapi_text\n"
	".popsection\n");

extern const char http_openapi_text[];
extern const uint64_t http_openapi_size;

void http_get_openapi(struct http_exchange *x)
{
	http_reply(x, 200, "application/json", http_openapi_text, (size_t)http_openapi_size);
}
