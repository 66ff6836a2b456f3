/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-client's settings: their table (common/settings/settings.h), and the rules between them. */
#include <math.h>
#include <unistd.h>

#include "client/service/config.h"
#include "client/gpu/gpu.h"

#define DEFAULT_DATA "fashion-mnist=idx:/usr/share/datasets/fashion-mnist"
#define DEFAULT_DATA_DIR "/usr/share/datasets/fashion-mnist"
#define INSTANCE_TEXT "a GPU's index such as 3, GPU-..., MIG-..., or cpu"
#define NAME_TEXT "1 to 63 letters, digits, '.', '_' and '-', such as gpu-node-1"
#define GPU_TEXT "an index such as 3, a list such as \"0,2\", GPU-..., MIG-..., all or none"

static const char *const backend_names[] = {"auto", "cpu", "reference", "cuda", NULL};
static const char *const stop_names[] = {"now", "task", NULL}; /* by enum mfl_client_stop */
static const char *const auto_name[] = {"auto", NULL};         /* for completion: numbers are allowed, too */
static const char *const gpu_names[] = {"all", "none", NULL};
const char *const mfl_client_collective_names[] = {"auto", "shm", "solo", "nccl", NULL};
static const char *const team_names[] = {"auto", "off", NULL};

/* ---- texts of their own grammar ---- */

static bool parse_name(const char *text, void *value)
{
        return mfl_client_name_valid(text) && mfl_strcpy(value, MFL_NAME_BYTES, text);
}

static bool parse_workers(const char *text, void *value)
{
        static const struct mfl_yaml_field number = {.kind = MFL_YAML_U32, .min = 1, .max = 4096};
        if (strcmp(text, "auto"))
                return mfl_yaml_parse_value(text, &number, value);
        *(uint32_t *)value = 0;
        return true;
}

static bool parse_backend(const char *text, void *value)
{
        for (int i = 0; backend_names[i]; i++)
                if (!strcmp(text, backend_names[i]))
                        return mfl_strcpy(value, sizeof((struct mfl_client_config *)0)->backend, text);
        return false;
}

static bool parse_predictions(const char *text, void *value)
{
        return *text == '/' &&
               mfl_strcpy(value, sizeof((struct mfl_client_config *)0)->predictions_dir, text);
}

static bool parse_gpu(const char *text, void *value)
{
        return *text && strlen(text) < MFL_CLIENT_GPU_BYTES && mfl_client_gpu_valid(text) &&
               mfl_strcpy(value, MFL_CLIENT_GPU_BYTES, text);
}

static bool parse_instance(const char *text, void *value)
{
        return *text && mfl_strcpy(value, MFL_CLIENT_GPU_BYTES, text);
}

static int set_all_gpus(void *target, const char *text, struct mfl_error *err)
{
        strcpy(((struct mfl_client_config *)target)->gpu, "all");
        return 0;
}

static int set_data(void *target, const char *text, struct mfl_error *err)
{
        return mfl_client_config_data(target, text, err);
}

/* tags: {region: eu, gpu: h100} */
static int read_tags(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_error why;
        char *tags = value;
        *tags = '\0';
        if (node->type != MFL_YAML_MAPPING)
                return mfl_yaml_fail(doc, node, err, "expected {TAG: VALUE, ...}, such as {region: eu}");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                if (n->type != MFL_YAML_SCALAR)
                        return mfl_yaml_fail(doc, n, err, "expected a text or a number");
                if (mfl_tags_add(tags, n->key, n->text, &why))
                        return mfl_yaml_fail(doc, n, err, "%s", why.text);
        }
        return 0;
}

/* region=eu,gpu=h100 */
static int set_tags(void *target, const char *text, struct mfl_error *err)
{
        struct mfl_client_config *config = target;
        struct mfl_error why = {""};
        char copy[2 * MFL_TAGS_BYTES], *rest = copy, *tag;
        config->tags[0] = '\0';
        if (!mfl_strcpy(copy, sizeof(copy), text))
                return mfl_fail(
                        err, MFL_INVALID, "--tags: expected at most %d characters", MFL_TAGS_BYTES - 1);
        while ((tag = strsep(&rest, ","))) {
                char *value = strchr(tag, '=');
                if (!value)
                        return mfl_fail(err, MFL_INVALID, "--tags: '%s': expected TAG=VALUE", tag);
                *value++ = '\0';
                if (mfl_tags_add(config->tags, tag, value, &why))
                        return mfl_fail(err, MFL_INVALID, "--tags: %s", why.text);
        }
        return 0;
}

/* ---- the table ---- */

