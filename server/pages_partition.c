/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's data are divided, as JSON and as a table. */
#include "server/pages.h"

#include "server/partition.h"

#define CLASSES_SHOWN 20 /* columns of the table; further classes are in the last one together */

/* ---- JSON ---- */

static void put_client(struct mfl_text *text, const Mfl__ClientSamples *client)
{
        mfl_text_format(
                text, "{\"client\":%llu,\"samples\":%u", (unsigned long long)client->client, client->samples);
        if (*client->daemon) {
                mfl_text_put(text, ",\"daemon\":");
                mfl_text_json(text, client->daemon);
        }
        if (client->n_classes) {
                mfl_text_put(text, ",\"classes\":[");
                for (size_t i = 0; i < client->n_classes; i++)
                        mfl_text_format(text, "%s%u", i ? "," : "", client->classes[i]);
                mfl_text_put(text, "]");
        }
        mfl_text_put(text, "}");
}

void mfl_json_partition(struct mfl_server_job *job, const Mfl__Partition *p, struct mfl_text *text)
{
        mfl_text_put(text, "{\"job\":");
        mfl_text_json(text, job->id);
        mfl_text_format(text, ",\"local\":%s,\"known\":%s",
                mfl_job_partition_is_local(job) ? "true" : "false", p ? "true" : "false");
        if (p) {
                mfl_text_format(text,
                        ",\"clients\":%u,\"samples\":%llu,\"samples_min\":%u,\"samples_max\":%u,"
                        "\"classes\":%u,\"shown\":[",
                        p->clients, (unsigned long long)p->samples, p->samples_min, p->samples_max,
                        p->classes);
                for (size_t i = 0; i < p->n_shown; i++) {
                        mfl_text_put(text, i ? ",\n" : "");
                        put_client(text, p->shown[i]);
                }
                mfl_text_put(text, "]");
        }
        mfl_text_put(text, "}\n");
}

/* ---- HTML ---- */

static void put_row(struct mfl_text *text, const Mfl__ClientSamples *client, size_t n_columns)
{
        uint64_t rest = 0;
        mfl_text_put(text, "<tr><td>");
        if (*client->daemon)
                mfl_text_html(text, client->daemon);
        else
                mfl_text_format(text, "%llu", (unsigned long long)client->client);
        mfl_text_format(text, "</td><td class=num>%u</td>", client->samples);
        for (size_t i = 0; i < client->n_classes; i++) {
                if (i + 1 >= n_columns)
                        rest += client->classes[i];
                else
                        mfl_text_format(text, "<td class=num>%u</td>", client->classes[i]);
        }
        if (client->n_classes)
                mfl_text_format(text, "<td class=num>%llu</td>", (unsigned long long)rest);
        mfl_text_put(text, "</tr>\n");
}

static void put_head(struct mfl_text *text, const Mfl__Partition *p, size_t n_columns)
{
        bool sites = *p->shown[0]->daemon;
        mfl_text_format(text,
                "<section id=partition><h2>Data of the clients</h2>\n<div class=wide><table><caption>%u %s, "
                "%llu samples: %u to %u each",
                p->clients, sites ? "sites" : "clients", (unsigned long long)p->samples, p->samples_min,
                p->samples_max);
        mfl_text_format(text, "%s</caption><thead><tr><th>%s<th class=num>Samples",
                n_columns ? ", by class" : "", sites ? "Site" : "Client");
        for (size_t i = 0; i < n_columns; i++)
                mfl_text_format(text, "<th class=num>%zu%s", i,
                        i + 1 == n_columns && p->classes > n_columns ? "+" : "");
        mfl_text_put(text, "</tr></thead><tbody>\n");
}

void mfl_html_partition(const Mfl__Partition *p, struct mfl_text *text)
{
        if (!p || !p->n_shown)
                return;
        size_t n_columns = MFL_MIN(p->shown[0]->n_classes, (size_t)CLASSES_SHOWN);
        size_t stride = (p->n_shown + MFL_PAGES_CLIENTS_MAX - 1) / MFL_PAGES_CLIENTS_MAX;
        put_head(text, p, n_columns);
        for (size_t i = 0; i < p->n_shown; i += stride)
                put_row(text, p->shown[i], n_columns);
        mfl_text_put(text, "</tbody></table></div>");
        if ((p->n_shown + stride - 1) / stride < p->clients)
                mfl_text_put(text, "<p class=note>Not all of them are shown.</p>");
        mfl_text_put(text, "</section>\n");
}
