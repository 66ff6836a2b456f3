/* SPDX-License-Identifier: Apache-2.0 */
/* What the files behind common/settings/settings.h share. Private to settings*.c. */
#ifndef MFL_COMMON_SETTINGS_SETTINGS_PRINT_H
#define MFL_COMMON_SETTINGS_SETTINGS_PRINT_H

#include "common/settings/settings.h"

/* "1 to 4096, or auto": which values a row accepts, for messages and manuals. */
void mfl_setting_describe(const struct mfl_setting *row, char *text, size_t bytes);

/* settings_files.c: the commented example of the file, and the completion for bash. */
void mfl_settings_print_yaml(const struct mfl_settings *settings, FILE *out);
void mfl_settings_print_completion(const struct mfl_settings *settings, FILE *out);

#endif