/* clang-format off */
#define AT(kind_, member_) MFL_YAML_AT(kind_, struct mfl_client_config, member_)
#define KEY(key_, kind_, member_) .key = key_, AT(kind_, member_)
static const struct mfl_setting rows[] = {
        {.section = "Server",
                .field = {KEY("server", STRING, server)}, .option = "server", .argument = "HOST:PORT,...",
                .value = "127.0.0.1:7433", .env = "MFL_SERVER", .words = true,
                .help = "the server to work for; or all servers of a cluster, [a:7433, b:7433, c:7433]: the daemon works for the one that "
                        "leads, and keeps what it has trained while another one takes over"},
        {.field = {KEY("tls_ca", STRING, tls_ca)}, .option = "tls-ca", .argument = "FILE|DIR",
                .env = "MFL_TLS_CA", .note = "none: plain TCP", .example = "/etc/mfl/ca.pem",
                .reload = MFL_RELOAD_USE,
                .help = "speak TLS 1.3: the CA whose certificate the server must show; a file, or a directory of .pem "
                        "files. Needs tls_cert and tls_key"},
        {.field = {KEY("tls_cert", STRING, tls_cert)}, .option = "tls-cert", .argument = "FILE",
                .env = "MFL_TLS_CERT", .note = "none", .example = "/etc/mfl/site-a.pem",
                .reload = MFL_RELOAD_USE, .help = "this daemon's certificate: CN its name, OU=daemon (PEM)"},
        {.field = {KEY("tls_key", STRING, tls_key)}, .option = "tls-key", .argument = "FILE",
                .env = "MFL_TLS_KEY", .note = "none", .example = "/etc/mfl/site-a.key",
                .reload = MFL_RELOAD_USE,
                .help = "its key, not readable by others (chmod 600). All three are read again for each connection"},
        {.field = {KEY("name", STRING, name)}, .option = "name", .argument = "NAME", .parse = parse_name,
                .expected = NAME_TEXT, .note = "the host's name", .example = "site-a",
                .help = "this daemon's name, unique among the server's daemons and the same after a restart"},

        {.section = "Data",
                .option = "data", .argument = "NAME=FORMAT:PATH", .set = set_data, .many = true,
                .note = "fashion-mnist of Debian's dataset-fashion-mnist, where it is installed",
                .help = "offer a data set; repeat the option for more. The server learns only names, shapes and "
                        "sizes. Keys of data_sets may follow: NAME=csv:/data/iris.csv,label=kind,test_fraction=0.2\n"
                        "  idx      PATH holds {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]\n"
                        "  cifar10  PATH holds data_batch_{1..5}.bin and test_batch.bin\n"
                        "  cifar100, npy, npz, csv, text, images   as data_sets says\n"
                        "  NAME=synthetic:C,H,W:CLASSES:N_TRAIN:N_TEST:SEED   random, for trials"},
        {.field = {.key = "data_sets", .kind = MFL_YAML_CALL, .read = mfl_client_config_data_sets},
                .note = "fashion-mnist of Debian's dataset-fashion-mnist, where it is installed",
                .example = "\n"
                        "  - {name: fashion-mnist, format: idx, dir: /usr/share/datasets/fashion-mnist}\n"
                        "  - {name: cifar10, format: cifar10, dir: /data/cifar-10-batches-bin, normalise: auto}\n"
                        "  - {name: cifar100, format: cifar100, dir: /data/cifar-100-binary, labels: fine}\n"
                        "  - name: scans\n"
                        "    format: npy\n"
                        "    train_x: /data/train_x.npy\n"
                        "    train_y: /data/train_y.npy\n"
                        "    test_x: /data/test_x.npy\n"
                        "    test_y: /data/test_y.npy\n"
                        "    shape: [1, 64, 64]\n"
                        "    classes: 3\n"
                        "  - {name: mnist, format: npz, dir: /data/mnist.npz}\n"
                        "  - name: patients\n"
                        "    format: csv\n"
                        "    dir: /data/patients.csv\n"
                        "    label: outcome\n"
                        "    owner: ward\n"
                        "    ignore: [id]\n"
                        "    test_fraction: 0.2\n"
                        "    seed: 7\n"
                        "  - {name: plays, format: text, dir: /data/plays.txt, unit: bytes, length: 80, owner: speaker}\n"
                        "  - {name: photos, format: images, dir: /data/photos, shape: [3, 64, 64]}\n"
                        "  - {name: noise, format: synthetic, shape: [3, 32, 32], classes: 10, train: 1000, test: 100}",
                .help = "the data sets that this site offers, a list; --data adds one, or replaces one of the same "
                        "name. Each has\n"
                        "  name      required; jobs name it in data.name\n"
                        "  format    required; idx, cifar10, cifar100, npy, npz, csv, text, images or synthetic\n"
                        "  dir       the folder or file. idx, cifar: as --data describes; npz: one file with x_train, "
                        "y_train, x_test, y_test (train_x and so on give other names), or with x and y and a "
                        "test_fraction, or a folder with train.npz and test.npz; csv: a file, or a folder with train.csv "
                        "and test.csv; text: a file, a folder of files, or one with train and test; images: folders "
                        "train/CLASS and test/CLASS of PNG and JPEG files, or only CLASS with a test_fraction; or, with "
                        "masks, train/images and a folder of masks beside it\n"
                        "  train_x, train_y, test_x, test_y\n"
                        "            npy: the files; samples u1, f4 or f8, labels of any integer type, or floats to "
                        "predict\n"
                        "  shape     [features], [positions, features] or [channels, height, width]; npy, npz: needed if "
                        "the file's rows are flat, and for series of (n, positions, features), which else are images; "
                        "images: every image is cropped and scaled to this\n"
                        "  classes   2 to 1048576; default: the largest label + 1\n"
                        "  mean, std one number for each channel, both or none\n"
                        "  normalise auto: mean and deviation of the training samples; columns, for rows of numbers: "
                        "of each column by itself, except categories; default: none\n"
                        "  names     share: names of classes, features, words and characters go to the server with the model's "
                        "contract, so that a pulled model knows them (docs/predict.md); default: keep. With share, a job with "
                        "`privacy` tells scale and shift that normalise has measured, too\n"
                        "  labels    cifar100: fine (default, 100 classes) or coarse (20)\n"
                        "  masks     images with a label per pixel: the name of the folder beside images, with a PNG of the "
                        "same name and size for each image (images/7.jpg, masks/7.png), whose greys or places in the palette "
                        "are the classes; needs classes. Masks are cropped as their images are, and a scaled pixel has the "
                        "nearest label\n"
                        "  ignore_index   masks; npy, npz with a label per pixel, y of the shape (n, height, width), or per token "
                        "or row of a series, y of the shape (n, positions): this value, such as 255, means that a pixel "
                        "or position has no label\n"
                        "  test_fraction, seed   csv, npz, text, images without a test part: this share of the "
                        "samples becomes it, drawn from the seed (text: the end of each file or speaker's text)\n"
                        "  header    csv: yes (default; required if all names are numbers) or no; separator: default \",\", "
                        "or tab\n"
                        "  label     csv: the column by name or number from 0; default: the last. targets: a list of "
                        "columns "
                        "instead, numbers to predict. Labels that are not numbers, such as folders of images, become "
                        "classes in the byte order of the training samples' labels. With partition local, a site with "
                        "other labels is left out; a site that lacks a label needs numbers, and classes\n"
                        "  owner     csv: the column with a sample's owner, for partition natural-id; text: none "
                        "(default), file or speaker (blocks between blank lines, the first line \"NAME:\")\n"
                        "  ignore    csv: columns that are not features; features: the columns that are, instead\n"
                        "  window    csv: a sample is this many rows of a time series, of shape [window, features]; "
                        "stride: rows from one window to the next (window); group: the column that tells series apart, "
                        "and the owner of their windows unless owner is set; time: the column that orders the rows, "
                        "numbers or dates such as 2024-05-01T10:00:00 (default: the order of the file); horizon: the "
                        "label or the targets are those of the row so many rows after the window's last "
                        "(label: 0, targets: 1); label_at: majority takes a window's commonest label instead. Without "
                        "features, all columns without another purpose are features, the targets, too\n"
                        "  split     csv with window: time (default: the last test_fraction of each series is the test "
                        "split) or group (test_fraction of the series are, drawn from the seed). No row is in both\n"
                        "  text      csv: the column with texts, one label each; length: tokens of a sample (128), cut or "
                        "filled with token 0; unit: words (default: letters and digits, A to Z as a to z), characters "
                        "or bytes (byte b is token b + 1). Token 1 is what the vocabulary lacks, token 2 its first word\n"
                        "  vocabulary   csv with text: a file with one word per line, the same at every site; default: "
                        "the vocabulary_size - 2 (9998) most frequent of the training texts. Sites with other words are "
                        "left out of a job. npy, npz: the samples are tokens, whole numbers below this, or auto: the "
                        "largest + 1\n"
                        "  categories, codes   csv: columns whose values are names, with all possible values, the "
                        "same at every site: {colour: [red, green, blue]}. categories makes one feature per value "
                        "(one-hot); codes makes one feature, the value's place in the list, from 0. Or in the header: "
                        "colour:onehot(red|green|blue), "
                        "grade:codes(low|mid|high). Sites that declare other values are left out of a job\n"
                        "  unit      format text: characters (default: those of the training text) or bytes, the same 256 at every "
                        "site; length: tokens of a sample (80); stride: from one sample to the next (length)\n"
                        "  train, test, seed   synthetic: numbers of samples, and the seed of the random numbers"},

        {.section = "Computing",
                .field = {KEY("workers", U32, workers), .names = auto_name}, .option = "workers", .argument = "N|auto",
                .parse = parse_workers, .expected = "1 to 4096, or auto", .value = "auto", .unit = "clients",
                .help = "clients trained at the same time; auto: one per core"},
        {.field = {KEY("backend", STRING, backend), .names = backend_names}, .option = "backend",
                .argument = "NAME", .parse = parse_backend, .value = "auto",
                .help = "auto, cpu (oneDNN), reference (plain loops) or cuda (without a device: exit status 78)"},
        {.field = {KEY("gpu", STRING, gpu), .names = gpu_names}, .option = "gpu", .argument = "WHICH", .parse = parse_gpu,
                .expected = GPU_TEXT, .note = "the first GPU that CUDA_VISIBLE_DEVICES allows, or the CPU if there is "
                                              "no GPU", .example = "0",
                .help = "the GPU to train on: its index as nvidia-smi counts, GPU-UUID or MIG-UUID (the beginning is "
                        "enough), or none. If the GPU is not available, the program ends with status 78. all, or a "
                        "list such as \"0,2\": one daemon per GPU, named NAME-gpu0, NAME-gpu2; this process watches "
                        "them and restarts one that dies"},
        {.field = {AT(STRING, gpu)}, .option = "all-gpus", .set = set_all_gpus, .help = "the same as --gpu all"},
        {.field = {AT(STRING, gpu)}, .option = "gpus", .argument = "LIST", .parse = parse_gpu,
                .expected = GPU_TEXT, .help = "the same as --gpu LIST: --gpus 0,2"},
        {.field = {KEY("share_gpu", BOOL, share_gpu)}, .option = "share-gpu", .value = "false",
                .help = "other daemons with share_gpu may use the same GPU; otherwise a second daemon on it is refused"},
        {.field = {KEY("gpu_memory", SIZE, gpu_memory_bytes), .min = 1048576, .max = INFINITY},
                .option = "gpu-memory", .argument = "SIZE", .expected = "at least 1MiB, such as 8GiB",
                .note = "nine tenths of what is free at the start", .example = "60GiB",
                .help = "of the GPU, for networks and data sets"},
        {.field = {KEY("memory", SIZE, memory_bytes), .min = 1048576, .max = INFINITY}, .option = "memory",
                .argument = "SIZE", .expected = "at least 1MiB, such as 8GiB",
                .note = "four fifths of the machine's, divided among the daemons of --all-gpus",
                .example = "8GiB", .help = "for networks, params and results"},

        {.section = "Daemons of one host",
                .field = {KEY("node", STRING, node)}, .option = "node", .argument = "ID", .parse = parse_name,
                .expected = NAME_TEXT, .note = "made from machine and boot id", .example = "rack4-7",
                .help = "daemons with the same id share a host"},
        {.field = {KEY("site", STRING, site)}, .option = "site", .argument = "NAME", .parse = parse_name,
                .expected = NAME_TEXT, .note = "this daemon is a site by itself", .example = "hospital-a",
                .help = "the site whose data this daemon holds: with partition local, its daemons are one client, "
                        "which any of them trains. They need equal data files; with TLS, the certificate must "
                        "have O=NAME ('mfl pki issue daemon ... --site NAME')"},
        {.field = {.key = "tags", .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_client_config, tags),
                        .read = read_tags},
                .option = "tags", .argument = "TAG=VALUE,...", .set = set_tags, .note = "none",
                .example = "{region: eu, gpu: h100}",
                .help = "what jobs may ask for with 'selection: {where: ...}': names of letters, digits and '_', values of letters, "
                        "digits, '.', '_' and '-'; with the option, TAG=VALUE,TAG=VALUE"},
        {.field = {KEY("collective", ENUM, collective), .names = mfl_client_collective_names},
                .option = "collective", .argument = "NAME", .value = "auto",
                .expected = "auto, shm, nccl or solo",
                .help = "how this daemon adds its updates to those of the same host's other daemons, so that one "
                        "uploads for all: auto (NCCL between GPUs, otherwise shared memory), shm (shared memory only), "
                        "nccl (if it is not available, the program ends with status 78), or solo (updates are not "
                        "added, and params are not shared)"},
        {.field = {KEY("team", ENUM, team), .names = team_names},
                .option = "team", .argument = "NAME", .value = "auto", .expected = "auto or off",
                .help = "whether this daemon may train a client together with other daemons, step by step, if the job says "
                        "how (parallel) and has fewer clients than daemons: auto, or off"},
        {.field = {KEY("peer_listen", STRING, peer_listen)}, .option = "peer-listen", .argument = "HOST:PORT",
                .note = "off", .example = "10.0.0.7:7434",
                .help = "the address where daemons of other nodes reach this one, to train a client together, if the job says "
                        "'parallel: {within: any}'; port 0: any free port. Only members of the same team get in. An address other "
                        "than loopback needs TLS. Each daemon of a host needs a port of its own"},
        {.field = {KEY("peer_address", STRING, peer_address)}, .option = "peer-address", .argument = "HOST[:PORT]",
                .note = "as in peer_listen", .example = "node7.example.org",
                .help = "what other daemons connect to, if that is not peer_listen, as with 0.0.0.0 or [::]"},
        {.field = {KEY("share_dir", STRING, share_dir)}, .option = "share-dir", .argument = "DIR",
                .note = "/dev/shm", .example = "/dev/shm",
                .help = "the directory for shared memory, on a tmpfs; all containers of a host need the same one"},
        {.field = {KEY("state_dir", STRING, state_dir)}, .option = "state-dir", .argument = "DIR",
                .note = "none: such jobs are refused", .example = "/var/lib/mfl-client",
                .help = "where this daemon keeps what its client must remember from round to round, for jobs with "
                        "'client_state: daemon': up to 4 vectors as long as the model for each job, in DIR/states. Remove a "
                        "job's folder there when the job is over"},

        {.section = "Own training code",
                .field = {.key = "programs", .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_client_config, programs),
                        .read = mfl_programs_read},
                .note = "mfl trains by itself alone",
                .example = "\n"
                        "  - name: pets\n"
                        "    command: [/opt/pets/venv/bin/python, train.py]\n"
                        "    dir: /opt/pets\n"
                        "    timeout: 30m\n"
                        "    memory: 8GiB",
                .help = "training programs that jobs may name with 'training: {program: NAME}'; a job can't say what is run. "
                        "docs/programs.md tells how to write one, and what holds it. Each has\n"
                        "  name      required; letters, digits, '.', '_' and '-'\n"
                        "  command   required; a list: the absolute path of an executable, and its arguments. Nothing is looked up in "
                        "PATH, and no shell reads it\n"
                        "  dir       where it runs, an absolute path. Default: the daemon's directory\n"
                        "  timeout   the longest time for one client's training, or one evaluation. Default: 30m\n"
                        "  memory    the most that it and its children may hold together. Default: no limit\n"
                        "  threads   OMP_NUM_THREADS, which decides the last bits of many libraries' results. Default: 1\n"
                        "  samples_max   where the data are the program's own: the most samples, and so the largest weight, that it may "
                        "claim for a client; the same at all daemons of a population. Default: 1000000\n"
                        "  network   true: it may use sockets beyond its own processes. Default: false\n"
                        "  processes   processes and threads that it may have at once. Default: 2000\n"
                        "  write     directories below which it may write, besides dir, /tmp, /var/tmp, $TMPDIR and /dev; needs a kernel with "
                        "Landlock\n"
                        "  read      directories below which it may read, besides these and the system's (/usr, /etc, ..); without the key, "
                        "all; needs Landlock, too"},

        {.section = "Plug-ins",
                .field = {KEY("plugins", STRING, plugins)}, .option = "plugins", .argument = "DIR", .note = "none",
                .example = "/usr/lib/mfl/plugins-client",
                .help = "a directory of plug-ins, *.so (mfl/filter.h, mfl/format.h), which only root or the daemon's user may write; they are loaded "
                        "when the daemon starts, and run with its rights (docs/plugins.md)"},
        {.field = {.key = "filters", .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_client_config, filters),
                        .read = mfl_filters_read},
                .note = "none",
                .example = "\n"
                        "  - name: layer-clip\n"
                        "    settings: {norm: 0.5}",
                .help = "what every update of this daemon goes through before it is rounded, in this order, whatever the job: "
                        "plug-ins from the directory above, by name. Jobs' logs have their names, numbers and the SHA-256 of their files\n"
                        "  name      required\n"
                        "  settings  numbers that the plug-in names, with its own limits and standard values\n"
                        "  when      always, or asked: only updates of jobs that name it (filters in the job file). Default: always"},
        {.field = {.key = "plugin_data", .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_client_config, plugin_data),
                        .read = mfl_plugin_data_read},
                .note = "none",
                .example = "\n"
                        "  - name: leaves\n"
                        "    format: ppm\n"
                        "    path: /data/leaves\n"
                        "    settings: {classes: 4}",
                .help = "data sets that plug-ins from the directory above read, when the daemon starts\n"
                        "  name      required; what jobs call it\n"
                        "  format    required; the plug-in's name\n"
                        "  path      required; what the plug-in opens\n"
                        "  settings  numbers that the plug-in names, with its own limits and standard values"},

        {.section = "The site's say",
                .field = {.key = "policy", .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_client_config, policy),
                        .read = mfl_policy_read},
                .note = "every job of the server is taken",
                .example = "\n"
                        "  owners: [alice, bob]\n"
                        "  data: [patients]\n"
                        "  min_participants: 3\n"
                        "  strategies: [fedavg, fedprox]\n"
                        "  ask: true\n"
                        "  dir: /var/lib/mfl-client",
                .help = "what this daemon takes part in. The daemon compares every job with it by itself, before it does "
                        "anything for the job; who submits a job that it refuses sees the reason. docs/policy.md says what it can and "
                        "can't know\n"
                        "  owners    takes only jobs of these submitters: the CN of their certificates (local: the server has no "
                        "TLS)\n"
                        "  data      gives only these data sets to jobs\n"
                        "  min_participants   a round must count at least this many clients (its clients times limits.quorum)\n"
                        "  strategies, strategies_refused   takes only these strategies of aggregation, or all but these\n"
                        "  secure_sum   required: takes only jobs with secure_sum, whose server sees no single update\n"
                        "  secure_bad   the job must stand this share of daemons that work with the server: its secure_sum.bad. Default: 0.1\n"
                        "  peers     only with daemons that have these certificates (SHA-256, hexadecimal) in one secure sum; this "
                        "daemon's own is one of them\n"
                        "  rounds_max, epochs_max   the most rounds of a job, and epochs of training.epochs\n"
                        "  programs  false: refuses jobs with training.program; a list: takes only these programs\n"
                        "  plugins   false: refuses jobs that name plug-ins, the server's (strategy: plugin, evaluation.metrics) or this "
                        "daemon's (filters); a list: takes only these\n"
                        "  clip, noise   each update is shortened to clip, in the L2 norm, and gets Gaussian noise of noise * clip, "
                        "whatever the job says\n"
                        "  epsilon_max, delta   what each data set may tell, over jobs, servers and restarts, by the site's own ledger "
                        "(delta: 1e-5); 'mfl-client budget' shows it\n"
                        "  metrics   withheld: losses, accuracies and other figures of the data stay here, and evaluations answer for no "
                        "sample; the default with noise. plain: they leave\n"
                        "  ask       true: each job waits until 'mfl-client approve JOB' says yes; 'mfl-client deny JOB' says "
                        "no, also later, and 'mfl-client jobs' lists them. Answers survive restarts\n"
                        "  inquiries {kinds: [stats, validate, predict, foreign], min_samples: 10, extremes: false}: what the server may ask about "
                        "the data sets beside its jobs; without it nothing. foreign: validations of models of files. Counts of fewer than min_samples samples stay here, and so do "
                        "smallest and largest values unless extremes is true\n"
                        "  dir       required; an absolute path: answers, the control socket, and the audit log "
                        "NAME.audit.jsonl, which has a line for each decision"},
        {.field = {KEY("predictions_dir", STRING, predictions_dir)}, .option = "predictions-dir", .argument = "DIR",
                .parse = parse_predictions, .expected = "an absolute path", .note = "predictions are refused",
                .example = "/var/lib/mfl-client/predictions",
                .help = "the directory for answers of 'mfl predict MODEL --at SITE' to the test samples of a data set, which stay here: "
                        "DATA-DIGEST.csv, mode 0600. The server learns how many there are"},

        {.section = "Stopping",
                .field = {KEY("stop", ENUM, stop), .names = stop_names}, .value = "now",
                .help = "what SIGTERM does. now: unfinished work is given back, and other daemons do it. task: the "
                        "daemon takes no more work, finishes and sends what it has, then ends; a second SIGTERM ends "
                        "it at once"},
        {.field = {KEY("stop_timeout", DURATION, stop_ms), .min = 1000, .max = 86400000}, .value = "10m",
                .help = "the longest time for stop: task; systemd is asked to wait that long, whatever TimeoutStopSec says"},

        {.section = "Log",
                .field = {KEY("log_level", ENUM, log_level), .names = mfl_setting_levels}, .option = "log-level",
                .argument = "LEVEL", .value = "info", .parse = mfl_setting_parse_level,
                .reload = MFL_RELOAD_VALUE, .help = "error, warning, info or debug"},

        {.section = "Only on the command line",
                .field = {AT(STRING, instance)}, .option = "instance", .argument = "ID",
                .parse = parse_instance, .expected = INSTANCE_TEXT,
                .help = "for several daemons that share a configuration file, such as units of systemd: a GPU's "
                        "index, GPU-..., MIG-..., or cpu. Means --gpu ID, and a name such as NAME-gpu3; "
                        "$MFL_CLIENT_INSTANCES daemons share the memory"},
        {.field = {AT(BOOL, exit_with_stdin)}, .option = "exit-with-stdin",
                .help = "end when standard input ends, so that a parent leaves no children behind"},
};

