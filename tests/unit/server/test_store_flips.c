/* SPDX-License-Identifier: Apache-2.0 */
/* A state directory whose disk lies: bits flip in the database, its log, the count and the files. Each time
 * the store has what was committed, or refuses, or warns; no checkpoint is ever lost. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "server/store/store.h"
#include "tests/unit/server/state_bed.h"

/* ---- what a store shows ---- */

static void dump_rounds(struct mfl_store *store, const char *id, FILE *out)
{
        struct mfl_error err = {{0}};
        struct mfl_store_rounds rounds;
        struct mfl_store_nodes nodes;
        struct mfl_store_resume resume;
        char hex[MFL_SHA256_HEX_BYTES];
        state_ok(mfl_store_round_list(store, id, 0, 0, &rounds, &err), &err);
        for (uint32_t i = 0; i < rounds.n; i++) {
                const struct mfl_store_round *r = &rounds.v[i];
                mfl_hex(r->record.digest, MFL_DIGEST_BYTES, hex);
                fprintf(out, "%s %u %.17g %.17g %d %s %s ", id, r->record.round, r->record.accuracy,
                        r->record.loss, r->kept, r->file.name, hex);
                mfl_hex(r->file.sha256, 32, hex);
                fprintf(out, "%s\n", hex);
        }
        mfl_store_rounds_deinit(&rounds);
        state_ok(mfl_store_node_list(store, id, 100, &nodes, &err), &err);
        for (uint32_t i = 0; i < nodes.n; i++)
                fprintf(out, "%u %s %" PRIu64 "\n", nodes.v[i].round, nodes.v[i].node, nodes.v[i].up);
        mfl_store_nodes_deinit(&nodes);
        if (!strcmp(id, DONE))
                return;
        state_ok(mfl_store_resume(store, id, &resume, &err), &err);
        mfl_hex(resume.digest, MFL_DIGEST_BYTES, hex);
        fprintf(out, "resumes at %u %s %d\n", resume.round, hex, resume.initial_path[0] != 0);
}

static void dump_job(struct mfl_store *store, const char *id, FILE *out)
{
        struct mfl_error err = {{0}};
        struct mfl_store_job job;
        struct mfl_store_lines lines;
        struct mfl_store_partitions partitions;
        state_ok(mfl_store_job_get(store, id, &job, &err), &err);
        fprintf(out, "%s %s %d '%s' %s %d %s\n", job.id, job.name, job.state, job.reason, job.owner,
                job.has_initial, job.text);
        mfl_store_job_deinit(&job);
        dump_rounds(store, id, out);
        state_ok(mfl_store_log_list(store, id, 0, 100, &lines, &err), &err);
        for (uint32_t i = 0; i < lines.n; i++) /* one that was changed says so */
                fprintf(out, "%s\n",
                        strstr(lines.v[i].text, "(this line was changed") ? "the first line"
                                                                          : lines.v[i].text);
        mfl_store_lines_deinit(&lines);
        state_ok(mfl_store_partition_list(store, id, &partitions, &err), &err);
        for (uint32_t i = 0; i < partitions.n; i++)
                fprintf(out, "%.*s\n", (int)partitions.v[i].bytes, (const char *)partitions.v[i].body);
        mfl_store_partitions_deinit(&partitions);
}

