/* SPDX-License-Identifier: Apache-2.0 */
/* The server core and daemons that say what can't be true: who is named and sent away, and that nobody else's
 * work is touched. And the draw of a cohort. */
#include "tests/lib/test.h"

#include "proto/version.h"
#include "server/core/core.h"

#include <stdio.h>

#define JOB "j-000001"
#define CLIENTS 8u
#define SAMPLES 80u /* of the training split; 20 of the test split */

struct bed {
        struct mfl_core *core;
        struct mfl_job spec;
        uint64_t now;
        uint64_t instance[8];    /* by daemon, from 1; its connection is the instance */
        struct mfl_task task[8]; /* by daemon; items are owned */
        uint32_t n_granted, n_opened, n_committed;
        struct mfl_round_record record;
        bool retry; /* of the last close */
        char accused[MFL_NAME_BYTES], why[MFL_REASON_BYTES];
        char traces[16384];
};

static void feed(struct bed *bed, struct mfl_core_event event);
static bool program; /* the job's data are those of a program */

static uint32_t counted_classes; /* as in JOB_READY */

static void job_event(struct bed *bed, enum mfl_core_event_kind kind, const struct mfl_core_action *answers)
{
        struct mfl_core_event event = {.kind = kind, .ok = true, .job = JOB};
        if (kind == MFL_EV_JOB_READY) {
                event.job_ready.n_params = 4;
                event.job_ready.n_slots = 1;
                event.job_ready.scored = 1;
                event.job_ready.scored_all = true;
                event.job_ready.tally = counted_classes ? MFL_TALLY_CLASSES : MFL_TALLY_NONE;
                event.job_ready.answers = counted_classes;
        } else if (answers) {
                event.upload.slot = answers->slot.slot;
                event.upload.grant = answers->slot.grant;
        }
        feed(bed, event);
}

static uint32_t daemon_of(const struct bed *bed, uint32_t conn)
{
        uint32_t d = 1;
        while (d < 7 && bed->instance[d] != conn)
                d++;
        return d;
}

static void keep_task(struct bed *bed, uint32_t d, const struct mfl_task *task)
{
        uint64_t *items = malloc(task->n_items * sizeof *items);
        memcpy(items, task->items, task->n_items * sizeof *items);
        free(bed->task[d].items);
        bed->task[d] = *task;
        bed->task[d].items = items;
}

static void take(struct bed *bed, const struct mfl_core_action *a)
{
        size_t n = strlen(bed->traces);
        switch (a->kind) {
        case MFL_ACT_SEND:
                if (a->msg.kind == MFL_MSG_TASK)
                        keep_task(bed, daemon_of(bed, a->conn), &a->msg.task);
                break;
        case MFL_ACT_ACCUSE:
                strcpy(bed->accused, a->accused);
                strcpy(bed->why, a->reason);
                break;
        case MFL_ACT_CLOSE:
                bed->retry = a->retry;
                break;
        case MFL_ACT_JOB_PREPARE:
                job_event(bed, MFL_EV_JOB_READY, NULL);
                break;
        case MFL_ACT_ROUND_OPEN:
                bed->n_opened++;
                break;
        case MFL_ACT_GRANT:
                bed->n_granted++;
                job_event(bed, MFL_EV_UPLOAD_COMPLETE, a);
                break;
        case MFL_ACT_SLOT_ADD:
                job_event(bed, MFL_EV_ADDED, a);
                break;
        case MFL_ACT_APPLY:
                job_event(bed, MFL_EV_APPLIED, NULL);
                break;
        case MFL_ACT_CHECKPOINT:
                job_event(bed, MFL_EV_CHECKPOINTED, NULL);
                break;
        case MFL_ACT_COMMIT:
                bed->n_committed++;
                bed->record = a->record;
                job_event(bed, MFL_EV_COMMITTED, NULL);
                break;
        case MFL_ACT_TRACE:
                snprintf(bed->traces + n, sizeof bed->traces - n, "%s\n", a->reason);
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
        mfl_core_check(bed->core);
        for (uint32_t i = 0; i < actions.n; i++)
                take(bed, &actions.v[i]);
        mfl_core_actions_deinit(&actions);
}

/* Process `instance` of daemon d, on the connection of that number. */
static void up(struct bed *bed, uint32_t d, uint32_t instance)
{
        struct mfl_data_info data = {
                .name = "d", .classes = 2, .train_samples = SAMPLES, .test_samples = 20, .fingerprint = 7};
        struct mfl_daemon_info info = {
                .instance = instance, .workers = 1, .protocol = 3, .n_data_sets = 1, .data_sets = &data};
        if (bed->spec.selection.kind != MFL_SELECT_UNIFORM)
                info.protocol = MFL_PROTOCOL_MAX;
        if (program)
                mfl_job_program_offer("p", data.name);
        snprintf(info.name, sizeof info.name, "d%u", d);
        bed->instance[d] = instance;
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = instance, .daemon = &info});
}

