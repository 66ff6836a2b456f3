/* SPDX-License-Identifier: Apache-2.0 */
/* Tables to the letter: daemons node by node and the network's costs, at several widths. */
#include "cli/base/table.h"
#include "cli/view/crew.h"
#include "cli/view/views.h"
#include "tests/lib/test.h"

#include <stdio.h>

#define ID "0f3a9c12d4e5ffffffffffffffffffff"

static void check_text(char *text, const char *expected)
{
        assert_non_null(text);
        assert_string_equal(text, expected);
        free(text);
}

/* ---- table ---- */

static const struct mfl_table_column three[] = {{"A", false, 0}, {"BB", true, 1}, {"C", false, 2}};

static void test_table(void **state)
{
        struct mfl_table t = {.columns = three, .n_columns = 3};
        check_text(mfl_table_render(&t, 0), "A  BB  C\n");
        mfl_table_add(&t, (const char *[]){"x", "1", ""});
        mfl_table_remark(&t, "%s", "first of two");
        mfl_table_remark(&t, "%s", "a remark that is long enough to be broken into two lines, or into three");
        mfl_table_add(&t, (const char *[]){"\u00e4\u00e4", NULL, "end"});
        check_text(mfl_table_render(&t, 0),
                "A   BB  C\n"
                "x    1\n"
                "    first of two\n"
                "    a remark that is long enough to be broken into two lines, or into three\n"
                "\u00e4\u00e4   -  end\n");
        check_text(mfl_table_render(&t, 40), "A   BB  C\n"
                                             "x    1\n"
                                             "    first of two\n"
                                             "    a remark that is long enough to be\n"
                                             "    broken into two lines, or into three\n"
                                             "\u00e4\u00e4   -  end\n");
        mfl_table_deinit(&t);
}

static void test_table_leaves_columns_out(void **state)
{
        struct mfl_table t = {.columns = three, .n_columns = 3};
        mfl_table_add(&t, (const char *[]){"xx", "12345", "c"});
        check_text(mfl_table_render(&t, 12), "A      BB  C\nxx  12345  c\n");
        check_text(mfl_table_render(&t, 11), "A      BB\nxx  12345\n");
        check_text(mfl_table_render(&t, 8), "A\nxx\n");
        check_text(mfl_table_render(&t, 1), "A\nxx\n"); /* what must be there is never cut */
        mfl_table_deinit(&t);
        mfl_table_add(&t, (const char *[]){"xx", NULL, ""});
        check_text(mfl_table_render(&t, 0), "A\nxx\n"); /* nothing is known of the others */
        mfl_table_deinit(&t);
}

static void test_table_out_of_memory(void **state)
{
        bool struck = true;
        for (long n = 0; struck; n++) {
                struct mfl_table t = {.columns = three, .n_columns = 3};
                mfl_alloc_fail_at(n);
                for (int i = 0; i < 20; i++) {
                        mfl_table_add(&t, (const char *[]){"a", NULL, "c"});
                        mfl_table_remark(&t, "%d", i);
                        mfl_table_remark(&t, "%d", i);
                }
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                char *text = mfl_table_render(&t, 0);
                assert_true(!text == struck);
                free(text);
                mfl_table_deinit(&t);
        }
}

/* ---- daemons ---- */

static void test_node_names(void **state)
{
        char buf[160];
        assert_string_equal(mfl_view_node(ID, buf, sizeof buf), "0f3a9c12d4e5");
        assert_string_equal(mfl_view_node(ID "/d1", buf, sizeof buf), "0f3a9c12d4e5/d1");
        assert_string_equal(mfl_view_node(ID "f", buf, sizeof buf), ID "f"); /* not an id */
        assert_string_equal(mfl_view_node("rack-7/d1", buf, sizeof buf), "rack-7/d1");
        assert_string_equal(mfl_view_node("others", buf, sizeof buf), "others");
        assert_string_equal(mfl_view_node("", buf, sizeof buf), "-");
}

