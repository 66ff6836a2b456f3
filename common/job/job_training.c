/* SPDX-License-Identifier: Apache-2.0 */
/* The `training` and `parallel` keys of a job document: how a client trains. */
#include "common/job/job_training.h"

#define ROWS_MAX (1u << 20) /* of one optimizer step: index tables cover at least a whole step */

static const char *const backend_names[] = {"auto", "cpu", "reference", "cuda", NULL};
static const char *const precision_names[] = {"fp32", "tf32", "bf16", "fp16", NULL};
/* By enum mfl_optimizer_kind (kernels/backend.h) and enum mfl_loss_kind. */
static const char *const optimizer_names[] = {"sgd", "adam", "adamw", "adagrad", NULL};
#define LOSS_NAME(symbol, name, answers, decides) name,
static const char *const loss_names[] = {MFL_LOSSES(LOSS_NAME) NULL};

/* What people know from elsewhere. */
static const char *const other_losses[] = {"ctc",
        "is not supported, since a sample would have as many labels as its text: label each position "
        "(`cross-entropy`, with "
        "ignore_index where there is none), or let a training program compute it (`training: {program: "
        "...}`, docs/programs.md)",
        "nll", "write 'cross-entropy': it contains the log_softmax, so the model's outputs are logits", "mse",
        "write 'squared'", "bce",
        "write 'binary': it contains the sigmoid, so the model's outputs are logits", "mae", "write 'l1'",
        NULL};

static const char *const schedule_names[] = {"constant", "step", "linear", "cosine", NULL};
static const char *const unit_names[] = {"round", "step", NULL};

static int read_backend(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_ENUM, .size = sizeof(int), .names = backend_names};
        int i;
        int r = mfl_yaml_read_value(doc, node, &field, &i, err);
        if (!r)
                mfl_strcpy(value, sizeof((struct mfl_job *)0)->training.backend, backend_names[i]);
        return r;
}

/* A number of clients, or auto: 0. */
static int read_fuse(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 1, .max = 4096};
        uint32_t *fuse = value;
        *fuse = 0;
        if (node->type == MFL_YAML_SCALAR && !strcmp(node->text, "auto"))
                return 0;
        return mfl_yaml_read_value(doc, node, &field, fuse, err);
}

#define SEGMENTS_AUTO (-1) /* MFL_SEGMENTS_AUTO, MFL_SEGMENTS_MAX (kernels/backend.h) */
#define SEGMENTS_MAX 64

/* off: 0; auto: -1; or a number of segments from 2 on, because one segment is off. */
static int read_checkpointing(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 0, .max = UINT32_MAX};
        int *segments = value;
        uint32_t n;
        bool word = node->type == MFL_YAML_SCALAR;
        if (word && !strcmp(node->text, "off"))
                *segments = 0;
        else if (word && !strcmp(node->text, "auto"))
                *segments = SEGMENTS_AUTO;
        else if (mfl_yaml_read_value(doc, node, &field, &n, NULL) || n < 2 || n > SEGMENTS_MAX)
                return mfl_yaml_fail(doc, node, err, "expected 'off', 'auto', or 2 to %d segments%s%.64s%s",
                        SEGMENTS_MAX, word ? ", got '" : "", word ? node->text : "", word ? "'" : "");
        else
                *segments = (int)n;
        return 0;
}

/* A list of numbers from `min` on (binary, pos_weight: or one number for all), at most `max` of them. */
static int read_floats(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, uint32_t n_max,
        bool single, struct mfl_job_floats *ret, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_F32, .size = sizeof(float), .min = 0, .max = 1e6};
        bool list = node->type == MFL_YAML_SEQUENCE;
        uint32_t n = list ? node->n_children : 1, i = 0;
        int r = 0;
        if ((!list && !single) || n < 1 || n > n_max)
                return mfl_yaml_fail(doc, node, err, "expected %sa list of 1 to %u numbers",
                        single ? "a number, or " : "", n_max);
        struct mfl_job_floats made = {mfl_calloc(n, sizeof(float)), n};
        if (!made.v)
                return mfl_fail_memory(err, n * sizeof(float), "a list of numbers");
        if (!list)
                r = mfl_yaml_read_value(doc, node, &field, made.v, err);
        for (const struct mfl_yaml_node *child = node->first; list && !r && child; child = child->next)
                r = mfl_yaml_read_value(doc, child, &field, &made.v[i++], err);
        if (r) {
                free(made.v);
                return r;
        }
        free(ret->v);
        *ret = made;
        return 0;
}

