/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of update that a server aggregates in a second, beside the floors of the same run.
 *     bench_aggregate [million parameters] [uploads per repetition] [repetitions] [KiB per chunk]
 *
 * The path is the server's own code in one process: stream -> slot -> worker -> exact sum, two slots, and
 * what has arrived of an upload is added while the rest comes. Another process sends with the stream code
 * that daemons use: announce, wait for the grant, chunks with checksums. The floors are plain TCP over
 * loopback with the same chunks, and an addition of the same vector that lies in memory. The table is medians
 * of all repetitions; "ratio" is the path to the smaller of TCP and the exact addition. "added" is the
 * server's addition alone (with its checks), "cpu" the seconds of processor that both processes spend on a
 * GB.
 */
#include <netinet/in.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/aggregate.h"
#include "common/base/worker.h"
#include "proto/stream.h"
#include "server/runtime/runtime.h"

#define SLOTS 2
#define CHUNKS_IN_FLIGHT 4 /* as the daemons' link */
#define REPETITIONS_MAX 99
#define JOB "j-000001"

struct settings {
        uint64_t n, bytes; /* of the model, of an upload */
        enum mfl_encoding encoding;
        size_t chunk;
        int uploads;
};

/* ---- the sender, a process of its own ---- */

struct sender {
        uv_loop_t loop;
        struct mfl_stream stream;
        const struct settings *settings;
        const char *update;
        uint64_t granted[256]; /* tasks, in the order of their grants */
        unsigned n_granted, sending, in_flight;
        uint64_t at;
};

static void send_chunks(struct sender *sender);

static void on_sent(struct mfl_stream *stream, int status, void *arg)
{
        struct sender *sender = arg;
        sender->in_flight--;
        if (!status)
                send_chunks(sender);
}

static void send_chunks(struct sender *sender)
{
        const struct settings *s = sender->settings;
        while (sender->sending < sender->n_granted && sender->in_flight < CHUNKS_IN_FLIGHT) {
                Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
                Mfl__Chunk chunk = MFL__CHUNK__INIT;
                size_t bytes = MFL_MIN((uint64_t)s->chunk, s->bytes - sender->at);
                chunk.task = sender->granted[sender->sending];
                chunk.offset = sender->at;
                envelope.body_case = MFL__ENVELOPE__BODY_CHUNK;
                envelope.chunk = &chunk;
                struct mfl_error err = {""};
                bench_check(!mfl_stream_send(&sender->stream, &envelope, sender->update + sender->at, bytes,
                                    NULL, on_sent, sender, &err),
                        "send a chunk");
                sender->in_flight++;
                sender->at += bytes;
                if (sender->at == s->bytes) {
                        sender->at = 0;
                        sender->sending++;
                }
        }
}

static int on_sender_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct sender *sender = stream->owner;
        if (envelope->body_case == MFL__ENVELOPE__BODY_GRANT) {
                sender->granted[sender->n_granted++] = envelope->grant->task;
                send_chunks(sender);
        }
        return 0;
}

static void on_connected(struct mfl_stream *stream, int status, const char *text)
{
        struct sender *sender = stream->owner;
        const struct settings *s = sender->settings;
        bench_check(!status, text);
        for (int i = 0; i <= s->uploads; i++) {
                struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE};
                msg.announce = (struct mfl_announce){.task = 1 + (uint64_t)i,
                        .item_count = 1,
                        .encoding = s->encoding,
                        .bytes = s->bytes,
                        .weight = 1,
                        .samples = 1,
                        .job = JOB,
                        .round = 1};
                struct mfl_error err = {""};
                int r = mfl_stream_send_msg(stream, &msg, NULL, &err);
                bench_check(!r, err.text);
        }
}

static void on_sender_closed(struct mfl_stream *stream, const char *reason)
{
}

static const struct mfl_stream_ops sender_ops = {
        .on_frame = on_sender_frame, .on_closed = on_sender_closed, .on_connected = on_connected};