/* Heap. */
static char *dump(struct mfl_store *store)
{
        struct mfl_error err = {{0}};
        struct mfl_store_jobs jobs;
        struct mfl_store_rules rules;
        struct mfl_store_names names;
        struct mfl_store_audits audits;
        char *text = NULL, id[MFL_JOB_ID_BYTES] = "";
        size_t bytes;
        FILE *out = open_memstream(&text, &bytes);
        state_ok(mfl_store_job_list(store, false, &jobs, &err), &err);
        for (uint32_t i = 0; i < jobs.n; i++)
                dump_job(store, jobs.v[i].id, out);
        mfl_store_jobs_deinit(&jobs);
        state_ok(mfl_store_rules(store, &rules, &err), &err);
        for (uint32_t i = 0; i < rules.n; i++)
                fprintf(out, "%s %d %s\n", rules.v[i].pattern, rules.v[i].verdict, rules.v[i].reason);
        mfl_store_rules_deinit(&rules);
        state_ok(mfl_store_drained(store, &names, &err), &err);
        for (uint32_t i = 0; i < names.n; i++)
                fprintf(out, "%s\n", names.v[i]);
        mfl_store_names_deinit(&names);
        state_ok(mfl_store_audit_list(store, 100, &audits, &err), &err);
        for (uint32_t i = 0; i < audits.n; i++)
                fprintf(out, "%s %s %s\n", audits.v[i].who, audits.v[i].action, audits.v[i].object);
        free(audits.v);
        int r = mfl_store_job_add(store, "one", "training: {lr: 0.05}", "token", "ann", NULL, id, &err);
        fprintf(out, "the token gives %d %s\n", r, id);
        fclose(out);
        return text;
}
/* ---- the sweep ---- */

struct sweep {
        struct state_bed bed;
        char *shown; /* what an undamaged one shows */
        unsigned refused, warned, same, found;
};

static void sweep_init(struct sweep *s)
{
        struct mfl_error err = {{0}};
        struct mfl_store *store = NULL;
        *s = (struct sweep){.refused = 0};
        state_bed_init(&s->bed);
        state_ok(mfl_store_open(s->bed.f.dir, &store, &err), &err);
        assert_null(mfl_store_warning(store, 0));
        s->shown = dump(store);
        mfl_store_close(store);
}

static void sweep_deinit(struct sweep *s)
{
        free(s->shown);
        state_bed_deinit(&s->bed);
}

/* One copy with one bit of `file` flipped: what the check says, then what the store does. */
static void try_flip(struct sweep *s, const char *from, const char *file, off_t byte, int bit)
{
        struct mfl_error err = {{0}};
        struct mfl_store *store = NULL;
        char dir[100];
        snprintf(dir, sizeof dir, "%s.try", s->bed.f.dir);
        state_copy(from, dir);
        state_flip(dir, file, byte, bit);
        const bool found = state_check_finds(dir);
        s->found += found;
        int r = mfl_store_open(dir, &store, &err);
        bool wrong = false;
        if (r) {
                s->refused++;
        } else {
                char *shown = dump(store);
                const bool same = !strcmp(shown, s->shown), warned = mfl_store_warning(store, 0) != NULL;
                if (!same && !warned)
                        print_error("%s", shown);
                wrong = !same && !warned;
                s->same += same;
                s->warned += warned;
                if (!same && !found)
                        wrong = true;
                free(shown);
        }
        mfl_store_close(store);
        if (state_checkpoints(dir) < STATE_CHECKPOINTS || wrong || (r && !found))
                fail_msg("%s, byte %lld, bit %d: %s%s, %u of %u checkpoints are there; the check says %s",
                        file, (long long)byte, bit, r ? "refused: " : "another state, in silence", err.text,
                        state_checkpoints(dir), STATE_CHECKPOINTS, found ? "damaged" : "sound");
        fixture_remove(dir);
}

static uint64_t next(uint64_t *seed)
{
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        return *seed >> 33;
}

static void flip_many(struct sweep *s, const char *from, const char *file, unsigned n)
{
        uint64_t seed = 14;
        const off_t size = state_size(from, file);
        assert_true(size > 0);
        for (unsigned i = 0; i < n; i++) {
                const off_t byte = (off_t)(next(&seed) % (uint64_t)size);
                try_flip(s, from, file, byte, (int)(next(&seed) % 8));
        }
}