/* A round under way on n daemons, of CLIENTS clients. */
static void start_with(
        struct bed *bed, enum mfl_partition_kind kind, uint32_t n, enum mfl_selection selection)
{
        struct mfl_core_options options = {
                .boot = 1, .heartbeat_ms = 5000, .dead_ms = 15000, .reconnect_grace_ms = 10000};
        *bed = (struct bed){0};
        strcpy(bed->spec.data.name, "d");
        if (program) {
                strcpy(bed->spec.training.program, "p");
                mfl_job_program_offer("p", bed->spec.data.name);
        }
        bed->spec.rounds = 2;
        bed->spec.data.partition = kind;
        bed->spec.data.clients = kind == MFL_PARTITION_LOCAL ? 0 : CLIENTS;
        bed->spec.aggregation.delta_max = 16;
        bed->spec.training.epochs = 2;
        bed->spec.limits.quorum = 1;
        bed->spec.limits.deadline_ms = 3600000;
        bed->spec.limits.retries = 3;
        bed->spec.selection.daemons_min = n;
        bed->spec.selection.kind = selection;
        bed->spec.selection.candidates = CLIENTS;
        bed->spec.evaluation.every = 1;
        bed->spec.evaluation.batch = 10;
        assert_int_equal(mfl_core_new(&options, &bed->core, NULL), 0);
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_JOB_ADD, .job = JOB, .job_add = {&bed->spec, 0}});
        for (uint32_t d = 1; d <= n; d++)
                up(bed, d, d);
        bed->now += 2000;
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
        assert_int_equal(bed->n_opened, 1);
        assert_int_equal(bed->task[1].kind, MFL_TASK_TRAIN);
}

static void start(struct bed *bed, enum mfl_partition_kind kind, uint32_t n)
{
        start_with(bed, kind, n, MFL_SELECT_UNIFORM);
}

static void end(struct bed *bed)
{
        mfl_core_free(bed->core);
        for (uint32_t d = 0; d < 8; d++)
                free(bed->task[d].items);
}

/* Client k has 6 + k samples but the last, which has what is left; `off` are moved from the last to the
 * first. */
static uint32_t samples_of(uint64_t k, uint32_t off)
{
        uint32_t rest = SAMPLES - 7 * 6 - 21;
        return k + 1 == CLIENTS ? rest - off : 6 + (uint32_t)k + (k ? 0 : off);
}

static void tell_some(struct bed *bed, uint32_t d, uint32_t off, uint32_t first, uint32_t n)
{
        uint32_t count[CLIENTS];
        struct mfl_core_event event = {
                .kind = MFL_EV_POPULATION, .conn = (uint32_t)bed->instance[d], .job = JOB};
        struct mfl_population *told = &event.population;
        *told = (struct mfl_population){.clients = CLIENTS,
                .samples_min = UINT32_MAX,
                .first = first,
                .n = n,
                .count = count + first};
        for (uint32_t k = 0; k < CLIENTS; k++) {
                count[k] = samples_of(k, off);
                told->samples += count[k];
                told->samples_min = MFL_MIN(told->samples_min, count[k]);
                told->samples_max = MFL_MAX(told->samples_max, count[k]);
        }
        feed(bed, event);
}

static void tell(struct bed *bed, uint32_t d, uint32_t off)
{
        tell_some(bed, d, off, 0, 3);
        tell_some(bed, d, off, 3, CLIENTS - 3);
}

