/* SPDX-License-Identifier: Apache-2.0 */
/* The port of peers and what can go wrong there: strangers, wrong keys, garbage, old epochs, ranks that are gone. */
#include "tests/lib/test.h"
#include "client/peer/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/frame.h"
#include "tests/unit/proto/certs.h"

#define LONG_MS 60000
#define SHORT_MS 300

static struct certs certs;

static int make_certs(void **state)
{
        certs_init(&certs);
        certs_issue(&certs, &(struct certs_spec){.file = "d1", .cn = "d1", .ou = {"daemon"}, .to_days = 2});
        certs_issue(
                &certs, &(struct certs_spec){.file = "eve", .cn = "eve", .ou = {"operator"}, .to_days = 2});
        certs_issue(&certs,
                &(struct certs_spec){.ca = 1, .file = "x1", .cn = "x1", .ou = {"daemon"}, .to_days = 2});
        return 0;
}

static int remove_certs(void **state)
{
        certs_deinit(&certs);
        return 0;
}

/* cert: NULL: plain. */
static struct mfl_peer_port *open_port(const char *cert)
{
        struct mfl_peer_port_options options = {.listen = "127.0.0.1:0"};
        struct certs_files files;
        struct mfl_peer_port *port;
        struct mfl_error err;
        if (cert)
                options.tls = *certs_files(&certs, *cert == 'x', cert, NULL, &files);
        if (mfl_peer_port_open(&options, &port, &err))
                fail_msg("%s", err.text);
        return port;
}

/* One of two ranks, or of up to four. */
struct rank {
        pthread_t thread;
        struct mfl_mesh_tcp_options options;
        const char *address[4];
        struct mfl_mesh *mesh;
        struct mfl_error err;
        uint32_t accused;
        enum mfl_mesh_loss loss;
        int code;
};

static void *open_rank(void *arg)
{
        struct rank *rank = arg;
        rank->options.address = rank->address;
        rank->options.accused = &rank->accused;
        rank->options.loss = &rank->loss;
        rank->code = mfl_mesh_tcp_open(&rank->options, &rank->mesh, &rank->err);
        return NULL;
}

static struct rank rank_of(struct mfl_peer_port *port, uint32_t rank, const char *address, const char *key)
{
        struct rank r = {.options = {.port = port,
                                 .team = 5,
                                 .rank = rank,
                                 .n_ranks = 2,
                                 .local_first = rank,
                                 .n_local = 1,
                                 .deadline_ms = LONG_MS},
                .address = {address, address}};
        memcpy(r.options.key, key, strlen(key));
        return r;
}

static void begin(struct rank *rank)
{
        assert_int_equal(pthread_create(&rank->thread, NULL, open_rank, rank), 0);
}

static void end(struct rank *rank)
{
        pthread_join(rank->thread, NULL);
}

static void expect(const struct rank *rank, int code, uint32_t accused, const char *text)
{
        if (rank->code != code || !strstr(rank->err.text, text))
                fail_msg("code %d, \"%s\" lacks \"%s\"", rank->code, rank->err.text, text);
        assert_int_equal(rank->accused, accused);
}

static void expect_loss(const struct rank *rank, enum mfl_mesh_loss loss)
{
        assert_int_equal(rank->loss, loss);
}

/* A rank that waits, whatever others do to its port, meets its team at last. */
static void meets(struct mfl_peer_port *port, struct rank *waiting, const char *key)
{
        struct rank other = rank_of(port, 1, mfl_peer_port_address(port), key);
        begin(&other);
        end(&other);
        end(waiting);
        expect(&other, 0, 0, "");
        expect(waiting, 0, 0, "");
        mfl_mesh_close(other.mesh);
        mfl_mesh_close(waiting->mesh);
}

static int connect_raw(const struct mfl_peer_port *port)
{
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        to.sin_port = htons((uint16_t)atoi(strrchr(mfl_peer_port_address(port), ':') + 1));
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
        return fd;
}