static Mfl__DaemonInfo daemon_of(const char *node, const char *name, Mfl__Collective collective)
{
        Mfl__DaemonInfo d = MFL__DAEMON_INFO__INIT;
        d.node = (char *)(uintptr_t)node;
        d.name = (char *)(uintptr_t)name;
        d.backend = "cpu";
        d.state = "training";
        d.workers = 2;
        d.device = "Some CPU, 4 threads";
        d.job = "j-000001";
        d.round = 3;
        d.items_done = 4;
        d.items_total = 10;
        d.items_part = 4;
        d.collective = collective;
        d.clients_per_second = 12.34;
        d.samples_per_second = 1234.4;
        return d;
}

/* Two nodes, out of order: one of three daemons, of which one can't join; one of a single idle daemon. */
static void check_daemons(int columns, const char *expected)
{
        Mfl__DaemonInfo c = daemon_of(ID, "cpu-c", MFL__COLLECTIVE__COLLECTIVE_SHM);
        Mfl__DaemonInfo a = daemon_of(ID, "cpu-a", MFL__COLLECTIVE__COLLECTIVE_SOLO);
        Mfl__DaemonInfo b = daemon_of(ID, "cpu-b", MFL__COLLECTIVE__COLLECTIVE_SHM);
        Mfl__DaemonInfo z = daemon_of("attic", "z", MFL__COLLECTIVE__COLLECTIVE_SOLO);
        Mfl__DaemonInfo *daemons[] = {&z, &c, &b, &a};
        Mfl__DaemonList list = MFL__DAEMON_LIST__INIT;
        c.leader = true;
        a.alone = "it runs as user 1001, the others as user 1000";
        z.state = "idle";
        z.job = "";
        z.clients_per_second = z.samples_per_second = 0;
        z.note = "its data set 'd' has another content than those of the other daemons";
        z.alone = "no other daemon of its node is connected";
        list.n_daemons = 4;
        list.daemons = daemons;
        mfl_view_sort_daemons(&list);
        assert_ptr_equal(list.daemons[0], &c);
        assert_ptr_equal(list.daemons[1], &a);
        assert_ptr_equal(list.daemons[3], &z);
        check_text(mfl_view_daemons(&list, columns), expected);
}

/* Three levels of relays, out of order, one of whose names begins as another one's. */
static void test_tree(void **state)
{
        static const char *const relays[] = {"eu/paris/rack1", "", "eu-2", "eu/paris", "eu", "eu/oslo"};
        Mfl__DaemonInfo infos[6], *daemons[6];
        Mfl__DaemonList list = MFL__DAEMON_LIST__INIT;
        char name[6][4];
        for (int i = 0; i < 6; i++) {
                mfl_snprintf(name[i], sizeof name[i], "d%d", i);
                infos[i] = daemon_of("n", name[i], MFL__COLLECTIVE__COLLECTIVE_RELAY);
                infos[i].relay = (char *)(uintptr_t)relays[i];
                daemons[i] = &infos[i];
        }
        list.n_daemons = 6;
        list.daemons = daemons;
        mfl_view_sort_daemons(&list);
        check_text(mfl_view_daemons(&list, 40), "NODE         NAME  STATE     ADDS BY\n"
                                                "n            d1    training  relay\n"
                                                "relay eu:\n"
                                                "  n          d4    training  relay\n"
                                                "  oslo:\n"
                                                "    n        d5    training  relay\n"
                                                "  paris:\n"
                                                "    n        d3    training  relay\n"
                                                "    rack1:\n"
                                                "      n      d0    training  relay\n"
                                                "relay eu-2:\n"
                                                "  n          d2    training  relay\n");
}

static void test_daemons_80(void **state)
{
        check_daemons(80, "NODE             NAME   STATE     ADDS BY  BACKEND  WORK              CLIENTS/S\n"
                          "0f3a9c12d4e5  *  cpu-c  training  shm      cpu      j-000001 r3 4/10       12.3\n"
                          "                 cpu-a  training  solo     cpu      j-000001 r3 4/10       12.3\n"
                          "    alone: it runs as user 1001, the others as user 1000\n"
                          "                 cpu-b  training  shm      cpu      j-000001 r3 4/10       12.3\n"
                          "attic            z      idle      solo     cpu      -                         -\n"
                          "    note: its data set 'd' has another content than those of the other daemons\n"
                          "    alone: no other daemon of its node is connected\n");
}

