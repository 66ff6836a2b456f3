/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory: what readers see, when an owner may write again, deaths, leftovers, and what is in the way.
 * All of it in a directory of its own under /dev/shm, which must be empty in the end. */
#include "tests/lib/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/node/share.h"
#include "common/base/fs.h"

#define BYTES ((uint64_t)300 * 1000) /* no multiple of a page */
#define OWNER ((uint64_t)0xa11ce)
#define READER ((uint64_t)0xb0b)
#define OTHER ((uint64_t)0xca401)

static struct mfl_error err;
static char dir[64];
static const uint8_t key_a[MFL_SHARE_KEY_BYTES] = "a", key_b[MFL_SHARE_KEY_BYTES] = "b";

/* In child processes, where cmocka's assertions don't reach the parent. */
#define CHILD_CHECK(cond)                                                                                    \
        do {                                                                                                 \
                if (!(cond)) {                                                                               \
                        fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, err.text);             \
                        _exit(1);                                                                            \
                }                                                                                            \
        } while (0)
enum {
        CHILD_SKIPPED = 77,
};

static struct mfl_share *open_share(uint64_t instance)
{
        struct mfl_share_options options = {.dir = dir, .instance = instance};
        struct mfl_share *share = NULL;
        if (mfl_share_open(&options, &share, &err))
                fail_msg("%s", err.text);
        return share;
}

static struct mfl_share_buffer *new_buffer(struct mfl_share *share, int byte)
{
        struct mfl_share_buffer *buffer = NULL;
        if (mfl_share_buffer_new(share, BYTES, &buffer, &err))
                fail_msg("%s", err.text);
        memset(mfl_share_buffer_data(buffer), byte, BYTES);
        return buffer;
}

static void publish(struct mfl_share_buffer *buffer, const uint8_t *key)
{
        if (mfl_share_publish(buffer, key, &err))
                fail_msg("%s", err.text);
}

static struct mfl_share_view *open_view(struct mfl_share *share, uint64_t instance, const uint8_t *key)
{
        struct mfl_share_view *view = NULL;
        if (mfl_share_view_open(share, instance, key, BYTES, &view, &err))
                fail_msg("%s", err.text);
        return view;
}

static int try_view(struct mfl_share *share, uint64_t instance, const uint8_t *key, uint64_t bytes)
{
        struct mfl_share_view *view = NULL;
        int r = mfl_share_view_open(share, instance, key, bytes, &view, &err);
        assert_true((r == 0) == (view != NULL));
        mfl_share_view_close(view);
        return r;
}

static bool all_are(const void *data, uint64_t bytes, int byte)
{
        const unsigned char *p = data;
        return p[0] == byte && !memcmp(p, p + 1, bytes - 1);
}

static bool sees(const struct mfl_share_view *view, int byte)
{
        return all_are(mfl_share_view_data(view), BYTES, byte);
}

/* Files in the directory whose names have `part` in them. */
static int count_files(const char *part)
{
        DIR *d = opendir(dir);
        int n = 0;
        assert_non_null(d);
        for (struct dirent *entry; (entry = readdir(d));)
                n += entry->d_name[0] != '.' && strstr(entry->d_name, part);
        closedir(d);
        return n;
}

static int count_files_of(uint64_t instance)
{
        char part[32];
        snprintf(part, sizeof part, "mfl-%016" PRIx64, instance);
        return count_files(part);
}

static void path_of(char path[256], uint64_t instance, const char *rest)
{
        snprintf(path, 256, "%s/mfl-%016" PRIx64 "%s", dir, instance, rest);
}

static void path_of_key(char path[256], uint64_t instance, const uint8_t *key)
{
        char rest[2 * MFL_SHARE_KEY_BYTES + 2] = ".";
        for (int i = 0; i < MFL_SHARE_KEY_BYTES; i++)
                snprintf(rest + 1 + 2 * i, 3, "%02x", key[i]);
        path_of(path, instance, rest);
}

static void put_file(const char *path, mode_t mode, off_t bytes)
{
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(fchmod(fd, mode), 0);
        assert_int_equal(ftruncate(fd, bytes), 0);
        close(fd);
}