static const struct mfl_settings_topic topics[] = {
        {"SIGNALS",
                "SIGTERM ends the daemon at once without harm: other daemons take over its clients. With stop: task "
                "in the file, it takes no more work and ends when it is done, or at a second SIGTERM.\n\n"
                "SIGHUP reads the configuration file again. mfl-client.yaml(5) says which keys take effect then. "
                "Certificates are read again for each connection."},
        {"THE SITE'S SAY",
                "With 'policy: {ask: true}' in the file, a job waits for this site's administrator:\n\n"
                "  mfl-client jobs               what the daemons of this host have met, and what they say\n"
                "  mfl-client approve JOB        takes part in it\n"
                "  mfl-client deny JOB           does not, also when it has begun\n"
                "  mfl-client budget             what the site's data have told, by its own ledger\n\n"
                "They read the same file (--config FILE) and talk to all daemons of its policy.dir. Run them as the daemon's "
                "user, or as root."},
        {"EXIT STATUS",
                "  0    stopped as asked\n"
                "  1    failure\n"
                "  2    wrong arguments\n"
                "  78   wrong configuration or data, or not the GPU that was asked for"},
        {"ENVIRONMENT",
                "MFL_SERVER, MFL_TLS_CA, MFL_TLS_CERT and MFL_TLS_KEY override the file; options override them. "
                "MFL_CLIENT_INSTANCES says how many daemons share the machine's memory. MFL_CACHE_DIR is the folder "
                "for measurements of networks on a GPU; default: $CACHE_DIRECTORY, or ~/.cache/mfl. NOTIFY_SOCKET, "
                "WATCHDOG_USEC and JOURNAL_STREAM are set by systemd."},
        {"EXAMPLES",
                "  mfl-client --server fl.example.org:7433 --name lab3 --data mnist=idx:/data/mnist --workers 4\n"
                "  mfl-client --server fl.example.org:7433 --name lab3 --all-gpus --data mnist=idx:/data/mnist"},
        {"SEE ALSO", "mfl-client.yaml(5), mfl-server(8), mfl(1), mfl-job(5)"},
        {NULL, NULL},
};

