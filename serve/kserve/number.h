/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON number's text as a double: private to json.c, and apart because it is arithmetic. */
#ifndef MFL_SERVE_KSERVE_NUMBER_H
#define MFL_SERVE_KSERVE_NUMBER_H

#include "common/base/base.h"

/* How long the number at text is, 0 if there is none, or one of more than 400 characters; and its value, to nearest, ties to even. Infinite: too large. */
size_t mfl_number_read(const char *text, size_t n, double *ret_value);

#endif
