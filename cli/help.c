/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl help`: the overview, the commands, and the topics. */
#include "cli/cli.h"
#include "cli/manual.h"
#include "common/yaml.h"

static const char exit_text[] =
        "Exit codes of mfl:\n"
        "    0  all went well; a job that was waited for is done\n"
        "    1  the job failed or was stopped; or this machine refused (disk, memory, a program is missing)\n"
        "    2  the command line is wrong\n"
        "    3  the server can't be reached, or the connection is lost for good\n"
        "    4  no such job, round, daemon or file\n"
        "    5  the input is wrong: the job file (with its line), or what the server would not take; or the\n"
        "       certificate's role, or the job's owner, does not allow it\n"
        "    6  conflict (a job in that state, a name of several jobs) or a limit is reached\n"
        "  130  interrupted by Ctrl-C\n";

static const char tls_text[] =
        "To a server with TLS, mfl shows a certificate, and checks the server's. It needs three PEM files:\n"
        "  --tls-ca    $MFL_TLS_CA    ~/.config/mfl/ca.pem     the CA that issued the server's certificate\n"
        "  --tls-cert  $MFL_TLS_CERT  ~/.config/mfl/cert.pem   your certificate\n"
        "  --tls-key   $MFL_TLS_KEY   ~/.config/mfl/key.pem    its key; 'chmod 600'\n"
        "An option comes before the environment, and that before the files in ~/.config/mfl, which are used "
        "when\n"
        "ca.pem and cert.pem are there ($XDG_CONFIG_HOME/mfl where that is set). --plain does without TLS.\n"
        "\n"
        "What a certificate allows stands in its subject. CN is your name.\n"
        "  OU=viewer    list, show, watch, wait, logs, models, pull, daemons\n"
        "  OU=operator  all of that; submit; stop, clone and delete your own jobs; drain; audit\n"
        "  OU=admin     all of that, with everybody's jobs; daemons disable, enable, allow, disallow\n"
        "  OU=daemon    is for mfl-client: CN must be the daemon's name\n"
        "Without TLS, on the loopback, everybody is an admin named 'local'.\n";

static const char json_text[] =
        "With --json every command prints JSON on stdout: one object on one line, or, for watch, logs, run "
        "and\n"
        "submit --watch, one object per line and event. What fails prints, after what was printed already,\n"
        "  {\"error\": {\"code\": C, \"text\": T}}    C: usage invalid not_found conflict limit unreachable "
        "refused "
        "failed\n"
        "                                        interrupted internal; T is on stderr, too\n"
        "Members are only ever added. What is not known is null. Times are Unix milliseconds.\n"
        "\n"
        "  submit, clone   {\"job\": \"j-000001\", \"existed\": false}    (with --watch also \"event\": "
        "\"submitted\")\n"
        "  check           {\"valid\", \"name\", \"rounds\", \"model\", \"params\", \"moving\", \"data\", "
        "\"partition\", "
        "\"clients\",\n"
        "                   \"strategy\"}\n"
        "  list            {\"jobs\": [JOB...]}\n"
        "  show            {\"job\": JOB, \"text\": job file, \"rounds\": [ROUND...],\n"
        "                   \"nodes\": [{\"round\", \"node\", \"daemons\", \"bytes_up\", "
        "\"bytes_down\",\n"
        "                   \"bytes_up_alone\", \"bytes_down_alone\"}]}    (of the last 100 rounds)\n"
        "  show --partition {\"job\", \"local\", \"partition\": {\"clients\", \"samples\", \"samples_min\", "
        "\"samples_max\",\n"
        "                   \"classes\", \"shown\": [{\"client\", \"daemon\", \"samples\", \"classes\": "
        "[samples of\n"
        "                   each, at most 64]}]}}    (at most 256 of the clients)\n"
        "  wait            {\"job\": JOB}\n"
        "  models          {\"job\": id, \"models\": [ROUND...]}\n"
        "  stop, delete    {\"job\": id, \"text\": T}\n"
        "  pull            {\"job\", \"round\", \"file\", \"digest\", \"params\", \"accuracy\", \"loss\"}\n"
        "      of rounds    {\"job\", \"format\", \"file\", \"rounds\": written now, \"round\": the newest "
        "there}\n"
        "  audit           {\"entries\": [{\"seq\", \"time_ms\", \"who\", \"address\", \"action\", "
        "\"object\",\n"
        "                   \"result\", \"text\"}]}    result: done failed refused\n"
        "  daemons         {\"daemons\": [{\"name\", \"node\", \"address\", \"backend\", \"device\", "
        "\"workers\", \"state\",\n"
        "                   \"job\", \"round\", \"items_done\", \"items_total\", \"samples_per_second\", "
        "\"connected_ms\",\n"
        "                   \"data_sets\": [{\"name\", \"shape\", \"classes\", \"train_samples\", "
        "\"test_samples\"}],\n"
        "                   \"software\", \"note\", \"gpu\": {\"uuid\", \"pci\", \"memory\", \"percent\", "
        "\"memory_used\",\n"
        "                   \"memory_total\", \"temperature\", \"power_watts\"},   (bytes, degrees "
        "Celsius)\n"
        "                   \"collective\", \"leader\", \"alone\", \"clients_per_second\", \"numerics\",\n"
        "                   \"activity\": ACTIVITY}]}\n"
        "                   collective: solo shm nccl; alone: why it is not better\n"
        "  probe           {\"status\": 200, \"text\": T}\n"
        "  daemons disable, enable, allow, disallow\n"
        "                  {\"pattern\", \"text\": T}\n"
        "  daemons rules   {\"rules\": [{\"pattern\", \"rule\": disable or allow, \"who\", \"time_ms\", "
        "\"until_ms\",\n"
        "                   \"reason\", \"connected\", \"refused\": daemons that match}]}\n"
        "  drain           {\"daemon\": name or null (--all), \"text\": T}\n"
        "  data show       {\"data\", \"train\", \"test\", \"classes\", \"population\",\n"
        "                   \"clients\": [{\"client\", \"samples\", \"classes\": [samples of each]}]}\n"
        "  presets         {\"presets\": [{\"name\", \"summary\"}]}\n"
        "  presets NAME    {\"name\", \"params\", \"flops_forward\", \"flops_training\",\n"
        "                   \"tensors\": [{\"name\", \"shape\"}]}\n"
        "  pki init        {\"dir\", \"ca\", \"not_after_ms\"}\n"
        "  pki issue       {\"certificate\": CERT, \"dir\", \"key\": is key.pem there, \"replaced\",\n"
        "      and renew    \"old_serial\": renew only}\n"
        "  pki revoke      {\"name\", \"revoked\": how many, \"crl\": file, \"number\", \"next_update_ms\"}\n"
        "      and crl     (crl: no name, none revoked)\n"
        "  pki show        {\"dir\", \"ca\": {\"name\", \"not_after_ms\", \"days_left\"}, \"crl\": "
        "{\"number\",\n"
        "                   \"next_update_ms\", \"days_left\"}, \"certificates\": [CERT...]}\n"
        "                   CERT: {\"name\", \"roles\", \"hosts\", \"serial\", \"state\", \"request\",\n"
        "                   \"not_before_ms\", \"not_after_ms\", \"days_left\", \"revoked_ms\"}\n"
        "                   state: valid renewed revoked expired; request: the key was made elsewhere\n"
        "  pki export      {\"name\", \"file\", \"key\"}\n"
        "  logs            {\"event\": \"log\", \"seq\", \"time_ms\", \"text\"}\n"
        "  watch, run      {\"event\": \"state\" or \"progress\", \"job\": JOB}\n"
        "                  {\"event\": \"round\", \"job\": id, \"round\": ROUND}\n"
        "                  {\"event\": \"crew\", \"job\": id, \"daemons\": [{\"name\", \"state\", "
        "\"items_done\",\n"
        "                   \"items_total\", \"activity\": ACTIVITY}], \"more\": not listed}    (every ten "
        "seconds)\n"
        "                  {\"event\": \"note\", \"text\"}    (a child or the server went away or came "
        "back)\n"
        "  run, last line  {\"event\": \"result\", \"job\", \"state\", \"accuracy\", \"loss\", \"rounds\", "
        "\"seconds\",\n"
        "                   \"digest\", \"model\", \"csv\", \"out\", \"state_dir\"}    (there is one once "
        "the job was\n"
        "                  submitted; after a failure the error object comes before it)\n"
        "\n"
        "  JOB    {\"job\", \"name\", \"state\", \"reason\", \"round\", \"rounds\", \"params\", \"moving\", "
        "\"model\", "
        "\"data\", \"strategy\",\n"
        "          \"created_ms\", \"finished_ms\", \"last\": ROUND, \"best\": ROUND, \"progress\": "
        "{\"round\", \"attempt\",\n"
        "          \"phase\", \"clients_done\", \"clients_total\", \"daemons\"}}\n"
        "          and \"owner\", who submitted it, \"per_token\": exp(loss) is a language model's "
        "perplexity;\n"
        "          \"evaluated\": the last ROUND that was evaluated\n"
        "          state: waiting running done failed stopped\n"
        "  ROUND  {\"round\", \"accuracy\", \"loss\", \"train_loss\", \"train_accuracy\", \"samples\", "
        "\"clients\",\n"
        "          \"clients_rejected\", \"weight\", \"bytes_up\", \"bytes_down\", \"seconds\", \"digest\", "
        "\"attempt\",\n"
        "          \"daemons\", \"committed_ms\", \"kept\", \"bytes_up_alone\", "
        "\"bytes_down_alone\"}\n"
        "          bytes_..._alone: what it would have been without nodes; accuracies are null with squared "
        "loss\n"
        "  ACTIVITY {\"workers\", \"samples_per_second\", \"compute\", \"data\", \"network\", \"wait\": "
        "shares of the\n"
        "          workers' time, together 1; of the last ten seconds. Since the daemon's start: \"samples\" "
        "trained,\n"
        "          \"compute_seconds\", \"data_seconds\", \"network_seconds\", \"wait_seconds\" of all "
        "workers}\n"
        "          null: a daemon of before, or not heard of for a minute\n";

struct topic {
        const char *name, *text;
};
static const struct topic topics[] = {
        {"json", json_text}, {"exit", exit_text}, {"tls", tls_text}, {"job", mfl_job_reference}};

const char *mfl_help_topic_text(const char *name)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(topics); i++)
                if (!strcmp(topics[i].name, name))
                        return topics[i].text;
        return NULL;
}

/* Files that the build makes: no topics for people, but for the first. */
static bool print_file(FILE *out, const char *name)
{
        if (!strcmp(name, "completion"))
                mfl_completion_print(out);
        else if (!strcmp(name, "man"))
                mfl_manual_print(out);
        else if (!strcmp(name, "man-job") || !strcmp(name, "markdown-job"))
                mfl_manual_print_job(out, !strcmp(name, "man-job") ? MFL_PAGE_MAN : MFL_PAGE_MARKDOWN);
        else
                return false;
        return true;
}

bool mfl_help_topic(FILE *out, const char *name)
{
        const char *text = mfl_help_topic_text(name);
        if (text)
                fputs(text, out);
        return text || print_file(out, name);
}

void mfl_help_overview(FILE *out)
{
        fputs("mfl " MFL_VERSION ": federated learning from the command line\n"
              "\n"
              "usage: mfl COMMAND [arguments] [options]\n"
              "\n",
                out);
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++) {
                char left[64];
                snprintf(left, sizeof left, "%s%s%s", c->name, *c->arguments ? " " : "", c->arguments);
                fprintf(out, "  %-26s %s\n", left, c->summary);
        }
        fputs("\nEvery command takes:\n", out);
        mfl_cli_print_options(out, NULL);
        fputs("\nFirst steps:\n"
              "  mfl run examples/demo.yaml         all on this machine\n"
              "  mfl submit job.yaml --watch        on the server that MFL_SERVER or --server names\n"
              "  mfl help submit                    a command; 'mfl help json', 'exit', 'tls', 'job': "
              "topics\n"
              "\nNO_COLOR turns colours off. A JOB is an id, a name that only one job has, or 'last'.\n",
                out);
}

void mfl_help_command(FILE *out, const struct mfl_cli_command *c)
{
        fprintf(out, "mfl %s: %s\n\nusage: mfl %s%s%s [options]\n", c->name, c->summary, c->name,
                *c->arguments ? " " : "", c->arguments);
        fprintf(out, "%s%s\nOptions:\n", *c->text && *c->text != '\n' ? "\n" : "", c->text);
        mfl_cli_print_options(out, c->options);
        mfl_cli_print_options(out, NULL);
}

int mfl_cmd_help(struct mfl_cli *cli)
{
        const char *name = cli->argument[0];
        if (!name) {
                mfl_help_overview(stdout);
                return MFL_EXIT_OK;
        }
        const struct mfl_cli_command *c = mfl_cli_command_find(name);
        if (c)
                mfl_help_command(stdout, c);
        if (c || mfl_help_topic(stdout, name))
                return MFL_EXIT_OK;
        return mfl_cli_report_text(
                cli, MFL_CLI_USAGE, "there is no help on '%.60s'; 'mfl help' lists the commands", name);
}
