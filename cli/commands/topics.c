/* SPDX-License-Identifier: Apache-2.0 */
/* The topics of `mfl help` that are not commands. */
#include "cli/commands/commands.h"
#include "cli/commands/manual.h"
#include "common/measure/measure.h"

/* clang-format off: one line of source is one line of text. */
static const char exit_text[] =
        "Exit codes of mfl:\n"
        "    0  success; if mfl waited for a job, the job is done\n"
        "    1  the job failed or was stopped; or a problem of this machine (disk, memory, a missing "
        "program)\n"
        "    2  the command line is wrong\n"
        "    3  the server can't be reached, or the connection broke for good\n"
        "    4  no such job, round, daemon or file\n"
        "    5  the job file or another input is wrong, or the server refuses it; or your certificate's\n"
        "       role does not allow the command, or the job belongs to somebody else\n"
        "    6  a conflict (the state of the job, a name that several jobs have), or a limit is reached\n"
        "  130  interrupted by Ctrl-C\n";

static const char tls_text[] =
        "To a server with TLS, mfl shows a certificate, and checks the server's. It needs three PEM files:\n"
        "  --tls-ca    $MFL_TLS_CA    ~/.config/mfl/ca.pem     the CA that issued the server's certificate\n"
        "  --tls-cert  $MFL_TLS_CERT  ~/.config/mfl/cert.pem   your certificate\n"
        "  --tls-key   $MFL_TLS_KEY   ~/.config/mfl/key.pem    its key; 'chmod 600'\n"
        "Options win over the environment, and the environment over the files in ~/.config/mfl, which are\n"
        "used if ca.pem and cert.pem exist ($XDG_CONFIG_HOME/mfl if that is set). --plain turns TLS off.\n"
        "\n"
        "The subject of a certificate says what it allows. CN is your name.\n"
        "  OU=viewer    list, show, watch, wait, logs, models, pull, daemons\n"
        "  OU=operator  all of that; submit; stop, clone and delete your own jobs; drain; audit\n"
        "  OU=admin     all of that, with all jobs; daemons disable, enable, allow, disallow\n"
        "  OU=daemon    for mfl-client: CN must be the daemon's name\n"
        "Without TLS, on the loopback, every user is an admin named 'local'.\n";

