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

#include "common/base/base.h"
#include "common/model/graph.h"

enum mfl_dtype {
        MFL_U8,
        MFL_F32,
        MFL_I32, /* tokens in [0, vocabulary); the sample's shape is {T}; scale and shift don't apply */
};

/* n samples; sample i is mfl_shape_count(shape) elements at samples + i * count * element size. The value
 * that a model sees is x * scale[c] + shift[c], c being the channel (dimension 0 of an image; 0 for vectors).
 * The expected outputs are in labels, or in targets if the data set has n_targets > 0; the other is NULL.
 */
struct mfl_split {
        uint32_t n;
        enum mfl_dtype dtype;
        void *samples;
        int32_t *
                labels; /* n * labels_per_sample, each in [0, classes), or -1 for ignored tokens and pixels */
        float *targets; /* n * n_targets, finite */
        int labels_each; /* while loading: labels of a sample; 0: 1 */
        uint32_t *owner; /* n: the natural client of each sample, in [0, n_owners); NULL: unknown */
};

/* What the tokens of samples stand for. */
enum mfl_token_kind {
        MFL_TOKENS_PLAIN,   /* symbols, or bytes 0 to 255: text whose labels are the next tokens */
        MFL_TOKENS_NUMBERS, /* whatever the numbers of a file mean */
        MFL_TOKENS_BYTES,   /* padded: byte b is token b + 1 */
        MFL_TOKENS_WORDS,   /* padded: words or characters */
};
#define MFL_TOKEN_PADDING 0 /* of padded tokens, after the end of a text */
#define MFL_TOKEN_UNKNOWN 1 /* of words: what the vocabulary does not have */
#define MFL_TOKEN_FIRST 2   /* of words: the vocabulary's first */

#define MFL_CHANNELS_MAX 16
#define MFL_CLASSES_MAX MFL_WIDTH_MAX
#define MFL_TARGETS_MAX MFL_WIDTH_MAX
struct mfl_dataset {
        char name[MFL_NAME_BYTES];
        struct mfl_shape shape; /* {C,H,W}, {F}, {T,F} of a time series, or {T} of tokens */
        int classes;            /* of each label; 0 with targets */
        float scale[MFL_CHANNELS_MAX], shift[MFL_CHANNELS_MAX];
        struct mfl_split train, test;
        int vocabulary; /* of tokens; 0: the samples are not tokens */
        /* T for next-token labels, H * W for a label per pixel: label t of sample i at labels[i * T + t]; 0 is 1 */
        int labels_per_sample;
        int n_targets;     /* target floats per sample; 0: class labels */
        uint32_t n_owners; /* of both splits together; 0: unknown */
        /* Names by number, or NULL. Each is one allocation: pointers, then the texts they point to. */
        char **owner_names; /* n_owners, in byte order */
        char **class_names; /* classes */
        uint32_t *symbols;  /* vocabulary code points that the tokens stand for, ascending; NULL: bytes */
        enum mfl_token_kind tokens;
        char **words;         /* MFL_TOKENS_WORDS: vocabulary - MFL_TOKEN_FIRST of them, token by token */
        char **feature_names; /* of rows of a table: the shape's last dimension */
        /* Rows with categories (struct mfl_categories): which features are not quantities, and their values. NULL:
         * there are none. */
        uint8_t *categorical;
        char *encoding;
        /* Rows with normalise: columns, of each feature (the shape's last dimension): the samples hold (float)((x - mean) /
         * std) in double. mean 0 and std 1: as it is. NULL: other samples. One allocation. */
        double *column_mean, *column_std;
        bool measured;    /* scale, shift or columns are those of the training samples (`normalise`) */
        bool share_names; /* as configured */
        char note[256];   /* a note for people about something valid but probably unintended; empty: none */
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
        /* Only of texts with labels: runs of ASCII letters, digits and everything beyond ASCII; A to Z become a to z. */
        MFL_TEXT_WORDS,
};
enum mfl_text_owner {
        MFL_TEXT_OWNER_NONE,
        MFL_TEXT_OWNER_FILE,
        /* Blocks between blank lines; a block's first line, which ends with a colon, names the speaker. */
        MFL_TEXT_OWNER_SPEAKER,
};

/* How test_fraction cuts time series: the last rows of each, or whole series drawn by the seed. */
enum mfl_series_split {
        MFL_SERIES_SPLIT_TIME,
        MFL_SERIES_SPLIT_GROUP,
};
/* Which of a window's labels is the sample's: that of the answer's row, or the commonest in the window (of equals, the
 * smallest). */
enum mfl_series_label {
        MFL_SERIES_LABEL_LAST,
        MFL_SERIES_LABEL_MAJORITY,
};

