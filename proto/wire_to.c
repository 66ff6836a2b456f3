/* SPDX-License-Identifier: Apache-2.0 */
/* From struct mfl_msg to packed envelopes. */
#include "proto/wire.h"

#include "proto/version.h"
#include "proto/wire_internal.h"

#define REACH_REASON_BYTES 201

/* Memory that a message points to while it is packed: n pointers, then n structures. */
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
                s->set.meaning = d->meaning;
        }
        hello.protocol_min = MFL_PROTOCOL_MIN;
        hello.protocol_max = MFL_PROTOCOL_MAX;
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
        hello.inline_max = MFL_INLINE_MAX;
        hello.numerics = TEXT(h->numerics);
        hello.site = TEXT(h->site);
        hello.tags = TEXT(h->tags);
        hello.relay = TEXT(h->relay);
        hello.alone = h->alone;
        hello.stays = h->stays;
        hello.leaving = h->leaving;
        hello.peer = TEXT(h->peer);
        hello.device_memory = h->device_memory;
        hello.n_data_sets = h->n_data_sets;
        hello.data_sets = (Mfl__DataSet **)sets;
        Mfl__Reach reach = MFL__REACH__INIT;
        char memory_reason[REACH_REASON_BYTES], nccl_reason[REACH_REASON_BYTES];
        mfl_wire_copy_text(memory_reason, sizeof memory_reason, h->reach.memory_reason);
        mfl_wire_copy_text(nccl_reason, sizeof nccl_reason, h->reach.nccl_reason);
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

/* Addresses as the wire has them. */
struct peers {
        Mfl__Peer v[MFL_GROUP_MAX], *pointers[MFL_GROUP_MAX];
};

static void point_to_peers(const struct mfl_task_team *team, struct peers *peers, Mfl__Team *ret_wire)
{
        for (uint32_t i = 0; team->peers && i < team->n_members; i++) {
                mfl__peer__init(&peers->v[i]);
                peers->v[i].address = team->peers[i];
                peers->pointers[i] = &peers->v[i];
        }
        ret_wire->n_peers = team->peers ? team->n_members : 0;
        ret_wire->peers = peers->pointers;
        if (team->peers)
                ret_wire->key = (ProtobufCBinaryData){MFL_TEAM_KEY_BYTES, (uint8_t *)(uintptr_t)team->key};
}

static ProtobufCBinaryData inside(const struct mfl_wire_extra *extra)
{
        return (ProtobufCBinaryData){
                .len = extra->data ? extra->n : 0, .data = (uint8_t *)(uintptr_t)extra->data};
}

static int pack_task(const struct mfl_task *t, const struct mfl_wire_extra *extra, uint8_t **ret_bytes,
        size_t *ret_n, struct mfl_error *err)
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
        task.n_frozen = t->n_frozen;
        if (t->n_frozen)
                task.frozen_digest = DIGEST(t->frozen_digest);
        task.scale_bits = t->fixed.scale_bits;
        task.delta_max = t->fixed.delta_max;
        task.weight_max = t->fixed.weight_max;
        task.statistics_bits = t->fixed.statistics_bits;
        task.statistics_max = t->fixed.statistics_max;
        task.arithmetic = t->arithmetic;
        task.single_updates = t->single_updates;
        task.sum = t->sum;
        task.stands = t->stands;
        task.fingerprint = t->fingerprint;
        task.params_from = t->params_from;
        task.params = inside(extra);
        Mfl__Group group = MFL__GROUP__INIT;
        group.group = t->group.group;
        group.collective = (Mfl__Collective)t->group.collective;
        group.rank = t->group.rank;
        group.n_members = t->group.n_members;
        group.members = (uint64_t *)(uintptr_t)t->group.members;
        group.workers = t->group.workers;
        group.communicator = t->group.communicator;
        task.group = t->group.group ? &group : NULL;
        Mfl__Team team = MFL__TEAM__INIT;
        struct peers peers;
        team.team = t->team.team;
        team.member = t->team.member;
        team.n_members = team.n_widths = t->team.n_members;
        team.members = (uint64_t *)(uintptr_t)t->team.members;
        team.widths = (uint32_t *)(uintptr_t)t->team.widths;
        point_to_peers(&t->team, &peers, &team);
        task.team = t->team.team ? &team : NULL;
        task.n_method = t->n_method;
        task.method = (double *)(uintptr_t)t->method;
        task.participants = t->participants;
        task.staleness = t->staleness;
        task.n_grid = extra->grid ? extra->n_grid : 0;
        task.grid = (int32_t *)(uintptr_t)extra->grid;
        if (extra->state_digest)
                task.state_sha256 = DIGEST(extra->state_digest);
        e.body_case = MFL__ENVELOPE__BODY_TASK;
        e.task = &task;
        return mfl_wire_pack(&e, ret_bytes, ret_n, err);
}