static int exit_status(pid_t pid)
{
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int set_up(void **state)
{
        strcpy(dir, "/dev/shm/mfl-test-XXXXXX");
        return mkdtemp(dir) ? 0 : -1;
}

/* Fails where anything is left. */
static int tear_down(void **state)
{
        return rmdir(dir);
}

/* ---- publishing and reading ---- */

static void a_published_buffer_is_read(void **state)
{
        struct mfl_share *owner = open_share(OWNER), *reader = open_share(READER);
        struct mfl_share_buffer *buffer = NULL;
        assert_int_equal(mfl_share_instance(owner), OWNER);
        assert_int_equal(mfl_share_buffer_new(owner, BYTES, &buffer, &err), 0);
        assert_int_equal(mfl_share_buffer_bytes(buffer), BYTES);
        assert_int_equal((uintptr_t)mfl_share_buffer_data(buffer) % 64, 0);
        assert_true(all_are(mfl_share_buffer_data(buffer), BYTES, 0));
        memset(mfl_share_buffer_data(buffer), 7, BYTES);

        assert_int_equal(try_view(reader, OWNER, key_a, BYTES), MFL_NOT_FOUND);
        publish(buffer, key_a);
        publish(buffer, key_a);
        assert_false(mfl_share_idle(buffer));
        assert_int_equal(try_view(reader, OWNER, key_b, BYTES), MFL_NOT_FOUND);
        assert_int_equal(try_view(reader, OWNER, key_a, BYTES - 8), MFL_INVALID);
        assert_non_null(strstr(err.text, "300000 bytes, expected 299992"));
        assert_int_equal(try_view(reader, OTHER, key_a, BYTES), MFL_SHARE_GONE);
        struct mfl_share_view *view = open_view(reader, OWNER, key_a);
        assert_true(sees(view, 7));

        mfl_share_withdraw(buffer);
        mfl_share_withdraw(buffer);
        assert_false(mfl_share_idle(buffer));
        assert_int_equal(try_view(reader, OWNER, key_a, BYTES), MFL_NOT_FOUND);
        assert_true(sees(view, 7));
        mfl_share_view_close(view);
        assert_true(mfl_share_idle(buffer));

        memset(mfl_share_buffer_data(buffer), 8, BYTES);
        publish(buffer, key_b);
        view = open_view(reader, OWNER, key_b);
        assert_true(sees(view, 8));
        mfl_share_buffer_free(buffer);
        assert_true(sees(view, 8));
        mfl_share_view_close(view);
        mfl_share_close(owner);
        assert_int_equal(try_view(reader, OWNER, key_b, BYTES), MFL_SHARE_GONE);
        mfl_share_close(reader);
}

static void a_view_cannot_be_written_to(void **state)
{
        struct mfl_share *owner = open_share(OWNER), *reader = open_share(READER);
        struct mfl_share_buffer *buffer = new_buffer(owner, 1);
        publish(buffer, key_a);
        struct mfl_share_view *view = open_view(reader, OWNER, key_a);
        pid_t pid = fork();
        if (!pid) {
                signal(SIGSEGV, SIG_DFL);
                *(volatile char *)(uintptr_t)mfl_share_view_data(view) = 2;
                _exit(0);
        }
        assert_int_not_equal(exit_status(pid), 0);
        assert_true(sees(view, 1));
        mfl_share_view_close(view);
        mfl_share_buffer_free(buffer);
        mfl_share_close(reader);
        mfl_share_close(owner);
}

static void a_key_is_of_one_buffer_and_a_buffer_of_one_key(void **state)
{
        struct mfl_share *owner = open_share(OWNER);
        struct mfl_share_buffer *one = new_buffer(owner, 1), *two = new_buffer(owner, 2);
        publish(one, key_a);
        publish(two, key_a);
        struct mfl_share_view *view = open_view(owner, OWNER, key_a);
        assert_true(sees(view, 2));
        mfl_share_view_close(view);
        assert_true(mfl_share_idle(one));
        publish(two, key_b);
        assert_int_equal(try_view(owner, OWNER, key_a, BYTES), MFL_NOT_FOUND);
        publish(one, key_a);
        view = open_view(owner, OWNER, key_a);
        assert_true(sees(view, 1));
        mfl_share_view_close(view);
        mfl_share_buffer_free(one);
        mfl_share_buffer_free(two);
        mfl_share_close(owner);
}

/* Lines of this process's map that are of this test's directory and of an instance. */
static int count_maps(uint64_t instance)
{
        char line[512], part[128];
        FILE *file = fopen("/proc/self/maps", "r");
        int n = 0;
        assert_non_null(file);
        snprintf(part, sizeof part, "%s/mfl-%016" PRIx64, dir, instance);
        while (fgets(line, sizeof line, file))
                n += strstr(line, part) && strstr(line, " r--s ");
        fclose(file);
        return n;
}

static void a_map_is_kept_as_long_as_the_buffer(void **state)
{
        struct mfl_share *owner = open_share(OWNER), *reader = open_share(READER);
        struct mfl_share_buffer *buffer = new_buffer(owner, 1);
        publish(buffer, key_a);
        struct mfl_share_view *view = open_view(reader, OWNER, key_a);
        const void *data = mfl_share_view_data(view);
        mfl_share_view_close(view);
        assert_int_equal(count_maps(OWNER), 1);
        mfl_share_withdraw(buffer);
        assert_true(mfl_share_idle(buffer));
        memset(mfl_share_buffer_data(buffer), 2, BYTES);
        publish(buffer, key_b);
        view = open_view(reader, OWNER, key_b);
        assert_ptr_equal(mfl_share_view_data(view), data);
        assert_true(sees(view, 2));
        struct mfl_share_view *second = open_view(reader, OWNER, key_b);
        assert_int_equal(count_maps(OWNER), 2);
        mfl_share_view_close(second);
        mfl_share_view_close(view);
        /* Its owner gives it up: the next look at anything lets go. */
        mfl_share_buffer_free(buffer);
        assert_int_equal(count_maps(OWNER), 2);
        assert_int_equal(try_view(reader, OWNER, key_a, BYTES), MFL_NOT_FOUND);
        assert_int_equal(count_maps(OWNER), 0);
        /* The reader gives up a buffer of its own: all go. */
        buffer = new_buffer(owner, 3);
        publish(buffer, key_a);
        mfl_share_view_close(open_view(reader, OWNER, key_a));
        assert_int_equal(count_maps(OWNER), 1);
        mfl_share_buffer_free(new_buffer(reader, 4));
        assert_int_equal(count_maps(OWNER), 0);
        mfl_share_buffer_free(buffer);
        mfl_share_close(reader);
        mfl_share_close(owner);
}

static void directories_have_numbers(void **state)
{
        struct mfl_share *one = open_share(OWNER), *two = open_share(READER), *other = NULL;
        char below[128];
        snprintf(below, sizeof below, "%s/below", dir);
        assert_int_equal(mkdir(below, 0700), 0);
        struct mfl_share_options options = {.dir = below, .instance = OWNER};
        assert_int_equal(mfl_share_open(&options, &other, &err), 0);
        assert_int_not_equal(mfl_share_id(one), 0);
        assert_true(mfl_share_id(one) == mfl_share_id(two));
        assert_true(mfl_share_id(one) != mfl_share_id(other));
        mfl_share_close(other);
        assert_int_equal(rmdir(below), 0);
        mfl_share_close(one);
        mfl_share_close(two);
}

/* ---- an owner that writes again and again, and readers that must never see half of it ---- */

#define ROUNDS 300

struct writer {
        struct mfl_share *share;
        struct mfl_share_buffer *buffer;
        atomic_bool done;
};

static void *write_rounds(void *arg)
{
        struct writer *writer = arg;
        for (int i = 0; i < ROUNDS; i++) {
                mfl_share_withdraw(writer->buffer);
                while (!mfl_share_idle(writer->buffer))
                        sched_yield();
                memset(mfl_share_buffer_data(writer->buffer), i % 251, BYTES);
                struct mfl_error error;
                if (mfl_share_publish(writer->buffer, key_a, &error))
                        break;
        }
        atomic_store(&writer->done, true);
        return NULL;
}

static void readers_see_whole_buffers(void **state)
{
        struct mfl_share *reader = open_share(READER);
        struct writer writer = {.share = open_share(OWNER)};
        writer.buffer = new_buffer(writer.share, 0);
        publish(writer.buffer, key_a);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, write_rounds, &writer), 0);
        int n = 0;
        while (!atomic_load(&writer.done) || n == 0) {
                struct mfl_share_view *view = NULL;
                int r = mfl_share_view_open(reader, OWNER, key_a, BYTES, &view, &err);
                if (r && r != MFL_NOT_FOUND)
                        fail_msg("%s", err.text);
                if (!r) {
                        const unsigned char *data = mfl_share_view_data(view);
                        assert_true(all_are(data, BYTES, data[0]));
                        n++;
                }
                mfl_share_view_close(view);
        }
        pthread_join(thread, NULL);
        struct mfl_share_view *view = open_view(reader, OWNER, key_a);
        assert_true(sees(view, (ROUNDS - 1) % 251));
        mfl_share_view_close(view);
        mfl_share_buffer_free(writer.buffer);
        mfl_share_close(writer.share);
        mfl_share_close(reader);
}