static void test_daemons_50(void **state)
{
        check_daemons(50, "NODE             NAME   STATE     ADDS BY\n"
                          "0f3a9c12d4e5  *  cpu-c  training  shm\n"
                          "                 cpu-a  training  solo\n"
                          "    alone: it runs as user 1001, the others as\n"
                          "    user 1000\n"
                          "                 cpu-b  training  shm\n"
                          "attic            z      idle      solo\n"
                          "    note: its data set 'd' has another content\n"
                          "    than those of the other daemons\n"
                          "    alone: no other daemon of its node is\n"
                          "    connected\n");
}

static void test_daemons_unlimited(void **state)
{
        check_daemons(0,
                "NODE             NAME   STATE     ADDS BY  BACKEND  WORKERS  WORK              CLIENTS/S  "
                "SAMPLES/S  DEVICE\n"
                "0f3a9c12d4e5  *  cpu-c  training  shm      cpu            2  j-000001 r3 4/10       12.3  "
                "     1234  Some CPU, 4 threads\n"
                "                 cpu-a  training  solo     cpu            2  j-000001 r3 4/10       12.3  "
                "     1234  Some CPU, 4 threads\n"
                "    alone: it runs as user 1001, the others as user 1000\n"
                "                 cpu-b  training  shm      cpu            2  j-000001 r3 4/10       12.3  "
                "     1234  Some CPU, 4 threads\n"
                "attic            z      idle      solo     cpu            2  -                         -  "
                "        -  Some CPU, 4 threads\n"
                "    note: its data set 'd' has another content than those of the other daemons\n"
                "    alone: no other daemon of its node is connected\n");
}

static const char *check_wide(const Mfl__DaemonList *list)
{
        static char kept[1024];
        MFL_CLEANUP_FREE char *text = mfl_view_daemons(list, 0);
        assert_non_null(text);
        mfl_strcpy(kept, sizeof kept, text);
        return kept;
}

/* A reason that daemons share is said once; a server of before says nothing of collectives. */
static void test_daemons_reasons(void **state)
{
        Mfl__DaemonInfo a = daemon_of("n", "a", MFL__COLLECTIVE__COLLECTIVE_SHM);
        Mfl__DaemonInfo b = daemon_of("n", "b", MFL__COLLECTIVE__COLLECTIVE_SHM);
        Mfl__DaemonInfo *daemons[] = {&a, &b};
        Mfl__DaemonList list = MFL__DAEMON_LIST__INIT;
        list.n_daemons = 2;
        list.daemons = daemons;
        a.leader = true;
        a.alone = b.alone = "versions of NCCL differ";
        check_text(mfl_view_daemons(&list, 55), "NODE     NAME  STATE     ADDS BY  CLIENTS/S\n"
                                                "n     *  a     training  shm           12.3\n"
                                                "         b     training  shm           12.3\n"
                                                "    shm, not nccl: versions of NCCL differ\n");
        Mfl__Activity activity = MFL__ACTIVITY__INIT;
        activity.compute = 0.905;
        activity.network = 0.095;
        a.activity = &activity;
        a.samples_per_second = b.samples_per_second = 0;
        assert_non_null(strstr(check_wide(&list), "  COMPUTE/DATA/NETWORK/WAIT  DEVICE\n"));
        assert_non_null(strstr(check_wide(&list), "                91/0/9/0%  Some CPU, 4 threads\n"));
        a.activity = NULL;
        a.leader = false;
        a.alone = b.alone = "";
        a.collective = b.collective = MFL__COLLECTIVE__COLLECTIVE_UNSPECIFIED;
        check_text(mfl_view_daemons(&list, 40), "NODE  NAME  STATE     CLIENTS/S\n"
                                                "n     a     training       12.3\n"
                                                "      b     training       12.3\n");
}

/* ---- crew ---- */

