/* SPDX-License-Identifier: Apache-2.0 */
/* The private CA: names, the index, two commands at once, and that a failure or a kill at any step leaves the
 * directory as it was. What is in the certificates is judged by the openssl program, in
 * tests/e2e/test_pki.py. */
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/pki/pki.h"
#include "common/base/fs.h"
#include "tests/lib/test.h"

#define NOW 1800000000
#define STEPS_MAX 2000

static char root[64];

/* ---- names ---- */

static void test_names(void **state)
{
        char letters[65];
        memset(letters, 'a', 64);
        letters[64] = '\0';
        assert_false(mfl_pki_name_valid(letters));
        assert_true(mfl_pki_name_valid(letters + 1));
        assert_true(mfl_pki_name_valid("Site_a.7-b"));
        static const char *const bad[] = {"", ".", "..", "a/b", "a b", "a\n", "\xc3\xa4", "a\"b", "-\x7f"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++)
                assert_false(mfl_pki_name_valid(bad[i]));
}

static void test_hosts(void **state)
{
        static const char *const good[] = {"localhost", "agg.example.org", "*.example.org", "10.0.0.1", "::1",
                "fe80::1", "a-b.c1", "3com.com"};
        static const char *const bad[] = {"", "-a", "a-", "a..b", "a.", ".a", "a_b", "a:7433", "[::1]",
                "https://a", "10.0.0.256", "*", "*.", "a.*.b", "a b", "10.0.0", "a/b"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(good); i++)
                if (!mfl_pki_host_valid(good[i]))
                        fail_msg("'%s' was refused", good[i]);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++)
                if (mfl_pki_host_valid(bad[i]))
                        fail_msg("'%s' was taken", bad[i]);
}

static void test_roles(void **state)
{
        char buf[64];
        const char *names[MFL_PKI_ROLES_MAX];
        assert_int_equal(mfl_pki_role_of("viewer"), MFL_PKI_VIEWER);
        assert_int_equal(mfl_pki_role_of("Viewer"), 0);
        assert_int_equal(mfl_pki_role_names(MFL_PKI_DAEMON | MFL_PKI_ADMIN, names), 2);
        assert_string_equal(names[1], "admin");
        assert_string_equal(mfl_pki_roles_text(15, buf, sizeof buf), "daemon,operator,viewer,admin");
        assert_string_equal(mfl_pki_roles_text(15, buf, 8), "daemon,");
}

/* ---- index ---- */

static struct mfl_pki_entry sample(const char *name, const char *serial, unsigned roles)
{
        struct mfl_pki_entry e = {.roles = roles, .not_before = NOW, .not_after = NOW + 5};
        strcpy(e.name, name);
        strcpy(e.serial, serial);
        return e;
}

static void test_index(void **state)
{
        struct mfl_pki_index index = {.ca = "mfl CA 1", .crl_number = 7, .crl_days = 30}, again;
        struct mfl_pki_entry a = sample("a", "0A", MFL_PKI_SERVER), b = sample("b", "0B", 3),
                             c = sample("a", "0C", 16);
        struct mfl_error err;
        char *text, *second;
        a.hosts[0] = (char *)(uintptr_t) "h.example";
        a.n_hosts = 1;
        b.state = MFL_PKI_REVOKED;
        b.revoked = NOW + 1;
        b.request = true;
        assert_int_equal(mfl_pki_index_add(&index, &a, &err), 0);
        assert_int_equal(mfl_pki_index_add(&index, &b, &err), 0);
        assert_int_equal(mfl_pki_index_add(&index, &c, &err), 0);
        assert_string_equal(mfl_pki_index_find(&index, "a")->serial, "0C");
        assert_null(mfl_pki_index_find(&index, "A"));
        assert_string_equal(mfl_pki_index_find_serial(&index, "0b")->name, "b");
        assert_null(mfl_pki_index_find_serial(&index, "0"));
        assert_int_equal(mfl_pki_index_text(&index, &text, &err), 0);
        assert_int_equal(mfl_pki_index_parse(text, "x", &again, &err), 0);
        assert_int_equal(again.n, 3);
        assert_int_equal(again.crl_number, 7);
        assert_string_equal(again.entry[0].hosts[0], "h.example");
        assert_int_equal(again.entry[1].state, MFL_PKI_REVOKED);
        assert_int_equal(again.entry[1].revoked, NOW + 1);
        assert_true(again.entry[1].request && !again.entry[0].request);
        assert_int_equal(mfl_pki_index_text(&again, &second, &err), 0);
        assert_string_equal(text, second);
        mfl_pki_index_deinit(&index);
        mfl_pki_index_deinit(&again);
        mfl_pki_index_deinit(&again);
        free(text);
        free(second);
}

