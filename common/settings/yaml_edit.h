/* SPDX-License-Identifier: Apache-2.0 */
/* Changes single values in the text of a YAML document, as `mfl submit --set training.lr=0.01` does, and leaves everything
 * else as it is, comments too. Pure; any thread.
 *
 * A path names keys and, of sequences, positions from 0: "training.lr", "model.layers[2].units". A value is YAML in one line:
 * 0.01, 'a text', [1, 2], {bits: 8}.
 */
#ifndef MFL_COMMON_SETTINGS_YAML_EDIT_H
#define MFL_COMMON_SETTINGS_YAML_EDIT_H

#include "common/base/base.h"

/* Sets path to value; what is missing on the way to it is added. ret_text is on the heap, and has been parsed, but nothing
 * says yet that its keys mean anything. MFL_INVALID: the text is wrong (its message names file), path leads through a single
 * value or beyond the end of a sequence, value is not one value, or what is to be replaced is a block of several lines. */
int mfl_yaml_set(const char *text, const char *file, const char *path, const char *value, char **ret_text,
        struct mfl_error *err);

/* Cuts "1, 'a, b', [2, 3]" into its values, as they are written: "1", "'a, b'", "[2, 3]". "1..4" stands for 1, 2, 3, 4. An
 * array of n texts, and the array itself, are on the heap. MFL_INVALID: none, or more than n_max. */
int mfl_yaml_values(const char *text, int n_max, char ***ret_values, int *ret_n, struct mfl_error *err);
void mfl_yaml_values_free(char **values, int n); /* NULL is fine */

#endif
