/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of one request and one answer: what is asked, the shape of the JSON, and the exit codes. */
#include "cli/base/cli.h"
#include "tests/unit/cli/fake.h"

#define MEASURES                                                                                             \
        "\"client_mean\":null,\"client_variance\":null,\"client_worst\":null,\"client_best\":null,"          \
        "\"client_low\":null,\"client_high\":null,\"macro_f1\":null,\"mae\":null,\"rmse\":null,\"r2\":null," \
        "\"staleness_mean\":null,\"staleness_max\":null,\"dropped\":null,\"epsilon\":null,\"backdoor\":"     \
        "null,"                                                                                              \
        "\"clip\":null"
#define ROUND_2                                                                                              \
        "{\"round\":2,\"accuracy\":0.5,\"loss\":0.5,\"train_loss\":0.0,\"train_accuracy\":0.0,\"samples\":"  \
        "0,"                                                                                                 \
        "\"clients\":4,\"clients_rejected\":0,\"weight\":0,\"bytes_up\":10,\"bytes_down\":0,\"seconds\":0."  \
        "0,"                                                                                                 \
        "\"digest\":\"abcd000000000000000000000000000000000000000000000000000000000000\",\"attempt\":0,"     \
        "\"daemons\":0,\"committed_unix_ms\":0,\"kept\":true,\"bytes_up_alone\":30,\"bytes_down_alone\":0,"  \
        "\"mean_iou\":null,\"virtual_start\":null,\"virtual_end\":null,\"clamped\":0,\"states_lost\":0,"     \
        "\"choice\":null,"                                                                                   \
        "\"clients_evaluated\":null,\"client_bins\":null," MEASURES ",\"metrics\":null}"
#define JOB_2                                                                                                \
        "{\"job\":\"j-000002\",\"name\":\"b\",\"state\":\"running\",\"reason\":null,\"round\":2,\"rounds\":" \
        "3,"                                                                                                 \
        "\"params\":7,\"moving\":5,\"model\":null,\"data\":\"d\",\"strategy\":null,\"created_unix_ms\":5,"   \
        "\"finished_unix_ms\":"                                                                              \
        "null,\"archived_unix_ms\":null,"                                                                    \
        "\"last\":" ROUND_2 ",\"best\":null,\"progress\":{\"round\":3,\"attempt\":0,\"phase\":\"train\","    \
        "\"clients_done\":1,\"clients_total\":4,\"daemons\":2,\"trained\":0.375},\"owner\":null,\"per_"      \
        "token\":false,"                                                                                     \
        "\"evaluated\":" ROUND_2 ",\"privacy\":null}"

static Mfl__RoundInfo round_2(void)
{
        Mfl__RoundInfo r = fake_round(2, 0.5);
        r.kept = true;
        r.bytes_up = 10;
        r.bytes_up_alone = 30;
        return r;
}

static Mfl__JobInfo job_2(Mfl__RoundInfo *last)
{
        Mfl__JobInfo j = fake_job("j-000002", "b", MFL__JOB_STATE__JOB_RUNNING);
        j.round = 2;
        j.n_params = 7;
        j.n_frozen = 2;
        j.data = "d";
        j.created_ms = 5;
        j.last = last;
        j.in_round = 3;
        j.phase = "train";
        j.clients_done = 1;
        j.clients_total = 4;
        j.daemons = 2;
        j.trained = 0.375;
        return j;
}

/* One job of a list of three, which a server gives one after the other, and what was asked for. */
static char pages_asked[128];
static void send_page(struct fake_conn *c, const Mfl__Envelope *request)
{
        static const char *const names[] = {"one", "two", "two"};
        const char *after = request->list_jobs->after;
        size_t i = strlen(after) ? (size_t)strtoul(after + 2, NULL, 10) : 0, n = strlen(pages_asked);
        assert_true(i < 3 && request->list_jobs->count > 0);
        snprintf(pages_asked + n, sizeof pages_asked - n, "%s;", after);
        char id[16];
        snprintf(id, sizeof id, "j-%06zu", i + 1);
        Mfl__JobInfo job = fake_job(id, names[i], MFL__JOB_STATE__JOB_DONE);
        Mfl__JobInfo *jobs[] = {&job};
        Mfl__JobList list = MFL__JOB_LIST__INIT;
        list.n_jobs = 1;
        list.jobs = jobs;
        list.more = i < 2;
        fake_send(c, request, MFL__ENVELOPE__BODY_JOB_LIST, &list);
}

