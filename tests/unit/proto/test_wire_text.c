/* SPDX-License-Identifier: Apache-2.0 */
/* Every string of every message, in both directions, found by protobuf-c's descriptors: one that holds what
 * would steer a terminal or turn text around is cleaned or refused by its field's name. A message is filled
 * by rules that make it valid, so a new message or field is tested without a line here, or fails here because
 * it can't be filled. */
#include "tests/lib/test.h"
#include "tests/lib/wire_text.h"

#include <stdio.h>

#include "proto/wire.h"

/* Where 1 is not a value that the rules between fields allow. */
static const struct {
        const char *message, *field;
        double value;
} values[] = {
        {"Welcome", "dead_ms", 2},
        {"Task", "n_params", 9}, /* one of them frozen, the others 32 bytes */
        {"Group", "collective", MFL__COLLECTIVE__COLLECTIVE_SHM},
        {"Team", "member", 0},
        {"Combine", "ranks", 2},
        {"Announce", "item_count", 2},
        {"Announce", "bytes", 32},
        {"Range", "offset", 8},
        {"Partition", "first", 0},
        {"Range", "bytes", 8},
        {"Chunk", "offset", 8},
        {"PeerHello", "to", 0},
        {"PeerHello", "n_ranks", 2},
        {"Activity", "compute", 0.25},
        {"Activity", "data", 0.25},
        {"Activity", "network", 0.25},
        {"Activity", "wait", 0.25},
        {"Inquiry", "kind", MFL__INQUIRY_KIND__INQUIRY_EVALUATE},
        {"Inquiry", "n_params", 9},
        {"Inquire", "kind", MFL__INQUIRY_KIND__INQUIRY_EVALUATE},
        {"Inquire", "n_params", 9},
};

struct filling {
        const char *strange; /* what the string at `which` is; "a" is what the others are */
        int which, n;        /* strings so far */
        char named[128];     /* "Message.field" of it */
        bool verbatim, lines;
        void *made[512];
        int n_made;
};

static void *make(struct filling *f, size_t bytes)
{
        mfl_assert(f->n_made < 512);
        return f->made[f->n_made++] = calloc(1, bytes);
}

static double number_of(const char *message, const char *field)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(values); i++)
                if (!strcmp(values[i].message, message) && !strcmp(values[i].field, field))
                        return values[i].value;
        return 1;
}

static char *next_text(struct filling *f, const ProtobufCMessageDescriptor *d, const char *field)
{
        char *text = make(f, 64);
        bool chosen = f->n++ == f->which;
        strcpy(text, chosen ? f->strange : "a");
        if (chosen) {
                snprintf(f->named, sizeof f->named, "%s.%s", d->short_name, field);
                f->verbatim = wire_text_is_verbatim(d->short_name, field);
                f->lines = wire_text_has_lines(d->short_name, field);
        }
        return text;
}

static ProtobufCMessage *fill(struct filling *f, const ProtobufCMessageDescriptor *d, uint32_t variant);

/* One value at p; i: its place in a list, so that those of a list differ. */
static void fill_value(struct filling *f, const ProtobufCMessageDescriptor *d,
        const ProtobufCFieldDescriptor *field, void *p, int i, uint32_t variant)
{
        double v = number_of(d->short_name, field->name) + i;
        switch (field->type) {
        case PROTOBUF_C_TYPE_MESSAGE:
                *(ProtobufCMessage **)p = fill(f, field->descriptor, variant);
                break;
        case PROTOBUF_C_TYPE_STRING:
                *(char **)p = next_text(f, d, field->name);
                break;
        case PROTOBUF_C_TYPE_BYTES:
                *(ProtobufCBinaryData *)p =
                        (ProtobufCBinaryData){!strcmp(d->short_name, "CommunicatorId") ? 128
                                              : !strcmp(field->name, "nonce")          ? 16
                                                                                       : 32,
                                make(f, 128)};
                break;
        case PROTOBUF_C_TYPE_BOOL: /* false: Drain.all, Access.remove and others forbid what else is there */
                break;
        case PROTOBUF_C_TYPE_FLOAT:
                *(float *)p = (float)v;
                break;
        case PROTOBUF_C_TYPE_DOUBLE:
                *(double *)p = v;
                break;
        case PROTOBUF_C_TYPE_UINT64:
        case PROTOBUF_C_TYPE_FIXED64:
        case PROTOBUF_C_TYPE_SINT64:
                *(uint64_t *)p = (uint64_t)v;
                break;
        default:
                *(uint32_t *)p = (uint32_t)v;
        }
}

static size_t value_bytes(ProtobufCType type)
{
        return type == PROTOBUF_C_TYPE_BYTES                                    ? sizeof(ProtobufCBinaryData)
               : type == PROTOBUF_C_TYPE_UINT32 || type == PROTOBUF_C_TYPE_ENUM ? 4
                                                                                : 8;
}