static struct mfl_announce update_of(const struct bed *bed, uint32_t d, uint32_t off)
{
        const struct mfl_task *t = &bed->task[d];
        struct mfl_announce a = {.task = t->task,
                .round = t->round,
                .item_count = t->n_items,
                .bytes = 32,
                .encoding = MFL_ENCODING_I64,
                .job = JOB};
        for (uint32_t i = 0; i < t->n_items; i++)
                a.weight += bed->spec.data.partition == MFL_PARTITION_IID     ? SAMPLES / CLIENTS
                            : bed->spec.data.partition == MFL_PARTITION_LOCAL ? SAMPLES
                                                                              : samples_of(t->items[i], off);
        a.samples = 2 * a.weight;
        a.correct = a.weight;
        a.loss_sum = (int64_t)1 << 33;
        return a;
}

static void announce(struct bed *bed, uint32_t d, struct mfl_announce a)
{
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE, .announce = a};
        feed(bed, (struct mfl_core_event){
                          .kind = MFL_EV_MESSAGE, .conn = (uint32_t)bed->instance[d], .msg = &msg});
}

static void expect_accused(struct bed *bed, const char *who, const char *why)
{
        assert_string_equal(bed->accused, who);
        assert_string_equal(bed->why, why);
        if (*who)
                assert_false(bed->retry);
        bed->accused[0] = bed->why[0] = '\0';
}

/* tally: n_tally counts for each shard. */
static void evaluate_classes(
        struct bed *bed, uint32_t d, struct mfl_eval_item item, const uint64_t *tally, uint32_t n_tally)
{
        const struct mfl_task *t = &bed->task[d];
        struct mfl_eval_item items[CLIENTS];
        assert_int_equal(t->kind, MFL_TASK_EVAL);
        for (uint32_t i = 0; i < t->n_items; i++)
                items[i] = (struct mfl_eval_item){t->items[i], item.samples, item.correct, item.loss_sum};
        uint64_t counts[64];
        for (uint32_t i = 0; i < t->n_items * n_tally; i++)
                counts[i] = tally[i % n_tally];
        struct mfl_msg msg = {.kind = MFL_MSG_EVAL_RESULT,
                .eval = {t->task, t->n_items, items, t->n_items * n_tally, n_tally ? counts : NULL}};
        feed(bed, (struct mfl_core_event){
                          .kind = MFL_EV_MESSAGE, .conn = (uint32_t)bed->instance[d], .msg = &msg});
}

static void evaluate(struct bed *bed, uint32_t d, uint64_t samples, uint64_t correct, int64_t loss_sum)
{
        evaluate_classes(bed, d, (struct mfl_eval_item){0, samples, correct, loss_sum}, NULL, 0);
}

/* ---- updates ---- */

/* The liar asks for all the room there is; the others' clients, and then its own, count all the same. */
static void a_liar_takes_no_room(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_IID, 2);
        struct mfl_announce lie = update_of(&bed, 2, 0);
        struct mfl_announce honest = update_of(&bed, 1, 0);
        lie.weight = bed.task[2].fixed.weight_max;
        announce(&bed, 2, lie);
        expect_accused(&bed, "d2", "weight 128, but its 4 clients have 40 samples");
        announce(&bed, 1, honest);
        announce(&bed, 1, update_of(&bed, 1, 0)); /* what was the liar's */
        assert_int_equal(bed.n_granted, 2);
        assert_non_null(strstr(bed.traces, "8 of 8 clients counted, 0 rejected"));
        assert_non_null(strstr(bed.traces, "daemon d2 is sent away for what it said: weight 128"));
        end(&bed);
}

