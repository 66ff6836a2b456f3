/* SPDX-License-Identifier: Apache-2.0 */
/* From envelopes to struct mfl_msg. */
#include "proto/wire.h"

#include "proto/version.h"
#include "proto/wire_internal.h"

void mfl_wire_copy_text(char *dst, size_t bytes, const char *src)
{
        if (mfl_strcpy(dst, bytes, src))
                return;
        size_t n = bytes - 1;
        while (n && ((uint8_t)src[n] & 0xc0) == 0x80)
                n--;
        dst[n] = '\0';
}
#define COPY(dst, src) mfl_wire_copy_text(dst, sizeof(dst), src)

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
                sets[i].meaning = s->meaning;
        }
        COPY(m->hello.name, h->name);
        COPY(m->hello.node, h->node);
        COPY(m->hello.backend, h->backend);
        COPY(m->hello.device, h->device);
        COPY(m->hello.software, h->software);
        COPY(m->hello.device_uuid, h->device_uuid);
        COPY(m->hello.device_pci, h->device_pci);
        COPY(m->hello.numerics, h->numerics);
        COPY(m->hello.site, h->site);
        COPY(m->hello.tags, h->tags);
        COPY(m->hello.relay, h->relay);
        m->hello.alone = h->alone;
        m->hello.stays = h->stays;
        m->hello.leaving = h->leaving;
        COPY(m->hello.peer, h->peer);
        m->hello.device_memory = h->device_memory;
        m->hello.instance = h->instance;
        m->hello.workers = h->workers;
        m->hello.protocol = MFL_MIN(h->protocol_max, (uint32_t)MFL_PROTOCOL_MAX);
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

/* The check has bounded n_members; n_widths is the same, and n_peers if there are any. */
static int team_to_msg(const Mfl__Team *t, struct mfl_task_team *ret_team)
{
        *ret_team = (struct mfl_task_team){
                .team = t->team, .member = t->member, .n_members = (uint32_t)t->n_members};
        memcpy(ret_team->members, t->members, t->n_members * sizeof *t->members);
        memcpy(ret_team->widths, t->widths, t->n_members * sizeof *t->widths);
        if (!t->n_peers)
                return 0;
        ret_team->peers = mfl_calloc(t->n_peers, sizeof *ret_team->peers);
        if (!ret_team->peers)
                return -ENOMEM;
        for (size_t i = 0; i < t->n_peers; i++)
                COPY(ret_team->peers[i], t->peers[i]->address);
        memcpy(ret_team->key, t->key.data, MFL_TEAM_KEY_BYTES);
        return 0;
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
                .n_frozen = t->n_frozen,
                .fixed = {.scale_bits = t->scale_bits,
                        .delta_max = t->delta_max,
                        .weight_max = t->weight_max,
                        .statistics_bits = t->statistics_bits,
                        .statistics_max = t->statistics_max},
                .arithmetic = t->arithmetic,
                .single_updates = t->single_updates,
                .sum = t->sum,
                .stands = t->stands,
                .fingerprint = t->fingerprint,
                .params_from = t->params_from,
        };
        if (t->group)
                group_to_msg(t->group, &m->task.group);
        if (t->team && team_to_msg(t->team, &m->task.team)) {
                free(items);
                return -ENOMEM;
        }
        m->task.n_method = (uint32_t)t->n_method;
        if (t->n_method)
                memcpy(m->task.method, t->method, t->n_method * sizeof *t->method);
        m->task.participants = t->participants;
        m->task.staleness = t->staleness;
        if (t->n_grid && !(m->task.grid = mfl_calloc(t->n_grid, sizeof *m->task.grid))) {
                free(m->task.team.peers);
                free(items);
                return -ENOMEM;
        }
        m->task.n_grid = (uint32_t)t->n_grid;
        if (t->n_grid)
                memcpy(m->task.grid, t->grid, t->n_grid * sizeof *t->grid);
        m->task.has_state = t->state_sha256.len == MFL_DIGEST_BYTES;
        if (m->task.has_state)
                memcpy(m->task.state_digest, t->state_sha256.data, MFL_DIGEST_BYTES);
        COPY(m->task.job, t->job);
        memcpy(m->task.params_digest, t->params_digest.data, MFL_DIGEST_BYTES);
        if (t->n_frozen)
                memcpy(m->task.frozen_digest, t->frozen_digest.data, MFL_DIGEST_BYTES);
        return 0;
}

