/* SPDX-License-Identifier: Apache-2.0 */
/* The server core and sites that differ: whose data fit a job, whom a job lacks, uploads that stall, and jobs
 * that end after a round. */
#include "tests/lib/test.h"
#include "common/data/dataset.h"
#include "common/partition/partition.h"

#include "proto/version.h"
#include "server/core/core.h"

#include <stdio.h>

#define JOB "j-000001"

struct bed {
        struct mfl_core *core;
        struct mfl_job spec;
        uint64_t now;
        /* of the last of each */
        struct mfl_data_info data;
        char data_from[MFL_NAME_BYTES], reason[MFL_REASON_BYTES];
        enum mfl_job_state state;
        uint32_t n_data, n_commits, n_evals, released;
        uint32_t granted[8], n_granted; /* connections, in order */
        uint32_t slot_of[8];            /* by connection */
        uint64_t grant_of[8];
        struct mfl_task task[8]; /* by connection; items are not kept */
        uint64_t item[8];        /* the first of that task */
        uint32_t n_tasks, n_tasks_of[8];
        char closed[MFL_REASON_BYTES]; /* why the last connection was closed */
        char traces[16384];
};

static void feed(struct bed *bed, struct mfl_core_event event);

static void event_of(struct bed *bed, const char *job, enum mfl_core_event_kind kind)
{
        struct mfl_core_event event = {.kind = kind, .ok = true};
        strcpy(event.job, job);
        if (kind == MFL_EV_JOB_READY) {
                event.job_ready.n_params = 4;
                event.job_ready.n_slots = 1;
        }
        feed(bed, event);
}

static void job_event(struct bed *bed, enum mfl_core_event_kind kind)
{
        event_of(bed, JOB, kind);
}

static void take(struct bed *bed, const struct mfl_core_action *a)
{
        switch (a->kind) {
        case MFL_ACT_JOB_PREPARE:
        case MFL_ACT_JOB_DATA:
                bed->data = a->prepare.data;
                strcpy(bed->data_from, a->prepare.data_from);
                bed->n_data++;
                if (a->kind == MFL_ACT_JOB_PREPARE)
                        event_of(bed, a->job, MFL_EV_JOB_READY);
                break;
        case MFL_ACT_JOB_STATE:
                bed->state = a->job_state.state;
                strcpy(bed->reason, a->reason);
                break;
        case MFL_ACT_JOB_RELEASE:
                bed->released++;
                break;
        case MFL_ACT_SEND:
                if (a->msg.kind != MFL_MSG_TASK)
                        break;
                bed->item[a->conn] = a->msg.task.items[0];
                bed->n_tasks_of[a->conn]++;
                bed->task[a->conn] = a->msg.task;
                bed->n_tasks++;
                bed->n_evals += a->msg.task.kind == MFL_TASK_EVAL;
                break;
        case MFL_ACT_CLOSE:
                strcpy(bed->closed, a->reason);
                break;
        case MFL_ACT_GRANT:
                bed->granted[bed->n_granted++ % 8] = a->conn;
                bed->slot_of[a->conn] = a->slot.slot;
                bed->grant_of[a->conn] = a->slot.grant;
                break;
        case MFL_ACT_SLOT_ADD:
                feed(bed, (struct mfl_core_event){.kind = MFL_EV_ADDED,
                                  .ok = true,
                                  .job = JOB,
                                  .upload = {a->slot.slot, a->slot.grant}});
                break;
        case MFL_ACT_APPLY:
                job_event(bed, MFL_EV_APPLIED);
                break;
        case MFL_ACT_CHECKPOINT:
                job_event(bed, MFL_EV_CHECKPOINTED);
                break;
        case MFL_ACT_COMMIT:
                bed->n_commits++;
                job_event(bed, MFL_EV_COMMITTED);
                break;
        case MFL_ACT_TRACE:
                strncat(bed->traces, a->reason, sizeof bed->traces - strlen(bed->traces) - 2);
                strcat(bed->traces, "\n");
                break;
        default:
                break;
        }
}

static void feed(struct bed *bed, struct mfl_core_event event)
{
        struct mfl_core_actions actions = {0};
        event.now_ms = bed->now;
        assert_int_equal(mfl_core_step(bed->core, &event, &actions), 0);
        for (uint32_t i = 0; i < actions.n; i++)
                take(bed, &actions.v[i]);
        mfl_core_actions_deinit(&actions);
        mfl_core_check(bed->core);
}

static void tick(struct bed *bed, uint64_t ms)
{
        bed->now += ms;
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
}