/* variant: which member of a oneof is set, by its place among the message's fields that are of one. */
static ProtobufCMessage *fill(struct filling *f, const ProtobufCMessageDescriptor *d, uint32_t variant)
{
        ProtobufCMessage *m = make(f, d->sizeof_message);
        uint32_t oneofs = 0;
        d->message_init(m);
        for (unsigned i = 0; i < d->n_fields; i++) {
                const ProtobufCFieldDescriptor *field = &d->fields[i];
                void *p = (char *)m + field->offset;
                void *quantifier = (char *)m + field->quantifier_offset;
                if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
                        if (oneofs++ != variant && *(uint32_t *)quantifier)
                                continue;
                        if (oneofs - 1 < variant && !strcmp(d->short_name, "Event"))
                                continue;
                        *(uint32_t *)quantifier = field->id;
                }
                if (field->label != PROTOBUF_C_LABEL_REPEATED) {
                        fill_value(f, d, field, p, 0, 0);
                        continue;
                }
                bool pair = !strcmp(d->short_name, "Group") || !strcmp(d->short_name, "Team");
                int n = pair || !strcmp(field->name, "losses") ? 2
                        : !strcmp(field->name, "tally")        ? 3
                        : !strcmp(field->name, "figures")      ? 9
                                                               : 1;
                char *list = make(f, (size_t)n * value_bytes(field->type));
                for (int k = 0; k < n; k++)
                        fill_value(f, d, field, list + (size_t)k * value_bytes(field->type), k, 0);
                *(size_t *)quantifier = (size_t)n;
                *(void **)p = list;
        }
        return m;
}

/* The envelope with that body as a peer of bad will sends it: packed without a check. */
static int take(const ProtobufCFieldDescriptor *body, uint32_t variant, struct filling *f,
        Mfl__Envelope **ret, struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        e.body_case = (Mfl__Envelope__BodyCase)body->id;
        *(ProtobufCMessage **)((char *)&e + body->offset) = fill(f, body->descriptor, variant);
        uint8_t *bytes = malloc(mfl__envelope__get_packed_size(&e));
        int r = mfl_wire_unpack(bytes, mfl__envelope__pack(&e, bytes), ret, err);
        free(bytes);
        while (f->n_made)
                free(f->made[--f->n_made]);
        return r;
}

static void try_string(const ProtobufCFieldDescriptor *body, uint32_t variant, int which, const char *strange,
        int *n_cleaned, int *n_refused)
{
        struct filling f = {.strange = strange, .which = which};
        struct mfl_error err = {""};
        Mfl__Envelope *e;
        int r = take(body, variant, &f, &e, &err);
        if (r) {
                if (strncmp(err.text, f.named, strlen(f.named)) != 0 || f.verbatim)
                        fail_msg("%s in %s: %s", f.named, body->name, err.text);
                for (const char *c = err.text; *c; c++)
                        assert_true(*c >= ' ' && *c <= '~');
                ++*n_refused;
                return;
        }
        if (!wire_text_is_plain(&e->base))
                fail_msg("%s in %s came through", f.named, body->name);
        ++*n_cleaned;
        mfl_wire_free(e);
}

static void no_string_of_any_message_brings_what_steers_a_terminal(void **state)
{
        static const char *const strange[] = {"\033]0;x\a", "x\x7f",
                "\xc2\x9b"
                "31mx",
                "x\xe2\x80\xae"
                "y",
                "\xe2\x81\xa6x\xe2\x81\xa9", "x\xe2\x80\xa8y", "\xd8\x9cx", "x\r\ny", "\xef\xbb\xbf",
                "\xe2\x80\x8bx", "\xf3\xa0\x81\x81"};
        const ProtobufCMessageDescriptor *d = &mfl__envelope__descriptor;
        int n_strings = 0, n_cleaned = 0, n_refused = 0;
        for (unsigned i = 0; i < d->n_fields; i++) {
                if (d->fields[i].type != PROTOBUF_C_TYPE_MESSAGE)
                        continue;
                for (uint32_t variant = 0; variant < (strcmp(d->fields[i].name, "event") ? 1 : 3);
                        variant++) {
                        struct filling f = {.which = -1};
                        struct mfl_error err;
                        Mfl__Envelope *e;
                        if (take(&d->fields[i], variant, &f, &e, &err))
                                fail_msg("%s as it should be: %s", d->fields[i].name, err.text);
                        mfl_wire_free(e);
                        n_strings += f.n;
                        for (int which = 0; which < f.n; which++)
                                for (size_t s = 0; s < MFL_ARRAY_SIZE(strange); s++)
                                        try_string(&d->fields[i], variant, which, strange[s], &n_cleaned,
                                                &n_refused);
                }
        }
        /* It did look at them: there are some dozens of messages, and both outcomes are common. */
        assert_true(n_strings > 100 && n_cleaned > 300 && n_refused > 300);
}

/* Daemons' names, nodes, data sets and devices are compared with each other: cleaning would make two of them
 * one. */
static void what_tells_things_apart_is_refused(void **state)
{
        static const char *const names[] = {"Hello.node", "Hello.name", "Hello.backend", "Hello.device_uuid",
                "Hello.device_pci", "DataSet.name"};
        unsigned seen = 0;
        const ProtobufCFieldDescriptor *hello = protobuf_c_message_descriptor_get_field(
                &mfl__envelope__descriptor, MFL__ENVELOPE__BODY_HELLO);
        for (int which = 0; which < 20; which++) {
                struct filling f = {.strange = "\xe2\x80\xae"
                                               "x",
                        .which = which};
                struct mfl_error err = {""};
                Mfl__Envelope *e;
                int r = take(hello, 0, &f, &e, &err);
                for (size_t i = 0; i < MFL_ARRAY_SIZE(names); i++) {
                        if (strcmp(f.named, names[i]) != 0)
                                continue;
                        assert_int_equal(r, MFL_INVALID);
                        seen |= 1u << i;
                }
                if (!r)
                        mfl_wire_free(e);
        }
        assert_int_equal(seen, (1u << MFL_ARRAY_SIZE(names)) - 1);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(no_string_of_any_message_brings_what_steers_a_terminal),
                cmocka_unit_test(what_tells_things_apart_is_refused),
        };
        return cmocka_run_group_tests_name("wire_text", tests, NULL, NULL);
}
