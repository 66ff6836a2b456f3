/* SPDX-License-Identifier: Apache-2.0 */
/* What sites keep of their client: it comes back by its digest alone, damage counts as nothing, and old turns go. */
#include "tests/lib/test.h"
#include "client/keep/keep.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define N 100

static char dir[] = "/tmp/test-of-mfl-keep-XXXXXX";

static struct mfl_keep keep_of(uint64_t client, const char *text)
{
        return (struct mfl_keep){.dir = dir, .job = "j-000001", .job_text = text, .client = client};
}

static void fill(float *v, int turn)
{
        for (int i = 0; i < N; i++)
                v[i] = (float)(turn * N + i);
}

static bool load(const struct mfl_keep *keep, const uint8_t *sha256, size_t n, float *to)
{
        struct mfl_error err = {""};
        bool there = true;
        if (mfl_keep_load(keep, sha256, n, to, &there, &err))
                fail_msg("%s", err.text);
        return there;
}

static void save(const struct mfl_keep *keep, int turn, uint8_t *ret_sha256)
{
        struct mfl_error err = {""};
        float v[N];
        fill(v, turn);
        if (mfl_keep_save(keep, N, v, ret_sha256, &err))
                fail_msg("%s", err.text);
}

static void folder_of_client(uint64_t client, char path[512])
{
        char states[256], wanted[32];
        snprintf(states, sizeof states, "%s/states", dir);
        snprintf(wanted, sizeof wanted, "-%016llx", (unsigned long long)client);
        DIR *d = opendir(states);
        assert_non_null(d);
        path[0] = '\0';
        for (const struct dirent *e; (e = readdir(d));)
                if (strstr(e->d_name, wanted))
                        snprintf(path, 512, "%s/%s", states, e->d_name);
        closedir(d);
        assert_true(path[0]);
}

static uint32_t count_files(const char *folder)
{
        uint32_t n = 0;
        DIR *d = opendir(folder);
        for (const struct dirent *e; d && (e = readdir(d));)
                n += e->d_name[0] != '.';
        if (d)
                closedir(d);
        return n;
}

static void it_comes_back_by_its_digest(void **state)
{
        const struct mfl_keep keep = keep_of(1, "a"), other_job = keep_of(1, "b"),
                              other_client = keep_of(2, "a");
        uint8_t first[MFL_SHA256_BYTES], second[MFL_SHA256_BYTES], unknown[MFL_SHA256_BYTES] = {1};
        float v[N], want[N];
        save(&keep, 1, first);
        save(&keep, 2, second);
        fill(want, 1);
        assert_true(load(&keep, first, N, v));
        assert_memory_equal(v, want, sizeof v);
        fill(want, 2);
        assert_true(load(&keep, second, N, v));
        assert_memory_equal(v, want, sizeof v);
        assert_false(load(&keep, unknown, N, v));
        assert_false(load(&keep, first, N - 1, v)); /* the model has another length */
        assert_false(load(&other_job, first, N, v));
        assert_false(load(&other_client, first, N, v));
}

static void damage_counts_as_nothing(void **state)
{
        const struct mfl_keep keep = keep_of(3, "a");
        uint8_t sha256[MFL_SHA256_BYTES];
        char folder[512], path[800], hex[MFL_SHA256_HEX_BYTES];
        float v[N];
        save(&keep, 1, sha256);
        folder_of_client(3, folder);
        mfl_hex(sha256, sizeof sha256, hex);
        snprintf(path, sizeof path, "%s/%s.f32", folder, hex);
        FILE *f = fopen(path, "r+");
        assert_non_null(f);
        fputc(1, f);
        fclose(f);
        assert_false(load(&keep, sha256, N, v));
        assert_int_equal(truncate(path, 8), 0);
        assert_false(load(&keep, sha256, N, v));
}

static void old_turns_go(void **state)
{
        const struct mfl_keep keep = keep_of(4, "a");
        uint8_t sha256[12][MFL_SHA256_BYTES];
        char folder[512];
        float v[N];
        for (int turn = 0; turn < 12; turn++)
                save(&keep, turn, sha256[turn]);
        folder_of_client(4, folder);
        assert_int_equal(count_files(folder), MFL_KEEP_FILES);
        assert_true(load(&keep, sha256[11], N, v));
}

static void a_place_that_is_none_is_told(void **state)
{
        struct mfl_keep keep = keep_of(5, "a");
        struct mfl_error err = {""};
        uint8_t sha256[MFL_SHA256_BYTES];
        float v[N] = {0};
        keep.dir = "/proc/none";
        assert_int_equal(mfl_keep_save(&keep, N, v, sha256, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "its site can't keep its state"));
}

static int make_dir(void **state)
{
        return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
        char command[128];
        snprintf(command, sizeof command, "rm -r '%s'", dir);
        return system(command);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(it_comes_back_by_its_digest),
                cmocka_unit_test(damage_counts_as_nothing),
                cmocka_unit_test(old_turns_go),
                cmocka_unit_test(a_place_that_is_none_is_told),
        };
        return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