static void answer_pages(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        Mfl__Done done = MFL__DONE__INIT;
        if (e->body_case == MFL__ENVELOPE__BODY_LIST_JOBS)
                send_page(c, e);
        else
                fake_send(c, e, MFL__ENVELOPE__BODY_DONE, &done);
}

static void test_list_in_pages(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_pages;
        const struct fake_result *r = fake_run(&f, "list");
        assert_int_equal(r->status, 0);
        assert_string_equal(pages_asked, ";j-000001;j-000002;");
        assert_true(strstr(r->out, "j-000001") < strstr(r->out, "j-000002"));
        assert_non_null(strstr(r->out, "j-000003"));
        /* A name is looked for in all of them. */
        r = fake_run(&f, "stop two");
        assert_non_null(strstr(r->err, "2 jobs have the name 'two'"));
        r = fake_run(&f, "delete --done --name two");
        assert_null(strstr(r->out, "j-000001"));
        assert_non_null(strstr(r->out, "j-000003"));
        fake_close(&f);
}

/* A server whose pages lead nowhere: one that sends the same page again, one that goes back, one that sends an empty page. */
static void answer_same_page(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        const int *n = f->arg;
        Mfl__JobInfo job = fake_job("j-000002", "two", MFL__JOB_STATE__JOB_DONE), *jobs[] = {&job};
        Mfl__DaemonInfo daemon = MFL__DAEMON_INFO__INIT, *daemons[] = {&daemon};
        Mfl__JobList jl = MFL__JOB_LIST__INIT;
        Mfl__DaemonList dl = MFL__DAEMON_LIST__INIT;
        const bool again = f->requests > 1;
        assert_true(f->requests < 5);
        job.job = again && *n < 0 ? "j-000001" : "j-000002";
        daemon.name = again && *n < 0 ? "d1" : "d2";
        jl.n_jobs = dl.n_daemons = again ? (size_t)(*n != 0) : 1;
        jl.jobs = jobs;
        dl.daemons = daemons;
        jl.more = dl.more = true;
        if (e->body_case == MFL__ENVELOPE__BODY_LIST_JOBS)
                fake_send(c, e, MFL__ENVELOPE__BODY_JOB_LIST, &jl);
        else
                fake_send(c, e, MFL__ENVELOPE__BODY_DAEMON_LIST, &dl);
}

static void test_pages_lead_on(void **state)
{
        static int each[] = {1, -1, 0};
        for (size_t i = 0; i < 6; i++) {
                struct fake f;
                fake_open(&f);
                f.on_request = answer_same_page;
                f.arg = &each[i / 2];
                const struct fake_result *r = fake_run(&f, "%s", i % 2 ? "daemons" : "list");
                assert_int_equal(r->status, MFL_EXIT_UNREACHABLE);
                assert_int_equal(f.requests, 2);
                assert_non_null(strstr(
                        r->err, i % 2 ? "says that it has more daemons, but sends none after 'd2'"
                                      : "says that it has more jobs, but sends none after 'j-000002'"));
                assert_string_equal(r->out, "");
                fake_close(&f);
        }
}

static void send_list(struct fake_conn *c, const Mfl__Envelope *request)
{
        Mfl__RoundInfo last = round_2();
        Mfl__JobInfo b = job_2(&last);
        Mfl__JobInfo a = fake_job("j-000001", "a", MFL__JOB_STATE__JOB_DONE);
        Mfl__RoundInfo before = fake_round(17, 0.75), newest = fake_round(19, 0);
        newest.evaluated = false;
        a.last = &newest;
        a.evaluated = &before;
        Mfl__JobInfo a2 = fake_job("j-000010", "twice", MFL__JOB_STATE__JOB_FAILED);
        Mfl__JobInfo a3 = fake_job("j-000003", "twice", MFL__JOB_STATE__JOB_WAITING);
        Mfl__JobInfo *jobs[] = {&a2, &b, &a, &a3};
        Mfl__JobList list = MFL__JOB_LIST__INIT;
        list.n_jobs = 4;
        list.jobs = jobs;
        fake_send(c, request, MFL__ENVELOPE__BODY_JOB_LIST, &list);
}

