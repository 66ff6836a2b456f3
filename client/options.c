/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's command line. */
#include <getopt.h>
#include <unistd.h>

#include "client/config.h"
#include "client/gpu.h"
#include "common/fs.h"
#include "common/yaml.h"

#define DEFAULT_DATA "fashion-mnist=idx:/usr/share/datasets/fashion-mnist"
#define DEFAULT_DATA_DIR "/usr/share/datasets/fashion-mnist"
#define INSTANCE_TEXT "a GPU's index such as 3, GPU-..., MIG-..., or cpu"

const char mfl_client_help[] =
        "usage: mfl-client [options]\n"
        "\n"
        "Trains clients for an mfl-server. Start one per GPU (--gpu, or --all-gpus for all of them), or one "
        "per\n"
        "machine without a GPU. It stays connected, works on whatever jobs the server has, and comes back "
        "by\n"
        "itself when the connection is lost. SIGTERM ends it at once without harm: other daemons take over;\n"
        "with 'stop: task' in the file it takes no more work and ends when it is done, or at a second "
        "SIGTERM.\n"
        "SIGHUP reads the file again and takes log_level over.\n"
        "\n"
        "  --server HOST:PORT   the server (default 127.0.0.1:7433, or $MFL_SERVER)\n"
        "  --tls-ca FILE|DIR    speak TLS: the CA whose certificate the server must show\n"
        "  --tls-cert FILE      this daemon's certificate: CN its name, OU=daemon (PEM)\n"
        "  --tls-key FILE       its key; 'chmod 600'. All three are needed together; their defaults are\n"
        "                       $MFL_TLS_CA, $MFL_TLS_CERT, $MFL_TLS_KEY; read again at each connection\n"
        "  --name NAME          this daemon's name, unique and the same after a restart (default: host "
        "name)\n"
        "  --data NAME=FORMAT:DIR   offer a data set; may be given several times\n"
        "        FORMAT idx      DIR holds {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]\n"
        "        FORMAT cifar10  DIR holds data_batch_{1..5}.bin and test_batch.bin\n"
        "        NAME=synthetic:C,H,W:CLASSES:N_TRAIN:N_TEST:SEED   made up, for trials and benchmarks\n"
        "        Without any data set, fashion-mnist of Debian's dataset-fashion-mnist is offered if there.\n"
        "  --workers N|auto     clients trained at the same time (default auto: one per core)\n"
        "  --backend NAME       auto, cpu (oneDNN), cuda, or reference (plain loops) (default auto)\n"
        "  --gpu WHICH          the GPU to train on: its index as nvidia-smi counts, GPU-UUID or MIG-UUID "
        "(the\n"
        "                       beginning is enough), or none. It is demanded then: without it the program "
        "ends\n"
        "                       with status 78. Without --gpu the first that CUDA_VISIBLE_DEVICES leaves to "
        "see\n"
        "                       is used, and the CPU where there is no GPU\n"
        "  --all-gpus           start one daemon for each GPU, named NAME-gpu0, NAME-gpu1, ..., and watch "
        "over\n"
        "                       them: one that dies is started again\n"
        "  --gpus LIST          the same for some: --gpus 0,2\n"
        "  --share-gpu          other daemons with --share-gpu may use the same GPU; else a second one is "
        "refused\n"
        "  --gpu-memory SIZE    of the GPU, for networks and data sets (default: nine tenths of what is "
        "free)\n"
        "  --memory SIZE        for networks, params and results, such as 8GiB (default: four fifths of the\n"
        "                       machine's, divided among the daemons of --all-gpus)\n"
        "  --node ID            daemons with the same id share a host (default: made from machine and boot "
        "id)\n"
        "  --collective NAME    how this daemon adds its updates to those of the same host's other daemons, "
        "so\n"
        "                       that one uploads for all: auto (NCCL between GPUs, else shared memory), shm\n"
        "                       (shared memory only), nccl (demanded: without it the program ends with "
        "status\n"
        "                       78), or solo (not at all, and it fetches params for itself) (default auto)\n"
        "  --share-dir DIR      where they share memory, on a tmpfs (default /dev/shm)\n"
        "  --config FILE        YAML with the keys server, tls_ca, tls_cert, tls_key, name, node, workers,\n"
        "                       backend, gpu, share_gpu, gpu_memory, memory, collective, share_dir, "
        "log_level,\n"
        "                       stop (now or task), stop_timeout (10m) and data_sets; options come before "
        "it\n"
        "  --log-level LEVEL    error, warning, info, debug (default info)\n"
        "  --instance ID        one of several daemons that share a configuration file, as units of systemd\n"
        "                       do: a GPU's index, GPU-..., MIG-..., or cpu. It is --gpu ID, and the name\n"
        "                       gets its ending, such as NAME-gpu3; $MFL_CLIENT_INSTANCES daemons share the\n"
        "                       memory\n"
        "  --exit-with-stdin    end when standard input ends: for a parent that must not leave children\n"
        "  --help, --version\n"
        "\n"
        "exit status: 0 stopped as asked, 1 failure, 2 wrong arguments, 78 wrong configuration or data, or "
        "not\n"
        "the GPU that was asked for\n"
        "\n"
        "example: mfl-client --server fl.example.org:7433 --name lab3 --data mnist=idx:/data/mnist --workers "
        "4\n"
        "         mfl-client --server fl.example.org:7433 --name lab3 --all-gpus --data "
        "mnist=idx:/data/mnist\n";

