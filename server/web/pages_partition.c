/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's data are divided, as a table. */
#include "server/web/contents.h"

#define CLASSES_SHOWN 20 /* columns of the table; the last one holds all further classes */

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
                mfl_text_put(text, "<p class=note>Not all are shown.</p>");
        mfl_text_put(text, "</section>\n");
}
