/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides of a move share: rows of `moves`, under the store's mutex. */
#ifndef MFL_SERVER_MOVE_MOVE_INTERNAL_H
#define MFL_SERVER_MOVE_MOVE_INTERNAL_H

#include "server/move/move.h"
#include "server/store/store_internal.h"

struct mfl_move_found {
        bool is, outward;
        char job[MFL_JOB_ID_BYTES];
        struct mfl_move move;
};
/* A job that leaves, or has left. */
int mfl_move_find_job(
        struct mfl_store *store, const char *id, struct mfl_move_found *ret_found, struct mfl_error *err);
/* In either direction: the other server may be this one, under another name. */
int mfl_move_find_token(
        struct mfl_store *store, const char *token, struct mfl_move_found *ret_found, struct mfl_error *err);
int mfl_move_add(struct mfl_store *store, const char *token, const char *id, bool outward, const char *peer,
        struct mfl_error *err);
/* A fault point. */
int mfl_move_pass(const char *point, const char *id, struct mfl_error *err);
/* mfl_db_query: user is an int64_t. */
int mfl_move_on_number(struct mfl_db_row *row, void *user, struct mfl_error *err);
/* The state of a job. MFL_NOT_FOUND. */
int mfl_move_state(struct mfl_store *store, const char *id, int64_t *ret_state, struct mfl_error *err);

#endif
