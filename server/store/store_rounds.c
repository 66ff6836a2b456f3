/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of rounds: commit with retention, queries, and where a job resumes after a crash. */
#include "server/store/store_internal.h"

#include <math.h>
#include <stdio.h>

/* Best first. NULL (not a number) counts as the worst. */
#define BEST_ORDER "ORDER BY accuracy DESC NULLS LAST, loss ASC NULLS LAST, round DESC LIMIT 1"

/* The blob of a row: known, clients, the bins, and as many values as there were when it was written. */
struct measures_head {
        uint32_t known, clients, bins[MFL_SCORE_BINS];
};

static void read_measures(struct mfl_db_row *row, int column, struct mfl_measures *ret_measures)
{
        uint8_t blob[sizeof(struct measures_head) + sizeof ret_measures->v];
        size_t bytes = MFL_MIN(mfl_db_bytes(row, column), sizeof blob);
        struct measures_head head;
        if (bytes < sizeof head)
                return;
        mfl_db_blob(row, column, blob, bytes);
        memcpy(&head, blob, sizeof head);
        *ret_measures = (struct mfl_measures){.known = head.known, .clients = head.clients};
        memcpy(ret_measures->bins, head.bins, sizeof head.bins);
        memcpy(ret_measures->v, blob + sizeof head, bytes - sizeof head);
}

static size_t write_measures(const struct mfl_measures *measures,
        uint8_t blob[sizeof(struct measures_head) + sizeof(double) * MFL_MEASURES])
{
        struct measures_head head = {.known = measures->known, .clients = measures->clients};
        memcpy(head.bins, measures->bins, sizeof head.bins);
        memcpy(blob, &head, sizeof head);
        memcpy(blob + sizeof head, measures->v, sizeof measures->v);
        return sizeof head + sizeof measures->v;
}

static void read_metrics(struct mfl_db_row *row, int column, struct mfl_metrics *ret_metrics)
{
        struct mfl_metrics metrics = {0};
        size_t bytes = MFL_MIN(mfl_db_bytes(row, column + 1), sizeof metrics.v);
        mfl_strcpy(metrics.names, sizeof metrics.names, mfl_db_text(row, column));
        mfl_db_blob(row, column + 1, metrics.v, bytes);
        metrics.n = (uint32_t)(bytes / sizeof metrics.v[0]);
        *ret_metrics = metrics;
}

static void read_round(struct mfl_db_row *row, struct mfl_store_round *round)
{
        *round = (struct mfl_store_round){
                .record =
                        {
                                .round = (uint32_t)mfl_db_int(row, 0),
                                .attempt = (uint32_t)mfl_db_int(row, 1),
                                .evaluated = mfl_db_int(row, 2) != 0,
                                .loss = mfl_db_double(row, 3),
                                .accuracy = mfl_db_double(row, 4),
                                .train_loss = mfl_db_double(row, 5),
                                .train_accuracy = mfl_db_double(row, 6),
                                .eval_samples = (uint64_t)mfl_db_int(row, 7),
                                .samples = (uint64_t)mfl_db_int(row, 8),
                                .weight = (uint64_t)mfl_db_int(row, 9),
                                .clients = (uint32_t)mfl_db_int(row, 10),
                                .clients_rejected = (uint32_t)mfl_db_int(row, 11),
                                .daemons = (uint32_t)mfl_db_int(row, 12),
                                .started_ms = (uint64_t)mfl_db_int(row, 13),
                                .ended_ms = (uint64_t)mfl_db_int(row, 14),
                        },
                .bytes_up = (uint64_t)mfl_db_int(row, 16),
                .bytes_down = (uint64_t)mfl_db_int(row, 17),
                .committed_ms = (uint64_t)mfl_db_int(row, 18),
                .file.bytes = (uint64_t)mfl_db_int(row, 21),
                .kept = mfl_db_int(row, 22) != 0,
                .bytes_up_alone = (uint64_t)mfl_db_int(row, 23),
                .bytes_down_alone = (uint64_t)mfl_db_int(row, 24),
                .frozen.bytes = (uint64_t)mfl_db_int(row, 27),
                .states_lost = (uint32_t)mfl_db_int(row, 32),
        };
        round->record.clamped = (uint64_t)mfl_db_int(row, 31);
        round->record.mean_iou = mfl_db_double(row, 28);
        round->record.has_mean_iou = !isnan(round->record.mean_iou);
        if (!round->record.has_mean_iou)
                round->record.mean_iou = 0;
        round->record.has_virtual = !mfl_db_is_null(row, 30);
        round->record.virtual_start_us = (uint64_t)mfl_db_int(row, 29);
        round->record.virtual_end_us = (uint64_t)mfl_db_int(row, 30);
        read_measures(row, 34, &round->record.measures);
        mfl_db_blob(row, 15, round->record.digest, MFL_DIGEST_BYTES);
        mfl_strcpy(round->file.name, sizeof round->file.name, mfl_db_text(row, 19));
        mfl_db_blob(row, 20, round->file.sha256, sizeof round->file.sha256);
        mfl_strcpy(round->frozen.name, sizeof round->frozen.name, mfl_db_text(row, 25));
        mfl_strcpy(round->choice, sizeof round->choice, mfl_db_text(row, 33));
        if (!mfl_db_is_null(row, 35))
                read_metrics(row, 35, &round->metrics);
        mfl_db_blob(row, 26, round->frozen.sha256, sizeof round->frozen.sha256);
}

