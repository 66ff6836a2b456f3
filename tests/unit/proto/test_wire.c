/* SPDX-License-Identifier: Apache-2.0 */
/* Envelopes: random messages survive the way there and back, and each broken rule is refused by its field's
 * name. */
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>

#include "common/base/rng.h"
#include "proto/frame.h"
#include "proto/wire.h"

static void random_text(struct mfl_rng *r, char *dst, uint32_t bytes)
{
        static const char set[] = "abcXYZ019._-";
        uint32_t n = 1 + mfl_rng_below(r, bytes - 1);
        memset(dst, 0, bytes);
        for (uint32_t i = 0; i < n; i++)
                dst[i] = set[mfl_rng_below(r, sizeof set - 1)];
}
#define RANDOM_TEXT(r, dst) random_text(r, dst, sizeof(dst))

static void random_arrays(struct mfl_rng *r, struct mfl_msg *m)
{
        uint32_t n = 1 + mfl_rng_below(r, 20);
        uint64_t at = 0;
        switch (m->kind) {
        case MFL_MSG_HELLO:
                m->hello.n_data_sets = n;
                m->hello.data_sets = calloc(n, sizeof *m->hello.data_sets);
                for (uint32_t i = 0; i < n; i++) {
                        struct mfl_data_info *d = &m->hello.data_sets[i];
                        RANDOM_TEXT(r, d->name);
                        d->shape.rank = 1 + (int)mfl_rng_below(r, 4);
                        for (int k = 0; k < d->shape.rank; k++)
                                d->shape.dim[k] = 1 + mfl_rng_below(r, 100);
                        d->classes = 1 + mfl_rng_below(r, 1000);
                        d->train_samples = mfl_rng_u32(r);
                        d->fingerprint = mfl_rng_u64(r);
                }
                break;
        case MFL_MSG_TASK:
                m->task.n_items = n;
                m->task.items = calloc(n, sizeof(uint64_t));
                for (uint32_t i = 0; i < n; i++)
                        m->task.items[i] = mfl_rng_u64(r);
                break;
        case MFL_MSG_ANNOUNCE:
                m->announce.item_count = n + 1;
                m->announce.n_rejected = n;
                m->announce.rejected = calloc(n, sizeof *m->announce.rejected);
                for (uint32_t i = 0; i < n; i++) {
                        m->announce.rejected[i].item = mfl_rng_u64(r);
                        RANDOM_TEXT(r, m->announce.rejected[i].reason);
                }
                if (!mfl_rng_below(r, 2))
                        break;
                m->announce.n_losses = n + 1;
                m->announce.losses = calloc(n + 1, sizeof *m->announce.losses);
                for (uint32_t i = 0; i <= n; i++)
                        m->announce.losses[i] = (struct mfl_client_loss){mfl_rng_u64(r) >> 4,
                                (int64_t)(mfl_rng_u64(r) >> 1), (int64_t)(mfl_rng_u64(r) >> 1)};
                break;
        case MFL_MSG_GRANT:
                m->update.n_ranges = n;
                m->update.ranges = calloc(n, sizeof *m->update.ranges);
                for (uint32_t i = 0; i < n; i++) {
                        m->update.ranges[i].offset = at += 8ull * mfl_rng_below(r, 1000);
                        at += m->update.ranges[i].bytes = 8ull * (1 + mfl_rng_below(r, 1000));
                }
                break;
        case MFL_MSG_EVAL_RESULT:
                m->eval.n_items = n;
                m->eval.items = calloc(n, sizeof *m->eval.items);
                for (uint32_t i = 0; i < n; i++)
                        m->eval.items[i] = (struct mfl_eval_item){
                                mfl_rng_u64(r), 1u << 31, mfl_rng_u32(r) >> 1, mfl_rng_u32(r)};
                m->eval.n_tally = 6 * n;
                m->eval.tally = calloc(6 * n, sizeof *m->eval.tally);
                for (uint32_t i = 0; i < 6 * n; i++)
                        m->eval.tally[i] = mfl_rng_u32(r);
                break;
        default:
                break;
        }
}

static void random_activity(struct mfl_rng *r, struct mfl_activity_figures *ret)
{
        double left = 1;
        ret->workers = 1 + mfl_rng_below(r, 65536);
        ret->samples = mfl_rng_u64(r) >> 4;
        ret->samples_per_second = mfl_rng_u32(r) / 7.0;
        for (int s = 0; s < MFL_ACTIVITY_STATES; s++) {
                ret->total_us[s] = mfl_rng_u64(r) >> 4;
                ret->share[s] = s + 1 < MFL_ACTIVITY_STATES ? left * mfl_rng_below(r, 1000) / 1000 : left;
                left -= ret->share[s];
        }
}

