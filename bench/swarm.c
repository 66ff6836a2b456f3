/* SPDX-License-Identifier: Apache-2.0 */
/* bench_swarm: many daemons in one process, with the true agent and link and no training, to load a server.
 *
 * Every daemon offers one data set, 'noop', of --features numbers a sample and --classes classes, which
 * exists only as an announcement. With the preset `logistic` a job on it has classes * (features + 1) params:
 *
 *     --features      1 --classes     2            4 params, the smallest model
 *     --features    784 --classes    10        7,850
 *     --features   4056 --classes   410    1,663,370 (as the CNN of the FedAvg paper)
 *     --features   2499 --classes 10000   25,000,000
 *
 * A daemon answers a training task after --delay-ms with an update of zeros (weight 1 a client), an
 * evaluation with one sample a shard. With --moving the update is not zero but small, so every round has new
 * params, which all daemons download. A task's turnaround is the time from its start on the daemon (params
 * are there) until the server has answered its last update: delay, upload, adding. With --idle daemons offer
 * no data, so they only connect and stay. With several --server (relays), daemon i is the i-th one's, and so on in turns.
 *
 * Prints when all are connected; at the end (--seconds, SIGINT or SIGTERM) the counts and percentiles.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/link/link.h"
#include "common/base/log.h"

#define SERVERS_MAX 64u

struct update {
        uint64_t bytes;
        uint32_t clients; /* 0: a float update of one */
        struct mfl_fixed fixed;
        void *data;
        struct update *next;
};

struct swarm {
        uv_loop_t loop;
        const char *servers[SERVERS_MAX], *prefix;
        uint32_t n_servers;
        uint32_t n_daemons, delay_ms, seconds, features, classes, samples;
        bool idle, moving;
        struct mfl_worker hasher;
        struct mfl_link **links;
        uint32_t n_online, n_open, online_max;
        uint64_t start_ns, n_train, n_eval, n_cancelled;
        uint64_t *turnaround_ns;
        uint32_t n_turnaround, turnaround_max;
        struct update *contents; /* one buffer per size of update; all daemons send the same */
        uv_signal_t sigint, sigterm;
        uv_timer_t end;
        bool stopping;
        int status;
};

/* ---- tasks that are done at once ---- */

struct fake_run {
        struct swarm *swarm;
        uv_timer_t timer;
        struct mfl_compute_call *call;
};

struct fake_result {
        struct mfl_train_result base;
        uint64_t start_ns;
        bool train;
};

/* Exact, so that the digest is the same for any number of relays and clients per daemon. */
static int fill_update(const struct update *u, uint64_t n)
{
        const struct mfl_fixed_parts none = {0};
        for (uint64_t i = 0; i < n; i++) {
                const float delta = (float)(1 + i % 251) * 0x1p-30f;
                if (!u->clients)
                        ((float *)u->data)[i] = delta;
                for (uint32_t k = 0; k < u->clients; k++)
                        if (mfl_fixed_parts_add_f32(
                                    &u->fixed, &none, i, 1, &delta, 1, (int64_t *)u->data + i, NULL))
                                return MFL_INVALID;
        }
        return 0;
}

/* An update of n params by one client, or the sum of several clients' updates. */
static void *update_of(struct swarm *swarm, const struct mfl_task *task, uint64_t n, uint32_t clients)
{
        uint64_t bytes = n * (clients ? sizeof(int64_t) : sizeof(float));
        for (struct update *u = swarm->contents; u; u = u->next) {
                if (u->bytes == bytes && u->clients == clients &&
                        u->fixed.scale_bits == task->fixed.scale_bits)
                        return u->data;
        }
        struct update *u = mfl_calloc(1, sizeof(*u));
        if (!u)
                return NULL;
        *u = (struct update){.bytes = bytes, .clients = clients, .fixed = task->fixed};
        u->data = mfl_calloc(1, bytes);
        if (!u->data || (swarm->moving && fill_update(u, n))) {
                free(u->data);
                free(u);
                return NULL;
        }
        u->next = swarm->contents;
        swarm->contents = u;
        return u->data;
}

