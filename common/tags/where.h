/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemons may work for a job: an expression over what a daemon says of itself (selection.where of a job), and the
 * tags of client.yaml that it may name.
 *
 *      or     = and { "or" and }
 *      and    = not { "and" not }
 *      not    = "not" not | "(" or ")" | NAME ( "==" | "!=" ) VALUE | NAME [ "not" ] "in" "(" VALUE { "," VALUE } ")"
 *      VALUE  = text in '' or ""
 *
 * A name is a tag's, or name, site, node, backend. A tag that a daemon does not have equals nothing. Pure; any thread.
 */
#ifndef MFL_COMMON_TAGS_WHERE_H
#define MFL_COMMON_TAGS_WHERE_H

#include <stdbool.h>

#include "common/base/base.h"
#include "common/model/graph.h"

#define MFL_WHERE_BYTES 512

struct mfl_where_daemon {
        const char *name, *site, *node, *backend, *tags;
};

/* Appends KEY=VALUE. MFL_INVALID: no such names are possible, the key is there already, or there is no room. */
int mfl_tags_add(char tags[MFL_TAGS_BYTES], const char *key, const char *value, struct mfl_error *err);

/* MFL_INVALID: what is expected, and where. */
int mfl_where_check(const char *text, struct mfl_error *err);
/* "": true. A text that mfl_where_check refuses: false. */
bool mfl_where_matches(const char *text, const struct mfl_where_daemon *daemon);

#endif