/* bench_aggregate --send PORT BYTES ENCODING UPLOADS CHUNK */
static int run_sender(char **argv)
{
        struct settings settings = {.bytes = strtoull(argv[1], NULL, 10),
                .encoding = (enum mfl_encoding)atoi(argv[2]),
                .uploads = atoi(argv[3]),
                .chunk = (size_t)atoi(argv[4])};
        struct sender sender = {.settings = &settings, .update = bench_touched(settings.bytes)};
        char address[32];
        snprintf(address, sizeof address, "127.0.0.1:%s", argv[0]);
        uv_loop_init(&sender.loop);
        bench_check(!mfl_stream_init(&sender.stream, &sender.loop, &sender_ops, &sender, NULL), "stream");
        bench_check(!mfl_stream_connect(&sender.stream, address, NULL), "connect");
        uv_run(&sender.loop, UV_RUN_DEFAULT);
        return 0;
}

/* The program again and not just fork, after which every page of the slots would be copied when it is
 * written. */
static pid_t start_sender(const struct settings *s, int port)
{
        char args[5][24];
        snprintf(args[0], sizeof args[0], "%d", port);
        snprintf(args[1], sizeof args[1], "%llu", (unsigned long long)s->bytes);
        snprintf(args[2], sizeof args[2], "%d", (int)s->encoding);
        snprintf(args[3], sizeof args[3], "%d", s->uploads);
        snprintf(args[4], sizeof args[4], "%zu", s->chunk);
        char *argv[] = {"bench_aggregate", "--send", args[0], args[1], args[2], args[3], args[4], NULL};
        pid_t pid;
        bench_check(!posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), "start the sender");
        return pid;
}

/* ---- the receiver ---- */

struct receiver {
        uv_loop_t loop;
        uv_tcp_t listener;
        struct mfl_stream stream;
        struct mfl_worker worker;
        const struct settings *settings;
        struct mfl_runtime *rt;
        struct mfl_slot_write write;
        struct receiver_slot {
                struct receiver *receiver;
                struct mfl_work work, ahead;
                uint64_t task;
                bool busy, ahead_waits;
        } slots[SLOTS];
        uint64_t n_announced, n_granted, n_accepted;
        uint64_t start_ns, end_ns;
};

static void open_slot(struct mfl_runtime *rt, uint32_t slot, const struct settings *s, uint64_t task)
{
        struct mfl_upload upload = {
                .grant = task, .conn = 1, .task = task, .weight = 1, .item = task, .encoding = s->encoding};
        bench_check(mfl_slot_open(rt, slot, &upload), "open a slot");
}

static void grant_slots(struct receiver *receiver)
{
        const struct settings *s = receiver->settings;
        for (uint32_t i = 0; i < SLOTS; i++) {
                struct receiver_slot *slot = &receiver->slots[i];
                /* The first upload warms up; the clock starts when it has been added. */
                uint64_t limit = receiver->n_accepted ? receiver->n_announced : 1;
                if (slot->busy || receiver->n_granted >= MFL_MIN(limit, receiver->n_announced))
                        continue;
                struct mfl_error err = {""};
                slot->busy = true;
                slot->task = ++receiver->n_granted;
                open_slot(receiver->rt, i, s, slot->task);
                struct mfl_range range = {0, s->bytes};
                struct mfl_msg msg = {.kind = MFL_MSG_GRANT};
                msg.update.task = slot->task;
                msg.update.n_ranges = 1;
                msg.update.ranges = &range;
                int r = mfl_stream_send_msg(&receiver->stream, &msg, NULL, &err);
                bench_check(!r, err.text);
        }
}

static void add_slot(struct mfl_work *work)
{
        struct receiver_slot *slot = MFL_CONTAINER_OF(work, struct receiver_slot, work);
        struct mfl_error err = {""};
        int r = mfl_slot_add(slot->receiver->rt, (uint32_t)(slot - slot->receiver->slots), &err);
        bench_check(!r, err.text);
}

