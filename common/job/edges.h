/* SPDX-License-Identifier: Apache-2.0 */
/* Regions, as the key `edges` of a job file asks for them: the clients of each region are averaged among themselves for
 * `rounds` rounds, and then the regions are averaged (HierFAVG: Liu, Zhang, Song, Letaief: "Client-Edge-Cloud Hierarchical
 * Federated Learning", ICC 2020, algorithm 1; its kappa_1 are the local steps, its kappa_2 is `rounds`). A client's region follows
 * from its number, or a site's from its name, and never from a connection. Pure functions; any thread. */
#ifndef MFL_COMMON_JOB_EDGES_H
#define MFL_COMMON_JOB_EDGES_H

#include "common/base/base.h"

#define MFL_REGIONS_MAX 64u

/* What a region makes of its clients' updates. */
enum mfl_region_rule {
        MFL_REGION_MEAN,
        MFL_REGION_MEDIAN,       /* per element */
        MFL_REGION_TRIMMED_MEAN, /* per element, without a fifth of them, rounded down, at each end */
};

struct mfl_edges {
        uint32_t count;  /* regions; 0: the job has none */
        uint32_t rounds; /* from one meeting of the regions to the next */
        enum mfl_region_rule within;
};

struct mfl_job;

/* Whether regions have params of their own: not with unit: server, whose regions meet in each round. */
bool mfl_job_has_regions(const struct mfl_job *job);
/* Of a client: cut by number, floor(client * count / clients); of a site, by its key, with the stream (seed, MFL_RNG_REGION, key). */
uint32_t mfl_job_region(const struct mfl_job *job, uint64_t client);
/* Whether the regions meet after that round. */
bool mfl_job_regions_meet(const struct mfl_job *job, uint32_t round);

#endif
