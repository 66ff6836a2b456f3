/* SPDX-License-Identifier: Apache-2.0 */
/* The Open Inference Protocol, version 2 (KServe's "V2"; https://github.com/kserve/open-inference-protocol), with Triton's
 * binary tensors and classification
 * (https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md): paths, requests and answers.
 *
 * A model has one input and one output. What a request asks for and can't be had is refused with its name. Pure but for
 * memory; any thread.
 */
#ifndef MFL_SERVE_KSERVE_KSERVE_H
#define MFL_SERVE_KSERVE_KSERVE_H

#include "serve/http/reply.h"
#include "serve/kserve/json.h"

#define MFL_KSERVE_RANK_MAX 6
#define MFL_KSERVE_NAME_BYTES 64
#define MFL_KSERVE_ID_BYTES 128

/* ---- paths ---- */

enum mfl_kserve_what {
        MFL_KSERVE_NOWHERE,
        MFL_KSERVE_SERVER, /* /v2 */
        MFL_KSERVE_LIVE,   /* /v2/health/live */
        MFL_KSERVE_READY,  /* /v2/health/ready */
        MFL_KSERVE_MODEL,  /* /v2/models/N[/versions/V] */
        MFL_KSERVE_MODEL_READY,
        MFL_KSERVE_CONFIG, /* .../config, of Triton's clients */
        MFL_KSERVE_INFER,
        MFL_KSERVE_ROLLBACK, /* /v2/models/N/rollback, ours */
        MFL_KSERVE_INDEX,    /* /v2/repository/index */
        MFL_KSERVE_METRICS,  /* /metrics */
        MFL_KSERVE_PAGE,     /* /, ours: for people */
};
struct mfl_kserve_path {
        enum mfl_kserve_what what;
        char model[MFL_KSERVE_NAME_BYTES],
                version[MFL_KSERVE_NAME_BYTES]; /* version "": the one that is served */
};
void mfl_kserve_path(const char *path, struct mfl_kserve_path *ret_path);

/* ---- models ---- */

/* What a version of a model takes and gives. */
struct mfl_kserve_model {
        char name[MFL_KSERVE_NAME_BYTES], version[MFL_KSERVE_NAME_BYTES];
        char digest[65];
        char job[64];          /* that it is from; "": unknown */
        int64_t round;         /* -1: unknown */
        const char *precision; /* of its products; NULL: it has none */
        enum mfl_tensor_type type;
        uint32_t vocabulary; /* of tokens; 0: no tokens */
        uint32_t rank;       /* of a row */
        int64_t dim[MFL_KSERVE_RANK_MAX];
        size_t elements;    /* of a row */
        const char *output; /* "logits" or "values" */
        uint32_t outputs;   /* floats of a row's answer */
        uint32_t positions; /* above 1: the answer's shape is [rows, positions, outputs / positions] */
        const char *const *classes; /* outputs / positions names, or NULL */
};
void mfl_kserve_describe(const struct mfl_kserve_model *model, const char *const *versions,
        uint32_t n_versions, struct mfl_reply *reply);
void mfl_kserve_config(const struct mfl_kserve_model *model, uint32_t rows_max, struct mfl_reply *reply);

/* ---- requests ---- */

struct mfl_kserve_request {
        char id[MFL_KSERVE_ID_BYTES];
        uint64_t timeout_us; /* 0: none */
        uint32_t rows;
        void *x;                 /* rows * elements, freed by the caller */
        bool binary;             /* the answer's tensor comes as bytes */
        uint32_t classification; /* the k best classes in place of numbers; 0: numbers */
};
/* json_bytes: of the body, the JSON part; what follows is binary. Of a body that is not empty none: Triton's raw binary request, the bytes of
 * one row, answered with bytes. The model must not change its shape meanwhile.
 * MFL_INVALID with a text for the client; -ENOMEM. On success x is the caller's. */
int mfl_kserve_parse(const struct mfl_kserve_model *model, uint32_t rows_max, const char *body,
        size_t body_bytes, size_t json_bytes, struct mfl_kserve_request *ret_request, struct mfl_error *err);
/* The body of a request for the index of models: "", or {"ready": true}, which leaves out those without a version. MFL_INVALID. */
int mfl_kserve_parse_index(const char *body, size_t bytes, bool *ret_ready, struct mfl_error *err);
/* The answer's body; *ret_json_bytes: how much of it is JSON, 0: all. False: a number is not finite, which JSON can't say; the text
 * is in err. */
bool mfl_kserve_answer(const struct mfl_kserve_model *model, const struct mfl_kserve_request *request,
        const float *y, struct mfl_reply *reply, size_t *ret_json_bytes, struct mfl_error *err);
/* Whether all n numbers are. */
bool mfl_kserve_finite(const float *y, size_t n);
void mfl_kserve_error(struct mfl_reply *reply, const char *text);

#endif
