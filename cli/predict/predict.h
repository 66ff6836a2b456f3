/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl predict`, `mfl evaluate` and `mfl model show`: a model's answers for samples of a file, without a server where the model
 * is a file. The command's thread. */
#ifndef MFL_CLI_PREDICT_PREDICT_H
#define MFL_CLI_PREDICT_PREDICT_H

#include "cli/base/cli.h"

/* Each returns the exit code of the program. */
int mfl_cmd_predict(struct mfl_cli *cli);
int mfl_cmd_evaluate(struct mfl_cli *cli);
int mfl_cmd_model(struct mfl_cli *cli);
int mfl_cmd_import(struct mfl_cli *cli);

#endif