#define AUXILIARY_MAX 7 /* MFL_AUXILIARY_MAX (kernels/backend.h) */

static int read_class_weights(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_floats(doc, node, MFL_WIDTH_MAX, false, value, err);
}

static int read_pos_weight(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_floats(doc, node, MFL_WIDTH_MAX, true, value, err);
}

static int read_auxiliary(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return read_floats(doc, node, AUXILIARY_MAX, false, value, err);
}

/* What a program is told: a mapping, kept as JSON. */
static int read_config(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        char **config = value;
        if (node->type != MFL_YAML_MAPPING)
                return mfl_yaml_fail(doc, node, err, "expected a mapping, such as {lr: 0.01, epochs: 1}");
        free(*config);
        *config = mfl_yaml_json(node);
        return *config ? 0 : mfl_fail_memory(err, MFL_JOB_TEXT_MAX, "a program's config");
}

#define AT(kind, member) MFL_YAML_AT(kind, struct mfl_job, training.member)
#define CALL_AT(member, read_)                                                                               \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_job, training.member), .read = read_

const struct mfl_yaml_field mfl_job_schedule_fields[] = {
        {.key = "kind", AT(ENUM, schedule.kind), .names = schedule_names},
        {.key = "per", AT(ENUM, schedule.per), .names = unit_names},
        {.key = "warmup", AT(U32, schedule.warmup), .min = 1, .max = 10000000},
        {.key = "every", AT(U32, schedule.every), .min = 1, .max = 10000000},
        {.key = "factor", AT(F64, schedule.factor), .min = 0, .max = 1, .min_open = true, .max_open = true},
        {.key = "over", AT(U32, schedule.over), .min = 1, .max = 10000000},
        {.key = "min", AT(F64, schedule.min), .min = 0, .max = 1, .max_open = true}, {0}};
const struct mfl_yaml_field mfl_job_training_fields[] = {{.key = "program", AT(STRING, program)},
        {.key = "config", CALL_AT(config, read_config)},
        {.key = "optimizer", AT(ENUM, optimizer), .names = optimizer_names},
        {.key = "lr", AT(F32, lr), .min = 0, .max = 1000, .min_open = true},
        {.key = "momentum", AT(F32, momentum), .min = 0, .max = 1, .max_open = true},
        {.key = "nesterov", AT(BOOL, nesterov)},
        {.key = "beta1", AT(F32, beta1), .min = 0, .max = 1, .max_open = true},
        {.key = "beta2", AT(F32, beta2), .min = 0, .max = 1, .max_open = true},
        {.key = "eps", AT(F32, eps), .min = 0, .max = 1, .min_open = true},
        {.key = "weight_decay", AT(F32, weight_decay), .min = 0, .max = 1000},
        {.key = "clip_norm", AT(F32, clip_norm), .min = 0, .max = 1e6, .min_open = true},
        {.key = "schedule", .kind = MFL_YAML_FIELDS, .fields = mfl_job_schedule_fields},
        {.key = "loss", AT(ENUM, loss), .names = loss_names, .instead = other_losses},
        {.key = "label_smoothing", AT(F32, label_smoothing), .min = 0, .max = 1, .max_open = true},
        {.key = "class_weights", CALL_AT(class_weights, read_class_weights)},
        {.key = "pos_weight", CALL_AT(class_weights, read_pos_weight)},
        {.key = "ignore_index",
                AT(I64, ignore_index),
                .min = -1000000,
                .max = 1000000,
                .seen = offsetof(struct mfl_job, training.has_ignore_index)},
        {.key = "focal_gamma", AT(F32, focal_gamma), .min = 0, .max = 20},
        {.key = "huber_delta", AT(F32, huber_delta), .min = 0, .max = 1e6, .min_open = true},
        {.key = "smooth_l1_beta", AT(F32, smooth_l1_beta), .min = 0, .max = 1e6, .min_open = true},
        {.key = "auxiliary", CALL_AT(auxiliary, read_auxiliary)},
        {.key = "epochs", AT(U32, epochs), .min = 1, .max = 65535},
        {.key = "steps", AT(U32, steps), .min = 1, .max = 10000000},
        {.key = "batch", AT(U32, batch), .min = 1, .max = 65536}, {.key = "drop_last", AT(BOOL, drop_last)},
        {.key = "accumulate", AT(U32, accumulate), .min = 1, .max = 65536},
        {.key = "threads", AT(U32, threads), .min = 1, .max = 256},
        {.key = "backend", CALL_AT(backend, read_backend)},
        {.key = "precision", AT(ENUM, precision), .names = precision_names}, {.key = "fast", AT(BOOL, fast)},
        {.key = "fuse", CALL_AT(fuse, read_fuse)},
        {.key = "checkpointing", CALL_AT(checkpointing, read_checkpointing)}, {0}};