static void impossible_figures_name_the_liar(void **state)
{
        (void)state;
        static const struct {
                uint64_t samples, correct;
                int64_t loss_sum;
                const char *why;
        } lies[] = {
                {80, 81, 0, "81 of 80 predictions are correct"},
                {81, 0, 0, "81 predictions, but its 4 clients make at most 80"},
                {UINT64_MAX, 0, 0, "18446744073709551615 predictions, but its 4 clients make at most 80"},
                {80, 0, -1, "a total loss of -2.32831e-10 for 80 predictions, but each has at most 2^20"},
                {80, 0, INT64_MAX,
                        "a total loss of 2.14748e+09 for 80 predictions, but each has at most 2^20"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(lies); i++) {
                struct bed bed;
                start(&bed, MFL_PARTITION_IID, 2);
                struct mfl_announce lie = update_of(&bed, 1, 0);
                lie.samples = lies[i].samples;
                lie.correct = lies[i].correct;
                lie.loss_sum = lies[i].loss_sum;
                announce(&bed, 1, lie);
                expect_accused(&bed, "d1", lies[i].why);
                assert_int_equal(bed.n_granted, 0);
                end(&bed);
        }
}

/* Each client's loss is told, and together they are the update's. */
static void losses_of_clients_add_up(void **state)
{
        static const char *const whys[] = {"",
                "its clients have 81 predictions and a loss of 2, but together 80 and 2",
                "its clients have 80 predictions and a loss of 2.5, but together 80 and 2",
                "its clients have 60 predictions and a loss of 1.5, but together 80 and 2"};
        (void)state;
        for (int lie = 0; lie < 4; lie++) {
                struct bed bed;
                start_with(&bed, MFL_PARTITION_IID, 2, MFL_SELECT_POWER_OF_CHOICE);
                struct mfl_client_loss losses[CLIENTS];
                struct mfl_announce a = update_of(&bed, 1, 0);
                a.n_losses = a.item_count;
                a.losses = losses;
                for (uint32_t i = 0; i < a.item_count; i++)
                        losses[i] = (struct mfl_client_loss){20, (int64_t)1 << 31, 0};
                losses[0].samples += lie == 1;
                losses[0].loss_sum += lie == 2 ? (int64_t)1 << 31 : 0;
                a.n_losses -= lie == 3; /* not of all */
                announce(&bed, 1, a);
                expect_accused(&bed, *whys[lie] ? "d1" : "", whys[lie]);
                end(&bed);
        }
}

static void sums_of_losses_do_not_overflow(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_IID, 4);
        for (uint32_t d = 1; d <= 4; d++) {
                struct mfl_announce a = update_of(&bed, d, 0);
                a.loss_sum = (int64_t)a.samples << 52;
                announce(&bed, d, a);
        }
        for (uint32_t d = 1; d <= 4; d++)
                if (bed.task[d].kind == MFL_TASK_EVAL)
                        evaluate(&bed, d, 10, 5, (int64_t)10 << 52);
        assert_int_equal(bed.n_committed, 1);
        assert_true(bed.record.train_loss == 0x1p20 && bed.record.loss == 0x1p20);
        assert_true(bed.record.train_accuracy == 0.5 && bed.record.accuracy == 0.5);
        expect_accused(&bed, "", "");
        end(&bed);
}

static void a_site_is_held_to_its_hello(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_LOCAL, 2);
        announce(&bed, 1, update_of(&bed, 1, 0));
        struct mfl_announce lie = update_of(&bed, 2, 0);
        lie.weight++;
        announce(&bed, 2, lie);
        expect_accused(&bed, "d2", "weight 81, but its 1 client has 80 samples");
        end(&bed);
}

/* Only the program knows how many samples a client has; what its daemon offers is the limit of each. */
static void a_program_may_count_up_to_its_limit(void **state)
{
        static const enum mfl_partition_kind kinds[] = {MFL_PARTITION_LOCAL, MFL_PARTITION_IID};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(kinds); i++) {
                struct bed bed;
                program = true;
                start(&bed, kinds[i], 2);
                uint64_t most = (uint64_t)bed.task[2].n_items * SAMPLES;
                struct mfl_announce a = update_of(&bed, 1, 0);
                a.weight = bed.task[1].n_items;
                a.samples = a.correct = 0;
                a.loss_sum = 0;
                announce(&bed, 1, a);
                expect_accused(&bed, "", "");
                a = update_of(&bed, 2, 0);
                a.weight = most + 1;
                announce(&bed, 2, a);
                assert_string_equal(bed.accused, "d2");
                assert_non_null(strstr(bed.why, "samples"));
                end(&bed);
                program = false;
        }
}