static void who_lacks_the_key_stays_outside(void **state)
{
        for (int tls = 0; tls < 2; tls++) {
                struct mfl_peer_port *port = open_port(tls ? "d1" : NULL);
                struct rank waiting = rank_of(port, 0, "", "right"), wrong;
                begin(&waiting);
                wrong = rank_of(port, 1, mfl_peer_port_address(port), "wrong");
                begin(&wrong);
                end(&wrong);
                expect(&wrong, MFL_MESH_BROKEN, 1, "does not have the team's key");
                meets(port, &waiting, "right");
                mfl_peer_port_close(port);
        }
}

static void other_teams_and_epochs_do_not_meet(void **state)
{
        struct mfl_peer_port *port = open_port(NULL);
        struct rank waiting = rank_of(port, 0, "", "k"),
                    old = rank_of(port, 1, mfl_peer_port_address(port), "k");
        struct rank other = old;
        waiting.options.epoch = 1;
        old.options.deadline_ms = other.options.deadline_ms = SHORT_MS;
        other.options.epoch = 1;
        other.options.team = 6;
        begin(&waiting);
        begin(&old);
        begin(&other);
        end(&old);
        end(&other);
        expect(&old, MFL_MESH_BROKEN, 1, "rank 0 of the team did not come within 300 ms");
        expect(&other, MFL_MESH_BROKEN, 1, "rank 0 of the team did not come within 300 ms");
        struct rank right = rank_of(port, 1, mfl_peer_port_address(port), "k");
        right.options.epoch = 1;
        begin(&right);
        end(&right);
        end(&waiting);
        expect(&right, 0, 0, "");
        expect(&waiting, 0, 0, "");
        mfl_mesh_close(right.mesh);
        mfl_mesh_close(waiting.mesh);
        mfl_peer_port_close(port);
}

static void certificates_decide(void **state)
{
        static const struct {
                const char *cert, *text;
        } rows[] = {{"eve", "the role operator, expected daemon"}, {"x1", "CN = d1 is refused"},
                {NULL, "rank 0 of the team"}};
        struct mfl_peer_port *port = open_port("d1");
        struct rank waiting = rank_of(port, 0, "", "k");
        begin(&waiting);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                struct mfl_peer_port *others = open_port(rows[i].cert);
                struct rank rank = rank_of(others, 1, mfl_peer_port_address(port), "k");
                rank.options.deadline_ms = 5000;
                begin(&rank);
                end(&rank);
                /* Eve's own side trusts d1: it is the port that turns her away, once it has her certificate. */
                expect(&rank, MFL_MESH_BROKEN, 1, i ? rows[i].text : "rank 0 of the team");
                mfl_peer_port_close(others);
        }
        meets(port, &waiting, "k");
        mfl_peer_port_close(port);
}

static void garbage_harms_nobody(void **state)
{
        static uint8_t bytes[100000];
        for (int tls = 0; tls < 2; tls++) {
                struct mfl_peer_port *port = open_port(tls ? "d1" : NULL);
                struct rank waiting = rank_of(port, 0, "", "k");
                struct mfl_rng random = mfl_rng_new(1, MFL_RNG_TEST, 0, 0);
                int fds[100];
                begin(&waiting);
                for (size_t i = 0; i < MFL_ARRAY_SIZE(fds); i++) { /* more than there is room for */
                        const struct mfl_frame frame = {
                                MFL_FRAME_VERSION, i % 2 ? 100 : 4000000000u, 0, 0, 0};
                        for (size_t k = 0; k < sizeof bytes; k++)
                                bytes[k] = (uint8_t)mfl_rng_u32(&random);
                        if (i % 3 == 1) /* a header that is fine, or nearly */
                                mfl_frame_encode(&frame, bytes);
                        fds[i] = connect_raw(port);
                        send(fds[i], bytes, i % 4 ? sizeof bytes >> i % 17 : 0, MSG_NOSIGNAL | MSG_DONTWAIT);
                }
                meets(port, &waiting, "k");
                for (size_t i = 0; i < MFL_ARRAY_SIZE(fds); i++)
                        close(fds[i]);
                mfl_peer_port_close(port);
        }
}