/* What somebody else does while this process is between two calls. */
struct between {
        struct mfl_share *owner;
        struct mfl_share_buffer *buffer;
        int at, n;  /* passages to come before it strikes; those it struck at */
        bool again; /* is published again, under the same key */
};

static int withdraw_and_write(void *user, const char *point, const char *path)
{
        struct between *b = user;
        if (strcmp(point, "share-view-opened") || b->at-- > 0)
                return 0;
        b->n++;
        mfl_share_withdraw(b->buffer);
        assert_true(mfl_share_idle(b->buffer));
        memset(mfl_share_buffer_data(b->buffer), 9, BYTES);
        if (b->again)
                publish(b->buffer, key_a);
        b->at = 1000;
        return 0;
}

static void what_is_withdrawn_between_opening_and_locking_is_not_read(void **state)
{
        struct mfl_share *owner = open_share(OWNER), *reader = open_share(READER);
        struct between b = {.owner = owner, .buffer = new_buffer(owner, 1)};
        publish(b.buffer, key_a);
        mfl_fs_set_fault_hook(withdraw_and_write, &b);
        assert_int_equal(try_view(reader, OWNER, key_a, BYTES), MFL_NOT_FOUND);
        assert_int_equal(b.n, 1);
        assert_true(mfl_share_idle(b.buffer));
        publish(b.buffer, key_a);
        b.at = 0;
        b.again = true;
        struct mfl_share_view *view = open_view(reader, OWNER, key_a);
        mfl_fs_set_fault_hook(NULL, NULL);
        assert_int_equal(b.n, 2);
        assert_true(sees(view, 9));
        mfl_share_view_close(view);
        mfl_share_buffer_free(b.buffer);
        mfl_share_close(owner);
        mfl_share_close(reader);
}