static void an_evaluation_is_held_to_its_shards(void **state)
{
        (void)state;
        static const struct {
                uint64_t samples, correct;
                int64_t loss_sum;
                const char *why;
        } lies[] = {
                {UINT32_MAX, 5, 0,
                        "shard 0: 4294967295 predictions are scored, but the test samples have 10"},
                {9, 5, 0, "shard 0: 9 predictions are scored, but the test samples have 10"},
                {10, 11, 0, "shard 0: 11 of 10 predictions are correct"},
                {10, 5, INT64_MAX,
                        "shard 0: a total loss of 2.14748e+09 for 10 predictions, but each has at most "
                        "2^20"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(lies); i++) {
                struct bed bed;
                start(&bed, MFL_PARTITION_IID, 2);
                announce(&bed, 1, update_of(&bed, 1, 0));
                announce(&bed, 2, update_of(&bed, 2, 0));
                evaluate(&bed, 2, 10, 5, 0);
                evaluate(&bed, 1, lies[i].samples, lies[i].correct, lies[i].loss_sum);
                expect_accused(&bed, "d1", lies[i].why);
                evaluate(&bed, 2, 10, 5, 0); /* the shard that was the liar's */
                assert_int_equal(bed.record.eval_samples, 20);
                assert_true(bed.record.accuracy == 0.5);
                end(&bed);
        }
}

/* Its policy keeps its figures (metrics: withheld): nobody lies, and the round is evaluated on what others say, if anybody does. */
static void a_site_may_answer_for_no_sample(void **state)
{
        (void)state;
        for (uint64_t others = 0; others <= 10; others += 10) {
                struct bed bed;
                start(&bed, MFL_PARTITION_IID, 2);
                announce(&bed, 1, update_of(&bed, 1, 0));
                announce(&bed, 2, update_of(&bed, 2, 0));
                evaluate(&bed, 2, others, others / 2, 0);
                evaluate(&bed, 1, 0, 0, 0);
                expect_accused(&bed, "", "");
                assert_int_equal(bed.record.eval_samples, others);
                assert_int_equal(bed.record.evaluated, others > 0);
                end(&bed);
        }
}

/* The mean intersection over union is that of the sums over all shards, over the classes that occur. */
static void counts_by_class_are_added_and_checked(void **state)
{
        (void)state;
        static const uint64_t one[9] = {6, 4, 0, 5, 5, 0, 4, 3, 0}, two[9] = {10, 0, 0, 8, 2, 0, 8, 0, 0};
        static const uint64_t more[9] = {6, 4, 0, 5, 5, 0, 3, 4, 1}, wrong[9] = {6, 5, 0, 5, 5, 0, 4, 3, 0};
        static const struct {
                const uint64_t *tally;
                uint32_t n;
                const char *why;
        } lies[] = {{one, 6, "a tally of 6 numbers for 1 shards, but each has 9"},
                {NULL, 0, "a tally of 0 numbers for 1 shards, but each has 9"},
                {more, 9, "shard 0: its tally contradicts 10 predictions, 7 right"},
                {wrong, 9, "shard 0: its tally contradicts 10 predictions, 7 right"}};
        counted_classes = 3;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(lies); i++) {
                struct bed bed;
                start(&bed, MFL_PARTITION_IID, 2);
                announce(&bed, 1, update_of(&bed, 1, 0));
                announce(&bed, 2, update_of(&bed, 2, 0));
                evaluate_classes(&bed, 2, (struct mfl_eval_item){0, 10, 8, 0}, two, 9);
                evaluate_classes(&bed, 1, (struct mfl_eval_item){0, 10, 7, 0}, lies[i].tally, lies[i].n);
                expect_accused(&bed, "d1", lies[i].why);
                evaluate_classes(&bed, 2, (struct mfl_eval_item){0, 10, 7, 0}, one, 9);
                assert_true(bed.record.accuracy == 0.75 && bed.record.has_mean_iou);
                /* 12 of 16 + 13 - 12, 3 of 4 + 7 - 3; the third class does not occur */
                assert_true(bed.record.mean_iou == (12.0 / 17 + 3.0 / 8) / 2);
                end(&bed);
        }
        counted_classes = 0;
}

/* The process that has lied is not let in again; another one is. */
static void a_liar_does_not_come_back(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_IID, 2);
        struct mfl_announce lie = update_of(&bed, 2, 0);
        lie.weight--;
        announce(&bed, 2, lie);
        expect_accused(&bed, "d2", "weight 39, but its 4 clients have 40 samples");
        assert_int_equal(mfl_core_daemon_count(bed.core), 1);
        struct mfl_daemon_info info = {.name = "d2", .instance = 2, .workers = 1};
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = 90, .daemon = &info});
        assert_int_equal(mfl_core_daemon_count(bed.core), 1);
        assert_false(bed.retry);
        up(&bed, 2, 6);
        assert_int_equal(mfl_core_daemon_count(bed.core), 2);
        end(&bed);
}