/* Remembers the job that was asked for and answers every kind of request. */
static char asked[64];
static void note(const char *kind, const char *job)
{
        snprintf(asked, sizeof asked, "%s %s", kind, job);
}

static void send_done(struct fake_conn *c, const Mfl__Envelope *e, const char *text)
{
        Mfl__Done done = MFL__DONE__INIT;
        done.text = (char *)(uintptr_t)text;
        fake_send(c, e, MFL__ENVELOPE__BODY_DONE, &done);
}

static void send_detail(struct fake_conn *c, const Mfl__Envelope *e)
{
        Mfl__RoundInfo r = round_2(), *rounds[] = {&r};
        Mfl__JobInfo j = job_2(&r);
        Mfl__JobDetail d = MFL__JOB_DETAIL__INIT;
        Mfl__NodeCost cost = MFL__NODE_COST__INIT, before = cost, *nodes[] = {&before, &cost};
        before.round = 1;
        before.node = "earlier";
        cost.round = 2;
        cost.node = "n";
        cost.daemons = 3;
        cost.bytes_up = 10;
        cost.bytes_up_alone = 30;
        cost.bytes_down_alone = 7;
        d.n_nodes = 2;
        d.nodes = nodes;
        d.info = &j;
        d.text = "name: b\n";
        d.n_rounds = 1;
        d.rounds = rounds;
        fake_send(c, e, MFL__ENVELOPE__BODY_JOB_DETAIL, &d);
}

static void send_models(struct fake_conn *c, const Mfl__Envelope *e)
{
        Mfl__RoundInfo r = round_2(), *rounds[] = {&r};
        Mfl__ModelList m = MFL__MODEL_LIST__INIT;
        m.n_models = 1;
        m.models = rounds;
        fake_send(c, e, MFL__ENVELOPE__BODY_MODEL_LIST, &m);
}

static bool with_gpu;
/* An id and a name, as long as both may be. */
#define NODE_OF_GPU                                                                                          \
        "0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopq"                                    \
        "/0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopq"

static void send_daemons(struct fake_conn *c, const Mfl__Envelope *e)
{
        uint32_t shape[] = {1, 28, 28};
        Mfl__DataSet s = MFL__DATA_SET__INIT, filter = s, *sets[] = {&s, &filter};
        Mfl__DaemonInfo d = MFL__DAEMON_INFO__INIT, g = d, *daemons[] = {&d, &g};
        Mfl__Telemetry t = MFL__TELEMETRY__INIT;
        Mfl__DaemonList list = MFL__DAEMON_LIST__INIT;
        s.name = "d";
        filter.name = "filter:scale";
        filter.n_shape = 1;
        filter.shape = shape;
        filter.classes = 1;
        s.n_shape = 3;
        s.shape = shape;
        s.classes = 10;
        s.train_samples = 100;
        d.name = "n1";
        d.backend = "cpu";
        d.state = "training";
        d.job = "j-000002";
        d.workers = 2;
        d.samples_per_second = 1.5;
        d.clients_per_second = 12.5;
        d.items_part = 0.5;
        d.collective = MFL__COLLECTIVE__COLLECTIVE_SHM;
        d.leader = true;
        d.alone = "because";
        d.n_data_sets = 2;
        d.data_sets = sets;
        g.name = "n1-gpu3";
        g.node = NODE_OF_GPU;
        g.backend = "cuda";
        g.state = "idle";
        g.device = "Some GPU";
        g.device_uuid = "GPU-77";
        g.device_pci = "0000:65:00.0";
        g.device_memory = 143000000000;
        t.has_gpu_percent_case = MFL__TELEMETRY__HAS_GPU_PERCENT_GPU_PERCENT;
        t.gpu_percent = 87;
        t.has_memory_used_case = MFL__TELEMETRY__HAS_MEMORY_USED_MEMORY_USED;
        t.memory_used = 0;
        t.has_memory_total_case = MFL__TELEMETRY__HAS_MEMORY_TOTAL_MEMORY_TOTAL;
        t.memory_total = 143000000000;
        t.has_power_case = MFL__TELEMETRY__HAS_POWER_POWER_MW;
        t.power_mw = 350500;
        g.telemetry = &t;
        list.n_daemons = with_gpu ? 2 : 1;
        list.daemons = daemons;
        fake_send(c, e, MFL__ENVELOPE__BODY_DAEMON_LIST, &list);
}

