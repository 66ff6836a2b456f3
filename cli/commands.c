/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands, with what their help teaches. */
#include "cli/cli.h"

const struct mfl_cli_command mfl_cli_commands[] = {
        {"run", "job.yaml", "train a job on this machine, with a server and daemons of its own", 1, 1,
                "daemons threads out data backend keep-state", mfl_cmd_run,
                "Starts a private server and some client daemons on 127.0.0.1, submits the job, shows it "
                "live, and\n"
                "writes model.safetensors, rounds.csv, job.yaml and the logs into a new folder. Nothing is "
                "left\n"
                "running. A child that dies is started again, and the job goes on. Ctrl-C stops the job and "
                "says\n"
                "where things are; a second one ends at once. A job that waits for 20 s (no daemon has its "
                "data\n"
                "set, say) fails with the reason.\n"
                "\nExamples:\n"
                "  mfl run examples/demo.yaml\n"
                "  mfl run job.yaml --daemons 4 --threads 1 --out results/first\n"
                "  mfl run job.yaml --data toy=synthetic:1,28,28:10:1000:200:1\n"
                "  mfl run job.yaml --json | tail -n 1 | jq .accuracy\n"},
        {"submit", "job.yaml", "send a job to the server", 1, 1, "token watch timeout", mfl_cmd_submit,
                "Checks the job file here, then at the server, and prints the new job's id. '-' reads "
                "standard\n"
                "input. With --token, sending again (after a time-out, from a script) gives the same job. A "
                "file\n"
                "named by model.initial is read here and sent along.\n"
                "\nExamples:\n"
                "  mfl submit job.yaml\n"
                "  mfl submit job.yaml --watch\n"
                "  mfl submit job.yaml --token nightly-2024-05-01\n"
                "  job=$(mfl submit job.yaml --json | jq -r .job) && mfl wait \"$job\"\n"},
        {"check", "job.yaml", "check a job file, without a server", 1, 1, "", mfl_cmd_check,
                "Reads the job as the server would and says what it is, or FILE:LINE and what is wrong "
                "there.\n"
                "\nExample:\n"
                "  mfl check job.yaml\n"},
        {"list", "", "list the jobs", 0, 0, "", mfl_cmd_list,
                "\nExamples:\n"
                "  mfl list\n"
                "  mfl list --json | jq '.jobs[] | select(.state == \"running\") | .job'\n"},
        {"show", "JOB", "show a job: state, rounds, network, the job file", 1, 1, "nodes partition",
                mfl_cmd_show,
                "JOB is an id (j-000001), a name that only one job has, or 'last'. Under 'network' is what "
                "the\n"
                "newest round cost each node, and what it would have cost, had each daemon of it fetched the "
                "model\n"
                "and sent its update by itself. --partition shows instead how the data are divided: the "
                "samples of\n"
                "each client and its mix of classes; of real sites (partition local) the samples alone.\n"
                "\nExamples:\n"
                "  mfl show last\n"
                "  mfl show last --nodes\n"
                "  mfl show last --partition\n"
                "  mfl show fashion-demo --json | jq '.rounds[].accuracy'\n"},
        {"watch", "JOB", "watch a job until it ends", 1, 1, "timeout", mfl_cmd_watch,
                "On a terminal a live display, elsewhere one line per round and change of state. Below the "
                "curves, or at\n"
                "the end of a round's line, stands what the job's daemons did in the last ten seconds: the "
                "samples that\n"
                "they trained, and the shares of their time that went into computing, getting data ready, "
                "params and\n"
                "updates on their way (network) while nothing was computed, and waiting. When the server\n"
                "goes away, watch waits for it to come back: a restart loses nothing. Exits with 0 when the "
                "job is\n"
                "done and with 1 when it failed or was stopped. Ctrl-C ends the watching, not the job.\n"
                "\nExamples:\n"
                "  mfl watch last\n"
                "  mfl watch j-000007 --json\n"},
        {"wait", "JOB", "wait in silence until a job ends", 1, 1, "timeout", mfl_cmd_wait,
                "As watch, without output. For scripts.\n"
                "\nExample:\n"
                "  mfl wait last && mfl pull last --round best -o model.safetensors\n"},
        {"logs", "JOB", "show what the server noted about a job", 1, 1, "follow timeout", mfl_cmd_logs,
                "\nExamples:\n"
                "  mfl logs last\n"
                "  mfl logs j-000001 -f\n"},
        {"stop", "JOB", "stop a job; its models stay", 1, 1, "after-round", mfl_cmd_stop,
                "Daemons drop the job's work at once. What was committed stays; clone starts it over.\n"
                "With --after-round the round that is under way is trained, evaluated and committed first: "
                "the job\n"
                "goes on until then, 'mfl list' tells after which round it ends, and it ends as stopped (as "
                "done\n"
                "when that is its last round). A server of a release that does not know this refuses it and "
                "goes on.\n"
                "\nExamples:\n"
                "  mfl stop last\n"
                "  mfl stop last --after-round && mfl wait last\n"},
        {"clone", "JOB", "submit the same job again", 1, 1, "token watch timeout", mfl_cmd_clone,
                "\nExample:\n"
                "  mfl clone j-000001 --watch\n"},
        {"delete", "JOB", "delete a job that has ended, with its models", 1, 1, "", mfl_cmd_delete,
                "\nExample:\n"
                "  mfl delete j-000001\n"},
        {"models", "JOB", "list the models of a job", 1, 1, "", mfl_cmd_models,
                "One line per round whose model the server has kept.\n"
                "\nExample:\n"
                "  mfl models last\n"},
        {"pull", "JOB", "fetch a model, or the rounds for TensorBoard and others", 1, 1,
                "format round output follow timeout", mfl_cmd_pull,
                "A model's params are checked against the SHA-256 that the server noted when it committed "
                "the round.\n"
                "The safetensors file holds job, round, digest and, where it was measured, accuracy and loss "
                "as\n"
                "metadata; npz has one array a parameter, for numpy.load. Names are PyTorch's. onnx is\n"
                "the whole network for inference, opset 17.\n"
                "\n"
                "tensorboard writes runs/JOB-NAME/events.out.tfevents...: one run a job, so that several "
                "pulls into one\n"
                "folder are compared by 'tensorboard --logdir runs'. Tags are train/loss test/accuracy "
                "round/seconds\n"
                "clients/counted network/up_bytes and their like; steps are rounds, times those of the "
                "commits. Pulling\n"
                "again appends what is missing. With --follow it appends each round as it is committed, "
                "through restarts\n"
                "of the server (--timeout: how long without one).\n"
                "\n"
                "csv (RFC 4180) and jsonl have a row a round, with the members of ROUND in 'mfl help "
                "json'.\n"
                "\nExamples:\n"
                "  mfl pull last\n"
                "  mfl pull fashion-demo --round best -o model.safetensors\n"
                "  mfl pull last --format tensorboard --follow\n"
                "  mfl pull last --format csv -o - | column -s, -t | less -S\n"
                "  mfl pull last --format jsonl --follow -o - | jq .accuracy\n"},
        {"daemons", "[VERB ...]", "list the daemons, node by node; disable, enable, allow some", 0, 2,
                "reason for", mfl_cmd_daemons,
                "A node is the daemons of one machine that can reach each other: they add their updates and "
                "fetch\n"
                "the model once. '*' marks its leader, who speaks for it. ADDS BY is how: nccl (between "
                "GPUs), "
                "shm\n"
                "(in shared memory) or solo (not at all); below is why, if it could be better. On a narrow "
                "terminal\n"
                "columns are left out; into a file go all of them. A daemon that is 'refused' may not take "
                "part,\n"
                "and has tried within the last ten minutes.\n"
                "\n"
                "  disable PATTERN    daemons that match may not take part: they are sent away at once, "
                "others do\n"
                "                     their work, and they come back by themselves after enable\n"
                "  enable PATTERN     takes that rule away\n"
                "  allow PATTERN      from the first such rule on, only daemons that match one may take "
                "part\n"
                "  disallow PATTERN   takes that rule away\n"
                "  rules              lists the rules\n"
                "\n"
                "PATTERN is a daemon's name; '*' stands for any text in it, '?' for one character. "
                "cn:PATTERN is\n"
                "the CN of its certificate, sha256:HEX the certificate's fingerprint. Who is disabled is "
                "out, "
                "allowed\n"
                "or not; the order of rules does not matter. They hold over restarts, and take OU=admin. "
                "To let a\n"
                "daemon finish what it works on, drain it.\n"
                "\nExamples:\n"
                "  mfl daemons --json | jq '.daemons[] | {name, state, samples_per_second}'\n"
                "  mfl daemons disable 'site-b*' --reason 'disk is being replaced' --for 12h\n"
                "  mfl daemons enable 'site-b*'\n"
                "  mfl daemons allow 'cn:hospital-*'\n",
                .words = "disable enable allow disallow rules"},
        {"drain", "DAEMON|--all", "give a daemon, or all of them, no more work", 0, 1, "all undo wait",
                mfl_cmd_drain,
                "For an upgrade or a reboot: what it works on is finished, and with --wait the command "
                "returns when\n"
                "it is idle. It holds over restarts until --undo.\n"
                "With --all every daemon is drained, and those that come later are, too; jobs wait. When "
                "'mfl drain --all\n"
                "--wait' returns, the server and the daemons can be restarted or upgraded and no training is "
                "lost.\n"
                "Undoing --all leaves drained those that were drained by name.\n"
                "\nExamples:\n"
                "  mfl drain node7 --wait && ssh node7 systemctl restart mfl-client.target\n"
                "  mfl drain node7 --undo\n"
                "  mfl drain --all --wait && apt upgrade && mfl drain --all --undo\n"},
        {"probe", "healthz|readyz [HOST:PORT]", "ask the server's HTTP port how it is", 1, 2, "",
                mfl_cmd_probe,
                "For the probes of containers, and for scripts. HOST:PORT is that of mfl-server --http "
                "(default\n"
                "127.0.0.1:7434). healthz: the loop turns and the disk takes what is stored; readyz: jobs "
                "are\n"
                "loaded. Exits with 0 for that, with 1 and the reason otherwise, with 3 when nobody "
                "answers.\n"
                "\nExample:\n"
                "  mfl probe readyz && mfl submit job.yaml\n"},
        {"audit", "", "show who changed what, or tried to", 0, 0, "last", mfl_cmd_audit,
                "Submissions, clones, stops, deletions, drains, rules about daemons, reloads, and what was "
                "refused. "
                "For\n"
                "operators; the server keeps the newest 100000.\n"
                "\nExample:\n"
                "  mfl audit --json | jq '.entries[] | select(.result == \"refused\")'\n"},
        {"data", "show job.yaml", "show how a job cuts its data set into clients", 2, 2, "data rows",
                mfl_cmd_data,
                "Per client its samples and their classes, computed here as every daemon computes them.\n"
                "\nExamples:\n"
                "  mfl data show job.yaml\n"
                "  mfl data show job.yaml --data cifar10=cifar10:/data/cifar-10-batches-bin --rows 0\n",
                .words = "show"},
        {"presets", "[NAME]", "list the model presets, or describe one", 0, 1, "input classes",
                mfl_cmd_presets,
                "\nExamples:\n"
                "  mfl presets\n"
                "  mfl presets pfl-cnn --input 3x32x32\n"},
        {"pki", "VERB ...", "a private CA: init, issue, renew, revoke, crl, show, export", 1, 3,
                "dir host role days crl-days out csr new-key revoke-old tar ca-pass-file", mfl_cmd_pki,
                "Makes the certificates for TLS where there is no CA yet. All of it happens in one "
                "directory;\n"
                "no server is asked. Whoever can read ca.key there can make certificates: keep it on one "
                "machine,\n"
                "with --ca-pass-file encrypted. A failure leaves everything as it was; nothing is replaced\n"
                "silently.\n"
                "\n"
                "  init [CA-NAME]     a new CA (--days, --crl-days)\n"
                "  issue ROLE NAME    a key and a certificate; ROLE: server (with --host; NAME may be left "
                "out),\n"
                "                     daemon, operator, viewer or admin; --role ROLE adds one. --csr FILE "
                "signs\n"
                "                     a request (openssl req -new ...): only its public key counts\n"
                "  renew NAME         a new certificate for the same key, name and roles; the old one works "
                "on\n"
                "                     until it ends, but for --revoke-old; --host: new ones for a server\n"
                "  revoke NAME        all certificates of a name, or that of one serial number; then copy\n"
                "                     crl.pem to the server and reload it\n"
                "  crl                a new revocation list before the old one ends\n"
                "  show [NAME]        what was issued; what ends in less than 30 days is marked with '!'\n"
                "  export NAME        the files of a name as a tar archive, to be carried to its machine\n"
                "\nExamples:\n"
                "  mfl pki init\n"
                "  mfl pki issue server --host agg.example.org --host 10.0.0.1\n"
                "  mfl pki issue daemon site-a && mfl pki export site-a --tar - | ssh site-a tar xpC "
                "/etc/mfl\n"
                "  mfl pki issue operator alice --role viewer --days 90\n"
                "  mfl pki show --json | jq -r '.certificates[] | select(.state == \"valid\" and .days_left "
                "< 30) | .name'\n"
                "  mfl pki revoke site-a\n",
                .words = "init issue renew revoke crl show export"},
        {"help", "[COMMAND|json|exit|tls|job|completion]",
                "explain a command, the JSON output, the exit codes, TLS, job files", 0, 1, "", mfl_cmd_help,
                "'completion' prints what bash completes commands, options and names with; packages install "
                "it.\n"
                "\nExamples:\n"
                "  mfl help submit\n"
                "  mfl help json\n"
                "  mfl help job > job.yaml\n"
                "  mfl help completion > ~/.local/share/bash-completion/completions/mfl\n"},
        {NULL, NULL, NULL, 0, 0, NULL, NULL, NULL},
};

const struct mfl_cli_command *mfl_cli_command_find(const char *name)
{
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++)
                if (!strcmp(c->name, name))
                        return c;
        return NULL;
}