static void progress_is_checked(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_IID, 2);
        struct mfl_msg msg = {.kind = MFL_MSG_PROGRESS,
                .progress = {
                        .task = bed.task[1].task, .samples_done = 80, .loss_sum = 80 * ((int64_t)1 << 33)}};
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1, .msg = &msg});
        expect_accused(&bed, "", "");
        msg.progress.samples_done = 81;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1, .msg = &msg});
        expect_accused(&bed, "d1", "81 samples done, but its task has at most 80");
        end(&bed);
}

/* ---- how the population is cut ---- */

/* Nobody knows what a client has before the first daemon tells: an update waits. */
static void an_update_waits_for_the_counts(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_NATURAL_ID, 2);
        announce(&bed, 1, update_of(&bed, 1, 0));
        assert_int_equal(bed.n_granted, 0);
        tell_some(&bed, 1, 0, 0, 3);
        assert_int_equal(bed.n_granted, 0);
        tell_some(&bed, 1, 0, 3, CLIENTS - 3);
        assert_int_equal(bed.n_granted, 1);
        struct mfl_announce lie = update_of(&bed, 2, 0);
        uint64_t true_weight = lie.weight++;
        char why[MFL_REASON_BYTES];
        announce(&bed, 2, lie);
        snprintf(why, sizeof why, "weight %llu, but its 4 clients have %llu samples",
                (unsigned long long)lie.weight, (unsigned long long)true_weight);
        expect_accused(&bed, "d2", why);
        end(&bed);
}

/* An announcement that comes before the word on the clients is looked at again. */
static void a_lie_that_waits_is_found(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_NATURAL_ID, 2);
        struct mfl_announce lie = update_of(&bed, 2, 0);
        lie.weight = 80;
        lie.samples = lie.correct = 0;
        lie.loss_sum = 0;
        announce(&bed, 2, lie);
        expect_accused(&bed, "", "");
        tell(&bed, 1, 0);
        assert_string_equal(bed.accused, "d2");
        end(&bed);
}

static void the_majority_holds(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_NATURAL_ID, 3);
        tell(&bed, 1, 2); /* the liar is first, and its update counts */
        announce(&bed, 1, update_of(&bed, 1, 2));
        assert_int_equal(bed.n_granted, 1);
        tell(&bed, 2, 0); /* one against one: nobody can tell */
        expect_accused(&bed, "", "");
        assert_non_null(
                strstr(bed.traces, "daemon d2 can't take part until others agree with it: it reports 6 "
                                   "samples for client 0, but d1 reports 8"));
        tell(&bed, 3, 0);
        expect_accused(&bed, "d1", "it reports 8 samples for client 0, but d2 reports 6");
        /* What had counted was false: the round begins again, with the same clients. */
        assert_non_null(strstr(bed.traces, "round 1 begins again, with the same clients"));
        bed.now += 2000;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
        bed.spec.selection.daemons_min = 1;
        up(&bed, 4, 7);
        assert_int_equal(bed.n_opened, 2);
        for (int i = 0; i < 3 && !strstr(bed.traces, "8 of 8 clients counted"); i++)
                for (uint32_t d = 2; d <= 4; d++)
                        if (bed.task[d].kind == MFL_TASK_TRAIN && bed.task[d].n_items)
                                announce(&bed, d, update_of(&bed, d, 0));
        assert_non_null(strstr(bed.traces, "round 1 closes, all done: 8 of 8 clients counted"));
        end(&bed);
}

/* A daemon that was away for longer than the grace announces what it holds before it tells its cut again: nobody knows who lies. */
static void who_comes_back_late_is_heard_first(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_NATURAL_ID, 2);
        struct mfl_announce held = update_of(&bed, 2, 0);
        const struct mfl_announce false_one = update_of(&bed, 2, 2);
        assert_true(held.weight != false_one.weight);
        tell(&bed, 1, 2); /* the liar */
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 2});
        bed.now += 10001;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
        assert_int_equal(mfl_core_daemon_count(bed.core), 1);
        up(&bed, 2, 2);
        announce(&bed, 2, held);
        expect_accused(&bed, "", "");
        assert_int_equal(mfl_core_daemon_count(bed.core), 2);
        /* On the connection that it was sent on, it is told first. */
        end(&bed);
        start(&bed, MFL_PARTITION_NATURAL_ID, 2);
        held = update_of(&bed, 2, 0);
        tell(&bed, 1, 2);
        announce(&bed, 2, held);
        assert_string_equal(bed.accused, "d2");
        end(&bed);
}

