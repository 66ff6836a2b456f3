/* SPDX-License-Identifier: Apache-2.0 */
/* What makes the messages between daemons and the server valid. */
#include "proto/wire_rules.h"

#include <inttypes.h>
#include <math.h>

bool mfl_wire_name_is_plain(const char *s)
{
        return s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")] == '\0';
}

int mfl_wire_check_shape(const char *what, size_t n, const uint32_t *dim, struct mfl_error *err)
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
        return mfl_wire_check_shape("DataSet.shape", m->n_shape, m->shape, err);
}

static int check_hello(const void *message, struct mfl_error *err)
{
        const Mfl__Hello *m = message;
        if (m->protocol_max < m->protocol_min)
                return INVALID(
                        "Hello.protocol_max: %u is below protocol_min %u", m->protocol_max, m->protocol_min);
        if (!mfl_wire_name_is_plain(m->name))
                return INVALID("Hello.name: only A-Z, a-z, 0-9, '.', '_' and '-' are allowed");
        if (m->role != MFL__ROLE__ROLE_OPERATOR && !*m->name)
                return INVALID("Hello.name: empty; a daemon or relay needs one");
        if (m->role != MFL__ROLE__ROLE_DAEMON)
                return 0;
        if (!*m->backend)
                return INVALID("Hello.backend: empty; a daemon needs one");
        if (!m->workers)
                return INVALID("Hello.workers: 0; a daemon has at least 1");
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
        if (m->params.len % sizeof(float))
                return INVALID("Task.params: %zu bytes are not a whole number of floats", m->params.len);
        if (m->params.len && m->params.len / sizeof(float) != m->n_params - m->n_frozen)
                return INVALID("Task.params: %zu bytes, but %" PRIu64 " params move", m->params.len,
                        m->n_params - m->n_frozen);
        if (m->kind == MFL__TASK_KIND__TASK_ASSIST && !(m->team && m->team->member))
                return INVALID("Task.kind: only members of a team that do not lead it assist");
        if (m->kind != MFL__TASK_KIND__TASK_ASSIST && m->team && m->team->member)
                return INVALID("Task.team: member %u of a team only assists", m->team->member);
        if (m->kind == MFL__TASK_KIND__TASK_EVAL && m->team)
                return INVALID("Task.team: a team does not evaluate");
        if (m->kind != MFL__TASK_KIND__TASK_TRAIN)
                return 0;
        if (m->state_sha256.len % MFL_DIGEST_BYTES)
                return INVALID("Task.state_sha256: %zu bytes", m->state_sha256.len);
        if (!(m->delta_max > 0))
                return INVALID("Task.delta_max: %g is not above 0", (double)m->delta_max);
        for (size_t i = 0; i < m->n_method; i++)
                if (!isfinite(m->method[i]))
                        return INVALID("Task.method: number %zu is not finite", i);
        for (size_t i = 0; i < m->n_grid; i++)
                if ((m->grid[i] < -126 || m->grid[i] > 127) && m->grid[i] != 200)
                        return INVALID("Task.grid: %d is not in -126..127, nor 200", m->grid[i]);
        if (!m->weight_max)
                return INVALID("Task.weight_max: 0, expected at least 1");
        if (ldexp((double)m->weight_max * (double)m->delta_max, m->scale_bits) > 0x1p62)
                return INVALID("Task.scale_bits: weight_max * delta_max * 2^%d is above 2^62", m->scale_bits);
        if (m->statistics_max < 0)
                return INVALID("Task.statistics_max: %g is below 0", (double)m->statistics_max);
        if (ldexp((double)m->weight_max * (double)m->statistics_max, m->statistics_bits) > 0x1p62)
                return INVALID("Task.statistics_bits: weight_max * statistics_max * 2^%d is above 2^62",
                        m->statistics_bits);
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

static int check_team(const void *message, struct mfl_error *err)
{
        const Mfl__Team *m = message;
        uint64_t ranks = 0;
        if (m->member >= m->n_members)
                return INVALID("Team.member: %u of %zu", m->member, m->n_members);
        if (m->n_widths != m->n_members)
                return INVALID("Team.widths: %zu of %zu members", m->n_widths, m->n_members);
        for (size_t i = 0; i < m->n_members; i++) {
                if (!m->widths[i])
                        return INVALID("Team.widths: member %zu has no ranks", i);
                ranks += m->widths[i];
                for (size_t k = 0; k < i; k++)
                        if (m->members[i] == m->members[k])
                                return INVALID("Team.members: %zu and %zu are the same", k, i);
        }
        if (ranks > MFL_TEAM_RANKS_MAX)
                return INVALID("Team.widths: %" PRIu64 " ranks, at most %u", ranks, MFL_TEAM_RANKS_MAX);
        if (m->n_peers && m->n_peers != m->n_members)
                return INVALID("Team.peers: %zu of %zu members", m->n_peers, m->n_members);
        if (m->key.len != (m->n_peers ? MFL_TEAM_KEY_BYTES : 0))
                return INVALID("Team.key: %zu bytes, with %zu peers", m->key.len, m->n_peers);
        return 0;
}

static int check_peer_hello(const void *message, struct mfl_error *err)
{
        const Mfl__PeerHello *m = message;
        if (m->rank >= m->n_ranks || m->to >= m->n_ranks || m->rank == m->to)
                return INVALID("PeerHello.rank: from %u to %u of %u", m->rank, m->to, m->n_ranks);
        return 0;
}

static int check_combine(const void *message, struct mfl_error *err)
{
        const Mfl__Combine *m = message;
        if (!(m->ranks >> m->leader & 1))
                return INVALID("Combine.leader: %u is not one of the ranks", m->leader);
        return 0;
}

static int check_params_get(const void *message, struct mfl_error *err)
{
        const Mfl__ParamsGet *m = message;
        if (m->have.len % MFL_DIGEST_BYTES)
                return INVALID("ParamsGet.have: %zu bytes", m->have.len);
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
                return INVALID("Announce.item_count: %u, but an f32 update has one client", m->item_count);
        if (m->bytes % unit)
                return INVALID("Announce.bytes: %" PRIu64 " is not a multiple of %u", m->bytes, unit);
        if ((m->n_rejected == m->item_count) != (m->bytes == 0))
                return INVALID("Announce.bytes: %" PRIu64 " with %zu of %u items rejected", m->bytes,
                        m->n_rejected, m->item_count);
        if (m->data.len && m->data.len != m->bytes)
                return INVALID("Announce.data: %zu of %" PRIu64 " bytes", m->data.len, m->bytes);
        if (m->masked && (m->weight || m->samples || m->loss_sum || m->correct || m->clamped ||
                                 m->n_scalars || m->n_losses))
                return INVALID("Announce.masked: its figures must be 0");
        if (!m->masked && (m->weight == 0) != (m->bytes == 0))
                return INVALID("Announce.weight: %" PRIu64 " of %" PRIu64 " bytes", m->weight, m->bytes);
        for (size_t i = 0; i < m->n_scalars; i++)
                if (m->scalars[i] < 0)
                        return INVALID("Announce.scalars: %" PRId64 " is negative", m->scalars[i]);
        if (m->state_sha256.len % MFL_DIGEST_BYTES)
                return INVALID("Announce.state_sha256: %zu bytes", m->state_sha256.len);
        if (m->n_losses && m->n_losses != m->item_count)
                return INVALID("Announce.losses: %zu of %u items", m->n_losses, m->item_count);
        return 0;
}

static int check_secure(const void *message, struct mfl_error *err)
{
        const Mfl__Secure *m = message;
        if (m->n_figures && m->n_figures != MFL_SECURE_FIGURES)
                return INVALID("Secure.figures: %zu, expected %d", m->n_figures, (int)MFL_SECURE_FIGURES);
        for (size_t i = 1; i < m->n_parts; i++)
                if (m->parts[i]->member <= m->parts[i - 1]->member)
                        return INVALID("Secure.parts: not in the order of members");
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

static int check_eval_result(const void *message, struct mfl_error *err)
{
        const Mfl__EvalResult *m = message;
        if (m->n_items && m->n_tally % m->n_items)
                return INVALID("EvalResult.tally: %zu numbers for %zu items are not as many for each",
                        m->n_tally, m->n_items);
        return 0;
}

static int check_activity(const void *message, struct mfl_error *err)
{
        const Mfl__Activity *m = message;
        double sum = 0;
        if (m->samples_per_second < 0)
                return INVALID("Activity.samples_per_second: %g is below 0", m->samples_per_second);
        if (m->samples_per_second > RATE_MAX)
                return INVALID(
                        "Activity.samples_per_second: %g is above %g", m->samples_per_second, RATE_MAX);
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
        if ((uint64_t)m->first + m->n_counts > m->clients)
                return INVALID("Partition.counts: clients %u + %zu of %u", m->first, m->n_counts, m->clients);
        for (size_t i = 0; i < m->n_counts; i++)
                if (m->counts[i] < m->samples_min || m->counts[i] > m->samples_max)
                        return INVALID("Partition.counts: %u samples, not in %u..%u", m->counts[i],
                                m->samples_min, m->samples_max);
        if (samples > m->samples)
                return INVALID("Partition.samples: %" PRIu64 ", but the clients shown have %" PRIu64,
                        m->samples, samples);
        if (mfl__partition__get_packed_size(m) - strlen(m->contract) > MFL_PARTITION_BYTES_MAX)
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

static const struct mfl_wire_message messages[] = {
        MESSAGE(hello, check_hello, {"protocol_min", 1, 65535}, {"protocol_max", 1, 65535}, {"role", ENUM},
                {"software", NAME_OR_EMPTY, LINE}, {"name", NAME_OR_EMPTY}, {"instance", ANY},
                {"node", NAME_OR_EMPTY}, {"backend", 0, 15}, {"device", 0, 95, LINE},
                {"workers", 0, MFL_ITEMS_MAX}, {"data_sets", 0, MFL_DATA_SETS_MAX}, DEVICE_RULES,
                {"reach", OPTIONAL}, {"inline_max", ANY}, {"numerics", 0, MFL_NUMERICS_BYTES - 1, LINE},
                {"site", NAME_OR_EMPTY}, {"alone", BOOL}, {"relay", 0, MFL_RELAY_BYTES - 1},
                {"below", 0, MFL_BELOW_MAX}, {"certificate_cn", NAME_OR_EMPTY, LINE},
                {"certificate_sha256", 0, 64}, {"tags", 0, MFL_TAGS_BYTES - 1},
                {"peer", 0, MFL_PEER_BYTES - 1}, {"stays", BOOL}, {"leaving", BOOL}),
        MESSAGE(reach, NULL, {"user", ANY}, {"network_space", ANY}, {"memory_space", ANY}, {"nccl", ANY},
                {"memory_reason", 0, 200, LINE}, {"nccl_reason", 0, 200, LINE}),
        MESSAGE(data_set, check_data_set, {"name", NAME}, {"shape", 1, MFL_SHAPE_RANK_MAX},
                {"classes", 1, 1 << 24}, {"train_samples", ANY}, {"test_samples", ANY}, {"fingerprint", ANY},
                {"meaning", ANY}),
        MESSAGE(welcome, check_welcome, {"protocol", 1, 65535}, {"software", NAME_OR_EMPTY, LINE},
                {"heartbeat_ms", 1, DAY_MS}, {"dead_ms", 1, DAY_MS}, {"server_instance", ANY},
                {"inline_max", ANY}),
        MESSAGE(bye, NULL, {"reason", REASON}, {"retry", BOOL}, {"leader", 0, 300, LINE}),
        MESSAGE(ping, NULL, {"cookie", ANY}),
        MESSAGE(pong, NULL, {"cookie", ANY}),
        MESSAGE(job_spec, NULL, {"job", JOB}, {"text", 1, JOB_TEXT_MAX, VERBATIM},
                {"owner", NAME_OR_EMPTY, LINE}),
        MESSAGE(task, check_task, {"task", ANY}, {"job", JOB}, {"round", ANY}, {"kind", ENUM},
                {"items", 1, MFL_ITEMS_MAX}, {"params_digest", DIGEST}, {"n_params", PARAMS},
                {"scale_bits", -126, 126}, {"delta_max", FLOAT}, {"weight_max", 0, WEIGHT_MAX},
                {"single_updates", BOOL}, {"fingerprint", ANY}, {"params_from", ANY}, {"group", OPTIONAL},
                {"n_frozen", PARAMS_OFFSET}, {"frozen_digest", 0, MFL_DIGEST_BYTES},
                {"params", 0, MFL_INLINE_MAX, VERBATIM}, {"statistics_bits", -126, 126},
                {"statistics_max", FLOAT}, {"arithmetic", 0, 1 << 20}, {"team", OPTIONAL}, {"sum", BOOL},
                {"method", 0, MFL_TASK_METHOD_MAX}, {"participants", ANY},
                {"state_sha256", 0, MFL_DIGEST_BYTES}, {"grid", 0, MFL_GRID_MAX},
                {"staleness", 0, MFL_TASK_STALENESS_MAX}, {"stands", BOOL}),
        MESSAGE(team, check_team, {"team", 1, INT64_MAX}, {"member", 0, MFL_GROUP_MAX - 1},
                {"members", 2, MFL_GROUP_MAX}, {"widths", 2, MFL_GROUP_MAX}, {"peers", 0, MFL_GROUP_MAX},
                {"key", 0, MFL_TEAM_KEY_BYTES}),
        MESSAGE(peer, NULL, {"address", 1, MFL_PEER_BYTES - 1}),
        MESSAGE(peer_hello, check_peer_hello, {"team", 1, INT64_MAX}, {"epoch", ANY},
                {"rank", 0, MFL_TEAM_RANKS_MAX - 1}, {"to", 0, MFL_TEAM_RANKS_MAX - 1},
                {"n_ranks", 2, MFL_TEAM_RANKS_MAX}, {"nonce", PEER_NONCE}, {"proof", 0, MFL_TEAM_KEY_BYTES}),
        MESSAGE(peer_proof, NULL, {"proof", MFL_TEAM_KEY_BYTES, MFL_TEAM_KEY_BYTES}),
        MESSAGE(peer_piece, NULL, {"team", 1, INT64_MAX}, {"epoch", ANY}, {"step", ANY}, {"sequence", ANY},
                {"kind", 0, 7}, {"type", 0, 3}, {"reduction", 0, 2}, {"root", 0, MFL_TEAM_RANKS_MAX - 1},
                {"n", NOT_NEGATIVE}, {"edge", ANY}, {"offset", NOT_NEGATIVE}, {"result", BOOL}),
        MESSAGE(peer_end, NULL, {"reason", REASON}, {"broken", BOOL}, {"accused", 0, MFL_TEAM_RANKS_MAX},
                {"loss", 0, MFL_TEAM_LOSS_MAX}),
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
        MESSAGE(recall, NULL, {"task", ANY}, {"keep", 1, MFL_ITEMS_MAX}),
        MESSAGE(returned, NULL, {"task", ANY}, {"kept", 1, MFL_ITEMS_MAX}),
        MESSAGE(job_over, NULL, {"job", JOB}),
        MESSAGE(params_get, check_params_get, {"job", JOB}, {"digest", DIGEST}, {"offset", PARAMS_OFFSET},
                {"have", 0, MFL_DIGEST_BYTES}, {"of_client", BOOL}, {"client", ANY}),
        MESSAGE(params, check_params, {"job", JOB_OR_EMPTY}, {"digest", DIGEST}, {"offset", PARAMS_OFFSET},
                {"total", PARAMS}, {"bytes", 0, MFL_PAYLOAD_MAX}, {"since", 0, MFL_DIGEST_BYTES},
                {"of_client", BOOL}, {"client", ANY}),
        MESSAGE(params_gone, NULL, {"job", JOB}, {"digest", DIGEST}, {"of_client", BOOL}, {"client", ANY}),
        MESSAGE(announce, check_announce, {"task", ANY}, {"update", ANY}, {"item_first", 0, MFL_ITEMS_MAX},
                {"item_count", 1, MFL_ITEMS_MAX}, {"rejected", 0, MFL_ITEMS_MAX}, {"encoding", ENUM},
                {"bytes", 0, BYTES_MAX}, {"weight", 0, WEIGHT_MAX}, {"samples", COUNTER},
                {"loss_sum", NOT_NEGATIVE}, {"correct", COUNTER}, {"train_us", ANY}, {"job", JOB},
                {"round", ANY}, {"group", ANY}, {"data", 0, MFL_INLINE_MAX, VERBATIM}, {"team", OPTIONAL},
                {"masked", BOOL}, {"scalars", 0, MFL_ANNOUNCE_SCALARS_MAX},
                {"state_sha256", 0, MFL_DIGEST_BYTES}, {"state_anew", BOOL}, {"clamped", COUNTER},
                {"losses", 0, MFL_LOSSES_MAX}),
        MESSAGE(secure, check_secure, {"task", ANY}, {"step", ENUM}, {"parts", 0, MFL_SECURE_MEMBERS_MAX},
                {"set", 0, MFL_SECURE_MEMBERS_MAX / 8, VERBATIM}, {"figures", 0, MFL_SECURE_FIGURES}),
        MESSAGE(secure_part, NULL, {"member", 0, MFL_SECURE_MEMBERS_MAX - 1},
                {"data", 1, MFL_SECURE_KEYS_MAX, VERBATIM}),
        MESSAGE(client_loss, NULL, {"samples", COUNTER}, {"loss_sum", NOT_NEGATIVE},
                {"square_sum", NOT_NEGATIVE}),
        MESSAGE(team_times, NULL, {"compute_us", COUNTER}, {"exchange_us", COUNTER}, {"apply_us", COUNTER},
                {"repeats", ANY}, {"kept", ANY}),
        MESSAGE(rejected, NULL, {"item", ANY}, {"reason", REASON}),
        MESSAGE(grant, check_grant, {"task", ANY}, {"update", ANY}, {"ranges", 0, MFL_RANGES_MAX}),
        MESSAGE(range, NULL, {"offset", 0, BYTES_MAX}, {"bytes", 1, BYTES_MAX}),
        MESSAGE(chunk, check_chunk, {"task", ANY}, {"update", ANY}, {"offset", 0, BYTES_MAX},
                {"bytes", 0, MFL_PAYLOAD_MAX}),
        MESSAGE(accepted, NULL, {"task", ANY}, {"update", ANY}),
        MESSAGE(refused, NULL, {"task", ANY}, {"update", ANY}, {"code", ENUM}, {"reason", REASON}),
        MESSAGE(eval_item, check_eval_item, {"item", ANY}, {"samples", COUNTER}, {"loss_sum", NOT_NEGATIVE},
                {"correct", COUNTER}),
        MESSAGE(eval_result, check_eval_result, {"task", ANY}, {"items", 1, MFL_ITEMS_MAX},
                {"tally", 0, MFL_TALLY_MAX}),
        MESSAGE(task_failed, NULL, {"task", ANY}, {"reason", REASON}, {"permanent", BOOL}, {"broken", BOOL},
                {"accused", 0, MFL_GROUP_MAX}, {"site", 0, MFL_SITE_TAKES}, {"job", JOB_OR_EMPTY},
                {"loss", 0, MFL_TEAM_LOSS_MAX}),
        MESSAGE(progress, NULL, {"task", ANY}, {"items_done", 0, MFL_ITEMS_MAX}, {"samples_done", ANY},
                {"loss_sum", NOT_NEGATIVE}),
        MESSAGE(telemetry, check_telemetry, {"gpu_percent", 0, 100}, {"memory_used", DEVICE_BYTES},
                {"memory_total", DEVICE_BYTES}, {"temperature", 0, 1000}, {"power_mw", 0, 1000000000},
                {"activity", OPTIONAL}),
        MESSAGE(activity, check_activity, {"workers", 1, MFL_ITEMS_MAX}, {"compute_us", COUNTER},
                {"data_us", COUNTER}, {"network_us", COUNTER}, {"wait_us", COUNTER}, {"samples", COUNTER},
                {"samples_per_second", FLOAT}, {"compute", FLOAT}, {"data", FLOAT}, {"network", FLOAT},
                {"wait", FLOAT}),
        MESSAGE(partition, check_partition, {"job", JOB}, {"clients", 1, UINT32_MAX}, {"samples", ANY},
                {"samples_min", ANY}, {"samples_max", ANY}, {"classes", 0, 1 << 24},
                {"shown", 1, MFL_PARTITION_SHOWN_MAX}, {"first", ANY},
                {"counts", 0, MFL_PARTITION_COUNTS_MAX}, {"contract", 0, CONTRACT_MAX, LINE},
                {"plugins", 0, 8000, LINE}),
        MESSAGE(client_samples, check_client_samples, {"client", ANY}, {"samples", ANY},
                {"classes", 0, MFL_PARTITION_CLASSES_MAX}, {"daemon", NAME_OR_EMPTY, LINE}),
};
const struct mfl_wire_family mfl_wire_daemon_family = {messages, MFL_ARRAY_SIZE(messages)};
