/* SPDX-License-Identifier: Apache-2.0 */
/* Commands about daemons: daemons, drain. */
#include "cli/client.h"
#include "cli/display.h"
#include "cli/json.h"

/* "12 GB/141 GB"; "-" for what the device does not report. */
static void print_gpu(const Mfl__Telemetry *t)
{
        char use[16] = "-", memory[64] = "-", used[24] = "-", total[24], temperature[16] = "-",
             power[24] = "-";
        if (t && t->has_gpu_percent_case)
                snprintf(use, sizeof use, "%u%%", t->gpu_percent);
        if (t && t->has_memory_used_case)
                mfl_display_bytes((double)t->memory_used, used, sizeof used);
        if (t && t->has_memory_total_case)
                snprintf(memory, sizeof memory, "%s/%s", used,
                        mfl_display_bytes((double)t->memory_total, total, sizeof total));
        if (t && t->has_temperature_case)
                snprintf(temperature, sizeof temperature, "%u C", t->temperature);
        if (t && t->has_power_case)
                snprintf(power, sizeof power, "%.0f W", t->power_mw / 1000.0);
        printf(" %5s %15s %6s %6s", use, memory, temperature, power);
}

static void print_daemon(const Mfl__DaemonInfo *d, bool with_gpu)
{
        char work[96] = "-", rate[32] = "-";
        if (*d->job)
                snprintf(work, sizeof work, "%s r%u %u/%u", d->job, d->round, d->items_done, d->items_total);
        if (d->samples_per_second > 0)
                snprintf(rate, sizeof rate, "%.0f", d->samples_per_second);
        printf("%-20s %-10s %-9s %7u %-24s %10s", d->name, d->state, d->backend, d->workers, work, rate);
        if (with_gpu)
                print_gpu(d->telemetry);
        printf("  %s%s%s\n", d->device, *d->note ? "; " : "", d->note);
}

static void print_daemons(const Mfl__DaemonList *list)
{
        bool with_gpu = false;
        if (!list->n_daemons) {
                puts("no daemons are connected; 'mfl-client --server HOST:PORT' starts one");
                return;
        }
        for (size_t i = 0; i < list->n_daemons; i++)
                with_gpu = with_gpu || list->daemons[i]->telemetry;
        printf("%-20s %-10s %-9s %7s %-24s %10s", "NAME", "STATE", "BACKEND", "WORKERS", "WORK", "SAMPLES/S");
        if (with_gpu)
                printf(" %5s %15s %6s %6s", "GPU", "MEMORY", "TEMP", "POWER");
        puts("  DEVICE");
        for (size_t i = 0; i < list->n_daemons; i++)
                print_daemon(list->daemons[i], with_gpu);
}

static int print_json(const Mfl__DaemonList *list, struct mfl_error *err)
{
        json_t *daemons = json_array();
        for (size_t i = 0; i < list->n_daemons; i++)
                json_array_append_new(daemons, mfl_json_daemon(list->daemons[i]));
        return mfl_json_print(stdout, json_pack("{so}", "daemons", daemons), err);
}

int mfl_cmd_daemons(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_error err;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__ListDaemons list = MFL__LIST_DAEMONS__INIT;
        request.body_case = MFL__ENVELOPE__BODY_LIST_DAEMONS;
        request.list_daemons = &list;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_call(&client, &request, MFL__ENVELOPE__BODY_DAEMON_LIST, &answer, &err);
        if (!r && cli->json)
                r = print_json(answer->daemon_list, &err);
        else if (!r)
                print_daemons(answer->daemon_list);
        return mfl_cli_report(cli, r, &err);
}

int mfl_cmd_drain(struct mfl_cli *cli)
{
        MFL_CLEANUP_CLIENT struct mfl_client client = {.cli = cli};
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        struct mfl_error err;
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        Mfl__Drain drain = MFL__DRAIN__INIT;
        if (strlen(cli->argument[0]) >= MFL_NAME_BYTES)
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "a daemon's name has at most %d bytes", MFL_NAME_BYTES - 1);
        drain.daemon = (char *)(uintptr_t)cli->argument[0];
        drain.undo = cli->options.undo;
        drain.wait = cli->options.wait;
        request.body_case = MFL__ENVELOPE__BODY_DRAIN;
        request.drain = &drain;
        int r = mfl_client_open(&client, cli, cli->server, MFL_CLIENT_TIMEOUT_MS, &err);
        if (!r)
                r = mfl_client_call(&client, &request, MFL__ENVELOPE__BODY_DONE, &answer, &err);
        if (!r && cli->json)
                r = mfl_json_print(stdout,
                        json_pack("{ss ss}", "daemon", cli->argument[0], "text", answer->done->text), &err);
        else if (!r)
                printf("%s: %s\n", cli->argument[0], *answer->done->text ? answer->done->text : "done");
        return mfl_cli_report(cli, r, &err);
}