static void counts_must_add_up(void **state)
{
        (void)state;
        struct bed bed;
        uint32_t count[CLIENTS] = {10, 10, 10, 10, 10, 10, 10, 11};
        struct mfl_core_event event = {.kind = MFL_EV_POPULATION, .conn = 1, .job = JOB};
        event.population = (struct mfl_population){CLIENTS, 80, 10, 11, 0, CLIENTS, count};
        start(&bed, MFL_PARTITION_NATURAL_ID, 2);
        feed(&bed, event);
        expect_accused(&bed, "d1",
                "its clients have 81 samples together, 10 to 11 each, but it reports 80, 10 to 11");
        event.conn = 2;
        event.population.samples = 81;
        feed(&bed, event);
        expect_accused(&bed, "d2", "its clients have 81 samples together, but the data set has 80");
        end(&bed);
        start(&bed, MFL_PARTITION_IID, 1);
        event.conn = 1;
        event.population.samples = 80;
        feed(&bed, event);
        expect_accused(&bed, "d1", "client 7 has 10 samples, but it reports 11");
        end(&bed);
}

/* One against one: whoever came first works, and keeps what it has done while its connection breaks. If it stays away for longer than the
 * grace, the other one works, and keeps that when the first is back. */
static void a_tie_that_comes_again(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_NATURAL_ID, 2);
        tell(&bed, 1, 2);
        tell(&bed, 2, 0);
        assert_non_null(strstr(bed.traces, "daemon d2 can't take part until others agree with it"));
        struct mfl_announce held = update_of(&bed, 1, 2);
        uint64_t tasks = bed.task[2].task;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 1});
        assert_int_equal(bed.task[2].task, tasks); /* nothing new */
        bed.traces[0] = '\0';
        up(&bed, 1, 1);
        announce(&bed, 1, held);
        announce(&bed, 1, update_of(&bed, 1, 2));
        assert_non_null(strstr(bed.traces, "round 1 closes, all done: 8 of 8 clients counted"));
        end(&bed);
        start(&bed, MFL_PARTITION_NATURAL_ID, 2);
        tell(&bed, 1, 2);
        tell(&bed, 2, 0);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 1});
        bed.now += 10001;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
        assert_int_equal(bed.task[2].n_items, CLIENTS);
        tasks = bed.task[2].task;
        bed.traces[0] = '\0';
        up(&bed, 1, 1);
        tell(&bed, 1, 2);
        assert_non_null(strstr(bed.traces, "daemon d1 can't take part until others agree with it"));
        assert_int_equal(bed.task[2].task, tasks);
        announce(&bed, 2, update_of(&bed, 2, 0));
        assert_non_null(strstr(bed.traces, "round 1 closes, all done: 8 of 8 clients counted"));
        end(&bed);
}

/* A drained daemon that is away is remembered for good, and is not waited for. */
static void a_tie_with_one_that_is_drained_while_away(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_NATURAL_ID, 2);
        tell(&bed, 1, 2);
        tell(&bed, 2, 0);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 1});
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DRAIN, .drain = {.name = "d1", .on = true}});
        bed.now += 10001;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
        assert_int_equal(bed.task[2].n_items, CLIENTS);
        announce(&bed, 2, update_of(&bed, 2, 0));
        assert_non_null(strstr(bed.traces, "round 1 closes, all done: 8 of 8 clients counted"));
        end(&bed);
}

/* Daemon 1 is drained, or wants to leave. */
static void stop_work(struct bed *bed, bool leaves)
{
        struct mfl_msg leaving = {.kind = MFL_MSG_LEAVING};
        if (leaves)
                feed(bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = 1, .msg = &leaving});
        else
                feed(bed, (struct mfl_core_event){.kind = MFL_EV_DRAIN, .drain = {.name = "d1", .on = true}});
}

/* A connected daemon that is drained, or that leaves, ends its work. Its round counts, and the other one trains the next. Back, the
 * first is still contradicted. */