static int insert_round(
        struct mfl_store *store, const char *id, const struct mfl_store_round *round, struct mfl_error *err)
{
        const struct mfl_round_record *rec = &round->record;
        uint8_t measures[sizeof(struct measures_head) + sizeof rec->measures.v];
        size_t measures_bytes = write_measures(&rec->measures, measures);
        return mfl_db_run(store->db, err,
                "INSERT OR REPLACE INTO rounds (job, " MFL_STORE_ROUND_COLUMNS
                ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, "
                "?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, 1, ?24, ?25, ?26, "
                "?27, ?28, ?29, CASE WHEN ?32 THEN ?30 END, CASE WHEN ?32 THEN ?31 END, ?33, ?34, ?35, ?36, "
                "CASE "
                "WHEN ?37 <> '' THEN ?37 END, ?38)",
                "tiiiddddiiiiiiiibiiitbiiitbidiiiiitbtb", id, (int64_t)rec->round, (int64_t)rec->attempt,
                (int64_t)rec->evaluated, rec->loss, rec->accuracy, rec->train_loss, rec->train_accuracy,
                (int64_t)rec->eval_samples, (int64_t)rec->samples, (int64_t)rec->weight,
                (int64_t)rec->clients, (int64_t)rec->clients_rejected, (int64_t)rec->daemons,
                (int64_t)rec->started_ms, (int64_t)rec->ended_ms, (const void *)rec->digest,
                sizeof rec->digest, (int64_t)round->bytes_up, (int64_t)round->bytes_down,
                (int64_t)round->committed_ms, round->file.name, (const void *)round->file.sha256,
                sizeof round->file.sha256, (int64_t)round->file.bytes, (int64_t)round->bytes_up_alone,
                (int64_t)round->bytes_down_alone, round->frozen.name, (const void *)round->frozen.sha256,
                sizeof round->frozen.sha256, (int64_t)round->frozen.bytes,
                rec->has_mean_iou ? rec->mean_iou : (double)NAN, (int64_t)rec->virtual_start_us,
                (int64_t)rec->virtual_end_us, (int64_t)rec->has_virtual, (int64_t)rec->clamped,
                (int64_t)round->states_lost, round->choice,
                rec->measures.known ? (const void *)measures : NULL, measures_bytes, round->metrics.names,
                round->metrics.n ? (const void *)round->metrics.v : NULL,
                round->metrics.n * sizeof round->metrics.v[0]);
}

/* ---- lists of rounds ---- */

struct rounds_reader {
        struct mfl_store_rounds rounds;
        uint32_t room;
};

