/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of every field of every message, as tables, one for each family of messages. Private to wire_check.c. */
#ifndef MFL_PROTO_WIRE_RULES_H
#define MFL_PROTO_WIRE_RULES_H

#include "proto/inquiry.h"
#include "proto/wire.h"

/* Bounds of a field, both included: the value of a number (unsigned ones above INT64_MAX count as INT64_MAX), the length
 * of a string or of bytes, the count of a repeated field, 1..1 for a message that must be present. Floating-point numbers
 * must always be finite, and enums known and specified; an enum whose maximum is not 0 may be absent.
 *
 * The kind of a string decides what happens to strange characters (common/base/plain.h) in it:
 *   NAMED     (the default) an identifier: refused, because different names must not look alike
 *   KEY       compared and never shown: any single line without them
 *   LINE      for people: cleaned when it comes in
 *   LINES     the same, with line ends and tabs
 *   VERBATIM  a job file: not changed, and checked where it is parsed
 */
enum mfl_wire_text { NAMED, KEY, LINE, LINES, VERBATIM };
struct mfl_wire_rule {
        const char *name;
        int64_t min, max;
        enum mfl_wire_text text;
};

#define ANY INT64_MIN, INT64_MAX
#define BOOL 0, 1
#define ENUM 0, 0
#define ENUM_OR_NONE 0, 1 /* older peers do not know the field */
#define FLOAT 0, 0
#define OPTIONAL 0, 1
#define REQUIRED 1, 1
#define NAME 1, MFL_NAME_BYTES - 1
#define NAME_OR_EMPTY 0, MFL_NAME_BYTES - 1
#define JOB 1, MFL_JOB_ID_BYTES - 1
#define JOB_OR_EMPTY 0, MFL_JOB_ID_BYTES - 1
#define REASON 0, 500, LINE
#define NOTE 0, 8192, LINES
#define JOB_TEXT_MAX (256 * 1024)
#define CONTRACT_MAX (512 * 1024)
#define DIGEST MFL_DIGEST_BYTES, MFL_DIGEST_BYTES
#define PARAMS 1, (int64_t)MFL_PARAMS_MAX
#define PARAMS_OFFSET 0, (int64_t)MFL_PARAMS_MAX
#define BYTES_MAX ((int64_t)MFL_PARAMS_MAX * 8)
#define WEIGHT_MAX ((int64_t)1 << 50) /* common/base/fixed.h, of a round */
#define PEER_NONCE MFL_PEER_NONCE_BYTES, MFL_PEER_NONCE_BYTES
#define DAY_MS (24 * 3600 * 1000)
#define NOT_NEGATIVE 0, INT64_MAX
#define PATTERN 1, MFL_ACCESS_PATTERN_BYTES - 1
#define YEAR_S (366 * 24 * 3600)
#define DEVICE_BYTES 0, (int64_t)1 << 60
#define COUNTER 0, (int64_t)1 << 60 /* sums of many stay exact, and no real counter reaches it */
#define RATE_MAX 1e15

#define INVALID(...) mfl_fail(err, MFL_INVALID, __VA_ARGS__)

struct mfl_wire_message {
        const ProtobufCMessageDescriptor *descriptor;
        int (*check)(const void *message, struct mfl_error *err); /* the rules that join fields; NULL: none */
        const struct mfl_wire_rule *rules;                        /* in the order of the field numbers */
        size_t n;
};
#define MESSAGE(name, check_, ...)                                                                           \
        {                                                                                                    \
                &mfl__##name##__descriptor, check_, (const struct mfl_wire_rule[]){__VA_ARGS__},             \
                        sizeof((const struct mfl_wire_rule[]){__VA_ARGS__}) / sizeof(struct mfl_wire_rule)   \
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

struct mfl_wire_family {
        const struct mfl_wire_message *v;
        size_t n;
};
extern const struct mfl_wire_family mfl_wire_daemon_family; /* between a daemon and the server */
extern const struct mfl_wire_family mfl_wire_people_family; /* between people's programs and the server */
extern const struct mfl_wire_family mfl_wire_sites_family;  /* inquiries, and the registry of models */

/* Whether a name has only the characters that a daemon's name may have. */
bool mfl_wire_name_is_plain(const char *name);
/* The shape of a sample, called `what` in the message. MFL_INVALID. */
int mfl_wire_check_shape(const char *what, size_t n, const uint32_t *dim, struct mfl_error *err);

#endif