static void join(
        struct mfl_crew *crew, const char *name, double speed, double compute, double data, double network)
{
        struct mfl_crew_member *m = &crew->member[crew->n++];
        mfl_strcpy(m->daemon, sizeof m->daemon, name);
        m->known = true;
        m->activity = (Mfl__Activity){.workers = 1,
                .samples_per_second = speed,
                .compute = compute,
                .data = data,
                .network = network,
                .wait = 1 - compute - data - network};
}

static void make_crew(struct mfl_crew *crew)
{
        *crew = (struct mfl_crew){0};
        join(crew, "d1", 2510.4, 0.907, 0.013, 0.02);
        join(crew, "d2", 3.14, 0, 0, 0);
        mfl_strcpy(crew->member[crew->n++].daemon, MFL_NAME_BYTES, "of-before");
}

static void check_crew(
        const struct mfl_crew *crew, int lines_max, int columns, bool utf8, const char *expected)
{
        struct mfl_style style = {.columns = columns, .utf8 = utf8};
        check_text(mfl_view_crew(crew, lines_max, &style), expected);
}

static void test_crew(void **state)
{
        struct mfl_crew crew;
        make_crew(&crew);
        check_crew(&crew, 24, 80, false,
                "daemon     samples/s  compute  data  network  wait\n"
                "d1              2510      91%    1%       2%    6%  ###############.\n"
                "d2               3.1       0%    0%       0%  100%  ................\n"
                "of-before          -        -     -        -     -  -\n");
        check_crew(&crew, 4, 60, true,
                "daemon     samples/s  compute  data  network  wait\n"
                "d1              2510      91%    1%       2%    6%\n"
                "d2               3.1       0%    0%       0%  100%\n"
                "of-before          -        -     -        -     -\n");
        check_crew(&crew, 4, 16, true,
                "daemon     sampl\nd1              \nd2              \nof-before       \n");
        crew.member[0].activity.data = 0.263;
        crew.member[0].activity.compute = 0.657;
        crew.n = 1;
        check_crew(&crew, 2, 80, true,
                "daemon  samples/s  compute  data  network  wait\n"
                "d1           2510      66%   26%       2%    6%  "
                "\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u2593\u2593\u2593\u2593"
                "\u2591\n");
}

/* Those who have no room are counted; nothing where not even one has. */
static void test_crew_of_many(void **state)
{
        struct mfl_crew crew;
        make_crew(&crew);
        check_crew(&crew, 3, 60, false,
                "daemon  samples/s  compute  data  network  wait\n"
                "d1           2510      91%    1%       2%    6%\n"
                "and 2 more\n");
        check_crew(&crew, 2, 60, false, "");
        check_crew(&crew, -5, 60, false, "");
        crew.more = 900;
        crew.n = 2;
        check_crew(&crew, 5, 60, false,
                "daemon  samples/s  compute  data  network  wait\n"
                "d1           2510      91%    1%       2%    6%\n"
                "d2            3.1       0%    0%       0%  100%\n"
                "and 900 more\n");
        crew.n = crew.more = 0;
        check_crew(&crew, 24, 60, false, "");
}

/* Percents are 100 together, whatever rounding does; a sum weighs by workers. */
static void test_crew_sums(void **state)
{
        struct mfl_crew crew = {0};
        Mfl__Activity sum;
        int parts[MFL_ACTIVITY_STATES];
        char line[128];
        assert_false(mfl_crew_sum(&crew, &sum));
        join(&crew, "a", 100, 1.0 / 3, 1.0 / 3, 1.0 / 3);
        mfl_crew_apportion(&crew.member[0].activity, 100, parts);
        assert_int_equal(parts[0] + parts[1] + parts[2] + parts[3], 100);
        assert_in_range(parts[1], 33, 34);
        join(&crew, "b", 50, 1, 0, 0);
        crew.member[1].activity.workers = 3;
        crew.n++; /* whose activity is not known */
        assert_true(mfl_crew_sum(&crew, &sum));
        assert_int_equal(sum.workers, 4);
        assert_string_equal(mfl_crew_line(&sum, line, sizeof line),
                "150 samples/s  compute 84%  data 8%  network 8%  wait 0%");
}