static void start(struct bed *bed, enum mfl_partition_kind partition)
{
        struct mfl_core_options options = {.boot = 1,
                .heartbeat_ms = 100000,
                .dead_ms = 300000,
                .reconnect_grace_ms = 10000,
                .upload_stall_ms = 15000};
        *bed = (struct bed){0};
        strcpy(bed->spec.data.name, "pets");
        bed->spec.rounds = 3;
        bed->spec.data.partition = partition;
        bed->spec.data.clients = partition == MFL_PARTITION_LOCAL ? 0 : 4;
        bed->spec.aggregation.delta_max = 16;
        bed->spec.aggregation.weighting = MFL_WEIGHT_UNIFORM;
        bed->spec.limits.quorum = 1;
        bed->spec.limits.deadline_ms = 3600000;
        bed->spec.limits.retries = 3;
        bed->spec.selection.daemons_min = 1;
        assert_int_equal(mfl_core_new(&options, &bed->core, NULL), 0);
}

static void end(struct bed *bed)
{
        mfl_core_free(bed->core);
}

/* kept: what an earlier server had of the job. */
static void add_job(struct bed *bed, const struct mfl_data_info *kept, const char *from)
{
        feed(bed, (struct mfl_core_event){
                          .kind = MFL_EV_JOB_ADD, .job = JOB, .job_add = {&bed->spec, 0, kept, from}});
}

static struct mfl_data_info pets(uint32_t classes, uint64_t meaning, uint64_t fingerprint)
{
        return (struct mfl_data_info){.name = "pets",
                .shape = {.rank = 1, .dim = {4}},
                .classes = classes,
                .train_samples = 100,
                .meaning = meaning,
                .fingerprint = fingerprint};
}

static struct mfl_daemon_info info_of(uint32_t i, struct mfl_data_info *data)
{
        struct mfl_daemon_info info = {.instance = i, .workers = 1, .n_data_sets = 1, .data_sets = data};
        snprintf(info.name, sizeof info.name, "site-%c", 'a' + (int)i - 1);
        return info;
}

/* Daemon i on connection i is "site-a" for 1, and so on. */
static void up(struct bed *bed, uint32_t i, struct mfl_data_info data)
{
        struct mfl_daemon_info info = info_of(i, &data);
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = i, .daemon = &info});
}

static void up_at(struct bed *bed, uint32_t i, const char *site, struct mfl_data_info data)
{
        struct mfl_daemon_info info = info_of(i, &data);
        strcpy(info.site, site);
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = i, .daemon = &info});
}

static void down(struct bed *bed, uint32_t i)
{
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = i});
}

static void refuse(struct bed *bed, uint32_t i, struct mfl_data_info data, enum mfl_refusal why)
{
        struct mfl_daemon_info info = info_of(i, &data);
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_REFUSED, .daemon = &info, .refusal = why});
}

static void drain(struct bed *bed, const char *name, bool on)
{
        struct mfl_core_event event = {.kind = MFL_EV_DRAIN, .drain = {.on = on}};
        strcpy(event.drain.name, name);
        feed(bed, event);
}

static const char *note_of(const struct bed *bed, uint32_t i, char *buf)
{
        struct mfl_core_daemon_view view;
        mfl_core_daemon_view(bed->core, i, &view);
        return strcpy(buf, view.note);
}

/* Sites of one kind of sample whose labels mean other things are not mixed; both are named. */
static void test_other_meaning(void **state)
{
        struct bed bed;
        char note[MFL_REASON_BYTES];
        start(&bed, MFL_PARTITION_LOCAL);
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, 77, 1));
        up(&bed, 2, pets(2, 78, 2));
        up(&bed, 3, pets(2, 0, 3)); /* an older release, which does not tell */
        tick(&bed, 2000);
        assert_true(bed.task[1].task && !bed.task[2].task && bed.task[3].task);
        assert_true(bed.data.meaning == 77);
        assert_string_equal(bed.data_from, "site-a");
        assert_string_equal(note_of(&bed, 1, note),
                JOB ": its data set pets has other classes, categories or tokens than that of site-a");
        assert_non_null(strstr(bed.traces, "daemon site-b can't take part: its data set pets has other "
                                           "classes, categories or tokens than that of "
                                           "site-a\n"));
        end(&bed);
}

