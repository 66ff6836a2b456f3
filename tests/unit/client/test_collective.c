/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over shared memory against plain loops: exact for every number of members, whoever is left out; what
 * is said to be ready is final; members that are gone, stopped or killed; cancelled and too late. */
#include "tests/lib/test.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/node/collective.h"
#include "client/node/collective_shm_add.h"

#define GROUP ((uint64_t)0x0123456789abcdef)
#define UNTOUCHED ((int64_t)0x5a5a5a5a5a5a5a5a)
#define LATER 60000 /* ms: never in a test */

static struct mfl_error err;
static char dir[64];
static uint64_t seed = 1;

static uint64_t draw(void)
{
        seed += 0x9e3779b97f4a7c15u;
        uint64_t x = seed;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
}

/* A member as one process would have it. */
struct member {
        struct mfl_share *share;
        struct mfl_share_buffer *buffer;
        int64_t *sum; /* n elements, in the buffer */
};

struct node {
        struct member members[MFL_GROUP_MAX];
        struct mfl_group group;
        uint64_t n;
};

static uint64_t instance_of(uint32_t rank)
{
        return 0xabc0000000000000u + rank;
}

static void publish(const struct member *member, uint64_t group)
{
        uint8_t key[MFL_SHARE_KEY_BYTES];
        mfl_collective_key(group, key);
        if (mfl_share_publish(member->buffer, key, &err))
                fail_msg("%s", err.text);
}

/* Every element is any 64-bit number, so sums wrap. */
static void open_member(struct node *node, uint32_t rank)
{
        struct member *member = &node->members[rank];
        struct mfl_share_options options = {.dir = dir, .instance = instance_of(rank)};
        if (mfl_share_open(&options, &member->share, &err) ||
                mfl_share_buffer_new(member->share, node->n * 8, &member->buffer, &err))
                fail_msg("%s", err.text);
        member->sum = mfl_share_buffer_data(member->buffer);
        for (uint64_t i = 0; i < node->n; i++)
                member->sum[i] = (int64_t)draw();
        publish(member, node->group.group);
}

static void close_member(struct member *member)
{
        mfl_share_buffer_free(member->buffer);
        mfl_share_close(member->share);
        *member = (struct member){0};
}

static struct node *open_node(uint32_t k, uint64_t n)
{
        struct node *node = mfl_calloc(1, sizeof(*node));
        assert_non_null(node);
        node->n = n;
        node->group = (struct mfl_group){
                .group = GROUP, .collective = MFL_COLLECTIVE_SHM, .n_members = k, .workers = 1};
        for (uint32_t rank = 0; rank < k; rank++) {
                node->group.members[rank] = instance_of(rank);
                open_member(node, rank);
        }
        return node;
}

static void close_node(struct node *node)
{
        for (uint32_t rank = 0; rank < node->group.n_members; rank++)
                close_member(&node->members[rank]);
        free(node);
}

static int64_t sum_at(const struct node *node, uint64_t ranks, uint64_t i)
{
        uint64_t sum = 0;
        for (uint32_t rank = 0; rank < node->group.n_members; rank++)
                if (ranks >> rank & 1)
                        sum += (uint64_t)node->members[rank].sum[i];
        return (int64_t)sum;
}

static void check_sum(const struct node *node, uint64_t ranks, const int64_t *out, uint64_t n)
{
        for (uint64_t i = 0; i < n; i++)
                if (out[i] != sum_at(node, ranks, i))
                        fail_msg("element %" PRIu64 " of %" PRIu64 ", ranks %" PRIx64, i, node->n, ranks);
}

static struct mfl_collective *new_collective(struct node *node, uint32_t rank, uint32_t threads)
{
        struct mfl_collective *collective = NULL;
        if (mfl_collective_shm_new(node->members[rank].share, threads, &collective, &err))
                fail_msg("%s", err.text);
        return collective;
}