#define MEASURES "          MEASURES\n" /* replaced by the names of the measures, a line for each */
static const char json_text[] =
        "With --json every command prints JSON on stdout: one object on one line, or, for watch, logs, run "
        "and\n"
        "submit --watch, one object per line and event. A command that fails prints, after its earlier "
        "output,\n"
        "  {\"error\": {\"code\": C, \"text\": T}}    C: usage invalid not_found conflict limit unreachable "
        "refused failed\n"
        "                                        interrupted internal; T is also on stderr\n"
        "New releases only add members. Unknown values are null. Times are Unix milliseconds.\n"
        "\n"
        "  submit, clone   {\"job\": \"j-000001\", \"existed\": false}    (with --watch also \"event\": "
        "\"submitted\")\n"
        "  check           {\"valid\", \"name\", \"rounds\", \"model\", \"params\", \"moving\", \"data\", "
        "\"partition\", \"clients\",\n"
        "                   \"strategy\", \"samples\": null or, with --data, {\"shape\", \"classes\", "
        "\"targets\", \"train_samples\",\n"
        "                   \"test_samples\", \"clients\", \"samples_min\", \"samples_max\"},\n"
        "                   \"privacy\": null or {\"rounds\", \"epsilon\", \"epsilon_max\", \"delta\"}}\n"
        "  list            {\"jobs\": [JOB...]}\n"
        "  show            {\"job\": JOB, \"text\": job file, \"rounds\": [ROUND...],\n"
        "                   \"nodes\": [{\"round\", \"node\", \"daemons\", \"bytes_up\", \"bytes_down\",\n"
        "                   \"bytes_up_alone\", \"bytes_down_alone\"}],    (the last 100 rounds)\n"
        "                   \"teams\": null or {\"formed\", \"broken\", \"taken\", \"compute_seconds\", "
        "\"exchange_seconds\",\n"
        "                   \"apply_seconds\", \"repeats\", \"last_lost\": why a team last ended badly, "
        "\"at_work\":\n"
        "                   [[{\"daemon\", \"ranks\"}...]...]},\n"
        "                   \"scores\": null or {\"round\", \"clients\": [{\"client\", \"site\", "
        "\"samples\", \"correct\",\n"
        "                   \"loss_sum\"}...], \"confusion\": null or [[predictions of each class]...]}}    "
        "(the newest\n"
        "                   evaluation's; the clients with the worst scores first, at most 1000)\n"
        "                   (since the server's start, a team's leader first; null without parallel)\n"
        "  show --partition {\"job\", \"local\", \"partition\": {\"clients\", \"samples\", \"samples_min\", "
        "\"samples_max\",\n"
        "                   \"classes\", \"shown\": [{\"client\", \"daemon\", \"samples\", \"classes\": "
        "[samples\n"
        "                   of each, at most 64]}]}}    (at most 256 of the clients)\n"
        "  wait            {\"job\": JOB}\n"
        "  models          {\"job\": id, \"models\": [ROUND...]}\n"
        "  stop, delete    {\"job\": id, \"text\": T}; of several jobs {\"jobs\": [{\"job\": id, \"name\": "
        "N,\n"
        "                  \"text\": T} or \"error\": T...]}\n"
        "  sweep           {\"jobs\": [{\"job\": id, \"name\": N, \"existed\": bool}...]}\n"
        "  compare,        {\"jobs\": [{\"job\": JOB, \"settings\": {KEY: value or null...},\n"
        "  sweep --watch   \"rounds\": [ROUND...]}...]}\n"
        "  pull            {\"job\", \"round\", \"file\", \"digest\", \"params\", \"accuracy\", \"loss\"}\n"
        "      rounds       {\"job\", \"format\", \"file\", \"rounds\": written now, \"round\": the newest}\n"
        "  audit           {\"entries\": [{\"seq\", \"time_ms\", \"who\", \"address\", \"action\", "
        "\"object\",\n"
        "                   \"result\", \"text\"}]}    result: done failed refused\n"
        "  daemons         {\"daemons\": [{\"name\", \"node\", \"address\", \"backend\", \"device\", "
        "\"workers\", \"state\",\n"
        "                   \"job\", \"round\", \"items_done\", \"items_total\", \"samples_per_second\", "
        "\"connected_unix_ms\",\n"
        "                   \"data_sets\": [{\"name\", \"shape\", \"classes\", \"train_samples\", "
        "\"test_samples\"}],\n"
        "                   \"software\", \"note\", \"gpu\": {\"uuid\", \"pci\", \"memory\", \"percent\", "
        "\"memory_used\",\n"
        "                   \"memory_total\", \"temperature\", \"power_watts\"},   (bytes, degrees Celsius)\n"
        "                   \"collective\", \"leader\", \"alone\", \"clients_per_second\", \"numerics\",\n"
        "                   \"activity\": ACTIVITY, \"items_part\": items_done plus the finished part of the "
        "current ones,\n"
        "                   \"site\", \"tags\": \"TAG=VALUE,...\", \"relay\": \"eu/paris\"}]}\n"
        "                   collective: solo shm nccl relay; alone: why not a better one\n"
        "  probe           {\"status\": 200, \"text\": T}\n"
        "  daemons disable, enable, allow, disallow\n"
        "                  {\"pattern\", \"text\": T}\n"
        "  daemons rules   {\"rules\": [{\"pattern\", \"rule\": disable or allow, \"who\", \"time_ms\", "
        "\"until_ms\",\n"
        "                   \"reason\", \"connected\", \"refused\": matching daemons}]}\n"
        "  drain           {\"daemon\": name or null (--all), \"text\": T}\n"
        "  data show       {\"data\", \"train\", \"test\", \"classes\", \"population\",\n"
        "                   \"clients\": [{\"client\", \"samples\", \"classes\": [samples of each]}]}\n"
        "  new             {\"templates\": [{\"name\", \"about\"}]}; of one, {\"text\"} or, with -o, "
        "{\"file\"}\n"
        "  plan            {\"moving\", \"grains\", \"plans\": [PLAN...], \"best\": PLAN, \"measured\": null "
        "or\n"
        "                   {\"grain_seconds\", \"apply_seconds\", \"bytes_per_second\", \"wait_seconds\"}}\n"
        "                   PLAN: {\"members\", \"zero\", \"leader_bytes\", \"member_bytes\", "
        "\"traffic_bytes\",\n"
        "                   \"seconds\": null if not measured, \"fits\"}\n"
        "  presets         {\"presets\": [{\"name\", \"summary\"}]}\n"
        "  presets NAME    {\"name\", \"params\", \"flops_forward\", \"flops_training\",\n"
        "                   \"tensors\": [{\"name\", \"shape\"}]}\n"
        "  pki init        {\"dir\", \"ca\", \"not_after_ms\"}\n"
        "  pki issue       {\"certificate\": CERT, \"dir\", \"key\": has a key.pem, \"replaced\",\n"
        "      and renew    \"old_serial\": renew only}\n"
        "  pki revoke      {\"name\", \"revoked\": number, \"crl\": file, \"number\", \"next_update_ms\"}\n"
        "      and crl     (crl: without \"name\", nothing revoked)\n"
        "  pki show        {\"dir\", \"ca\": {\"name\", \"not_after_ms\", \"days_left\"}, \"crl\": "
        "{\"number\",\n"
        "                   \"next_update_ms\", \"days_left\"}, \"certificates\": [CERT...]}\n"
        "                   CERT: {\"name\", \"roles\", \"hosts\", \"serial\", \"state\", \"request\",\n"
        "                   \"not_before_ms\", \"not_after_ms\", \"days_left\", \"revoked_ms\"}\n"
        "                   state: valid renewed revoked expired; request: the key was made elsewhere\n"
        "  pki export      {\"name\", \"file\", \"key\"}\n"
        "  privacy         {\"epsilon\", \"epsilon_rdp\": null if infinite, \"sigma\": null for several,\n"
        "                   \"delta\"}\n"
        "  logs            {\"event\": \"log\", \"seq\", \"time_ms\", \"text\"}\n"
        "  watch, run      {\"event\": \"state\" or \"progress\", \"job\": JOB}\n"
        "                  {\"event\": \"round\", \"job\": id, \"round\": ROUND}\n"
        "                  {\"event\": \"crew\", \"job\": id, \"daemons\": [{\"name\", \"state\", "
        "\"items_done\",\n"
        "                   \"items_total\", \"activity\": ACTIVITY}], \"more\": daemons not listed}    "
        "(every ten seconds)\n"
        "                  {\"event\": \"note\", \"text\"}    (a child or the server went away or returned)\n"
        "  run, last line  {\"event\": \"result\", \"job\", \"state\", \"accuracy\", \"loss\", \"mean_iou\", "
        "\"rounds\", \"seconds\",\n"
        "                   \"digest\", \"model\", \"csv\", \"out\", \"state_dir\"}    (printed if the job "
        "was submitted;\n"
        "                  after a failure, the error object comes before it)\n"
        "\n"
        "  JOB    {\"job\", \"name\", \"state\", \"reason\", \"round\", \"rounds\", \"params\", \"moving\", "
        "\"model\", \"data\", \"strategy\",\n"
        "          \"created_unix_ms\", \"finished_unix_ms\", \"last\": ROUND, \"best\": ROUND, "
        "\"progress\": "
        "{\"round\", \"attempt\",\n"
        "          \"phase\", \"clients_done\", \"clients_total\", \"daemons\", \"trained\": share of the "
        "round's training, 0 to 1}}\n"
        "          also \"owner\": who submitted it, \"per_token\": exp(loss) is a language model's "
        "perplexity,\n"
        "          \"evaluated\": the last evaluated ROUND, \"privacy\": null or {\"kind\", \"epsilon\": "
        "spent,\n"
        "          \"epsilon_max\", \"delta\", \"clip\", \"noise\", \"not_private\": [what has no noise]}\n"
        "          state: waiting running done failed stopped\n"
        "  ROUND  {\"round\", \"accuracy\", \"loss\", \"train_loss\", \"train_accuracy\", \"samples\", "
        "\"clients\",\n"
        "          \"clients_rejected\", \"weight\", \"bytes_up\", \"bytes_down\", \"seconds\", \"digest\", "
        "\"attempt\",\n"
        "          \"daemons\", \"committed_unix_ms\", \"kept\", \"bytes_up_alone\", \"bytes_down_alone\",\n"
        "          \"mean_iou\", \"virtual_start\", \"virtual_end\": seconds, null in real time; "
        "\"clamped\", \"states_lost\", \"choice\",\n"
        "          \"clients_evaluated\", \"client_bins\": [numbers],\n" MEASURES "          }\n"
        "          bytes_..._alone: the bytes without nodes; accuracies are null with a loss that only "
        "measures a distance\n"
        "          (squared), and train_... in a round without clients (selection poisson); mean_iou: mean "
        "intersection over union, null except for a label per pixel\n"
        "          client_... (evaluation: {on: clients}): of the clients' accuracies, or losses where there "
        "is no accuracy:\n"
        "          the mean, the variance, the means of the worst and the best tenth, and a histogram from "
        "low to high;\n"
        "          macro_f1, mae, rmse, r2 (evaluation: {detailed: true}); epsilon: spent by the job up to "
        "there "
        "(privacy);\n"
        "          backdoor (simulation): its success rate; null: not measured\n"
        "          clamped: elements of clients' changes beyond the range of compression.up.bits;\n"
        "          states_lost: clients whose kept state was lost before the round, and which began anew\n"
        "          choice: what a robust strategy made of the updates, or null\n"
        "  ACTIVITY {\"workers\", \"samples_per_second\", \"compute\", \"data\", \"network\", \"wait\": "
        "shares of the\n"
        "          workers' time, with a sum of 1, in the last ten seconds; since the daemon's start: "
        "\"samples\" trained,\n"
        "          \"compute_seconds\", \"data_seconds\", \"network_seconds\", \"wait_seconds\" of all "
        "workers}\n"
        "          null: an older daemon, or no news for a minute\n";

/* clang-format on */

struct topic {
        const char *name, *text;
};
static const struct topic topics[] = {
        {"json", json_text}, {"exit", exit_text}, {"tls", tls_text}, {"job", mfl_job_reference}};

/* The text with the measures; not thread-safe. */
static const char *with_measures(const char *text)
{
        static char whole[sizeof json_text + MFL_MEASURES * 100];
        const char *at = strstr(text, MEASURES);
        if (!at)
                return text;
        size_t n = (size_t)(at - text);
        memcpy(whole, text, n);
        for (int k = 0; k < MFL_MEASURES; k++)
                n += (size_t)snprintf(whole + n, sizeof whole - n, "          \"%s\"%s  %s\n",
                        mfl_measure_infos[k].name, k + 1 < MFL_MEASURES ? "," : "",
                        mfl_measure_infos[k].label);
        snprintf(whole + n, sizeof whole - n, "%s", at + strlen(MEASURES));
        return whole;
}

const char *mfl_help_topic_text(const char *name)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(topics); i++)
                if (!strcmp(topics[i].name, name))
                        return with_measures(topics[i].text);
        return NULL;
}