static int on_round(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct rounds_reader *reader = user;
        if (reader->rounds.n == reader->room) {
                uint32_t room = reader->room ? 2 * reader->room : 16;
                struct mfl_store_round *grown = mfl_realloc(reader->rounds.v, room * sizeof *grown);
                if (!grown)
                        return mfl_fail_memory(err, room * sizeof *grown, "the list of rounds");
                reader->rounds.v = grown;
                reader->room = room;
        }
        read_round(row, &reader->rounds.v[reader->rounds.n++]);
        return 0;
}

void mfl_store_rounds_deinit(struct mfl_store_rounds *rounds)
{
        free(rounds->v);
        *rounds = (struct mfl_store_rounds){0};
}

static int list_rounds(struct mfl_store *store, const char *sql, const char *id, uint32_t after,
        uint32_t limit, struct mfl_store_rounds *ret_rounds, struct mfl_error *err)
{
        struct rounds_reader reader = {{0}};
        mfl_store_lock(store);
        int r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_query(store->db, on_round, &reader, err, sql, "tii", id, (int64_t)after,
                        limit ? (int64_t)limit : (int64_t)-1);
        mfl_store_unlock(store);
        if (r)
                mfl_store_rounds_deinit(&reader.rounds);
        else
                *ret_rounds = reader.rounds;
        return r;
}

int mfl_store_round_list(struct mfl_store *store, const char *id, uint32_t after, uint32_t limit,
        struct mfl_store_rounds *ret_rounds, struct mfl_error *err)
{
        return list_rounds(store,
                "SELECT * FROM (SELECT " MFL_STORE_ROUND_COLUMNS
                " FROM rounds WHERE job = ?1 AND round > ?2 AND "
                "superseded = 0 ORDER BY round DESC LIMIT ?3) ORDER BY round",
                id, after, limit, ret_rounds, err);
}

int mfl_store_round_page(struct mfl_store *store, const char *id, uint32_t after, uint32_t limit,
        struct mfl_store_rounds *ret_rounds, struct mfl_error *err)
{
        return list_rounds(store,
                "SELECT " MFL_STORE_ROUND_COLUMNS
                " FROM rounds WHERE job = ?1 AND round > ?2 AND superseded = 0 "
                "ORDER BY round LIMIT ?3",
                id, after, limit, ret_rounds, err);
}

/* Every round whose file is kept, ascending. Under the mutex. */
static int list_kept(
        struct mfl_store *store, const char *id, struct mfl_store_rounds *ret_rounds, struct mfl_error *err)
{
        struct rounds_reader reader = {{0}};
        int r = mfl_db_query(store->db, on_round, &reader, err,
                "SELECT " MFL_STORE_ROUND_COLUMNS
                " FROM rounds WHERE job = ?1 AND kept = 1 AND superseded = 0 ORDER BY round",
                "t", id);
        if (r)
                mfl_store_rounds_deinit(&reader.rounds);
        else
                *ret_rounds = reader.rounds;
        return r;
}

static int on_single(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        read_round(row, user);
        return 0;
}

/* record.round of the result stays 0 when there is none. Under the mutex. */
static int find_round(struct mfl_store *store, const char *id, int64_t which, bool kept_only,
        struct mfl_store_round *round, struct mfl_error *err)
{
        const char *sql = "SELECT " MFL_STORE_ROUND_COLUMNS
                          " FROM rounds WHERE job = ?1 AND superseded = 0 AND kept >= ?2 "
                          "AND round = ?3";
        if (which == MFL_STORE_NEWEST)
                sql = "SELECT " MFL_STORE_ROUND_COLUMNS
                      " FROM rounds WHERE job = ?1 AND superseded = 0 AND kept >= ?2 "
                      "AND ?3 = -1 ORDER BY round DESC LIMIT 1";
        else if (which == MFL_STORE_BEST)
                sql = "SELECT " MFL_STORE_ROUND_COLUMNS
                      " FROM rounds WHERE job = ?1 AND superseded = 0 AND kept >= ?2 "
                      "AND ?3 = -2 AND evaluated " BEST_ORDER;
        else if (which == MFL_STORE_EVALUATED)
                sql = "SELECT " MFL_STORE_ROUND_COLUMNS
                      " FROM rounds WHERE job = ?1 AND superseded = 0 AND kept >= ?2 "
                      "AND ?3 = -3 AND evaluated ORDER BY round DESC LIMIT 1";
        return mfl_db_query(store->db, on_single, round, err, sql, "tii", id, (int64_t)kept_only, which);
}