/* ---- deaths ---- */

static _Noreturn void own_until_killed(int tell)
{
        struct mfl_share_options options = {.dir = dir, .instance = OWNER};
        struct mfl_share *share;
        struct mfl_share_buffer *buffer, *hidden;
        CHILD_CHECK(!mfl_share_open(&options, &share, &err));
        CHILD_CHECK(!mfl_share_buffer_new(share, BYTES, &buffer, &err));
        CHILD_CHECK(!mfl_share_buffer_new(share, BYTES, &hidden, &err));
        memset(mfl_share_buffer_data(buffer), 5, BYTES);
        CHILD_CHECK(!mfl_share_publish(buffer, key_a, &err));
        CHILD_CHECK(write(tell, "x", 1) == 1);
        for (;;)
                pause();
}

/* Returns when it has published; the caller kills it. */
static pid_t start_owner(void)
{
        int ends[2];
        char c;
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid)
                own_until_killed(ends[1]);
        close(ends[1]);
        assert_int_equal(read(ends[0], &c, 1), 1);
        close(ends[0]);
        return pid;
}

static void kill_owner(pid_t pid)
{
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(exit_status(pid), -1);
}

static void a_killed_owner_leaves_readers_alone(void **state)
{
        /* Started first: a child holds what its parent has locked. */
        pid_t owner = start_owner();
        struct mfl_share *reader = open_share(READER);
        struct mfl_share_view *view = open_view(reader, OWNER, key_a);
        assert_int_equal(try_view(reader, OWNER, key_b, BYTES), MFL_NOT_FOUND);
        kill_owner(owner);
        assert_true(sees(view, 5));
        assert_int_equal(try_view(reader, OWNER, key_b, BYTES), MFL_SHARE_GONE);
        assert_int_equal(count_files_of(OWNER), 3);
        struct mfl_share *next = open_share(OTHER);
        assert_int_equal(count_files_of(OWNER), 0);
        assert_int_equal(count_files_of(READER), 1);
        assert_true(sees(view, 5));
        assert_int_equal(try_view(reader, OWNER, key_a, BYTES), MFL_SHARE_GONE);
        mfl_share_view_close(view);
        mfl_share_close(next);
        mfl_share_close(reader);
}

/* Another one removes the dead one's files first, and a process of the same number starts. */
static int overtake(void *user, const char *point, const char *path)
{
        struct between *b = user;
        if (strcmp(point, "share-stale-opened") || b->n++)
                return 0;
        mfl_share_close(open_share(READER));
        assert_int_equal(count_files_of(OWNER), 0);
        b->owner = open_share(OWNER);
        b->buffer = new_buffer(b->owner, 1);
        return 0;
}

static void a_starter_that_is_overtaken_removes_nothing(void **state)
{
        struct between b = {0};
        kill_owner(start_owner());
        mfl_fs_set_fault_hook(overtake, &b);
        struct mfl_share *share = open_share(OTHER);
        mfl_fs_set_fault_hook(NULL, NULL);
        assert_true(b.n >= 1);
        assert_int_equal(count_files_of(OWNER), 2);
        publish(b.buffer, key_a);
        assert_int_equal(try_view(share, OWNER, key_a, BYTES), 0);
        mfl_share_buffer_free(b.buffer);
        mfl_share_close(b.owner);
        mfl_share_close(share);
}