enum option_id {
        OPT_CONFIG = 256,
        OPT_SERVER,
        OPT_TLS_CA,
        OPT_TLS_CERT,
        OPT_TLS_KEY,
        OPT_NAME,
        OPT_WORKERS,
        OPT_BACKEND,
        OPT_DATA,
        OPT_GPU,
        OPT_ALL_GPUS,
        OPT_SHARE_GPU,
        OPT_GPU_MEMORY,
        OPT_MEMORY,
        OPT_NODE,
        OPT_COLLECTIVE,
        OPT_SHARE_DIR,
        OPT_STDIN,
        OPT_INSTANCE,
        OPT_LEVEL,
        OPT_HELP,
        OPT_VERSION,
};
static const struct option options[] = {
        {"config", required_argument, NULL, OPT_CONFIG},
        {"server", required_argument, NULL, OPT_SERVER},
        {"tls-ca", required_argument, NULL, OPT_TLS_CA},
        {"tls-cert", required_argument, NULL, OPT_TLS_CERT},
        {"tls-key", required_argument, NULL, OPT_TLS_KEY},
        {"name", required_argument, NULL, OPT_NAME},
        {"workers", required_argument, NULL, OPT_WORKERS},
        {"backend", required_argument, NULL, OPT_BACKEND},
        {"data", required_argument, NULL, OPT_DATA},
        {"gpu", required_argument, NULL, OPT_GPU},
        {"gpus", required_argument, NULL, OPT_GPU},
        {"all-gpus", no_argument, NULL, OPT_ALL_GPUS},
        {"share-gpu", no_argument, NULL, OPT_SHARE_GPU},
        {"gpu-memory", required_argument, NULL, OPT_GPU_MEMORY},
        {"memory", required_argument, NULL, OPT_MEMORY},
        {"node", required_argument, NULL, OPT_NODE},
        {"collective", required_argument, NULL, OPT_COLLECTIVE},
        {"share-dir", required_argument, NULL, OPT_SHARE_DIR},
        {"exit-with-stdin", no_argument, NULL, OPT_STDIN},
        {"instance", required_argument, NULL, OPT_INSTANCE},
        {"log-level", required_argument, NULL, OPT_LEVEL},
        {"help", no_argument, NULL, OPT_HELP},
        {"version", no_argument, NULL, OPT_VERSION},
        {NULL, 0, NULL, 0},
};

static int read_file(struct mfl_client_config *config, const char *path, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        size_t bytes;
        int r = mfl_fs_read(path, 256 * 1024, &text, &bytes, err);
        if (r)
                return r == -ENOMEM ? r : MFL_INVALID;
        return mfl_client_config_yaml(config, text, bytes, path, err);
}