/* A column of a table whose values are names. With `codes`, the feature is the value's position in the list;
 * otherwise there is one feature per value, 1 for the row's value and 0 for the others. */
#define MFL_CATEGORIES_MAX 1000
struct mfl_categories {
        char *column; /* name, or number from 0 */
        bool codes;
        char **values;
        int n; /* 2 to MFL_CATEGORIES_MAX, all different */
};

/* Where a data set comes from: one entry under `data_sets:` of a daemon's configuration. Texts are on the
 * heap or NULL. */
struct mfl_dataset_config {
        char name[MFL_NAME_BYTES];
        enum mfl_data_format format;
        char *dir; /* csv, npz, text: a folder with train.* and test.*, or one file */
        char *train_x, *train_y, *test_x, *test_y; /* npy: files; npz: arrays */
        int classes;                               /* 0: largest label + 1 */
        bool has_ignore_index;
        int64_t ignore_index; /* npy, npz, masks: this label of a pixel means that it has none */
        char *masks;          /* images: the folder of masks beside `images`; NULL: folders are classes */
        bool has_mean;        /* mean and std per channel, of values scaled to [0, 1] when u8 */
        float mean[MFL_CHANNELS_MAX], std[MFL_CHANNELS_MAX];
        struct mfl_shape shape;   /* synthetic, images; npy and npz: overrides, {1,28,28} for flat rows */
        uint32_t n_train, n_test; /* synthetic */
        uint64_t seed;            /* synthetic, test_fraction */
        bool normalise;           /* mean and std are those of the training samples */
        bool normalise_columns;   /* each feature by itself, except categories; samples are rows of floats
                                   */
        /* Not keys, for predictions: one file or folder, or the test one of two, is the training split as it is; and its
         * samples have no labels (they are all 0). */
        bool whole, unlabelled;
        bool share_names; /* names of classes, features and symbols may leave the site with the model's contract */
        bool coarse;      /* cifar100: the 20 coarse labels */
        double test_fraction; /* share of the samples that becomes the test split when there are no test files */
        /* csv: columns by name or by number from 0 */
        bool headless; /* the first line is not a header */
        bool header_given;
        char separator; /* 0: comma */
        char *label;    /* NULL: the last column */
        char *owner;    /* NULL: none */
        char **targets; /* n_target_columns columns of floats, instead of label */
        int n_target_columns;
        char **ignored; /* columns that are not features */
        int n_ignored;
        char **features; /* n_feature_columns columns; none: all that have no other purpose */
        int n_feature_columns;
        /* csv: windows over the rows of time series (load_series.c) */
        uint32_t window;  /* rows of a sample; 0: each row is a sample */
        uint32_t horizon; /* the answer is that many rows after the window's last one */
        bool horizon_given;
        char *group, *time; /* columns; NULL: one series, and the order of the file */
        enum mfl_series_split split;
        enum mfl_series_label label_at;
        /* csv: a column of texts with one label each (load_words.c) */
        char *text;
        char *vocabulary; /* a file of words; npy, npz: the number of tokens, or auto */
        uint32_t vocabulary_size;
        struct mfl_categories *categories;
        int n_categories;
        /* text, and csv with a column of texts */
        enum mfl_text_unit unit;
        bool unit_given;
        enum mfl_text_owner text_owner;
        uint32_t length; /* T, tokens of a sample; 0: 80, for texts with labels 128 */
        uint32_t stride; /* from one sample's start to the next; 0: length, or window */
};
void mfl_dataset_config_deinit(struct mfl_dataset_config *config);
void mfl_categories_free(struct mfl_categories *list, int n); /* NULL is fine */

int mfl_dataset_load(
        const struct mfl_dataset_config *config, struct mfl_dataset **ret_dataset, struct mfl_error *err);
void mfl_dataset_free(struct mfl_dataset *dataset);

/* A digest of the meaning of labels and tokens: 64 bits of the SHA-256 of the class names, in the order of labels, or
 * of the vocabulary. 0 means unknown: nothing has names; otherwise it is never 0. With categories it covers them,
 * too, and its upper 24 bits are MFL_MEANING_CATEGORIES: a site with another digest has other numbers for the same
 * words. Negative errors only. */
int mfl_dataset_meaning(const struct mfl_dataset *dataset, uint64_t *ret_meaning, struct mfl_error *err);
#define MFL_MEANING_CATEGORIES 0xca7e60u
/* Whether two data sets may serve one job: both digests are equal, or at least one is unknown and the other has no
 * categories. */
bool mfl_meaning_agrees(uint64_t a, uint64_t b);

#endif
