/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-client jobs, mfl-client budget, mfl-client approve JOB and mfl-client deny JOB: requests to the daemons of this host. */
#ifndef MFL_CLIENT_SERVICE_TELL_H
#define MFL_CLIENT_SERVICE_TELL_H

/* The exit status; -1 if the arguments are none of these. */
int mfl_client_tell(int argc, char **argv);

#endif
