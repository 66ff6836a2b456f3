/* SPDX-License-Identifier: Apache-2.0 */
/* Rows beside those of rounds: the network traffic of each round and node, the places of clients' states, releases of noisy sums, and the lists of
 * evaluations. */
#include "server/store/store_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"

#define PIECE_BYTES ((size_t)1 << 20)

int mfl_store_node_rows(struct mfl_store *store, const char *id, uint32_t round,
        const struct mfl_store_nodes *nodes, struct mfl_error *err)
{
        int64_t oldest = (int64_t)round - MFL_STORE_NODE_ROUNDS_MAX + 1;
        int r = mfl_db_run(store->db, err,
                "DELETE FROM round_nodes WHERE job = ?1 AND (round < ?2 OR round = ?3)", "tii", id, oldest,
                (int64_t)round);
        for (uint32_t i = 0; i < nodes->n && !r; i++) {
                const struct mfl_store_node *n = &nodes->v[i];
                r = mfl_db_run(store->db, err,
                        "INSERT INTO round_nodes (job, round, node, daemons, up, down, up_alone, down_alone) "
                        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                        "titiiiii", id, (int64_t)round, n->node, (int64_t)n->daemons, (int64_t)n->up,
                        (int64_t)n->down, (int64_t)n->up_alone, (int64_t)n->down_alone);
        }
        return r;
}

struct nodes_reader {
        struct mfl_store_nodes nodes;
        uint32_t room;
};

static int on_node(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct nodes_reader *reader = user;
        if (reader->nodes.n == reader->room) {
                uint32_t room = reader->room ? 2 * reader->room : 16;
                struct mfl_store_node *grown = mfl_realloc(reader->nodes.v, room * sizeof *grown);
                if (!grown)
                        return mfl_fail_memory(err, room * sizeof *grown, "the list of nodes");
                reader->nodes.v = grown;
                reader->room = room;
        }
        struct mfl_store_node *node = &reader->nodes.v[reader->nodes.n++];
        *node = (struct mfl_store_node){
                .round = (uint32_t)mfl_db_int(row, 0),
                .daemons = (uint32_t)mfl_db_int(row, 2),
                .up = (uint64_t)mfl_db_int(row, 3),
                .down = (uint64_t)mfl_db_int(row, 4),
                .up_alone = (uint64_t)mfl_db_int(row, 5),
                .down_alone = (uint64_t)mfl_db_int(row, 6),
        };
        mfl_strcpy(node->node, sizeof node->node, mfl_db_text(row, 1));
        return 0;
}

/* The newest rounds that have at most `limit` rows together. */
int mfl_store_node_list(struct mfl_store *store, const char *id, uint32_t limit,
        struct mfl_store_nodes *ret_nodes, struct mfl_error *err)
{
        struct nodes_reader reader = {{0}};
        mfl_store_lock(store);
        int r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_query(store->db, on_node, &reader, err,
                        "SELECT round, node, daemons, up, down, up_alone, down_alone FROM round_nodes "
                        "WHERE job = ?1 AND round IN (SELECT round FROM (SELECT round, "
                        "sum(count(*)) OVER (ORDER BY round DESC) AS total FROM round_nodes WHERE job = ?1 "
                        "GROUP BY round) WHERE total <= ?2) ORDER BY round, node",
                        "ti", id, (int64_t)limit);
        mfl_store_unlock(store);
        if (r)
                mfl_store_nodes_deinit(&reader.nodes);
        else
                *ret_nodes = reader.nodes;
        return r;
}

void mfl_store_nodes_deinit(struct mfl_store_nodes *nodes)
{
        free(nodes->v);
        *nodes = (struct mfl_store_nodes){0};
}

/* ---- lists of evaluations ---- */

int mfl_store_scores_row(
        struct mfl_store *store, const char *id, const struct mfl_store_round *round, struct mfl_error *err)
{
        int r = 0;
        if (round->scores)
                r = mfl_db_run(store->db, err,
                        "INSERT OR REPLACE INTO round_scores (job, round, body) VALUES (?1, ?2, ?3)", "tib",
                        id, (int64_t)round->record.round, round->scores, round->scores_bytes);
        if (r)
                return r;
        return mfl_db_run(store->db, err,
                "DELETE FROM round_scores WHERE job = ?1 AND round NOT IN (SELECT round FROM rounds WHERE "
                "job = ?1 AND kept = 1)",
                "t", id);
}

