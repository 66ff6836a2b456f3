/* SPDX-License-Identifier: Apache-2.0 */
/* The list of servers. See servers.h. */
#include "proto/servers.h"

#include "proto/stream.h"

int mfl_servers_init(struct mfl_servers *servers, const char *text, struct mfl_error *err)
{
        char host[256], port[16], *one;
        *servers = (struct mfl_servers){.n = 0};
        if (!mfl_strcpy(servers->text, sizeof servers->text, text))
                return mfl_fail(err, MFL_INVALID, "the list of servers is longer than %d characters",
                        MFL_SERVERS_BYTES - 1);
        for (char *rest = servers->text; (one = strsep(&rest, ","));) {
                one += strspn(one, " ");
                int r = mfl_address_parse(one, host, sizeof host, port, sizeof port, err);
                if (r)
                        return r;
                if (servers->n == MFL_SERVERS_MAX)
                        return mfl_fail(err, MFL_INVALID, "%s: more than %d servers", text, MFL_SERVERS_MAX);
                servers->at[servers->n++] = one;
        }
        return 0;
}

const char *mfl_servers_current(const struct mfl_servers *servers)
{
        return servers->at[servers->current];
}

bool mfl_servers_next(struct mfl_servers *servers, const char *leader)
{
        uint32_t next = (servers->current + 1) % servers->n;
        for (uint32_t i = 0; i < servers->n; i++)
                if (i != servers->current && !strcmp(servers->at[i], leader))
                        next = i;
        servers->current = next;
        if (++servers->failed < servers->n)
                return true;
        servers->failed = 0;
        return false;
}

bool mfl_servers_has(const struct mfl_servers *servers, const char *server)
{
        for (uint32_t i = 0; i < servers->n; i++)
                if (!strcmp(servers->at[i], server))
                        return true;
        return false;
}

void mfl_servers_reached(struct mfl_servers *servers)
{
        servers->failed = 0;
}

int mfl_servers_hear(struct mfl_servers *servers, uint64_t term, struct mfl_error *err)
{
        if (term && term < servers->term)
                return mfl_fail(err, MFL_INVALID,
                        "a message of term %llu, after one of term %llu: this server no longer leads the "
                        "cluster",
                        (unsigned long long)term, (unsigned long long)servers->term);
        servers->term = MFL_MAX(servers->term, term);
        return 0;
}
