/* SPDX-License-Identifier: Apache-2.0 */
/* What makes an envelope valid: one table with a row for every field of every message, and the few rules that
 * join fields. The walk follows protobuf-c's descriptors, so a field without a row is an assertion, not a
 * hole. */
#include "proto/wire.h"

#include <inttypes.h>
#include <math.h>

#include "common/bounded.h"
#include "proto/wire_internal.h"

/* Bounds of a field, both included: the value of a number (unsigned ones above INT64_MAX count as INT64_MAX),
 * the length of a string or of bytes, the count of a repeated field, 1..1 for a message that must be there.
 * Numbers in floating point must be finite and enums known and specified, without a row saying so; an enum
 * whose row has another maximum than 0 may be left out. */
struct rule {
        const char *name;
        int64_t min, max;
};

#define ANY INT64_MIN, INT64_MAX
#define BOOL 0, 1
#define ENUM 0, 0
#define ENUM_OR_NONE 0, 1 /* a peer of before does not know the field */
#define FLOAT 0, 0
#define OPTIONAL 0, 1
#define REQUIRED 1, 1
#define NAME 1, MFL_NAME_BYTES - 1
#define NAME_OR_EMPTY 0, MFL_NAME_BYTES - 1
#define JOB 1, MFL_JOB_ID_BYTES - 1
#define JOB_OR_EMPTY 0, MFL_JOB_ID_BYTES - 1
#define REASON 0, 500
#define NOTE 0, 8192
#define JOB_TEXT_MAX (256 * 1024)
#define DIGEST MFL_DIGEST_BYTES, MFL_DIGEST_BYTES
#define PARAMS 1, (int64_t)MFL_PARAMS_MAX
#define PARAMS_OFFSET 0, (int64_t)MFL_PARAMS_MAX
#define BYTES_MAX ((int64_t)MFL_PARAMS_MAX * 8)
#define WEIGHT_MAX ((int64_t)1 << 50) /* common/fixed.h, of a round */
#define DAY_MS (24 * 3600 * 1000)
#define NOT_NEGATIVE 0, INT64_MAX
#define PATTERN 1, MFL_ACCESS_PATTERN_BYTES - 1
#define YEAR_S (366 * 24 * 3600)
#define NODE_BYTES (2 * MFL_NAME_BYTES) /* an id, "/", a daemon's name */
#define DEVICE_BYTES 0, (int64_t)1 << 60

typedef int check_fn(const void *message, struct mfl_error *err);

#define INVALID(...) mfl_fail(err, MFL_INVALID, __VA_ARGS__)

static bool name_is_plain(const char *s)
{
        return s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")] == '\0';
}

static int check_shape(const char *what, size_t n, const uint32_t *dim, struct mfl_error *err)
{
        uint64_t count = 1;
        for (size_t i = 0; i < n; i++) {
                if (!dim[i] || dim[i] > 1u << 28)
                        return INVALID("%s: dimension %u is not in 1..%u", what, dim[i], 1u << 28);
                count *= dim[i];
                if (count > 1u << 28)
                        return INVALID("%s: more than %u numbers in a sample", what, 1u << 28);
        }
        return 0;
}

static int check_data_set(const void *message, struct mfl_error *err)
{
        const Mfl__DataSet *m = message;
        return check_shape("DataSet.shape", m->n_shape, m->shape, err);
}

static int check_pull_begin(const void *message, struct mfl_error *err)
{
        const Mfl__PullBegin *m = message;
        return check_shape("PullBegin.input", m->n_input, m->input, err);
}

static int check_drain(const void *message, struct mfl_error *err)
{
        const Mfl__Drain *m = message;
        if (m->all == (*m->daemon != '\0'))
                return INVALID("Drain.daemon: expected a name, or none and `all`");
        return 0;
}

/* A pattern of names, or what is to be found in a certificate. */
static int check_pattern(const char *pattern, struct mfl_error *err)
{
        static const char hex[] = "0123456789abcdefABCDEF";
        const char *s = pattern;
        if (!strncmp(s, "sha256:", 7))
                return s[7 + strspn(s + 7, hex)] || strlen(s + 7) != 64
                               ? INVALID("Access.pattern: sha256: wants 64 hexadecimal digits")
                               : 0;
        if (!strncmp(s, "cn:", 3))
                s += 3;
        if (!*s || strlen(s) >= MFL_NAME_BYTES)
                return INVALID("Access.pattern: a name has 1 to %d bytes", MFL_NAME_BYTES - 1);
        for (; *s; s++)
                if (!strchr("*?", *s) && !name_is_plain((char[]){*s, '\0'}))
                        return INVALID("Access.pattern: only A-Z, a-z, 0-9, '.', '_', '-', '*' and '?' may "
                                       "be in a name, after 'cn:' or nothing");
        return 0;
}

