/* SPDX-License-Identifier: Apache-2.0 */
/* Sites: daemons that hold one data set between them. With partition `local` a site is one client, whichever of its
 * daemons trains it; a daemon without Hello.site is a site by itself.
 *
 * Connected daemons of a site hold equal data: a daemon whose data set of the same name has another fingerprint is
 * refused, because the model would depend on which of them trained. Lost daemons in their grace time stay in the list. */
#ifndef MFL_SERVER_STATE_CORE_SITE_H
#define MFL_SERVER_STATE_CORE_SITE_H

#include "proto/message.h"

struct core_daemon;
struct core_job;
struct mfl_core;

/* Sets daemon->client from its Hello, and enters it in the site's list, by name. -ENOMEM */
int mfl_core_site_enter(struct mfl_core *core, struct core_daemon *daemon);
void mfl_core_site_leave(struct mfl_core *core, struct core_daemon *daemon); /* if it is in one */
/* The site's daemons are linked by site_next, in the order of names. NULL: there is none. */
struct core_daemon *mfl_core_site_first(const struct mfl_core *core, uint64_t client);
/* Whether a daemon with this Hello may not come in, because another connected daemon of its site holds other data. */
bool mfl_core_site_conflicts(
        const struct mfl_core *core, const struct mfl_daemon_info *info, char ret_reason[MFL_REASON_BYTES]);
/* Who works, or may work now, for the site as the job's client: a usable daemon that the job has, the one that failed
 * least often; otherwise the first usable one that no job has. NULL: none. */
struct core_daemon *mfl_core_site_worker(
        const struct mfl_core *core, const struct core_job *job, uint64_t client);
/* Some daemon of the site is leased to the job. */
bool mfl_core_site_leased(const struct mfl_core *core, const struct core_job *job, uint64_t client);
/* Some daemon of the site is usable for the job, and comes before this one, which counts as the site if none does. */
bool mfl_core_site_counted(
        const struct mfl_core *core, const struct core_job *job, const struct core_daemon *daemon);
/* Some daemon of the site is usable for the job, perhaps after it has worked for another one. */
bool mfl_core_site_usable(const struct mfl_core *core, const struct core_job *job, uint64_t client);
/* Some daemon of the site is lost, and may come back. */
bool mfl_core_site_waits(const struct mfl_core *core, uint64_t client);
void mfl_core_site_check(const struct mfl_core *core);

#endif