static void test_crew_memory(void **state)
{
        struct mfl_style style = {.columns = 80};
        struct mfl_crew crew;
        make_crew(&crew);
        for (long n = 0;; n++) {
                mfl_alloc_fail_at(n);
                char *text = mfl_view_crew(&crew, 3, &style);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(text == NULL, struck);
                free(text);
                if (!struck)
                        return;
        }
}

/* ---- network ---- */

static Mfl__NodeCost cost_of(uint32_t round, const char *node, uint32_t daemons, uint64_t up, uint64_t down)
{
        Mfl__NodeCost c = MFL__NODE_COST__INIT;
        c.round = round;
        c.node = (char *)(uintptr_t)node;
        c.daemons = daemons;
        c.bytes_up = up;
        c.bytes_down = down;
        c.bytes_up_alone = up * daemons;
        c.bytes_down_alone = down * daemons;
        return c;
}

static void check_network(bool all_rounds, int columns, const char *expected)
{
        Mfl__NodeCost a = cost_of(11, ID, 4, 200000000, 100000000),
                      b = cost_of(12, ID, 4, 200000000, 100000000);
        Mfl__NodeCost c = cost_of(12, "attic", 1, 200000000, 100000000), idle = cost_of(12, "idle", 1, 0, 0);
        Mfl__NodeCost *nodes[] = {&a, &b, &c, &idle};
        Mfl__RoundInfo r5 = MFL__ROUND_INFO__INIT, r12 = MFL__ROUND_INFO__INIT, *rounds[] = {&r5, &r12};
        Mfl__JobDetail d = MFL__JOB_DETAIL__INIT;
        r5.round = 5;
        r12.round = 12;
        r5.bytes_up = r12.bytes_up = 400000000;
        r5.bytes_down = r12.bytes_down = 200000000;
        r5.bytes_up_alone = r12.bytes_up_alone = 1000000000;
        r5.bytes_down_alone = r12.bytes_down_alone = 500000000;
        d.n_nodes = 4;
        d.nodes = nodes;
        d.n_rounds = 2;
        d.rounds = rounds;
        check_text(mfl_view_network(&d, all_rounds, columns), expected);
}

#define SUM "rounds 5 to 12: 800 MB up, 400 MB down; alone 2.0 GB up, 1.0 GB down (2.5x)\n"

static void test_network(void **state)
{
        const char *newest =
                "network\n"
                "ROUND  NODE          DAEMONS      UP    DOWN  UP ALONE  DOWN ALONE  FACTOR\n"
                "   12  0f3a9c12d4e5        4  200 MB  100 MB    800 MB      400 MB    4.0x\n"
                "   12  attic               1  200 MB  100 MB    200 MB      100 MB    1.0x\n"
                "   12  idle                1     0 B     0 B       0 B         0 B       -\n" SUM;
        check_network(false, 0, newest);
        check_network(false, 80, newest);
        check_network(true, 60,
                "network\n"
                "ROUND  NODE          DAEMONS      UP    DOWN  FACTOR\n"
                "   11  0f3a9c12d4e5        4  200 MB  100 MB    4.0x\n"
                "   12  0f3a9c12d4e5        4  200 MB  100 MB    4.0x\n"
                "   12  attic               1  200 MB  100 MB    1.0x\n"
                "   12  idle                1     0 B     0 B       -\n" SUM);
        Mfl__JobDetail nothing = MFL__JOB_DETAIL__INIT;
        check_text(mfl_view_network(&nothing, true, 0), "");
}

/* ---- jobs ---- */

static void check_jobs(int columns, const char *expected)
{
        Mfl__JobInfo a = MFL__JOB_INFO__INIT, b = a, *jobs[] = {&a, &b};
        Mfl__RoundInfo last = MFL__ROUND_INFO__INIT, before = last;
        Mfl__JobList list = MFL__JOB_LIST__INIT;
        a.job = "j-000001";
        a.name = "fashion-dirichlet";
        a.state = MFL__JOB_STATE__JOB_RUNNING;
        a.round = last.round = 19;
        a.rounds = 50;
        a.created_ms = 1760000000000; /* 2025-10-09 08:53:20 UTC */
        a.last = &last;
        a.evaluated = &before;
        before.round = 17;
        before.evaluated = true;
        before.accuracy = 0.75;
        b.job = "j-000002";
        b.name = "b";
        b.state = MFL__JOB_STATE__JOB_WAITING;
        b.rounds = 3;
        b.reason = "2 daemons offer mnist: site-a is disabled by a rule, site-b is drained";
        list.jobs = jobs;
        list.n_jobs = 2;
        check_text(mfl_view_jobs(&list, columns), expected);
}