static int check_access(const void *message, struct mfl_error *err)
{
        const Mfl__Access *m = message;
        if (m->seconds && (m->remove || m->verdict != MFL__VERDICT__VERDICT_DENY))
                return INVALID("Access.seconds: only for a rule that denies");
        return check_pattern(m->pattern, err);
}

static int check_access_rule(const void *message, struct mfl_error *err)
{
        const Mfl__AccessRule *m = message;
        return check_pattern(m->pattern, err);
}

static int check_hello(const void *message, struct mfl_error *err)
{
        const Mfl__Hello *m = message;
        if (m->protocol_max < m->protocol_min)
                return INVALID(
                        "Hello.protocol_max: %u is below protocol_min %u", m->protocol_max, m->protocol_min);
        if (!name_is_plain(m->name))
                return INVALID("Hello.name: only A-Z, a-z, 0-9, '.', '_' and '-' may be in it");
        if (m->role != MFL__ROLE__ROLE_DAEMON)
                return 0;
        if (!*m->name)
                return INVALID("Hello.name: empty, a daemon needs one");
        if (!*m->backend)
                return INVALID("Hello.backend: empty, a daemon needs one");
        if (!m->workers)
                return INVALID("Hello.workers: 0, a daemon has at least 1");
        return 0;
}

static int check_welcome(const void *message, struct mfl_error *err)
{
        const Mfl__Welcome *m = message;
        if (m->dead_ms <= m->heartbeat_ms)
                return INVALID(
                        "Welcome.dead_ms: %u is not above heartbeat_ms %u", m->dead_ms, m->heartbeat_ms);
        return 0;
}

static int check_task(const void *message, struct mfl_error *err)
{
        const Mfl__Task *m = message;
        if (m->n_frozen >= m->n_params)
                return INVALID("Task.n_frozen: %" PRIu64 " of %" PRIu64 " params: none moves", m->n_frozen,
                        m->n_params);
        if (m->frozen_digest.len != (m->n_frozen ? MFL_DIGEST_BYTES : 0))
                return INVALID("Task.frozen_digest: %zu bytes, with %" PRIu64 " frozen params",
                        m->frozen_digest.len, m->n_frozen);
        if (m->kind != MFL__TASK_KIND__TASK_TRAIN)
                return 0;
        if (!(m->delta_max > 0))
                return INVALID("Task.delta_max: %g is not above 0", (double)m->delta_max);
        if (!m->weight_max)
                return INVALID("Task.weight_max: 0, expected at least 1");
        if (ldexp((double)m->weight_max * (double)m->delta_max, m->scale_bits) > 0x1p62)
                return INVALID("Task.scale_bits: weight_max * delta_max * 2^%d is above 2^62", m->scale_bits);
        return 0;
}

static int check_group(const void *message, struct mfl_error *err)
{
        const Mfl__Group *m = message;
        if (m->collective == MFL__COLLECTIVE__COLLECTIVE_SOLO)
                return INVALID("Group.collective: a group is not solo");
        if (m->rank >= m->n_members)
                return INVALID("Group.rank: %u of %zu members", m->rank, m->n_members);
        for (size_t i = 0; i < m->n_members; i++)
                for (size_t k = 0; k < i; k++)
                        if (m->members[i] == m->members[k])
                                return INVALID("Group.members: %zu and %zu are the same", k, i);
        return 0;
}

static int check_combine(const void *message, struct mfl_error *err)
{
        const Mfl__Combine *m = message;
        if (!(m->ranks >> m->leader & 1))
                return INVALID("Combine.leader: %u is not one of the ranks", m->leader);
        return 0;
}

static int check_params(const void *message, struct mfl_error *err)
{
        const Mfl__Params *m = message;
        if (m->offset > m->total)
                return INVALID("Params.offset: %" PRIu64 " is beyond total %" PRIu64, m->offset, m->total);
        return 0;
}

static int check_announce(const void *message, struct mfl_error *err)
{
        const Mfl__Announce *m = message;
        bool single = m->encoding == MFL__ENCODING__ENCODING_F32;
        unsigned unit = single ? 4 : 8;
        if ((uint64_t)m->item_first + m->item_count > MFL_ITEMS_MAX)
                return INVALID("Announce.item_count: items %u + %u are beyond %u", m->item_first,
                        m->item_count, MFL_ITEMS_MAX);
        if (m->n_rejected > m->item_count)
                return INVALID("Announce.rejected: %zu of %u items", m->n_rejected, m->item_count);
        if (single && m->item_count != 1)
                return INVALID("Announce.item_count: %u, but f32 is of one client", m->item_count);
        if (m->bytes % unit)
                return INVALID("Announce.bytes: %" PRIu64 " is not a multiple of %u", m->bytes, unit);
        if (single && m->bytes > (uint64_t)BYTES_MAX / 2)
                return INVALID("Announce.bytes: %" PRIu64 " is above the limit of f32", m->bytes);
        if ((m->n_rejected == m->item_count) != (m->bytes == 0))
                return INVALID("Announce.bytes: %" PRIu64 " with %zu of %u items rejected", m->bytes,
                        m->n_rejected, m->item_count);
        if ((m->weight == 0) != (m->bytes == 0))
                return INVALID("Announce.weight: %" PRIu64 " of %" PRIu64 " bytes", m->weight, m->bytes);
        return 0;
}

