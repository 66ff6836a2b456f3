/* SPDX-License-Identifier: Apache-2.0 */
/* Meshes of threads, of shared memory and over TCP: each operation with several numbers of ranks; ranks that disagree, leave, are late or cancelled. */
#include "tests/lib/test.h"
#include "client/peer/peer.h"
#include "kernels/mesh/mesh_shm.h"
#include "kernels/team/team.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/unit/proto/certs.h"

#define RANKS_MAX 8u
#define LATE_MS 60000

struct rank {
        pthread_t thread;
        struct mfl_mesh *mesh;
        void (*body)(struct rank *rank);
        uint64_t n;
        struct mfl_error err;
        int code, failures;
};

/* Which kind of mesh the tests run over. */
static enum { THREADS, SHM, TCP, TLS, PAIRS } over; /* PAIRS: of sockets, within one process */
static struct certs certs;

static int use_threads(void **state)
{
        over = THREADS;
        return 0;
}

static int use_shm(void **state)
{
        over = SHM;
        return 0;
}

static int use_tcp(void **state)
{
        over = TCP;
        return 0;
}

static int use_tls(void **state)
{
        over = TLS;
        return 0;
}

static int use_pairs(void **state)
{
        over = PAIRS;
        return 0;
}

static int make_certs(void **state)
{
        certs_init(&certs);
        certs_issue(&certs, &(struct certs_spec){.file = "d1", .cn = "d1", .ou = {"daemon"}, .to_days = 2});
        return 0;
}

static int remove_certs(void **state)
{
        certs_deinit(&certs);
        return 0;
}

struct opening {
        pthread_t thread;
        struct mfl_mesh_shm_options options;
        struct mfl_mesh_tcp_options tcp;
        struct mfl_mesh *mesh;
        struct mfl_error err;
        int code;
};

static void *open_shm(void *arg)
{
        struct opening *opening = arg;
        opening->code = mfl_mesh_shm_open(&opening->options, &opening->mesh, &opening->err);
        return NULL;
}

static void *open_tcp(void *arg)
{
        struct opening *opening = arg;
        opening->code = mfl_mesh_tcp_open(&opening->tcp, &opening->mesh, &opening->err);
        return NULL;
}

/* All ranks are reached at one port, which is kept. */
static struct mfl_peer_port *port_of(void)
{
        static struct mfl_peer_port *ports[2];
        struct mfl_peer_port_options options = {.listen = "127.0.0.1:0"};
        struct certs_files files;
        struct mfl_error err;
        struct mfl_peer_port **port = &ports[over == TLS];
        if (over == TLS)
                options.tls = *certs_files(&certs, 0, "d1", NULL, &files);
        if (!*port && mfl_peer_port_open(&options, port, &err))
                fail_msg("%s", err.text);
        return *port;
}

static void open_tcp_meshes(uint32_t n, uint32_t epoch, struct mfl_mesh **ret_meshes)
{
        struct opening ranks[RANKS_MAX] = {0};
        const char *address[RANKS_MAX];
        for (uint32_t r = 0; r < n; r++)
                address[r] = mfl_peer_port_address(port_of());
        for (uint32_t r = 0; r < n; r++) {
                ranks[r].tcp = (struct mfl_mesh_tcp_options){.port = port_of(),
                        .team = (uint64_t)getpid(),
                        .epoch = epoch,
                        .rank = r,
                        .n_ranks = n,
                        .local_first = over == PAIRS ? 0 : r,
                        .n_local = over == PAIRS ? n : 1,
                        .address = address,
                        .key = "secret",
                        .deadline_ms = LATE_MS};
                assert_int_equal(pthread_create(&ranks[r].thread, NULL, open_tcp, &ranks[r]), 0);
        }
        for (uint32_t r = 0; r < n; r++) {
                pthread_join(ranks[r].thread, NULL);
                assert_string_equal(ranks[r].err.text, "");
                assert_int_equal(ranks[r].code, 0);
                ret_meshes[r] = ranks[r].mesh;
        }
}