static void random_secure(struct mfl_rng *r, struct mfl_secure_msg *m)
{
        uint8_t data[64];
        m->task = mfl_rng_u64(r);
        m->step = MFL_SECURE_KEYS + mfl_rng_below(r, MFL_SECURE_OPENED);
        for (uint32_t i = 0, member = 0; i < mfl_rng_below(r, 20); i++) {
                member += 1 + mfl_rng_below(r, 50);
                for (size_t k = 0; k < sizeof data; k++)
                        data[k] = (uint8_t)mfl_rng_u32(r);
                assert_int_equal(mfl_secure_msg_add(m, member, data, 1 + mfl_rng_below(r, sizeof data)), 0);
        }
        for (uint32_t i = 0; i < 200 && (m->step == MFL_SECURE_MASK || m->step == MFL_SECURE_SURVIVORS); i++)
                mfl_secure_put(&m->set, mfl_rng_below(r, MFL_SECURE_MEMBERS_MAX));
        m->has_figures = m->step == MFL_SECURE_MASKED;
        for (int i = 0; m->has_figures && i < MFL_SECURE_FIGURES; i++)
                m->figures[i] = mfl_rng_u64(r);
}

static void random_msg(struct mfl_rng *r, enum mfl_msg_kind kind, struct mfl_msg *m)
{
        memset(m, 0, sizeof *m);
        m->kind = kind;
        switch (kind) {
        case MFL_MSG_HELLO:
                RANDOM_TEXT(r, m->hello.name);
                RANDOM_TEXT(r, m->hello.peer);
                RANDOM_TEXT(r, m->hello.node);
                RANDOM_TEXT(r, m->hello.backend);
                RANDOM_TEXT(r, m->hello.device);
                RANDOM_TEXT(r, m->hello.software);
                m->hello.instance = mfl_rng_u64(r);
                m->hello.workers = 1 + mfl_rng_below(r, 64);
                m->hello.leaving = mfl_rng_below(r, 2);
                RANDOM_TEXT(r, m->hello.device_uuid);
                RANDOM_TEXT(r, m->hello.device_pci);
                m->hello.device_memory = mfl_rng_u32(r);
                m->hello.has_reach = mfl_rng_below(r, 2);
                if (!m->hello.has_reach)
                        break;
                m->hello.reach.user = mfl_rng_u32(r);
                m->hello.reach.nccl = mfl_rng_u32(r);
                m->hello.reach.network_space = mfl_rng_u64(r);
                m->hello.reach.memory_space = mfl_rng_u64(r);
                random_text(r, m->hello.reach.memory_reason, 200);
                random_text(r, m->hello.reach.nccl_reason, 200);
                break;
        case MFL_MSG_WELCOME:
                m->welcome.heartbeat_ms = 1 + mfl_rng_below(r, 10000);
                m->welcome.dead_ms = m->welcome.heartbeat_ms + 1;
                m->welcome.server_instance = mfl_rng_u64(r);
                break;
        case MFL_MSG_BYE:
                RANDOM_TEXT(r, m->bye.reason);
                m->bye.retry = true;
                break;
        case MFL_MSG_PING:
        case MFL_MSG_PONG:
                m->cookie = mfl_rng_u64(r);
                break;
        case MFL_MSG_JOB_SPEC:
                RANDOM_TEXT(r, m->job);
                break;
        case MFL_MSG_TASK:
                RANDOM_TEXT(r, m->task.job);
                m->task.task = mfl_rng_u64(r);
                m->task.round = mfl_rng_u32(r);
                m->task.kind = MFL_TASK_TRAIN;
                memset(m->task.params_digest, 5, MFL_DIGEST_BYTES);
                m->task.n_params = 1 + mfl_rng_u32(r);
                m->task.n_frozen = mfl_rng_below(r, 2) ? m->task.n_params / 2 : 0;
                if (m->task.n_frozen)
                        memset(m->task.frozen_digest, 6, MFL_DIGEST_BYTES);
                m->task.fixed =
                        (struct mfl_fixed){-(int)mfl_rng_below(r, 20), 0.25f, 1 + mfl_rng_u32(r), -30, 64.0f};
                m->task.arithmetic = mfl_rng_below(r, 9);
                m->task.single_updates = true;
                m->task.fingerprint = mfl_rng_u64(r);
                m->task.params_from = mfl_rng_u64(r);
                m->task.team.n_members = mfl_rng_below(r, 2) ? 2 + mfl_rng_below(r, 31) : 0;
                m->task.team.team = m->task.team.n_members ? 1 + (mfl_rng_u64(r) >> 1) : 0;
                for (uint32_t i = 0; i < m->task.team.n_members; i++) {
                        m->task.team.members[i] = mfl_rng_u64(r);
                        m->task.team.widths[i] = 1 + mfl_rng_below(r, 2);
                }
                if (m->task.team.n_members && mfl_rng_below(r, 2)) {
                        m->task.team.peers = mfl_calloc(m->task.team.n_members, sizeof *m->task.team.peers);
                        for (uint32_t i = 0; i < m->task.team.n_members; i++)
                                snprintf(m->task.team.peers[i], MFL_PEER_BYTES, "10.0.0.%u:7434", i);
                        memset(m->task.team.key, 7, sizeof m->task.team.key);
                }
                m->task.group.n_members = mfl_rng_below(r, 2) ? 2 + mfl_rng_below(r, MFL_GROUP_MAX - 1) : 0;
                if (!m->task.group.n_members)
                        break;
                m->task.group.group = 1 + mfl_rng_u64(r);
                m->task.group.collective = mfl_rng_below(r, 2) ? MFL_COLLECTIVE_SHM : MFL_COLLECTIVE_NCCL;
                m->task.group.rank = mfl_rng_below(r, m->task.group.n_members);
                for (uint32_t i = 0; i < m->task.group.n_members; i++)
                        m->task.group.members[i] = mfl_rng_u64(r);
                m->task.group.workers = 1 + mfl_rng_below(r, 100);
                m->task.group.communicator = mfl_rng_u64(r);
                break;
        case MFL_MSG_SECURE:
                random_secure(r, &m->secure);
                break;
        case MFL_MSG_COMBINE:
                m->combine.group = 1 + mfl_rng_u32(r);
                m->combine.leader = mfl_rng_below(r, MFL_GROUP_MAX);
                m->combine.ranks = mfl_rng_u64(r) | (uint64_t)1 << m->combine.leader;
                m->combine.deadline_ms = 1 + mfl_rng_below(r, 10000);
                break;
        case MFL_MSG_COMMUNICATOR_ID:
                m->communicator.communicator = 1 + mfl_rng_u32(r);
                m->communicator.made = mfl_rng_below(r, 2);
                for (int i = 0; m->communicator.made && i < MFL_COMMUNICATOR_ID_BYTES; i++)
                        m->communicator.id[i] = (uint8_t)mfl_rng_u32(r);
                RANDOM_TEXT(r, m->communicator.reason);
                break;
        case MFL_MSG_COMBINE_FAILED:
        case MFL_MSG_ALONE:
        case MFL_MSG_CANCEL:
                m->cancel.task = mfl_rng_u64(r); /* fall through */
        case MFL_MSG_LEAVING:
                RANDOM_TEXT(r, m->cancel.reason);
                break;
        case MFL_MSG_PARAMS_GET:
                m->params.offset = mfl_rng_u32(r); /* fall through */
        case MFL_MSG_PARAMS_GONE:
                RANDOM_TEXT(r, m->params.job);
                memset(m->params.digest, 9, MFL_DIGEST_BYTES);
                break;
        case MFL_MSG_ANNOUNCE:
                m->announce.task = mfl_rng_u64(r);
                m->announce.update = mfl_rng_u32(r);
                m->announce.item_first = mfl_rng_below(r, 1000);
                m->announce.encoding = MFL_ENCODING_I64;
                m->announce.bytes = 8ull + 8ull * mfl_rng_u32(r);
                m->announce.weight = m->announce.samples = 1 + mfl_rng_u32(r);
                m->announce.loss_sum = mfl_rng_u32(r);
                m->announce.correct = mfl_rng_u32(r);
                m->announce.train_us = mfl_rng_u64(r);
                m->announce.round = mfl_rng_u32(r);
                m->announce.group = mfl_rng_u64(r);
                RANDOM_TEXT(r, m->announce.job);
                break;
        case MFL_MSG_REFUSED:
                m->update.code = MFL_REFUSED_LATE;
                RANDOM_TEXT(r, m->update.reason); /* fall through */
        case MFL_MSG_GRANT:
        case MFL_MSG_ACCEPTED:
                m->update.task = mfl_rng_u64(r);
                m->update.update = mfl_rng_u32(r);
                break;
        case MFL_MSG_EVAL_RESULT:
                m->eval.task = mfl_rng_u64(r);
                break;
        case MFL_MSG_TASK_FAILED:
                m->failed.task = mfl_rng_u64(r);
                m->failed.permanent = true;
                RANDOM_TEXT(r, m->failed.reason);
                break;
        case MFL_MSG_RECALL:
        case MFL_MSG_RETURNED:
                m->recall.task = mfl_rng_u64(r);
                m->recall.n_items = 1 + mfl_rng_below(r, 65536);
                break;
        case MFL_MSG_TELEMETRY:
                m->telemetry.known = mfl_rng_below(r, 64);
#define KNOWN(bit, value) (m->telemetry.known & MFL_TELEMETRY_##bit ? (value) : 0)
                m->telemetry.gpu_percent = KNOWN(GPU, mfl_rng_below(r, 101));
                m->telemetry.memory_used = KNOWN(MEMORY_USED, mfl_rng_u32(r));
                m->telemetry.memory_total = KNOWN(MEMORY_TOTAL, (1ull << 32) + mfl_rng_u32(r));
                m->telemetry.temperature_c = KNOWN(TEMPERATURE, mfl_rng_below(r, 100));
                m->telemetry.power_mw = KNOWN(POWER, mfl_rng_below(r, 1000000));
                if (m->telemetry.known & MFL_TELEMETRY_ACTIVITY)
                        random_activity(r, &m->telemetry.activity);
                break;
        default:
                m->progress.task = mfl_rng_u64(r);
                m->progress.items_done = mfl_rng_below(r, 65536);
                m->progress.samples_done = mfl_rng_u64(r);
                m->progress.loss_sum = mfl_rng_u32(r);
        }
        random_arrays(r, m);
}

