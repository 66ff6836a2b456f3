/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of clients: to bytes, and from the store. */
#include "server/jobs/scores.h"

int mfl_job_scores_pack(
        const struct mfl_round_scores *scores, void **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        MFL_CLEANUP_FREE Mfl__ClientScore *clients = mfl_calloc(scores->n, sizeof *clients);
        MFL_CLEANUP_FREE Mfl__ClientScore **pointers = mfl_calloc(scores->n, sizeof *pointers);
        Mfl__RoundScores all = MFL__ROUND_SCORES__INIT;
        if (!clients || !pointers)
                return mfl_fail_memory(err, scores->n * sizeof *clients, "the scores of clients");
        for (uint32_t i = 0; i < scores->n; i++) {
                const struct mfl_client_score *s = &scores->v[i];
                mfl__client_score__init(&clients[i]);
                clients[i].client = s->client;
                clients[i].site = scores->sites ? scores->sites[i] : "";
                clients[i].samples = s->samples;
                clients[i].correct = s->correct;
                clients[i].loss_sum = s->loss_sum;
                pointers[i] = &clients[i];
        }
        all.round = scores->round;
        all.n_clients = scores->n;
        all.clients = pointers;
        all.classes = scores->classes;
        all.n_confusion = (size_t)scores->classes * scores->classes;
        all.confusion = scores->sums;
        size_t n = mfl__round_scores__get_packed_size(&all);
        void *bytes = mfl_malloc(n);
        if (!bytes)
                return mfl_fail_memory(err, n, "the scores of clients");
        mfl__round_scores__pack(&all, bytes);
        *ret_bytes = bytes;
        *ret_n = n;
        return 0;
}

int mfl_job_scores_read(
        struct mfl_store *store, const char *id, Mfl__RoundScores **ret_scores, struct mfl_error *err)
{
        void *bytes = NULL;
        size_t n = 0;
        int r = mfl_store_scores_get(store, id, &bytes, &n, err);
        if (r)
                return r;
        *ret_scores = bytes ? mfl__round_scores__unpack(NULL, n, bytes) : NULL;
        if (bytes && !*ret_scores)
                r = mfl_fail_memory(err, n, "the scores of clients");
        free(bytes);
        return r;
}

void mfl_job_scores_free(Mfl__RoundScores *scores)
{
        mfl__round_scores__free_unpacked(scores, NULL);
}