static const struct mfl_job_usage optimizer_usage[] = {
        {"momentum", MFL_JOB_BIT(SGD)},
        {"nesterov", MFL_JOB_BIT(SGD)},
        {"beta1", MFL_JOB_BIT(ADAM) | MFL_JOB_BIT(ADAMW)},
        {"beta2", MFL_JOB_BIT(ADAM) | MFL_JOB_BIT(ADAMW)},
        {"eps", ~MFL_JOB_BIT(SGD)},
};

#define TOWARDS (MFL_JOB_BIT(MFL_SCHEDULE_LINEAR) | MFL_JOB_BIT(MFL_SCHEDULE_COSINE))
static const struct mfl_job_usage schedule_usage[] = {
        {"every", MFL_JOB_BIT(MFL_SCHEDULE_STEP)},
        {"factor", MFL_JOB_BIT(MFL_SCHEDULE_STEP)},
        {"over", TOWARDS},
        {"min", TOWARDS},
};

void mfl_job_training_defaults(struct mfl_job *job)
{
        job->training.batch = 32;
        job->training.accumulate = 1;
        job->training.threads = 1;
        job->training.focal_gamma = 2;
        job->training.huber_delta = job->training.smooth_l1_beta = 1;
        job->training.beta1 = 0.9f;
        job->training.beta2 = 0.999f;
        job->training.schedule.factor = 0.1;
        mfl_strcpy(job->training.backend, sizeof job->training.backend, "auto");
}

static int check_optimizer(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *training,
        struct mfl_job *job, struct mfl_error *err)
{
        int kind = job->training.optimizer;
        int r = mfl_job_check_usage(doc, training, optimizer_usage, MFL_ARRAY_SIZE(optimizer_usage),
                (unsigned)kind, optimizer_names[kind], err);
        if (r)
                return r;
        if (!mfl_job_find_key(training, "eps"))
                job->training.eps = kind == ADAGRAD ? 1e-10f : 1e-8f;
        if (kind == ADAMW && !mfl_job_find_key(training, "weight_decay"))
                job->training.weight_decay = 0.01f;
        if (job->training.nesterov && job->training.momentum == 0)
                return mfl_yaml_fail(doc, mfl_job_find_key(training, "nesterov"), err,
                        "needs momentum above 0, for example 0.9");
        return 0;
}