static void answer_all(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        Mfl__Submitted s = MFL__SUBMITTED__INIT;
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_LIST_JOBS:
                send_list(c, e);
                return;
        case MFL__ENVELOPE__BODY_SHOW_JOB:
                note("show", e->show_job->job);
                send_detail(c, e);
                return;
        case MFL__ENVELOPE__BODY_LIST_MODELS:
                note("models", e->list_models->job);
                send_models(c, e);
                return;
        case MFL__ENVELOPE__BODY_STOP_JOB:
                note("stop", e->stop_job->job);
                send_done(c, e, "stopping");
                return;
        case MFL__ENVELOPE__BODY_STOP_AFTER_ROUND:
                note("after", e->stop_after_round->job);
                send_done(c, e, "stops after round 3");
                return;
        case MFL__ENVELOPE__BODY_DELETE_JOB:
                note("delete", e->delete_job->job);
                send_done(c, e, "");
                return;
        case MFL__ENVELOPE__BODY_CLONE_JOB:
                note("clone", e->clone_job->job);
                s.job = "j-000011";
                s.existed = !strcmp(e->clone_job->token, "known");
                fake_send(c, e, MFL__ENVELOPE__BODY_SUBMITTED, &s);
                return;
        case MFL__ENVELOPE__BODY_LIST_DAEMONS:
                send_daemons(c, e);
                return;
        case MFL__ENVELOPE__BODY_DRAIN:
                snprintf(asked, sizeof asked, "drain %s %d %d%s", e->drain->daemon, e->drain->undo,
                        e->drain->wait, e->drain->all ? " all" : "");
                send_done(c, e, "idle");
                return;
        default:
                fail_msg("request %d was not expected", (int)e->body_case);
        }
}

static void check(struct fake *f, const char *words, int status, const char *json, const char *expected_asked)
{
        asked[0] = '\0';
        const struct fake_result *r = fake_run(f, "%s", words);
        if (r->status != status)
                fail_msg("mfl %s: exit code %d, expected %d; stderr: %s", words, r->status, status, r->err);
        fake_assert_json(r, json);
        assert_string_equal(asked, expected_asked);
}

static void test_json(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_all;
        check(&f, "show j-000002 --json", 0,
                "{\"job\":" JOB_2 ",\"text\":\"name: b\\n\",\"rounds\":[" ROUND_2 "],\"nodes\":["
                "{\"round\":1,\"node\":\"earlier\",\"daemons\":0,\"bytes_up\":0,\"bytes_down\":0,"
                "\"bytes_up_alone\":0,\"bytes_down_alone\":0},"
                "{\"round\":2,\"node\":\"n\",\"daemons\":3,\"bytes_up\":10,\"bytes_down\":0,"
                "\"bytes_up_alone\":30,\"bytes_down_alone\":7}],\"teams\":null,\"scores\":null,\"contract\":"
                "null}",
                "show j-000002");
        check(&f, "models b --json", 0, "{\"job\":\"j-000002\",\"models\":[" ROUND_2 "]}", "models j-000002");
        check(&f, "stop last --json", 0, "{\"job\":\"j-000010\",\"text\":\"stopping\"}", "stop j-000010");
        check(&f, "stop last --after-round --json", 0,
                "{\"job\":\"j-000010\",\"text\":\"stops after round 3\"}", "after j-000010");
        check(&f, "delete a --json", 0, "{\"job\":\"j-000001\",\"text\":\"\"}", "delete j-000001");
        check(&f, "clone j-000001 --json", 0, "{\"job\":\"j-000011\",\"existed\":false}", "clone j-000001");
        check(&f, "clone j-000001 --json --token known", 0, "{\"job\":\"j-000011\",\"existed\":true}",
                "clone j-000001");
        check(&f, "drain n1 --wait --json", 0, "{\"daemon\":\"n1\",\"text\":\"idle\"}", "drain n1 0 1");
        check(&f, "drain n1 --undo --json", 0, "{\"daemon\":\"n1\",\"text\":\"idle\"}", "drain n1 1 0");
        check(&f, "drain --all --wait --json", 0, "{\"daemon\":null,\"text\":\"idle\"}", "drain  0 1 all");
        check(&f, "drain --all --undo --json", 0, "{\"daemon\":null,\"text\":\"idle\"}", "drain  1 0 all");
        check(&f, "daemons --json", 0,
                "{\"daemons\":[{\"name\":\"n1\",\"node\":null,\"address\":null,\"backend\":\"cpu\","
                "\"device\":null,"
                "\"workers\":2,\"state\":\"training\",\"job\":\"j-000002\",\"round\":0,\"items_done\":0,"
                "\"items_total\":0,\"samples_per_second\":1.5,\"connected_unix_ms\":0,\"data_sets\":[{"
                "\"name\":"
                "\"d\","
                "\"shape\":[1,28,28],\"classes\":10,\"train_samples\":100,\"test_samples\":0}],\"filters\":["
                "\"scale\"],\"software\":"
                "null,"
                "\"note\":null,\"gpu\":null,\"collective\":\"shm\",\"leader\":true,\"alone\":"
                "\"because\",\"clients_per_second\":12.5,\"numerics\":null,\"activity\":null,\"items_part\":"
                "0.5,\"site\":null,\"tags\":null,\"relay\":null}]}",
                "");
        fake_close(&f);
}

