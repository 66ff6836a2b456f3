/* SPDX-License-Identifier: Apache-2.0 */
/* mfl audit: who changed what, or tried to. */
#include <inttypes.h>
#include <time.h>

#include "cli/commands/commands.h"
#include "cli/base/client.h"
#include "cli/base/json.h"

static int print_json(const Mfl__AuditList *list, struct mfl_error *err)
{
        json_t *entries = json_array();
        for (size_t i = 0; i < list->n_entries; i++) {
                const Mfl__AuditEntry *e = list->entries[i];
                json_array_append_new(entries,
                        json_pack("{sI sI ss ss ss ss ss ss}", "seq", (json_int_t)e->seq, "time_ms",
                                (json_int_t)e->time_ms, "who", e->who, "address", e->address, "action",
                                e->action, "object", e->object, "result", e->result, "text", e->text));
        }
        return mfl_json_print(stdout, json_pack("{so}", "entries", entries), err);
}

/* The text contains what peers sent: no part of it may control the terminal. */
static void print_clean(const char *text)
{
        for (; *text; text++)
                putchar((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text);
        putchar('\n');
}

static void print_list(const Mfl__AuditList *list)
{
        printf("%-19s  %-20s %-22s %-8s %-20s %-8s %s\n", "TIME", "WHO", "FROM", "ACTION", "OBJECT", "RESULT",
                "WHY");
        for (size_t i = 0; i < list->n_entries; i++) {
                const Mfl__AuditEntry *e = list->entries[i];
                char date[32] = "-", line[1024];
                time_t t = (time_t)(e->time_ms / 1000);
                struct tm tm;
                if (localtime_r(&t, &tm))
                        strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &tm);
                snprintf(line, sizeof line, "%-19s  %-20s %-22s %-8s %-20s %-8s %s", date,
                        *e->who ? e->who : "-", *e->address ? e->address : "-", e->action,
                        *e->object ? e->object : "-", e->result, e->text);
                print_clean(line);
        }
}

int mfl_cmd_audit(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_error err;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__ListAudit list = MFL__LIST_AUDIT__INIT;
        list.count = cli->options.last > 0 ? (uint32_t)cli->options.last : 100;
        request.body_case = MFL__ENVELOPE__BODY_LIST_AUDIT;
        request.list_audit = &list;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_call(&client, &request, MFL__ENVELOPE__BODY_AUDIT_LIST, &answer, &err);
        if (!r && cli->json)
                r = print_json(answer->audit_list, &err);
        else if (!r)
                print_list(answer->audit_list);
        return mfl_cli_report(cli, r, &err);
}