/* Only the range that reaches the end of a float32 update may have an odd number of floats. */
static int check_grant(const void *message, struct mfl_error *err)
{
        const Mfl__Grant *m = message;
        uint64_t end = 0;
        for (size_t i = 0; i < m->n_ranges; i++) {
                const Mfl__Range *r = m->ranges[i];
                unsigned unit = i + 1 == m->n_ranges ? 4 : 8;
                if (r->offset % 8)
                        return INVALID("Grant.ranges: offset %" PRIu64 " is not a multiple of 8", r->offset);
                if (r->bytes % unit)
                        return INVALID(
                                "Grant.ranges: %" PRIu64 " bytes are not a multiple of %u", r->bytes, unit);
                if (r->offset < end)
                        return INVALID("Grant.ranges: offset %" PRIu64 " after %" PRIu64
                                       ", expected ascending",
                                r->offset, end);
                end = r->offset + r->bytes;
        }
        if (end > (uint64_t)BYTES_MAX)
                return INVALID("Grant.ranges: end at %" PRIu64 ", expected at most %" PRId64, end, BYTES_MAX);
        return 0;
}

static int check_chunk(const void *message, struct mfl_error *err)
{
        const Mfl__Chunk *m = message;
        if (m->offset % 8)
                return INVALID("Chunk.offset: %" PRIu64 " is not a multiple of 8", m->offset);
        return 0;
}

static int check_eval_item(const void *message, struct mfl_error *err)
{
        const Mfl__EvalItem *m = message;
        if (m->correct > m->samples)
                return INVALID(
                        "EvalItem.correct: %" PRIu64 " of %" PRIu64 " samples", m->correct, m->samples);
        return 0;
}

static int check_activity(const void *message, struct mfl_error *err)
{
        const Mfl__Activity *m = message;
        double sum = 0;
        if (m->samples_per_second < 0)
                return INVALID("Activity.samples_per_second: %g is below 0", m->samples_per_second);
        for (int s = 0; s < MFL_ACTIVITY_STATES; s++) {
                double share = mfl_wire_activity_share(m, s);
                if (!(share >= 0 && share <= 1))
                        return INVALID("Activity.%s: %g is not in 0..1", mfl_activity_state_name(s), share);
                sum += share;
        }
        if (!(fabs(sum - 1) < 1e-6))
                return INVALID("Activity.wait: the shares are %g together, expected 1", sum);
        return 0;
}

static int check_telemetry(const void *message, struct mfl_error *err)
{
        const Mfl__Telemetry *m = message;
        if (m->has_memory_used_case && m->has_memory_total_case && m->memory_used > m->memory_total)
                return INVALID("Telemetry.memory_used: %" PRIu64 " of %" PRIu64 " bytes", m->memory_used,
                        m->memory_total);
        return 0;
}

static int check_partition(const void *message, struct mfl_error *err)
{
        const Mfl__Partition *m = message;
        uint64_t samples = 0;
        if (m->samples_min > m->samples_max)
                return INVALID(
                        "Partition.samples_min: %u is above samples_max %u", m->samples_min, m->samples_max);
        if (m->n_shown > m->clients)
                return INVALID("Partition.shown: %zu of %u clients", m->n_shown, m->clients);
        for (size_t i = 0; i < m->n_shown; i++) {
                const Mfl__ClientSamples *c = m->shown[i];
                if (i && c->client <= m->shown[i - 1]->client && !*c->daemon)
                        return INVALID("Partition.shown: client %" PRIu64 " after %" PRIu64
                                       ", expected ascending",
                                c->client, m->shown[i - 1]->client);
                if (c->samples < m->samples_min || c->samples > m->samples_max)
                        return INVALID("Partition.shown: %u samples, not in %u..%u", c->samples,
                                m->samples_min, m->samples_max);
                if (c->n_classes && c->n_classes != MFL_MIN(m->classes, (uint32_t)MFL_PARTITION_CLASSES_MAX))
                        return INVALID("Partition.shown: counts of %zu classes, the data set has %u",
                                c->n_classes, m->classes);
                samples += c->samples;
        }
        if (samples > m->samples)
                return INVALID("Partition.samples: %" PRIu64 ", but the clients shown have %" PRIu64,
                        m->samples, samples);
        if (mfl__partition__get_packed_size(m) > MFL_PARTITION_BYTES_MAX)
                return INVALID("Partition: more than %d bytes", MFL_PARTITION_BYTES_MAX);
        return 0;
}