const struct mfl_settings mfl_client_settings = {
        .program = "mfl-client",
        .summary = "trains clients for an mfl-server",
        .about = "Start one per GPU (--gpu, or --all-gpus for all of them), or one per machine without a GPU. It stays "
                 "connected, works on the jobs that the server has, and reconnects by itself.",
        .after = "SIGTERM ends it at once without harm: other daemons take over; with 'stop: task' in the file it takes "
                 "no more work and ends when it is done, or at a second SIGTERM. SIGHUP reads the file again and "
                 "applies log_level.\n\n"
                 "mfl-client jobs, mfl-client approve JOB and mfl-client deny JOB, with the same --config, are for the "
                 "administrator of a site whose policy has 'ask: true'.\n\n"
                 "Exit status: 0 stopped as asked, 1 failure, 2 wrong arguments, 78 wrong configuration or data, or not "
                 "the GPU that was asked for.",
        .file = "/etc/mfl/client.yaml",
        .topics = topics,
        .rows = rows,
        .n_rows = MFL_ARRAY_SIZE(rows),
};
/* clang-format on */

int mfl_client_config_defaults(struct mfl_client_config *config, struct mfl_error *err)
{
        *config = (struct mfl_client_config){0};
        mfl_settings_defaults(&mfl_client_settings, config);
        return mfl_client_config_identify(config, err);
}