static void who_cannot_be_reached_is_named(void **state)
{
        struct mfl_peer_port *port = open_port(NULL), *gone = open_port(NULL);
        char address[MFL_PEER_BYTES], text[200];
        strcpy(address, mfl_peer_port_address(gone));
        mfl_peer_port_close(gone);
        struct rank rank = rank_of(port, 1, address, "k");
        begin(&rank);
        end(&rank);
        snprintf(text, sizeof text, "rank 0 of the team can't be reached at %s: Connection refused", address);
        expect(&rank, MFL_MESH_BROKEN, 1, text);
        expect_loss(&rank, MFL_MESH_UNREACHED);
        atomic_bool cancel = true;
        struct rank cancelled = rank_of(port, 0, "", "k");
        cancelled.options.cancel = &cancel;
        begin(&cancelled);
        end(&cancelled);
        expect(&cancelled, MFL_MESH_BROKEN, 0, "cancelled");
        struct rank alone = rank_of(port, 0, "", "k");
        alone.options.deadline_ms = 30;
        begin(&alone);
        end(&alone);
        expect(&alone, MFL_MESH_BROKEN, 2, "rank 1 of the team did not come within 30 ms");
        mfl_peer_port_close(port);
}

/* Rank 1 of 3 can't connect to rank 0. Where it reaches rank 2, it is rank 0's fault; where it reaches nobody, its own. */
static void who_reaches_nobody_accuses_itself(void **state)
{
        struct mfl_peer_port *port = open_port(NULL), *other = open_port(NULL), *gone = open_port(NULL);
        char closed[MFL_PEER_BYTES], closed_too[MFL_PEER_BYTES], text[300];
        strcpy(closed, mfl_peer_port_address(gone));
        mfl_peer_port_close(gone);
        gone = open_port(NULL);
        strcpy(closed_too, mfl_peer_port_address(gone));
        mfl_peer_port_close(gone);
        struct rank rank = rank_of(port, 1, closed, "k");
        rank.options.n_ranks = 3;
        rank.address[1] = "127.0.0.2:1"; /* another host */
        rank.address[2] = mfl_peer_port_address(other);
        begin(&rank);
        end(&rank);
        snprintf(text, sizeof text, "can't be reached at %s: Connection refused; %s can be reached", closed,
                rank.address[2]);
        expect(&rank, MFL_MESH_BROKEN, 1, text);
        expect_loss(&rank, MFL_MESH_UNREACHED);
        /* Two closed ports of one host are one host that restarts. */
        const char *nobody[] = {"127.0.0.4:1", "no such host", closed_too, ""};
        for (int i = 0; i < 4; i++) {
                rank = rank_of(port, 1, closed, "k");
                rank.options.n_ranks = 3;
                rank.address[1] = "127.0.0.2:1";
                rank.address[2] = nobody[i];
                begin(&rank);
                end(&rank);
                bool isolated = i < 2;
                expect(&rank, MFL_MESH_BROKEN, isolated ? 2 : 1,
                        isolated ? "refused; nor can 1 other host" : "refused");
                expect_loss(&rank, isolated ? MFL_MESH_ISOLATED : MFL_MESH_UNREACHED);
        }
        /* That it reaches rank 3, at its own host, says nothing. */
        rank = rank_of(port, 1, "127.0.0.2:1", "k");
        rank.options.n_ranks = 4;
        rank.address[1] = "127.0.0.1:1";
        rank.address[2] = "127.0.0.3:1";
        rank.address[3] = mfl_peer_port_address(other);
        begin(&rank);
        end(&rank);
        expect(&rank, MFL_MESH_BROKEN, 2, "refused; nor can 1 other host");
        expect_loss(&rank, MFL_MESH_ISOLATED);
        mfl_peer_port_close(other);
        mfl_peer_port_close(port);
}

/* What an aborted or dead rank leaves behind in the middle of an operation. */
static void a_rank_that_goes_breaks_what_is_under_way(void **state)
{
        static int64_t vector[1 << 20];
        for (int how = 0; how < 3; how++) {
                struct mfl_peer_port *port = open_port(how == 1 ? "d1" : NULL);
                struct rank a = rank_of(port, 0, "", "k"),
                            b = rank_of(port, 1, mfl_peer_port_address(port), "k");
                struct mfl_mesh_op op = {
                        .kind = MFL_MESH_ALL_REDUCE, .in = vector, .out = vector, .n = 1 << 20};
                struct mfl_error err;
                begin(&a);
                begin(&b);
                end(&a);
                end(&b);
                assert_int_equal(a.code | b.code, 0);
                assert_int_equal(b.mesh->ops->start(b.mesh, &op, &err), 0);
                assert_int_equal(b.mesh->ops->progress(b.mesh, 1000000, &err), MFL_MESH_PENDING);
                if (how == 2)
                        mfl_mesh_close(b.mesh);
                else
                        b.mesh->ops->abort(b.mesh, "the device broke");
                assert_int_equal(mfl_mesh_run(a.mesh, &op, LONG_MS, NULL, &err), MFL_MESH_BROKEN);
                if (how < 2)
                        mfl_mesh_close(b.mesh);
                mfl_mesh_close(a.mesh);
                mfl_peer_port_close(port);
        }
}

