/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets in memory: samples of one shape with labels or float targets, a training and a test split.
 *
 * Readers: idx (plain or .gz: MNIST, Fashion-MNIST), CIFAR-10 and CIFAR-100 binary, npy pairs, npz, CSV,
 * text, folders of PNG and JPEG. A file from a stranger is never trusted: every size is checked against the
 * file before anything is allocated; MFL_INVALID names the file, what it says and what it should say.
 * Blocking I/O: not on a loop thread. Immutable once loaded; any thread.
 */
#ifndef MFL_COMMON_DATA_DATASET_H
#define MFL_COMMON_DATA_DATASET_H

#include "common/base.h"
#include "common/model/graph.h"

enum mfl_dtype {
        MFL_U8,
        MFL_F32,
        MFL_I32, /* tokens in [0, vocabulary); the sample's shape is {T}; scale and shift don't apply */
};

/* n samples; sample i is mfl_shape_count(shape) elements at samples + i * count * element size. The value
 * that a model sees is x * scale[c] + shift[c], c being the channel (dimension 0 of an image; 0 for vectors).
 * What a sample should give is in labels or, where the data set has n_targets > 0, in targets; the other is
 * NULL.
 */
struct mfl_split {
        uint32_t n;
        enum mfl_dtype dtype;
        void *samples;
        int32_t *labels; /* n * labels_per_sample, each in [0, classes), or -1 where a token is ignored */
        float *targets;  /* n * n_targets, finite */
        uint32_t *owner; /* n: the natural client of each sample, in [0, n_owners); NULL: unknown */
};

#define MFL_CHANNELS_MAX 16
#define MFL_CLASSES_MAX 65536
#define MFL_TARGETS_MAX 65536
struct mfl_dataset {
        char name[MFL_NAME_BYTES];
        struct mfl_shape shape; /* {C,H,W}, {F}, or {T} of tokens */
        int classes;            /* of each label; 0 where there are targets */
        float scale[MFL_CHANNELS_MAX], shift[MFL_CHANNELS_MAX];
        struct mfl_split train, test;
        int vocabulary;        /* of tokens; 0: the samples are no tokens */
        int labels_per_sample; /* T for next-token labels, label t of sample i at labels[i * T + t]; 0 is 1 */
        int n_targets;         /* floats that a sample should give; 0: it has class labels */
        uint32_t n_owners;     /* of both splits together; 0: unknown */
        /* Names by number, or NULL. Each is one allocation: pointers, then the texts they point to. */
        char **owner_names; /* n_owners, in byte order */
        char **class_names; /* classes */
        uint32_t *symbols;  /* vocabulary code points that the tokens stand for, ascending; NULL: bytes */
};

size_t mfl_dtype_bytes(enum mfl_dtype dtype);
/* How many labels a sample has; 1 for class labels. */
static inline uint32_t mfl_dataset_labels_per_sample(const struct mfl_dataset *dataset)
{
        return dataset->labels_per_sample > 1 ? (uint32_t)dataset->labels_per_sample : 1;
}

enum mfl_data_format {
        MFL_FORMAT_IDX,     /* dir holds {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] */
        MFL_FORMAT_CIFAR10, /* dir holds data_batch_{1..5}.bin and test_batch.bin */
        MFL_FORMAT_NPY,     /* train_x, train_y, test_x, test_y name the files, within dir if that is given */
        MFL_FORMAT_SYNTHETIC, /* made from a seed, for benchmarks: see n, shape, classes below */
        MFL_FORMAT_CIFAR100,  /* dir holds train.bin and test.bin; fine labels, or coarse */
        MFL_FORMAT_CSV,       /* numbers in columns: files train and test, or one that is split */
        MFL_FORMAT_NPZ,       /* arrays of numpy.savez: the same */
        MFL_FORMAT_TEXT,      /* characters or bytes with next-token labels: files or folders of files */
        MFL_FORMAT_IMAGES,    /* dir/train/CLASS/x.png, dir/test/CLASS/y.jpg */
        MFL_FORMAT_COUNT,
};
extern const char *const mfl_data_format_names[]; /* by enum mfl_data_format, then NULL */

enum mfl_text_unit {
        MFL_TEXT_CHARACTERS, /* UTF-8 code points; the vocabulary is those of the training text, sorted */
        MFL_TEXT_BYTES,      /* vocabulary 256 */
};
enum mfl_text_owner {
        MFL_TEXT_OWNER_NONE,
        MFL_TEXT_OWNER_FILE,
        /* Blocks between blank lines; a block's first line that ends with a colon names who speaks. */
        MFL_TEXT_OWNER_SPEAKER,
};

/* Where a data set comes from: one entry under `data_sets:` of a daemon's configuration. Texts are on the
 * heap or NULL. */
struct mfl_dataset_config {
        char name[MFL_NAME_BYTES];
        enum mfl_data_format format;
        char *dir; /* csv, npz, text: a folder with train.* and test.*, or one file */
        char *train_x, *train_y, *test_x, *test_y; /* npy: files; npz: arrays */
        int classes;                               /* 0: largest label + 1 */
        bool has_mean; /* mean and std per channel, of values scaled to [0, 1] when u8 */
        float mean[MFL_CHANNELS_MAX], std[MFL_CHANNELS_MAX];
        struct mfl_shape shape;   /* synthetic, images; npy and npz: overrides, {1,28,28} for flat rows */
        uint32_t n_train, n_test; /* synthetic */
        uint64_t seed;            /* synthetic, test_fraction */
        bool normalise;           /* mean and std are those of the training samples */
        bool coarse;              /* cifar100: the 20 coarse labels */
        double test_fraction; /* of the samples that become the test split where there are no test files */
        /* csv: columns by name or by number from 0 */
        bool headless; /* the first line is no header */
        bool header_given;
        char separator; /* 0: comma */
        char *label;    /* NULL: the last column */
        char *owner;    /* NULL: none */
        char **targets; /* n_target_columns columns of floats, instead of label */
        int n_target_columns;
        char **ignored; /* columns that are no features */
        int n_ignored;
        /* text */
        enum mfl_text_unit unit;
        enum mfl_text_owner text_owner;
        uint32_t length; /* T, tokens of a sample; 0: 80 */
        uint32_t stride; /* from one sample's start to the next; 0: length */
};
void mfl_dataset_config_deinit(struct mfl_dataset_config *config);

int mfl_dataset_load(
        const struct mfl_dataset_config *config, struct mfl_dataset **ret_dataset, struct mfl_error *err);
void mfl_dataset_free(struct mfl_dataset *dataset);

/* A digest of what its labels and tokens stand for: 64 bits of the SHA-256 of the names of the classes, in
 * the order of labels, or of the vocabulary. 0: nothing has names, so that nothing is known; never 0 else.
 * Negative errors only. */
int mfl_dataset_meaning(const struct mfl_dataset *dataset, uint64_t *ret_meaning, struct mfl_error *err);

#endif