/* Each of these replaces a part of a good text by something that must be refused. */
static void test_index_damaged(void **state)
{
        static const char good[] =
                "{\"version\": 1, \"ca\": \"c\", \"crl_number\": 1, \"crl_days\": 9, \"certificates\": "
                "[{\"name\": \"a\","
                "\"roles\": [\"server\"], \"hosts\": [\"h.org\"], \"serial\": \"0A\", \"request\": false,"
                "\"not_before\": 1, \"not_after\": 2, \"state\": \"valid\", \"revoked\": null}]}";
        static const struct {
                const char *part, *by, *says;
        } cases[] = {{"{\"version\": 1", "", "x:1:"}, {"version\": 1", "version\": 2", "newer mfl"},
                {"\"c\"", "3", "not the index"}, {"crl_number\": 1", "crl_number\": 0", "not the index"},
                {"\"a\"", "\"../x\"", "certificate 1"}, {"\"server\"", "\"root\"", "certificate 1"},
                {"\"server\"", "", "certificate 1"}, {"h.org", "h org", "certificate 1"},
                {"0A", "0G", "certificate 1"}, {"\"valid\"", "\"good\"", "certificate 1"},
                {"\"not_after\": 2", "\"not_after\": \"2\"", "certificate 1"},
                {"[{", "[3, {", "certificate 1"}, {"\"ca\"", "\"version\": 1, \"ca\"", "duplicate"}};
        struct mfl_pki_index index;
        struct mfl_error err;
        assert_int_equal(mfl_pki_index_parse(good, "x", &index, &err), 0);
        mfl_pki_index_deinit(&index);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                const char *at = strstr(good, cases[i].part);
                assert_non_null(at);
                char *text = mfl_asprintf(
                        "%.*s%s%s", (int)(at - good), good, cases[i].by, at + strlen(cases[i].part));
                assert_int_equal(mfl_pki_index_parse(text, "x", &index, &err), MFL_INVALID);
                if (!strstr(err.text, cases[i].says))
                        fail_msg("'%s' is not in '%s'", cases[i].says, err.text);
                free(text);
        }
}

/* ---- a tree as text: kind, permissions, path and content of everything but the lock ---- */

static FILE *tree_out;

static int add_to_tree(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
        char *data;
        size_t bytes;
        if (!strcmp(path + ftw->base, "lock"))
                return 0;
        fprintf(tree_out, "%o %s\n", (unsigned)st->st_mode, path);
        if (flag == FTW_F && !mfl_fs_read(path, 1 << 20, &data, &bytes, NULL)) {
                fwrite(data, 1, bytes, tree_out);
                free(data);
        }
        return 0;
}

static int by_text(const void *a, const void *b)
{
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The order in which a directory is read changes when files are replaced: lines are sorted. */
static char *tree_of(const char *dir)
{
        char *text, *lines[4096], *save, *sorted;
        size_t bytes, n = 0;
        tree_out = open_memstream(&text, &bytes);
        nftw(dir, add_to_tree, 16, FTW_PHYS);
        fclose(tree_out);
        for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
                assert_true(n < MFL_ARRAY_SIZE(lines));
                lines[n++] = l;
        }
        qsort(lines, n, sizeof *lines, by_text);
        tree_out = open_memstream(&sorted, &bytes);
        for (size_t i = 0; i < n; i++)
                fprintf(tree_out, "%s\n", lines[i]);
        fclose(tree_out);
        free(text);
        return sorted;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
        return remove(path);
}