static int check_client_samples(const void *message, struct mfl_error *err)
{
        const Mfl__ClientSamples *m = message;
        uint64_t samples = 0;
        for (size_t i = 0; i < m->n_classes; i++)
                samples += m->classes[i];
        if (m->n_classes && samples != m->samples)
                return INVALID("ClientSamples.classes: %" PRIu64 " samples together, expected %u", samples,
                        m->samples);
        return 0;
}

static int check_event(const void *message, struct mfl_error *err)
{
        const Mfl__Event *m = message;
        if (m->what_case == MFL__EVENT__WHAT__NOT_SET)
                return INVALID("Event.what: not set, or of a kind that this version does not know");
        return 0;
}

static int check_envelope(const void *message, struct mfl_error *err)
{
        const Mfl__Envelope *m = message;
        if (m->body_case == MFL__ENVELOPE__BODY__NOT_SET)
                return INVALID("Envelope.body: not set, or of a kind that this version does not know");
        return 0;
}

struct message_rules {
        const ProtobufCMessageDescriptor *descriptor;
        check_fn *check;
        const struct rule *rules; /* in the order of the field numbers */
        size_t n;
};
#define MESSAGE(name, check_, ...)                                                                           \
        {                                                                                                    \
                &mfl__##name##__descriptor, check_, (const struct rule[]){__VA_ARGS__},                      \
                        sizeof((const struct rule[]){__VA_ARGS__}) / sizeof(struct rule)                     \
        }
#define MESSAGE_EMPTY(name)                                                                                  \
        {                                                                                                    \
                &mfl__##name##__descriptor, NULL, NULL, 0                                                    \
        }

#define DEVICE_RULES                                                                                         \
        {"device_uuid", 0, MFL_DEVICE_UUID_BYTES - 1}, {"device_pci", 0, MFL_DEVICE_PCI_BYTES - 1},          \
        {                                                                                                    \
                "device_memory", DEVICE_BYTES                                                                \
        }