/* How long a reason may be so that n of them fit into three quarters of an envelope. */
static size_t reason_room(uint32_t n)
{
        size_t each = n ? (size_t)MFL_ENVELOPE_MAX * 3 / 4 / n : MFL_REASON_BYTES;
        return each <= 17 ? 1 : MFL_MIN(each - 16, (size_t)MFL_REASON_BYTES);
}

static int pack_announce(const struct mfl_announce *a, const struct mfl_wire_extra *extra,
        uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
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
                mfl_wire_copy_text(r->reason, room, a->rejected[i].reason);
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
        announce.data = inside(extra);
        Mfl__TeamTimes team = MFL__TEAM_TIMES__INIT;
        team.compute_us = a->team.compute_us;
        team.exchange_us = a->team.exchange_us;
        team.apply_us = a->team.apply_us;
        team.repeats = a->team.repeats;
        team.kept = a->team.kept;
        announce.team = a->has_team ? &team : NULL;
        announce.clamped = a->clamped;
        announce.masked = a->masked;
        announce.state_anew = a->state.anew;
        if (a->state.there)
                announce.state_sha256 = DIGEST(a->state.digest);
        announce.n_scalars = a->n_scalars;
        announce.scalars = (int64_t *)(uintptr_t)a->scalars;
        MFL_CLEANUP_FREE void **losses = pointers_new(a->n_losses, sizeof(Mfl__ClientLoss));
        if (!losses)
                return mfl_fail_memory(err, a->n_losses * sizeof(Mfl__ClientLoss), "Announce");
        for (uint32_t i = 0; i < a->n_losses; i++) {
                Mfl__ClientLoss *loss = losses[i];
                mfl__client_loss__init(loss);
                loss->samples = a->losses[i].samples;
                loss->loss_sum = a->losses[i].loss_sum;
                loss->square_sum = a->losses[i].square_sum;
        }
        announce.n_losses = a->n_losses;
        announce.losses = (Mfl__ClientLoss **)losses;
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
        eval.n_tally = m->eval.n_tally;
        eval.tally = m->eval.tally;
        e.body_case = MFL__ENVELOPE__BODY_EVAL_RESULT;
        e.eval_result = &eval;
        return mfl_wire_pack(&e, ret_bytes, ret_n, err);
}

static int pack_secure(
        const struct mfl_secure_msg *m, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Secure secure = MFL__SECURE__INIT;
        MFL_CLEANUP_FREE void **parts = pointers_new(m->n_parts, sizeof(Mfl__SecurePart));
        if (!parts)
                return mfl_fail_memory(err, m->n_parts * sizeof(Mfl__SecurePart), "Secure");
        for (uint32_t i = 0; i < m->n_parts; i++) {
                Mfl__SecurePart *part = parts[i];
                mfl__secure_part__init(part);
                part->member = m->parts[i].member;
                part->data = (ProtobufCBinaryData){m->parts[i].n, m->bytes + m->parts[i].at};
        }
        secure.task = m->task;
        secure.step = (Mfl__SecureStep)m->step;
        secure.n_parts = m->n_parts;
        secure.parts = (Mfl__SecurePart **)parts;
        bool has_set = m->step == MFL_SECURE_MASK || m->step == MFL_SECURE_SURVIVORS;
        secure.set =
                (ProtobufCBinaryData){has_set ? sizeof m->set.bits : 0, (uint8_t *)(uintptr_t)m->set.bits};
        secure.n_figures = m->has_figures ? MFL_SECURE_FIGURES : 0;
        secure.figures = (uint64_t *)(uintptr_t)m->figures;
        e.body_case = MFL__ENVELOPE__BODY_SECURE;
        e.secure = &secure;
        return mfl_wire_pack(&e, ret_bytes, ret_n, err);
}