static int check_schedule(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *schedule,
        struct mfl_job *job, struct mfl_error *err)
{
        int kind = job->training.schedule.kind;
        bool per_round = job->training.schedule.per == MFL_SCHEDULE_PER_ROUND;
        uint32_t warmup = job->training.schedule.warmup;
        int r = mfl_job_check_usage(doc, schedule, schedule_usage, MFL_ARRAY_SIZE(schedule_usage),
                (unsigned)kind, schedule_names[kind], err);
        if (r)
                return r;
        if (kind == MFL_SCHEDULE_STEP && !job->training.schedule.every)
                return mfl_yaml_fail(doc, schedule, err,
                        "step needs every, the number of %ss after which the rate is multiplied by factor",
                        unit_names[job->training.schedule.per]);
        uint32_t over = job->training.schedule.over ? job->training.schedule.over
                        : per_round                 ? job->rounds
                                                    : job->training.steps;
        /* The number of steps in an epoch differs from client to client. */
        if ((MFL_JOB_BIT(kind) & TOWARDS) && over && warmup >= over)
                return mfl_yaml_fail(doc, mfl_job_find_key(schedule, "warmup"), err,
                        "%u is not less than the %u %ss of the whole schedule", warmup, over,
                        unit_names[job->training.schedule.per]);
        return 0;
}

#define ONLY(symbol) MFL_JOB_BIT(MFL_LOSS_##symbol)
static const struct mfl_job_usage loss_usage[] = {
        {"label_smoothing", ONLY(CROSS_ENTROPY)},
        {"class_weights", ONLY(CROSS_ENTROPY) | ONLY(FOCAL)},
        {"pos_weight", ONLY(BINARY)},
        {"ignore_index", ONLY(CROSS_ENTROPY) | ONLY(FOCAL)},
        {"focal_gamma", ONLY(FOCAL)},
        {"huber_delta", ONLY(HUBER)},
        {"smooth_l1_beta", ONLY(SMOOTH_L1)},
        {"auxiliary", ONLY(CROSS_ENTROPY) | ONLY(FOCAL)},
};

static int check_loss(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *training,
        const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_job_floats *weights = &job->training.class_weights;
        bool some = !weights->n;
        int r = mfl_job_check_usage(doc, training, loss_usage, MFL_ARRAY_SIZE(loss_usage),
                (unsigned)job->training.loss, loss_names[job->training.loss], err);
        for (uint32_t i = 0; i < weights->n; i++)
                some = some || weights->v[i] > 0;
        if (!r && !some && job->training.loss != MFL_LOSS_BINARY)
                return mfl_yaml_fail(doc, mfl_job_find_key(training, "class_weights"), err,
                        "all weights are 0: nothing would be trained");
        return r;
}

/* A program trains by its own config alone, so that nothing else says what it does. */
static int check_program(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *training,
        const struct mfl_job *job, struct mfl_error *err)
{
        const char *name = job->training.program;
        const struct mfl_yaml_node *config = mfl_job_find_key(training, "config");
        if (config && !*name)
                return mfl_yaml_fail(
                        doc, config, err, "is only used with program; add it, or write optimizer, lr, ...");
        if (!mfl_job_find_key(training, "program"))
                return mfl_job_find_key(training, "lr")
                               ? 0
                               : mfl_yaml_fail(doc, training, err, "key 'lr' is missing");
        if (!*name || strlen(name) >= MFL_PROGRAM_BYTES ||
                strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") !=
                        strlen(name))
                return mfl_yaml_fail(doc, mfl_job_find_key(training, "program"), err,
                        "expected the name of a program in the daemons' configuration: 1 to %d letters, "
                        "digits, '.', '_' and '-'; a job can't say what is run",
                        MFL_PROGRAM_BYTES - 1);
        for (const struct mfl_yaml_node *n = training->first; n; n = n->next)
                if (strcmp(n->key, "program") && n != config)
                        return mfl_yaml_fail(doc, n, err,
                                "the program %s does not read it; write it under training.config if the "
                                "program knows it, or remove it",
                                name);
        return 0;
}