/* Envelope is walked by its one set member. */
static const struct message_rules messages[] = {
        MESSAGE(hello, check_hello, {"protocol_min", 1, 65535}, {"protocol_max", 1, 65535}, {"role", ENUM},
                {"software", NAME_OR_EMPTY}, {"name", NAME_OR_EMPTY}, {"instance", ANY},
                {"node", NAME_OR_EMPTY}, {"backend", 0, 15}, {"device", 0, 95}, {"workers", 0, MFL_ITEMS_MAX},
                {"data_sets", 0, MFL_DATA_SETS_MAX}, DEVICE_RULES, {"reach", OPTIONAL},
                {"numerics", 0, MFL_NUMERICS_BYTES - 1}),
        MESSAGE(reach, NULL, {"user", ANY}, {"network_space", ANY}, {"memory_space", ANY}, {"nccl", ANY},
                {"memory_reason", 0, 200}, {"nccl_reason", 0, 200}),
        MESSAGE(data_set, check_data_set, {"name", NAME}, {"shape", 1, MFL_SHAPE_RANK_MAX},
                {"classes", 1, 1 << 24}, {"train_samples", ANY}, {"test_samples", ANY}, {"fingerprint", ANY},
                {"meaning", ANY}),
        MESSAGE(welcome, check_welcome, {"protocol", 1, 65535}, {"software", NAME_OR_EMPTY},
                {"heartbeat_ms", 1, DAY_MS}, {"dead_ms", 1, DAY_MS}, {"server_instance", ANY}),
        MESSAGE(bye, NULL, {"reason", REASON}, {"retry", BOOL}),
        MESSAGE(ping, NULL, {"cookie", ANY}),
        MESSAGE(pong, NULL, {"cookie", ANY}),
        MESSAGE(job_spec, NULL, {"job", JOB}, {"text", 1, JOB_TEXT_MAX}),
        MESSAGE(task, check_task, {"task", ANY}, {"job", JOB}, {"round", ANY}, {"kind", ENUM},
                {"items", 1, MFL_ITEMS_MAX}, {"params_digest", DIGEST}, {"n_params", PARAMS},
                {"scale_bits", -126, 126}, {"delta_max", FLOAT}, {"weight_max", 0, WEIGHT_MAX},
                {"single_updates", BOOL}, {"fingerprint", ANY}, {"params_from", ANY}, {"group", OPTIONAL},
                {"n_frozen", PARAMS_OFFSET}, {"frozen_digest", 0, MFL_DIGEST_BYTES}),
        MESSAGE(group, check_group, {"group", 1, INT64_MAX}, {"collective", ENUM},
                {"rank", 0, MFL_GROUP_MAX - 1}, {"members", 2, MFL_GROUP_MAX},
                {"workers", 1, MFL_GROUP_MAX *MFL_ITEMS_MAX}, {"communicator", ANY}),
        MESSAGE(combine, check_combine, {"group", 1, INT64_MAX}, {"ranks", ANY},
                {"leader", 0, MFL_GROUP_MAX - 1}, {"deadline_ms", 1, DAY_MS}),
        MESSAGE(combine_failed, NULL, {"group", 1, INT64_MAX}, {"reason", REASON}),
        MESSAGE(alone, NULL, {"task", ANY}, {"reason", REASON}),
        MESSAGE(communicator_id, NULL, {"communicator", 1, INT64_MAX}, {"id", 0, MFL_COMMUNICATOR_ID_BYTES},
                {"reason", REASON}),
        MESSAGE(leaving, NULL, {"reason", REASON}),
        MESSAGE(cancel, NULL, {"task", ANY}, {"reason", REASON}),
        MESSAGE(job_over, NULL, {"job", JOB}),
        MESSAGE(params_get, NULL, {"job", JOB}, {"digest", DIGEST}, {"offset", PARAMS_OFFSET}),
        MESSAGE(params, check_params, {"job", JOB_OR_EMPTY}, {"digest", DIGEST}, {"offset", PARAMS_OFFSET},
                {"total", PARAMS}),
        MESSAGE(params_gone, NULL, {"job", JOB}, {"digest", DIGEST}),
        MESSAGE(announce, check_announce, {"task", ANY}, {"update", ANY}, {"item_first", 0, MFL_ITEMS_MAX},
                {"item_count", 1, MFL_ITEMS_MAX}, {"rejected", 0, MFL_ITEMS_MAX}, {"encoding", ENUM},
                {"bytes", 0, BYTES_MAX}, {"weight", 0, WEIGHT_MAX}, {"samples", ANY},
                {"loss_sum", NOT_NEGATIVE}, {"correct", ANY}, {"train_us", ANY}, {"job", JOB}, {"round", ANY},
                {"group", ANY}),
        MESSAGE(rejected, NULL, {"item", ANY}, {"reason", REASON}),
        MESSAGE(grant, check_grant, {"task", ANY}, {"update", ANY}, {"ranges", 0, MFL_RANGES_MAX}),
        MESSAGE(range, NULL, {"offset", 0, BYTES_MAX}, {"bytes", 1, BYTES_MAX}),
        MESSAGE(chunk, check_chunk, {"task", ANY}, {"update", ANY}, {"offset", 0, BYTES_MAX}),
        MESSAGE(accepted, NULL, {"task", ANY}, {"update", ANY}),
        MESSAGE(refused, NULL, {"task", ANY}, {"update", ANY}, {"code", ENUM}, {"reason", REASON}),
        MESSAGE(eval_item, check_eval_item, {"item", ANY}, {"samples", ANY}, {"loss_sum", NOT_NEGATIVE},
                {"correct", ANY}),
        MESSAGE(eval_result, NULL, {"task", ANY}, {"items", 1, MFL_ITEMS_MAX}),
        MESSAGE(task_failed, NULL, {"task", ANY}, {"reason", REASON}, {"permanent", BOOL}),
        MESSAGE(progress, NULL, {"task", ANY}, {"items_done", 0, MFL_ITEMS_MAX}, {"samples_done", ANY},
                {"loss_sum", NOT_NEGATIVE}),
        MESSAGE(telemetry, check_telemetry, {"gpu_percent", 0, 100}, {"memory_used", DEVICE_BYTES},
                {"memory_total", DEVICE_BYTES}, {"temperature", 0, 1000}, {"power_mw", 0, 1000000000},
                {"activity", OPTIONAL}),
        MESSAGE(activity, check_activity, {"workers", 1, MFL_ITEMS_MAX}, {"compute_us", ANY},
                {"data_us", ANY}, {"network_us", ANY}, {"wait_us", ANY}, {"samples", ANY},
                {"samples_per_second", FLOAT}, {"compute", FLOAT}, {"data", FLOAT}, {"network", FLOAT},
                {"wait", FLOAT}),
        MESSAGE(partition, check_partition, {"job", JOB}, {"clients", 1, UINT32_MAX}, {"samples", ANY},
                {"samples_min", ANY}, {"samples_max", ANY}, {"classes", 0, 1 << 24},
                {"shown", 1, MFL_PARTITION_SHOWN_MAX}),
        MESSAGE(client_samples, check_client_samples, {"client", ANY}, {"samples", ANY},
                {"classes", 0, MFL_PARTITION_CLASSES_MAX}, {"daemon", NAME_OR_EMPTY}),
        MESSAGE(submit, NULL, {"text", 1, JOB_TEXT_MAX}, {"file", 0, 4096}, {"token", NAME_OR_EMPTY},
                {"initial_count", PARAMS_OFFSET}),
        MESSAGE(submitted, NULL, {"job", JOB}, {"existed", BOOL}),
        MESSAGE(initial, NULL, {"offset", PARAMS_OFFSET}),
        MESSAGE_EMPTY(list_jobs),
        MESSAGE(job_info, NULL, {"job", JOB}, {"name", NAME_OR_EMPTY}, {"state", ENUM}, {"reason", REASON},
                {"round", ANY}, {"rounds", ANY}, {"n_params", PARAMS_OFFSET}, {"model", NAME_OR_EMPTY},
                {"data", NAME_OR_EMPTY}, {"strategy", NAME_OR_EMPTY}, {"created_ms", ANY},
                {"finished_ms", ANY}, {"last", OPTIONAL}, {"best", OPTIONAL}, {"in_round", ANY},
                {"clients_done", ANY}, {"clients_total", ANY}, {"daemons", ANY}, {"phase", NAME_OR_EMPTY},
                {"attempt", ANY}, {"owner", NAME_OR_EMPTY}, {"per_token", BOOL}, {"n_frozen", PARAMS_OFFSET},
                {"evaluated", OPTIONAL}),
        MESSAGE(round_info, NULL, {"round", ANY}, {"evaluated", BOOL}, {"accuracy", FLOAT}, {"loss", FLOAT},
                {"train_loss", FLOAT}, {"train_accuracy", FLOAT}, {"samples", ANY}, {"clients", ANY},
                {"clients_rejected", ANY}, {"weight", ANY}, {"bytes_up", ANY}, {"bytes_down", ANY},
                {"seconds", FLOAT}, {"digest", 0, MFL_DIGEST_BYTES}, {"attempt", ANY}, {"committed_ms", ANY},
                {"kept", BOOL}, {"daemons", ANY}, {"bytes_up_alone", ANY}, {"bytes_down_alone", ANY},
                {"no_accuracy", BOOL}),
        MESSAGE(node_cost, NULL, {"round", ANY}, {"node", 0, NODE_BYTES - 1}, {"daemons", ANY},
                {"bytes_up", ANY}, {"bytes_down", ANY}, {"bytes_up_alone", ANY}, {"bytes_down_alone", ANY}),
        MESSAGE(job_list, NULL, {"jobs", 0, 65536}),
        MESSAGE(show_job, NULL, {"job", JOB}),
        MESSAGE(job_detail, NULL, {"info", REQUIRED}, {"text", 0, JOB_TEXT_MAX}, {"rounds", 0, 1000},
                {"nodes", 0, 1000}),
        MESSAGE(watch, NULL, {"job", JOB}, {"logs", BOOL}, {"follow", BOOL}, {"rounds_from", ANY},
                {"all_rounds", BOOL}, {"crew", BOOL}),
        MESSAGE(get_partition, NULL, {"job", JOB}),
        MESSAGE(job_partition, NULL, {"job", JOB}, {"local", BOOL}, {"partition", OPTIONAL}),
        MESSAGE(event, check_event, {"info", OPTIONAL}, {"round", OPTIONAL}, {"log", OPTIONAL},
                {"crew", OPTIONAL}),
        MESSAGE(crew, NULL, {"members", 0, MFL_CREW_MAX}, {"more", ANY}),
        MESSAGE(crew_member, NULL, {"daemon", NAME}, {"state", NAME_OR_EMPTY}, {"items_done", ANY},
                {"items_total", ANY}, {"activity", OPTIONAL}),
        MESSAGE(log_line, NULL, {"seq", ANY}, {"time_ms", ANY}, {"text", NOTE}),
        MESSAGE(stop_job, NULL, {"job", JOB}),
        MESSAGE(stop_after_round, NULL, {"job", JOB}),
        MESSAGE(delete_job, NULL, {"job", JOB}),
        MESSAGE(clone_job, NULL, {"job", JOB}, {"token", NAME_OR_EMPTY}),
        MESSAGE(list_models, NULL, {"job", JOB}),
        MESSAGE(model_list, NULL, {"models", 0, 65536}),
        MESSAGE(pull, NULL, {"job", JOB}, {"round", -2, UINT32_MAX}),
        MESSAGE(pull_begin, check_pull_begin, {"round", REQUIRED}, {"n_params", PARAMS},
                {"text", 0, JOB_TEXT_MAX}, {"input", 1, MFL_SHAPE_RANK_MAX}, {"classes", 1, 1 << 24},
                {"n_frozen", PARAMS_OFFSET}),
        MESSAGE_EMPTY(list_daemons),
        MESSAGE(daemon_info, NULL, {"name", NAME}, {"node", 0, NODE_BYTES - 1}, {"address", 0, 127},
                {"backend", 0, 15}, {"device", 0, 95}, {"workers", ANY}, {"state", NAME_OR_EMPTY},
                {"job", JOB_OR_EMPTY}, {"round", ANY}, {"items_done", ANY}, {"items_total", ANY},
                {"samples_per_second", FLOAT}, {"connected_ms", ANY}, {"data_sets", 0, MFL_DATA_SETS_MAX},
                {"software", NAME_OR_EMPTY}, {"note", REASON}, DEVICE_RULES, {"telemetry", OPTIONAL},
                {"collective", ENUM_OR_NONE}, {"leader", BOOL}, {"alone", REASON},
                {"clients_per_second", FLOAT}, {"activity", OPTIONAL},
                {"numerics", 0, MFL_NUMERICS_BYTES - 1}),
        MESSAGE(daemon_list, NULL, {"daemons", 0, 65536}),
        MESSAGE(drain, check_drain, {"daemon", NAME_OR_EMPTY}, {"undo", BOOL}, {"wait", BOOL}, {"all", BOOL}),
        MESSAGE(done, NULL, {"text", NOTE}),
        MESSAGE(access, check_access, {"pattern", PATTERN}, {"verdict", ENUM}, {"remove", BOOL},
                {"reason", 0, MFL_ACCESS_REASON_BYTES - 1}, {"seconds", 0, YEAR_S}),
        MESSAGE_EMPTY(list_access),
        MESSAGE(access_rule, check_access_rule, {"pattern", PATTERN}, {"verdict", ENUM},
                {"who", NAME_OR_EMPTY}, {"time_ms", ANY}, {"until_ms", ANY},
                {"reason", 0, MFL_ACCESS_REASON_BYTES - 1}, {"connected", ANY}, {"refused", ANY}),
        MESSAGE(access_list, NULL, {"rules", 0, MFL_ACCESS_RULES_MAX}),
        MESSAGE(list_audit, NULL, {"count", 0, 1000}),
        MESSAGE(audit_entry, NULL, {"seq", ANY}, {"time_ms", ANY}, {"who", NAME_OR_EMPTY},
                {"address", 0, 127}, {"action", NAME_OR_EMPTY}, {"object", NAME_OR_EMPTY},
                {"result", NAME_OR_EMPTY}, {"text", REASON}),
        MESSAGE(audit_list, NULL, {"entries", 0, 1000}),
        MESSAGE(failure, NULL, {"code", ENUM}, {"text", NOTE}),
};