static bool fill_train(struct swarm *swarm, const struct mfl_task *task, struct mfl_train_result *result)
{
        bool alone = !task->sum && (task->single_updates || task->n_items == 1);
        uint32_t n = alone ? task->n_items : 1;
        uint64_t bytes = (task->n_params - task->n_frozen) * (alone ? sizeof(float) : sizeof(int64_t));
        void *data = update_of(swarm, task, task->n_params - task->n_frozen, alone ? 0 : task->n_items);
        result->updates = mfl_calloc(n, sizeof(*result->updates));
        result->data = mfl_calloc(n, sizeof(*result->data));
        if (!data || !result->updates || !result->data)
                return false;
        result->n_updates = n;
        for (uint32_t i = 0; i < n; i++) {
                uint32_t count = alone ? 1 : task->n_items;
                result->updates[i] = (struct mfl_announce){.update = i,
                        .item_first = i,
                        .item_count = count,
                        .encoding = alone ? MFL_ENCODING_F32 : MFL_ENCODING_I64,
                        .bytes = bytes,
                        .weight = count,
                        .samples = count};
                result->data[i] = data;
        }
        return true;
}

static bool fill_eval(const struct mfl_task *task, struct mfl_train_result *result)
{
        result->eval = mfl_calloc(task->n_items, sizeof(*result->eval));
        if (!result->eval)
                return false;
        result->n_eval = task->n_items;
        for (uint32_t i = 0; i < task->n_items; i++)
                result->eval[i] = (struct mfl_eval_item){.item = task->items[i], .samples = 1};
        return true;
}

static void free_result(struct fake_result *fake)
{
        free(fake->base.updates);
        free(fake->base.data);
        free(fake->base.eval);
        free(fake);
}

static int finish_task(struct swarm *swarm, struct mfl_compute_call *call, uint64_t start_ns)
{
        if (atomic_load(&call->control.cancel)) {
                swarm->n_cancelled++;
                return mfl_fail(&call->err, MFL_CANCELLED, "cancelled");
        }
        struct fake_result *fake = mfl_calloc(1, sizeof(*fake));
        if (!fake)
                return mfl_fail_memory(&call->err, sizeof(*fake), "a result");
        fake->start_ns = start_ns;
        fake->train = call->task->kind == MFL_TASK_TRAIN;
        if (!(fake->train ? fill_train(swarm, call->task, &fake->base)
                          : fill_eval(call->task, &fake->base))) {
                free_result(fake);
                return mfl_fail_memory(&call->err, call->task->n_params * sizeof(int64_t), "an update");
        }
        call->result = &fake->base;
        return 0;
}

static void on_run_closed(uv_handle_t *handle)
{
        free(handle->data);
}

static void on_run_timer(uv_timer_t *timer)
{
        struct fake_run *run = timer->data;
        struct mfl_compute_call *call = run->call;
        uint64_t start_ns = mfl_now_ns() - (uint64_t)run->swarm->delay_ms * 1000000;
        call->status = finish_task(run->swarm, call, start_ns);
        uv_close((uv_handle_t *)timer, on_run_closed);
        call->done(call);
}

static int fake_start(void *compute, struct mfl_compute_call *call, struct mfl_error *err)
{
        struct swarm *swarm = compute;
        struct fake_run *run = mfl_calloc(1, sizeof(*run));
        if (!run)
                return mfl_fail_memory(err, sizeof(*run), "a task");
        run->swarm = swarm;
        run->call = call;
        call->compute = run;
        uv_timer_init(&swarm->loop, &run->timer);
        run->timer.data = run;
        uv_update_time(&swarm->loop);
        uv_timer_start(&run->timer, on_run_timer, swarm->delay_ms, 0);
        return 0;
}

static void fake_cancel(void *compute, struct mfl_compute_call *call)
{
        struct fake_run *run = call->compute;
        atomic_store(&call->control.cancel, true);
        uv_timer_start(&run->timer, on_run_timer, 0, 0);
}

static void fake_forget(void *compute, const char *job)
{
}

static void fake_result_free(void *compute, struct mfl_train_result *result)
{
        struct swarm *swarm = compute;
        if (!result)
                return;
        struct fake_result *fake = MFL_CONTAINER_OF(result, struct fake_result, base);
        if (!swarm->stopping) {
                swarm->n_train += fake->train;
                swarm->n_eval += !fake->train;
                if (fake->train && swarm->n_turnaround < swarm->turnaround_max)
                        swarm->turnaround_ns[swarm->n_turnaround++] = mfl_now_ns() - fake->start_ns;
        }
        free_result(fake);
}

static const struct mfl_compute_ops fake_ops = {
        .start = fake_start,
        .cancel = fake_cancel,
        .forget = fake_forget,
        .result_free = fake_result_free,
};

/* ---- the swarm ---- */

static void on_swarm_closed(void *user)
{
        struct swarm *swarm = user;
        if (--swarm->n_open > 0)
                return;
        mfl_worker_close(&swarm->hasher, NULL);
        uv_close((uv_handle_t *)&swarm->sigint, NULL);
        uv_close((uv_handle_t *)&swarm->sigterm, NULL);
        uv_close((uv_handle_t *)&swarm->end, NULL);
}

