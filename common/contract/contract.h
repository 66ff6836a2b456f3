/* SPDX-License-Identifier: Apache-2.0 */
/* The input contract: what a model expects of its input and what its output means, so that it can be used away from the
 * sites that trained it. A daemon makes it from a data set; the server keeps it with the job; model files carry it as
 * JSON text (contract_text.c has the keys).
 *
 * Names of classes, symbols and words of the vocabulary, and names of features come from a site's data. They are in a contract
 * only if the site's configuration says `names: share`. Pure; a contract is immutable once made, so any thread may read it.
 */
#ifndef MFL_COMMON_CONTRACT_CONTRACT_H
#define MFL_COMMON_CONTRACT_CONTRACT_H

#include "common/data/dataset.h"
#include "common/job/losses.h"

#define MFL_CONTRACT_TEXT_MAX (512u << 10) /* bytes of JSON of one contract */
#define MFL_CONTRACT_SITES_MAX 16          /* sites that are named because they scale differently */

struct mfl_contract {
        char data[MFL_NAME_BYTES]; /* the data set's name; empty: unknown */
        char from[MFL_NAME_BYTES]; /* the site that this comes from; empty: unknown */
        struct mfl_shape shape;    /* of one sample */
        enum mfl_dtype dtype;      /* of its elements, before scaling */
        char unit[16]; /* what an element is: "pixel", "number", "character", "byte", "word", "token" */
        int classes;   /* 0 with targets */
        int n_targets;
        int labels_per_sample; /* above 1: an answer for each token or pixel */
        int vocabulary;        /* of tokens; 0: no tokens */
        enum mfl_token_kind tokens;
        enum mfl_loss_kind loss; /* of the training; says what outputs are (mfl_contract_is_...) */
        bool has_loss;
        /* The model sees x * scale[c] + shift[c]; c is the channel of an image, 0 otherwise; n_channels 0: x as it is. */
        int n_channels;
        float scale[MFL_CHANNELS_MAX], shift[MFL_CHANNELS_MAX];
        /* Of rows with `normalise: columns`: first each feature becomes (float)((x - mean) / std), in double. NULL: not. One
         * allocation. */
        int n_features;
        double *feature_mean, *feature_std;
        /* Sites scale differently, or nobody knows how: the caller gives floats that are scaled already. */
        bool normalised;
        char sites[MFL_CONTRACT_SITES_MAX][MFL_NAME_BYTES]; /* that scale differently from the first */
        int n_sites;
        /* Each is NULL where it is unknown or not shared. */
        char **class_names;   /* classes */
        char **feature_names; /* the last dimension */
        char **words;         /* vocabulary - MFL_TOKEN_FIRST */
        uint32_t *symbols;    /* vocabulary */
};

/* Of a data set, with the site's names if it shares them. private: of a job whose updates are noised; then what the site has
 * measured of its samples (normalise) stays with it, unless it shares its names, and the contract says `normalised`. */
int mfl_contract_of_dataset(const struct mfl_dataset *dataset, bool private,
        struct mfl_contract **ret_contract, struct mfl_error *err);
/* Compares another site's contract with the first. Where it scales differently the site is named, and the contract says
 * `normalised` from then on. */
int mfl_contract_compare(struct mfl_contract *first, const struct mfl_contract *other, const char *site,
        bool *ret_changed, struct mfl_error *err);
/* Of a model whose input's shape alone is known: normalised numbers, or with vocabulary > 0 tokens below it. */
int mfl_contract_plain(const struct mfl_shape *shape, int vocabulary, struct mfl_contract **ret_contract,
        struct mfl_error *err);
void mfl_contract_free(struct mfl_contract *contract); /* NULL is fine */

/* The type of a sample's elements as they are given: the sites', or float where they must be scaled first. */
enum mfl_dtype mfl_contract_dtype(const struct mfl_contract *contract);
/* Bytes of a sample as mfl_infer_run takes it. */
size_t mfl_contract_sample_bytes(const struct mfl_contract *contract);
/* Whether the outputs are one logit per class at each position, of which softmax makes probabilities. */
bool mfl_contract_is_classes(const struct mfl_contract *contract);
/* Whether each output is a logit of its own, of which the logistic function makes a probability. */
bool mfl_contract_is_binary(const struct mfl_contract *contract);

/* A digest of the scaling alone: sites with different ones feed the model differently. Never 0. */
int mfl_contract_scaling(const struct mfl_contract *contract, uint64_t *ret_scaling, struct mfl_error *err);

/* JSON on one line; the caller frees. Equal contracts give equal texts. Names that are no UTF-8, or too long for
 * MFL_CONTRACT_TEXT_MAX, are left out. */
int mfl_contract_text(const struct mfl_contract *contract, char **ret_text, struct mfl_error *err);
/* The reverse. Text from a stranger: strange characters in names become
 * '?' (common/base/plain.h); MFL_INVALID names the key and what it should be; `from` is for messages. */
int mfl_contract_parse(
        const char *text, const char *from, struct mfl_contract **ret_contract, struct mfl_error *err);

#endif