static void add_ahead(struct mfl_work *work)
{
        struct receiver_slot *slot = MFL_CONTAINER_OF(work, struct receiver_slot, ahead);
        mfl_slot_add_ahead(slot->receiver->rt, (uint32_t)(slot - slot->receiver->slots));
}

static void on_added_ahead(struct mfl_work *work)
{
        MFL_CONTAINER_OF(work, struct receiver_slot, ahead)->ahead_waits = false;
}

static void on_added(struct mfl_work *work)
{
        struct receiver_slot *slot = MFL_CONTAINER_OF(work, struct receiver_slot, work);
        struct receiver *receiver = slot->receiver;
        mfl_slot_free(receiver->rt, (uint32_t)(slot - receiver->slots));
        slot->busy = false;
        if (++receiver->n_accepted == 1)
                receiver->start_ns = mfl_now_ns();
        struct mfl_msg msg = {.kind = MFL_MSG_ACCEPTED};
        msg.update.task = slot->task;
        struct mfl_error err = {""};
        int r = mfl_stream_send_msg(&receiver->stream, &msg, NULL, &err);
        bench_check(!r, err.text);
        if (receiver->n_accepted == 1 + (uint64_t)receiver->settings->uploads) {
                receiver->end_ns = mfl_now_ns();
                mfl_stream_close(&receiver->stream, NULL, false);
                mfl_worker_close(&receiver->worker, NULL);
                return;
        }
        grant_slots(receiver);
}

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct receiver *receiver = stream->owner;
        for (uint32_t i = 0; i < SLOTS; i++) {
                struct receiver_slot *slot = &receiver->slots[i];
                if (!slot->busy || slot->task != envelope->chunk->task)
                        continue;
                int r = mfl_slot_write_begin(
                        receiver->rt, i, envelope->chunk->offset, payload_bytes, &receiver->write, err);
                if (!r)
                        *ret_dst = receiver->write.dst;
                return r;
        }
        return mfl_fail(err, MFL_INVALID, "no slot");
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct receiver *receiver = stream->owner;
        if (envelope->body_case == MFL__ENVELOPE__BODY_ANNOUNCE) {
                receiver->n_announced++;
                grant_slots(receiver);
        } else if (envelope->body_case == MFL__ENVELOPE__BODY_CHUNK) {
                uint32_t slot = receiver->write.slot;
                struct receiver_slot *to = &receiver->slots[slot];
                if (mfl_slot_write_end(receiver->rt, &receiver->write, true))
                        bench_check(!mfl_worker_submit(&receiver->worker, &to->work), "submit");
                else if (!to->ahead_waits && mfl_slot_ahead(receiver->rt, slot)) {
                        to->ahead_waits = true;
                        bench_check(!mfl_worker_submit(&receiver->worker, &to->ahead), "submit");
                }
        }
        return 0;
}

static void on_closed(struct mfl_stream *stream, const char *reason)
{
        struct receiver *receiver = stream->owner;
        bench_check(receiver->end_ns != 0, reason);
}

static const struct mfl_stream_ops receiver_ops = {
        .on_payload = on_payload, .on_frame = on_frame, .on_closed = on_closed};

static void on_connection(uv_stream_t *listener, int status)
{
        struct receiver *receiver = listener->data;
        bench_check(!mfl_stream_init(&receiver->stream, &receiver->loop, &receiver_ops, receiver, NULL),
                "stream");
        receiver->stream.payload_max = MFL_PAYLOAD_MAX;
        receiver->stream.envelope_max = MFL_ENVELOPE_MAX;
        mfl_stream_accept(&receiver->stream, listener);
        uv_close((uv_handle_t *)listener, NULL);
}