/* Columns of a GPU are there when a daemon has one; what it does not report is "-" and null, 0 is 0. */
static void test_gpus(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_all;
        assert_null(strstr(fake_run(&f, "daemons")->out, "GPU"));
        with_gpu = true;
        const struct fake_result *r = fake_run(&f, "daemons");
        assert_non_null(strstr(r->out, "  GPU      MEMORY  POWER  DEVICE\n"));
        assert_non_null(strstr(r->out, "  87%  0 B/143 GB  350 W  Some GPU\n"));
        assert_non_null(strstr(r->out, "    -           -      -\n"));
        json_t *list = fake_json(fake_run(&f, "daemons --json"));
        json_t *gpu = json_object_get(json_array_get(json_object_get(list, "daemons"), 1), "gpu");
        json_t *wanted = json_loads("{\"uuid\":\"GPU-77\",\"pci\":\"0000:65:00.0\",\"memory\":143000000000,"
                                    "\"percent\":87,\"memory_used\":0,\"memory_total\":143000000000,"
                                    "\"temperature\":null,\"power_watts\":350.5}",
                0, NULL);
        assert_true(json_equal(gpu, wanted));
        json_t *node = json_object_get(json_array_get(json_object_get(list, "daemons"), 1), "node");
        assert_string_equal(json_string_value(node), NODE_OF_GPU);
        json_decref(list);
        json_decref(wanted);
        with_gpu = false;
        fake_close(&f);
}

static void test_list(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_all;
        const struct fake_result *r = fake_run(&f, "list --json");
        assert_int_equal(r->status, 0);
        json_t *list = fake_json(r), *jobs = json_object_get(list, "jobs"), *b = json_loads(JOB_2, 0, NULL);
        assert_int_equal(json_array_size(jobs), 4);
        assert_true(json_equal(json_array_get(jobs, 1), b));
        json_decref(list);
        json_decref(b);
        r = fake_run(&f, "list");
        assert_int_equal(r->status, 0);
        assert_non_null(strstr(r->out, "j-000002"));
        assert_non_null(strstr(r->out, "      0.5000  "));
        assert_non_null(strstr(r->out, " 0.7500 (17)  ")); /* of a round before the last */
        assert_string_equal(r->err, "");
        fake_close(&f);
}

static void test_people(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_all;
        assert_non_null(
                strstr(fake_run(&f, "show b")->out, "at work    round 3, train, clients 1 of 4, 2 daemons"));
        assert_non_null(strstr(fake_run(&f, "daemons")->out, "-     *  n1    training  shm "));
        const char *out = fake_run(&f, "show b")->out;
        assert_non_null(strstr(out, "\nnetwork\nROUND  NODE  DAEMONS "));
        assert_non_null(
                strstr(out, "\nrounds 2 to 2: 10 B up, 0 B down; alone 30 B up, 0 B down (3.0x)\n\nname: b"));
        assert_null(strstr(out, "earlier"));
        assert_non_null(strstr(fake_run(&f, "show b --nodes")->out, "    1  earlier "));
        assert_string_equal(fake_run(&f, "stop b")->out, "j-000002: stopping\n");
        assert_string_equal(fake_run(&f, "delete b")->out, "j-000002: done\n");
        assert_non_null(strstr(fake_run(&f, "models b")->out, "abcd00000000"));
        fake_close(&f);
}