static void remove_tree(const char *path)
{
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- faults ---- */

static struct {
        long countdown; /* passages before it strikes; negative: never */
        bool struck, kills;
        int n_keys; /* files of keys that were looked at */
} fault;

/* At the instant of its creation a file with a key in it must be closed to others. Copies for undoing are
 * numbered, and may be of keys. */
static void look_at_key(const char *point, const char *path)
{
        struct stat st;
        if (strcmp(point, "after-open") || !(strstr(path, "key") || strstr(path, "/undo")))
                return;
        assert_int_equal(stat(path, &st), 0);
        if (st.st_mode & 0077)
                fail_msg("%s has mode %o", path, st.st_mode);
        fault.n_keys++;
}

static int on_point(void *user, const char *point, const char *path)
{
        look_at_key(point, path);
        if (fault.countdown < 0 || fault.countdown--)
                return 0;
        fault.struck = true;
        if (fault.kills)
                _exit(MFL_FS_FAULT_STATUS);
        return -ENOSPC;
}

static void set_fault(long countdown, bool kills)
{
        fault.countdown = countdown;
        fault.kills = kills;
        fault.struck = false;
        mfl_fs_set_fault_hook(on_point, NULL);
}

static void clear_fault(void)
{
        mfl_fs_set_fault_hook(NULL, NULL);
}

/* ---- the operations that are struck ---- */

static const char *const no_hosts[] = {"agg.example.org", "10.0.0.1"};

static int do_init(const char *dir, struct mfl_error *err)
{
        struct mfl_pki pki;
        int r = mfl_pki_create(&pki, dir, "mfl CA test", 3650, 365, NULL, NOW, err);
        if (!r)
                mfl_pki_close(&pki);
        return r;
}

static int issue(const char *dir, const char *name, unsigned roles, const char *out, struct mfl_error *err)
{
        struct mfl_pki_issued issued = {.dir = NULL};
        struct mfl_pki pki;
        struct mfl_pki_request request = {.name = name,
                .roles = roles,
                .hosts = no_hosts,
                .n_hosts = roles == MFL_PKI_SERVER ? 2 : 0,
                .days = 365,
                .out = out,
                .crl_days = -1};
        int r = mfl_pki_open(&pki, dir, NOW, err);
        if (r)
                return r;
        r = mfl_pki_unseal(&pki, NULL, err);
        if (!r)
                r = mfl_pki_issue(&pki, &request, &issued, err);
        free(issued.dir);
        mfl_pki_close(&pki);
        return r;
}

static int do_issue(const char *dir, struct mfl_error *err)
{
        char out[128];
        snprintf(out, sizeof out, "%s/copy", root);
        return issue(dir, "server", MFL_PKI_SERVER, out, err);
}

static int do_renew(const char *dir, struct mfl_error *err)
{
        struct mfl_pki_issued issued = {.dir = NULL};
        struct mfl_pki pki;
        struct mfl_pki_request request = {
                .name = "site-a", .days = 365, .new_key = true, .revoke_old = true, .crl_days = 30};
        int r = mfl_pki_open(&pki, dir, NOW, err);
        if (r)
                return r;
        r = mfl_pki_unseal(&pki, NULL, err);
        if (!r)
                r = mfl_pki_renew(&pki, &request, &issued, err);
        free(issued.dir);
        mfl_pki_close(&pki);
        return r;
}

static int do_revoke(const char *dir, struct mfl_error *err)
{
        struct mfl_pki pki;
        char name[MFL_PKI_NAME_MAX + 1];
        int n;
        int r = mfl_pki_open(&pki, dir, NOW, err);
        if (r)
                return r;
        r = mfl_pki_unseal(&pki, NULL, err);
        if (!r)
                r = mfl_pki_revoke(&pki, "site-a", -1, name, &n, err);
        mfl_pki_close(&pki);
        return r;
}

static const struct {
        const char *name;
        int (*run)(const char *dir, struct mfl_error *err);
        bool init; /* there is no CA before */
} operations[] = {{"init", do_init, true}, {"issue", do_issue, false}, {"renew", do_renew, false},
        {"revoke", do_revoke, false}};

/* root/pki with a daemon in it; or with nothing. */
static void prepare(const char *dir, bool empty)
{
        struct mfl_error err;
        char copy[128];
        snprintf(copy, sizeof copy, "%s/copy", root);
        remove_tree(dir);
        remove_tree(copy);
        if (empty)
                return;
        assert_int_equal(do_init(dir, &err), 0);
        assert_int_equal(issue(dir, "site-a", MFL_PKI_DAEMON, NULL, &err), 0);
}

/* Every step of every operation fails once, with all of what was there before, and nothing else, afterwards.
 */
static void test_failures(void **state)
{
        char dir[128];
        snprintf(dir, sizeof dir, "%s/pki", root);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(operations); i++) {
                struct mfl_error err;
                long n = 0;
                prepare(dir, operations[i].init);
                char *before = tree_of(root);
                for (; n < STEPS_MAX; n++) {
                        set_fault(n, false);
                        int r = operations[i].run(dir, &err);
                        clear_fault();
                        if (!fault.struck) {
                                assert_int_equal(r, 0);
                                break;
                        }
                        assert_int_equal(r, -ENOSPC);
                        char *after = tree_of(root);
                        if (strcmp(before, after))
                                fail_msg("%s, step %ld (%s):\n%s\nbefore:\n%s", operations[i].name, n,
                                        err.text, after, before);
                        free(after);
                }
                assert_in_range(n, 20, STEPS_MAX - 1);
                char *after = tree_of(root);
                assert_string_not_equal(before, after);
                free(before);
                free(after);
        }
        assert_in_range(fault.n_keys, 4, 1 << 30);
}