/* Equal bytes of both packed: packing is a function of every field, and unpacking must have kept them all. */
static void messages_survive_the_way_there_and_back(void **state)
{
        for (uint32_t i = 0; i < 2000; i++) {
                struct mfl_rng r = mfl_rng_new(1, MFL_RNG_TEST, i, 0);
                const struct mfl_wire_extra extra = {.job_text = "text"};
                struct mfl_msg m, back, copy;
                struct mfl_error err = {""};
                Mfl__Envelope *e;
                uint8_t *a, *b;
                size_t n_a, n_b;
                char text[256], text_back[256];
                random_msg(&r, 1 + i % (MFL_MSG_COUNT_ - 1), &m);
                if (mfl_wire_pack_msg(&m, &extra, &a, &n_a, &err))
                        fail_msg("%s", err.text);
                assert_int_equal(mfl_wire_unpack(a, n_a, &e, &err), 0);
                assert_int_equal(mfl_wire_to_msg(e, &back, &err), 0);
                assert_int_equal(back.kind, m.kind);
                assert_int_equal(mfl_msg_copy(&back, &copy), 0);
                assert_int_equal(mfl_wire_pack_msg(&copy, &extra, &b, &n_b, &err), 0);
                assert_int_equal(n_a, n_b);
                assert_memory_equal(a, b, n_a);
                if (m.kind == MFL_MSG_TELEMETRY)
                        assert_memory_equal(&m.telemetry, &copy.telemetry, sizeof m.telemetry);
                if (m.kind == MFL_MSG_TASK && m.task.group.group)
                        assert_memory_equal(
                                m.task.group.members, copy.task.group.members, sizeof m.task.group.members);
                if (m.kind == MFL_MSG_TASK && m.task.team.peers)
                        assert_memory_equal(m.task.team.peers, copy.task.team.peers,
                                m.task.team.n_members * sizeof *m.task.team.peers);
                if (m.kind == MFL_MSG_TASK)
                        assert_memory_equal(
                                &m.task.team, &copy.task.team, offsetof(struct mfl_task_team, peers));
                assert_string_equal(mfl_msg_text(&m, text, 256), mfl_msg_text(&copy, text_back, 256));
                mfl_wire_free(e);
                mfl_msg_deinit(&m);
                mfl_msg_deinit(&back);
                mfl_msg_deinit(&copy);
                free(a);
                free(b);
        }
}