static const struct message_rules *find_rules(const ProtobufCMessageDescriptor *descriptor)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(messages); i++) {
                const struct message_rules *m = &messages[i];
                if (m->descriptor != descriptor)
                        continue;
                mfl_assert(m->n == descriptor->n_fields);
                for (size_t f = 0; f < m->n; f++)
                        mfl_assert(!strcmp(m->rules[f].name, descriptor->fields[f].name));
                return m;
        }
        mfl_assert(!"a message without rules");
        return NULL;
}

/* Well-formed UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool utf8_valid(const char *text)
{
        const uint8_t *s = (const uint8_t *)text;
        while (*s) {
                uint8_t c = *s++;
                if (c < 0x80)
                        continue;
                int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
                uint8_t low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
                uint8_t high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
                if (c < 0xc2 || c > 0xf4)
                        return false;
                if (*s < low || *s > high)
                        return false;
                for (s++; --more > 0; s++)
                        if ((*s & 0xc0) != 0x80)
                                return false;
        }
        return true;
}

struct walk {
        const ProtobufCMessageDescriptor *message;
        const ProtobufCFieldDescriptor *field;
        const struct rule *rule;
        bool unpacked; /* strings come from wire.c's allocator, which knows their true length */
        struct mfl_error *err;
};

#define REFUSE(w, fmt, ...)                                                                                  \
        mfl_fail((w)->err, MFL_INVALID, "%s.%s: " fmt, (w)->message->short_name, (w)->field->name,           \
                __VA_ARGS__)