/* Everything since the start is in the log. */
static void bits_of_the_log(void **state)
{
        struct sweep s;
        sweep_init(&s);
        const off_t size = state_size(s.bed.crashed, "mfl.db-wal");
        assert_true(size > 20 * 4120);
        for (off_t byte = 0; byte < 32 + 24; byte += 3)
                try_flip(&s, s.bed.crashed, "mfl.db-wal", byte, (int)byte % 8);
        try_flip(&s, s.bed.crashed, "mfl.db-wal", 100, 0); /* the one that deleted two models */
        try_flip(&s, s.bed.crashed, "mfl.db-wal", size - 1, 7);
        try_flip(&s, s.bed.crashed, "mfl.db-wal", size - 4100, 1); /* the last frame's header */
        flip_many(&s, s.bed.crashed, "mfl.db-wal", 80);
        assert_true(s.refused > 60 && !s.warned);
        sweep_deinit(&s);
}

static void bits_of_the_database(void **state)
{
        struct sweep s;
        sweep_init(&s);
        for (off_t byte = 0; byte < 108; byte++)
                try_flip(&s, s.bed.stopped, "mfl.db", byte, (int)byte % 8);
        flip_many(&s, s.bed.stopped, "mfl.db", 250);
        const off_t pages = state_size(s.bed.stopped, "mfl.db") / 4096;
        uint64_t seed = 3;
        for (off_t page = 1; page < pages; page++) /* what says where a page's cells are, and cells */
                for (int i = 0; i < 2; i++) {
                        try_flip(&s, s.bed.stopped, "mfl.db", page * 4096 + (off_t)(next(&seed) % 12),
                                (int)(next(&seed) % 8));
                        try_flip(&s, s.bed.stopped, "mfl.db", page * 4096 + 4095 - (off_t)(next(&seed) % 300),
                                (int)(next(&seed) % 8));
                }
        assert_true(s.refused > 50 && s.same > 50);
        sweep_deinit(&s);
}

static void bits_of_files(void **state)
{
        struct sweep s;
        sweep_init(&s);
        flip_many(&s, s.bed.crashed, "commits", 40);
        flip_many(&s, s.bed.stopped, "jobs/" FRESH "/initial.f32", 10);
        flip_many(&s, s.bed.stopped, "jobs/" DONE "/round-000003.safetensors", 10);
        assert_int_equal(s.found, 60);
        /* It goes on from the round before, as said in its log. */
        struct mfl_error err = {{0}};
        struct mfl_store *store = NULL;
        struct mfl_store_resume resume;
        state_flip(s.bed.stopped, "jobs/" GOING "/round-000003.safetensors", 2000, 3);
        assert_true(state_check_finds(s.bed.stopped));
        state_ok(mfl_store_open(s.bed.stopped, &store, &err), &err);
        state_ok(mfl_store_resume(store, GOING, &resume, &err), &err);
        assert_int_equal(resume.round, 2);
        assert_int_equal(resume.passed_over, 1);
        mfl_store_close(store);
        sweep_deinit(&s);
}

/* No number beside the database, as after a power cut at a bad moment: the log itself tells. */
static void a_log_alone_tells(void **state)
{
        struct sweep s;
        sweep_init(&s);
        state_remove(s.bed.crashed, "commits");
        const off_t size = state_size(s.bed.crashed, "mfl.db-wal");
        uint64_t seed = 5;
        unsigned n = 0;
        for (off_t byte = 0; byte < size / 2; byte += 1 + (off_t)(next(&seed) % 3000), n++)
                try_flip(&s, s.bed.crashed, "mfl.db-wal", byte, (int)(next(&seed) % 8));
        assert_true(n > 20);
        assert_int_equal(s.refused, n);
        /* An unfinished transaction at the end is none of that. */
        char path[400];
        struct mfl_store *store = NULL;
        struct mfl_error err = {{0}};
        state_path(s.bed.crashed, "mfl.db-wal", path);
        assert_int_equal(truncate(path, size - 5000), 0);
        state_ok(mfl_store_open(s.bed.crashed, &store, &err), &err);
        mfl_store_close(store);
        sweep_deinit(&s);
}
int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(bits_of_the_log),
                cmocka_unit_test(bits_of_the_database),
                cmocka_unit_test(bits_of_files),
                cmocka_unit_test(a_log_alone_tells),
        };
        return cmocka_run_group_tests_name("server_store_flips", tests, NULL, NULL);
}