/* What is there after a kill and the next command: the tree of before, or the operation is whole: doing it
 * again finds it done. True: as before. */
static bool check_after_kill(size_t i, long n, const char *dir, const char *before)
{
        struct mfl_error err;
        struct mfl_pki pki;
        int r = operations[i].init ? do_init(dir, &err) : mfl_pki_open(&pki, dir, NOW, &err);
        if (operations[i].init) {
                /* Either nothing was left of the first, or all. */
                assert_true(r == 0 || r == MFL_EXISTS);
                assert_int_equal(issue(dir, "b", MFL_PKI_DAEMON, NULL, &err), 0);
                return false;
        }
        if (r)
                fail_msg("%s killed at step %ld: %s", operations[i].name, n, err.text);
        size_t entries = pki.index.n;
        enum mfl_pki_state first = pki.index.entry[0].state;
        mfl_pki_close(&pki);
        char *after = tree_of(root);
        bool same = !strcmp(before, after);
        bool done = operations[i].run == do_revoke ? first == MFL_PKI_REVOKED : entries == 2;
        if (same == done || strstr(after, "undo") || strstr(after, "/done") || strstr(after, ".tmp"))
                fail_msg("%s killed at step %ld leaves:\n%s", operations[i].name, n, after);
        free(after);
        return same;
}

