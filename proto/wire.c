/* SPDX-License-Identifier: Apache-2.0 */
/* Packing and unpacking envelopes, and the way between them and struct mfl_msg. */
#include "proto/wire.h"

#include "proto/frame.h"
#include "proto/wire_internal.h"

/* protobuf-c turns 10 MiB of empty messages into 440 MiB and has no limit of its own, so what it may allocate
 * for one envelope is bounded by the bytes received. */
#define BUDGET_FACTOR 8
#define BUDGET_BASE (64 * 1024)
#define BUDGET_MAX (16 * 1024 * 1024)
#define REACH_REASON_BYTES 201

struct budget {
        size_t left;
        bool spent, out_of_memory;
};

/* Before each allocation: its size. Aligned as malloc's results are. */
struct prefix {
        _Alignas(max_align_t) size_t size;
};

static void *budget_alloc(void *data, size_t size)
{
        struct budget *b = data;
        if (size > BUDGET_MAX || size + sizeof(struct prefix) > b->left) {
                b->spent = true;
                return NULL;
        }
        struct prefix *p = mfl_malloc(sizeof *p + size);
        if (!p) {
                b->out_of_memory = true;
                return NULL;
        }
        b->left -= sizeof *p + size;
        p->size = size;
        return p + 1;
}

static void budget_free(void *data, void *ptr)
{
        if (ptr)
                free((struct prefix *)ptr - 1);
}

size_t mfl_wire_alloc_size(const void *p)
{
        return ((const struct prefix *)p - 1)->size;
}

int mfl_wire_unpack(const void *bytes, size_t n, Mfl__Envelope **ret_envelope, struct mfl_error *err)
{
        if (n > MFL_ENVELOPE_MAX)
                return mfl_fail(
                        err, MFL_INVALID, "envelope: %zu bytes, expected at most %d", n, MFL_ENVELOPE_MAX);
        struct budget budget = {.left = MFL_MIN(n * BUDGET_FACTOR + BUDGET_BASE, (size_t)BUDGET_MAX)};
        ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
        Mfl__Envelope *envelope = mfl__envelope__unpack(&allocator, n, bytes);
        if (!envelope) {
                if (budget.out_of_memory)
                        return mfl_fail_memory(err, n, "an envelope");
                return mfl_fail(err, MFL_INVALID, "envelope: %s",
                        budget.spent ? "needs too much memory for its size" : "not a protobuf message");
        }
        int r = mfl_wire_check(envelope, true, err);
        if (r) {
                mfl_wire_free(envelope);
                return r;
        }
        *ret_envelope = envelope;
        return 0;
}

void mfl_wire_free(Mfl__Envelope *envelope)
{
        ProtobufCAllocator allocator = {budget_alloc, budget_free, NULL};
        if (envelope)
                mfl__envelope__free_unpacked(envelope, &allocator);
}

int mfl_wire_pack(const Mfl__Envelope *envelope, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        int r = mfl_wire_check(envelope, false, err);
        if (r)
                return r;
        size_t n = mfl__envelope__get_packed_size(envelope);
        if (n > MFL_ENVELOPE_MAX)
                return mfl_fail(
                        err, MFL_INVALID, "envelope: %zu bytes, expected at most %d", n, MFL_ENVELOPE_MAX);
        uint8_t *bytes = mfl_malloc(n);
        if (!bytes)
                return mfl_fail_memory(err, n, "an envelope");
        *ret_n = mfl__envelope__pack(envelope, bytes);
        *ret_bytes = bytes;
        return 0;
}

bool mfl_wire_has_payload(const Mfl__Envelope *envelope)
{
        return envelope->body_case == MFL__ENVELOPE__BODY_PARAMS ||
               envelope->body_case == MFL__ENVELOPE__BODY_CHUNK ||
               envelope->body_case == MFL__ENVELOPE__BODY_INITIAL;
}

/* Copies what fits into bytes including the NUL, and cuts between characters. */
static void copy_text(char *dst, size_t bytes, const char *src)
{
        if (mfl_strcpy(dst, bytes, src))
                return;
        size_t n = bytes - 1;
        while (n && ((uint8_t)src[n] & 0xc0) == 0x80)
                n--;
        dst[n] = '\0';
}
#define COPY(dst, src) copy_text(dst, sizeof(dst), src)

