/* SPDX-License-Identifier: Apache-2.0 */
/* Logarithms, exponentials and powers with the same bits on every machine: those of two C libraries may differ in the last
 * bit, and then two daemons would draw two partitions, or give a client two weights. Series of IEEE 754 additions,
 * multiplications and divisions, which are exact to the bit everywhere (the build forbids contraction to FMA). Pure
 * functions, any thread.
 */
#ifndef MFL_COMMON_EXACT_EXACT_H
#define MFL_COMMON_EXACT_EXACT_H

double mfl_exact_log(double x); /* x > 0, normal */
double mfl_exact_exp(double x); /* x <= 0 */
/* x^y for a normal x > 0 and a finite y; x^0 is 1 and x^1 is x. Relative error about 2^-52 (2 + |y log x|); infinity and 0
 * beyond 2^+-1010. */
double mfl_exact_power(double x, double y);

#endif