/* The smallest ring, so that most vectors are larger than it. */
static void open_meshes(uint32_t n, struct mfl_mesh **ret_meshes)
{
        static uint32_t epoch;
        struct opening ranks[RANKS_MAX] = {0};
        epoch++;
        if (over == THREADS) {
                assert_int_equal(mfl_mesh_threads_new(n, ret_meshes, NULL), 0);
                return;
        }
        if (over != SHM) {
                open_tcp_meshes(n, epoch, ret_meshes);
                return;
        }
        for (uint32_t r = 0; r < n; r++) {
                ranks[r].options = (struct mfl_mesh_shm_options){.team = (uint64_t)getpid(),
                        .epoch = epoch,
                        .rank = r,
                        .n_ranks = n,
                        .bytes = MFL_MESH_SHM_BYTES_MIN,
                        .deadline_ms = LATE_MS};
                assert_int_equal(pthread_create(&ranks[r].thread, NULL, open_shm, &ranks[r]), 0);
        }
        for (uint32_t r = 0; r < n; r++) {
                pthread_join(ranks[r].thread, NULL);
                assert_string_equal(ranks[r].err.text, "");
                assert_int_equal(ranks[r].code, 0);
                ret_meshes[r] = ranks[r].mesh;
        }
}

static void *run_rank(void *arg)
{
        struct rank *rank = arg;
        rank->body(rank);
        return NULL;
}

static void run_ranks(uint32_t n, uint64_t count, void (*body)(struct rank *rank), struct rank *ranks)
{
        struct mfl_mesh *meshes[RANKS_MAX];
        open_meshes(n, meshes);
        for (uint32_t r = 0; r < n; r++) {
                ranks[r] = (struct rank){.mesh = meshes[r], .body = body, .n = count};
                assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
        }
        for (uint32_t r = 0; r < n; r++)
                pthread_join(ranks[r].thread, NULL);
}

static void must(struct rank *rank, struct mfl_mesh_op op)
{
        static _Thread_local uint32_t sequence;
        op.step = 7;
        op.sequence = sequence++;
        rank->failures += mfl_mesh_run(rank->mesh, &op, LATE_MS, NULL, &rank->err) != 0;
}

/* Element i of rank r. */
static int64_t whole(uint32_t r, uint64_t i)
{
        return (int64_t)(i * 1000003u) - (int64_t)r * 77777 * (int64_t)(i % 5);
}

static float real(uint32_t r, uint64_t i)
{
        return (float)(i % 13) * 0.1f - (float)r * 1.7f;
}

/* Thousandths, and the element's number once, so that a wrong place shows. */
static void add_thousandths(void *user, uint64_t at, uint64_t n, const float *in, bool first, int64_t *out)
{
        for (uint64_t i = 0; i < n; i++) {
                int64_t rounded = llrintf(in[i] * 1000.0f);
                out[i] = first ? rounded + (int64_t)(at + i) : out[i] + rounded;
        }
        ++*(uint64_t *)user;
}

/* Floats that become integers where they arrive. */
static void rounded_sums(struct rank *rank)
{
        struct mfl_mesh *mesh = rank->mesh;
        uint64_t n = rank->n, edge[RANKS_MAX + 1] = {0}, calls = 0;
        int64_t *sum = mfl_calloc(n + 1, sizeof *sum);
        float *f = mfl_calloc(n + 1, sizeof *f);
        mfl_assert(sum && f);
        for (uint32_t r = 1; r <= mesh->n_ranks; r++) /* of very different sizes */
                edge[r] = r == mesh->n_ranks ? n : n - n / (2 * r);
        for (uint64_t i = 0; i < n; i++)
                f[i] = real(mesh->rank, i);
        const struct mfl_mesh_rounding rounding = {add_thousandths, &calls};
        must(rank, (struct mfl_mesh_op){.kind = MFL_MESH_REDUCE_SCATTER,
                           .type = MFL_MESH_F32,
                           .reduction = MFL_MESH_SUM_ROUNDED,
                           .rounding = &rounding,
                           .in = f,
                           .out = sum,
                           .n = n,
                           .edge = edge});
        for (uint64_t i = edge[mesh->rank]; i < edge[mesh->rank + 1]; i++) {
                int64_t wanted = (int64_t)i;
                for (uint32_t r = 0; r < mesh->n_ranks; r++)
                        wanted += llrintf(real(r, i) * 1000.0f);
                rank->failures += sum[i - edge[mesh->rank]] != wanted;
        }
        rank->failures += sum[edge[mesh->rank + 1] - edge[mesh->rank]] != 0; /* nothing beyond the slice */
        rank->failures += !calls && edge[mesh->rank + 1] > edge[mesh->rank];
        free(sum);
        free(f);
}