static int64_t *new_out(uint64_t n)
{
        int64_t *out = mfl_alloc_aligned(n * 8);
        assert_non_null(out);
        for (uint64_t i = 0; i < n; i++)
                out[i] = UNTOUCHED;
        return out;
}

static int combine(struct mfl_collective *collective, const struct node *node, uint64_t ranks, uint32_t rank,
        int64_t *out, uint32_t deadline_ms, struct mfl_comm_control *control)
{
        struct mfl_group group = node->group;
        group.rank = rank;
        struct mfl_combine order = {.group = &group,
                .ranks = ranks,
                .leader = rank,
                .n = node->n,
                .own = node->members[rank].sum,
                .out = out,
                .deadline_ms = deadline_ms,
                .control = control};
        return collective->ops->combine(collective, &order, &err);
}

static void add_and_check(struct node *node, uint64_t ranks, uint32_t leader, uint32_t threads)
{
        struct mfl_collective *collective = new_collective(node, leader, threads);
        struct mfl_comm_control control = {0};
        int64_t *out = new_out(node->n);
        if (combine(collective, node, ranks, leader, out, LATER, &control))
                fail_msg("%s", err.text);
        check_sum(node, ranks, out, node->n);
        assert_true(atomic_load(&control.ready) == node->n);
        free(out);
        mfl_collective_close(collective);
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

/* ---- sums ---- */

static void sums_are_exact(void **state)
{
        const uint64_t slice = MFL_ADDER_SLICE;
        const uint64_t sizes[] = {1, 31, 32, 33, slice - 1, slice, slice + 1, 3 * slice + 17};
        for (uint32_t k = 1; k <= 9; k++)
                for (size_t s = 0; s < MFL_ARRAY_SIZE(sizes); s++) {
                        struct node *node = open_node(k, sizes[s]);
                        uint64_t all = ((uint64_t)1 << k) - 1;
                        uint32_t leader = (uint32_t)(draw() % k);
                        add_and_check(node, all, leader, 1 + (uint32_t)(s % 3));
                        add_and_check(node, (draw() & all) | (uint64_t)1 << leader, leader, 3);
                        close_node(node);
                }
}

static void the_largest_group_is_added(void **state)
{
        struct node *node = open_node(MFL_GROUP_MAX, 1000);
        add_and_check(node, UINT64_MAX, MFL_GROUP_MAX - 1, 2);
        add_and_check(node, draw() | 1, 0, 2);
        close_node(node);
}

/* Any aligned-to-8 place will do, and nothing beyond it is written. */
static void out_may_lie_anywhere(void **state)
{
        const uint64_t n = MFL_ADDER_SLICE + 100;
        struct node *node = open_node(3, n);
        struct mfl_collective *collective = new_collective(node, 0, 2);
        for (size_t shift = 1; shift <= 8; shift++) {
                struct mfl_comm_control control = {0};
                int64_t *out = new_out(n + 16);
                assert_int_equal(combine(collective, node, 7, 0, out + shift, LATER, &control), 0);
                check_sum(node, 7, out + shift, n);
                assert_true(out[shift - 1] == UNTOUCHED && out[shift + n] == UNTOUCHED);
                free(out);
        }
        mfl_collective_close(collective);
        close_node(node);
}

static void only_the_leader_adds(void **state)
{
        struct node *node = open_node(2, 100);
        struct mfl_collective *collective = new_collective(node, 1, 1);
        assert_int_equal(collective->ops->kind, MFL_COLLECTIVE_SHM);
        assert_string_equal(collective->ops->name, "shm");
        assert_null(collective->ops->communicator);
        /* The other's sum is not even there. */
        mfl_share_withdraw(node->members[0].buffer);
        struct mfl_comm_control control = {0};
        node->group.rank = 1;
        struct mfl_combine order = {.group = &node->group,
                .ranks = 3,
                .leader = 0,
                .n = 100,
                .own = node->members[1].sum,
                .deadline_ms = 0,
                .control = &control};
        assert_int_equal(collective->ops->combine(collective, &order, &err), 0);
        assert_true(atomic_load(&control.ready) == 0);
        mfl_collective_close(collective);
        close_node(node);
}

/* Rounds: members write new sums into the same buffers as soon as nobody reads them. */
static void sums_of_round_after_round(void **state)
{
        struct node *node = open_node(3, 40000);
        struct mfl_collective *collective = new_collective(node, 2, 2);
        int64_t *out = new_out(node->n);
        for (uint64_t round = 1; round <= 5; round++) {
                node->group.group = GROUP + round;
                for (uint32_t rank = 0; rank < 3; rank++) {
                        struct member *member = &node->members[rank];
                        mfl_share_withdraw(member->buffer);
                        assert_true(mfl_share_idle(member->buffer));
                        for (uint64_t i = 0; i < node->n; i++)
                                member->sum[i] = (int64_t)draw();
                        publish(member, node->group.group);
                }
                struct mfl_comm_control control = {0};
                assert_int_equal(combine(collective, node, 7, 2, out, LATER, &control), 0);
                check_sum(node, 7, out, node->n);
                /* A member that restarted: another instance, the same rank. */
                if (round == 3) {
                        close_member(&node->members[0]);
                        open_member(node, 0);
                }
        }
        free(out);
        mfl_collective_close(collective);
        close_node(node);
}

/* ---- what is ready is final, and grows ---- */

struct watcher {
        const struct node *node;
        const int64_t *out;
        struct mfl_comm_control *control;
        atomic_bool stop;
        uint64_t wrong, steps; /* elements that were not final; times that ready had grown */
};

static void *watch(void *arg)
{
        struct watcher *w = arg;
        uint64_t seen = 0;
        for (bool last = false; !last;) {
                last = atomic_load(&w->stop);
                uint64_t ready = atomic_load(&w->control->ready);
                if (ready < seen || ready > w->node->n)
                        w->wrong++;
                for (uint64_t i = seen; i < ready; i++)
                        w->wrong += w->out[i] != sum_at(w->node, 7, i);
                w->steps += ready > seen;
                seen = MFL_MAX(seen, ready);
        }
        w->wrong += seen != w->node->n;
        return NULL;
}

static void what_is_ready_is_final(void **state)
{
        struct node *node = open_node(3, 40 * MFL_ADDER_SLICE + 5);
        struct mfl_collective *collective = new_collective(node, 0, 3);
        for (int round = 0; round < 5; round++) {
                struct mfl_comm_control control = {0};
                int64_t *out = new_out(node->n);
                struct watcher watcher = {.node = node, .out = out, .control = &control};
                pthread_t thread;
                assert_int_equal(pthread_create(&thread, NULL, watch, &watcher), 0);
                int r = combine(collective, node, 7, 0, out, LATER, &control);
                atomic_store(&watcher.stop, true);
                pthread_join(thread, NULL);
                assert_int_equal(r, 0);
                assert_true(watcher.wrong == 0 && watcher.steps >= 1);
                free(out);
        }
        mfl_collective_close(collective);
        close_node(node);
}

/* A slice that can't be read when its turn comes. */
#define BLOCKED 3

static struct {
        struct mfl_comm_control control;
        void *page;
        size_t bytes;
        const int64_t *after; /* of the slice after it, in the sum */
        _Atomic int64_t after_value;
        atomic_uint_least64_t ready;
} blocked;

/* Long enough for another thread to go on. */
static void on_blocked(int number)
{
        usleep(20000);
        atomic_store(&blocked.ready, atomic_load(&blocked.control.ready));
        atomic_store(&blocked.after_value, *(volatile const int64_t *)blocked.after);
        if (mprotect(blocked.page, blocked.bytes, PROT_READ))
                abort();
}

/* All that lies before the blocked slice must have been told by then, and with two threads nothing after;
 * with one at work nobody has touched what lies behind. */
static void add_past_a_blocked_slice(uint32_t threads, uint32_t at_most)
{
        bool alone = threads == 1 || at_most == 1;
        atomic_store(&blocked.control.ready, 0);
        const uint64_t n = 5 * MFL_ADDER_SLICE;
        blocked.bytes = MFL_ADDER_SLICE * 8;
        int64_t *in = mmap(NULL, n * 8, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(in != MAP_FAILED);
        blocked.page = in + BLOCKED * MFL_ADDER_SLICE;
        assert_int_equal(mprotect(blocked.page, blocked.bytes, PROT_NONE), 0);
        struct sigaction action = {.sa_handler = on_blocked}, before;
        assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
        struct mfl_adder *adder = NULL;
        int64_t *out = new_out(n);
        blocked.after = out + (BLOCKED + 1) * MFL_ADDER_SLICE;
        assert_int_equal(mfl_adder_new(threads, &adder, &err), 0);
        struct mfl_addition addition = {.k = 1,
                .threads = at_most,
                .n = n,
                .in = {in},
                .out = out,
                .end_ms = UINT64_MAX,
                .control = &blocked.control};
        assert_int_equal(mfl_adder_run(adder, &addition), MFL_ADDER_DONE);
        assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
        uint64_t ready = atomic_load(&blocked.ready);
        assert_true(ready <= BLOCKED * MFL_ADDER_SLICE);
        assert_true(ready == BLOCKED * MFL_ADDER_SLICE || !alone);
        assert_true(atomic_load(&blocked.after_value) == UNTOUCHED || !alone);
        assert_true(atomic_load(&blocked.control.ready) == n && out[0] == 0 && out[n - 1] == 0);
        mfl_adder_free(adder);
        free(out);
        munmap(in, n * 8);
}

static void what_is_final_is_told_at_once_and_nothing_else(void **state)
{
        add_past_a_blocked_slice(1, 0);
        add_past_a_blocked_slice(2, 0);
        add_past_a_blocked_slice(3, 1);
}

/* ---- broken ---- */

static void expect_broken(struct mfl_collective *collective, const struct node *node, const char *text)
{
        struct mfl_comm_control control = {0};
        int64_t *out = new_out(node->n);
        err.text[0] = 0;
        assert_int_equal(combine(collective, node, 7, 0, out, LATER, &control), MFL_COLLECTIVE_BROKEN);
        if (!strstr(err.text, text))
                fail_msg("\"%s\" is not in \"%s\"", text, err.text);
        assert_true(atomic_load(&control.ready) == 0 && out[0] == UNTOUCHED);
        free(out);
}

static void a_missing_member_is_named(void **state)
{
        struct node *node = open_node(3, 1000);
        struct mfl_collective *collective = new_collective(node, 0, 2);
        mfl_share_withdraw(node->members[2].buffer);
        expect_broken(collective, node, "mfl-abc0000000000002");
        publish(&node->members[2], GROUP + 1);
        expect_broken(collective, node, "not there");
        publish(&node->members[2], GROUP);
        add_and_check(node, 7, 0, 1);
        /* One that laid out something of another length. */
        mfl_share_buffer_free(node->members[1].buffer);
        assert_int_equal(
                mfl_share_buffer_new(node->members[1].share, 8 * 999, &node->members[1].buffer, &err), 0);
        publish(&node->members[1], GROUP);
        expect_broken(collective, node, "7992 bytes, expected 8000");
        /* One that is gone; all that others read is theirs again. */
        close_member(&node->members[1]);
        expect_broken(collective, node, "mfl-abc0000000000001");
        expect_broken(collective, node, "dead");
        mfl_share_withdraw(node->members[2].buffer);
        assert_true(mfl_share_idle(node->members[2].buffer));
        mfl_collective_close(collective);
        close_node(node);
}

static void orders_that_do_not_fit_are_refused(void **state)
{
        struct node *node = open_node(2, 10);
        struct mfl_collective *collective = new_collective(node, 0, 1);
        struct mfl_comm_control control = {0};
        int64_t out[10];
        assert_int_equal(combine(collective, node, 4 | 1, 0, out, LATER, &control), MFL_COLLECTIVE_BROKEN);
        assert_int_equal(combine(collective, node, 2, 0, out, LATER, &control), MFL_COLLECTIVE_BROKEN);
        uint64_t n = node->n;
        const uint64_t wrong[] = {0, UINT64_MAX, (uint64_t)1 << 61, 11};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(wrong); i++) {
                node->n = wrong[i];
                assert_int_equal(
                        combine(collective, node, 3, 0, out, LATER, &control), MFL_COLLECTIVE_BROKEN);
        }
        node->n = n;
        assert_int_equal(combine(collective, node, 3, 0, out, LATER, &control), 0);
        mfl_collective_close(collective);
        close_node(node);
}

/* Sends the process's number when its sum is published. */
static pid_t start_member(struct node *node, uint32_t rank)
{
        int ends[2];
        char c;
        assert_int_equal(pipe(ends), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
                open_member(node, rank);
                if (write(ends[1], "x", 1) != 1)
                        _exit(1);
                for (;;)
                        pause();
        }
        assert_int_equal(read(ends[0], &c, 1), 1);
        close(ends[0]);
        close(ends[1]);
        return pid;
}

/* Nobody has to do anything for his sum to be added, so a member that is stopped after it announced can't
 * hold up the sum: there is no deadline to be tested with one. The same goes for one that is killed. */
static void stopped_and_killed_members_are_added(void **state)
{
        struct node *node = mfl_calloc(1, sizeof(*node));
        assert_non_null(node);
        node->n = 100000;
        node->group = (struct mfl_group){.group = GROUP, .n_members = 3};
        for (uint32_t rank = 0; rank < 3; rank++)
                node->group.members[rank] = instance_of(rank);
        /* The children draw what this process draws below, for the comparison. */
        uint64_t drawn = seed;
        pid_t stopped = start_member(node, 1), killed = start_member(node, 2);
        int status;
        assert_int_equal(kill(stopped, SIGSTOP), 0);
        assert_int_equal(waitpid(stopped, &status, WUNTRACED), stopped);
        assert_int_equal(kill(killed, SIGKILL), 0);
        assert_int_equal(waitpid(killed, NULL, 0), killed);
        /* Its share must not clean up before it has read: opened here, the dead one's sum goes. */
        int64_t *copy = new_out(node->n);
        seed = drawn;
        for (uint64_t i = 0; i < node->n; i++)
                copy[i] = (int64_t)draw();
        open_member(node, 0);
        struct mfl_collective *collective = new_collective(node, 0, 2);
        node->members[1].sum = node->members[2].sum = copy;
        struct mfl_comm_control control = {0};
        int64_t *out = new_out(node->n);
        assert_int_equal(combine(collective, node, 3, 0, out, LATER, &control), 0);
        check_sum(node, 3, out, node->n);
        expect_broken(collective, node, "mfl-abc0000000000002");
        assert_int_equal(kill(stopped, SIGKILL), 0);
        assert_int_equal(waitpid(stopped, NULL, 0), stopped);
        control = (struct mfl_comm_control){0};
        assert_int_equal(combine(collective, node, 3, 0, out, LATER, &control), 0);
        check_sum(node, 3, out, node->n);
        mfl_collective_close(collective);
        close_member(&node->members[0]);
        open_member(node, 0); /* removes what the killed ones left */
        close_member(&node->members[0]);
        free(out);
        free(copy);
        free(node);
}

static void what_is_cancelled_stops(void **state)
{
        struct node *node = open_node(2, 1000);
        struct mfl_collective *collective = new_collective(node, 0, 2);
        struct mfl_comm_control control = {0};
        int64_t *out = new_out(node->n);
        atomic_store(&control.cancel, true);
        assert_int_equal(combine(collective, node, 3, 0, out, LATER, &control), MFL_COLLECTIVE_BROKEN);
        assert_non_null(strstr(err.text, "cancelled"));
        assert_true(atomic_load(&control.ready) == 0 && out[0] == UNTOUCHED);
        atomic_store(&control.cancel, false);
        assert_int_equal(combine(collective, node, 3, 0, out, 0, &control), MFL_COLLECTIVE_BROKEN);
        assert_non_null(strstr(err.text, "0 of 1000 elements of the group's sum were added in 0 ms"));
        assert_int_equal(combine(collective, node, 3, 0, out, LATER, &control), 0);
        check_sum(node, 3, out, node->n);
        free(out);
        mfl_collective_close(collective);
        close_node(node);
}

static void *cancel_when_begun(void *arg)
{
        struct mfl_comm_control *control = arg;
        while (atomic_load(&control->ready) == 0)
                sched_yield();
        atomic_store(&control->cancel, true);
        return NULL;
}

static void what_is_cancelled_midway_is_final_as_far_as_it_came(void **state)
{
        struct node *node = open_node(2, 60 * MFL_ADDER_SLICE);
        struct mfl_collective *collective = new_collective(node, 0, 2);
        struct mfl_comm_control control = {0};
        int64_t *out = new_out(node->n);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, cancel_when_begun, &control), 0);
        int r = combine(collective, node, 3, 0, out, LATER, &control);
        pthread_join(thread, NULL);
        uint64_t ready = atomic_load(&control.ready);
        /* On a busy machine it may have been through before it was cancelled. */
        assert_int_equal(r, ready == node->n ? 0 : MFL_COLLECTIVE_BROKEN);
        assert_true(ready > 0);
        check_sum(node, 3, out, ready);
        mfl_share_withdraw(node->members[1].buffer);
        assert_true(mfl_share_idle(node->members[1].buffer));
        free(out);
        mfl_collective_close(collective);
        close_node(node);
}