static void a_stopped_owner_is_alive(void **state)
{
        pid_t owner = start_owner();
        assert_int_equal(kill(owner, SIGSTOP), 0);
        int status;
        assert_int_equal(waitpid(owner, &status, WUNTRACED), owner);
        struct mfl_share *reader = open_share(READER);
        assert_int_equal(count_files_of(OWNER), 3);
        assert_int_equal(try_view(reader, OWNER, key_b, BYTES), MFL_NOT_FOUND);
        struct mfl_share_view *view = open_view(reader, OWNER, key_a);
        assert_true(sees(view, 5));
        mfl_share_view_close(view);
        kill_owner(owner);
        mfl_share_close(reader);
        mfl_share_close(open_share(OTHER));
}

static void a_killed_reader_lets_go(void **state)
{
        struct mfl_share *owner = NULL;
        struct mfl_share_buffer *buffer = NULL;
        int go[2], told[2];
        char c;
        assert_true(!pipe2(go, O_CLOEXEC) && !pipe2(told, O_CLOEXEC));
        pid_t pid = fork();
        if (!pid) {
                struct mfl_share_options options = {.dir = dir, .instance = READER};
                struct mfl_share *share;
                struct mfl_share_view *view;
                CHILD_CHECK(read(go[0], &c, 1) == 1);
                CHILD_CHECK(!mfl_share_open(&options, &share, &err));
                CHILD_CHECK(!mfl_share_view_open(share, OWNER, key_a, BYTES, &view, &err));
                CHILD_CHECK(write(told[1], "x", 1) == 1);
                for (;;)
                        pause();
        }
        owner = open_share(OWNER);
        buffer = new_buffer(owner, 1);
        publish(buffer, key_a);
        assert_int_equal(write(go[1], "x", 1), 1);
        assert_int_equal(read(told[0], &c, 1), 1);
        mfl_share_withdraw(buffer);
        assert_false(mfl_share_idle(buffer));
        kill_owner(pid);
        assert_true(mfl_share_idle(buffer));
        for (int i = 0; i < 2; i++)
                close(go[i]), close(told[i]);
        mfl_share_buffer_free(buffer);
        mfl_share_close(owner);
        mfl_share_close(open_share(OTHER));
}

static void an_instance_lives_once(void **state)
{
        struct mfl_share *share = open_share(OWNER), *again = NULL;
        struct mfl_share_options options = {.dir = dir, .instance = OWNER};
        assert_int_equal(mfl_share_open(&options, &again, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, ".lock"));
        assert_null(again);
        mfl_share_close(share);
        mfl_share_close(open_share(OWNER));
}

/* Starts, shares, is whole, and ends or is killed, again and again beside others that do the same. */
static _Noreturn void start_again_and_again(unsigned child, int ready, int go)
{
        char c;
        CHILD_CHECK(write(ready, "x", 1) == 1 && read(go, &c, 1) == 0);
        for (uint64_t i = 0; i < 60; i++) {
                struct mfl_share_options options = {.dir = dir, .instance = (uint64_t)child << 32 | (i + 1)};
                struct mfl_share *share;
                struct mfl_share_buffer *buffer;
                struct mfl_share_view *view;
                CHILD_CHECK(!mfl_share_open(&options, &share, &err));
                CHILD_CHECK(!mfl_share_buffer_new(share, 8, &buffer, &err));
                CHILD_CHECK(!mfl_share_publish(buffer, key_a, &err));
                CHILD_CHECK(!mfl_share_view_open(share, options.instance, key_a, 8, &view, &err));
                mfl_share_view_close(view);
                if (i == 59 && child % 2)
                        kill(getpid(), SIGKILL);
                mfl_share_withdraw(buffer);
                CHILD_CHECK(!mfl_share_publish(buffer, key_b, &err));
                mfl_share_buffer_free(buffer);
                mfl_share_close(share);
        }
        _exit(0);
}

static void starters_do_not_remove_each_other(void **state)
{
        enum { CHILDREN = 4 };
        for (int round = 0; round < 5; round++) {
                pid_t pids[CHILDREN];
                int ready[2], go[2];
                char c;
                assert_true(!pipe2(ready, O_CLOEXEC) && !pipe2(go, O_CLOEXEC));
                for (unsigned i = 0; i < CHILDREN; i++) {
                        pids[i] = fork();
                        assert_true(pids[i] >= 0);
                        if (!pids[i]) {
                                close(go[1]);
                                start_again_and_again(i + 1, ready[1], go[0]);
                        }
                }
                for (int i = 0; i < CHILDREN; i++)
                        assert_int_equal(read(ready[0], &c, 1), 1);
                close(go[1]);
                for (int i = 0; i < CHILDREN; i++)
                        assert_int_equal(exit_status(pids[i]), (i + 1) % 2 ? -1 : 0);
                close(go[0]), close(ready[0]), close(ready[1]);
                mfl_share_close(open_share(OTHER));
                assert_int_equal(count_files(""), 0);
        }
}