static void all_operations(struct rank *rank)
{
        struct mfl_mesh *mesh = rank->mesh;
        uint64_t n = rank->n, own = mfl_mesh_slice(n, 1, mesh->n_ranks, mesh->rank),
                 end = mfl_mesh_slice(n, 1, mesh->n_ranks, mesh->rank + 1);
        int64_t *a = mfl_calloc(n + 1, sizeof *a), *b = mfl_calloc(n * mesh->n_ranks + 1, sizeof *b);
        float *f = mfl_calloc(n + 1, sizeof *f);
        mfl_assert(a && b && f);
        for (int times = 0; times < 3; times++) {
                for (uint64_t i = 0; i < n; i++) {
                        a[i] = whole(mesh->rank, i);
                        f[i] = real(mesh->rank, i);
                }
                must(rank, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_REDUCE,
                                   .type = MFL_MESH_I64,
                                   .in = a,
                                   .out = b,
                                   .n = n});
                must(rank, (struct mfl_mesh_op){
                                   .kind = MFL_MESH_REDUCE_SCATTER, .in = a, .out = a + own, .n = n});
                for (uint64_t i = 0; i < n; i++) {
                        int64_t sum = 0;
                        for (uint32_t r = 0; r < mesh->n_ranks; r++)
                                sum += whole(r, i);
                        rank->failures += b[i] != sum || (i >= own && i < end && a[i] != sum);
                }
                must(rank,
                        (struct mfl_mesh_op){.kind = MFL_MESH_ALL_GATHER, .in = a + own, .out = a, .n = n});
                rank->failures += memcmp(a, b, n * sizeof *a) != 0;
                must(rank, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_REDUCE,
                                   .type = MFL_MESH_F32,
                                   .in = f,
                                   .out = f,
                                   .n = n});
                for (uint64_t i = 0; i < n; i++) {
                        float sum = real(0, i);
                        for (uint32_t r = 1; r < mesh->n_ranks; r++)
                                sum += real(r, i);
                        rank->failures += f[i] != sum; /* in the ranks' order, so the same bits */
                }
                float most = mesh->rank == 1 ? NAN : (float)mesh->rank;
                must(rank, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_REDUCE,
                                   .type = MFL_MESH_F32,
                                   .reduction = MFL_MESH_MAX,
                                   .in = &most,
                                   .out = &most,
                                   .n = 1});
                rank->failures += mesh->n_ranks > 1 ? !isinf(most) : most != 0;
                uint8_t word[3] = {(uint8_t)mesh->rank, 2, 3};
                uint32_t root = mesh->n_ranks - 1;
                must(rank, (struct mfl_mesh_op){.kind = MFL_MESH_BROADCAST,
                                   .type = MFL_MESH_U8,
                                   .peer = root,
                                   .in = word,
                                   .out = word,
                                   .n = 3});
                rank->failures += word[0] != root;
                uint8_t to[RANKS_MAX], from[RANKS_MAX];
                for (uint32_t r = 0; r < mesh->n_ranks; r++)
                        to[r] = (uint8_t)(mesh->rank * 10 + r);
                must(rank, (struct mfl_mesh_op){.kind = MFL_MESH_ALL_TO_ALL,
                                   .type = MFL_MESH_U8,
                                   .in = to,
                                   .out = from,
                                   .n = mesh->n_ranks});
                for (uint32_t r = 0; r < mesh->n_ranks; r++)
                        rank->failures += from[r] != r * 10 + mesh->rank;
                must(rank, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        }
        rounded_sums(rank);
        free(a);
        free(b);
        free(f);
}