int mfl_job_check_training(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *training = mfl_job_find_key(mfl_yaml_root(doc), "training");
        int r = check_program(doc, training, job, err);
        if (r)
                return r;
        if (job->training.epochs && job->training.steps)
                return mfl_yaml_fail(
                        doc, mfl_job_find_key(training, "steps"), err, "epochs is given too; keep one");
        if (!job->training.epochs && !job->training.steps)
                job->training.epochs = 1;
        const char *backend = job->training.backend, *precision = precision_names[job->training.precision];
        bool cpu = !strcmp(backend, "cpu"), bf16 = !strcmp(precision, "bf16");
        if (job->training.precision && (!strcmp(backend, "reference") || (cpu && !bf16)))
                return mfl_yaml_fail(doc, mfl_job_find_key(training, "precision"), err,
                        "backend %s computes in fp32%s; %s needs backend cuda%s", backend,
                        cpu ? " or bf16" : "", precision, !cpu && bf16 ? " or cpu" : "");
        if ((uint64_t)job->training.batch * job->training.accumulate > ROWS_MAX)
                return mfl_yaml_fail(doc, mfl_job_find_key(training, "accumulate"), err,
                        "%u batches of %u samples are more than %u samples per step",
                        job->training.accumulate, job->training.batch, ROWS_MAX);
        r = check_optimizer(doc, training, job, err);
        if (!r)
                r = check_schedule(doc, mfl_job_find_key(training, "schedule"), job, err);
        return r ? r : check_loss(doc, training, job, err);
}

/* ---- parallel: one client over several workers ---- */

static const char *const within_names[] = {"daemon", "node", "any", NULL};

/* A number of workers, or auto: 0. */
static int read_most(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 1, .max = MFL_MEMBERS_MAX};
        uint32_t *members = value;
        *members = 0;
        if (node->type == MFL_YAML_SCALAR && !strcmp(node->text, "auto"))
                return 0;
        return mfl_yaml_read_value(doc, node, &field, members, err);
}

#define PARALLEL_AT(kind, member) MFL_YAML_AT(kind, struct mfl_job, parallel.member)
static const struct mfl_yaml_field members_fields[] = {
        {.key = "min", PARALLEL_AT(U32, members_min), .min = 1, .max = MFL_MEMBERS_MAX, .required = true},
        {.key = "max",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, parallel.members),
                .read = read_most},
        {0}};

/* The most alone, or with the least: the value is the whole job. */
static int read_members(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_job *job = value;
        if (node->type != MFL_YAML_MAPPING)
                return read_most(doc, node, &job->parallel.members, err);
        return mfl_yaml_read(doc, node, members_fields, job, err);
}

/* A stage, or auto. */
static int read_zero(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .max = MFL_ZERO_MAX};
        int *zero = value;
        uint32_t stage;
        *zero = MFL_ZERO_AUTO;
        if (node->type == MFL_YAML_SCALAR && !strcmp(node->text, "auto"))
                return 0;
        int r = mfl_yaml_read_value(doc, node, &field, &stage, err);
        if (!r)
                *zero = (int)stage;
        return r;
}

const struct mfl_yaml_field mfl_job_parallel_fields[] = {
        {.key = "members", .kind = MFL_YAML_CALL, .read = read_members},
        {.key = "within", PARALLEL_AT(ENUM, within), .names = within_names},
        {.key = "grain", PARALLEL_AT(U32, grain), .min = 1, .max = 65536},
        {.key = "zero",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, parallel.zero),
                .read = read_zero},
        {.key = "exact", PARALLEL_AT(BOOL, exact)}, {.key = "overlap", PARALLEL_AT(BOOL, overlap)},
        {.key = "bucket", PARALLEL_AT(SIZE, bucket), .min = 65536, .max = (double)(1 << 30)},
        {.key = "snapshot", PARALLEL_AT(U32, snapshot), .max = 1000000}, {0}};

/* `auto` is said by members, and by no other key: the grain follows from the batch. */
int mfl_job_read_parallel(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_job *job = value;
        if (node->type != MFL_YAML_SCALAR)
                return mfl_yaml_read(doc, node, mfl_job_parallel_fields, job, err);
        if (strcmp(node->text, "auto"))
                return mfl_yaml_fail(doc, node, err, "takes keys, such as {grain: 8}, or auto");
        return 0;
}

/* The largest grain of which a step has four or more: finer ones cost more and serve few teams. 0: a step of one sample has none. */
static uint32_t auto_grain(const struct mfl_job *job)
{
        uint64_t batch = job->training.batch, rows = batch * job->training.accumulate;
        for (uint64_t grain = batch; grain; grain--)
                if (batch % grain == 0 && rows / grain >= MFL_MIN(4, rows))
                        return rows > 1 ? (uint32_t)grain : 0;
        return 0;
}

