/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's contract: order, exactly one callback, closing at every moment. */
#include "tests/lib/test.h"
#include "common/base/worker.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

enum { MANY = 500 };

struct item {
        struct mfl_work work;
        int id, n_runs, n_dones;
        bool cancelled, resubmit;
        uv_sem_t *wait_for;
};

static struct {
        uv_loop_t loop;
        struct mfl_worker worker;
        struct item items[MANY];
        int run_order[MANY * 2], n_run, done_order[MANY * 2], n_done, n_closed;
        pthread_t loop_thread;
        bool close_in_first_done;
} t;

static void on_close(struct mfl_worker *worker)
{
        assert_ptr_equal(worker, &t.worker);
        assert_int_equal(mfl_worker_pending(worker), 0);
        t.n_closed++;
}

static void run(struct mfl_work *work)
{
        struct item *item = MFL_CONTAINER_OF(work, struct item, work);
        if (item->wait_for)
                uv_sem_wait(item->wait_for);
        item->n_runs++;
        t.run_order[t.n_run++] = item->id;
}

static void done(struct mfl_work *work)
{
        struct item *item = MFL_CONTAINER_OF(work, struct item, work);
        assert_true(pthread_equal(pthread_self(), t.loop_thread));
        item->n_dones++;
        item->cancelled = work->cancelled;
        t.done_order[t.n_done++] = item->id;
        if (t.close_in_first_done)
                mfl_worker_close(&t.worker, on_close);
        if (item->resubmit) {
                item->resubmit = false;
                assert_int_equal(mfl_worker_submit(&t.worker, work), 0);
        }
}

static int setup(void **state)
{
        memset(&t, 0, sizeof t);
        t.loop_thread = pthread_self();
        for (int i = 0; i < MANY; i++) {
                t.items[i].id = i;
                t.items[i].work.run = run;
                t.items[i].work.done = done;
        }
        assert_int_equal(uv_loop_init(&t.loop), 0);
        assert_int_equal(mfl_worker_start(&t.worker, &t.loop, "a-name-longer-than-fifteen", MANY, NULL), 0);
        return 0;
}

static int teardown(void **state)
{
        mfl_worker_close(&t.worker, on_close);
        uv_run(&t.loop, UV_RUN_DEFAULT);
        assert_int_equal(t.n_closed, 1);
        assert_int_equal(uv_loop_close(&t.loop), 0);
        return 0;
}

static void submit(int i)
{
        assert_int_equal(mfl_worker_submit(&t.worker, &t.items[i].work), 0);
}

static void run_until_done(int n)
{
        while (t.n_done < n)
                uv_run(&t.loop, UV_RUN_ONCE);
}

static void work_is_run_and_done_in_order(void **state)
{
        for (int i = 0; i < MANY; i++)
                submit(i);
        run_until_done(MANY);
        for (int i = 0; i < MANY; i++) {
                assert_int_equal(t.run_order[i], i);
                assert_int_equal(t.done_order[i], i);
                assert_int_equal(t.items[i].n_dones, 1);
                assert_false(t.items[i].cancelled);
        }
        assert_int_equal(mfl_worker_pending(&t.worker), 0);
}

static void done_may_submit_again(void **state)
{
        t.items[0].resubmit = true;
        submit(0);
        submit(1);
        run_until_done(3);
        assert_int_equal(t.items[0].n_runs, 2);
        assert_int_equal(t.done_order[0], 0);
        assert_int_equal(t.done_order[1], 1);
        assert_int_equal(t.done_order[2], 0);
}

static void a_full_queue_refuses(void **state)
{
        struct item extra = {.work = {.run = run, .done = done}};
        for (int i = 0; i < MANY; i++)
                submit(i);
        assert_int_equal(mfl_worker_submit(&t.worker, &extra.work), MFL_BUSY);
        run_until_done(MANY);
        assert_int_equal(extra.n_dones, 0);
}

