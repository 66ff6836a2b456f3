/* SPDX-License-Identifier: Apache-2.0 */
/* Made-up data that a preset can be trained on: bench/train_torch.py makes the same kind for PyTorch. */
#ifndef MFL_BENCH_SAMPLES_H
#define MFL_BENCH_SAMPLES_H

#include "common/data/dataset.h"

/* What the preset takes: tokens {80} for text, else images {channels, height, width}; n_classes of them. */
struct mfl_shape bench_shape(const char *model, int *ret_classes);

/* A set of n random training samples: bytes that are scaled to [0, 1], or tokens below the number of classes
 * with a label for each. Ends the process where there is no memory. The caller frees with
 * bench_samples_deinit. */
void bench_samples_init(const char *model, uint32_t n, struct mfl_dataset *ret_set);
/* The same for a network: samples of its input, with as many labels as it has positions. */
void bench_samples_of(const struct mfl_graph *graph, uint32_t n, struct mfl_dataset *ret_set);
void bench_samples_deinit(struct mfl_dataset *set);

#endif