static int set_name(char *name, const char *option, const char *arg, struct mfl_error *err)
{
        if (!mfl_client_name_valid(arg))
                return mfl_fail(err, MFL_CONFIG_USAGE,
                        "%s %s: expected 1 to 63 letters, digits, '.', '_' and '-'", option, arg);
        mfl_strcpy(name, MFL_NAME_BYTES, arg);
        return 0;
}

static int set_workers(struct mfl_client_config *config, const char *arg, struct mfl_error *err)
{
        char *end;
        unsigned long n = strtoul(arg, &end, 10);
        if (!strcmp(arg, "auto"))
                n = 0;
        else if (end == arg || *end || n < 1 || n > 4096 || *arg == '-')
                return mfl_fail(err, MFL_CONFIG_USAGE, "--workers %s: expected 1 to 4096, or auto", arg);
        config->workers = (uint32_t)n;
        return 0;
}

static int set_backend(struct mfl_client_config *config, const char *arg, struct mfl_error *err)
{
        if (strcmp(arg, "auto") && strcmp(arg, "cpu") && strcmp(arg, "reference") && strcmp(arg, "cuda"))
                return mfl_fail(
                        err, MFL_CONFIG_USAGE, "--backend %s: expected auto, cpu, reference or cuda", arg);
        mfl_strcpy(config->backend, sizeof(config->backend), arg);
        return 0;
}

static int set_gpu(struct mfl_client_config *config, const char *arg, struct mfl_error *err)
{
        if (!*arg || !mfl_client_gpu_valid(arg) || !mfl_strcpy(config->gpu, sizeof(config->gpu), arg))
                return mfl_fail(err, MFL_CONFIG_USAGE,
                        "--gpu %.100s: expected an index such as 3, a list such as 0,2, GPU-..., MIG-..., "
                        "all or "
                        "none",
                        arg);
        return 0;
}

static int set_memory(const char *option, const char *arg, uint64_t *ret_bytes, struct mfl_error *err)
{
        uint64_t bytes;
        if (!mfl_yaml_parse_size(arg, &bytes) || bytes < 1048576)
                return mfl_fail(
                        err, MFL_CONFIG_USAGE, "%s %s: expected at least 1MiB, such as 8GiB", option, arg);
        *ret_bytes = bytes;
        return 0;
}

static int set_collective(struct mfl_client_config *config, const char *arg, struct mfl_error *err)
{
        for (int i = 0; mfl_client_collective_names[i]; i++) {
                if (strcmp(arg, mfl_client_collective_names[i]))
                        continue;
                config->collective = i;
                return 0;
        }
        return mfl_fail(err, MFL_CONFIG_USAGE, "--collective %s: expected auto, shm, nccl or solo", arg);
}

static int set_path(char path[1024], const char *option, const char *arg, struct mfl_error *err)
{
        if (!mfl_strcpy(path, 1024, arg))
                return mfl_fail(err, MFL_CONFIG_USAGE, "%s: longer than 1023 bytes", option);
        return 0;
}