static void operations_give_what_they_say(void **state)
{
        static const uint64_t counts[] = {0, 1, 3, 4096, 60011, 300007};
        struct rank ranks[RANKS_MAX];
        for (uint32_t n = 1; n <= RANKS_MAX; n++)
                for (size_t i = 0; i < MFL_ARRAY_SIZE(counts); i++) {
                        if (counts[i] > 100000 && n > 3) /* of several pieces */
                                continue;
                        if (over >= TCP && n > 3 && n != 5) /* opening takes its time */
                                continue;
                        run_ranks(n, counts[i], all_operations, ranks);
                        for (uint32_t r = 0; r < n; r++) {
                                assert_string_equal(ranks[r].err.text, "");
                                assert_int_equal(ranks[r].failures, 0);
                        }
                        for (uint32_t r = 0; r < n; r++)
                                mfl_mesh_close(ranks[r].mesh);
                }
}

/* A number goes round the ring, and each rank adds one. */
static void round_the_ring(struct rank *rank)
{
        struct mfl_mesh *mesh = rank->mesh;
        uint32_t next = (mesh->rank + 1) % mesh->n_ranks,
                 before = (mesh->rank + mesh->n_ranks - 1) % mesh->n_ranks;
        for (uint32_t lap = 0; lap < 50; lap++) {
                int64_t x = lap;
                struct mfl_mesh_op send = {
                        .kind = MFL_MESH_SEND, .peer = next, .step = lap, .in = &x, .n = 1};
                struct mfl_mesh_op receive = {
                        .kind = MFL_MESH_RECV, .peer = before, .step = lap, .out = &x, .n = 1};
                if (mesh->rank)
                        rank->failures += mfl_mesh_run(mesh, &receive, LATE_MS, NULL, &rank->err) != 0;
                x++;
                rank->failures += mfl_mesh_run(mesh, &send, LATE_MS, NULL, &rank->err) != 0;
                if (!mesh->rank)
                        rank->failures += mfl_mesh_run(mesh, &receive, LATE_MS, NULL, &rank->err) != 0 ||
                                          x != (int64_t)(lap + mesh->n_ranks);
        }
}

static void pairs_send_and_receive(void **state)
{
        struct rank ranks[RANKS_MAX];
        run_ranks(RANKS_MAX, 0, round_the_ring, ranks);
        for (uint32_t r = 0; r < RANKS_MAX; r++) {
                assert_int_equal(ranks[r].failures, 0);
                mfl_mesh_close(ranks[r].mesh);
        }
}

static void one_is_a_step_ahead(struct rank *rank)
{
        int64_t x = 0;
        struct mfl_mesh_op op = {
                .kind = MFL_MESH_ALL_REDUCE, .step = rank->mesh->rank == 1, .in = &x, .out = &x, .n = 1};
        rank->code = mfl_mesh_run(rank->mesh, &op, LATE_MS, NULL, &rank->err);
}

static void ranks_that_disagree_break_the_mesh(void **state)
{
        struct rank ranks[RANKS_MAX];
        run_ranks(3, 0, one_is_a_step_ahead, ranks);
        for (uint32_t r = 0; r < 3; r++) {
                assert_int_equal(ranks[r].code, MFL_MESH_BROKEN);
                assert_non_null(strstr(ranks[r].err.text, "at step 1"));
                struct mfl_mesh_op again = {.kind = MFL_MESH_BARRIER};
                assert_int_equal(mfl_mesh_run(ranks[r].mesh, &again, LATE_MS, NULL, NULL), MFL_MESH_BROKEN);
        }
        for (uint32_t r = 0; r < 3; r++)
                mfl_mesh_close(ranks[r].mesh);
}

static void one_leaves(struct rank *rank)
{
        struct mfl_mesh_op op = {.kind = MFL_MESH_BARRIER};
        if (rank->mesh->rank == 2)
                mfl_mesh_close(rank->mesh);
        else
                rank->code = mfl_mesh_run(rank->mesh, &op, LATE_MS, NULL, &rank->err);
}

static void who_leaves_breaks_the_mesh(void **state)
{
        struct rank ranks[RANKS_MAX];
        run_ranks(3, 0, one_leaves, ranks);
        for (uint32_t r = 0; r < 2; r++) {
                assert_int_equal(ranks[r].code, MFL_MESH_BROKEN);
                assert_non_null(strstr(ranks[r].err.text, "rank 2 has left"));
                mfl_mesh_close(ranks[r].mesh);
        }
}

