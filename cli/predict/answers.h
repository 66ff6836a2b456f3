/* SPDX-License-Identifier: Apache-2.0 */
/* A model's answers for all samples, and what they are worth. Private to cli/predict. */
#ifndef MFL_CLI_PREDICT_ANSWERS_H
#define MFL_CLI_PREDICT_ANSWERS_H

#include "cli/base/cli.h"
#include "cli/predict/samples.h"
#include "kernels/infer/infer.h"

/* ---- model.c ---- */
/* Opens MODEL: a file, or a job of the server, whose model is pulled into a temporary file. Codes of pull.h and model_file.h. */
int mfl_predict_model(struct mfl_cli *cli, struct mfl_model_file **ret_model, struct mfl_error *err);
/* evaluates: without --precision, in the job's precision, where this machine has it. */
int mfl_predict_infer(struct mfl_cli *cli, const struct mfl_model_file *model, bool evaluates,
        struct mfl_infer **ret_infer, struct mfl_error *err);

/* ---- answers.c ---- */
enum mfl_answer_kind {
        MFL_ANSWER_CLASS,  /* logits of classes at each position */
        MFL_ANSWER_BINARY, /* a logit for each output */
        MFL_ANSWER_VALUE,  /* a number for each output */
};
struct mfl_answers {
        enum mfl_answer_kind kind;
        uint32_t n, positions, classes; /* classes: of a position; outputs, without classes */
        float *z;                       /* n * positions * classes: what the model gives */
};
int mfl_answers_compute(struct mfl_infer *infer, const struct mfl_samples *samples,
        struct mfl_answers *ret_answers, struct mfl_error *err);
void mfl_answers_deinit(struct mfl_answers *answers);
/* Samples of which a number is not finite. */
uint32_t mfl_answers_not_finite(const struct mfl_answers *answers);
/* Probabilities (or values) of one position, in double: p has answers->classes numbers. */
void mfl_answers_row(const struct mfl_answers *answers, const float *z, double *p);
/* The first largest. */
uint32_t mfl_answers_best(const float *z, uint32_t classes);

/* ---- measures.c ---- */
#define MFL_ECE_BINS 15
struct mfl_judgement {
        uint64_t n; /* scored predictions */
        double loss, accuracy, macro_f1, auc, ece, mae, rmse, r2;
        bool has_accuracy, has_f1, has_auc, has_ece, has_errors;
        uint64_t *
                confusion; /* classes * classes, [label * classes + prediction]; NULL: more than 100 classes, or none */
        uint32_t classes;
};
/* Of labelled samples. AUC: the probability that a sample of a class has a larger probability of it than one of another class,
 * equal ones counting half; the mean over the classes that have both (Hand and Till 2001 call it one against the rest). ECE: the
 * mean distance of accuracy and confidence over 15 bins of equal width (Naeini et al. 2015). */
int mfl_judge(struct mfl_infer *infer, const struct mfl_samples *samples, const struct mfl_answers *answers,
        struct mfl_judgement *ret_judgement, struct mfl_error *err);
void mfl_judgement_deinit(struct mfl_judgement *judgement);

/* ---- output.c ---- */
enum mfl_answer_format { MFL_ANSWERS_CSV, MFL_ANSWERS_JSONL, MFL_ANSWERS_NPY };
struct mfl_answer_options {
        enum mfl_answer_format format;
        uint32_t top;               /* classes of a row, from the most probable on */
        bool probabilities, logits; /* all of them, too; npy: logits instead of probabilities */
};
/* path "-": standard output (not npy). Replaces a file once it is complete. */
int mfl_answers_write(const struct mfl_answers *answers, const struct mfl_contract *contract,
        const char *path, const struct mfl_answer_options *options, struct mfl_error *err);

/* import.c: writes the model file `out` from an ONNX file. MFL_INVALID, MFL_NOT_FOUND. */
int mfl_predict_import(const struct mfl_cli *cli, const char *path, const char *out, struct mfl_error *err);

#endif