static void who_is_late_is_named(void **state)
{
        struct mfl_peer_port *port = open_port(NULL);
        struct rank a = rank_of(port, 0, "", "k"), b = rank_of(port, 1, mfl_peer_port_address(port), "k");
        const struct mfl_mesh_op op = {.kind = MFL_MESH_BARRIER, .step = 3};
        struct mfl_error err;
        begin(&a);
        begin(&b);
        end(&a);
        end(&b);
        assert_int_equal(mfl_mesh_run(a.mesh, &op, 20, NULL, &err), MFL_MESH_BROKEN);
        assert_non_null(strstr(err.text, "rank 1 has not come"));
        assert_int_equal(a.mesh->accused, 2);
        assert_int_equal(mfl_mesh_run(b.mesh, &op, LONG_MS, NULL, &err), MFL_MESH_BROKEN);
        assert_int_equal(b.mesh->accused, 2);
        mfl_mesh_close(a.mesh);
        mfl_mesh_close(b.mesh);
        mfl_peer_port_close(port);
}

static void where_it_listens_is_checked(void **state)
{
        static const struct {
                const char *listen, *address, *cert, *text; /* text: of the refusal; NULL: fine */
        } rows[] = {
                {"127.0.0.1:0", "", NULL, NULL},
                {"[::1]:0", "localhost", NULL, NULL},
                {"0.0.0.0:0", "node7:99", NULL, "is not a loopback address, and no TLS is configured"},
                {"0.0.0.0:0", "", "d1", "say in peer_address by which of them others reach it"},
                {"0.0.0.0:0", "node7.example.org:99", "d1", NULL},
                {"127.0.0.1", "http://x", NULL, "not a URL"},
                {"nowhere.invalid:1", "", NULL, "peer_listen: nowhere.invalid:1"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                struct mfl_peer_port_options options = {.listen = rows[i].listen, .address = rows[i].address};
                struct certs_files files;
                struct mfl_peer_port *port;
                struct mfl_error err = {""};
                if (rows[i].cert)
                        options.tls = *certs_files(&certs, 0, rows[i].cert, NULL, &files);
                int r = mfl_peer_port_open(&options, &port, &err);
                if (r != (rows[i].text ? MFL_INVALID : 0) || (r && !strstr(err.text, rows[i].text)))
                        fail_msg("row %zu: %d, %s", i, r, err.text);
                if (r)
                        continue;
                if (i == 4)
                        assert_string_equal(mfl_peer_port_address(port), "node7.example.org:99");
                struct mfl_peer_port_options again = {
                        .listen = mfl_peer_port_address(port), .tls = options.tls};
                struct mfl_peer_port *second;
                if (i == 0) {
                        assert_int_equal(mfl_peer_port_open(&again, &second, &err), MFL_INVALID);
                        assert_non_null(strstr(err.text, "needs a port of its own"));
                }
                mfl_peer_port_close(port);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(who_lacks_the_key_stays_outside),
                cmocka_unit_test(other_teams_and_epochs_do_not_meet),
                cmocka_unit_test(certificates_decide),
                cmocka_unit_test(garbage_harms_nobody),
                cmocka_unit_test(who_cannot_be_reached_is_named),
                cmocka_unit_test(who_reaches_nobody_accuses_itself),
                cmocka_unit_test(a_rank_that_goes_breaks_what_is_under_way),
                cmocka_unit_test(who_is_late_is_named),
                cmocka_unit_test(where_it_listens_is_checked),
        };
        return cmocka_run_group_tests_name("peer", tests, make_certs, remove_certs);
}