static int pack_telemetry(
        const struct mfl_telemetry *t, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Telemetry telemetry;
        Mfl__Activity activity;
        mfl_wire_from_telemetry(t, &telemetry, &activity);
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

int mfl_wire_pack_msg(const struct mfl_msg *m, const struct mfl_wire_extra *extra, uint8_t **ret_bytes,
        size_t *ret_n, struct mfl_error *err)
{
        static const struct mfl_wire_extra nothing;
        extra = extra ? extra : &nothing;
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        switch (m->kind) {
        case MFL_MSG_HELLO:
                return pack_hello(&m->hello, ret_bytes, ret_n, err);
        case MFL_MSG_TASK:
                return pack_task(&m->task, extra, ret_bytes, ret_n, err);
        case MFL_MSG_ANNOUNCE:
                return pack_announce(&m->announce, extra, ret_bytes, ret_n, err);
        case MFL_MSG_GRANT:
                return pack_grant(m, ret_bytes, ret_n, err);
        case MFL_MSG_EVAL_RESULT:
                return pack_eval(m, ret_bytes, ret_n, err);
        case MFL_MSG_SECURE:
                return pack_secure(&m->secure, ret_bytes, ret_n, err);
        case MFL_MSG_TELEMETRY:
                return pack_telemetry(&m->telemetry, ret_bytes, ret_n, err);
                SMALL(MFL_MSG_WELCOME, Welcome, WELCOME, welcome,
                        m->welcome.protocol ? m->welcome.protocol : MFL_PROTOCOL_MAX,
                        TEXT("mfl-server " MFL_VERSION), m->welcome.heartbeat_ms, m->welcome.dead_ms,
                        m->welcome.server_instance, MFL_INLINE_MAX)
                SMALL(MFL_MSG_BYE, Bye, BYE, bye, TEXT(m->bye.reason), m->bye.retry)
                SMALL(MFL_MSG_PING, Ping, PING, ping, m->cookie)
                SMALL(MFL_MSG_PONG, Pong, PONG, pong, m->cookie)
                SMALL(MFL_MSG_JOB_SPEC, JobSpec, JOB_SPEC, job_spec, TEXT(m->job),
                        TEXT(extra->job_text ? extra->job_text : ""),
                        TEXT(extra->job_owner ? extra->job_owner : ""))
                SMALL(MFL_MSG_CANCEL, Cancel, CANCEL, cancel, m->cancel.task, TEXT(m->cancel.reason))
                SMALL(MFL_MSG_PARAMS_GET, ParamsGet, PARAMS_GET, params_get, TEXT(m->params.job),
                        DIGEST(m->params.digest), m->params.offset,
                        {m->params.has_base ? MFL_DIGEST_BYTES : 0, (uint8_t *)(uintptr_t)m->params.base},
                        false, 0)
                SMALL(MFL_MSG_PARAMS_GONE, ParamsGone, PARAMS_GONE, params_gone, TEXT(m->params.job),
                        DIGEST(m->params.digest), false, 0)
                SMALL(MFL_MSG_ACCEPTED, Accepted, ACCEPTED, accepted, m->update.task, m->update.update)
                SMALL(MFL_MSG_REFUSED, Refused, REFUSED, refused, m->update.task, m->update.update,
                        (Mfl__RefusedCode)m->update.code, TEXT(m->update.reason))
                SMALL(MFL_MSG_TASK_FAILED, TaskFailed, TASK_FAILED, task_failed, m->failed.task,
                        TEXT(m->failed.reason), m->failed.permanent, m->failed.broken, m->failed.accused,
                        m->failed.site, TEXT(m->failed.job), m->failed.loss)
                SMALL(MFL_MSG_PROGRESS, Progress, PROGRESS, progress, m->progress.task,
                        m->progress.items_done, m->progress.samples_done, m->progress.loss_sum)
                SMALL(MFL_MSG_COMBINE, Combine, COMBINE, combine, m->combine.group, m->combine.ranks,
                        m->combine.leader, m->combine.deadline_ms)
                SMALL(MFL_MSG_COMBINE_FAILED, CombineFailed, COMBINE_FAILED, combine_failed, m->cancel.task,
                        TEXT(m->cancel.reason))
                SMALL(MFL_MSG_ALONE, Alone, ALONE, alone, m->cancel.task, TEXT(m->cancel.reason))
                SMALL(MFL_MSG_RECALL, Recall, RECALL, recall, m->recall.task, m->recall.n_items)
                SMALL(MFL_MSG_RETURNED, Returned, RETURNED, returned, m->recall.task, m->recall.n_items)
                SMALL(MFL_MSG_LEAVING, Leaving, LEAVING, leaving, TEXT(m->cancel.reason))
                SMALL(MFL_MSG_COMMUNICATOR_ID, CommunicatorId, COMMUNICATOR_ID, communicator_id,
                        m->communicator.communicator,
                        {m->communicator.made ? MFL_COMMUNICATOR_ID_BYTES : 0,
                                (uint8_t *)(uintptr_t)m->communicator.id},
                        TEXT(m->communicator.reason))
        default:
                return mfl_fail(err, MFL_INVALID, "message: %s cannot be sent", mfl_msg_name(m->kind));
        }
}
