/* SPDX-License-Identifier: Apache-2.0 */
/* All daemons that a server knows, a page at a time: a list of any length holds the server's loop for a page only. */
#include "cli/base/client.h"

#define PAGE_DAEMONS 1000

void mfl_client_daemons_deinit(struct mfl_client_daemons *daemons)
{
        for (size_t i = 0; i < daemons->n_pages; i++)
                mfl_wire_free(daemons->page[i]);
        free(daemons->page);
        free(daemons->list.daemons);
        *daemons = (struct mfl_client_daemons){.list = MFL__DAEMON_LIST__INIT};
}

/* Takes the page, whatever comes of it. */
static int add_page(struct mfl_client_daemons *daemons, Mfl__Envelope *page, struct mfl_error *err)
{
        const Mfl__DaemonList *list = page->daemon_list;
        size_t n = daemons->list.n_daemons + list->n_daemons;
        Mfl__Envelope **pages = mfl_realloc(daemons->page, (daemons->n_pages + 1) * sizeof *pages);
        if (pages) {
                daemons->page = pages;
                pages[daemons->n_pages++] = page;
        } else
                mfl_wire_free(page);
        Mfl__DaemonInfo **all = pages ? mfl_realloc(daemons->list.daemons, (n + 1) * sizeof(*all)) : NULL;
        if (!all)
                return mfl_fail_memory(err, n * sizeof(*all), "a list of daemons");
        for (size_t i = 0; i < list->n_daemons; i++)
                all[daemons->list.n_daemons++] = list->daemons[i];
        daemons->list.daemons = all;
        return 0;
}

int mfl_client_daemons(
        struct mfl_client *client, struct mfl_client_daemons *ret_daemons, struct mfl_error *err)
{
        struct mfl_client_daemons daemons = {.list = MFL__DAEMON_LIST__INIT};
        Mfl__ListDaemons list = MFL__LIST_DAEMONS__INIT;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        char after[MFL_NAME_BYTES] = "";
        bool more = true;
        int r = 0;
        request.body_case = MFL__ENVELOPE__BODY_LIST_DAEMONS;
        request.list_daemons = &list;
        list.after = after;
        list.count = PAGE_DAEMONS;
        while (!r && more) {
                Mfl__Envelope *page = NULL;
                r = mfl_client_call(client, &request, MFL__ENVELOPE__BODY_DAEMON_LIST, &page, err);
                if (r)
                        break;
                more = page->daemon_list->more && page->daemon_list->n_daemons;
                if (more)
                        mfl_strcpy(after, sizeof after,
                                page->daemon_list->daemons[page->daemon_list->n_daemons - 1]->name);
                r = add_page(&daemons, page, err);
        }
        if (r)
                mfl_client_daemons_deinit(&daemons);
        else
                *ret_daemons = daemons;
        return r;
}