static int hello_to_msg(const Mfl__Hello *h, struct mfl_msg *m)
{
        struct mfl_data_info *sets = mfl_calloc(h->n_data_sets, sizeof *sets);
        if (!sets)
                return -ENOMEM;
        for (size_t i = 0; i < h->n_data_sets; i++) {
                const Mfl__DataSet *s = h->data_sets[i];
                COPY(sets[i].name, s->name);
                sets[i].shape.rank = (int)s->n_shape;
                for (size_t d = 0; d < s->n_shape; d++)
                        sets[i].shape.dim[d] = s->shape[d];
                sets[i].classes = s->classes;
                sets[i].train_samples = s->train_samples;
                sets[i].test_samples = s->test_samples;
                sets[i].fingerprint = s->fingerprint;
        }
        COPY(m->hello.name, h->name);
        COPY(m->hello.node, h->node);
        COPY(m->hello.backend, h->backend);
        COPY(m->hello.device, h->device);
        COPY(m->hello.software, h->software);
        COPY(m->hello.device_uuid, h->device_uuid);
        COPY(m->hello.device_pci, h->device_pci);
        m->hello.device_memory = h->device_memory;
        m->hello.instance = h->instance;
        m->hello.workers = h->workers;
        m->hello.n_data_sets = (uint32_t)h->n_data_sets;
        m->hello.data_sets = sets;
        if (h->reach) {
                m->hello.has_reach = true;
                m->hello.reach = (struct mfl_reach){.user = h->reach->user,
                        .nccl = h->reach->nccl,
                        .network_space = h->reach->network_space,
                        .memory_space = h->reach->memory_space};
                COPY(m->hello.reach.memory_reason, h->reach->memory_reason);
                COPY(m->hello.reach.nccl_reason, h->reach->nccl_reason);
        }
        return 0;
}

/* The check has bounded n_members. */
static void group_to_msg(const Mfl__Group *g, struct mfl_group *ret_group)
{
        *ret_group = (struct mfl_group){.group = g->group,
                .collective = (enum mfl_collective_kind)g->collective,
                .rank = g->rank,
                .n_members = (uint32_t)g->n_members,
                .workers = g->workers,
                .communicator = g->communicator};
        memcpy(ret_group->members, g->members, g->n_members * sizeof *g->members);
}

static int task_to_msg(const Mfl__Task *t, struct mfl_msg *m)
{
        uint64_t *items = mfl_calloc(t->n_items, sizeof *items);
        if (!items)
                return -ENOMEM;
        memcpy(items, t->items, t->n_items * sizeof *items);
        m->task = (struct mfl_task){
                .task = t->task,
                .round = t->round,
                .kind = (enum mfl_task_kind)t->kind,
                .n_items = (uint32_t)t->n_items,
                .items = items,
                .n_params = t->n_params,
                .fixed = {.scale_bits = t->scale_bits,
                        .delta_max = t->delta_max,
                        .weight_max = t->weight_max},
                .single_updates = t->single_updates,
                .fingerprint = t->fingerprint,
                .params_from = t->params_from,
        };
        if (t->group)
                group_to_msg(t->group, &m->task.group);
        COPY(m->task.job, t->job);
        memcpy(m->task.params_digest, t->params_digest.data, MFL_DIGEST_BYTES);
        return 0;
}

static int announce_to_msg(const Mfl__Announce *a, struct mfl_msg *m)
{
        struct mfl_rejected *rejected = mfl_calloc(a->n_rejected, sizeof *rejected);
        if (!rejected)
                return -ENOMEM;
        for (size_t i = 0; i < a->n_rejected; i++) {
                rejected[i].item = a->rejected[i]->item;
                COPY(rejected[i].reason, a->rejected[i]->reason);
        }
        m->announce = (struct mfl_announce){
                .task = a->task,
                .update = a->update,
                .item_first = a->item_first,
                .item_count = a->item_count,
                .n_rejected = (uint32_t)a->n_rejected,
                .rejected = rejected,
                .encoding = (enum mfl_encoding)a->encoding,
                .bytes = a->bytes,
                .weight = a->weight,
                .samples = a->samples,
                .correct = a->correct,
                .train_us = a->train_us,
                .loss_sum = a->loss_sum,
                .round = a->round,
                .group = a->group,
        };
        COPY(m->announce.job, a->job);
        return 0;
}