static void stop(struct swarm *swarm)
{
        if (swarm->stopping)
                _exit(1);
        swarm->stopping = true;
        for (uint32_t i = 0; i < swarm->n_daemons; i++) {
                if (swarm->links[i])
                        mfl_link_close(swarm->links[i], on_swarm_closed);
        }
}

static void on_signal(uv_signal_t *handle, int number)
{
        stop(handle->data);
}

static void on_end(uv_timer_t *timer)
{
        stop(timer->data);
}

static void on_exit_wanted(struct mfl_link *link, int status, const char *reason)
{
        struct swarm *swarm = mfl_link_user(link);
        if (status)
                fprintf(stderr, "a daemon ended: %s\n", reason);
        swarm->status |= status;
        for (uint32_t i = 0; i < swarm->n_daemons; i++) {
                if (swarm->links[i] == link)
                        swarm->links[i] = NULL;
        }
        mfl_link_close(link, on_swarm_closed);
}

static void on_online(struct mfl_link *link, bool online)
{
        struct swarm *swarm = mfl_link_user(link);
        swarm->n_online += online ? 1 : -1;
        if (swarm->n_online <= swarm->online_max)
                return;
        swarm->online_max = swarm->n_online;
        if (swarm->n_online == swarm->n_daemons) {
                printf("connected %u of %u in %.3f s\n", swarm->n_online, swarm->n_daemons,
                        (double)(mfl_now_ns() - swarm->start_ns) * 1e-9);
                fflush(stdout);
        }
}

static int open_daemon(struct swarm *swarm, uint32_t i, struct mfl_error *err)
{
        struct mfl_data_info data = {.name = "noop",
                .shape = {1, {swarm->features}},
                .classes = swarm->classes,
                .train_samples = swarm->samples,
                .test_samples = 1000,
                .fingerprint = ((uint64_t)swarm->features << 32 | swarm->classes)};
        struct mfl_link_options options = {.server = swarm->servers[i % swarm->n_servers],
                .agent = {.results_max = 2, .seed = i},
                .ops = &fake_ops,
                .compute = swarm,
                .hasher = &swarm->hasher,
                .user = swarm,
                .on_exit = on_exit_wanted,
                .on_online = on_online};
        struct mfl_daemon_info *info = &options.agent.info;
        snprintf(info->name, sizeof(info->name), "%s-%u", swarm->prefix, i);
        mfl_strcpy(info->node, sizeof(info->node), swarm->prefix);
        mfl_strcpy(info->backend, sizeof(info->backend), "reference");
        mfl_strcpy(info->device, sizeof(info->device), "none: bench_swarm");
        mfl_strcpy(info->software, sizeof(info->software), "bench_swarm " MFL_VERSION);
        info->instance = mfl_now_ns() ^ (uint64_t)getpid() << 40 ^ i;
        info->workers = 1;
        info->n_data_sets = swarm->idle ? 0 : 1;
        info->data_sets = &data;
        int r = mfl_link_open(&swarm->loop, &options, &swarm->links[i], err);
        if (!r)
                swarm->n_open++;
        return r;
}

