/* SPDX-License-Identifier: Apache-2.0 */
/* Files in jobs/ that no row names, and what happens to them at the start. A complete checkpoint is removed only if a
 * row permits it: the row of its round (retention, a newer round in its place) or of its job (`deleted`, written with
 * the transaction that deletes the job). */
#ifndef MFL_SERVER_STORE_STORE_STRAYS_H
#define MFL_SERVER_STORE_STORE_STRAYS_H

#include "server/store/store.h"
#include "server/store/store_db.h"

enum mfl_store_stray_kind {
        MFL_STRAY_DROPPED, /* dropped according to its row, or never complete: is removed */
        MFL_STRAY_REDONE,  /* the round after the last committed one of an unfinished job: stays */
        MFL_STRAY_FOREIGN, /* not one of our names: stays */
        MFL_STRAY_ORPHAN,  /* complete: is moved aside */
        MFL_STRAY_PROOF,   /* an orphan that proves that rows of its job are lost */
};
struct mfl_store_stray {
        enum mfl_store_stray_kind kind;
        char job[256], file[256]; /* of jobs/; file "": the whole directory */
};
struct mfl_store_survey {
        uint32_t n, room, n_orphans; /* with proofs */
        uint64_t n_jobs;             /* rows */
        struct mfl_store_stray *v;
};
/* For a database of any schema; 0: an empty one. Changes nothing. */
int mfl_store_survey_read(struct mfl_db *db, int64_t schema, const char *state_dir,
        struct mfl_store_survey *ret_survey, struct mfl_error *err);
/* For one job with a row, as if the job were unfinished. */
int mfl_store_survey_job(struct mfl_db *db, int64_t schema, const char *state_dir, const char *id,
        struct mfl_store_survey *ret_survey, struct mfl_error *err);
void mfl_store_survey_deinit(struct mfl_store_survey *survey);
/* "j-000001/round-000012.safetensors: a checkpoint that no row names". Returns buf. */
const char *mfl_store_stray_text(const struct mfl_store_stray *stray, char *buf, size_t bytes);
/* Whether the server must refuse to start: there are only orphans, or there are proofs. text says why. */
bool mfl_store_survey_refuses(const struct mfl_store_survey *survey, char *text, size_t text_bytes);

/* Moves a stray to STATE_DIR/orphans/TIME-JOB[/FILE], durably; ret_to: that path below STATE_DIR.
 * MFL_STORE_ORPHANS_FULL: orphans/ already has MFL_STORE_ORPHANS_MAX folders. */
int mfl_store_stray_aside(
        const char *state_dir, const struct mfl_store_stray *stray, char ret_to[600], struct mfl_error *err);
uint32_t mfl_store_orphans_count(const char *state_dir);

#endif