int mfl_store_round_get(struct mfl_store *store, const char *id, int64_t which, bool kept_only,
        struct mfl_store_round *ret_round, struct mfl_error *err)
{
        struct mfl_store_round round = {0};
        mfl_store_lock(store);
        int r = mfl_store_check_job(store, id, err);
        if (!r)
                r = find_round(store, id, which, kept_only, &round, err);
        mfl_store_unlock(store);
        if (!r && !round.record.round && kept_only)
                r = mfl_fail(err, MFL_NOT_FOUND,
                        "job %s: no such round, or its model is no longer kept; 'mfl models %s' lists the "
                        "models",
                        id, id);
        else if (!r && !round.record.round)
                r = mfl_fail(err, MFL_NOT_FOUND, "job %s: no such round", id);
        if (!r)
                *ret_round = round;
        return r;
}

/* ---- commit ---- */

static int on_registered(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(bool *)user = true;
        return 0;
}

/* Whether a version of a model is this round (server/models/models.h). */
static int is_registered(
        struct mfl_store *store, const char *id, uint32_t round, bool *ret_registered, struct mfl_error *err)
{
        *ret_registered = false;
        return mfl_db_query(store->db, on_registered, ret_registered, err,
                "SELECT 1 FROM model_versions WHERE job = ?1 AND round = ?2 LIMIT 1", "ti", id,
                (int64_t)round);
}

/* Clears `kept` in the rows that retention drops, and in *rounds. The best round is among the kept ones, because it
 * is always kept. */
static int retain(struct mfl_store *store, const char *id, uint32_t keep, struct mfl_store_rounds *rounds,
        struct mfl_error *err)
{
        struct mfl_store_round best = {0};
        int r = list_kept(store, id, rounds, err);
        if (!r)
                r = find_round(store, id, MFL_STORE_BEST, true, &best, err);
        for (uint32_t i = rounds->n; i-- > 0 && !r;) {
                struct mfl_store_round *round = &rounds->v[i];
                bool newest = i + 1 == rounds->n;
                if (newest || round->record.round == best.record.round)
                        continue;
                if (keep) {
                        keep--;
                        continue;
                }
                bool registered = false;
                r = is_registered(store, id, round->record.round, &registered, err);
                if (r || registered)
                        continue;
                r = mfl_db_run(store->db, err, "UPDATE rounds SET kept = 0 WHERE job = ?1 AND round = ?2",
                        "ti", id, (int64_t)round->record.round);
                round->kept = false;
        }
        return r;
}

int mfl_store_commit(struct mfl_store *store, const char *id, struct mfl_store_round *round,
        const struct mfl_store_nodes *nodes, uint32_t keep, struct mfl_error *err)
{
        mfl_assert(round->record.round > 0);
        struct mfl_store_rounds rounds = {0};
        struct mfl_store_round row = *round;
        row.committed_ms = mfl_store_unix_ms();
        row.kept = true;
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_store_check_job(store, id, err);
        if (!r)
                r = insert_round(store, id, &row, err);
        if (!r)
                r = mfl_store_node_rows(store, id, row.record.round, nodes, err);
        if (!r && row.states)
                r = mfl_store_state_rows(store, id, row.states, err);
        if (!r && row.states && row.states_file.name[0])
                r = mfl_store_states_row(store, id, &row.states_file, err);
        if (!r)
                r = retain(store, id, keep, &rounds, err);
        if (!r)
                r = mfl_store_scores_row(store, id, &row, err);
        r = mfl_store_end(store, r, err);
        for (uint32_t i = 0; i < rounds.n && !r; i++)
                if (!rounds.v[i].kept)
                        mfl_store_unlink(store, id, rounds.v[i].file.name);
        mfl_store_rounds_deinit(&rounds);
        if (!r)
                *round = row;
        return r;
}

/* ---- resume ---- */