struct reader {
        void *body;
        size_t bytes;
};

static int on_scores(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct reader *reader = user;
        reader->bytes = mfl_db_bytes(row, 0);
        reader->body = mfl_malloc(reader->bytes);
        if (!reader->body)
                return mfl_fail_memory(err, reader->bytes, "the scores of clients");
        mfl_db_blob(row, 0, reader->body, reader->bytes);
        return 0;
}

int mfl_store_scores_get(
        struct mfl_store *store, const char *id, void **ret_scores, size_t *ret_bytes, struct mfl_error *err)
{
        struct reader reader = {0};
        mfl_store_lock(store);
        int r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_query(store->db, on_scores, &reader, err,
                        "SELECT body FROM round_scores WHERE job = ?1 ORDER BY round DESC LIMIT 1", "t", id);
        mfl_store_unlock(store);
        if (r) {
                free(reader.body);
                return r;
        }
        *ret_scores = reader.body;
        *ret_bytes = reader.bytes;
        return 0;
}

/* ---- clients' states ---- */

int mfl_store_state_rows(
        struct mfl_store *store, const char *id, const struct mfl_store_states *states, struct mfl_error *err)
{
        int r = 0;
        for (uint32_t i = 0; i < states->n && !r; i++) {
                const struct mfl_store_state *s = &states->v[i];
                if (s->slot == MFL_STORE_STATE_LOST)
                        r = mfl_db_run(store->db, err,
                                "DELETE FROM client_states WHERE job = ?1 AND client = ?2", "ti", id,
                                (int64_t)s->client);
                else
                        r = mfl_db_run(store->db, err,
                                "INSERT OR REPLACE INTO client_states (job, client, round, slot, crc, "
                                "site_sha256) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                                "tiiiib", id, (int64_t)s->client, (int64_t)s->round, (int64_t)s->slot,
                                (int64_t)s->crc, s->at_site ? s->sha256 : NULL,
                                s->at_site ? sizeof s->sha256 : 0);
        }
        return r;
}

struct states_reader {
        struct mfl_store_states states;
        uint32_t room;
};

static int on_state(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct states_reader *reader = user;
        if (reader->states.n == reader->room) {
                uint32_t room = reader->room ? 2 * reader->room : 64;
                struct mfl_store_state *grown = mfl_realloc(reader->states.v, room * sizeof *grown);
                if (!grown)
                        return mfl_fail_memory(err, room * sizeof *grown, "the list of clients' states");
                reader->states.v = grown;
                reader->room = room;
        }
        int64_t slot = mfl_db_int(row, 2);
        bool fits = slot >= 0 && slot < (int64_t)MFL_STORE_STATE_LOST;
        reader->states.v[reader->states.n++] = (struct mfl_store_state){
                .client = (uint64_t)mfl_db_int(row, 0),
                .round = (uint32_t)mfl_db_int(row, 1),
                .slot = fits ? (uint32_t)slot : MFL_STORE_STATE_LOST,
                .crc = (uint32_t)mfl_db_int(row, 3),
        };
        struct mfl_store_state *state = &reader->states.v[reader->states.n - 1];
        state->at_site = !mfl_db_is_null(row, 4);
        mfl_db_blob(row, 4, state->sha256, sizeof state->sha256);
        return 0;
}

/* As SQLite orders them: signed. */
int mfl_store_state_list(
        struct mfl_store *store, const char *id, struct mfl_store_states *ret_states, struct mfl_error *err)
{
        struct states_reader reader = {{0}};
        mfl_store_lock(store);
        int r = mfl_store_check_job(store, id, err);
        if (!r)
                r = mfl_db_query(store->db, on_state, &reader, err,
                        "SELECT client, round, slot, crc, site_sha256 FROM client_states WHERE job = ?1 "
                        "ORDER BY client",
                        "t", id);
        mfl_store_unlock(store);
        if (r)
                mfl_store_states_deinit(&reader.states);
        else
                *ret_states = reader.states;
        return r;
}

void mfl_store_states_deinit(struct mfl_store_states *states)
{
        free(states->v);
        *states = (struct mfl_store_states){0};
}

/* ---- the states of clients, for the cluster ---- */