/* ---- keys, memory ---- */

static void keys_tell_groups_apart(void **state)
{
        uint8_t one[MFL_SHARE_KEY_BYTES], two[MFL_SHARE_KEY_BYTES];
        for (int bit = 0; bit < 64; bit++) {
                mfl_collective_key(GROUP, one);
                mfl_collective_key(GROUP ^ (uint64_t)1 << bit, two);
                assert_memory_not_equal(one, two, sizeof one);
                mfl_collective_key(GROUP, two);
                assert_memory_equal(one, two, sizeof one);
        }
}

static void allocation_failures_are_swept(void **state)
{
        struct node *node = open_node(3, 100);
        bool done = false;
        for (long at = 0; !done; at++) {
                struct mfl_collective *collective = NULL;
                struct mfl_comm_control control = {0};
                int64_t out[100];
                mfl_alloc_fail_at(at);
                int r = mfl_collective_shm_new(node->members[0].share, 2, &collective, &err);
                if (!r)
                        r = combine(collective, node, 7, 0, out, LATER, &control);
                done = !mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, done ? 0 : -ENOMEM);
                if (done)
                        check_sum(node, 7, out, 100);
                mfl_collective_close(collective);
                for (uint32_t rank = 1; rank < 3; rank++) {
                        mfl_share_withdraw(node->members[rank].buffer);
                        assert_true(mfl_share_idle(node->members[rank].buffer));
                        publish(&node->members[rank], GROUP);
                }
                assert_true(at < 20);
        }
        mfl_collective_close(NULL);
        close_node(node);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        const struct CMUnitTest tests[] = {TEST(sums_are_exact), TEST(the_largest_group_is_added),
                TEST(out_may_lie_anywhere), TEST(only_the_leader_adds), TEST(sums_of_round_after_round),
                TEST(what_is_ready_is_final), TEST(what_is_final_is_told_at_once_and_nothing_else),
                TEST(a_missing_member_is_named), TEST(orders_that_do_not_fit_are_refused),
                TEST(stopped_and_killed_members_are_added), TEST(what_is_cancelled_stops),
                TEST(what_is_cancelled_midway_is_final_as_far_as_it_came), TEST(keys_tell_groups_apart),
                TEST(allocation_failures_are_swept)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