/* ---- leftovers, and things in the way ---- */

static void leftovers_are_told_from_the_rest(void **state)
{
        char path[256];
        static const char *const gone[] = {".lock", "-0", ".new3"}, *const kept[] = {".lockx", "-", "-1x",
                                                                            ".key", "0-1", ".new", ""};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(gone); i++) {
                path_of(path, OWNER, gone[i]);
                put_file(path, 0600, 10);
        }
        path_of_key(path, OWNER, key_a);
        put_file(path, 0600, 10);
        /* Without a lock file. */
        path_of(path, READER, "-17");
        put_file(path, 0600, 10);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(kept); i++) {
                path_of(path, OWNER, kept[i]);
                put_file(path, 0600, 10);
        }
        path_of(path, OTHER, "-1");
        assert_int_equal(symlink("/dev/null", path), 0);
        char foreign[256];
        path_of(foreign, OTHER, "-2");
        put_file(foreign, 0600, 10);
        bool root = !chown(foreign, 12345, (gid_t)-1);
        mfl_share_close(open_share(0x1234));
        assert_int_equal(count_files_of(OWNER), MFL_ARRAY_SIZE(kept));
        assert_int_equal(count_files_of(READER), 0);
        assert_int_equal(count_files_of(OTHER), root ? 2 : 1);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(kept); i++) {
                path_of(path, OWNER, kept[i]);
                assert_int_equal(unlink(path), 0);
        }
        path_of(path, OTHER, "-1");
        assert_int_equal(unlink(path), 0);
        unlink(foreign);
}

static void what_is_in_the_way_is_not_followed(void **state)
{
        char target[256], path[256];
        struct stat st;
        snprintf(target, sizeof target, "%s/target", dir);
        put_file(target, 0600, 3);
        struct mfl_share *share = open_share(OWNER);
        path_of(path, OWNER, "-0");
        assert_int_equal(symlink(target, path), 0);
        struct mfl_share_buffer *buffer = new_buffer(share, 1);
        path_of(path, OWNER, "-1");
        assert_int_equal(lstat(path, &st), 0);
        assert_int_equal(st.st_mode, S_IFREG | 0600);
        /* A link under the key is replaced; a directory can't be. */
        path_of_key(path, OWNER, key_a);
        assert_int_equal(symlink(target, path), 0);
        publish(buffer, key_a);
        assert_int_equal(try_view(share, OWNER, key_a, BYTES), 0);
        path_of_key(path, OWNER, key_b);
        assert_int_equal(mkdir(path, 0700), 0);
        assert_int_equal(mfl_share_publish(buffer, key_b, &err), MFL_INVALID);
        assert_int_equal(try_view(share, OWNER, key_b, BYTES), MFL_INVALID);
        assert_int_equal(try_view(share, OWNER, key_a, BYTES), 0);
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(stat(target, &st), 0);
        assert_int_equal(st.st_size, 3);
        mfl_share_buffer_free(buffer);
        mfl_share_close(share);
        path_of(path, OWNER, "-0");
        unlink(path);
        path_of(path, OWNER, ".lock");
        assert_int_equal(symlink(target, path), 0);
        struct mfl_share_options options = {.dir = dir, .instance = OWNER};
        assert_int_equal(mfl_share_open(&options, &share, &err), MFL_INVALID);
        unlink(path);
        unlink(target);
}

static void only_own_files_are_read(void **state)
{
        struct mfl_share *share = open_share(READER);
        char path[256], other[256];
        path_of_key(path, OWNER, key_a);
        put_file(path, 0644, BYTES);
        assert_int_equal(try_view(share, OWNER, key_a, BYTES), MFL_INVALID);
        assert_non_null(strstr(err.text, "not a file of this user"));
        assert_int_equal(chmod(path, 0620), 0);
        assert_int_equal(try_view(share, OWNER, key_a, BYTES), MFL_INVALID);
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(try_view(share, OWNER, key_a, BYTES), 0);
        assert_int_equal(truncate(path, BYTES + 1), 0);
        assert_int_equal(try_view(share, OWNER, key_a, BYTES), MFL_INVALID);
        assert_int_equal(truncate(path, BYTES), 0);
        if (!chown(path, 12345, (gid_t)-1)) {
                assert_int_equal(try_view(share, OWNER, key_a, BYTES), MFL_INVALID);
                assert_int_equal(chown(path, geteuid(), (gid_t)-1), 0);
        }
        assert_int_equal(try_view(share, OWNER, key_a, BYTES), 0);
        snprintf(other, sizeof other, "%s/other", dir);
        assert_int_equal(rename(path, other), 0);
        assert_int_equal(symlink(other, path), 0);
        assert_int_equal(try_view(share, OWNER, key_a, BYTES), MFL_INVALID);
        unlink(path);
        unlink(other);
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_int_equal(try_view(share, OWNER, key_a, BYTES), MFL_INVALID);
        unlink(path);
        mfl_share_close(share);
}

