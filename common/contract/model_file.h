/* SPDX-License-Identifier: Apache-2.0 */
/* A model file: a safetensors file of `mfl pull` that carries its model. Its metadata, all texts:
 *
 *   job_text          the job file, from which the layers follow
 *   input, classes    the shape of a sample ("1,28,28") and the number of outputs, for which they are built
 *   by_layers         "1": params lie in the order of layers; absent otherwise
 *   contract          the input contract (contract.h); absent: the server knows none
 *   job, round, digest, software, loss, accuracy     where it comes from; digest: also of the params in the file, which are checked
 *
 * The file is not trusted. Blocking I/O. MFL_NOT_FOUND: no such file; MFL_INVALID: not such a file, and what to do.
 */
#ifndef MFL_COMMON_CONTRACT_MODEL_FILE_H
#define MFL_COMMON_CONTRACT_MODEL_FILE_H

#include "common/contract/contract.h"
#include "common/job/job.h"
#include "common/model/safetensors.h"

struct mfl_model_file {
        char *path;
        struct mfl_job *job; /* NULL: none is known (the model is of another format) */
        struct mfl_graph *graph;
        float *params; /* graph->n */
        struct mfl_contract *contract;
        char job_id[MFL_NAME_BYTES], digest[65], software[48]; /* empty: unknown */
        int64_t round;                                         /* -1: unknown */
        bool has_loss, has_accuracy;                           /* of that round's evaluation */
        double loss, accuracy;
};

int mfl_model_file_open(const char *path, struct mfl_model_file **ret_model, struct mfl_error *err);
void mfl_model_file_free(struct mfl_model_file *model); /* NULL is fine */

/* The metadata that make a file a model file; shape and classes as given to mfl_job_graph. The texts stay the
 * caller's, except those in `text`. */
#define MFL_MODEL_META_MAX 6
struct mfl_model_meta {
        char input[64], classes[16];
        struct mfl_st_meta v[MFL_MODEL_META_MAX];
        int n;
};
/* contract: its text, NULL or empty: none. */
void mfl_model_meta(struct mfl_model_meta *meta, const char *job_text, bool by_layers,
        const struct mfl_shape *input, int classes, const char *contract);

#endif
