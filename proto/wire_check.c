/* SPDX-License-Identifier: Apache-2.0 */
/* Checks an envelope: walks its fields by protobuf-c's descriptors and holds each one to its rule (wire_rules.h). A field
 * without a rule is an assertion, not a hole. */
#include "proto/wire.h"

#include <inttypes.h>
#include <math.h>

#include "common/base/bounded.h"
#include "common/base/plain.h"
#include "proto/wire_internal.h"
#include "proto/wire_rules.h"

static int check_envelope(const void *message, struct mfl_error *err)
{
        const Mfl__Envelope *m = message;
        if (m->body_case == MFL__ENVELOPE__BODY__NOT_SET)
                return INVALID("Envelope.body: not set, or of a kind that this version does not know");
        return 0;
}

static const struct mfl_wire_message *find_in(
        const struct mfl_wire_family *family, const ProtobufCMessageDescriptor *descriptor)
{
        for (size_t i = 0; i < family->n; i++) {
                const struct mfl_wire_message *m = &family->v[i];
                if (m->descriptor != descriptor)
                        continue;
                mfl_assert(m->n == descriptor->n_fields);
                for (size_t f = 0; f < m->n; f++)
                        mfl_assert(!strcmp(m->rules[f].name, descriptor->fields[f].name));
                return m;
        }
        return NULL;
}

static const struct mfl_wire_message *find_rules(const ProtobufCMessageDescriptor *descriptor)
{
        const struct mfl_wire_message *m = find_in(&mfl_wire_daemon_family, descriptor);
        if (!m)
                m = find_in(&mfl_wire_people_family, descriptor);
        if (!m)
                m = find_in(&mfl_wire_sites_family, descriptor);
        mfl_assert(m); /* every message has rules */
        return m;
}

struct walk {
        const ProtobufCMessageDescriptor *message;
        const ProtobufCFieldDescriptor *field;
        const struct mfl_wire_rule *rule;
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

static int refuse_strange(const struct walk *w, const char *s, bool name)
{
        uint32_t code;
        if (name && !mfl_plain_name(s))
                return REFUSE(w, "%s", "expected printable ASCII without a blank at either end");
        return mfl_plain_find(s, false, &code) ? REFUSE(w, "U+%04X is not allowed", code) : 0;
}

/* Outgoing text is not changed, because the receiver cleans it. */
static int check_string(const struct walk *w, char *s)
{
        size_t n = s ? strlen(s) : 0;
        bool foreign = w->unpacked && s && s != w->field->default_value;
        enum mfl_wire_text text = w->rule->text;
        if (foreign && n + 1 != mfl_bounded_size(s))
                return REFUSE(w, "a NUL at byte %zu of the text", n);
        int r = check_range(w, (int64_t)n, "length ");
        if (r || !n)
                return r;
        if (!mfl_plain_utf8(s))
                return REFUSE(w, "%s", "not UTF-8");
        if (text == NAMED || text == KEY)
                return refuse_strange(w, s, text == NAMED);
        if (foreign && text != VERBATIM)
                mfl_plain_clean(s, text == LINES);
        return 0;
}

static int check_bytes(const struct walk *w, const ProtobufCBinaryData *b)
{
        /* Digests and ids: whole, or absent where the row's minimum is 0. Data: any length up to the maximum. */
        if (b->len && w->rule->text != VERBATIM && (int64_t)b->len != w->rule->max)
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
                return REFUSE(w, "this version does not know the value %d", *(const int *)p);
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

/* The rule's bounds are those of the list; each of its strings is a name. */
static int check_strings(const struct walk *w, char *const *list, size_t n)
{
        const struct mfl_wire_rule each = {w->rule->name, 0, MFL_NAME_BYTES - 1, w->rule->text};
        struct walk one = *w;
        int r = 0;
        one.rule = &each;
        for (size_t i = 0; i < n && !r; i++)
                r = check_string(&one, list[i]);
        return r;
}

static int check_repeated(const struct walk *w, const void *message)
{
        const ProtobufCFieldDescriptor *f = w->field;
        size_t n = *(const size_t *)((const char *)message + f->quantifier_offset);
        void *const *list = *(void *const *const *)((const char *)message + f->offset);
        int r = check_range(w, (int64_t)n, "count ");
        if (!r && f->type == PROTOBUF_C_TYPE_STRING)
                return check_strings(w, (char *const *)list, n);
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
        /* The members of a oneof share their memory: checks only the one that is set. */
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF &&
                *(const uint32_t *)((const char *)message + f->quantifier_offset) != f->id)
                return 0;
        switch (f->type) {
        case PROTOBUF_C_TYPE_STRING:
                return check_string(w, *(char *const *)p);
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
        const struct mfl_wire_message *m = find_rules(d);
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
        /* An unknown request can be answered, so it is no reason to close the connection. */
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

static int check_packed_params(const Mfl__Params *m, size_t payload_bytes, struct mfl_error *err)
{
        if (payload_bytes >= m->bytes)
                return INVALID(
                        "Params.bytes: %u, packed in %zu bytes: expected fewer", m->bytes, payload_bytes);
        if (m->bytes % 4 || m->bytes / 4 > m->total - m->offset)
                return INVALID(
                        "Params.bytes: %u, for at most %" PRIu64 " floats", m->bytes, m->total - m->offset);
        if (m->of_client)
                return INVALID("Params.bytes: what belongs to a client is not packed");
        return 0;
}

int mfl_wire_check_payload(const Mfl__Envelope *envelope, size_t payload_bytes, struct mfl_error *err)
{
        if (!payload_bytes)
                return 0;
        if (!mfl_wire_has_payload(envelope))
                return INVALID("frame: a payload of %zu bytes with a message that takes none", payload_bytes);
        if (envelope->body_case == MFL__ENVELOPE__BODY_CHUNK && envelope->chunk->bytes) {
                if (payload_bytes < envelope->chunk->bytes)
                        return 0;
                return INVALID("Chunk.bytes: %u, packed in %zu bytes: expected fewer", envelope->chunk->bytes,
                        payload_bytes);
        }
        if (envelope->body_case == MFL__ENVELOPE__BODY_PARAMS && envelope->params->bytes)
                return check_packed_params(envelope->params, payload_bytes, err);
        if (payload_bytes % 4 && envelope->body_case != MFL__ENVELOPE__BODY_PEER_PIECE)
                return INVALID("frame: a payload of %zu bytes, expected a multiple of 4", payload_bytes);
        uint64_t floats = payload_bytes / 4;
        if (envelope->body_case == MFL__ENVELOPE__BODY_PARAMS &&
                floats > envelope->params->total - envelope->params->offset)
                return INVALID("Params: payload of %" PRIu64 " floats at %" PRIu64
                               " is beyond total %" PRIu64,
                        floats, envelope->params->offset, envelope->params->total);
        return 0;
}