/* Categories become features: a site that tells nothing of any has other numbers in them. */
static void test_categories_are_never_mixed(void **state)
{
        const uint64_t one = (uint64_t)MFL_MEANING_CATEGORIES << 40 | 1, two = one + 1;
        struct bed bed;
        start(&bed, MFL_PARTITION_LOCAL);
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, 0, 1)); /* decides, without a word of categories */
        up(&bed, 2, pets(2, one, 2));
        up(&bed, 3, pets(2, 77, 3));
        tick(&bed, 2000);
        assert_true(bed.task[1].task && !bed.task[2].task && bed.task[3].task);
        end(&bed);
        start(&bed, MFL_PARTITION_LOCAL);
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, one, 1));
        up(&bed, 2, pets(2, two, 2));
        up(&bed, 3, pets(2, 0, 3));
        tick(&bed, 2000);
        assert_true(bed.task[1].task && !bed.task[2].task && !bed.task[3].task);
        end(&bed);
}

static void check_progress(struct bed *bed, uint32_t items, uint64_t samples, double trained, double part)
{
        struct mfl_core_job_view view;
        struct mfl_core_daemon_view daemon;
        struct mfl_msg msg = {.kind = MFL_MSG_PROGRESS,
                .progress = {.task = bed->task[1].task, .items_done = items, .samples_done = samples}};
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1, .msg = &msg});
        assert_int_equal(mfl_core_job_view(bed->core, JOB, &view), 0);
        mfl_core_daemon_view(bed->core, 0, &daemon);
        assert_float_equal(view.trained, trained, 1e-9);
        assert_float_equal(daemon.items_part, part, 1e-9);
        assert_int_equal(daemon.items_done, items);
}

/* What is done of clients under way shows from the first samples on; no client is done before its daemon says
 * so. */
static void test_progress_within_clients(void **state)
{
        struct bed bed;
        start(&bed, MFL_PARTITION_IID);
        bed.spec.training.epochs = 2;
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, 0, 1));
        tick(&bed, 2000);
        assert_true(bed.task[1].task != 0); /* 4 clients of 25 samples, twice each */
        check_progress(&bed, 0, 0, 0, 0);
        check_progress(&bed, 0, 25, 0.125, 0.5);
        check_progress(&bed, 0, 70, 0.35, 1.4);
        check_progress(&bed, 2, 80, 0.5, 2);
        check_progress(&bed, 3, 1000000, 0.99, 3.96);
        end(&bed);
        start(&bed, MFL_PARTITION_LOCAL);
        bed.spec.training.epochs = 1;
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, 0, 1));
        tick(&bed, 2000);
        check_progress(&bed, 0, 25, 0.25, 0.25); /* of its own 100 */
        end(&bed);
        start(&bed, MFL_PARTITION_IID);
        bed.spec.training.steps = 10;
        bed.spec.training.batch = 5;
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, 0, 1));
        tick(&bed, 2000);
        check_progress(&bed, 0, 100, 0.5, 2);
        end(&bed);
}

/* After a restart it is not the next daemon that decides; populations' content likewise. */
static void test_kept_over_restarts(void **state)
{
        struct bed bed;
        struct mfl_data_info kept = pets(2, 77, 1);
        start(&bed, MFL_PARTITION_LOCAL);
        add_job(&bed, &kept, "site-a");
        up(&bed, 2, pets(2, 78, 2));
        tick(&bed, 2000);
        assert_int_equal(bed.n_data + bed.n_tasks, 0);
        assert_string_equal(bed.reason,
                "1 daemon offers pets: site-b has other classes, categories or tokens than site-a");
        up(&bed, 1, pets(2, 77, 1));
        tick(&bed, 2000);
        assert_true(bed.task[1].task && !bed.task[2].task);
        end(&bed);

        start(&bed, MFL_PARTITION_IID);
        add_job(&bed, &kept, "");
        up(&bed, 2, pets(2, 77, 2));
        tick(&bed, 2000);
        assert_int_equal(bed.n_data + bed.n_tasks, 0);
        assert_string_equal(
                bed.reason, "1 daemon offers pets: site-b has other samples than the job began with");
        end(&bed);
}

/* Where the first does not tell what its labels mean, the first that does decides it, and that is kept. */
static void test_meaning_comes_later(void **state)
{
        struct bed bed;
        start(&bed, MFL_PARTITION_LOCAL);
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, 0, 1));
        assert_int_equal(bed.n_data, 1);
        assert_true(bed.data.meaning == 0);
        up(&bed, 2, pets(2, 78, 2));
        up(&bed, 3, pets(2, 79, 3));
        tick(&bed, 2000);
        assert_int_equal(bed.n_data, 2);
        assert_true(bed.data.meaning == 78);
        assert_string_equal(bed.data_from, "site-b");
        assert_true(bed.task[1].task && bed.task[2].task && !bed.task[3].task);
        end(&bed);
}

/* A daemon of the protocol before `since` is not asked to train these layers. input: of the model, 0: that of the data; grain: of
 * `parallel`, which came with protocol 5, or 0. */