/* ---- directories ---- */

static int try_dir(const char *where)
{
        struct mfl_share_options options = {.dir = where, .instance = OWNER};
        struct mfl_share *share = NULL;
        int r = mfl_share_open(&options, &share, &err);
        mfl_share_close(share);
        return r;
}

static void directories_that_will_not_do(void **state)
{
        char path[128];
        snprintf(path, sizeof path, "%s/x", dir);
        assert_int_equal(try_dir(path), MFL_INVALID);
        put_file(path, 0600, 0);
        assert_int_equal(try_dir(path), MFL_INVALID);
        assert_int_equal(unlink(path), 0);
        assert_true(!mkdir(path, 0700) && !chmod(path, 0777));
        assert_int_equal(try_dir(path), MFL_INVALID);
        assert_non_null(strstr(err.text, "sticky"));
        assert_int_equal(chmod(path, 01777), 0);
        assert_int_equal(try_dir(path), 0);
        if (geteuid()) {
                assert_int_equal(chmod(path, 0500), 0);
                assert_int_equal(try_dir(path), MFL_INVALID);
        }
        assert_int_equal(rmdir(path), 0);
}

static void a_daemon_has_its_limit(void **state)
{
        struct mfl_share_options options = {.dir = dir, .instance = OWNER, .bytes_max = 2 * BYTES};
        struct mfl_share *share = NULL;
        assert_int_equal(mfl_share_open(&options, &share, &err), 0);
        struct mfl_share_buffer *one = new_buffer(share, 1), *two = new_buffer(share, 2), *more = NULL;
        assert_int_equal(mfl_share_buffer_new(share, 1, &more, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "0.6 of its 0.6 MiB"));
        mfl_share_buffer_free(one);
        assert_int_equal(mfl_share_buffer_new(share, BYTES + 1, &more, &err), MFL_INVALID);
        one = new_buffer(share, 1);
        mfl_share_buffer_free(one);
        mfl_share_buffer_free(two);
        assert_int_equal(count_files_of(OWNER), 1);
        mfl_share_close(share);
}

/* Mounts of its own, in a process of its own. */
static void leave_the_mounts(void)
{
        if (unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS) ||
                mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
                _exit(CHILD_SKIPPED);
}