static int announce_to_msg(const Mfl__Announce *a, struct mfl_msg *m)
{
        struct mfl_rejected *rejected = mfl_calloc(a->n_rejected, sizeof *rejected);
        struct mfl_client_loss *losses = mfl_calloc(a->n_losses, sizeof *losses);
        if (!rejected || !losses) {
                free(rejected);
                free(losses);
                return -ENOMEM;
        }
        for (size_t i = 0; i < a->n_losses; i++)
                losses[i] = (struct mfl_client_loss){
                        a->losses[i]->samples, a->losses[i]->loss_sum, a->losses[i]->square_sum};
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
                .n_losses = (uint32_t)a->n_losses,
                .losses = losses,
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
        m->announce.has_team = a->team != NULL;
        if (a->team)
                m->announce.team = (struct mfl_task_times){.compute_us = a->team->compute_us,
                        .exchange_us = a->team->exchange_us,
                        .apply_us = a->team->apply_us,
                        .repeats = a->team->repeats,
                        .kept = a->team->kept};
        m->announce.clamped = a->clamped;
        m->announce.masked = a->masked;
        m->announce.state.there = a->state_sha256.len == MFL_DIGEST_BYTES;
        m->announce.state.anew = a->state_anew;
        if (m->announce.state.there)
                memcpy(m->announce.state.digest, a->state_sha256.data, MFL_DIGEST_BYTES);
        m->announce.n_scalars = (uint32_t)a->n_scalars;
        if (a->n_scalars)
                memcpy(m->announce.scalars, a->scalars, a->n_scalars * sizeof *a->scalars);
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
        if (!e->n_tally)
                return 0;
        m->eval.tally = mfl_calloc(e->n_tally, sizeof *m->eval.tally);
        if (!m->eval.tally) {
                free(items);
                return -ENOMEM;
        }
        memcpy(m->eval.tally, e->tally, e->n_tally * sizeof *e->tally);
        m->eval.n_tally = (uint32_t)e->n_tally;
        return 0;
}

static void to_activity(const Mfl__Activity *wire, struct mfl_activity_figures *ret_figures)
{
        *ret_figures = (struct mfl_activity_figures){.workers = wire->workers,
                .total_us = {wire->compute_us, wire->data_us, wire->network_us, wire->wait_us},
                .samples = wire->samples,
                .samples_per_second = wire->samples_per_second,
                .share = {wire->compute, wire->data, wire->network, wire->wait}};
}

void mfl_wire_from_activity(const struct mfl_activity_figures *figures, Mfl__Activity *ret_wire)
{
        const uint64_t *us = figures->total_us;
        const double *share = figures->share;
        mfl__activity__init(ret_wire);
        ret_wire->workers = (uint32_t)figures->workers;
        ret_wire->compute_us = us[MFL_ACTIVITY_COMPUTE];
        ret_wire->data_us = us[MFL_ACTIVITY_DATA];
        ret_wire->network_us = us[MFL_ACTIVITY_NETWORK];
        ret_wire->wait_us = us[MFL_ACTIVITY_WAIT];
        ret_wire->samples = figures->samples;
        ret_wire->samples_per_second = figures->samples_per_second;
        ret_wire->compute = share[MFL_ACTIVITY_COMPUTE];
        ret_wire->data = share[MFL_ACTIVITY_DATA];
        ret_wire->network = share[MFL_ACTIVITY_NETWORK];
        ret_wire->wait = share[MFL_ACTIVITY_WAIT];
}

double mfl_wire_activity_share(const Mfl__Activity *activity, enum mfl_activity_state state)
{
        const double share[] = {activity->compute, activity->data, activity->network, activity->wait};
        return share[state];
}