static int compare_u64(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

static void report(struct swarm *swarm)
{
        uint32_t n = swarm->n_turnaround;
        double seconds = (double)(mfl_now_ns() - swarm->start_ns) * 1e-9;
        printf("daemons %u, most connected %u, %.1f s\n", swarm->n_daemons, swarm->online_max, seconds);
        printf("tasks: %llu training, %llu evaluation, %llu cancelled\n", (unsigned long long)swarm->n_train,
                (unsigned long long)swarm->n_eval, (unsigned long long)swarm->n_cancelled);
        if (!n)
                return;
        qsort(swarm->turnaround_ns, n, sizeof(uint64_t), compare_u64);
        printf("turnaround of %u training tasks: p50 %.3f ms, p99 %.3f ms\n", n,
                (double)swarm->turnaround_ns[n / 2] * 1e-6,
                (double)swarm->turnaround_ns[(uint64_t)n * 99 / 100] * 1e-6);
}

static void raise_files(void)
{
        struct rlimit limit;
        if (getrlimit(RLIMIT_NOFILE, &limit))
                return;
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
}

static int open_swarm(struct swarm *swarm, struct mfl_error *err)
{
        swarm->turnaround_max = 1u << 20;
        swarm->turnaround_ns = mfl_calloc(swarm->turnaround_max, sizeof(uint64_t));
        swarm->links = mfl_calloc(swarm->n_daemons, sizeof(struct mfl_link *));
        if (!swarm->turnaround_ns || !swarm->links)
                return mfl_fail_memory(err, swarm->turnaround_max * sizeof(uint64_t), "the swarm");
        int r = uv_loop_init(&swarm->loop);
        if (!r)
                r = mfl_worker_start(&swarm->hasher, &swarm->loop, "hash", 2 * swarm->n_daemons + 16, err);
        if (r)
                return r;
        uv_signal_init(&swarm->loop, &swarm->sigint);
        uv_signal_init(&swarm->loop, &swarm->sigterm);
        uv_timer_init(&swarm->loop, &swarm->end);
        swarm->sigint.data = swarm->sigterm.data = swarm->end.data = swarm;
        uv_signal_start(&swarm->sigint, on_signal, SIGINT);
        uv_signal_start(&swarm->sigterm, on_signal, SIGTERM);
        if (swarm->seconds)
                uv_timer_start(&swarm->end, on_end, (uint64_t)swarm->seconds * 1000, 0);
        swarm->start_ns = mfl_now_ns();
        for (uint32_t i = 0; !r && i < swarm->n_daemons; i++)
                r = open_daemon(swarm, i, err);
        return r;
}

static int usage(void)
{
        fprintf(stderr,
                "usage: bench_swarm [--server HOST:PORT]... [--daemons K] [--idle] [--moving] [--delay-ms N] "
                "[--seconds N]\n"
                "                   [--features F] [--classes C] [--samples N] [--prefix NAME]\n");
        return 2;
}

static bool parse(struct swarm *swarm, int argc, char **argv)
{
        static const struct option options[] = {
                {"server", required_argument, NULL, 's'},
                {"daemons", required_argument, NULL, 'd'},
                {"idle", no_argument, NULL, 'i'},
                {"moving", no_argument, NULL, 'v'},
                {"delay-ms", required_argument, NULL, 'm'},
                {"seconds", required_argument, NULL, 't'},
                {"features", required_argument, NULL, 'f'},
                {"classes", required_argument, NULL, 'c'},
                {"samples", required_argument, NULL, 'n'},
                {"prefix", required_argument, NULL, 'p'},
                {NULL, 0, NULL, 0},
        };
        int id;
        while ((id = getopt_long(argc, argv, "", options, NULL)) != -1) {
                uint32_t n = optarg ? (uint32_t)strtoul(optarg, NULL, 10) : 0;
                switch (id) {
                case 's':
                        if (swarm->n_servers == SERVERS_MAX)
                                return false;
                        swarm->servers[swarm->n_servers++] = optarg;
                        break;
                case 'p':
                        swarm->prefix = optarg;
                        break;
                case 'i':
                        swarm->idle = true;
                        break;
                case 'v':
                        swarm->moving = true;
                        break;
                case 'd':
                        swarm->n_daemons = n;
                        break;
                case 'm':
                        swarm->delay_ms = n;
                        break;
                case 't':
                        swarm->seconds = n;
                        break;
                case 'f':
                        swarm->features = n;
                        break;
                case 'c':
                        swarm->classes = n;
                        break;
                case 'n':
                        swarm->samples = n;
                        break;
                default:
                        return false;
                }
        }
        if (!swarm->n_servers)
                swarm->servers[swarm->n_servers++] = "127.0.0.1:7433";
        return optind == argc && swarm->n_daemons && swarm->features && swarm->features <= 65536 &&
               swarm->classes >= 2 && swarm->classes <= 65536;
}

int main(int argc, char **argv)
{
        static struct swarm swarm = {
                .prefix = "swarm", .n_daemons = 10, .features = 1, .classes = 2, .samples = 1000000};
        struct mfl_error err = {{0}};
        if (!parse(&swarm, argc, argv))
                return usage();
        mfl_log_init("bench_swarm", MFL_LOG_ERROR);
        signal(SIGPIPE, SIG_IGN);
        raise_files();
        if (open_swarm(&swarm, &err)) {
                fprintf(stderr, "bench_swarm: %s\n", err.text);
                return 1;
        }
        uv_run(&swarm.loop, UV_RUN_DEFAULT);
        uv_loop_close(&swarm.loop);
        report(&swarm);
        while (swarm.contents) {
                struct update *u = swarm.contents;
                swarm.contents = u->next;
                free(u->data);
                free(u);
        }
        free(swarm.links);
        free(swarm.turnaround_ns);
        return swarm.status;
}