static void assert_too_old(
        struct mfl_layer *layers, int n, int64_t input, uint32_t grain, uint32_t since, const char *reason)
{
        struct mfl_data_info data = pets(2, 77, 1);
        struct bed bed;
        start(&bed, MFL_PARTITION_IID);
        bed.spec.model.layers = layers;
        bed.spec.model.n_layers = n;
        if (input)
                bed.spec.model.input = (struct mfl_shape){1, {input}};
        bed.spec.parallel.grain = grain;
        bed.spec.parallel.exact = true;
        bed.spec.parallel.zero = MFL_ZERO_AUTO;
        add_job(&bed, NULL, NULL);
        struct mfl_daemon_info info = info_of(1, &data);
        info.protocol = since - 1;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = 1, .daemon = &info});
        tick(&bed, 2000);
        assert_string_equal(bed.reason, reason);
        end(&bed);
}

/* So do models with more layers than older daemons take. */
static void test_more_layers_than_before(void **state)
{
        struct mfl_layer layers[MFL_LAYERS_OLD + 1];
        for (size_t i = 0; i < MFL_ARRAY_SIZE(layers); i++)
                layers[i] = (struct mfl_layer){.op = MFL_OP_DENSE, .out_channels = 2};
        assert_too_old(layers, MFL_ARRAY_SIZE(layers), 0, 0, MFL_PROTOCOL_FUNCTIONS,
                "1 daemon offers pets: site-a must be upgraded: more than 1024 layers need protocol 5");
}

/* And models with layers or inputs as wide as older daemons don't take, whatever version the job's other settings need. */
static void test_wider_than_before(void **state)
{
        struct mfl_layer layers[] = {
                {.op = MFL_OP_EMBEDDING, .vocabulary = MFL_WIDTH_OLD + 1, .out_channels = 2},
                {.op = MFL_OP_DENSE, .out_channels = 2}};
        for (uint32_t grain = 0; grain < 2; grain++)
                assert_too_old(layers, MFL_ARRAY_SIZE(layers), 0, grain, MFL_PROTOCOL_WIDTHS,
                        "1 daemon offers pets: site-a must be upgraded: layers wider than 65536 need "
                        "protocol 8");
        layers[0].vocabulary = MFL_WIDTH_OLD;
        assert_too_old(layers, MFL_ARRAY_SIZE(layers), MFL_WIDTH_OLD + 1, 0, MFL_PROTOCOL_WIDTHS,
                "1 daemon offers pets: site-a must be upgraded: inputs wider than 65536 need protocol 8");
}

/* And models with names that older daemons don't read. */
static void test_longer_names_than_before(void **state)
{
        struct mfl_layer layers[] = {
                {.op = MFL_OP_DENSE, .out_channels = 2}, {.op = MFL_OP_DENSE, .out_channels = 2}};
        memset(layers[0].name, 'a', MFL_LAYER_NAME_OLD + 1);
        assert_too_old(layers, MFL_ARRAY_SIZE(layers), 0, 0, MFL_PROTOCOL_NAMES,
                "1 daemon offers pets: site-a must be upgraded: names of layers above 63 bytes need protocol "
                "8");
}

/* A setting of a later version than that of anything else in the job. */
static void test_last_cells(void **state)
{
        struct mfl_layer layers[] = {{.op = MFL_OP_RNN, .out_channels = 2},
                {.op = MFL_OP_LSTM, .out_channels = 2, .last_cell = true},
                {.op = MFL_OP_DENSE, .out_channels = 2}};
        struct mfl_data_info data = pets(2, 77, 1);
        struct bed bed;
        (void)state;
        start(&bed, MFL_PARTITION_IID);
        bed.spec.model.layers = layers;
        bed.spec.model.n_layers = MFL_ARRAY_SIZE(layers);
        bed.spec.selection.kind = MFL_SELECT_SEPARATED;
        add_job(&bed, NULL, NULL);
        struct mfl_daemon_info info = info_of(1, &data);
        info.protocol = MFL_PROTOCOL_LAST_CELL - 1;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = 1, .daemon = &info});
        tick(&bed, 2000);
        assert_string_equal(bed.reason,
                "1 daemon offers pets: site-a must be upgraded: lstm layers with last_cell need protocol 8");
        end(&bed);
}

