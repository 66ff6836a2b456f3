/* SPDX-License-Identifier: Apache-2.0 */
/* What the tables of `mfl` produce besides --help: man pages, the reference of job files, completion. */
#ifndef MFL_CLI_COMMANDS_MANUAL_H
#define MFL_CLI_COMMANDS_MANUAL_H

#include <stdio.h>

#include "common/base/page.h"

/* examples/reference.yaml, which `mfl help job` shows. */
extern const char mfl_job_reference[];

/* mfl.1 */
void mfl_manual_print(FILE *out);
/* Every key of a job file with its limits and its comment in the reference file; as mfl-job.5 or as a chapter
 * of docs/configuration.md. */
void mfl_manual_print_job(FILE *out, enum mfl_page_form form);
/* The reference file, and behind it, as comments, the combinations that are refused. */
void mfl_manual_print_reference(FILE *out);
/* The completion of `mfl` for bash, zsh and fish. */
void mfl_completion_print(FILE *out);
void mfl_completion_print_zsh(FILE *out);
void mfl_completion_print_fish(FILE *out);

#endif
