/* SPDX-License-Identifier: Apache-2.0 */
/* Included before every source of the simulator. plant.py plants the bugs of bugs.txt in its copies of the cores. */
#ifndef MFL_TESTS_SIM_BUGS_H
#define MFL_TESTS_SIM_BUGS_H
#define BUG(number) (mfl_sim_bug == (number))
extern int mfl_sim_bug;                  /* 0: none */
extern const char *const mfl_sim_bugs[]; /* what goes wrong, from 1 to mfl_sim_n_bugs */
extern const int mfl_sim_n_bugs;
#endif