static void test_jobs(void **state)
{
        setenv("TZ", "UTC", 1);
        check_jobs(80, "JOB       NAME               STATE    ROUND     ACCURACY  CREATED\n"
                       "j-000001  fashion-dirichlet  running  19/50  0.7500 (17)  2025-10-09 08:53:20\n"
                       "j-000002  b                  waiting    0/3            -  -\n"
                       "    2 daemons offer mnist: site-a is disabled by a rule, site-b is drained\n");
        check_jobs(60, "JOB       NAME               STATE    ROUND     ACCURACY\n"
                       "j-000001  fashion-dirichlet  running  19/50  0.7500 (17)\n"
                       "j-000002  b                  waiting    0/3            -\n"
                       "    2 daemons offer mnist: site-a is disabled by a rule,\n"
                       "    site-b is drained\n");
        check_jobs(0,
                "JOB       NAME               STATE    ROUND     ACCURACY  CREATED              REASON\n"
                "j-000001  fashion-dirichlet  running  19/50  0.7500 (17)  2025-10-09 08:53:20\n"
                "j-000002  b                  waiting    0/3            -  -                    "
                "2 daemons offer mnist: site-a is disabled by a rule, site-b is drained\n");
}

static void check_rounds(int columns, const char *expected)
{
        uint8_t digest[32] = {0xab, 0xcd};
        Mfl__RoundInfo a = MFL__ROUND_INFO__INIT, b, *rounds[] = {&a, &b};
        a.round = 3;
        a.train_loss = 1.25;
        a.clients = 10;
        a.bytes_up = 13300000;
        a.bytes_down = 6650000;
        a.seconds = 14.25;
        a.digest = (ProtobufCBinaryData){.len = 32, .data = digest};
        b = a;
        b.round = 4;
        b.evaluated = b.kept = true;
        b.accuracy = 0.5;
        b.loss = 2;
        check_text(mfl_view_rounds(rounds, 2, columns), expected);
}

static void test_rounds(void **state)
{
        check_rounds(0,
                "ROUND  ACCURACY    LOSS  TRAIN LOSS  CLIENTS     UP    DOWN  SECONDS  MODEL\n"
                "    3         -       -      1.2500       10  13 MB  6.7 MB     14.2  abcd00000000 (not "
                "kept)\n"
                "    4    0.5000  2.0000      1.2500       10  13 MB  6.7 MB     14.2  abcd00000000\n");
        check_rounds(80, "ROUND  ACCURACY    LOSS  TRAIN LOSS  CLIENTS  SECONDS  MODEL\n"
                         "    3         -       -      1.2500       10     14.2  abcd00000000 (not kept)\n"
                         "    4    0.5000  2.0000      1.2500       10     14.2  abcd00000000\n");
        check_rounds(40, "ROUND  ACCURACY    LOSS  MODEL\n"
                         "    3         -       -  abcd00000000 (not kept)\n"
                         "    4    0.5000  2.0000  abcd00000000\n");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_table),
                cmocka_unit_test(test_table_leaves_columns_out),
                cmocka_unit_test(test_table_out_of_memory),
                cmocka_unit_test(test_node_names),
                cmocka_unit_test(test_tree),
                cmocka_unit_test(test_daemons_80),
                cmocka_unit_test(test_daemons_50),
                cmocka_unit_test(test_daemons_unlimited),
                cmocka_unit_test(test_daemons_reasons),
                cmocka_unit_test(test_crew),
                cmocka_unit_test(test_crew_of_many),
                cmocka_unit_test(test_crew_sums),
                cmocka_unit_test(test_crew_memory),
                cmocka_unit_test(test_network),
                cmocka_unit_test(test_jobs),
                cmocka_unit_test(test_rounds),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