/* The operation's exit status when it is killed at its n-th step. */
static int run_killed(size_t i, long n, const char *dir)
{
        struct mfl_error err;
        int status;
        pid_t pid = fork();
        if (!pid) {
                set_fault(n, true);
                _exit(operations[i].run(dir, &err) ? 1 : 0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static void test_kills(void **state)
{
        char dir[128];
        snprintf(dir, sizeof dir, "%s/pki", root);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(operations); i++) {
                int status = MFL_FS_FAULT_STATUS;
                bool as_before = false;
                char *before = NULL;
                /* The last two take the steps of the one before: some of them are enough. */
                for (long n = 0; status == MFL_FS_FAULT_STATUS; n += i < 2 ? 1 : 3) {
                        assert_true(n < STEPS_MAX);
                        if (!as_before) {
                                free(before);
                                prepare(dir, operations[i].init);
                                before = tree_of(root);
                        }
                        status = run_killed(i, n, dir);
                        assert_true(status == 0 || status == MFL_FS_FAULT_STATUS);
                        as_before = check_after_kill(i, n, dir, before);
                }
                free(before);
        }
}

static void test_memory(void **state)
{
        char dir[128];
        snprintf(dir, sizeof dir, "%s/pki", root);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(operations); i++) {
                struct mfl_error err;
                long n = 0;
                prepare(dir, operations[i].init);
                char *before = tree_of(root);
                for (; n < STEPS_MAX; n++) {
                        mfl_alloc_fail_at(n);
                        int r = operations[i].run(dir, &err);
                        bool struck = mfl_alloc_failed();
                        mfl_alloc_fail_at(-1);
                        if (!struck) {
                                assert_int_equal(r, 0);
                                break;
                        }
                        assert_int_equal(r, -ENOMEM);
                        char *after = tree_of(root);
                        if (strcmp(before, after))
                                fail_msg("%s, allocation %ld (%s):\n%s", operations[i].name, n, err.text,
                                        after);
                        free(after);
                }
                assert_in_range(n, 3, STEPS_MAX - 1);
                free(before);
        }
}

/* ---- two at once ---- */

#define AT_ONCE 3
#define OF_EACH 4

static void test_at_once(void **state)
{
        char dir[128];
        struct mfl_error err;
        struct mfl_pki pki;
        pid_t pids[AT_ONCE];
        snprintf(dir, sizeof dir, "%s/pki", root);
        prepare(dir, true);
        assert_int_equal(do_init(dir, &err), 0);
        for (int i = 0; i < AT_ONCE; i++) {
                pids[i] = fork();
                if (pids[i])
                        continue;
                char name[16];
                int bad = 0;
                for (int k = 0; k < OF_EACH; k++) {
                        snprintf(name, sizeof name, "d%d-%d", i, k);
                        bad += issue(dir, name, MFL_PKI_DAEMON, NULL, &err) != 0;
                }
                _exit(bad);
        }
        for (int i = 0; i < AT_ONCE; i++) {
                int status;
                assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
                assert_int_equal(status, 0);
        }
        assert_int_equal(mfl_pki_open(&pki, dir, NOW, &err), 0);
        assert_int_equal(pki.index.n, AT_ONCE * OF_EACH);
        assert_int_equal(pki.index.crl_number, 1 + AT_ONCE * OF_EACH);
        for (size_t i = 0; i < pki.index.n; i++)
                assert_ptr_equal(mfl_pki_index_find_serial(&pki.index, pki.index.entry[i].serial),
                        &pki.index.entry[i]);
        mfl_pki_close(&pki);
}

/* Two that make a CA in one place: one does. */
static void test_init_at_once(void **state)
{
        char dir[128];
        pid_t pids[2];
        int n_made = 0;
        struct mfl_error err;
        snprintf(dir, sizeof dir, "%s/pki", root);
        prepare(dir, true);
        for (int i = 0; i < 2; i++) {
                pids[i] = fork();
                if (!pids[i])
                        _exit(do_init(dir, &err));
        }
        for (int i = 0; i < 2; i++) {
                int status;
                assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
                assert_true(
                        WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == MFL_EXISTS));
                n_made += WEXITSTATUS(status) == 0;
        }
        assert_int_equal(n_made, 1);
        assert_int_equal(issue(dir, "a", MFL_PKI_DAEMON, NULL, &err), 0);
}

/* ---- what stands in the way ---- */

static void check_refused(int r, int expected, const struct mfl_error *err, const char *says)
{
        if (r != expected || !strstr(err->text, says))
                fail_msg("%d, not %d; '%s' in '%s'?", r, expected, says, err->text);
}

static void test_refusals(void **state)
{
        char dir[128], path[160];
        struct mfl_error err;
        struct mfl_pki pki;
        snprintf(dir, sizeof dir, "%s/pki", root);
        prepare(dir, true);
        check_refused(mfl_pki_open(&pki, dir, NOW, &err), MFL_NOT_FOUND, &err, "'mfl pki init' makes one");
        assert_int_equal(mkdir(dir, 0755), 0);
        check_refused(mfl_pki_open(&pki, dir, NOW, &err), MFL_NOT_FOUND, &err, "'mfl pki init' makes one");
        snprintf(path, sizeof path, "%s/mine", dir);
        close(open(path, O_CREAT | O_WRONLY, 0644));
        char *before = tree_of(root);
        check_refused(do_init(dir, &err), MFL_EXISTS, &err, "it contains 'mine'");
        char *after = tree_of(root);
        assert_string_equal(before, after);
        free(before);
        free(after);
        prepare(dir, false);
        check_refused(do_init(dir, &err), MFL_EXISTS, &err, "already");
        check_refused(issue(dir, "site-a", MFL_PKI_VIEWER, NULL, &err), MFL_EXISTS, &err, "renew it");
        check_refused(issue(dir, "b", MFL_PKI_VIEWER, dir, &err), MFL_EXISTS, &err, "ca.pem already exists");
        snprintf(path, sizeof path, "%s/ca.key", dir);
        chmod(path, 0640);
        check_refused(issue(dir, "b", MFL_PKI_VIEWER, NULL, &err), MFL_INVALID, &err, "chmod 600");
        chmod(path, 0600);
        chmod(dir, 0770);
        check_refused(issue(dir, "b", MFL_PKI_VIEWER, NULL, &err), MFL_INVALID, &err, "chmod 700");
        chmod(dir, 0700);
        assert_int_equal(issue(dir, "b", MFL_PKI_VIEWER, NULL, &err), 0);
}