static void test_references(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_all;
        check(&f, "show twice --json", 6,
                "{\"error\":{\"code\":\"conflict\",\"text\":\"2 jobs have the name 'twice': use an id ('mfl "
                "list' shows "
                "them)\"}}",
                "");
        check(&f, "show nobody --json", 4,
                "{\"error\":{\"code\":\"not_found\",\"text\":\"there is no job 'nobody'; 'mfl list' shows "
                "the jobs\"}}",
                "");
        fake_close(&f);
}

/* ---- failures ---- */

static Mfl__FailureCode failure;
static void answer_failure(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        fake_fail(c, e, failure, "because");
}

static void test_failures(void **state)
{
        static const struct {
                Mfl__FailureCode code;
                int status;
                const char *json;
        } cases[] = {
                {MFL__FAILURE_CODE__FAILURE_INVALID, 5,
                        "{\"error\":{\"code\":\"invalid\",\"text\":\"because\"}}"},
                {MFL__FAILURE_CODE__FAILURE_NOT_FOUND, 4,
                        "{\"error\":{\"code\":\"not_found\",\"text\":\"because\"}}"},
                {MFL__FAILURE_CODE__FAILURE_CONFLICT, 6,
                        "{\"error\":{\"code\":\"conflict\",\"text\":\"because\"}}"},
                {MFL__FAILURE_CODE__FAILURE_LIMIT, 6,
                        "{\"error\":{\"code\":\"limit\",\"text\":\"because\"}}"},
        };
        struct fake f;
        fake_open(&f);
        f.on_request = answer_failure;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                failure = cases[i].code;
                check(&f, "stop j-000001 --json", cases[i].status, cases[i].json, "");
        }
        assert_string_equal(fake_run(&f, "stop j-000001")->err, "mfl: because\n");
        fake_close(&f);
}

static void answer_cut(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        fake_cut(c);
}

static void answer_other(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
        send_done(c, e, "what?");
}

static void check_code(const struct fake_result *r, int status, const char *code)
{
        assert_int_equal(r->status, status);
        json_t *json = fake_json(r);
        assert_string_equal(json_string_value(json_object_get(json_object_get(json, "error"), "code")), code);
        json_decref(json);
        assert_memory_equal(r->err, "mfl: ", 5);
}

static void test_connection(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_cut;
        check_code(fake_run(&f, "list --json"), 3, "unreachable");
        f.on_request = answer_other;
        check_code(fake_run(&f, "list --json"), 3, "unreachable");
        f.bye_at_hello = true;
        const struct fake_result *r = fake_run(&f, "list --json");
        check_code(r, 3, "refused");
        assert_non_null(strstr(r->err, "upgrade the client"));
        fake_stop_listening(&f);
        uv_run(&f.loop, UV_RUN_NOWAIT);
        r = fake_run(&f, "list --json");
        check_code(r, 3, "unreachable");
        assert_non_null(strstr(r->err, "connection refused"));
        check_code(fake_run(&f, "list --json --server nonsense:port"), 2, "usage");
        fake_close(&f);
}

static void answer_nothing(struct fake *f, struct fake_conn *c, const Mfl__Envelope *e)
{
}

/* A server that is connected but says nothing is lost after dead_ms, having been asked with Ping. */
static void test_silence(void **state)
{
        struct fake f;
        fake_open(&f);
        f.on_request = answer_nothing;
        f.dead_ms = 1200;
        const struct fake_result *r = fake_run(&f, "list --json");
        check_code(r, 3, "unreachable");
        assert_non_null(strstr(r->err, "no message for"));
        assert_in_range(f.pings, 1, 4);
        fake_close(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_json),
                cmocka_unit_test(test_list),
                cmocka_unit_test(test_list_in_pages),
                cmocka_unit_test(test_pages_lead_on),
                cmocka_unit_test(test_gpus),
                cmocka_unit_test(test_people),
                cmocka_unit_test(test_references),
                cmocka_unit_test(test_failures),
                cmocka_unit_test(test_connection),
                cmocka_unit_test(test_silence),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