static void lateness_and_cancelling_end_the_wait(void **state)
{
        struct mfl_mesh *meshes[2];
        struct mfl_mesh_op op = {.kind = MFL_MESH_BARRIER, .step = 3, .sequence = 4};
        struct mfl_error err;
        atomic_bool cancel = true;
        for (int cancelled = 0; cancelled < 2; cancelled++) {
                open_meshes(2, meshes);
                assert_int_equal(mfl_mesh_run(meshes[0], &op, cancelled ? LATE_MS : 1,
                                         cancelled ? &cancel : NULL, &err),
                        MFL_MESH_BROKEN);
                assert_non_null(strstr(err.text,
                        cancelled ? "cancelled" : "waited 1 ms for the others in step 3, operation 4"));
                assert_int_equal(mfl_mesh_run(meshes[1], &op, LATE_MS, NULL, &err), MFL_MESH_BROKEN);
                mfl_mesh_close(meshes[0]);
                mfl_mesh_close(meshes[1]);
        }
}

/* A rank waits at a mesh that tells nothing, as devices' does; what happens at the other one ends that. */
struct deaf {
        struct mfl_mesh *bulk[2], *host[2];
        struct mfl_error err;
        int code;
};

static struct mfl_mesh_op question(uint32_t step)
{
        return (struct mfl_mesh_op){
                .kind = MFL_MESH_BARRIER, .step = step, .sequence = MFL_MESH_SEQUENCE_LOST};
}

static void *wait_deaf(void *arg)
{
        struct deaf *deaf = arg;
        const struct mfl_mesh_op op = {.kind = MFL_MESH_BARRIER, .step = 3};
        deaf->code = mfl_mesh_run(deaf->bulk[0], &op, LATE_MS, NULL, &deaf->err);
        return NULL;
}

enum event { FAILS, ASKS, LEAVES, EVENTS_ };

static void happen(struct deaf *deaf, enum event event)
{
        const struct mfl_mesh_op op = question(3);
        switch (event) {
        case FAILS:
                deaf->host[1]->ops->abort(deaf->host[1], "it has no memory");
                break;
        case ASKS:
                assert_int_equal(deaf->host[1]->ops->start(deaf->host[1], &op, NULL), 0);
                assert_int_equal(deaf->host[1]->ops->progress(deaf->host[1], 1, NULL), MFL_MESH_PENDING);
                break;
        default:
                mfl_mesh_close(deaf->host[1]);
                deaf->host[1] = NULL;
        }
}

static void who_waits_for_devices_hears_the_others(void **state)
{
        static const char *const words[] = {
                "it has no memory", "another rank has found it broken", "rank 1 has left"};
        for (int event = 0; event < EVENTS_; event++) {
                struct deaf deaf = {0};
                pthread_t thread;
                open_meshes(2, deaf.bulk);
                open_meshes(2, deaf.host);
                deaf.bulk[0]->beside = deaf.host[0];
                assert_int_equal(pthread_create(&thread, NULL, wait_deaf, &deaf), 0);
                happen(&deaf, (enum event)event);
                pthread_join(thread, NULL);
                assert_int_equal(deaf.code, MFL_MESH_BROKEN);
                if (!strstr(deaf.err.text, words[event]))
                        fail_msg("%s", deaf.err.text);
                assert_false(deaf.bulk[0]->late);
                for (int r = 0; r < 2; r++) {
                        mfl_mesh_close(deaf.bulk[r]);
                        mfl_mesh_close(deaf.host[r]);
                }
        }
}

/* An operation that others have begun is not the question who is lost: they have only come first. */
static void who_is_first_is_not_heard(void **state)
{
        const struct mfl_mesh_op op = {.kind = MFL_MESH_BARRIER, .step = 3, .sequence = 7};
        const struct mfl_mesh_op other = question(3), another = question(4);
        struct mfl_mesh *mesh[2];
        open_meshes(2, mesh);
        for (int turn = 0; turn < 6; turn++) { /* more than a ring has slots */
                bool begun = false;
                assert_int_equal(mesh[0]->ops->look(mesh[0], &op, &begun, NULL), 0);
                assert_false(begun);
                assert_int_equal(mesh[1]->ops->start(mesh[1], &op, NULL), 0);
                assert_int_equal(mesh[1]->ops->progress(mesh[1], 1, NULL), MFL_MESH_PENDING);
                assert_int_equal(mesh[0]->ops->look(mesh[0], &other, &begun, NULL), 0);
                assert_int_equal(mesh[0]->ops->look(mesh[0], &another, &begun, NULL), 0);
                assert_false(begun);
                assert_int_equal(mesh[0]->ops->look(mesh[0], &op, &begun, NULL), 0);
                assert_true(begun);
                assert_int_equal(mesh[0]->ops->start(mesh[0], &op, NULL), 0);
                for (int left = 3, r = 0; left; r = !r)
                        if ((left & 1 << r) &&
                                mesh[r]->ops->progress(mesh[r], 1000, NULL) != MFL_MESH_PENDING)
                                left &= ~(1 << r);
        }
        for (int r = 0; r < 2; r++)
                mfl_mesh_close(mesh[r]);
}