static int check_range(const struct walk *w, int64_t value, const char *what)
{
        if (value >= w->rule->min && value <= w->rule->max)
                return 0;
        if (w->rule->min == w->rule->max)
                return REFUSE(w, "%s%" PRId64 ", expected %" PRId64, what, value, w->rule->min);
        return REFUSE(
                w, "%s%" PRId64 " is not in %" PRId64 "..%" PRId64, what, value, w->rule->min, w->rule->max);
}

static int check_string(const struct walk *w, const char *s)
{
        size_t n = s ? strlen(s) : 0;
        if (w->unpacked && s && s != w->field->default_value && n + 1 != mfl_bounded_size(s))
                return REFUSE(w, "a NUL at byte %zu of the text", n);
        int r = check_range(w, (int64_t)n, "length ");
        if (r)
                return r;
        return !s || utf8_valid(s) ? 0 : REFUSE(w, "%s", "not UTF-8");
}

static int check_bytes(const struct walk *w, const ProtobufCBinaryData *b)
{
        /* Digests and ids: whole, or absent where the row's minimum is 0. */
        if (b->len && (int64_t)b->len != w->rule->max)
                return REFUSE(w, "%zu bytes, expected %" PRId64, b->len, w->rule->max);
        return check_range(w, (int64_t)b->len, "length ");
}