/* batch / 2^ceil(log2 members), so that each worker has one grain of a batch. */
static uint32_t default_grain(const struct mfl_job *job)
{
        uint32_t grain = job->training.batch;
        for (uint32_t workers = 1; workers < job->parallel.members && grain % 2 == 0; workers *= 2)
                grain /= 2;
        return grain;
}

static int check_values(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *parallel,
        struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *grain = mfl_job_find_key(parallel, "grain");
        bool open = parallel->type == MFL_YAML_SCALAR || mfl_job_find_key(parallel, "members");
        uint32_t batch = job->training.batch;
        if (!job->parallel.exact && job->parallel.zero == MFL_ZERO_AUTO)
                job->parallel.zero = MFL_ZERO_AUTO_FLOATS;
        if (!grain && !open)
                return mfl_yaml_fail(doc, parallel, err,
                        "needs grain, the samples of one gradient, which decides the result; for example %u, "
                        "a quarter of "
                        "training.batch",
                        MFL_MAX(batch / 4, 1u));
        if (!grain)
                job->parallel.grain = job->parallel.members ? default_grain(job) : auto_grain(job);
        if (!job->parallel.grain)
                return mfl_yaml_fail(
                        doc, parallel, err, "a step of one sample can't be shared out; remove parallel");
        if (job->parallel.grain > batch)
                return mfl_yaml_fail(doc, grain, err, "%u samples are more than training.batch, which is %u",
                        job->parallel.grain, batch);
        if (batch % job->parallel.grain)
                return mfl_yaml_fail(doc, grain, err, "training.batch, which is %u, is no multiple of %u",
                        batch, job->parallel.grain);
        return 0;
}

uint32_t mfl_job_grains(const struct mfl_job *job)
{
        uint32_t rows = job->training.batch * job->training.accumulate;
        return job->parallel.grain ? (rows + job->parallel.grain - 1) / job->parallel.grain : 1;
}

/* Whether teams of so many workers can be at all. */
static int check_least(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *parallel,
        const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *members = mfl_job_find_key(parallel, "members");
        uint32_t least = job->parallel.members_min, most = job->parallel.members,
                 grains = mfl_job_grains(job);
        if (least < 2)
                return 0;
        if (most && least > most)
                return mfl_yaml_fail(
                        doc, members, err, "min, which is %u, is more than max, which is %u", least, most);
        if (least > grains)
                return mfl_yaml_fail(doc, members, err,
                        "min is %u, but a step of %u samples has %u grains, and a worker needs one; write %u "
                        "at most, or a "
                        "smaller grain",
                        least, job->training.batch * job->training.accumulate, grains, grains);
        return 0;
}

int mfl_job_check_parallel(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *root = mfl_yaml_root(doc), *parallel = mfl_job_find_key(root, "parallel"),
                                   *training = mfl_job_find_key(root, "training");
        if (!parallel)
                return 0;
        int r = check_values(doc, parallel, job, err);
        if (!r)
                r = check_least(doc, parallel, job, err);
        if (r)
                return r;
        if (job->training.fuse > 1)
                return mfl_yaml_fail(doc, mfl_job_find_key(training, "fuse"), err,
                        "parallel trains one client at a time on each of its workers; leave fuse out, or "
                        "write 1");
        return 0;
}

bool mfl_job_has_accuracy(const struct mfl_job *job)
{
        return mfl_loss_decides(job->training.loss);
}

uint64_t mfl_job_epoch_steps(const struct mfl_job *job, uint32_t n)
{
        uint64_t rows = (uint64_t)job->training.batch * job->training.accumulate;
        uint32_t epoch = job->training.drop_last ? n - n % job->training.batch : n;
        return (epoch + rows - 1) / rows;
}

uint64_t mfl_job_steps(const struct mfl_job *job, uint32_t n)
{
        uint64_t epoch = mfl_job_epoch_steps(job, n);
        if (n && !epoch)
                return 0;
        return job->training.steps ? job->training.steps : epoch * job->training.epochs;
}
