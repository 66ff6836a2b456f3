/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the JSON of --json: one object on one line, which takes its reference over. The objects' vocabulary is
 * proto/json/json.h. */
#ifndef MFL_CLI_BASE_JSON_H
#define MFL_CLI_BASE_JSON_H

#include <stdio.h>

#include "proto/json/json.h"

/* {"event": kind} to add members to. */
json_t *mfl_json_event(const char *kind);
/* -ENOMEM for NULL, -errno when the write fails. */
int mfl_json_print(FILE *out, json_t *object, struct mfl_error *err);
/* {"error": {"code": ..., "text": ...}} */
void mfl_json_print_error(FILE *out, const char *code, const char *text);

#endif