static double path(const struct settings *settings, struct mfl_runtime *rt)
{
        struct receiver receiver = {.settings = settings, .rt = rt};
        struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof addr;
        struct mfl_error err = {""};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        bench_check(!bind(fd, (struct sockaddr *)&addr, sizeof addr) && !listen(fd, 1) &&
                            !getsockname(fd, (struct sockaddr *)&addr, &length),
                "listen");
        pid_t pid = start_sender(settings, ntohs(addr.sin_port));
        for (int i = 0; i < SLOTS; i++)
                receiver.slots[i] = (struct receiver_slot){.receiver = &receiver,
                        .work = {.run = add_slot, .done = on_added},
                        .ahead = {.run = add_ahead, .done = on_added_ahead}};
        mfl_runtime_round_open(rt, 1);
        uv_loop_init(&receiver.loop);
        int r = mfl_worker_start(&receiver.worker, &receiver.loop, "add", 2 * SLOTS, &err);
        bench_check(!r, err.text);
        uv_tcp_init(&receiver.loop, &receiver.listener);
        receiver.listener.data = &receiver;
        bench_check(!uv_tcp_open(&receiver.listener, fd) &&
                            !uv_listen((uv_stream_t *)&receiver.listener, 1, on_connection),
                "listen");
        uv_run(&receiver.loop, UV_RUN_DEFAULT);
        uv_loop_close(&receiver.loop);
        waitpid(pid, NULL, 0);
        return (double)settings->bytes * settings->uploads / (double)(receiver.end_ns - receiver.start_ns);
}

/* The server's addition without the wire, on this thread. */
static double added(const struct settings *s, struct mfl_runtime *rt)
{
        struct mfl_error err = {""};
        struct mfl_slot_write write;
        open_slot(rt, 0, s, 1);
        int r = mfl_slot_write_begin(rt, 0, 0, s->bytes, &write, &err);
        bench_check(!r, err.text);
        memset(write.dst, 0, s->bytes);
        bench_check(mfl_slot_write_end(rt, &write, true), "complete the slot");
        uint64_t start = mfl_now_ns();
        for (int i = 0; i < s->uploads; i++)
                bench_check(!mfl_slot_add(rt, 0, &err), "add");
        uint64_t end = mfl_now_ns();
        mfl_slot_free(rt, 0);
        return (double)s->bytes * s->uploads / (double)(end - start);
}

/* ---- one table ---- */

static double cpu_seconds(void)
{
        double seconds = 0;
        int who[2] = {RUSAGE_SELF, RUSAGE_CHILDREN};
        for (int i = 0; i < 2; i++) {
                struct rusage u;
                getrusage(who[i], &u);
                seconds += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
        }
        return seconds;
}

/* Reads and writes of this process and of those that have ended: what libuv and the floors move bytes with. 0
 * where the kernel does not count. */
