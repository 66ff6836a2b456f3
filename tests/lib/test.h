/* SPDX-License-Identifier: Apache-2.0 */
/* What every cmocka test includes, in the order that cmocka wants. */
#ifndef MFL_TESTS_LIB_TEST_H
#define MFL_TESTS_LIB_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#endif
