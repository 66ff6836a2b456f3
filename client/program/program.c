/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon says to a program, and what it makes of the answers. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "client/program/internal.h"
#include "common/base/bounded.h"
#include "common/base/log.h"
#include "proto/program.pb-c.h"

#define UNPACKED_MAX (4u << 20) /* of an answer */
#define ALIGNMENT 64u           /* of the parts of a data set */

struct mfl_program {
        struct mfl_program_options options;
        struct program_process process;
        struct program_memory params, result, data; /* none before the first call */
        bool described;                             /* this process knows the job */
        bool evaluates;
        bool filled; /* params are those of the calls since the last without same_params */
};

/* ---- the data set ---- */

struct layout {
        uint64_t train, train_labels, test, test_labels, bytes;
};

static uint64_t labels_each(const struct mfl_dataset *data)
{
        return data->n_targets ? (uint64_t)data->n_targets : mfl_dataset_labels_per_sample(data);
}

static uint64_t place(uint64_t *bytes, uint64_t count)
{
        uint64_t at = *bytes;
        *bytes += (count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        return at;
}

static uint64_t samples_bytes(const struct mfl_dataset *data, const struct mfl_split *split)
{
        return split->n * (uint64_t)mfl_shape_count(&data->shape) * mfl_dtype_bytes(split->dtype);
}

static struct layout layout_of(const struct mfl_dataset *data)
{
        struct layout l = {0};
        uint64_t each = labels_each(data) * 4;
        l.train = place(&l.bytes, samples_bytes(data, &data->train));
        l.train_labels = place(&l.bytes, data->train.n * each);
        l.test = place(&l.bytes, samples_bytes(data, &data->test));
        l.test_labels = place(&l.bytes, data->test.n * each);
        return l;
}

uint64_t mfl_program_bytes(const struct mfl_graph *graph, const struct mfl_dataset *data)
{
        return 2 * graph->n * sizeof(float) + (data ? layout_of(data).bytes : 0);
}

static void copy_split(
        const struct mfl_dataset *data, const struct mfl_split *split, char *samples, char *labels)
{
        uint64_t each = labels_each(data) * 4;
        memcpy(samples, split->samples, samples_bytes(data, split));
        memcpy(labels, data->n_targets ? (const void *)split->targets : split->labels, split->n * each);
}

static int open_data(struct mfl_program *p, struct mfl_error *err)
{
        const struct mfl_dataset *data = p->options.data;
        if (!data || p->data.at)
                return 0;
        struct layout l = layout_of(data);
        int r = mfl_program_memory_open(&p->data, "mfl-data", MFL_MAX(l.bytes, 1u), false, err);
        if (r)
                return r;
        char *at = p->data.at;
        copy_split(data, &data->train, at + l.train, at + l.train_labels);
        copy_split(data, &data->test, at + l.test, at + l.test_labels);
        return 0;
}

static int open_memory(struct mfl_program *p, struct mfl_error *err)
{
        size_t bytes = p->options.graph->n * sizeof(float);
        int r = p->params.at ? 0 : mfl_program_memory_open(&p->params, "mfl-params", bytes, false, err);
        if (!r && !p->result.at)
                r = mfl_program_memory_open(&p->result, "mfl-result", bytes, true, err);
        return r ? r : open_data(p, err);
}

/* ---- describe ---- */

/* Everything that Describe points to. */
struct description {
        Mfl__Program__ToProgram envelope;
        Mfl__Program__Describe describe;
        Mfl__Program__Tensor *tensors, **pointers;
        uint64_t *dims;
        Mfl__Program__DataSet data;
        Mfl__Program__Split train, test;
        uint64_t data_dims[MFL_SHAPE_RANK_MAX];
};

static void describe_tensors(struct description *d, const struct mfl_graph *graph)
{
        for (int t = 0; t < graph->n_params; t++) {
                const struct mfl_param *param = &graph->params[t];
                Mfl__Program__Tensor *tensor = d->pointers[t] = &d->tensors[t];
                mfl__program__tensor__init(tensor);
                tensor->name = (char *)(uintptr_t)param->name;
                tensor->shape = d->dims + (size_t)t * MFL_SHAPE_RANK_MAX;
                tensor->n_shape = (size_t)param->shape.rank;
                for (int k = 0; k < param->shape.rank; k++)
                        tensor->shape[k] = (uint64_t)param->shape.dim[k];
                tensor->offset = param->offset;
                tensor->count = param->count;
        }
        d->describe.n_tensors = (size_t)graph->n_params;
        d->describe.tensors = d->pointers;
}

static void describe_data(struct description *d, const struct mfl_dataset *data)
{
        struct layout l = layout_of(data);
        size_t channels = data->shape.rank == 3 ? (size_t)data->shape.dim[0] : 1;
        mfl__program__data_set__init(&d->data);
        mfl__program__split__init(&d->train);
        mfl__program__split__init(&d->test);
        for (int k = 0; k < data->shape.rank; k++)
                d->data_dims[k] = (uint64_t)data->shape.dim[k];
        d->data.name = (char *)(uintptr_t)data->name;
        d->data.shape = d->data_dims;
        d->data.n_shape = (size_t)data->shape.rank;
        d->data.dtype = data->train.dtype == MFL_U8    ? MFL__PROGRAM__TYPE__TYPE_U8
                        : data->train.dtype == MFL_F32 ? MFL__PROGRAM__TYPE__TYPE_F32
                                                       : MFL__PROGRAM__TYPE__TYPE_I32;
        d->data.classes = (uint32_t)data->classes;
        d->data.labels_per_sample = mfl_dataset_labels_per_sample(data);
        d->data.n_targets = (uint32_t)data->n_targets;
        d->data.n_scale = d->data.n_shift = MFL_MIN(channels, (size_t)MFL_CHANNELS_MAX);
        d->data.scale = (float *)(uintptr_t)data->scale;
        d->data.shift = (float *)(uintptr_t)data->shift;
        d->train.n = data->train.n;
        d->train.samples = l.train;
        d->train.labels = l.train_labels;
        d->test.n = data->test.n;
        d->test.samples = l.test;
        d->test.labels = l.test_labels;
        d->data.train = &d->train;
        d->data.test = &d->test;
        d->data.bytes = l.bytes;
        d->describe.data = &d->data;
}

static int send_message(struct mfl_program *p, const Mfl__Program__ToProgram *message, const int *fds,
        int n_fds, const struct program_wait *wait, struct mfl_error *err)
{
        size_t n = mfl__program__to_program__get_packed_size(message);
        if (n > PROGRAM_MESSAGE_MAX)
                return mfl_fail(err, MFL_PROGRAM_FAILED,
                        "the message for it has %zu bytes, and at most %u go", n, PROGRAM_MESSAGE_MAX);
        MFL_CLEANUP_FREE uint8_t *bytes = mfl_malloc(n);
        if (!bytes)
                return mfl_fail_memory(err, n, "a message for a program");
        mfl__program__to_program__pack(message, bytes);
        return mfl_program_send(&p->process, bytes, n, fds, n_fds, wait, err);
}

/* The caller frees it with mfl__program__from_program__free_unpacked. */
static int receive_message(struct mfl_program *p, const struct program_wait *wait,
        Mfl__Program__FromProgram **ret_message, struct mfl_error *err)
{
        struct mfl_bounded bound = {.left = UNPACKED_MAX};
        ProtobufCAllocator allocator = {mfl_bounded_alloc, mfl_bounded_free, &bound};
        MFL_CLEANUP_FREE void *bytes = NULL;
        size_t n;
        int r = mfl_program_receive(&p->process, wait, &bytes, &n, err);
        if (r)
                return r;
        *ret_message = mfl__program__from_program__unpack(&allocator, n, bytes);
        if (!*ret_message)
                return bound.out_of_memory ? mfl_fail_memory(err, n, "a program's answer")
                                           : mfl_fail(err, MFL_PROGRAM_FAILED,
                                                     "its answer is no message of program.proto");
        return 0;
}

static void free_message(Mfl__Program__FromProgram *message)
{
        ProtobufCAllocator allocator = {mfl_bounded_alloc, mfl_bounded_free, NULL};
        if (message)
                mfl__program__from_program__free_unpacked(message, &allocator);
}

static int take_described(struct mfl_program *p, const struct program_wait *wait, struct mfl_error *err)
{
        Mfl__Program__FromProgram *message = NULL;
        int r = receive_message(p, wait, &message, err);
        if (!r && message->body_case == MFL__PROGRAM__FROM_PROGRAM__BODY_FAILED)
                r = mfl_fail(err, MFL_PROGRAM_FAILED, "it refuses the job: %.300s", message->failed->reason);
        else if (!r && message->body_case != MFL__PROGRAM__FROM_PROGRAM__BODY_DESCRIBED)
                r = mfl_fail(err, MFL_PROGRAM_FAILED, "it answers Describe with another message");
        if (!r) {
                p->described = true;
                p->evaluates = message->described->evaluates;
                mfl_log_job(MFL_LOG_INFO, p->options.job, "%s: the program %s is ready%s%.100s",
                        p->options.job, p->options.config->name, *message->described->program ? ": " : "",
                        message->described->program);
        }
        free_message(message);
        return r;
}

static int describe(struct mfl_program *p, const struct program_wait *wait, struct mfl_error *err)
{
        const struct mfl_graph *graph = p->options.graph;
        size_t n = (size_t)graph->n_params;
        int fds[3] = {p->params.fd, p->result.fd, p->data.fd};
        MFL_CLEANUP_FREE Mfl__Program__Tensor *tensors = mfl_calloc(n, sizeof(*tensors));
        MFL_CLEANUP_FREE Mfl__Program__Tensor **pointers = mfl_calloc(n, sizeof(*pointers));
        MFL_CLEANUP_FREE uint64_t *dims = mfl_calloc(n * MFL_SHAPE_RANK_MAX, sizeof(*dims));
        if (!tensors || !pointers || !dims)
                return mfl_fail_memory(err, n * sizeof(*tensors), "a program's tensors");
        struct description d = {.tensors = tensors, .pointers = pointers, .dims = dims};
        mfl__program__to_program__init(&d.envelope);
        mfl__program__describe__init(&d.describe);
        d.envelope.body_case = MFL__PROGRAM__TO_PROGRAM__BODY_DESCRIBE;
        d.envelope.describe = &d.describe;
        d.describe.job = (char *)(uintptr_t)p->options.job;
        const char *config = p->options.spec->training.config;
        d.describe.config = (char *)(uintptr_t)(config ? config : "{}");
        d.describe.n = graph->n;
        d.describe.samples_max = p->options.data ? 0 : p->options.config->samples_max;
        d.describe.seed = p->options.spec->seed;
        d.describe.clients = p->options.spec->data.clients;
        describe_tensors(&d, graph);
        if (p->options.data)
                describe_data(&d, p->options.data);
        int r = send_message(p, &d.envelope, fds, p->options.data ? 3 : 2, wait, err);
        return r ? r : take_described(p, wait, err);
}

/* ---- calls ---- */

static int ask(struct mfl_program *p, const struct mfl_program_call *call, const struct program_wait *wait,
        struct mfl_error *err)
{
        Mfl__Program__ToProgram envelope = MFL__PROGRAM__TO_PROGRAM__INIT;
        Mfl__Program__Train train = MFL__PROGRAM__TRAIN__INIT;
        Mfl__Program__Evaluate evaluate = MFL__PROGRAM__EVALUATE__INIT;
        if (call->evaluates) {
                envelope.body_case = MFL__PROGRAM__TO_PROGRAM__BODY_EVALUATE;
                envelope.evaluate = &evaluate;
                evaluate.item = call->item;
                evaluate.round = call->round;
                evaluate.samples = (uint32_t *)(uintptr_t)call->samples;
                evaluate.n_samples = call->samples ? call->n_samples : 0;
        } else {
                envelope.body_case = MFL__PROGRAM__TO_PROGRAM__BODY_TRAIN;
                envelope.train = &train;
                train.client = call->item;
                train.round = call->round;
                train.seed = call->seed;
                train.samples = (uint32_t *)(uintptr_t)call->samples;
                train.n_samples = call->samples ? call->n_samples : 0;
        }
        if (!p->filled)
                memcpy(p->params.at, call->params, p->params.bytes);
        p->filled = true;
        return send_message(p, &envelope, NULL, 0, wait, err);
}

static int check_answer(const struct mfl_program *p, const struct mfl_program_call *call,
        const struct mfl_program_answer *answer, struct mfl_error *err)
{
        uint64_t n = answer->samples, most = p->options.config->samples_max;
        if (p->options.data && n != call->n_samples)
                return mfl_fail(err, MFL_PROGRAM_FAILED, "it counts %llu samples, and was given %u",
                        (unsigned long long)n, call->n_samples);
        if (!p->options.data && ((!n && !call->evaluates) || n > most))
                return mfl_fail(err, MFL_PROGRAM_FAILED,
                        "it counts %llu samples, and 1 to %llu are allowed (samples_max in client.yaml)",
                        (unsigned long long)n, (unsigned long long)most);
        if (answer->correct > n)
                return mfl_fail(err, MFL_PROGRAM_FAILED, "%llu of its %llu samples are correct",
                        (unsigned long long)answer->correct, (unsigned long long)n);
        if (!(answer->loss >= 0 && isfinite(answer->loss)))
                return mfl_fail(err, MFL_PROGRAM_FAILED,
                        "its loss is %g; expected a number that is not negative", answer->loss);
        return 0;
}

static void log_metrics(const struct mfl_program *p, const struct mfl_program_call *call,
        Mfl__Program__Metric *const *metrics, size_t n)
{
        for (size_t i = 0; i < n && i < 16; i++)
                mfl_log_job(MFL_LOG_INFO, p->options.job, "%s: round %u, %s %llu: %.60s %g", p->options.job,
                        call->round, call->evaluates ? "evaluation of" : "client",
                        (unsigned long long)call->item, metrics[i]->name, metrics[i]->value);
}

static int take_answer(struct mfl_program *p, const struct mfl_program_call *call,
        const Mfl__Program__FromProgram *message, struct mfl_program_answer *answer, struct mfl_error *err)
{
        *answer = (struct mfl_program_answer){.result = p->result.at};
        if (message->body_case == MFL__PROGRAM__FROM_PROGRAM__BODY_TRAINED && !call->evaluates) {
                const Mfl__Program__Trained *t = message->trained;
                answer->samples = t->samples;
                answer->correct = t->correct;
                answer->loss = t->loss;
                answer->delta = t->delta;
                log_metrics(p, call, t->metrics, t->n_metrics);
        } else if (message->body_case == MFL__PROGRAM__FROM_PROGRAM__BODY_EVALUATED && call->evaluates) {
                const Mfl__Program__Evaluated *e = message->evaluated;
                answer->samples = e->samples;
                answer->correct = e->correct;
                answer->loss = e->loss;
                log_metrics(p, call, e->metrics, e->n_metrics);
        } else
                return mfl_fail(err, MFL_PROGRAM_FAILED, "it answers %s with another message",
                        call->evaluates ? "Evaluate" : "Train");
        return check_answer(p, call, answer, err);
}

/* *ret_own: the program itself says that it can't, and may go on. */
static int try_call(struct mfl_program *p, const struct mfl_program_call *call,
        const struct program_wait *wait, struct mfl_program_answer *answer, bool *ret_own,
        struct mfl_error *err)
{
        Mfl__Program__FromProgram *message = NULL;
        int r = p->process.pid ? 0 : mfl_program_start(&p->process, &p->options, err);
        if (!r && !p->described)
                r = describe(p, wait, err);
        if (r)
                return r;
        if (call->evaluates && !p->evaluates) {
                *ret_own = true;
                return mfl_fail(err, MFL_PROGRAM_FAILED,
                        "it does not evaluate: write evaluation: {every: 0} in the job");
        }
        r = ask(p, call, wait, err);
        if (!r)
                r = receive_message(p, wait, &message, err);
        if (!r && message->body_case == MFL__PROGRAM__FROM_PROGRAM__BODY_FAILED) {
                *ret_own = true;
                r = mfl_fail(err, MFL_PROGRAM_FAILED, "it says: %.300s", message->failed->reason);
        } else if (!r)
                r = take_answer(p, call, message, answer, err);
        free_message(message);
        return r;
}

int mfl_program_call(struct mfl_program *program, const struct mfl_program_call *call,
        struct mfl_program_answer *ret_answer, struct mfl_error *err)
{
        const struct mfl_program_config *config = program->options.config;
        struct program_wait wait = {
                .until_ms = mfl_now_ms() + config->timeout_ms, .stopped = call->stopped, .user = call->user};
        struct mfl_error why = {{0}};
        char how[96] = "";
        bool own = false;
        int r = open_memory(program, &why);
        if (!call->same_params) /* also if this call fails before it has filled them */
                program->filled = false;
        /* Somebody may have killed it: it gets a second chance. */
        for (int turn = 0; !turn || (turn < 2 && *how); turn++) {
                if (!r || r == MFL_PROGRAM_FAILED)
                        r = try_call(program, call, &wait, ret_answer, &own, &why);
                if (!r)
                        return 0;
                if (own)
                        break;
                mfl_program_kill(&program->process, how, sizeof(how));
                program->described = false;
        }
        if (r != MFL_PROGRAM_FAILED)
                return mfl_fail(err, r, "%s", why.text);
        return mfl_program_fail(
                &program->process, err, "program %s: %.200s", config->name, *how ? how : why.text);
}

void mfl_program_blame(struct mfl_program *program, const char *why, struct mfl_error *ret_text)
{
        mfl_program_fail(
                &program->process, ret_text, "program %s: %.120s", program->options.config->name, why);
}

int mfl_program_new(
        const struct mfl_program_options *options, struct mfl_program **ret_program, struct mfl_error *err)
{
        struct mfl_program *program = mfl_calloc(1, sizeof(*program));
        if (!program)
                return mfl_fail_memory(err, sizeof(*program), "a program");
        program->options = *options;
        program->params.fd = program->result.fd = program->data.fd = -1;
        program->process = (struct program_process){.socket = -1, .output = -1, .life = -1};
        *ret_program = program;
        return 0;
}

void mfl_program_free(struct mfl_program *program)
{
        char how[96];
        if (!program)
                return;
        mfl_program_kill(&program->process, how, sizeof(how));
        mfl_program_memory_close(&program->params);
        mfl_program_memory_close(&program->result);
        mfl_program_memory_close(&program->data);
        free(program);
}