static void a_tie_with_one_that_is_drained(void **state)
{
        (void)state;
        for (int leaves = 0; leaves < 2; leaves++) {
                struct bed bed;
                start(&bed, MFL_PARTITION_NATURAL_ID, 2);
                bed.spec.selection.daemons_min = 1; /* from the next round on */
                tell(&bed, 1, 2);
                const struct mfl_announce first = update_of(&bed, 1, 2);
                tell(&bed, 2, 0);
                const uint64_t task = bed.task[2].task;
                stop_work(&bed, leaves);
                announce(&bed, 1, update_of(&bed, 1, 2));
                assert_int_equal(bed.task[2].task, task); /* d1 still trains */
                announce(&bed, 1, first);
                assert_non_null(strstr(bed.traces, "round 1 closes, all done: 8 of 8 clients counted"));
                evaluate(&bed, 2, 10, 5, 0);
                if (!leaves)
                        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DRAIN, .drain = {.name = "d1"}});
                assert_int_equal(bed.task[2].kind, MFL_TASK_TRAIN);
                assert_int_equal(bed.task[2].n_items, CLIENTS);
                announce(&bed, 2, update_of(&bed, 2, 0));
                assert_non_null(strstr(bed.traces, "round 2 closes, all done: 8 of 8 clients counted"));
                end(&bed);
        }
}

/* What it counts for a round that it can't end is trained again: the clients of one round have one cut. */
static void a_tie_with_one_that_is_drained_within_a_round(void **state)
{
        (void)state;
        struct bed bed;
        start(&bed, MFL_PARTITION_NATURAL_ID, 2);
        bed.spec.selection.daemons_min = 1; /* from the next round on */
        tell(&bed, 1, 2);
        stop_work(&bed, false);
        tell(&bed, 2, 0);
        announce(&bed, 1, update_of(&bed, 1, 2));
        assert_non_null(strstr(bed.traces, "round 1 begins again"));
        bed.now += 2000;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
        assert_int_equal(bed.task[2].n_items, CLIENTS);
        announce(&bed, 2, update_of(&bed, 2, 0));
        assert_non_null(strstr(bed.traces, "round 1 closes, all done: 8 of 8 clients counted"));
        end(&bed);
}

/* A daemon of the release before tells the smallest and the largest client. */
static void sizes_alone_bound_each_client(void **state)
{
        (void)state;
        struct bed bed;
        struct mfl_core_event event = {.kind = MFL_EV_POPULATION, .conn = 1, .job = JOB};
        event.population = (struct mfl_population){CLIENTS, 80, 6, 20, 0, 0, NULL};
        start(&bed, MFL_PARTITION_NATURAL_ID, 2);
        feed(&bed, event);
        announce(&bed, 1, update_of(&bed, 1, 0));
        assert_int_equal(bed.n_granted, 1);
        struct mfl_announce lie = update_of(&bed, 2, 0);
        lie.weight = 81;
        announce(&bed, 2, lie);
        expect_accused(&bed, "d2", "weight 81, but its 4 clients have 24 to 80 samples");
        end(&bed);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_liar_takes_no_room),
                cmocka_unit_test(impossible_figures_name_the_liar),
                cmocka_unit_test(losses_of_clients_add_up),
                cmocka_unit_test(sums_of_losses_do_not_overflow),
                cmocka_unit_test(a_site_is_held_to_its_hello),
                cmocka_unit_test(a_program_may_count_up_to_its_limit),
                cmocka_unit_test(an_evaluation_is_held_to_its_shards),
                cmocka_unit_test(a_site_may_answer_for_no_sample),
                cmocka_unit_test(counts_by_class_are_added_and_checked),
                cmocka_unit_test(a_liar_does_not_come_back),
                cmocka_unit_test(progress_is_checked),
                cmocka_unit_test(an_update_waits_for_the_counts),
                cmocka_unit_test(a_lie_that_waits_is_found),
                cmocka_unit_test(the_majority_holds),
                cmocka_unit_test(a_tie_that_comes_again),
                cmocka_unit_test(a_tie_with_one_that_is_drained_while_away),
                cmocka_unit_test(a_tie_with_one_that_is_drained),
                cmocka_unit_test(a_tie_with_one_that_is_drained_within_a_round),
                cmocka_unit_test(who_comes_back_late_is_heard_first),
                cmocka_unit_test(counts_must_add_up),
                cmocka_unit_test(sizes_alone_bound_each_client),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
