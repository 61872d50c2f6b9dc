/* SPDX-License-Identifier: Apache-2.0 */
/* help.h - what --help prints, beside the synopsis of the command table. */
#ifndef KVD_CTL_HELP_H
#define KVD_CTL_HELP_H

extern const char help_global[];
extern const char help_generate[];
extern const char help_chat[];
extern const char help_tokenize[];
extern const char help_load[];
extern const char help_unload[];
extern const char help_bench[];
extern const char help_perplexity[];
extern const char help_cache[];
extern const char help_cache_ls[], help_cache_show[], help_cache_pin[], help_cache_unpin[];
extern const char help_cache_drop[], help_cache_wipe[], help_cache_warm[];
extern const char help_cache_export[], help_cache_import[], help_cache_verify[];

#endif