/* Whether a file of the round is there and intact. An unreadable file counts as missing; other failures are returned.
 */
static int verify(struct mfl_store *store, const char *id, uint32_t round, const struct mfl_store_file *file,
        bool *ret_good, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        uint8_t sha256[32];
        uint64_t bytes;
        struct mfl_error why = {{0}};
        int r = mfl_store_sha256_file(mfl_store_path(store, id, file->name, path), sha256, &bytes, &why);
        if (r && r != -ENOENT && r != -EIO)
                return mfl_fail(err, mfl_store_code(r), "%s", why.text);
        *ret_good = !r && bytes == file->bytes && !memcmp(sha256, file->sha256, sizeof sha256);
        if (!*ret_good)
                mfl_store_logf(store, id,
                        "DAMAGED CHECKPOINT: round %u is skipped; an unfinished job trains it again from an "
                        "older one: %s%s",
                        round, r ? why.text : file->name,
                        r ? "" : ": its SHA-256 is not the one that was committed");
        return 0;
}

int mfl_store_round_verify(
        struct mfl_store *store, const char *id, const struct mfl_store_round *round, struct mfl_error *err)
{
        const struct mfl_store_file *files[] = {&round->file, &round->frozen};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(files); i++) {
                bool good = true;
                int r = !files[i]->name[0] ? 0 : verify(store, id, round->record.round, files[i], &good, err);
                if (r)
                        return r;
                if (!good)
                        return mfl_fail(err, MFL_STORE_DAMAGED,
                                "%s: %s on the disk differs from the committed file: copy it from a back-up, "
                                "or use another round (mfl models %s)",
                                id, files[i]->name, id);
        }
        return 0;
}

/* Marks the rounds after `round` as superseded: for the job they never happened. */
static int supersede(struct mfl_store *store, const char *id, uint32_t round, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_db_run(store->db, err,
                "UPDATE rounds SET superseded = 1, kept = 0 WHERE job = ?1 AND round > ?2", "ti", id,
                (int64_t)round);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM round_nodes WHERE job = ?1 AND round > ?2", "ti",
                        id, (int64_t)round);
        if (!r)
                r = mfl_db_run(store->db, err, "DELETE FROM round_scores WHERE job = ?1 AND round > ?2", "ti",
                        id, (int64_t)round);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "UPDATE client_states SET slot = -1 WHERE job = ?1 AND round > ?2", "ti", id,
                        (int64_t)round);
        return mfl_store_end(store, r, err);
}

int mfl_store_resume(
        struct mfl_store *store, const char *id, struct mfl_store_resume *ret_resume, struct mfl_error *err)
{
        struct mfl_store_resume resume = {0};
        struct mfl_store_rounds rounds = {0};
        struct mfl_store_job job;
        int r = mfl_store_job_get(store, id, &job, err);
        if (r)
                return r;
        mfl_store_lock(store);
        r = list_kept(store, id, &rounds, err);
        mfl_store_unlock(store);
        for (uint32_t i = rounds.n; i-- > 0 && !r && !resume.round;) {
                const struct mfl_store_round *round = &rounds.v[i];
                bool good = false;
                r = verify(store, id, round->record.round, &round->file, &good, err);
                if (!r && good && round->frozen.name[0])
                        r = verify(store, id, round->record.round, &round->frozen, &good, err);
                resume.passed_over += !r && !good;
                if (r || !good)
                        continue;
                resume.round = round->record.round;
                resume.virtual_us = round->record.virtual_end_us;
                memcpy(resume.digest, round->record.digest, MFL_DIGEST_BYTES);
                mfl_store_path(store, id, round->file.name, resume.checkpoint_path);
                if (round->frozen.name[0])
                        mfl_store_path(store, id, round->frozen.name, resume.frozen_path);
        }
        if (!r && resume.round < job.committed)
                r = supersede(store, id, resume.round, err);
        if (!r && !resume.round && job.has_initial)
                mfl_store_path(store, id, "initial.f32", resume.initial_path);
        mfl_store_rounds_deinit(&rounds);
        mfl_store_job_deinit(&job);
        if (!r)
                *ret_resume = resume;
        return r;
}