int mfl_client_config_yaml(struct mfl_client_config *config, const char *text, size_t text_bytes,
        const char *file, struct mfl_error *err)
{
        return mfl_settings_yaml(&mfl_client_settings, text, text_bytes, file, config, err);
}

/* ---- rules between settings ---- */

/* NAME-gpu3, NAME-GPU-5d1c2b3a, NAME-cpu: if the name is too long, its beginning is kept and the ending,
 * which tells instances apart, is added. */
static void name_instance(struct mfl_client_config *config, const struct mfl_gpu_id *id)
{
        char tail[32];
        if (!strcmp(config->instance, "cpu"))
                strcpy(tail, "-cpu");
        else if (id->kind == MFL_GPU_INDEX)
                mfl_snprintf(tail, sizeof(tail), "-gpu%u", id->index);
        else
                mfl_snprintf(tail, sizeof(tail), "-%.12s", config->instance);
        size_t room = MFL_NAME_BYTES - 1 - strlen(tail);
        if (strlen(config->name) > room)
                config->name[room] = 0;
        strcat(config->name, tail);
}

static int apply_instance(struct mfl_client_config *config, struct mfl_error *err)
{
        const char *count = getenv("MFL_CLIENT_INSTANCES");
        struct mfl_gpu_id id;
        bool cpu = !strcmp(config->instance, "cpu");
        if (!*config->instance)
                return 0;
        if (!mfl_gpu_id_parse(cpu ? "none" : config->instance, &id) || (!cpu && id.kind == MFL_GPU_NONE))
                return mfl_fail(err, MFL_CONFIG_USAGE, "--instance %.100s: expected " INSTANCE_TEXT,
                        config->instance);
        strcpy(config->gpu, cpu ? "none" : config->instance);
        name_instance(config, &id);
        long n = count ? strtol(count, NULL, 10) : 0;
        config->instances = n > 0 && n <= 1024 ? (uint32_t)n : 0;
        return 0;
}