/* Someone else's file where a temporary one would be: not written to, not removed. */
static void test_in_the_way(void **state)
{
        char dir[128], copy[128], path[160];
        struct mfl_error err;
        snprintf(dir, sizeof dir, "%s/pki", root);
        snprintf(copy, sizeof copy, "%s/copy", root);
        snprintf(path, sizeof path, "%s/key.pem.tmp", copy);
        prepare(dir, false);
        assert_int_equal(mkdir(copy, 0700), 0);
        assert_int_equal(symlink("/dev/null", path), 0);
        char *before = tree_of(root);
        check_refused(do_issue(dir, &err), MFL_EXISTS, &err, "key.pem.tmp: is in the way");
        char *after = tree_of(root);
        assert_string_equal(before, after);
        free(before);
        free(after);
}

/* ---- dates ---- */

static void test_dates(void **state)
{
        char *cert, *key, *leaf, *crl, serial[MFL_PKI_SERIAL_BYTES];
        struct mfl_error err;
        struct mfl_pki_ca *ca;
        struct mfl_pki_public *public;
        int64_t end;
        assert_int_equal(mfl_pki_ca_make("c", NOW, 10, "secret", &cert, &key, &err), 0);
        check_refused(mfl_pki_ca_read(cert, key, NULL, &ca, &err), MFL_INVALID, &err, "--ca-pass-file");
        check_refused(mfl_pki_ca_read(cert, key, "wrong", &ca, &err), MFL_INVALID, &err, "wrong pass phrase");
        check_refused(mfl_pki_ca_read(key, key, "secret", &ca, &err), MFL_INVALID, &err, "not a certificate");
        assert_int_equal(mfl_pki_ca_read(cert, key, "secret", &ca, &err), 0);
        assert_int_equal(mfl_pki_ca_not_after(ca), NOW + 10 * MFL_PKI_DAY_S);
        mfl_pki_wipe(key);
        assert_int_equal(mfl_pki_key_make(&key, &public, &err), 0);
        struct mfl_pki_leaf l = {.name = "a", .not_after = NOW + 77};
        assert_int_equal(mfl_pki_sign(ca, &l, public, NOW, &leaf, serial, &err), 0);
        assert_int_equal(strlen(serial), 32);
        assert_int_equal(mfl_pki_cert_not_after(leaf, "x", &end, &err), 0);
        assert_int_equal(end, NOW + 77);
        assert_int_equal(mfl_pki_crl_make(ca, NULL, 0, 1, NOW, NOW + 99, &crl, &err), 0);
        assert_int_equal(mfl_pki_crl_next_update(crl, "x", &end, &err), 0);
        assert_int_equal(end, NOW + 99);
        check_refused(
                mfl_pki_crl_next_update(leaf, "x", &end, &err), MFL_INVALID, &err, "not a revocation list");
        mfl_pki_public_free(public);
        mfl_pki_ca_free(ca);
        free(cert);
        free(leaf);
        free(crl);
        mfl_pki_wipe(key);
}

/* In memory where there is a place for it: thousands of files are made durable here. */
static int make_root(void **state)
{
        strcpy(root, access("/dev/shm", W_OK) ? "/tmp/mfl-pki-XXXXXX" : "/dev/shm/mfl-pki-XXXXXX");
        return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
        remove_tree(root);
        return 0;
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_hosts),
                cmocka_unit_test(test_roles), cmocka_unit_test(test_index),
                cmocka_unit_test(test_index_damaged), cmocka_unit_test(test_failures),
                cmocka_unit_test(test_kills), cmocka_unit_test(test_memory), cmocka_unit_test(test_at_once),
                cmocka_unit_test(test_init_at_once), cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_in_the_way), cmocka_unit_test(test_dates)};
        return cmocka_run_group_tests(tests, make_root, drop_root);
}