static double calls(void)
{
        unsigned long long in = 0, out = 0;
        FILE *file = fopen("/proc/self/io", "re");
        if (!file)
                return 0;
        if (fscanf(file, "rchar: %*u wchar: %*u syscr: %llu syscw: %llu", &in, &out) != 2)
                in = out = 0;
        fclose(file);
        return (double)(in + out);
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

static double median(double *v, int n)
{
        qsort(v, (size_t)n, sizeof *v, compare);
        return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void measure(const struct settings *s, struct mfl_runtime *rt, int n)
{
        enum { PATH, TCP, EXACT, PLAIN, ADDED, CPU, CALLS, COLUMNS };
        double v[COLUMNS][REPETITIONS_MAX];
        bool f32 = s->encoding == MFL_ENCODING_F32;
        for (int i = 0; i < n; i++) {
                double before = cpu_seconds(), calls_before = calls();
                double gb = (double)s->bytes * (1 + s->uploads) / 1e9;
                v[PATH][i] = path(s, rt);
                v[CPU][i] = (cpu_seconds() - before) / gb;
                v[CALLS][i] = (calls() - calls_before) / gb;
                v[TCP][i] = bench_floor_tcp(s->bytes, s->chunk, s->uploads);
                struct bench_adds adds = bench_floor_adds(s->n, f32, s->uploads);
                v[EXACT][i] = adds.exact;
                v[PLAIN][i] = adds.plain;
                v[ADDED][i] = added(s, rt);
        }
        double m[COLUMNS];
        for (int c = 0; c < COLUMNS; c++)
                m[c] = median(v[c], n);
        printf("%-8s %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.0f\n", f32 ? "f32" : "i64", m[PATH], m[TCP],
                m[EXACT], m[PLAIN], m[PATH] / MFL_MIN(m[TCP], m[EXACT]), m[ADDED], m[CPU], m[CALLS]);
        fflush(stdout);
}

/* A job whose model has about so many million parameters. */
static struct mfl_runtime *open_job(int millions, uint64_t *ret_n)
{
        char text[512];
        struct mfl_job *job = NULL;
        struct mfl_graph *graph = NULL;
        struct mfl_runtime *rt = NULL;
        struct mfl_error err = {""};
        snprintf(text, sizeof text,
                "name: bench\nrounds: 1\nmodel: {input: [1000], classes: 10, layers: [{dense: {units: %d}}, "
                "{dense: "
                "{units: 10}}]}\ndata: {name: none, partition: iid, clients: 1000}\ntraining: {lr: 1}\n",
                millions * 1000000 / 1011);
        struct mfl_shape input = {.rank = 1, .dim = {1000}};
        bench_check(!mfl_job_parse(text, strlen(text), "bench", &job, &err) &&
                            !mfl_job_graph(job, &input, 10, &graph, &err),
                err.text);
        struct mfl_runtime_options options = {
                .job = JOB, .spec = job, .graph = graph, .n_slots = SLOTS, .cohort = 1, .state_dir = "."};
        bench_check(!mfl_fixed_choose(16, (uint64_t)1 << 20, &options.fixed, &err), err.text);
        bench_check(!mfl_runtime_open(&options, &rt, &err), err.text);
        *ret_n = mfl_runtime_n(rt);
        return rt;
}

int main(int argc, char **argv)
{
        if (argc == 7 && !strcmp(argv[1], "--send"))
                return run_sender(argv + 2);
        int millions = argc > 1 ? atoi(argv[1]) : 25, uploads = argc > 2 ? atoi(argv[2]) : 10;
        int n = argc > 3 ? atoi(argv[3]) : 7, kib = argc > 4 ? atoi(argv[4]) : 1024;
        bench_check(argc < 6 && millions > 0 && uploads > 0 && uploads < 256 && n > 0 &&
                            n <= REPETITIONS_MAX && kib > 0 && (size_t)kib * 1024 <= MFL_PAYLOAD_MAX,
                "arguments: [million parameters] [uploads, 1 to 255] [repetitions, 1 to 99] [KiB per chunk, "
                "1 to 4096]");
        struct settings s = {.chunk = (size_t)kib * 1024, .uploads = uploads};
        struct mfl_runtime *rt = open_job(millions, &s.n);
        printf("%llu parameters, %d uploads, chunks of %d KiB: GB of update a second, medians of %d\n",
                (unsigned long long)s.n, uploads, kib, n);
        printf("%-8s %8s %8s %8s %8s %8s %8s %8s %8s\n", "", "path", "TCP", "exact +", "double +", "ratio",
                "added", "cpu s/GB", "calls/GB");
        s.encoding = MFL_ENCODING_F32;
        s.bytes = s.n * sizeof(float);
        measure(&s, rt, n);
        s.encoding = MFL_ENCODING_I64;
        s.bytes = s.n * sizeof(int64_t);
        measure(&s, rt, n);
        mfl_runtime_close(rt);
        return 0;
}
