/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands with their help texts. */
#include "cli/commands/commands.h"

const struct mfl_cli_command mfl_cli_commands[] = {
        {"run", "job.yaml", "train a job on this machine, with a server and daemons of its own", 1, 1,
                "set daemons threads out data backend plugins config keep-state",
                "Starts a private server and client daemons on 127.0.0.1, submits the job, shows it\n"
                "live, and writes model.safetensors, rounds.csv, job.yaml and the logs into a new\n"
                "folder. It leaves no process running. A child that dies is started again, and the job\n"
                "continues. Ctrl-C stops the job and prints where the files are; a second Ctrl-C exits\n"
                "at once. A job that waits for 20 s (for example because no daemon has its data set)\n"
                "fails with the reason.\n"
                "\n"
                "Plug-ins can be tried (docs/plugins.md): --plugins names the directory of the server's\n"
                "strategies and metrics. Those of the daemons, their filters and formats, and training\n"
                "programs stand in the file of --config, which is written as mfl-client.yaml.\n"
                "\n"
                "Examples:\n"
                "  mfl run examples/demo.yaml\n"
                "  mfl run job.yaml --daemons 4 --threads 1 --out results/first\n"
                "  mfl run job.yaml --data toy=synthetic:1,28,28:10:1000:200:1\n"
                "  mfl run job.yaml --plugins build/strategies --config client.yaml\n"
                "  mfl run job.yaml --json | tail -n 1 | jq .accuracy\n",
                .local = true},
        {"new", "[EXAMPLE]", "write a job file to begin from, by questions or an example", 0, 1, "set output",
                "On a terminal, without EXAMPLE, it asks for what people change first, checks each answer, "
                "and\n"
                "writes the file after the last one. In a pipe it asks nothing and lists the examples.\n"
                "\n"
                "The examples are those of the source's folder examples/; each says in its first lines what\n"
                "it shows. Without -o it prints the file.\n"
                "\n"
                "Examples:\n"
                "  mfl new\n"
                "  mfl new | cat\n"
                "  mfl new demo -o job.yaml --set rounds=50 --set data.clients=20\n",
                .local = true},
        {"submit", "job.yaml", "send a job to the server", 1, 1, "set token anyway watch timeout",
                "Checks the job file here and on the server, and prints the new job's id. '-' reads\n"
                "standard input. With --token, submitting the same file again (from a script, or after\n"
                "a timeout) returns the same job; another job file with the same token is a conflict\n"
                "(exit status 6). The file that model.initial names is read here and sent with the job.\n"
                "Says which of the connected sites would refuse the job by their policies. If those that\n"
                "are left are too few for a round, nothing is submitted (exit status 5), except with\n"
                "--anyway: other sites may come.\n"
                "\n"
                "--set changes one value: KEY is a path such as training.lr or model.layers[0].units, VALUE\n"
                "is YAML in one line. The rest of the file, its comments too, stays as it is, and the "
                "server\n"
                "stores the changed file.\n"
                "\n"
                "Examples:\n"
                "  mfl submit job.yaml\n"
                "  mfl submit job.yaml --watch\n"
                "  mfl submit job.yaml --set training.lr=0.01 --set rounds=50\n"
                "  mfl submit job.yaml --token nightly-2024-05-01\n"
                "  job=$(mfl submit job.yaml --json | jq -r .job) && mfl wait \"$job\"\n"},
        {"check", "job.yaml", "check a job file, without a server", 1, 1, "set data backend",
                "Reads the job as the server would, and prints a summary, or FILE:LINE and what is\n"
                "wrong there. With --data it also reads the data set and checks that it fits the model\n"
                "and is large enough for the clients. The messages are those of the server and the\n"
                "daemons.\n"
                "\n"
                "An ONNX file that mfl_export.py wrote has a proof: outputs and gradients as PyTorch\n"
                "computes them. 'mfl check' computes them again, on the CPU, and refuses a model that\n"
                "differs. With --backend reference, it uses the slow backend that others are compared\n"
                "with.\n"
                "\n"
                "Examples:\n"
                "  mfl check job.yaml\n"
                "  mfl check job.yaml --data iris=csv:iris.csv,test_fraction=0.2\n",
                .local = true},
        {"plan", "job.yaml", "show which teams can train a job with `parallel`", 1, 1,
                "set data backend memory members sizes",
                "Prints, for teams of 1, 2, 4, .. daemons and each stage of parallel.zero, what the leader\n"
                "and the other members need besides an idle daemon, what a member receives in a step, and\n"
                "how long a step should take, where each member has a core of its own. For that it takes\n"
                "some steps on this machine, with random samples, and measures shared memory. All members\n"
                "are of one node. It marks the best plan that fits --memory; a team twice as large has to\n"
                "save a twentieth of the time. A client that gains nothing is best left to one daemon.\n"
                "\n"
                "Examples:\n"
                "  mfl plan job.yaml --data mnist=idx:/data/mnist\n"
                "  mfl plan job.yaml --memory 1.5GiB --members 4\n"
                "  mfl plan job.yaml --sizes --json | jq .best\n",
                .local = true},
        {"sweep", "job.yaml", "submit a job once for each combination of values", 1, 1,
                "set token watch timeout",
                "Each --set names several values: KEY=V,V,... or a range of whole numbers, KEY=1..5. A job\n"
                "is submitted for each combination, named NAME-KEYVALUE-..., at most 256 of them. All are\n"
                "checked before the first is submitted. With --watch it waits until all have ended, and\n"
                "prints what 'mfl compare' prints. With --token, the same sweep again makes no new jobs.\n"
                "\n"
                "Examples:\n"
                "  mfl sweep job.yaml --set training.lr=0.01,0.03,0.1 --set seed=1..3\n"
                "  mfl sweep job.yaml --set aggregation.strategy=fedavg,fedadam --watch\n"},
        {"compare", "JOB JOB ...", "compare jobs: settings, results, curves", 1, MFL_CLI_POSITIONAL_MAX, "",
                "Prints a row for each job with the settings in which the job files differ ('-': not in the\n"
                "file) and the results, then a plot of the accuracy (of the loss, if no job has an "
                "accuracy)\n"
                "over the rounds. JOB may be a pattern of names: 'lr-*'.\n"
                "\n"
                "Examples:\n"
                "  mfl compare j-000001 j-000002\n"
                "  mfl compare 'fashion-lr*'\n"
                "  mfl compare 'fashion-lr*' --json | jq '.jobs[] | [.settings, .job.best.accuracy]'\n"},
        {"list", "", "list the jobs", 0, 0, "state done name since archived all last",
                "Archived jobs ('mfl archive') are left out; --archived lists only these, --all the others,\n"
                "too.\n"
                "\n"
                "Examples:\n"
                "  mfl list\n"
                "  mfl list --state running,waiting\n"
                "  mfl list --name 'fashion-*' --since 2d\n"
                "  mfl list --json | jq '.jobs[] | select(.state == \"running\") | .job'\n"},
        {"show", "JOB", "show a job: state, rounds, network, the job file", 1, 1, "nodes partition teams",
                "JOB is an id (j-000001), a name that only one job has, or 'last'. The section\n"
                "'network' shows how many bytes the newest round cost each node, and how many it would\n"
                "have cost if each daemon had fetched the model and sent its update alone. --partition\n"
                "shows how the data set is divided instead: each client's samples and its mix of\n"
                "classes. For real sites (partition local) it shows only the samples.\n"
                "\n"
                "Examples:\n"
                "  mfl show last\n"
                "  mfl show last --nodes\n"
                "  mfl show last --teams\n"
                "  mfl show last --partition\n"
                "  mfl show fashion-demo --json | jq '.rounds[].accuracy'\n"},
        {"watch", "JOB", "watch a job until it ends", 1, 1, "timeout",
                "Shows a live display on a terminal; elsewhere it prints one line per round and per\n"
                "change of state. Below the curves, or at the end of a round's line, is what the job's\n"
                "daemons did in the last ten seconds: how many samples they trained, and which share of\n"
                "their time they spent computing, preparing data, sending and receiving (network)\n"
                "without computing, and waiting. If the server goes away, watch waits until it is back:\n"
                "a restart loses nothing. Exits with 0 when the job is done and with 1 when it failed\n"
                "or was stopped. Ctrl-C ends the watching, not the job.\n"
                "\n"
                "Examples:\n"
                "  mfl watch last\n"
                "  mfl watch j-000007 --json\n"},
        {"wait", "JOB", "wait in silence until a job ends", 1, 1, "timeout",
                "The same as watch, without output. For scripts.\n"
                "\n"
                "Example:\n"
                "  mfl wait last && mfl pull last --round best -o model.safetensors\n"},
        {"logs", "JOB", "show what the server noted about a job", 1, 1, "follow timeout",
                "\n"
                "Examples:\n"
                "  mfl logs last\n"
                "  mfl logs j-000001 -f\n"},
        {"stop", "JOB|--all", "stop a job; its models stay", 0, 1, "after-round all name",
                "The daemons drop the job's work at once. Committed rounds stay; 'mfl clone' starts the\n"
                "job again from the beginning. With --after-round, the current round is trained,\n"
                "evaluated and committed first. Until then the job runs on, 'mfl list' shows after\n"
                "which round it ends, and then it ends as stopped (as done if that was its last round).\n"
                "A server of an older release that does not know --after-round refuses the command, and\n"
                "the job runs on. --all stops every job that has not ended; with --name, those whose name\n"
                "matches.\n"
                "\n"
                "Examples:\n"
                "  mfl stop last\n"
                "  mfl stop --all --name 'fashion-lr*'\n"
                "  mfl stop last --after-round && mfl wait last\n"},
        {"clone", "JOB", "submit the same job again", 1, 1, "token watch timeout",
                "\n"
                "Example:\n"
                "  mfl clone j-000001 --watch\n"},
        {"move", "JOB", "take a job to another server, where it goes on", 1, 1, "to back",
                "The job stops, its models, rounds, clients' states, releases and log go to the other\n"
                "server, and it goes on there with the next round. Its digest is that of a job that never\n"
                "moved. The round under way is trained again. Daemons that have no other job here, and\n"
                "the other server in their list ('server' in client.yaml), follow.\n"
                "\n"
                "The command carries the files, with the same certificate for both servers: OU=operator\n"
                "for one's own job, OU=admin for another's, which keeps its owner then, and for jobs that "
                "keep\n"
                "states of clients on the server (scaffold, personal layers). If it is killed, or a server "
                "is, the job is in one place and waits: run the same command again, or give up\n"
                "with --back. A server never takes a job twice. The stopped job stays here with its\n"
                "models until 'mfl delete'.\n"
                "\n"
                "Examples:\n"
                "  mfl move last --to b.example.org:7433\n"
                "  mfl move j-000003 --to b.example.org:7433 --back\n"},
        {"forget", "JOB CLIENT", "train a job again as if a client had never been there", 2, 2,
                "token watch timeout",
                "Exact unlearning. The job must have ended. A new job with the client among\n"
                "selection.without takes its place; the old one is deleted with its models, rounds and\n"
                "clients' states. The new job begins after the newest round before the client's first\n"
                "turn whose checkpoint is kept (checkpoints.keep), where rounds draw from the whole\n"
                "population in real time and clients keep nothing, and otherwise with round 1. Its digest is "
                "that of a job that never\n"
                "had the client: the client is drawn as before, and then left out. Back-ups, files\n"
                "that were pulled, and models in mfl-serve are not touched. With --token, the same command\n"
                "with the job's id may be repeated after a lost connection.\n"
                "\n"
                "Examples:\n"
                "  mfl forget j-000001 7 --watch\n"
                "  mfl forget j-000001 7 --token forget-7\n"},
        {"replay", "JOB", "make a job's rounds again, and compare the models", 1, 1, "token watch timeout",
                "A new job makes the committed rounds of JOB again from the same file, and stops after the\n"
                "last of them; then the digests of all models are compared. JOB stays. Of a job with\n"
                "fedbuff or fedasync in real time, the new one has the order of arrival that the server has\n"
                "recorded. The exit status is 0 if every model is the same, and 1 if one is not: then\n"
                "daemons compute otherwise than before (mfl daemons), or a round had fewer clients than\n"
                "were drawn, because a deadline passed.\n"
                "\n"
                "Example:\n"
                "  mfl replay j-000001\n"},
        {"archive", "JOB|--done|--state S", "take jobs that have ended off the list", 0, 1,
                "done state name before undo",
                "An archived job is in 'mfl list' and on the dashboard only if you ask for it. All else\n"
                "stays: its id and name, rounds, models, versions in the registry, and what keep_ended of\n"
                "server.yaml says of jobs that have ended. 'mfl unarchive', or --undo, takes it back. "
                "Without\n"
                "JOB, it archives every job that matches all of the options, of which there must be --done\n"
                "or --state.\n"
                "\n"
                "Examples:\n"
                "  mfl archive j-000001\n"
                "  mfl archive --done --before 30d\n"
                "  mfl list --archived\n"},
        {"unarchive", "JOB|--done|--state S", "put archived jobs back on the list", 0, 1,
                "done state name before",
                "Without JOB, it takes every archived job that matches all of the options.\n"
                "\n"
                "Examples:\n"
                "  mfl unarchive j-000001\n"
                "  mfl unarchive --state done,failed,stopped --name 'fashion-*'\n"},
        {"delete", "JOB|--done|--state S", "delete jobs that have ended, with their models", 0, 1,
                "done state name before archived all",
                "Without JOB, it deletes every job that matches all of the options, of which there must be\n"
                "--done or --state. These are the jobs that 'mfl list' shows with the same options: not\n"
                "the archived ones without --archived or --all.\n"
                "\n"
                "Examples:\n"
                "  mfl delete j-000001\n"
                "  mfl delete --done --before 30d\n"
                "  mfl delete --state failed,stopped --name 'test-*'\n"},
        {"models", "JOB", "list the models of a job", 1, 1, "",
                "Prints one line for each round whose model the server has kept.\n"
                "\n"
                "Example:\n"
                "  mfl models last\n"},
        {"pull", "JOB", "fetch a model, or the rounds for TensorBoard and others", 1, 1,
                "format base with-input deltas round output follow timeout",
                "Checks a model's params against the SHA-256 digest that the server stored when it\n"
                "committed the round. The safetensors file has the job, the round, the digest and,\n"
                "where measured, accuracy and loss as metadata; npz has one array per parameter, for\n"
                "numpy.load. The names are PyTorch's. onnx is the whole network for inference, opset\n"
                "17; with --with-input, it takes samples as the sites have them.\n"
                "\n"
                "A safetensors file also has the job file, the input's shape and the contract as metadata\n"
                "(onnx: the contract, npz: the contract as the archive's comment), so 'mfl predict' needs\n"
                "no server. Whoever gets the file can read the job file.\n"
                "\n"
                "--deltas writes what each client of a round has sent, of a job with debug: {deltas:\n"
                "SIZE}: the arrays clients and weights, and client-K/PARAM for each client K. Only the\n"
                "job's owner and admins may have it.\n"
                "\n"
                "peft writes the adapter of a LoRA job (model.lora) into a folder that Hugging Face's\n"
                "peft loads: PeftModel.from_pretrained(model, FOLDER). --base names the model for peft's\n"
                "AutoPeftModel classes.\n"
                "\n"
                "tensorboard writes runs/JOB-NAME/events.out.tfevents...: one run per job, so that\n"
                "'tensorboard --logdir runs' compares the jobs that you pull into one folder. The tags\n"
                "are train/loss, test/accuracy, round/seconds, clients/counted, network/up_bytes and so\n"
                "on; the steps are rounds, and the times are those of the commits. Pulling again\n"
                "appends the rounds that are missing. With --follow, each round is appended when it is\n"
                "committed, also across restarts of the server (--timeout: how long to wait without a\n"
                "server).\n"
                "\n"
                "csv (RFC 4180) and jsonl have one row per round, with the members of ROUND in 'mfl\n"
                "help json'.\n"
                "\n"
                "Examples:\n"
                "  mfl pull last\n"
                "  mfl pull fashion-demo --round best -o model.safetensors\n"
                "  mfl pull last --format peft --base gpt2 -o adapter\n"
                "  mfl pull last --format tensorboard --follow\n"
                "  mfl pull last --format csv -o - | column -s, -t | less -S\n"
                "  mfl pull last --format jsonl --follow -o - | jq .accuracy\n"},
        {"predict", "MODEL", "a model's answers for the samples of a file", 1, 1,
                "data output format top probabilities logits round backend precision threads at deadline",
                "MODEL is a file that 'mfl pull' wrote as safetensors, which needs no server, or a job.\n"
                "--data [FORMAT:]PATH is read as daemons read it, but as a whole: csv, npy, npz, idx,\n"
                "cifar10, cifar100, images or text, with the keys of data_sets after commas. Labels may\n"
                "be missing (of a CSV file, where its columns are as many as the model's features). The\n"
                "model's contract says how values are scaled and what classes and tokens are called; see\n"
                "'mfl model show'. Where sites scale differently, the keys mean and std say how.\n"
                "\n"
                "The answer to a sample has the same bits alone and among others, within one --precision. "
                "CSV has one line per\n"
                "sample (with a class per position, one line per position); jsonl has one object per\n"
                "sample; npy is an array of probabilities, or of the values of a regression.\n"
                "\n"
                "MODEL may also be NAME@ALIAS or NAME@VERSION of a registered model. With --at SITE --data\n"
                "NAME it runs at the site, on the test samples of its data set NAME: the answers stay there\n"
                "(predictions_dir in client.yaml), and only their number comes back.\n"
                "\n"
                "Examples:\n"
                "  mfl predict mortality@champion --at hospital-a --data patients\n"
                "  mfl predict model.safetensors --data digits.npy -o answers.csv\n"
                "  mfl predict last --data csv:new.csv --top 3 --format jsonl | jq .name\n"
                "  mfl predict model.safetensors --data images:photos --probabilities\n"},
        {"evaluate", "MODEL", "how good a model is on labelled samples of a file", 1, 1,
                "data round backend precision threads",
                "MODEL and --data are those of 'mfl predict'; the samples need labels (of npy files:\n"
                "train_y=FILE). Loss and accuracy are computed as a round's evaluation computes them. AUC\n"
                "is the mean over the classes, each against the rest; the calibration error is the mean\n"
                "distance of accuracy and confidence over 15 bins. A regression has MAE, RMSE and R2.\n"
                "\n"
                "Examples:\n"
                "  mfl evaluate model.safetensors --data idx:/data/mnist\n"
                "  mfl evaluate last --round best --data csv:test.csv,label=kind --json | jq .auc\n"},
        {"validate", "MODEL...", "loss and accuracy of models at every site, one table", 1, 16,
                "data at deadline round",
                "MODEL is a job (its newest round, or --round), or NAME@ALIAS or NAME@VERSION of a\n"
                "registered model. Each site that has the model's data set, or --data NAME, evaluates it on\n"
                "its own test samples, as in a round, between its daemons' tasks; the server keeps the\n"
                "report with the version. Sites with fewer samples than their policy tells of are added up.\n"
                "Several models make one table. MODEL may be a file of 'mfl pull', which travels with the\n"
                "question.\n"
                "\n"
                "Examples:\n"
                "  mfl validate last --round best\n"
                "  mfl validate mortality@champion mortality@3 --at 'hospital-*'\n"
                "  mfl validate last --json | jq '.models[0].sites'\n"},
        {"model", "VERB ...",
                "a model's contract; the registry: register, list, alias, promote, rollback, reports", 1, 3,
                "round as accuracy worse sites set output",
                "  show MODEL                   what a model expects of its input, and where it comes from\n"
                "  import FILE.onnx [-o OUT]    a network of another program as a model file, for predict,\n"
                "                               evaluate, validate and mfl-serve; --set "
                "training.loss=squared "
                "if\n"
                "                               it is no classifier\n"
                "  register JOB --as NAME       a round of a job (--round) becomes the next version of "
                "NAME.\n"
                "                               Its checkpoint and its job stay as long as the version\n"
                "  list [NAME]                  versions and aliases\n"
                "  alias NAME@ALIAS [VERSION]   points the alias at a version (default: the newest)\n"
                "  promote NAME@ALIAS [VERSION] the same, if the version's newest validation passes the\n"
                "                               gates: --accuracy, --worse, --sites\n"
                "  rollback NAME@ALIAS          points it at the version before\n"
                "  remove NAME@VERSION|ALIAS    a version that no alias has, or an alias\n"
                "  reports [NAME[@VERSION]]     the newest validations; of a model: its versions side by "
                "side,\n"
                "                               site by site\n"
                "  serving                      which mfl-serve serves which version, its requests and "
                "latency\n"
                "\n"
                "For show, MODEL is a file that 'mfl pull' wrote as safetensors, ONNX or npz, or a job. The "
                "contract "
                "comes from\n"
                "the first site that trained the model: shape, type, scale and shift. Names of classes,\n"
                "features and tokens are there if the site's configuration says names: share. Sites that\n"
                "scale differently are named; then the input must be scaled before it is given.\n"
                "\n"
                "Examples:\n"
                "  mfl model show model.safetensors\n"
                "  mfl model show last --json | jq .contract.scale\n"
                "  mfl model register last --as mortality --round best\n"
                "  mfl model promote mortality@champion --accuracy 0.9 --worse 0.01 --sites 3\n"
                "  mfl pull mortality@champion\n",
                .words = "show import register list alias promote rollback remove reports serving"},
        {"daemons", "[VERB ...]", "list the daemons, node by node; disable, enable, allow some", 0, 2,
                "reason for",
                "A node is the daemons of one machine that can reach each other: they add their updates\n"
                "and fetch the model once. '*' marks the node's leader, the daemon that talks to the\n"
                "server for the node. ADDS BY shows how the updates are added: nccl (between GPUs), shm\n"
                "(in shared memory) or solo (not at all); a line below says why if a better way exists.\n"
                "On a narrow terminal some columns are left out; a file gets all of them. A daemon\n"
                "shown as 'refused' is not allowed to take part, and tried within the last ten minutes.\n"
                "\n"
                "  disable PATTERN    daemons that match may not take part: they are disconnected at once,\n"
                "                     others take over their work, and they return by themselves after\n"
                "                     'enable'\n"
                "  enable PATTERN     removes that rule\n"
                "  allow PATTERN      once there is such a rule, only daemons that match one may take part\n"
                "  disallow PATTERN   removes that rule\n"
                "  rules              lists the rules\n"
                "\n"
                "PATTERN is a daemon's name; '*' stands for any text in it, '?' for one character.\n"
                "cn:PATTERN matches the CN of its certificate, sha256:HEX the certificate's\n"
                "fingerprint. A disabled daemon stays out even if it is allowed; the order of the rules\n"
                "does not matter. The rules survive restarts, and changing them takes OU=admin. To let\n"
                "a daemon finish its current work, use 'mfl drain'.\n"
                "\n"
                "Examples:\n"
                "  mfl daemons --json | jq '.daemons[] | {name, state, samples_per_second}'\n"
                "  mfl daemons disable 'site-b*' --reason 'disk is being replaced' --for 12h\n"
                "  mfl daemons enable 'site-b*'\n"
                "  mfl daemons allow 'cn:hospital-*'\n",
                .words = "disable enable allow disallow rules"},
        {"drain", "DAEMON|--all", "give a daemon, or all of them, no more work", 0, 1, "all undo wait",
                "For an upgrade or a reboot: the daemon finishes its current work and gets no more.\n"
                "With --wait, the command returns when the daemon is idle. The drain survives restarts\n"
                "until --undo. With --all, every daemon is drained, also those that connect later, and\n"
                "the jobs wait. When 'mfl drain --all --wait' returns, you can restart or upgrade the\n"
                "server and the daemons without losing any training. Undoing --all leaves the daemons\n"
                "drained that were drained by name.\n"
                "\n"
                "Examples:\n"
                "  mfl drain node7 --wait && ssh node7 systemctl restart mfl-client.target\n"
                "  mfl drain node7 --undo\n"
                "  mfl drain --all --wait && apt upgrade && mfl drain --all --undo\n"},
        {"probe", "healthz|readyz [HOST:PORT]", "ask the server's HTTP port how it is", 1, 2, "",
                "For the probes of containers, and for scripts. HOST:PORT is the address of mfl-server\n"
                "--http (default 127.0.0.1:7434), with http_tls or without. healthz: the server\n"
                "answers and can write to its disk; readyz: it has also loaded its jobs. Exits with 0\n"
                "if so, with 1 and the reason if not, and with 3 if there is no answer.\n"
                "\n"
                "Example:\n"
                "  mfl probe readyz && mfl submit job.yaml\n",
                .local = true},
        {"audit", "", "show who changed what, or tried to", 0, 0, "last",
                "Lists submissions, clones, stops, deletions, drains, rules about daemons, reloads, and\n"
                "every refused attempt. For operators. The server keeps the newest 100000 entries.\n"
                "\n"
                "Example:\n"
                "  mfl audit --json | jq '.entries[] | select(.result == \"refused\")'\n"},
        {"login", "issue|end", "a code with which a browser logs in to the dashboard", 1, 1, "for",
                "issue prints a link for the dashboard (mfl-server --http). It works once, within five "
                "minutes,\n"
                "and the browser that opens it then acts with your name and your certificate's roles: it "
                "can\n"
                "submit, clone and stop jobs, and load models. It stays logged in for 12 hours (--for), "
                "until\n"
                "you log out there, or until the server restarts. end ends all your logins and codes at "
                "once.\n"
                "\n"
                "Examples:\n"
                "  mfl login issue\n"
                "  xdg-open \"$(mfl login issue --for 30m)\"\n"
                "  mfl login end\n",
                .words = "issue end"},
        {"data", "show job.yaml|stats NAME", "how a job cuts its data set; statistics of the sites' data", 2,
                2, "data rows at bins deadline",
                "show prints each client's samples and classes, computed here in the way that every daemon\n"
                "computes them. It asks no server.\n"
                "\n"
                "stats asks the sites what the training samples of their data set NAME add up to: exact\n"
                "counts, means, deviations, least and most values, quartiles by repeated histograms, and\n"
                "samples of each label. Counts that are too small stay at the site (its policy).\n"
                "\n"
                "Examples:\n"
                "  mfl data stats patients\n"
                "  mfl data stats patients --at 'hospital-*' --bins 20 --json | jq '.features[0]'\n"
                "  mfl data show job.yaml\n"
                "  mfl data show job.yaml --data cifar10=cifar10:/data/cifar-10-batches-bin --rows 0\n",
                .words = "show stats"},
        {"presets", "[NAME]", "list the model presets, or describe one", 0, 1, "input classes",
                "\n"
                "Examples:\n"
                "  mfl presets\n"
                "  mfl presets pfl-cnn --input 3x32x32\n",
                .local = true},
        {"pki", "VERB ...", "a private CA: init, issue, renew, revoke, crl, show, export", 1, 3,
                "dir host role site days crl-days out csr new-key revoke-old tar ca-pass-file",
                "Makes the certificates for TLS if you have no CA yet. It works in one directory and\n"
                "asks no server. Anyone who can read ca.key there can make certificates: keep it on one\n"
                "machine, encrypted with --ca-pass-file. If a command fails, everything stays as it\n"
                "was; nothing is replaced silently.\n"
                "\n"
                "  init [CA-NAME]     makes a new CA (--days, --crl-days)\n"
                "  issue ROLE NAME    makes a key and a certificate; ROLE: server (with --host; NAME may be\n"
                "                     left out) or relay, daemon, operator, viewer, admin, serve; --role "
                "ROLE adds "
                "one.\n"
                "                     --site SITE lets a daemon belong to a site of several daemons.\n"
                "                     --csr FILE signs a request (openssl req -new ...) and takes only the\n"
                "                     public key from it\n"
                "  renew NAME         makes a new certificate for the same key, name and roles; the old one\n"
                "                     stays valid until it expires, unless you add --revoke-old; --host\n"
                "                     gives a server new host names\n"
                "  revoke NAME        revokes all certificates of a name, or the one with that serial\n"
                "                     number; then copy crl.pem to the server and reload it\n"
                "  crl                makes a new revocation list before the old one expires\n"
                "  show [NAME]        lists the certificates; '!' marks those that expire within 30 days\n"
                "  export NAME        packs the files of a name into a tar archive for its machine\n"
                "\n"
                "Examples:\n"
                "  mfl pki init\n"
                "  mfl pki issue server --host agg.example.org --host 10.0.0.1\n"
                "  mfl pki issue daemon site-a\n"
                "  mfl pki issue daemon box-1 --site hospital-a\n"
                "  mfl pki export site-a --tar - | ssh site-a tar xpC /etc/mfl\n"
                "  mfl pki issue operator alice --role viewer --days 90\n"
                "  mfl pki show --json | jq -r '.certificates[] | select(.days_left < 30) | .name'\n"
                "  mfl pki revoke site-a\n",
                .words = "init issue renew revoke crl show export", .local = true},
        {"privacy", "[ledger]", "what differential privacy costs, or what a server's jobs have spent", 0, 1,
                "sigma q rounds delta calibrate mechanism separation",
                "Prints the epsilon of rounds that each release a sum over clients drawn by chance (each\n"
                "with probability Q), with Gaussian noise of S times a client's largest contribution.\n"
                "With --calibrate it finds S. Lists of the same length stand for several kinds of rounds.\n"
                "With --mechanism bisr or bsr and --separation B all rounds together are one release, in "
                "which\n"
                "each client takes part every B-th round at most: S is its noise, and needs no Q.\n"
                "The answer is an upper bound by privacy loss distributions, whichever of two data sets\n"
                "has the client that the other lacks. A job's own budget is in 'mfl check' and 'mfl show'.\n"
                "That needs no server. 'mfl privacy ledger' asks one: what its jobs have released of each "
                "data\n"
                "set, also those that are deleted, what that costs together, and the server's "
                "privacy_limits.\n"
                "\n"
                "Examples:\n"
                "  mfl privacy --sigma 1 --q 0.1 --rounds 100 --delta 1e-5\n"
                "  mfl privacy --calibrate 8 --q 0.1 --rounds 100 --delta 1e-5 --json\n"
                "  mfl privacy --sigma 1,0.8 --q 0.1 --rounds 100,20 --delta 1e-5\n"
                "  mfl privacy --mechanism bisr --sigma 2 --rounds 200 --separation 20 --delta 1e-5\n"
                "  mfl privacy ledger\n",
                .words = "ledger"},
        {"help", "[COMMAND|json|exit|tls|job|completion]",
                "explain a command, the JSON output, the exit codes, TLS, job files", 0, 1, "",
                "'completion' prints the completion script for bash (commands, options and names), and\n"
                "'completion-zsh' and 'completion-fish' those for zsh and fish; the packages install them.\n"
                "\n"
                "Examples:\n"
                "  mfl help submit\n"
                "  mfl help json\n"
                "  mfl help job > job.yaml\n"
                "  mfl help completion > ~/.local/share/bash-completion/completions/mfl\n"
                "  mfl help completion-zsh > ~/.zfunc/_mfl    # with fpath+=~/.zfunc before compinit\n"
                "  mfl help completion-fish > ~/.config/fish/completions/mfl.fish\n",
                .local = true},
        {NULL, NULL, NULL, 0, 0, NULL, NULL},
};

const struct mfl_cli_command *mfl_cli_command_find(const char *name)
{
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++)
                if (!strcmp(c->name, name))
                        return c;
        return NULL;
}