/* Layers that came with a later version of the protocol go to daemons that speak it. */
static void test_layers_of_a_later_version(void **state)
{
        struct mfl_layer layers[] = {
                {.op = MFL_OP_DENSE, .out_channels = 2}, {.op = MFL_OP_HARDSWISH}, {.op = MFL_OP_ELU}};
        struct mfl_data_info data = pets(2, 77, 1);
        struct bed bed;
        char note[MFL_REASON_BYTES];
        start(&bed, MFL_PARTITION_IID);
        bed.spec.model.layers = layers;
        bed.spec.model.n_layers = MFL_ARRAY_SIZE(layers);
        add_job(&bed, NULL, NULL);
        struct mfl_daemon_info info = info_of(1, &data);
        info.protocol = MFL_PROTOCOL_LAYERS - 1;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = 1, .daemon = &info});
        tick(&bed, 2000);
        assert_int_equal(bed.n_data + bed.n_tasks, 0);
        assert_string_equal(bed.reason,
                "1 daemon offers pets: site-a must be upgraded: hardswish layers need protocol 3");
        info = info_of(2, &data);
        info.protocol = MFL_PROTOCOL_LAYERS;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = 2, .daemon = &info});
        tick(&bed, 2000);
        assert_true(!bed.task[1].task && bed.task[2].task);
        assert_string_equal(note_of(&bed, 0, note),
                JOB ": it has hardswish layers, which protocol 2 does not know: upgrade this daemon");
        assert_non_null(strstr(bed.traces, "daemon site-a gets no work from this job: it speaks protocol 2, "
                                           "but hardswish layers need 3; "
                                           "upgrade it"));
        end(&bed);
}

static void test_whom_it_lacks(void **state)
{
        struct bed bed;
        start(&bed, MFL_PARTITION_IID);
        struct mfl_data_info kept = pets(2, 77, 1);
        add_job(&bed, &kept, "site-z");
        assert_string_equal(bed.reason, "no daemon with data set pets is connected");
        refuse(&bed, 1, pets(2, 77, 1), MFL_REFUSAL_RULE);
        assert_string_equal(bed.reason, "1 daemon offers pets: site-a is disabled by a rule");
        up(&bed, 2, pets(3, 77, 1));
        assert_string_equal(bed.reason, "2 daemons offer pets: site-a is disabled by a rule, site-b has "
                                        "another number of classes than "
                                        "site-z");
        refuse(&bed, 3, pets(2, 77, 1), MFL_REFUSAL_VERSION);
        up(&bed, 4, pets(4, 77, 1));
        assert_string_equal(bed.reason,
                "4 daemons offer pets: site-a is disabled by a rule, site-c speaks another version of the "
                "protocol, site-b and 1 more have another number of classes than site-z");
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 4});
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 2});
        tick(&bed, 20000); /* what was said of refused ones holds for ten minutes */
        up(&bed, 1, pets(2, 77, 1));
        drain(&bed, "site-a", true);
        tick(&bed, 2000);
        assert_string_equal(bed.reason,
                "2 daemons offer pets: site-c speaks another version of the protocol, site-a is drained");
        drain(&bed, "site-a", false);
        tick(&bed, 2000);
        assert_int_equal(bed.state, MFL_JOB_RUNNING);
        end(&bed);
}

static struct mfl_data_info named(const char *name)
{
        struct mfl_data_info data = pets(2, 77, 1);
        mfl_strcpy(data.name, sizeof data.name, name);
        return data;
}

/* A slip of the pen in data.name: what there is instead, each name once. */
static void test_what_is_offered(void **state)
{
        struct bed bed;
        start(&bed, MFL_PARTITION_IID);
        up(&bed, 1, named("mine"));
        up(&bed, 2, named("cats"));
        up(&bed, 3, named("mine"));
        add_job(&bed, NULL, NULL);
        assert_string_equal(bed.reason, "no daemon with data set pets is connected; offered: cats, mine");
        up(&bed, 4, named("a"));
        up(&bed, 5, named("z"));
        up(&bed, 6, named("b"));
        tick(&bed, 2000);
        assert_string_equal(
                bed.reason, "no daemon with data set pets is connected; offered: a, b, cats, mine, ...");
        end(&bed);
}

