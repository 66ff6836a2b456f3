/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ranks share: by threads of this process over a mesh of threads. */
#include "tests/lib/test.h"
#include "kernels/mesh/mesh_memory.h"
#include "kernels/mesh/mesh_shm.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define RANKS 5u
#define NUMBERS 100000u

static char prefix[64];

static unsigned n_files(void)
{
        unsigned n = 0;
        DIR *dir = opendir(MFL_MESH_SHM_DIR);
        assert_non_null(dir);
        for (struct dirent *entry; (entry = readdir(dir));)
                n += !strncmp(entry->d_name, prefix, strlen(prefix));
        closedir(dir);
        return n;
}

struct rank {
        struct mfl_mesh_memory_options options;
        struct mfl_mesh_memory *memory;
        uint32_t first, n;
        bool wrong;
        struct mfl_error err;
        int rc;
};

/* The first of each place writes, and all of the place see that. */
static void *work(void *arg)
{
        struct rank *rank = arg;
        const struct mfl_mesh_op barrier = {.kind = MFL_MESH_BARRIER, .step = 1};
        rank->rc = mfl_mesh_memory_open(&rank->options, &rank->memory, &rank->err);
        if (rank->rc)
                return NULL;
        uint32_t *numbers = mfl_mesh_memory_data(rank->memory);
        rank->n = mfl_mesh_memory_ranks(rank->memory, &rank->first);
        for (uint32_t i = 0; rank->first == rank->options.mesh->rank && i < NUMBERS; i++)
                numbers[i] = rank->first * NUMBERS + i;
        rank->rc = mfl_mesh_run(rank->options.mesh, &barrier, 10000, NULL, &rank->err);
        for (uint32_t i = 0; i < NUMBERS; i++)
                rank->wrong |= numbers[i] != rank->first * NUMBERS + i;
        return NULL;
}

static void run(struct rank ranks[RANKS], const uint64_t place[RANKS], const char *const dir[RANKS])
{
        struct mfl_mesh *mesh[RANKS];
        pthread_t threads[RANKS];
        assert_int_equal(mfl_mesh_threads_new(RANKS, mesh, NULL), 0);
        for (uint32_t r = 0; r < RANKS; r++) {
                ranks[r] = (struct rank){.options = {.mesh = mesh[r],
                                                 .dir = dir[r],
                                                 .place = place[r],
                                                 .prefix = prefix,
                                                 .bytes = NUMBERS * sizeof(uint32_t),
                                                 .deadline_ms = 10000}};
                assert_int_equal(pthread_create(&threads[r], NULL, work, &ranks[r]), 0);
        }
        for (uint32_t r = 0; r < RANKS; r++)
                pthread_join(threads[r], NULL);
        assert_int_equal(n_files(), 0);
        for (uint32_t r = 0; r < RANKS; r++)
                mfl_mesh_close(mesh[r]);
}

static void ranks_of_a_place_share(void **state)
{
        static const uint64_t place[RANKS] = {7, 9, 7, 0, 9};
        static const char *const dir[RANKS];
        static const uint32_t first[RANKS] = {0, 1, 0, 3, 1}, n[RANKS] = {2, 2, 2, 1, 2};
        struct rank ranks[RANKS];
        run(ranks, place, dir);
        for (uint32_t r = 0; r < RANKS; r++) {
                assert_int_equal(ranks[r].rc, 0);
                assert_int_equal(ranks[r].first, first[r]);
                assert_int_equal(ranks[r].n, n[r]);
                assert_int_equal(mfl_mesh_memory_most(ranks[r].memory), 2);
                assert_false(ranks[r].wrong);
        }
        for (uint32_t r = 0; r < RANKS; r++)
                mfl_mesh_memory_close(ranks[r].memory);
}

/* A place says that ranks see one directory; where one of them does not, all hear of it. */
static void who_cannot_see_it_is_named(void **state)
{
        static const uint64_t place[RANKS] = {7, 7, 7, 7, 7};
        static const char *const dir[RANKS] = {NULL, NULL, "/tmp", NULL, NULL};
        struct rank ranks[RANKS];
        run(ranks, place, dir);
        for (uint32_t r = 0; r < RANKS; r++) {
                assert_int_equal(ranks[r].rc, MFL_INVALID);
                assert_non_null(strstr(ranks[r].err.text,
                        r == 2 ? "No such file or directory"
                               : "rank 2 of the team has no shared memory for the team's params"));
        }
}

static void a_directory_that_is_none_is_an_error(void **state)
{
        static const uint64_t place[RANKS] = {7, 7, 7, 7, 7};
        static const char *const dir[RANKS] = {"/nowhere", "/nowhere", "/nowhere", "/nowhere", "/nowhere"};
        struct rank ranks[RANKS];
        run(ranks, place, dir);
        for (uint32_t r = 0; r < RANKS; r++)
                assert_int_equal(ranks[r].rc, MFL_INVALID);
        assert_non_null(strstr(ranks[0].err.text, "a team's params of 390.6 KiB: make /nowhere/"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(ranks_of_a_place_share),
                cmocka_unit_test(who_cannot_see_it_is_named),
                cmocka_unit_test(a_directory_that_is_none_is_an_error),
        };
        snprintf(prefix, sizeof prefix, "mfl-test-%d-", (int)getpid());
        return cmocka_run_group_tests(tests, NULL, NULL);
}