static int grant_to_msg(const Mfl__Grant *g, struct mfl_msg *m)
{
        struct mfl_range *ranges = mfl_calloc(g->n_ranges, sizeof *ranges);
        if (!ranges)
                return -ENOMEM;
        for (size_t i = 0; i < g->n_ranges; i++)
                ranges[i] = (struct mfl_range){g->ranges[i]->offset, g->ranges[i]->bytes};
        m->update.task = g->task;
        m->update.update = g->update;
        m->update.n_ranges = (uint32_t)g->n_ranges;
        m->update.ranges = ranges;
        return 0;
}

static int eval_to_msg(const Mfl__EvalResult *e, struct mfl_msg *m)
{
        struct mfl_eval_item *items = mfl_calloc(e->n_items, sizeof *items);
        if (!items)
                return -ENOMEM;
        for (size_t i = 0; i < e->n_items; i++)
                items[i] = (struct mfl_eval_item){.item = e->items[i]->item,
                        .samples = e->items[i]->samples,
                        .correct = e->items[i]->correct,
                        .loss_sum = e->items[i]->loss_sum};
        m->eval.task = e->task;
        m->eval.n_items = (uint32_t)e->n_items;
        m->eval.items = items;
        return 0;
}

void mfl_wire_to_telemetry(const Mfl__Telemetry *wire, struct mfl_telemetry *ret_telemetry)
{
        struct mfl_telemetry t = {0};
        t.known = (wire->has_gpu_percent_case ? MFL_TELEMETRY_GPU : 0) |
                  (wire->has_memory_used_case ? MFL_TELEMETRY_MEMORY_USED : 0) |
                  (wire->has_memory_total_case ? MFL_TELEMETRY_MEMORY_TOTAL : 0) |
                  (wire->has_temperature_case ? MFL_TELEMETRY_TEMPERATURE : 0) |
                  (wire->has_power_case ? MFL_TELEMETRY_POWER : 0);
        t.gpu_percent = wire->has_gpu_percent_case ? wire->gpu_percent : 0;
        t.memory_used = wire->has_memory_used_case ? wire->memory_used : 0;
        t.memory_total = wire->has_memory_total_case ? wire->memory_total : 0;
        t.temperature_c = wire->has_temperature_case ? wire->temperature : 0;
        t.power_mw = wire->has_power_case ? wire->power_mw : 0;
        *ret_telemetry = t;
}

void mfl_wire_from_telemetry(const struct mfl_telemetry *t, Mfl__Telemetry *ret_wire)
{
        Mfl__Telemetry wire = MFL__TELEMETRY__INIT;
#define SET(bit, NAME, name, case_, value)                                                                   \
        if (t->known & (bit)) {                                                                              \
                wire.case_ = MFL__TELEMETRY__##NAME;                                                         \
                wire.name = (value);                                                                         \
        }
        SET(MFL_TELEMETRY_GPU, HAS_GPU_PERCENT_GPU_PERCENT, gpu_percent, has_gpu_percent_case, t->gpu_percent)
        SET(MFL_TELEMETRY_MEMORY_USED, HAS_MEMORY_USED_MEMORY_USED, memory_used, has_memory_used_case,
                t->memory_used)
        SET(MFL_TELEMETRY_MEMORY_TOTAL, HAS_MEMORY_TOTAL_MEMORY_TOTAL, memory_total, has_memory_total_case,
                t->memory_total)
        SET(MFL_TELEMETRY_TEMPERATURE, HAS_TEMPERATURE_TEMPERATURE, temperature, has_temperature_case,
                t->temperature_c)
        SET(MFL_TELEMETRY_POWER, HAS_POWER_POWER_MW, power_mw, has_power_case, t->power_mw)
#undef SET
        *ret_wire = wire;
}

static void params_to_msg(
        const char *job, const ProtobufCBinaryData *digest, uint64_t offset, struct mfl_msg *m)
{
        COPY(m->params.job, job);
        memcpy(m->params.digest, digest->data, MFL_DIGEST_BYTES);
        m->params.offset = offset;
}

