/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata of an ONNX file, as read; private to described.c and locate.c. */
#ifndef MFL_CLI_PROOF_DESCRIBED_INTERNAL_H
#define MFL_CLI_PROOF_DESCRIBED_INTERNAL_H

#include <jansson.h>

#include "cli/proof/described.h"

/* Whole numbers that no constant of a model is likely to have, and that floats represent. */
#define TAG_FIRST ((uint32_t)1 << 23)
#define TAGS_MAX (((uint32_t)1 << 23) - 1)
#define NOWHERE UINT64_MAX

/* Text belongs to the JSON objects. */
struct described_param {
        const char *name, *initializer; /* initializer NULL: not in the file */
        const char **names;             /* [n_names]: the initializer, and all names of a tied parameter */
        size_t n_names;                 /* 0: it has one name */
        bool trained;
        int64_t padding;   /* padding_idx; -1: none */
        uint32_t n_padded; /* how many modules say so */
        uint32_t n, first; /* samples, and the number of the first one */
        const uint32_t *index;
        const float *value[MFL_PROOF_BATCHES]; /* NULL: no gradient is stored */
        double largest[MFL_PROOF_BATCHES], noise[MFL_PROOF_BATCHES], spread[MFL_PROOF_BATCHES];
};

struct described_place {
        uint64_t at; /* NOWHERE: not found */
        bool negated, twice;
        int layer, other; /* other: the layer of the second place */
};

struct mfl_described {
        const char *path;
        json_t *model, *proof;
        const char *why_not;
        struct described_param *params;
        uint32_t n_params, n_samples;
        struct described_place *places; /* of all samples */
        bool *frozen;                   /* by layer */
        int64_t *padding;               /* by layer: the embedding's padding_idx; -1: none */
        struct mfl_proof head;
        const struct mfl_proof_output *outputs[MFL_PROOF_BATCHES];
        struct block {
                struct block *next;
        } * blocks;
};

#endif