/* Each row: a valid random message of the kind, one field broken, and the name that the error begins with. */
static void each_broken_field_is_named(void **state)
{
        struct mfl_msg m;
        struct mfl_error err;
        uint8_t *bytes;
        size_t n;
#define ROW(kind_, break_, name_)                                                                            \
        do {                                                                                                 \
                struct mfl_rng r = mfl_rng_new(2, MFL_RNG_TEST, kind_, 0);                                   \
                random_msg(&r, kind_, &m);                                                                   \
                break_;                                                                                      \
                assert_int_equal(                                                                            \
                        mfl_wire_pack_msg(&m, &(struct mfl_wire_extra){.job_text = "t"}, &bytes, &n, &err),  \
                        MFL_INVALID);                                                                        \
                if (strncmp(err.text, name_, strlen(name_)))                                                 \
                        fail_msg("\"%s\" does not begin with " name_, err.text);                             \
                mfl_msg_deinit(&m);                                                                          \
        } while (0)
        ROW(MFL_MSG_HELLO, m.hello.name[0] = 0, "Hello.name");
        ROW(MFL_MSG_HELLO, m.hello.name[0] = ' ', "Hello.name");
        ROW(MFL_MSG_HELLO, m.hello.node[0] = (char)0xff, "Hello.node: not UTF-8");
        ROW(MFL_MSG_HELLO, m.hello.backend[0] = 0, "Hello.backend");
        ROW(MFL_MSG_HELLO, m.hello.workers = 0, "Hello.workers");
        ROW(MFL_MSG_HELLO, m.hello.data_sets[0].name[0] = 0, "DataSet.name");
        ROW(MFL_MSG_HELLO, m.hello.data_sets[0].shape.rank = 0, "DataSet.shape");
        ROW(MFL_MSG_HELLO, m.hello.data_sets[0].shape.dim[0] = -1, "DataSet.shape");
        ROW(MFL_MSG_HELLO, m.hello.data_sets[0].classes = 0, "DataSet.classes");
        ROW(MFL_MSG_WELCOME, m.welcome.heartbeat_ms = 0, "Welcome.heartbeat_ms");
        ROW(MFL_MSG_WELCOME, m.welcome.dead_ms = 1, "Welcome.dead_ms");
        ROW(MFL_MSG_JOB_SPEC, m.job[0] = 0, "JobSpec.job");
        ROW(MFL_MSG_TASK, m.task.job[0] = 0, "Task.job");
        ROW(MFL_MSG_TASK, m.task.kind = 3, "Task.kind: only members");
        ROW(MFL_MSG_TASK, m.task.kind = 4, "Task.kind");
        ROW(MFL_MSG_TASK, m.task.n_items = 0, "Task.items");
        ROW(MFL_MSG_TASK, m.task.n_params = 0, "Task.n_params");
        ROW(MFL_MSG_TASK, m.task.n_frozen = m.task.n_params, "Task.n_frozen");
        ROW(MFL_MSG_TASK, m.task.fixed.scale_bits = 62, "Task.scale_bits");
        ROW(MFL_MSG_TASK, m.task.fixed.scale_bits = 127, "Task.scale_bits");
        ROW(MFL_MSG_TASK, m.task.fixed.delta_max = NAN, "Task.delta_max: not finite");
        ROW(MFL_MSG_TASK, m.task.fixed.weight_max = 0, "Task.weight_max");
        ROW(MFL_MSG_TASK, (m.task.n_method = 1, m.task.method[0] = NAN),
                "Task.method: number 0 is not finite");
        ROW(MFL_MSG_ANNOUNCE, (m.announce.n_scalars = 1, m.announce.scalars[0] = -1),
                "Announce.scalars: -1 is negative");
        ROW(MFL_MSG_PARAMS_GET, m.params.job[0] = 0, "ParamsGet.job");
        ROW(MFL_MSG_PARAMS_GET, m.params.offset = UINT64_MAX, "ParamsGet.offset");
        ROW(MFL_MSG_ANNOUNCE, m.announce.item_count = 0, "Announce.item_count");
        ROW(MFL_MSG_ANNOUNCE, m.announce.item_first = 65535, "Announce.item_count");
        ROW(MFL_MSG_ANNOUNCE, m.announce.item_count = m.announce.n_rejected - 1, "Announce.rejected");
        ROW(MFL_MSG_ANNOUNCE, m.announce.encoding = 0, "Announce.encoding");
        ROW(MFL_MSG_ANNOUNCE, m.announce.encoding = MFL_ENCODING_F32, "Announce.item_count");
        ROW(MFL_MSG_ANNOUNCE, m.announce.bytes = 12, "Announce.bytes");
        ROW(MFL_MSG_ANNOUNCE, m.announce.bytes = 0, "Announce.bytes");
        ROW(MFL_MSG_ANNOUNCE, m.announce.weight = 0, "Announce.weight");
        ROW(MFL_MSG_ANNOUNCE, m.announce.loss_sum = -1, "Announce.loss_sum");
        ROW(MFL_MSG_GRANT, m.update.ranges[0].offset = 4, "Grant.ranges: offset");
        ROW(MFL_MSG_GRANT, m.update.ranges[0].bytes = 0, "Range.bytes");
        ROW(MFL_MSG_GRANT, m.update.ranges[m.update.n_ranges - 1].bytes = 2, "Grant.ranges");
        ROW(MFL_MSG_GRANT, m.update.ranges[0].offset = 1 << 30, "Grant.ranges");
        ROW(MFL_MSG_REFUSED, m.update.code = 9, "Refused.code");
        ROW(MFL_MSG_EVAL_RESULT, m.eval.n_items = 0, "EvalResult.items");
        ROW(MFL_MSG_EVAL_RESULT, m.eval.items[0].samples = 0, "EvalItem.correct");
        ROW(MFL_MSG_EVAL_RESULT, m.eval.n_tally--, "EvalResult.tally");
        ROW(MFL_MSG_PROGRESS, m.progress.items_done = 65537, "Progress.items_done");
        ROW(MFL_MSG_RECALL, m.recall.n_items = 0, "Recall.keep");
        ROW(MFL_MSG_RETURNED, m.recall.n_items = 65537, "Returned.kept");
        ROW(MFL_MSG_TELEMETRY, (m.telemetry.known = 31, m.telemetry.gpu_percent = 101),
                "Telemetry.gpu_percent");
        ROW(MFL_MSG_TELEMETRY, (m.telemetry.known = 31, m.telemetry.temperature_c = 1001),
                "Telemetry.temperature");
        ROW(MFL_MSG_TELEMETRY,
                (m.telemetry.known = 31, m.telemetry.memory_used = 2, m.telemetry.memory_total = 1),
                "Telemetry.memory_used: 2 of 1");
        ROW(MFL_MSG_TELEMETRY, (m.telemetry.known = 31, m.telemetry.memory_total = 1ull << 61),
                "Telemetry.memory_total");
#define ACTIVITY(break_)                                                                                     \
        (m.telemetry.known = 63, m.telemetry.memory_total = UINT32_MAX, m.telemetry.memory_used = 0,         \
                m.telemetry.activity =                                                                       \
                        (struct mfl_activity_figures){.workers = 2, .share = {0.25, 0.25, 0, 0.5}},          \
                break_)
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.workers = 0), "Activity.workers");
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.workers = 65537), "Activity.workers");
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.samples_per_second = -1),
                "Activity.samples_per_second: -1 is below 0");
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.samples_per_second = 2e15),
                "Activity.samples_per_second: 2e+15 is above 1e+15");
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.total_us[MFL_ACTIVITY_DATA] = UINT64_MAX),
                "Activity.data_us: 9223372036854775807 is not in 0..1152921504606846976");
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.samples_per_second = (double)INFINITY),
                "Activity.samples_per_second: not finite");
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.share[MFL_ACTIVITY_DATA] = (double)NAN),
                "Activity.data: not finite");
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.share[MFL_ACTIVITY_COMPUTE] = -0.25),
                "Activity.compute: -0.25 is not in 0..1");
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.share[MFL_ACTIVITY_NETWORK] = 1.5),
                "Activity.network: 1.5 is not in 0..1");
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.share[MFL_ACTIVITY_WAIT] = 0.6),
                "Activity.wait: the shares are 1.1 together");
        ROW(MFL_MSG_TELEMETRY, ACTIVITY(m.telemetry.activity.share[MFL_ACTIVITY_WAIT] = 0),
                "Activity.wait: the shares are 0.5 together");