static int group_message_to_msg(const Mfl__Envelope *e, struct mfl_msg *m)
{
        switch (m->kind) {
        case MFL_MSG_COMBINE:
                m->combine.group = e->combine->group;
                m->combine.ranks = e->combine->ranks;
                m->combine.leader = e->combine->leader;
                m->combine.deadline_ms = e->combine->deadline_ms;
                return 0;
        case MFL_MSG_COMBINE_FAILED:
                m->cancel.task = e->combine_failed->group;
                COPY(m->cancel.reason, e->combine_failed->reason);
                return 0;
        case MFL_MSG_ALONE:
                m->cancel.task = e->alone->task;
                COPY(m->cancel.reason, e->alone->reason);
                return 0;
        case MFL_MSG_COMMUNICATOR_ID:
                m->communicator.communicator = e->communicator_id->communicator;
                m->communicator.made = e->communicator_id->id.len > 0;
                if (m->communicator.made)
                        memcpy(m->communicator.id, e->communicator_id->id.data, MFL_COMMUNICATOR_ID_BYTES);
                COPY(m->communicator.reason, e->communicator_id->reason);
                return 0;
        default:
                return MFL_NOT_FOUND;
        }
}

/* The kinds that only need their fields copied. */
static int small_to_msg(const Mfl__Envelope *e, struct mfl_msg *m)
{
        switch (m->kind) {
        case MFL_MSG_WELCOME:
                m->welcome.heartbeat_ms = e->welcome->heartbeat_ms;
                m->welcome.dead_ms = e->welcome->dead_ms;
                m->welcome.server_instance = e->welcome->server_instance;
                return 0;
        case MFL_MSG_BYE:
                COPY(m->bye.reason, e->bye->reason);
                m->bye.retry = e->bye->retry;
                return 0;
        case MFL_MSG_PING:
                m->cookie = e->ping->cookie;
                return 0;
        case MFL_MSG_PONG:
                m->cookie = e->pong->cookie;
                return 0;
        case MFL_MSG_JOB_SPEC:
                COPY(m->job, e->job_spec->job);
                return 0;
        case MFL_MSG_CANCEL:
                m->cancel.task = e->cancel->task;
                COPY(m->cancel.reason, e->cancel->reason);
                return 0;
        case MFL_MSG_PARAMS_GET:
                params_to_msg(e->params_get->job, &e->params_get->digest, e->params_get->offset, m);
                return 0;
        case MFL_MSG_PARAMS_GONE:
                params_to_msg(e->params_gone->job, &e->params_gone->digest, 0, m);
                return 0;
        case MFL_MSG_ACCEPTED:
                m->update.task = e->accepted->task;
                m->update.update = e->accepted->update;
                return 0;
        case MFL_MSG_REFUSED:
                m->update.task = e->refused->task;
                m->update.update = e->refused->update;
                m->update.code = (enum mfl_refused)e->refused->code;
                COPY(m->update.reason, e->refused->reason);
                return 0;
        case MFL_MSG_TASK_FAILED:
                m->failed.task = e->task_failed->task;
                COPY(m->failed.reason, e->task_failed->reason);
                m->failed.permanent = e->task_failed->permanent;
                return 0;
        case MFL_MSG_PROGRESS:
                m->progress.task = e->progress->task;
                m->progress.items_done = e->progress->items_done;
                m->progress.samples_done = e->progress->samples_done;
                m->progress.loss_sum = e->progress->loss_sum;
                return 0;
        case MFL_MSG_TELEMETRY:
                mfl_wire_to_telemetry(e->telemetry, &m->telemetry);
                return 0;
        default:
                return group_message_to_msg(e, m);
        }
}