/* Of two that it needs one can't do it: which, and why. */
static void test_too_few(void **state)
{
        struct bed bed;
        start(&bed, MFL_PARTITION_IID);
        bed.spec.selection.daemons_min = 2;
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, 77, 1));
        tick(&bed, 2000);
        assert_string_equal(bed.reason, "waits for daemons: 1 of 2 are connected");
        up(&bed, 2, pets(2, 77, 2));
        tick(&bed, 2000);
        assert_string_equal(
                bed.reason, "waits for daemons: 1 of 2 are connected; site-b has other samples than site-a");
        up(&bed, 3, pets(2, 77, 1));
        tick(&bed, 2000);
        assert_int_equal(bed.state, MFL_JOB_RUNNING);
        struct mfl_msg msg = {.kind = MFL_MSG_TASK_FAILED,
                .failed = {.task = bed.task[3].task, .permanent = true, .reason = "no bf16 here"}};
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 3, .msg = &msg});
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 1});
        struct mfl_core_job_view view;
        assert_int_equal(mfl_core_job_view(bed.core, JOB, &view), 0);
        assert_string_equal(view.reason,
                "3 daemons offer pets: site-a is lost, but may return, site-b has other samples than site-a, "
                "site-c can't do this job: no bf16 here");
        refuse(&bed, 1, pets(2, 77, 1), MFL_REFUSAL_RULE); /* it comes back, and counts once */
        assert_int_equal(mfl_core_job_view(bed.core, JOB, &view), 0);
        assert_string_equal(view.reason,
                "3 daemons offer pets: site-a is disabled by a rule, site-b has other samples than site-a, "
                "site-c can't do this job: no bf16 here");
        end(&bed);
}

static void announce_bytes(struct bed *bed, uint32_t conn, uint64_t bytes)
{
        const struct mfl_task *t = &bed->task[conn];
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE,
                .announce = {.task = t->task,
                        .round = t->round,
                        .item_count = t->n_items,
                        .weight = t->n_items,
                        .bytes = bytes,
                        .encoding = MFL_ENCODING_I64,
                        .job = JOB}};
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = conn, .msg = &msg});
}

static void announce(struct bed *bed, uint32_t conn)
{
        announce_bytes(bed, conn, 4 * 8);
}

static void complete(struct bed *bed, uint32_t conn)
{
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_UPLOAD_COMPLETE,
                          .conn = conn,
                          .job = JOB,
                          .upload = {bed->slot_of[conn], bed->grant_of[conn]}});
}

static uint32_t last_granted(const struct bed *bed)
{
        return bed->n_granted ? bed->granted[(bed->n_granted - 1) % 8] : 0;
}

/* One slot, whose daemon lives and sends nothing: the other has it after 15 s, and then that one again. */
static void test_an_upload_stalls(void **state)
{
        struct bed bed;
        start(&bed, MFL_PARTITION_IID);
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, 77, 1));
        up(&bed, 2, pets(2, 77, 1));
        tick(&bed, 2000);
        announce(&bed, 1);
        assert_int_equal(last_granted(&bed), 1);
        tick(&bed, 15000); /* nobody waits for it: it is asked again */
        assert_int_equal(bed.n_granted, 2);
        tick(&bed, 14900);
        announce(&bed, 2);
        assert_int_equal(bed.n_granted, 2);
        tick(&bed, 100); /* now somebody does */
        assert_int_equal(bed.n_granted, 3);
        assert_int_equal(last_granted(&bed), 2);
        tick(&bed, 14000);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_UPLOADING, .conn = 2});
        assert_true(mfl_core_next_ms(bed.core) <= bed.now + 15000);
        tick(&bed, 14900);
        assert_int_equal(bed.n_granted, 3);
        tick(&bed, 200);
        assert_int_equal(last_granted(&bed), 1);
        complete(&bed, 1);
        assert_int_equal(last_granted(&bed), 2);
        complete(&bed, 2);
        assert_int_equal(bed.n_granted, 5);
        assert_int_equal(bed.n_commits, 1);
        end(&bed);
}

static void told(struct bed *bed, enum mfl_core_event_kind kind, uint64_t grant)
{
        feed(bed, (struct mfl_core_event){.kind = kind, .conn = 1, .job = JOB, .upload = {0, grant}});
}

/* Downloads hold the memory of the only slot: it is granted again, under another number, and what comes late
 * for the first number means nothing. */
static void test_a_slot_waits_for_memory(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_IID);
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, 77, 1));
        tick(&bed, 2000);
        announce(&bed, 1);
        uint64_t first = bed.grant_of[1], slots, used;
        told(&bed, MFL_EV_SLOT_BUSY, first);
        mfl_core_slots_count(bed.core, &slots, &used);
        assert_true(slots == 1 && used == 0);
        told(&bed, MFL_EV_UPLOAD_COMPLETE, first);
        tick(&bed, 100);
        assert_int_equal(bed.n_granted, 1);
        tick(&bed, 100);
        assert_int_equal(bed.n_granted, 2);
        assert_true(bed.grant_of[1] != first);
        told(&bed, MFL_EV_SLOT_BUSY, first);
        told(&bed, MFL_EV_UPLOAD_COMPLETE, first);
        mfl_core_slots_count(bed.core, &slots, &used);
        assert_true(bed.n_commits == 0 && used == 1);
        told(&bed, MFL_EV_SLOT_BUSY, bed.grant_of[1]);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 1});
        tick(&bed, 1000); /* nobody is there to be granted anything */
        assert_int_equal(bed.n_granted, 2);
        end(&bed);
}

