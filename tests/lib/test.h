/* SPDX-License-Identifier: Apache-2.0 */
/* What every cmocka test includes, in the order that cmocka wants. */
#ifndef MFL_TESTS_LIB_TEST_H
#define MFL_TESTS_LIB_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* Every skipped test says what is not there, or what would bring it. */
#define skip_for(...)                                                                                        \
        do {                                                                                                 \
                print_message("# skipped: " __VA_ARGS__);                                                    \
                print_message("\n");                                                                         \
                skip();                                                                                      \
        } while (0)

#endif
