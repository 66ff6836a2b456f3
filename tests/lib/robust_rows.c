/* SPDX-License-Identifier: Apache-2.0 */
/* Robust rules on rows that another program made: requests on the standard input, one answer each on the standard output.
 *
 * Request, little-endian: five uint32 (bytes of text, m, n, round, 1 with a guess), the text, m * n floats, and with a guess n
 * more. The text is a job's `aggregation`, "{strategy: krum, f: 2}"; or "weiszfeld NU STEPS" from 0.
 * Answer: an int32, 0 or 1; after 1 an error of 512 bytes; after 0 n doubles, the aggregate, and m shares and m scores. */
#include <math.h>
#include <stdio.h>

#include "server/robust/rule.h"

struct request {
        uint32_t text_bytes, m, n, round, guess;
};

static void must_read(void *to, size_t bytes)
{
        if (fread(to, 1, bytes, stdin) != bytes)
                exit(2);
}

static void *must_alloc(size_t count, size_t size)
{
        void *p = calloc(count + 1, size);
        if (!p)
                exit(3);
        return p;
}

static int weiszfeld(const char *text, const struct request *q, const double *g, struct mfl_choice *choice)
{
        struct mfl_weiszfeld how = {.from_origin = true};
        const struct mfl_rows rows = {q->m, q->m, g, false};
        if (sscanf(text, "weiszfeld %lf %u", &how.nu, &how.steps) != 2)
                return MFL_INVALID;
        *choice = (struct mfl_choice){.n_rows = q->m,
                .n_in = q->m,
                .n_out = 1,
                .a = must_alloc(q->m, sizeof(double)),
                .share = must_alloc(q->m, sizeof(double)),
                .score = must_alloc(q->m, sizeof(double))};
        mfl_weiszfeld(&rows, &how, choice->a, choice->score);
        return 0;
}

static int decide(const char *text, const struct request *q, const float *const *rows,
        struct mfl_choice *choice, struct mfl_error *err)
{
        char doc[4096];
        struct mfl_job *job;
        snprintf(doc, sizeof doc,
                "name: t\nrounds: 1\nmodel: logistic\ndata: {name: d, partition: iid, clients: %u}\n"
                "training: {lr: 1, steps: 1, batch: 1}\naggregation: %s\n",
                q->m, text);
        int r = mfl_job_parse(doc, strlen(doc), "rows", &job, err);
        if (r)
                return r;
        const struct mfl_facts shape = mfl_facts_of(job, q->m + q->guess, q->n, q->round);
        double *facts = must_alloc(mfl_facts_size(&shape), sizeof *facts),
               *scratch = must_alloc(mfl_facts_scratch(&shape), sizeof *scratch);
        for (uint32_t at = 0, part; at < q->n; at += part) { /* as ranges of a file */
                part = MFL_MIN(q->n - at, 700u);
                if (mfl_facts_add(&shape, rows, 0, at, part, scratch, facts))
                        exit(3);
        }
        mfl_facts_finish(&shape, facts);
        r = mfl_robust_decide(
                job, q->round, q->m, q->guess, mfl_robust_compares(job) ? facts : NULL, NULL, choice, err);
        free(facts);
        free(scratch);
        mfl_job_free(job);
        return r;
}

static void answer(const struct request *q)
{
        char *text = must_alloc(q->text_bytes, 1);
        must_read(text, q->text_bytes);
        uint32_t m = q->m + q->guess;
        float *data = must_alloc((size_t)m * q->n, sizeof *data);
        must_read(data, (size_t)m * q->n * sizeof *data);
        const float **rows = must_alloc(m, sizeof *rows);
        double *g = must_alloc((size_t)m * m, sizeof *g), *d = must_alloc(q->n, sizeof *d);
        double *scratch = must_alloc(mfl_gram_scratch(m), sizeof *scratch);
        for (uint32_t i = 0; i < m; i++)
                rows[i] = data + (size_t)i * q->n;
        mfl_gram_add(rows, m, 0, q->n, scratch, g);
        mfl_gram_mirror(m, g);
        struct mfl_choice choice = {0};
        struct mfl_error err = {{0}};
        int32_t status = strncmp(text, "weiszfeld", 9) ? decide(text, q, rows, &choice, &err)
                                                       : weiszfeld(text, q, g, &choice);
        status = status != 0;
        fwrite(&status, sizeof status, 1, stdout);
        if (status)
                fwrite(err.text, 1, 512, stdout);
        double *room = must_alloc(mfl_robust_scratch(&choice), sizeof *room);
        if (!status) {
                mfl_robust_reduce(&choice, false, rows, 0, q->n, room, d);
                fwrite(d, sizeof *d, q->n, stdout);
                fwrite(choice.share, sizeof *d, q->m, stdout);
                fwrite(choice.score, sizeof *d, q->m, stdout);
        }
        fflush(stdout);
        mfl_choice_deinit(&choice);
        free(room);
        free(scratch);
        free(g);
        free(d);
        free(rows);
        free(data);
        free(text);
}

int main(void)
{
        struct request q;
        while (fread(&q, sizeof q, 1, stdin) == 1)
                answer(&q);
        return 0;
}