static int set_option(struct mfl_client_config *config, int id, const char *arg, struct mfl_error *err)
{
        enum mfl_log_level level;
        switch (id) {
        case OPT_SERVER:
                if (!mfl_strcpy(config->server, sizeof(config->server), arg))
                        return mfl_fail(err, MFL_CONFIG_USAGE, "--server: longer than %zu bytes",
                                sizeof(config->server));
                return 0;
        case OPT_TLS_CA:
                return set_path(config->tls_ca, "--tls-ca", arg, err);
        case OPT_TLS_CERT:
                return set_path(config->tls_cert, "--tls-cert", arg, err);
        case OPT_TLS_KEY:
                return set_path(config->tls_key, "--tls-key", arg, err);
        case OPT_NAME:
                return set_name(config->name, "--name", arg, err);
        case OPT_NODE:
                return set_name(config->node, "--node", arg, err);
        case OPT_WORKERS:
                return set_workers(config, arg, err);
        case OPT_BACKEND:
                return set_backend(config, arg, err);
        case OPT_DATA:
                return mfl_client_config_data(config, arg, err);
        case OPT_GPU:
                return set_gpu(config, arg, err);
        case OPT_ALL_GPUS:
                strcpy(config->gpu, "all");
                return 0;
        case OPT_SHARE_GPU:
                config->share_gpu = true;
                return 0;
        case OPT_MEMORY:
                return set_memory("--memory", arg, &config->memory_bytes, err);
        case OPT_GPU_MEMORY:
                return set_memory("--gpu-memory", arg, &config->gpu_memory_bytes, err);
        case OPT_COLLECTIVE:
                return set_collective(config, arg, err);
        case OPT_SHARE_DIR:
                if (!mfl_strcpy(config->share_dir, sizeof(config->share_dir), arg))
                        return mfl_fail(err, MFL_CONFIG_USAGE, "--share-dir: longer than %zu bytes",
                                sizeof(config->share_dir));
                return 0;
        case OPT_STDIN:
                config->exit_with_stdin = true;
                return 0;
        case OPT_INSTANCE:
                if (!*arg || !mfl_strcpy(config->instance, sizeof(config->instance), arg))
                        return mfl_fail(err, MFL_CONFIG_USAGE, "--instance: expected " INSTANCE_TEXT);
                return 0;
        case OPT_LEVEL:
                if (!mfl_log_level_parse(arg, &level))
                        return mfl_fail(err, MFL_CONFIG_USAGE,
                                "--log-level %s: expected error, warning, info or debug", arg);
                config->log_level = (int)level;
                return 0;
        case OPT_HELP:
                config->help = true;
                return 0;
        case OPT_VERSION:
                config->version = true;
                return 0;
        case OPT_CONFIG: /* read before */
                return 0;
        }
        return mfl_fail(err, MFL_CONFIG_USAGE, "see mfl-client --help");
}

/* Goes over the arguments: the first time for --config only, since options come before the file's keys. */
static int scan(
        struct mfl_client_config *config, int argc, char *const argv[], bool files, struct mfl_error *err)
{
        int id, r = 0;
        optind = 0;
        opterr = 0;
        while (!r && (id = getopt_long(argc, argv, "", options, NULL)) != -1) {
                if (id == '?')
                        r = mfl_fail(err, MFL_CONFIG_USAGE,
                                "%s: unknown option, or its value is missing; see mfl-client --help",
                                argv[optind - 1]);
                else if (files && id == OPT_CONFIG)
                        r = read_file(config, optarg, err);
                else if (!files)
                        r = set_option(config, id, optarg, err);
        }
        if (!r && optind < argc)
                r = mfl_fail(err, MFL_CONFIG_USAGE, "%s: unexpected argument; see mfl-client --help",
                        argv[optind]);
        return r;
}

/* NAME-gpu3, NAME-GPU-5d1c2b3a, NAME-cpu: the beginning is cut so that the ending, which tells instances
 * apart, fits. */
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

static int read_environment(struct mfl_client_config *config, struct mfl_error *err)
{
        static const struct {
                const char *name;
                int option;
        } rows[] = {{"MFL_SERVER", OPT_SERVER}, {"MFL_TLS_CA", OPT_TLS_CA}, {"MFL_TLS_CERT", OPT_TLS_CERT},
                {"MFL_TLS_KEY", OPT_TLS_KEY}};
        int r = 0;
        for (size_t i = 0; !r && i < MFL_ARRAY_SIZE(rows); i++) {
                const char *value = getenv(rows[i].name);
                if (value && *value)
                        r = set_option(config, rows[i].option, value, err);
        }
        return r;
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

int mfl_client_config_init(
        struct mfl_client_config *config, int argc, char *const argv[], struct mfl_error *err)
{
        int r = mfl_client_config_defaults(config, err);
        if (!r)
                r = scan(config, argc, argv, true, err);
        if (!r)
                r = read_environment(config, err);
        if (!r)
                r = scan(config, argc, argv, false, err);
        if (!r)
                r = apply_instance(config, err);
        if (!r)
                r = check_tls(config, err);
        if (!r && !config->n_data_sets && !access(DEFAULT_DATA_DIR, R_OK | X_OK))
                r = mfl_client_config_data(config, DEFAULT_DATA, err);
        return r;
}