static void closing_cancels_what_has_not_started(void **state)
{
        uv_sem_t gate;
        uv_sem_init(&gate, 0);
        t.items[0].wait_for = &gate;
        submit(0);
        for (int i = 1; i < 10; i++)
                submit(i);
        /* The first one is taken before the close, because it is seen to wait. */
        for (bool taken = false; !taken;) {
                uv_mutex_lock(&t.worker.lock);
                taken = t.worker.queued.first == &t.items[1].work;
                uv_mutex_unlock(&t.worker.lock);
        }
        mfl_worker_close(&t.worker, on_close);
        mfl_worker_close(&t.worker, NULL);
        assert_int_equal(mfl_worker_submit(&t.worker, &t.items[20].work), MFL_BUSY);
        assert_int_equal(t.n_done, 0);
        uv_sem_post(&gate);
        uv_run(&t.loop, UV_RUN_DEFAULT);
        assert_int_equal(t.n_closed, 1);
        assert_int_equal(t.n_done, 10);
        for (int i = 0; i < 10; i++) {
                assert_int_equal(t.done_order[i], i);
                assert_int_equal(t.items[i].n_dones, 1);
                assert_int_equal(t.items[i].n_runs, i == 0);
                assert_int_equal(t.items[i].cancelled, i != 0);
        }
        assert_int_equal(t.items[20].n_dones, 0);
        uv_sem_destroy(&gate);
}

static void closing_from_done_gives_everyone_one_callback(void **state)
{
        t.close_in_first_done = true;
        for (int i = 0; i < MANY; i++)
                submit(i);
        uv_run(&t.loop, UV_RUN_DEFAULT);
        assert_int_equal(t.n_closed, 1);
        assert_int_equal(t.n_done, MANY);
        for (int i = 0; i < MANY; i++) {
                assert_int_equal(t.done_order[i], i);
                assert_int_equal(t.items[i].n_dones, 1);
                assert_int_equal(t.items[i].n_runs, !t.items[i].cancelled);
        }
}

static void closing_an_idle_worker(void **state)
{
        mfl_worker_close(&t.worker, on_close);
        assert_int_equal(t.n_closed, 0);
        uv_run(&t.loop, UV_RUN_DEFAULT);
        assert_int_equal(t.n_closed, 1);
}

static void check_signals(struct mfl_work *work)
{
        sigset_t set;
        pthread_sigmask(SIG_SETMASK, NULL, &set);
        MFL_CONTAINER_OF(work, struct item, work)->n_runs =
                sigismember(&set, SIGTERM) && sigismember(&set, SIGCHLD);
}

static void signals_stay_on_the_loop_thread(void **state)
{
        t.items[0].work.run = check_signals;
        submit(0);
        run_until_done(1);
        assert_int_equal(t.items[0].n_runs, 1);
        sigset_t set;
        pthread_sigmask(SIG_SETMASK, NULL, &set);
        assert_false(sigismember(&set, SIGTERM));
}

static void it_tells_for_how_long_work_runs(void **state)
{
        uv_sem_t go;
        struct timespec nap = {.tv_nsec = 1000000};
        uv_sem_init(&go, 0);
        assert_int_equal(mfl_worker_running_ms(&t.worker), 0);
        t.items[0].wait_for = &go;
        submit(0);
        while (mfl_worker_running_ms(&t.worker) < 3)
                nanosleep(&nap, NULL);
        uv_sem_post(&go);
        while (mfl_worker_running_ms(&t.worker))
                nanosleep(&nap, NULL);
        run_until_done(1);
        uv_sem_destroy(&go);
}

#define WORKER_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                WORKER_TEST(work_is_run_and_done_in_order),
                WORKER_TEST(done_may_submit_again),
                WORKER_TEST(a_full_queue_refuses),
                WORKER_TEST(closing_cancels_what_has_not_started),
                WORKER_TEST(closing_from_done_gives_everyone_one_callback),
                WORKER_TEST(closing_an_idle_worker),
                WORKER_TEST(signals_stay_on_the_loop_thread),
                WORKER_TEST(it_tells_for_how_long_work_runs),
        };
        return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
