/* SPDX-License-Identifier: Apache-2.0 */
/* The job files of examples/, in the program, so that whoever has only the package can begin from one. */
#ifndef MFL_CLI_MANY_TEMPLATES_H
#define MFL_CLI_MANY_TEMPLATES_H

struct mfl_template {
        const char *name, *text; /* the text begins with a comment that says what it shows */
};
extern const struct mfl_template mfl_templates[]; /* by name; ends with a NULL name */

#endif