static enum mfl_msg_kind kind_of(const Mfl__Envelope *e)
{
        static const struct {
                Mfl__Envelope__BodyCase body;
                enum mfl_msg_kind kind;
        } kinds[] = {
                {MFL__ENVELOPE__BODY_HELLO, MFL_MSG_HELLO},
                {MFL__ENVELOPE__BODY_WELCOME, MFL_MSG_WELCOME},
                {MFL__ENVELOPE__BODY_BYE, MFL_MSG_BYE},
                {MFL__ENVELOPE__BODY_PING, MFL_MSG_PING},
                {MFL__ENVELOPE__BODY_PONG, MFL_MSG_PONG},
                {MFL__ENVELOPE__BODY_JOB_SPEC, MFL_MSG_JOB_SPEC},
                {MFL__ENVELOPE__BODY_TASK, MFL_MSG_TASK},
                {MFL__ENVELOPE__BODY_CANCEL, MFL_MSG_CANCEL},
                {MFL__ENVELOPE__BODY_PARAMS_GET, MFL_MSG_PARAMS_GET},
                {MFL__ENVELOPE__BODY_PARAMS_GONE, MFL_MSG_PARAMS_GONE},
                {MFL__ENVELOPE__BODY_ANNOUNCE, MFL_MSG_ANNOUNCE},
                {MFL__ENVELOPE__BODY_GRANT, MFL_MSG_GRANT},
                {MFL__ENVELOPE__BODY_ACCEPTED, MFL_MSG_ACCEPTED},
                {MFL__ENVELOPE__BODY_REFUSED, MFL_MSG_REFUSED},
                {MFL__ENVELOPE__BODY_EVAL_RESULT, MFL_MSG_EVAL_RESULT},
                {MFL__ENVELOPE__BODY_TASK_FAILED, MFL_MSG_TASK_FAILED},
                {MFL__ENVELOPE__BODY_PROGRESS, MFL_MSG_PROGRESS},
                {MFL__ENVELOPE__BODY_TELEMETRY, MFL_MSG_TELEMETRY},
                {MFL__ENVELOPE__BODY_COMBINE, MFL_MSG_COMBINE},
                {MFL__ENVELOPE__BODY_COMBINE_FAILED, MFL_MSG_COMBINE_FAILED},
                {MFL__ENVELOPE__BODY_ALONE, MFL_MSG_ALONE},
                {MFL__ENVELOPE__BODY_COMMUNICATOR_ID, MFL_MSG_COMMUNICATOR_ID},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(kinds); i++)
                if (kinds[i].body == e->body_case)
                        return kinds[i].kind;
        return MFL_MSG_NONE;
}

int mfl_wire_to_msg(const Mfl__Envelope *envelope, struct mfl_msg *ret_msg, struct mfl_error *err)
{
        struct mfl_msg m = {.kind = kind_of(envelope)};
        int r;
        switch (m.kind) {
        case MFL_MSG_HELLO:
                r = hello_to_msg(envelope->hello, &m);
                break;
        case MFL_MSG_TASK:
                r = task_to_msg(envelope->task, &m);
                break;
        case MFL_MSG_ANNOUNCE:
                r = announce_to_msg(envelope->announce, &m);
                break;
        case MFL_MSG_GRANT:
                r = grant_to_msg(envelope->grant, &m);
                break;
        case MFL_MSG_EVAL_RESULT:
                r = eval_to_msg(envelope->eval_result, &m);
                break;
        default:
                r = small_to_msg(envelope, &m);
        }
        if (r == -ENOMEM)
                return mfl_fail(err, r, "out of memory for %s", mfl_msg_name(m.kind));
        if (r)
                return mfl_fail(err, r, "not a message between server and daemons");
        *ret_msg = m;
        return 0;
}

/* What a packed message points to while it is packed: n pointers, then n structures. */
static void **pointers_new(size_t n, size_t item_bytes)
{
        void **list = mfl_calloc(n, sizeof(void *) + item_bytes);
        for (size_t i = 0; list && i < n; i++)
                list[i] = (char *)(list + n) + i * item_bytes;
        return list;
}

#define TEXT(s) ((char *)(uintptr_t)(s))
#define DIGEST(d) ((ProtobufCBinaryData){MFL_DIGEST_BYTES, (uint8_t *)(uintptr_t)(d)})

