/* SPDX-License-Identifier: Apache-2.0 */
/* Text for terminals of 80 columns. */
#ifndef MFL_CLI_BASE_WRAP_H
#define MFL_CLI_BASE_WRAP_H

#include <stdio.h>

#define MFL_WRAP_COLUMNS 80

/* Prints ASCII text. A line of more columns goes on below, under the second column of a table or under its own beginning, and takes
 * in the next line if that begins there. A command to be typed ("  mfl ...") goes on after a backslash. Lines that are short enough
 * stay as they are, and so does a word that has no room. */
void mfl_wrap_print(FILE *out, const char *text);

#endif