static void test_updates_of_another_size(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_IID);
        add_job(&bed, NULL, NULL);
        up(&bed, 1, pets(2, 77, 1));
        tick(&bed, 2000);
        announce_bytes(&bed, 1, 3 * 8);
        assert_int_equal(bed.n_granted, 0);
        assert_non_null(strstr(bed.traces, "is refused: wrong size"));
        end(&bed);
}

static void stop_after_round(struct bed *bed)
{
        feed(bed, (struct mfl_core_event){
                          .kind = MFL_EV_JOB_STOP, .job = JOB, .after_round = true, .reason = "ann"});
}

static void start_first_round(struct bed *bed)
{
        start(bed, MFL_PARTITION_IID);
        bed->spec.evaluation.every = 2;
        bed->spec.evaluation.batch = 10;
        add_job(bed, NULL, NULL);
        struct mfl_data_info data = pets(2, 77, 1);
        data.test_samples = 10;
        up(bed, 1, data);
        tick(bed, 2000);
        assert_int_equal(bed->task[1].round, 1);
}

/* The round under way is evaluated and committed, and no other begins. */
static void test_stop_after_a_round(void **state)
{
        struct bed bed;
        start_first_round(&bed);
        stop_after_round(&bed);
        assert_int_equal(bed.state, MFL_JOB_RUNNING);
        assert_string_equal(bed.reason, "stops after round 1");
        announce(&bed, 1);
        complete(&bed, 1);
        assert_int_equal(bed.n_evals, 1); /* which would not be its turn */
        struct mfl_eval_item item = {.item = 0, .samples = 10};
        struct mfl_msg msg = {.kind = MFL_MSG_EVAL_RESULT, .eval = {bed.task[1].task, 1, &item}};
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1, .msg = &msg});
        assert_int_equal(bed.n_commits, 1);
        assert_int_equal(bed.state, MFL_JOB_STOPPED);
        assert_string_equal(bed.reason, "stopped after round 1 as requested");
        assert_int_equal(bed.released, 1);
        assert_int_equal(bed.n_tasks, 2);
        end(&bed);
}

/* With nothing under way it is over at once; a stop goes before it; after a restart it is known. */
static void test_stop_after_no_round(void **state)
{
        struct bed bed;
        start(&bed, MFL_PARTITION_IID);
        add_job(&bed, NULL, NULL);
        stop_after_round(&bed);
        assert_int_equal(bed.state, MFL_JOB_STOPPED);
        assert_string_equal(bed.reason, "ann");
        end(&bed);

        start_first_round(&bed);
        stop_after_round(&bed);
        job_event(&bed, MFL_EV_JOB_STOP);
        assert_int_equal(bed.state, MFL_JOB_STOPPED);
        assert_int_equal(bed.n_commits, 0);
        end(&bed);

        start(&bed, MFL_PARTITION_IID);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_JOB_ADD,
                           .job = JOB,
                           .job_add = {.spec = &bed.spec, .committed = 2, .stop_after = 2}});
        assert_int_equal(bed.state, MFL_JOB_STOPPED);
        assert_int_equal(bed.released, 1);
        end(&bed);
}

/* ---- sites of several daemons ---- */

static uint64_t client_of(const char *site, const char *daemon)
{
        uint64_t client = 0;
        assert_int_equal(mfl_partition_site_client(site, daemon, &client, NULL), 0);
        return client;
}

/* Two daemons of site north and one alone are two clients, and one daemon trains for north. */
static void start_north(struct bed *bed)
{
        start(bed, MFL_PARTITION_LOCAL);
        up_at(bed, 1, "north", pets(2, 77, 1));
        up_at(bed, 2, "north", pets(2, 77, 1));
        up(bed, 3, pets(2, 77, 9));
        add_job(bed, NULL, NULL);
        tick(bed, 2000);
        mfl_core_check(bed->core);
}

static void test_a_site_is_one_client(void **state)
{
        struct bed bed;
        start_north(&bed);
        assert_int_equal(bed.n_tasks_of[1], 1);
        assert_int_equal(bed.n_tasks_of[2], 0);
        assert_int_equal(bed.n_tasks_of[3], 1);
        assert_true(bed.item[1] == client_of("north", "site-a"));
        assert_true(bed.item[1] == client_of("north", "site-b"));
        assert_true(bed.item[3] == client_of("", "site-c"));
        assert_true(client_of("site-c", "x") != client_of("", "site-c"));
        struct mfl_core_job_view view;
        assert_int_equal(mfl_core_job_view(bed.core, JOB, &view), 0);
        assert_int_equal(view.clients_total, 2);
        end(&bed);
}