static int pack_hello(
        const struct mfl_daemon_info *h, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        struct set {
                Mfl__DataSet set;
                uint32_t shape[MFL_SHAPE_RANK_MAX];
        };
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Hello hello = MFL__HELLO__INIT;
        MFL_CLEANUP_FREE void **sets = pointers_new(h->n_data_sets, sizeof(struct set));
        if (!sets)
                return mfl_fail_memory(err, h->n_data_sets * sizeof(struct set), "Hello");
        for (uint32_t i = 0; i < h->n_data_sets; i++) {
                struct set *s = sets[i];
                const struct mfl_data_info *d = &h->data_sets[i];
                mfl_assert(d->shape.rank >= 0 && d->shape.rank <= MFL_SHAPE_RANK_MAX);
                mfl__data_set__init(&s->set);
                s->set.name = TEXT(d->name);
                s->set.n_shape = (size_t)d->shape.rank;
                s->set.shape = s->shape;
                /* A dimension that does not fit becomes 0, which the check refuses. */
                for (int k = 0; k < d->shape.rank; k++)
                        s->shape[k] = d->shape.dim[k] > 0 && d->shape.dim[k] <= UINT32_MAX
                                              ? (uint32_t)d->shape.dim[k]
                                              : 0;
                s->set.classes = d->classes;
                s->set.train_samples = d->train_samples;
                s->set.test_samples = d->test_samples;
                s->set.fingerprint = d->fingerprint;
        }
        hello.protocol_min = hello.protocol_max = MFL_PROTOCOL_VERSION;
        hello.role = MFL__ROLE__ROLE_DAEMON;
        hello.software = TEXT(h->software);
        hello.name = TEXT(h->name);
        hello.instance = h->instance;
        hello.node = TEXT(h->node);
        hello.backend = TEXT(h->backend);
        hello.device = TEXT(h->device);
        hello.workers = h->workers;
        hello.device_uuid = TEXT(h->device_uuid);
        hello.device_pci = TEXT(h->device_pci);
        hello.device_memory = h->device_memory;
        hello.n_data_sets = h->n_data_sets;
        hello.data_sets = (Mfl__DataSet **)sets;
        Mfl__Reach reach = MFL__REACH__INIT;
        char memory_reason[REACH_REASON_BYTES], nccl_reason[REACH_REASON_BYTES];
        copy_text(memory_reason, sizeof memory_reason, h->reach.memory_reason);
        copy_text(nccl_reason, sizeof nccl_reason, h->reach.nccl_reason);
        reach.user = h->reach.user;
        reach.nccl = h->reach.nccl;
        reach.network_space = h->reach.network_space;
        reach.memory_space = h->reach.memory_space;
        reach.memory_reason = memory_reason;
        reach.nccl_reason = nccl_reason;
        hello.reach = h->has_reach ? &reach : NULL;
        e.body_case = MFL__ENVELOPE__BODY_HELLO;
        e.hello = &hello;
        return mfl_wire_pack(&e, ret_bytes, ret_n, err);
}

static int pack_task(const struct mfl_task *t, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Task task = MFL__TASK__INIT;
        task.task = t->task;
        task.job = TEXT(t->job);
        task.round = t->round;
        task.kind = (Mfl__TaskKind)t->kind;
        task.n_items = t->n_items;
        task.items = t->items;
        task.params_digest = DIGEST(t->params_digest);
        task.n_params = t->n_params;
        task.scale_bits = t->fixed.scale_bits;
        task.delta_max = t->fixed.delta_max;
        task.weight_max = t->fixed.weight_max;
        task.single_updates = t->single_updates;
        task.fingerprint = t->fingerprint;
        task.params_from = t->params_from;
        Mfl__Group group = MFL__GROUP__INIT;
        group.group = t->group.group;
        group.collective = (Mfl__Collective)t->group.collective;
        group.rank = t->group.rank;
        group.n_members = t->group.n_members;
        group.members = (uint64_t *)(uintptr_t)t->group.members;
        group.workers = t->group.workers;
        group.communicator = t->group.communicator;
        task.group = t->group.group ? &group : NULL;
        e.body_case = MFL__ENVELOPE__BODY_TASK;
        e.task = &task;
        return mfl_wire_pack(&e, ret_bytes, ret_n, err);
}

/* How long a reason may be when n are to fit into three quarters of an envelope. */
static size_t reason_room(uint32_t n)
{
        size_t each = n ? (size_t)MFL_ENVELOPE_MAX * 3 / 4 / n : MFL_REASON_BYTES;
        return each <= 17 ? 1 : MFL_MIN(each - 16, (size_t)MFL_REASON_BYTES);
}