static _Noreturn void fill_a_small_directory(void)
{
        leave_the_mounts();
        if (mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=1777"))
                _exit(CHILD_SKIPPED);
        struct mfl_share_options options = {.dir = dir, .instance = OWNER};
        struct mfl_share *share;
        struct mfl_share_buffer *buffer, *more = NULL;
        CHILD_CHECK(!mfl_share_open(&options, &share, &err));
        CHILD_CHECK(!mfl_share_buffer_new(share, 700 * 1024, &buffer, &err));
        CHILD_CHECK(mfl_share_buffer_new(share, 400 * 1024, &more, &err) == MFL_INVALID && !more);
        CHILD_CHECK(strstr(err.text, "0.4 MiB") && strstr(err.text, "0.3 of 1.0 MiB are free") &&
                    strstr(err.text, "larger /dev/shm"));
        CHILD_CHECK(mfl_share_buffer_new(share, INT64_MAX, &more, &err) == MFL_INVALID && !more);
        CHILD_CHECK(count_files_of(OWNER) == 2);
        memset(mfl_share_buffer_data(buffer), 1, 700 * 1024);
        mfl_share_buffer_free(buffer);
        CHILD_CHECK(!mfl_share_buffer_new(share, 900 * 1024, &buffer, &err));
        mfl_share_buffer_free(buffer);
        mfl_share_close(share);
        _exit(0);
}

static void a_full_directory_is_told(void **state)
{
        pid_t pid = fork();
        if (!pid)
                fill_a_small_directory();
        int status = exit_status(pid);
        if (status == CHILD_SKIPPED) {
                skip_for("may not mount a small tmpfs here");
        }
        assert_int_equal(status, 0);
}

/* A disk under the name of the default directory. */
static _Noreturn void put_a_disk_there(void)
{
        struct statfs fs;
        leave_the_mounts();
        if (statfs("/", &fs) || fs.f_type == TMPFS_MAGIC || mount("/", "/dev/shm", NULL, MS_BIND, NULL))
                _exit(CHILD_SKIPPED);
        CHILD_CHECK(try_dir(NULL) == MFL_INVALID);
        CHILD_CHECK(strstr(err.text, "no tmpfs"));
        _exit(0);
}

static void the_default_directory_is_in_memory(void **state)
{
        struct statfs fs;
        if (!statfs("/dev/shm", &fs) && fs.f_type == TMPFS_MAGIC)
                assert_int_equal(try_dir(NULL), 0);
        pid_t pid = fork();
        if (!pid)
                put_a_disk_there();
        int status = exit_status(pid);
        if (status == CHILD_SKIPPED) {
                skip_for("may not mount a disk there");
        }
        assert_int_equal(status, 0);
}

/* ---- memory ---- */

static void allocation_failures_are_swept(void **state)
{
        bool done = false;
        for (long at = 0; !done; at++) {
                struct mfl_share_options options = {.dir = dir, .instance = OWNER};
                struct mfl_share *share = NULL;
                struct mfl_share_buffer *buffer = NULL;
                struct mfl_share_view *view = NULL;
                mfl_alloc_fail_at(at);
                int r = mfl_share_open(&options, &share, &err);
                if (!r)
                        r = mfl_share_buffer_new(share, BYTES, &buffer, &err);
                if (!r)
                        r = mfl_share_publish(buffer, key_a, &err);
                if (!r)
                        r = mfl_share_view_open(share, OWNER, key_a, BYTES, &view, &err);
                done = !mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, done ? 0 : -ENOMEM);
                mfl_share_view_close(view);
                mfl_share_buffer_free(buffer);
                mfl_share_close(share);
                assert_int_equal(count_files(""), 0);
                assert_true(at < 20);
        }
        mfl_share_view_close(NULL);
        mfl_share_buffer_free(NULL);
        mfl_share_close(NULL);
}

/* As systemd does when a user logs out. */
static void what_somebody_removes_is_given_up(void **state)
{
        char path[256];
        struct mfl_share *owner = open_share(OWNER), *reader;
        struct mfl_share_buffer *hidden = new_buffer(owner, 1), *shown = new_buffer(owner, 2), *next;
        publish(shown, key_a);
        DIR *d = opendir(dir);
        assert_non_null(d);
        for (struct dirent *entry; (entry = readdir(d));)
                if (entry->d_name[0] != '.')
                        assert_int_equal(unlinkat(dirfd(d), entry->d_name, 0), 0);
        closedir(d);
        assert_int_equal(mfl_share_publish(hidden, key_b, &err), MFL_INVALID);
        mfl_share_withdraw(shown);
        assert_false(mfl_share_idle(hidden) || mfl_share_idle(shown));
        mfl_share_buffer_free(hidden);
        mfl_share_buffer_free(shown);

        next = new_buffer(owner, 3);
        publish(next, key_a);
        path_of(path, OWNER, ".lock");
        assert_int_equal(access(path, F_OK), 0);
        reader = open_share(READER); /* removes what the dead left */
        struct mfl_share_view *view = open_view(reader, OWNER, key_a);
        assert_true(sees(view, 3));
        assert_int_equal(try_view(reader, OWNER, key_b, BYTES), MFL_NOT_FOUND);
        mfl_share_view_close(view);
        mfl_share_close(reader);
        mfl_share_withdraw(next);
        assert_true(mfl_share_idle(next));
        mfl_share_buffer_free(next);
        mfl_share_close(owner);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        const struct CMUnitTest tests[] = {TEST(a_published_buffer_is_read),
                TEST(a_view_cannot_be_written_to), TEST(a_key_is_of_one_buffer_and_a_buffer_of_one_key),
                TEST(a_map_is_kept_as_long_as_the_buffer), TEST(directories_have_numbers),
                TEST(readers_see_whole_buffers),
                TEST(what_is_withdrawn_between_opening_and_locking_is_not_read),
                TEST(a_starter_that_is_overtaken_removes_nothing), TEST(a_killed_owner_leaves_readers_alone),
                TEST(a_stopped_owner_is_alive), TEST(a_killed_reader_lets_go), TEST(an_instance_lives_once),
                TEST(starters_do_not_remove_each_other), TEST(leftovers_are_told_from_the_rest),
                TEST(what_is_in_the_way_is_not_followed), TEST(only_own_files_are_read),
                TEST(directories_that_will_not_do), TEST(a_daemon_has_its_limit),
                TEST(a_full_directory_is_told), TEST(the_default_directory_is_in_memory),
                TEST(what_somebody_removes_is_given_up), TEST(allocation_failures_are_swept)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