/* When the daemon at work is lost for good, another one of the site trains the same client. */
static void test_a_site_outlives_its_daemon(void **state)
{
        struct bed bed;
        start_north(&bed);
        uint64_t client = bed.item[1];
        down(&bed, 1);
        tick(&bed, 1000);
        assert_int_equal(bed.n_tasks_of[2], 0); /* it may come back */
        tick(&bed, 10000);
        tick(&bed, 1000);
        assert_int_equal(bed.n_tasks_of[2], 1);
        assert_true(bed.item[2] == client);
        mfl_core_check(bed.core);
        end(&bed);
}

/* A site without a daemon is missing, and comes in again with any of its daemons. */
static void test_a_site_comes_back(void **state)
{
        struct bed bed;
        start_north(&bed);
        uint64_t client = bed.item[1];
        down(&bed, 2);
        down(&bed, 1);
        tick(&bed, 10001);
        tick(&bed, 1000);
        mfl_core_check(bed.core);
        up_at(&bed, 4, "north", pets(2, 77, 1));
        tick(&bed, 1000);
        assert_int_equal(bed.n_tasks_of[4], 1);
        assert_true(bed.item[4] == client);
        end(&bed);
}

/* A job that needs all sites does not wait for a busy daemon whose site has an idle one. */
static void test_an_idle_daemon_stands_in(void **state)
{
        struct bed bed;
        start_north(&bed);
        struct mfl_job other = bed.spec;
        feed(&bed, (struct mfl_core_event){
                           .kind = MFL_EV_JOB_ADD, .job = "j-000002", .job_add = {&other, 0, NULL, NULL}});
        up_at(&bed, 4, "",
                pets(2, 77, 9)); /* nobody waits for site-c, which works for the first job, alone */
        drain(&bed, "site-c", true);
        tick(&bed, 2000);
        assert_int_equal(bed.n_tasks_of[2], 1);
        assert_string_equal(bed.task[2].job, "j-000002");
        assert_true(bed.item[2] == client_of("north", "any"));
        mfl_core_check(bed.core);
        end(&bed);
}

/* Daemons of a site with other data are refused with both names; alone they are welcome. */
static void test_a_site_has_one_data_set(void **state)
{
        struct bed bed;
        start_north(&bed);
        up_at(&bed, 4, "north", pets(2, 77, 2));
        assert_string_equal(bed.closed,
                "site north: data set pets of daemon site-d differs from that of daemon "
                "site-a: give them the same files, or another site");
        assert_int_equal(mfl_core_daemon_count(bed.core), 3);
        up_at(&bed, 5, "south", pets(2, 77, 2));
        assert_int_equal(mfl_core_daemon_count(bed.core), 4);
        /* It moves to another site. */
        down(&bed, 5);
        up_at(&bed, 5, "north", pets(2, 77, 1));
        mfl_core_check(bed.core);
        end(&bed);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_other_meaning),
                cmocka_unit_test(test_categories_are_never_mixed),
                cmocka_unit_test(test_progress_within_clients),
                cmocka_unit_test(test_kept_over_restarts),
                cmocka_unit_test(test_meaning_comes_later),
                cmocka_unit_test(test_more_layers_than_before),
                cmocka_unit_test(test_wider_than_before),
                cmocka_unit_test(test_longer_names_than_before),
                cmocka_unit_test(test_last_cells),
                cmocka_unit_test(test_layers_of_a_later_version),
                cmocka_unit_test(test_whom_it_lacks),
                cmocka_unit_test(test_what_is_offered),
                cmocka_unit_test(test_too_few),
                cmocka_unit_test(test_an_upload_stalls),
                cmocka_unit_test(test_a_slot_waits_for_memory),
                cmocka_unit_test(test_updates_of_another_size),
                cmocka_unit_test(test_stop_after_a_round),
                cmocka_unit_test(test_stop_after_no_round),
                cmocka_unit_test(test_a_site_is_one_client),
                cmocka_unit_test(test_a_site_outlives_its_daemon),
                cmocka_unit_test(test_a_site_comes_back),
                cmocka_unit_test(test_an_idle_daemon_stands_in),
                cmocka_unit_test(test_a_site_has_one_data_set),
        };
        return cmocka_run_group_tests_name("sites", tests, NULL, NULL);
}