static int pack_announce(
        const struct mfl_announce *a, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        struct rejected {
                Mfl__Rejected rejected;
                char reason[MFL_REASON_BYTES];
        };
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Announce announce = MFL__ANNOUNCE__INIT;
        size_t room = reason_room(a->n_rejected);
        MFL_CLEANUP_FREE void **rejected = pointers_new(a->n_rejected, sizeof(struct rejected));
        if (!rejected)
                return mfl_fail_memory(err, a->n_rejected * sizeof(struct rejected), "Announce");
        for (uint32_t i = 0; i < a->n_rejected; i++) {
                struct rejected *r = rejected[i];
                mfl__rejected__init(&r->rejected);
                copy_text(r->reason, room, a->rejected[i].reason);
                r->rejected.item = a->rejected[i].item;
                r->rejected.reason = r->reason;
        }
        announce.task = a->task;
        announce.update = a->update;
        announce.item_first = a->item_first;
        announce.item_count = a->item_count;
        announce.n_rejected = a->n_rejected;
        announce.rejected = (Mfl__Rejected **)rejected;
        announce.encoding = (Mfl__Encoding)a->encoding;
        announce.bytes = a->bytes;
        announce.weight = a->weight;
        announce.samples = a->samples;
        announce.loss_sum = a->loss_sum;
        announce.correct = a->correct;
        announce.train_us = a->train_us;
        announce.job = TEXT(a->job);
        announce.round = a->round;
        announce.group = a->group;
        e.body_case = MFL__ENVELOPE__BODY_ANNOUNCE;
        e.announce = &announce;
        return mfl_wire_pack(&e, ret_bytes, ret_n, err);
}

static int pack_grant(const struct mfl_msg *m, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Grant grant = MFL__GRANT__INIT;
        MFL_CLEANUP_FREE void **ranges = pointers_new(m->update.n_ranges, sizeof(Mfl__Range));
        if (!ranges)
                return mfl_fail_memory(err, m->update.n_ranges * sizeof(Mfl__Range), "Grant");
        for (uint32_t i = 0; i < m->update.n_ranges; i++) {
                Mfl__Range *r = ranges[i];
                mfl__range__init(r);
                r->offset = m->update.ranges[i].offset;
                r->bytes = m->update.ranges[i].bytes;
        }
        grant.task = m->update.task;
        grant.update = m->update.update;
        grant.n_ranges = m->update.n_ranges;
        grant.ranges = (Mfl__Range **)ranges;
        e.body_case = MFL__ENVELOPE__BODY_GRANT;
        e.grant = &grant;
        return mfl_wire_pack(&e, ret_bytes, ret_n, err);
}

static int pack_eval(const struct mfl_msg *m, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__EvalResult eval = MFL__EVAL_RESULT__INIT;
        MFL_CLEANUP_FREE void **items = pointers_new(m->eval.n_items, sizeof(Mfl__EvalItem));
        if (!items)
                return mfl_fail_memory(err, m->eval.n_items * sizeof(Mfl__EvalItem), "EvalResult");
        for (uint32_t i = 0; i < m->eval.n_items; i++) {
                Mfl__EvalItem *item = items[i];
                mfl__eval_item__init(item);
                item->item = m->eval.items[i].item;
                item->samples = m->eval.items[i].samples;
                item->loss_sum = m->eval.items[i].loss_sum;
                item->correct = m->eval.items[i].correct;
        }
        eval.task = m->eval.task;
        eval.n_items = m->eval.n_items;
        eval.items = (Mfl__EvalItem **)items;
        e.body_case = MFL__ENVELOPE__BODY_EVAL_RESULT;
        e.eval_result = &eval;
        return mfl_wire_pack(&e, ret_bytes, ret_n, err);
}

static int pack_telemetry(
        const struct mfl_telemetry *t, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Telemetry telemetry;
        mfl_wire_from_telemetry(t, &telemetry);
        e.body_case = MFL__ENVELOPE__BODY_TELEMETRY;
        e.telemetry = &telemetry;
        return mfl_wire_pack(&e, ret_bytes, ret_n, err);
}