static void slices_are_whole_units(void **state)
{
        for (uint64_t n = 0; n < 200; n += 7)
                for (uint32_t ranks = 1; ranks <= 9; ranks++)
                        for (uint64_t unit = 1; unit <= 16; unit *= 4) {
                                assert_int_equal(mfl_mesh_slice(n, unit, ranks, 0), 0);
                                assert_int_equal(mfl_mesh_slice(n, unit, ranks, ranks), n);
                                for (uint32_t r = 0; r < ranks; r++) {
                                        uint64_t first = mfl_mesh_slice(n, unit, ranks, r),
                                                 end = mfl_mesh_slice(n, unit, ranks, r + 1);
                                        assert_true(first <= end && (first % unit == 0 || first == n));
                                        assert_true(end - first <= (n / unit / ranks + 1) * unit + unit - 1);
                                }
                        }
}

static void scales_keep_precision_and_never_overflow(void **state)
{
        assert_int_equal(mfl_team_exponent(1.0f), 0);
        assert_int_equal(mfl_team_exponent(1.5f), 1);
        assert_int_equal(mfl_team_exponent(0x1p-149f), -149);
        for (int e = -140; e <= 100; e += 10) {
                assert_true(
                        mfl_team_fits(e, ldexpf(1, e)) && mfl_team_fits(e, ldexpf(1, e + MFL_TEAM_HEADROOM)));
                assert_false(mfl_team_fits(e, ldexpf(1.01f, e + MFL_TEAM_HEADROOM)));
                if (e - MFL_TEAM_FALL > -140)
                        assert_false(mfl_team_fits(e, ldexpf(1, e - MFL_TEAM_FALL - 1)));
                for (uint32_t grains = 1; grains <= 1000; grains += 37) {
                        double largest =
                                ldexp(1, e + MFL_TEAM_HEADROOM) * grains * ldexp(1, mfl_team_bits(e, grains));
                        assert_true(largest <= 0x1p62 && largest > 0x1p60);
                }
        }
        assert_true(mfl_team_fits(0, 0) && mfl_team_fits(0, INFINITY) && mfl_team_fits(0, NAN));
}

#define OVER(name, test, use)                                                                                \
        {                                                                                                    \
                name "_" #test, test, use, NULL, NULL                                                        \
        }
#define OVER_ALL(test)                                                                                       \
        OVER("threads", test, use_threads), OVER("shm", test, use_shm), OVER("tcp", test, use_tcp),          \
                OVER("tls", test, use_tls), OVER("pairs", test, use_pairs)

int main(void)
{
        const struct CMUnitTest tests[] = {
                OVER_ALL(operations_give_what_they_say),
                OVER_ALL(pairs_send_and_receive),
                OVER_ALL(ranks_that_disagree_break_the_mesh),
                OVER_ALL(who_leaves_breaks_the_mesh),
                OVER_ALL(lateness_and_cancelling_end_the_wait),
                OVER("threads", who_waits_for_devices_hears_the_others, use_threads),
                OVER("shm", who_waits_for_devices_hears_the_others, use_shm),
                OVER("threads", who_is_first_is_not_heard, use_threads),
                OVER("shm", who_is_first_is_not_heard, use_shm),
                cmocka_unit_test(slices_are_whole_units),
                cmocka_unit_test(scales_keep_precision_and_never_overflow),
        };
        return cmocka_run_group_tests(tests, make_certs, remove_certs);
}