/* Hashes what it copies. */
static int copy_fd(int from, struct mfl_fs_file *to, const char *path, struct mfl_store_file *file,
        struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *piece = mfl_malloc(PIECE_BYTES);
        struct mfl_sha256 sha = {0};
        ssize_t n = 1;
        int r = piece ? mfl_sha256_init(&sha, err) : mfl_fail_memory(err, PIECE_BYTES, "copying a file");
        while (!r && n > 0) {
                n = read(from, piece, PIECE_BYTES);
                if (n < 0)
                        r = mfl_fail_errno(err, "read %s", path);
                if (n <= 0)
                        break;
                file->bytes += (uint64_t)n;
                r = mfl_sha256_update(&sha, piece, (size_t)n, err);
                if (!r)
                        r = mfl_fs_write(to, piece, (size_t)n, err);
        }
        if (!r)
                r = mfl_sha256_final(&sha, file->sha256, err);
        mfl_sha256_deinit(&sha);
        return r;
}

static int copy_file(const char *from, const char *to, struct mfl_store_file *ret_file, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        int fd = open(from, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return mfl_fail_errno(err, "open %s", from);
        int r = mfl_fs_begin(&file, to, err);
        if (!r)
                r = copy_fd(fd, &file, from, ret_file, err);
        if (!r)
                r = mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        close(fd);
        return r;
}

#define STATES_COPY "states.copy"

/* A start empties that directory. */
static void copy_path(struct mfl_store *store, const char *id, char path[MFL_STORE_PATH_BYTES])
{
        snprintf(path, MFL_STORE_PATH_BYTES, "%.3900s/uploads/states-%.64s", store->dir, id);
}

static int copy_states(
        struct mfl_store *store, const char *id, struct mfl_store_file *ret_file, struct mfl_error *err)
{
        char from[MFL_STORE_PATH_BYTES], to[MFL_STORE_PATH_BYTES];
        *ret_file = (struct mfl_store_file){STATES_COPY};
        copy_path(store, id, to);
        return mfl_store_code(
                copy_file(mfl_store_path(store, id, MFL_STORE_STATES_FILE, from), to, ret_file, err));
}

int mfl_store_states_copy(
        struct mfl_store *store, const char *id, struct mfl_store_file *ret_file, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_store_file file = {""};
        int r = 0;
        if (store->cluster && !access(mfl_store_path(store, id, MFL_STORE_STATES_FILE, path), F_OK))
                r = copy_states(store, id, &file, err);
        if (!r)
                *ret_file = file;
        return r;
}

int mfl_store_given(
        struct mfl_store *store, const char *id, const struct mfl_store_file *file, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        const bool copy = !strcmp(file->name, STATES_COPY);
        if (!store->cluster || !file->name[0])
                return 0;
        if (copy)
                copy_path(store, id, path);
        else
                mfl_store_path(store, id, file->name, path);
        int r = store->cluster->blob(store->cluster->user, path, file->sha256, file->bytes, true, err);
        if (!r && copy)
                unlink(path);
        return r;
}

void mfl_store_states_drop(struct mfl_store *store, const char *id)
{
        char path[MFL_STORE_PATH_BYTES];
        copy_path(store, id, path);
        unlink(path);
}

int mfl_store_states_row(
        struct mfl_store *store, const char *id, const struct mfl_store_file *file, struct mfl_error *err)
{
        return mfl_db_run(store->db, err,
                "INSERT OR REPLACE INTO state_files (job, sha256, bytes) VALUES (?1, ?2, ?3)", "tbi", id,
                (const void *)file->sha256, sizeof file->sha256, (int64_t)file->bytes);
}

int mfl_store_give_states(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_store_file file;
        int r = copy_states(store, id, &file, err);
        copy_path(store, id, path);
        if (!r)
                r = mfl_store_give(store, path, file.sha256, file.bytes, err);
        unlink(path);
        return r ? r : mfl_store_states_row(store, id, &file, err);
}

/* ---- releases ---- */

static int on_release_count(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_released *released = user;
        released->n = (uint64_t)mfl_db_int(row, 0);
        released->beyond = (uint64_t)mfl_db_int(row, 1);
        return 0;
}

static int count_releases(struct mfl_store *store, const char *id, uint32_t round,
        struct mfl_store_released *ret_released, struct mfl_error *err)
{
        return mfl_db_query(store->db, on_release_count, ret_released, err,
                "SELECT count(*), count(DISTINCT CASE WHEN round > ?2 THEN round END) FROM releases WHERE "
                "job = ?1",
                "ti", id, (int64_t)round);
}

int mfl_store_released(struct mfl_store *store, const char *id, uint32_t round,
        struct mfl_store_released *ret_released, struct mfl_error *err)
{
        mfl_store_lock(store);
        int r = count_releases(store, id, round, ret_released, err);
        mfl_store_unlock(store);
        return r;
}

static int on_unlike(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(bool *)user = !mfl_db_int(row, 0);
        return 0;
}

int mfl_store_released_alike(struct mfl_store *store, const char *id, const uint8_t *begin, size_t n,
        bool *ret_alike, struct mfl_error *err)
{
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_unlike, ret_alike, err,
                "SELECT count(*) FROM releases WHERE job = ?1 AND substr(digest, 1, ?3) <> ?2", "tbi", id,
                (const void *)begin, n, (int64_t)n);
        mfl_store_unlock(store);
        return r;
}