/* One case of a message without arrays: SMALL(kind, member, MEMBER, fields...) */
#define SMALL(kind_, Type, TYPE, member, ...)                                                                \
        case kind_: {                                                                                        \
                Mfl__##Type body = {PROTOBUF_C_MESSAGE_INIT(&mfl__##member##__descriptor), __VA_ARGS__};     \
                e.body_case = MFL__ENVELOPE__BODY_##TYPE;                                                    \
                e.member = &body;                                                                            \
                return mfl_wire_pack(&e, ret_bytes, ret_n, err);                                             \
        }

int mfl_wire_pack_msg(const struct mfl_msg *m, const char *job_text, uint8_t **ret_bytes, size_t *ret_n,
        struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        switch (m->kind) {
        case MFL_MSG_HELLO:
                return pack_hello(&m->hello, ret_bytes, ret_n, err);
        case MFL_MSG_TASK:
                return pack_task(&m->task, ret_bytes, ret_n, err);
        case MFL_MSG_ANNOUNCE:
                return pack_announce(&m->announce, ret_bytes, ret_n, err);
        case MFL_MSG_GRANT:
                return pack_grant(m, ret_bytes, ret_n, err);
        case MFL_MSG_EVAL_RESULT:
                return pack_eval(m, ret_bytes, ret_n, err);
        case MFL_MSG_TELEMETRY:
                return pack_telemetry(&m->telemetry, ret_bytes, ret_n, err);
                SMALL(MFL_MSG_WELCOME, Welcome, WELCOME, welcome, MFL_PROTOCOL_VERSION,
                        TEXT("mfl-server " MFL_VERSION), m->welcome.heartbeat_ms, m->welcome.dead_ms,
                        m->welcome.server_instance)
                SMALL(MFL_MSG_BYE, Bye, BYE, bye, TEXT(m->bye.reason), m->bye.retry)
                SMALL(MFL_MSG_PING, Ping, PING, ping, m->cookie)
                SMALL(MFL_MSG_PONG, Pong, PONG, pong, m->cookie)
                SMALL(MFL_MSG_JOB_SPEC, JobSpec, JOB_SPEC, job_spec, TEXT(m->job),
                        TEXT(job_text ? job_text : ""))
                SMALL(MFL_MSG_CANCEL, Cancel, CANCEL, cancel, m->cancel.task, TEXT(m->cancel.reason))
                SMALL(MFL_MSG_PARAMS_GET, ParamsGet, PARAMS_GET, params_get, TEXT(m->params.job),
                        DIGEST(m->params.digest), m->params.offset)
                SMALL(MFL_MSG_PARAMS_GONE, ParamsGone, PARAMS_GONE, params_gone, TEXT(m->params.job),
                        DIGEST(m->params.digest))
                SMALL(MFL_MSG_ACCEPTED, Accepted, ACCEPTED, accepted, m->update.task, m->update.update)
                SMALL(MFL_MSG_REFUSED, Refused, REFUSED, refused, m->update.task, m->update.update,
                        (Mfl__RefusedCode)m->update.code, TEXT(m->update.reason))
                SMALL(MFL_MSG_TASK_FAILED, TaskFailed, TASK_FAILED, task_failed, m->failed.task,
                        TEXT(m->failed.reason), m->failed.permanent)
                SMALL(MFL_MSG_PROGRESS, Progress, PROGRESS, progress, m->progress.task,
                        m->progress.items_done, m->progress.samples_done, m->progress.loss_sum)
                SMALL(MFL_MSG_COMBINE, Combine, COMBINE, combine, m->combine.group, m->combine.ranks,
                        m->combine.leader, m->combine.deadline_ms)
                SMALL(MFL_MSG_COMBINE_FAILED, CombineFailed, COMBINE_FAILED, combine_failed, m->cancel.task,
                        TEXT(m->cancel.reason))
                SMALL(MFL_MSG_ALONE, Alone, ALONE, alone, m->cancel.task, TEXT(m->cancel.reason))
                SMALL(MFL_MSG_COMMUNICATOR_ID, CommunicatorId, COMMUNICATOR_ID, communicator_id,
                        m->communicator.communicator,
                        {m->communicator.made ? MFL_COMMUNICATOR_ID_BYTES : 0,
                                (uint8_t *)(uintptr_t)m->communicator.id},
                        TEXT(m->communicator.reason))
        default:
                return mfl_fail(err, MFL_INVALID, "message: %s can not be sent", mfl_msg_name(m->kind));
        }
}