#undef ACTIVITY
        ROW(MFL_MSG_HELLO, (m.hello.has_reach = true, m.hello.reach.nccl_reason[0] = (char)0xff),
                "Reach.nccl_reason: not UTF-8");
#define GROUP(n)                                                                                             \
        m.task.group = (struct mfl_group){.group = 1,                                                        \
                .collective = MFL_COLLECTIVE_SHM,                                                            \
                .n_members = (n),                                                                            \
                .members = {7, 8},                                                                           \
                .workers = 2}
        ROW(MFL_MSG_TASK, GROUP(1), "Group.members: count 1");
        ROW(MFL_MSG_TASK, (GROUP(2), m.task.group.rank = 2), "Group.rank: 2 of 2");
        ROW(MFL_MSG_TASK, (GROUP(2), m.task.group.members[1] = 7), "Group.members: 0 and 1");
        ROW(MFL_MSG_TASK, (GROUP(2), m.task.group.collective = MFL_COLLECTIVE_SOLO), "Group.collective");
        ROW(MFL_MSG_TASK, (GROUP(2), m.task.group.workers = 0), "Group.workers");
#define TEAM(n)                                                                                              \
        free(m.task.team.peers), m.task.team = (struct mfl_task_team)                                        \
        {                                                                                                    \
                .team = 1, .n_members = (n), .members = {7, 8}, .widths = { 1, 2 }                           \
        }
        ROW(MFL_MSG_TASK, TEAM(1), "Team.members: count 1");
        ROW(MFL_MSG_TASK, (TEAM(2), m.task.team.member = 2), "Team.member: 2 of 2");
        ROW(MFL_MSG_TASK, (TEAM(2), m.task.team.member = 1), "Task.team: member 1");
        ROW(MFL_MSG_TASK, (TEAM(2), m.task.kind = MFL_TASK_EVAL), "Task.team: a team does not evaluate");
        ROW(MFL_MSG_TASK, (TEAM(2), m.task.kind = MFL_TASK_ASSIST), "Task.kind");
        ROW(MFL_MSG_TASK, (TEAM(2), m.task.team.members[1] = 7), "Team.members: 0 and 1");
        ROW(MFL_MSG_TASK, (TEAM(2), m.task.team.widths[1] = 0), "Team.widths: member 1");
        ROW(MFL_MSG_TASK, (TEAM(2), m.task.team.widths[1] = 64), "Team.widths: 65 ranks");
        ROW(MFL_MSG_TASK, (TEAM(2), m.task.team.peers = mfl_calloc(2, MFL_PEER_BYTES)), "Peer.address");
        ROW(MFL_MSG_TASK_FAILED, m.failed.accused = MFL_GROUP_MAX + 1, "TaskFailed.accused");
        ROW(MFL_MSG_COMBINE, m.combine.ranks = 0, "Combine.leader");
        ROW(MFL_MSG_COMBINE, m.combine.leader = MFL_GROUP_MAX, "Combine.leader");
        ROW(MFL_MSG_COMBINE, m.combine.group = 0, "Combine.group");
        ROW(MFL_MSG_COMBINE, m.combine.deadline_ms = 0, "Combine.deadline_ms");
        ROW(MFL_MSG_COMBINE_FAILED, m.cancel.task = 0, "CombineFailed.group");
        ROW(MFL_MSG_COMMUNICATOR_ID, m.communicator.communicator = 0, "CommunicatorId.communicator");
        ROW(MFL_MSG_NONE, m.kind = MFL_MSG_NONE, "message: none");
}