static void to_telemetry(const Mfl__Telemetry *wire, struct mfl_telemetry *ret_telemetry)
{
        struct mfl_telemetry t = {0};
        t.known = (wire->has_gpu_percent_case ? MFL_TELEMETRY_GPU : 0) |
                  (wire->has_memory_used_case ? MFL_TELEMETRY_MEMORY_USED : 0) |
                  (wire->has_memory_total_case ? MFL_TELEMETRY_MEMORY_TOTAL : 0) |
                  (wire->has_temperature_case ? MFL_TELEMETRY_TEMPERATURE : 0) |
                  (wire->has_power_case ? MFL_TELEMETRY_POWER : 0) |
                  (wire->activity ? MFL_TELEMETRY_ACTIVITY : 0);
        t.gpu_percent = wire->has_gpu_percent_case ? wire->gpu_percent : 0;
        t.memory_used = wire->has_memory_used_case ? wire->memory_used : 0;
        t.memory_total = wire->has_memory_total_case ? wire->memory_total : 0;
        t.temperature_c = wire->has_temperature_case ? wire->temperature : 0;
        t.power_mw = wire->has_power_case ? wire->power_mw : 0;
        if (wire->activity)
                to_activity(wire->activity, &t.activity);
        *ret_telemetry = t;
}

void mfl_wire_from_telemetry(
        const struct mfl_telemetry *t, Mfl__Telemetry *ret_wire, Mfl__Activity *ret_activity)
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
        if (ret_activity && (t->known & MFL_TELEMETRY_ACTIVITY)) {
                mfl_wire_from_activity(&t->activity, ret_activity);
                wire.activity = ret_activity;
        }
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
        case MFL_MSG_LEAVING:
                COPY(m->cancel.reason, e->leaving->reason);
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

static void failed_to_msg(const Mfl__TaskFailed *failed, struct mfl_msg *m)
{
        m->failed.task = failed->task;
        COPY(m->failed.reason, failed->reason);
        m->failed.permanent = failed->permanent;
        m->failed.broken = failed->broken;
        m->failed.accused = failed->accused;
        m->failed.site = (enum mfl_site_word)failed->site;
        COPY(m->failed.job, failed->job);
        m->failed.loss = failed->loss;
}

/* The kinds that only need their fields copied. */
static int small_to_msg(const Mfl__Envelope *e, struct mfl_msg *m)
{
        switch (m->kind) {
        case MFL_MSG_WELCOME:
                m->welcome.protocol = e->welcome->protocol;
                COPY(m->welcome.software, e->welcome->software);
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
                m->params.has_base = e->params_get->have.len == MFL_DIGEST_BYTES;
                if (m->params.has_base)
                        memcpy(m->params.base, e->params_get->have.data, MFL_DIGEST_BYTES);
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
                failed_to_msg(e->task_failed, m);
                return 0;
        case MFL_MSG_PROGRESS:
                m->progress.task = e->progress->task;
                m->progress.items_done = e->progress->items_done;
                m->progress.samples_done = e->progress->samples_done;
                m->progress.loss_sum = e->progress->loss_sum;
                return 0;
        case MFL_MSG_RECALL:
                m->recall.task = e->recall->task;
                m->recall.n_items = e->recall->keep;
                return 0;
        case MFL_MSG_RETURNED:
                m->recall.task = e->returned->task;
                m->recall.n_items = e->returned->kept;
                return 0;
        case MFL_MSG_TELEMETRY:
                to_telemetry(e->telemetry, &m->telemetry);
                return 0;
        default:
                return group_message_to_msg(e, m);
        }
}

/* The check has bounded all of them. */
static int secure_to_msg(const Mfl__Secure *s, struct mfl_msg *m)
{
        m->secure.task = s->task;
        m->secure.step = (enum mfl_secure_step)s->step;
        if (s->set.len)
                memcpy(m->secure.set.bits, s->set.data, s->set.len);
        m->secure.has_figures = s->n_figures > 0;
        if (s->n_figures)
                memcpy(m->secure.figures, s->figures, sizeof m->secure.figures);
        for (size_t i = 0; i < s->n_parts; i++) {
                const Mfl__SecurePart *part = s->parts[i];
                if (!mfl_secure_msg_add(&m->secure, part->member, part->data.data, (uint32_t)part->data.len))
                        continue;
                mfl_secure_msg_deinit(&m->secure);
                return -ENOMEM;
        }
        return 0;
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
                {MFL__ENVELOPE__BODY_LEAVING, MFL_MSG_LEAVING},
                {MFL__ENVELOPE__BODY_RECALL, MFL_MSG_RECALL},
                {MFL__ENVELOPE__BODY_RETURNED, MFL_MSG_RETURNED},
                {MFL__ENVELOPE__BODY_SECURE, MFL_MSG_SECURE},
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
        case MFL_MSG_SECURE:
                r = secure_to_msg(envelope->secure, &m);
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
