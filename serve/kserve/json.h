/* SPDX-License-Identifier: Apache-2.0 */
/* JSON (RFC 8259) read in one pass, without a tree: names and texts into the caller's buffers, and arrays of numbers
 * straight into a tensor. Numbers become the double that strtod gives, and a float from that, as numpy does.
 *
 * Every function returns 0 or MFL_INVALID with a text that says where ("at byte 17: ..."); mfl_scan_tensor also -ENOMEM.
 * After a failure the reader is of no more use. Nothing recurses. Pure; one thread at a time.
 */
#ifndef MFL_SERVE_KSERVE_JSON_H
#define MFL_SERVE_KSERVE_JSON_H

#include "common/base/base.h"

struct mfl_scan {
        const char *begin, *at, *end;
        struct mfl_error *err;
};

/* text need not be terminated, and must stay. err is the place of all texts. */
void mfl_scan_open(struct mfl_scan *json, const char *text, size_t n, struct mfl_error *err);
/* Fails at the present place. */
int mfl_scan_fail(struct mfl_scan *json, const char *fmt, ...) MFL_PRINTF(2, 3);

/* The next character that is not blank; 0 at the end. */
char mfl_scan_peek(struct mfl_scan *json);
int mfl_scan_expect(struct mfl_scan *json, char c);
/* Walks through "{...}" and "[...]", whose opening the caller has passed with mfl_scan_expect:
 *     for (uint32_t i = 0;; i++) { r = mfl_scan_next(json, ']', i, &more); if (r || !more) break; ... the element ... } */
int mfl_scan_next(struct mfl_scan *json, char close, uint32_t i, bool *ret_more);
/* A key and its colon. */
int mfl_scan_key(struct mfl_scan *json, char *ret_key, size_t bytes);
/* A string, decoded; longer than bytes - 1, or with a NUL: MFL_INVALID. */
int mfl_scan_string(struct mfl_scan *json, char *ret_text, size_t bytes);
int mfl_scan_number(struct mfl_scan *json, double *ret_value);
/* A whole number of at least 0. */
int mfl_scan_whole(struct mfl_scan *json, uint64_t max, uint64_t *ret_value);
int mfl_scan_bool(struct mfl_scan *json, bool *ret_value);
/* Nothing but blanks is left. */
int mfl_scan_end(struct mfl_scan *json);

enum mfl_tensor_type {
        MFL_TENSOR_F32,
        MFL_TENSOR_U8,
        MFL_TENSOR_I32,
};
size_t mfl_tensor_bytes(enum mfl_tensor_type type);
const char *mfl_tensor_name(enum mfl_tensor_type type); /* the protocol's: "FP32" */

#define MFL_SCAN_DEPTH_MAX 8
struct mfl_scan_tensor {
        enum mfl_tensor_type type;
        void *v; /* n elements; freed by the caller, after failures too */
        size_t n, room, n_max;
        /* Of nested arrays: their lengths, from the outermost; rank 1: flat. */
        uint32_t rank;
        size_t dim[MFL_SCAN_DEPTH_MAX];
};
/* An array of numbers, flat or nested. tensor->type and n_max are the caller's; room and v may be given in advance. Uneven
 * nesting, more than n_max numbers, and numbers that the type does not have are MFL_INVALID. */
int mfl_scan_tensor(struct mfl_scan *json, struct mfl_scan_tensor *tensor);

#endif