/* What only another program's bytes can hold. */
/* What travels inside Task and Announce is whole, and small. */
static void what_is_inside_fits(void **state)
{
        (void)state;
        static const uint8_t data[MFL_INLINE_MAX + 8];
        struct mfl_task task = {.task = 1, .job = "j", .round = 1, .kind = MFL_TASK_EVAL, .n_items = 1};
        uint64_t item = 0;
        task.items = &item;
        task.fixed.delta_max = 1;
        task.fixed.weight_max = 1;
        struct mfl_announce announce = {.task = 1,
                .item_count = 1,
                .encoding = MFL_ENCODING_I64,
                .weight = 1,
                .job = "j",
                .round = 1};
        for (uint64_t n = MFL_INLINE_MAX - 8; n <= MFL_INLINE_MAX + 8; n += 8)
                for (int less = 0; less < 2; less++) {
                        struct mfl_wire_extra extra = {.data = data, .n = n - 8 * (uint64_t)less};
                        int want = n > MFL_INLINE_MAX || less ? MFL_INVALID : 0;
                        task.n_params = n / 4;
                        announce.bytes = n;
                        struct mfl_msg m[] = {{.kind = MFL_MSG_TASK, .task = task},
                                {.kind = MFL_MSG_ANNOUNCE, .announce = announce}};
                        for (int k = 0; k < 2; k++) {
                                uint8_t *bytes = NULL;
                                size_t n_bytes;
                                assert_int_equal(
                                        mfl_wire_pack_msg(&m[k], &extra, &bytes, &n_bytes, NULL), want);
                                if (!want)
                                        free(bytes);
                        }
                }
}

