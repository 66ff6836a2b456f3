/* SPDX-License-Identifier: Apache-2.0 */
/* Included before every source of the simulator's copy of the cores: faults that the checks must find. */
#ifndef MFL_TESTS_SIM_BUGS_H
#define MFL_TESTS_SIM_BUGS_H
extern int mfl_sim_bug; /* 0: none */
#define MFL_SIM_BUG(number) (mfl_sim_bug == (number))
#endif