int mfl_store_release(struct mfl_store *store, const char *id, uint32_t round,
        const uint8_t digest[MFL_DIGEST_BYTES], uint64_t n_max, uint64_t *ret_n, struct mfl_error *err)
{
        struct mfl_store_released before = {0}, after = {0};
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = count_releases(store, id, round, &before, err);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "INSERT OR IGNORE INTO releases (job, round, digest) VALUES (?1, ?2, ?3)", "tib", id,
                        (int64_t)round, digest, (size_t)MFL_DIGEST_BYTES);
        if (!r)
                r = count_releases(store, id, round, &after, err);
        if (!r && after.n > MFL_MAX(n_max, before.n))
                r = mfl_fail(err, MFL_BUSY, "%s: release %llu of %llu", id, (unsigned long long)after.n,
                        (unsigned long long)n_max);
        r = mfl_store_end(store, r, err);
        if (!r)
                *ret_n = after.n;
        return r;
}

/* ---- what jobs have released of each data set, also jobs that are deleted ---- */

int mfl_store_spend(struct mfl_store *store, const struct mfl_store_spent *spent, struct mfl_error *err)
{
        int r = mfl_store_begin(store, err);
        if (r)
                return r;
        r = mfl_db_run(store->db, err,
                "INSERT INTO spent (data, job, sigma, rate, releases) VALUES (?1, ?2, ?3, ?4, ?5) "
                "ON CONFLICT (data, job) DO UPDATE SET releases = max(releases, excluded.releases)",
                "ttddi", spent->data, spent->job, spent->sigma, spent->rate, (int64_t)spent->releases);
        return mfl_store_end(store, r, err);
}

static int on_spent(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store_spents *list = user;
        if (list->n == list->room) {
                uint32_t room = list->room ? 2 * list->room : 16;
                struct mfl_store_spent *v = mfl_realloc(list->v, room * sizeof *v);
                if (!v)
                        return mfl_fail_memory(err, room * sizeof *v, "a ledger");
                list->v = v;
                list->room = room;
        }
        struct mfl_store_spent *spent = &list->v[list->n];
        bool fits = mfl_strcpy(spent->data, sizeof spent->data, mfl_db_text(row, 0)) &&
                    mfl_strcpy(spent->job, sizeof spent->job, mfl_db_text(row, 1));
        spent->sigma = mfl_db_double(row, 2);
        spent->rate = mfl_db_double(row, 3);
        spent->releases = (uint64_t)mfl_db_int(row, 4);
        if (!fits || !(spent->sigma > 0) || !(spent->rate > 0 && spent->rate <= 1) || !spent->releases)
                return mfl_fail(err, -EIO, "a row of spent privacy is not one");
        list->n++;
        return 0;
}

int mfl_store_spent_list(
        struct mfl_store *store, const char *data, struct mfl_store_spents *ret_list, struct mfl_error *err)
{
        struct mfl_store_spents list = {0};
        mfl_store_lock(store);
        int r = mfl_db_query(store->db, on_spent, &list, err,
                "SELECT data, job, sigma, rate, releases FROM spent WHERE data = ?1 OR ?1 = '' "
                "ORDER BY data, job",
                "t", data);
        mfl_store_unlock(store);
        if (r)
                free(list.v);
        else
                *ret_list = list;
        return r;
}

void mfl_store_spents_deinit(struct mfl_store_spents *list)
{
        free(list->v);
        *list = (struct mfl_store_spents){0};
}