static void foreign_bytes_are_refused(void **state)
{
        static const struct {
                const char *bytes;
                size_t n;
                const char *text;
        } rows[] = {
                {"\xfa\x3f\x00", 3, "Envelope.body"}, /* of a later version, and nobody's request */
                {"\x22\x04\x0a\x02\x61\x00", 6, "Bye.reason: a NUL"}, /* "a\0" */
                {"\x22\x04\x0a\x02\xc0\x80", 6, "Bye.reason: not UTF-8"},
                {"\x22\x7f", 2, "envelope: not a protobuf message"},
        };
        struct mfl_error err;
        Mfl__Envelope *e;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                assert_int_equal(mfl_wire_unpack(rows[i].bytes, rows[i].n, &e, &err), MFL_INVALID);
                if (strncmp(err.text, rows[i].text, strlen(rows[i].text)))
                        fail_msg("row %zu: %s", i, err.text);
        }
        /* A later version's request is let through, so that it can be answered. */
        assert_int_equal(mfl_wire_unpack("\x08\x01\xfa\x3f\x00", 5, &e, &err), 0);
        assert_true(e->request == 1 && e->body_case == MFL__ENVELOPE__BODY__NOT_SET);
        mfl_wire_free(e);
        /* Half a million empty Rejected: 1 MiB that would become 40. */
        uint8_t *bomb = malloc(MFL_ENVELOPE_MAX);
        memcpy(bomb, "\x82\x01\xfa\xff\x3f", 5);
        for (size_t i = 5; i + 1 < MFL_ENVELOPE_MAX; i += 2)
                memcpy(bomb + i, "\x2a\x00", 2);
        assert_int_equal(mfl_wire_unpack(bomb, 5 + 0xffffa, &e, &err), MFL_INVALID);
        assert_string_equal(err.text, "envelope: needs too much memory for its size");
        free(bomb);
}

/* The longest JobDetail there is: a thousand rounds, each of more fields than protobuf-c reads without memory
 * of its own for it. */
static void a_long_job_comes_through(void **state)
{
        static uint8_t digest[32];
        static Mfl__RoundInfo rounds[1000], *pointers[1000];
        static Mfl__NodeCost costs[1000], *cost_pointers[1000];
        struct mfl_error err;
        Mfl__JobInfo info = MFL__JOB_INFO__INIT;
        Mfl__JobDetail detail = MFL__JOB_DETAIL__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT, *back = NULL;
        uint8_t *bytes;
        size_t n;
        for (uint32_t i = 0; i < 1000; i++) {
                Mfl__RoundInfo *r = pointers[i] = &rounds[i];
                mfl__round_info__init(r);
                r->round = r->samples = r->clients = r->weight = r->bytes_up = r->bytes_down = i + 1;
                r->attempt = r->committed_ms = r->daemons = r->bytes_up_alone = r->bytes_down_alone = i + 1;
                r->accuracy = r->loss = r->train_loss = r->train_accuracy = r->seconds = 0.5;
                r->evaluated = r->kept = true;
                r->digest = (ProtobufCBinaryData){.len = sizeof digest, .data = digest};
                cost_pointers[i] = &costs[i];
                mfl__node_cost__init(&costs[i]);
                costs[i].round = i + 1;
                costs[i].node = "a";
        }
        info.job = "j-000001";
        info.state = MFL__JOB_STATE__JOB_DONE;
        detail.info = &info;
        detail.n_rounds = detail.n_nodes = 1000;
        detail.rounds = pointers;
        detail.nodes = cost_pointers;
        envelope.body_case = MFL__ENVELOPE__BODY_JOB_DETAIL;
        envelope.job_detail = &detail;
        if (mfl_wire_pack(&envelope, &bytes, &n, &err) || mfl_wire_unpack(bytes, n, &back, &err))
                fail_msg("%s", err.text);
        assert_int_equal(back->job_detail->n_rounds, 1000);
        assert_int_equal(back->job_detail->rounds[999]->bytes_down_alone, 1000);
        mfl_wire_free(back);
        free(bytes);
}

