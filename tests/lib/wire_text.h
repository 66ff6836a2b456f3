/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at every string of a message, found by protobuf-c's descriptors, so that a new field is looked at,
 * too. */
#ifndef MFL_TESTS_WIRE_TEXT_H
#define MFL_TESTS_WIRE_TEXT_H

#include <stdio.h>

#include "common/base/plain.h"
#include "proto/mfl.pb-c.h"

/* Job files, which are what they are: they are judged where they are submitted and never shown as they are.
 */
static inline bool wire_text_is_verbatim(const char *message, const char *field)
{
        return !strcmp(field, "text") &&
               (!strcmp(message, "JobSpec") || !strcmp(message, "Submit") || !strcmp(message, "PullBegin") ||
                       !strcmp(message, "Inquiry") || !strcmp(message, "Inquire"));
}

/* Texts of several lines. */
static inline bool wire_text_has_lines(const char *message, const char *field)
{
        if (!strcmp(message, "JobList"))
                return !strcmp(field, "notice");
        return !strcmp(field, "text") &&
               (!strcmp(message, "JobDetail") || !strcmp(message, "Done") || !strcmp(message, "Failure"));
}

static inline bool wire_text_is_plain(const ProtobufCMessage *m)
{
        const ProtobufCMessageDescriptor *d = m->descriptor;
        for (unsigned i = 0; i < d->n_fields; i++) {
                const ProtobufCFieldDescriptor *f = &d->fields[i];
                const void *p = (const char *)m + f->offset;
                const void *quantifier = (const char *)m + f->quantifier_offset;
                bool repeated = f->label == PROTOBUF_C_LABEL_REPEATED;
                uint32_t code;
                if ((f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) && *(const uint32_t *)quantifier != f->id)
                        continue;
                if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
                        size_t n = repeated ? *(const size_t *)quantifier : 1;
                        ProtobufCMessage *const *list = repeated ? *(ProtobufCMessage *const *const *)p
                                                                 : (ProtobufCMessage *const *)p;
                        for (size_t k = 0; k < n; k++)
                                if (list[k] && !wire_text_is_plain(list[k]))
                                        return false;
                } else if (f->type == PROTOBUF_C_TYPE_STRING) {
                        size_t n = repeated ? *(const size_t *)quantifier : 1;
                        char *const *list = repeated ? *(char *const *const *)p : (char *const *)p;
                        for (size_t k = 0; k < n; k++)
                                if (!wire_text_is_verbatim(d->short_name, f->name) &&
                                        mfl_plain_find(list[k], wire_text_has_lines(d->short_name, f->name),
                                                &code)) {
                                        fprintf(stderr, "%s.%s: U+%04X\n", d->short_name, f->name, code);
                                        return false;
                                }
                }
        }
        return true;
}

#endif