static int check_tls(const struct mfl_client_config *config, struct mfl_error *err)
{
        const char *missing = !*config->tls_ca ? "tls_ca" : !*config->tls_cert ? "tls_cert" : "tls_key";
        bool any = *config->tls_ca || *config->tls_cert || *config->tls_key;
        if (any && (!*config->tls_ca || !*config->tls_cert || !*config->tls_key))
                return mfl_fail(err, MFL_INVALID,
                        "TLS needs tls_ca, tls_cert and tls_key together: %s is missing", missing);
        return 0;
}

static int check_peers(const struct mfl_client_config *config, struct mfl_error *err)
{
        if (*config->peer_address && !*config->peer_listen)
                return mfl_fail(
                        err, MFL_INVALID, "peer_address: this daemon does not listen; set peer_listen, too");
        return 0;
}

static bool has_data_set(const void *user, const char *name)
{
        const struct mfl_client_config *config = user;
        for (uint32_t i = 0; i < config->n_data_sets; i++)
                if (!strcmp(config->data_sets[i].name, name))
                        return true;
        for (uint32_t i = 0; i < config->plugin_data.n; i++)
                if (!strcmp(config->plugin_data.v[i].name, name))
                        return true;
        return false;
}

static int check_programs(const struct mfl_client_config *config, struct mfl_error *err)
{
        const struct mfl_policy_names *allowed = &config->policy.programs.names;
        for (uint32_t i = 0; i < allowed->n; i++)
                if (!mfl_programs_find(&config->programs, allowed->v[i]))
                        return mfl_fail(err, MFL_INVALID,
                                "policy.programs names '%s', and this daemon has no such program",
                                allowed->v[i]);
        return 0;
}

int mfl_client_config_init(
        struct mfl_client_config *config, int argc, char *const argv[], struct mfl_error *err)
{
        int r = mfl_client_config_defaults(config, err);
        if (!r)
                r = mfl_settings_load(&mfl_client_settings, argc, argv, config, err);
        if (!r)
                r = apply_instance(config, err);
        if (!r)
                r = check_tls(config, err);
        if (!r)
                r = check_peers(config, err);
        if (!r && !config->n_data_sets && !config->plugin_data.n && !access(DEFAULT_DATA_DIR, R_OK | X_OK))
                r = mfl_client_config_data(config, DEFAULT_DATA, err);
        if (!r)
                r = mfl_policy_check_data(&config->policy, has_data_set, config, err);
        if (!r)
                r = check_programs(config, err);
        return r;
}