static int check_number(const struct walk *w, const void *p)
{
        const ProtobufCFieldDescriptor *f = w->field;
        uint64_t u;
        switch (f->type) {
        case PROTOBUF_C_TYPE_FLOAT:
                return isfinite(*(const float *)p) ? 0 : REFUSE(w, "%s", "not finite");
        case PROTOBUF_C_TYPE_DOUBLE:
                return isfinite(*(const double *)p) ? 0 : REFUSE(w, "%s", "not finite");
        case PROTOBUF_C_TYPE_ENUM:
                if (!*(const int *)p && w->rule->max)
                        return 0;
                if (*(const int *)p && protobuf_c_enum_descriptor_get_value(f->descriptor, *(const int *)p))
                        return 0;
                return REFUSE(w, "%d is not one that this version knows", *(const int *)p);
        case PROTOBUF_C_TYPE_BOOL:
                return 0;
        case PROTOBUF_C_TYPE_SINT32:
                return check_range(w, *(const int32_t *)p, "");
        case PROTOBUF_C_TYPE_SINT64:
                return check_range(w, *(const int64_t *)p, "");
        case PROTOBUF_C_TYPE_UINT32:
                return check_range(w, *(const uint32_t *)p, "");
        case PROTOBUF_C_TYPE_UINT64:
        case PROTOBUF_C_TYPE_FIXED64:
                u = *(const uint64_t *)p;
                return check_range(w, (int64_t)MFL_MIN(u, (uint64_t)INT64_MAX), "");
        default:
                mfl_assert(!"a type of field without a check");
                return 0;
        }
}

static int check_messages(const ProtobufCMessageDescriptor *d, void *const *list, size_t n, bool unpacked,
        struct mfl_error *err);

static int check_repeated(const struct walk *w, const void *message)
{
        const ProtobufCFieldDescriptor *f = w->field;
        size_t n = *(const size_t *)((const char *)message + f->quantifier_offset);
        void *const *list = *(void *const *const *)((const char *)message + f->offset);
        int r = check_range(w, (int64_t)n, "count ");
        if (r || f->type != PROTOBUF_C_TYPE_MESSAGE)
                return r;
        return check_messages(f->descriptor, list, n, w->unpacked, w->err);
}

static int check_field(const struct walk *w, const void *message)
{
        const ProtobufCFieldDescriptor *f = w->field;
        const void *p = (const char *)message + f->offset;
        if (f->label == PROTOBUF_C_LABEL_REPEATED)
                return check_repeated(w, message);
        /* A member of a oneof that is not the one set shares its memory with the one that is. */
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF &&
                *(const uint32_t *)((const char *)message + f->quantifier_offset) != f->id)
                return 0;
        switch (f->type) {
        case PROTOBUF_C_TYPE_STRING:
                return check_string(w, *(const char *const *)p);
        case PROTOBUF_C_TYPE_BYTES:
                return check_bytes(w, p);
        case PROTOBUF_C_TYPE_MESSAGE:
                if (!*(void *const *)p)
                        return w->rule->min ? REFUSE(w, "%s", "missing") : 0;
                return check_messages(f->descriptor, p, 1, w->unpacked, w->err);
        default:
                return check_number(w, p);
        }
}

static int check_messages(const ProtobufCMessageDescriptor *d, void *const *list, size_t n, bool unpacked,
        struct mfl_error *err)
{
        const struct message_rules *m = find_rules(d);
        for (size_t i = 0; i < n; i++) {
                int r = 0;
                for (size_t f = 0; !r && f < m->n; f++) {
                        struct walk w = {d, &d->fields[f], &m->rules[f], unpacked, err};
                        r = check_field(&w, list[i]);
                }
                if (!r && m->check)
                        r = m->check(list[i], err);
                if (r)
                        return r;
        }
        return 0;
}

int mfl_wire_check(const Mfl__Envelope *envelope, bool unpacked, struct mfl_error *err)
{
        /* A request of a later version can be answered, so it is no reason to part. */
        if (unpacked && envelope->request && envelope->body_case == MFL__ENVELOPE__BODY__NOT_SET)
                return 0;
        int r = check_envelope(envelope, err);
        if (r)
                return r;
        const ProtobufCFieldDescriptor *f =
                protobuf_c_message_descriptor_get_field(&mfl__envelope__descriptor, envelope->body_case);
        mfl_assert(f && f->type == PROTOBUF_C_TYPE_MESSAGE);
        return check_messages(
                f->descriptor, (void *const *)((const char *)envelope + f->offset), 1, unpacked, err);
}

int mfl_wire_check_payload(const Mfl__Envelope *envelope, size_t payload_bytes, struct mfl_error *err)
{
        if (!payload_bytes)
                return 0;
        if (!mfl_wire_has_payload(envelope))
                return INVALID("frame: a payload of %zu bytes with a message that has none", payload_bytes);
        if (payload_bytes % 4)
                return INVALID("frame: a payload of %zu bytes, expected a multiple of 4", payload_bytes);
        uint64_t floats = payload_bytes / 4;
        if (envelope->body_case == MFL__ENVELOPE__BODY_PARAMS &&
                floats > envelope->params->total - envelope->params->offset)
                return INVALID("Params: payload of %" PRIu64 " floats at %" PRIu64
                               " is beyond total %" PRIu64,
                        floats, envelope->params->offset, envelope->params->total);
        return 0;
}