static void want_of_memory_leaks_nothing(void **state)
{
        struct mfl_rng r = mfl_rng_new(3, MFL_RNG_TEST, 0, 0);
        struct mfl_msg m, back;
        random_msg(&r, MFL_MSG_HELLO, &m);
        for (long at = 0;; at++) {
                uint8_t *bytes = NULL;
                size_t n;
                Mfl__Envelope *e = NULL;
                mfl_alloc_fail_at(at);
                int result = mfl_wire_pack_msg(&m, NULL, &bytes, &n, NULL);
                if (!result)
                        result = mfl_wire_unpack(bytes, n, &e, NULL);
                if (!result)
                        result = mfl_wire_to_msg(e, &back, NULL);
                bool failed = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(result, failed ? -ENOMEM : 0);
                mfl_wire_free(e);
                free(bytes);
                if (!failed)
                        break;
        }
        mfl_msg_deinit(&m);
        mfl_msg_deinit(&back);
}

static void a_header_has_the_documented_bytes(void **state)
{
        static const uint8_t want[24] = {
                'M', 'F', 'L', '1', 1, 0, 0, 0, 4, 3, 2, 0, 8, 7, 6, 0, 1, 2, 3, 4, 5, 6, 7, 8};
        struct mfl_frame f = {1, 0x020304, 0x060708, 0x04030201, 0x08070605}, back;
        uint8_t got[24];
        mfl_frame_encode(&f, got);
        assert_memory_equal(got, want, 24);
        assert_int_equal(mfl_frame_decode(got, MFL_ENVELOPE_MAX, MFL_PAYLOAD_MAX, &back, NULL), 0);
        assert_int_equal(back.version, f.version);
        assert_int_equal(back.envelope_bytes, f.envelope_bytes);
        assert_int_equal(back.payload_bytes, f.payload_bytes);
        assert_int_equal(back.envelope_crc, f.envelope_crc);
        assert_int_equal(back.payload_crc, f.payload_crc);
        assert_int_equal(mfl_frame_decode(got, 0x020303, MFL_PAYLOAD_MAX, &back, NULL), MFL_INVALID);
        assert_int_equal(mfl_frame_decode(got, MFL_ENVELOPE_MAX, 0x060707, &back, NULL), MFL_INVALID);
        got[6] = 1;
        assert_int_equal(mfl_frame_decode(got, MFL_ENVELOPE_MAX, MFL_PAYLOAD_MAX, &back, NULL), MFL_INVALID);
}

/* What packed params stand for is more than what comes, and no more than there is room for. */
static void packed_params_fit(void **state)
{
        static const struct {
                size_t payload;
                uint64_t offset;
                uint32_t bytes;
                bool of_client, ok;
        } cases[] = {{17, 0, 400, false, true}, {17, 50, 200, false, true}, {17, 51, 200, false, false},
                {400, 0, 400, false, false}, {17, 0, 399, false, false}, {17, 0, 400, true, false},
                {17, 0, 0, false, false}, {400, 0, 0, false, true}, {0, 0, 400, false, true}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                Mfl__Params params = MFL__PARAMS__INIT;
                Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
                params.total = 100;
                params.offset = cases[i].offset;
                params.bytes = cases[i].bytes;
                params.of_client = cases[i].of_client;
                envelope.body_case = MFL__ENVELOPE__BODY_PARAMS;
                envelope.params = &params;
                assert_int_equal(mfl_wire_check_payload(&envelope, cases[i].payload, NULL),
                        cases[i].ok ? 0 : MFL_INVALID);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(messages_survive_the_way_there_and_back),
                cmocka_unit_test(each_broken_field_is_named),
                cmocka_unit_test(what_is_inside_fits),
                cmocka_unit_test(foreign_bytes_are_refused),
                cmocka_unit_test(a_long_job_comes_through),
                cmocka_unit_test(want_of_memory_leaks_nothing),
                cmocka_unit_test(a_header_has_the_documented_bytes),
                cmocka_unit_test(packed_params_fit),
        };
        return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
