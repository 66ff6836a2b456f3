/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-client: the daemon.
 *
 *   - with --all-gpus it only watches one child per GPU (supervise.h);
 *   - reads its configuration, loads its data sets, pins itself to its GPU and opens a backend (gpu_pin.h);
 *   - opens what it shares with the host's other daemons (node.h);
 *   - runs one loop thread (connection, timers, signals), one worker for the trainer, one that adds a
 *     group's sums, one that hashes params;
 *   - SIGTERM, SIGINT, or the end of stdin if asked for: says Bye and ends; a second signal ends it at once;
 *   - SIGTERM with `stop: task`: takes no more work, ends what it has, says Bye; a second one: as without it;
 *   - SIGHUP reads the configuration again (service.h).
 *
 * Ways to fail: wrong arguments (2); a wrong configuration file or data set, or a missing backend (78); the
 * server sends it away for good, a broken device, no memory (1). */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "client/train/compute.h"
#include "client/service/config.h"
#include "client/service/data.h"
#include "client/gpu/gpu_pin.h"
#include "client/gpu/gpu_sample.h"
#include "client/link/link.h"
#include "client/node/node.h"
#include "client/policy/control.h"
#include "client/service/private.h"
#include "client/service/report.h"
#include "client/service/service.h"
#include "client/service/supervise.h"
#include "client/service/tell.h"
#include "common/base/budget.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/signals.h"
#include "common/base/systemd.h"
#include "proto/servers.h"
#include "proto/stream.h"

#define EXIT_CONFIG 78
#define ADDING_THREADS_MAX 16

struct client {
        struct mfl_client_config config;
        struct mfl_client_data data;
        const char *hidden[3];  /* from programs; ends with NULL */
        struct mfl_gpu_pin pin; /* the backend, its device, and the GPU that this is */
        struct mfl_gpu_sampler sampler;
        struct mfl_activity activity;
        struct mfl_client_report report;
        uint32_t workers;
        uint64_t instance; /* of this process */
        struct mfl_client_node node;
        struct mfl_peer_port *peers; /* NULL: no teams over several nodes */
        struct mfl_budget budget;
        struct mfl_client_plugins *plugins;
        struct mfl_filters *filters; /* NULL: none */
        struct mfl_trainer *trainer;
        uv_loop_t loop;
        struct mfl_compute compute;
        struct mfl_worker hasher;
        struct mfl_gate *gate; /* NULL: the site has no policy */
        struct mfl_client_private private;
        struct mfl_link_site site;
        struct mfl_control *control;
        struct mfl_link *link;
        uv_signal_t sigterm, sigint;
        struct mfl_client_service service;
        union {
                uv_handle_t handle;
                uv_stream_t stream;
                uv_pipe_t pipe;
                uv_tty_t tty;
        } in;
        bool in_open, stopping, leaving;
        int status;
};

/* ---- start ---- */

static int random_u64(uint64_t *ret_number, struct mfl_error *err)
{
        if (getrandom(ret_number, sizeof(*ret_number), 0) != sizeof(*ret_number))
                return mfl_fail_errno(err, "getrandom");
        return 0;
}

static int open_backend(struct client *c, struct mfl_error *err)
{
        const struct mfl_gpu_pin_options options = {
                .gpu = c->config.gpu, .backend = c->config.backend, .share = c->config.share_gpu};
        int r = mfl_gpu_pin_open(&options, &c->pin, err);
        if (r)
                return r;
        c->workers = c->config.workers;
        /* A GPU is one device for one network at a time; a CPU is as many as it has cores. */
        if (!c->workers)
                c->workers = strcmp(c->pin.ops->name, "cuda") ? (uint32_t)MFL_MAX(1, c->pin.info.cores) : 1;
        return 0;
}

/* When one member of a node adds, the others are done, so their cores are free; memory can't use more than a
 * few threads. */
static uint32_t adding_threads(const struct client *c)
{
        cpu_set_t set;
        if (sched_getaffinity(0, sizeof(set), &set))
                return c->workers;
        return (uint32_t)MFL_MAX(1, MFL_MIN(CPU_COUNT(&set), ADDING_THREADS_MAX));
}

static int open_node(struct client *c, struct mfl_error *err)
{
        while (!c->instance) {
                int r = random_u64(&c->instance, err);
                if (r)
                        return r;
        }
        const struct mfl_client_node_options options = {.collective = c->config.collective,
                .share_dir = *c->config.share_dir ? c->config.share_dir : NULL,
                .instance = c->instance,
                .threads = adding_threads(c),
                .ops = c->pin.ops,
                .device = c->pin.device};
        return mfl_client_node_open(&c->node, &options, err);
}

static struct mfl_tls_files tls_files(const struct client *c)
{
        if (!*c->config.tls_ca)
                return (struct mfl_tls_files){0};
        return (struct mfl_tls_files){
                .ca = c->config.tls_ca, .cert = c->config.tls_cert, .key = c->config.tls_key};
}

static int open_peers(struct client *c, struct mfl_error *err)
{
        const struct mfl_peer_port_options options = {
                .listen = c->config.peer_listen, .address = c->config.peer_address, .tls = tls_files(c)};
        return *c->config.peer_listen ? mfl_peer_port_open(&options, &c->peers, err) : 0;
}

/* What programs must not read: they run as the daemon's user. */
static void hide_secrets(struct client *c)
{
        const char *const paths[] = {c->config.tls_key, c->config.policy.set ? c->config.policy.dir : ""};
        uint32_t n = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(paths); i++)
                if (*paths[i])
                        c->hidden[n++] = paths[i];
}

static int open_trainer(struct client *c, struct mfl_error *err)
{
        hide_secrets(c);
        if (c->config.programs.n) {
                char holds[160];
                mfl_log(MFL_LOG_INFO, "programs are held with: %s; %s",
                        mfl_program_holds(holds, sizeof(holds)),
                        mfl_program_cgroups(c->config.programs.group));
        }
        /* Without namespaces a program is a process of the same user: it must not open this one's /proc/PID/mem. */
        if (c->config.programs.n && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
                return mfl_fail_errno(err, "close this process's memory to programs");
        uint64_t limit = c->config.memory_bytes;
        if (!limit) {
                int r = mfl_memory_total(&limit, err);
                if (r)
                        return r;
                limit = limit / 5 * 4 / MFL_MAX(c->config.instances, 1u);
        }
        mfl_budget_init(&c->budget, limit);
        int r = mfl_activity_init(&c->activity, c->workers, mfl_now_ns(), err);
        if (r)
                return r;
        struct mfl_trainer_options options = {.ops = c->pin.ops,
                .device = c->pin.device,
                .workers = c->workers,
                .budget = &c->budget,
                .device_memory_bytes = c->config.gpu_memory_bytes,
                .name = c->config.name,
                .site = c->config.site,
                .n_data_sets = c->data.n,
                .data_sets = (const struct mfl_dataset *const *)c->data.sets,
                .fingerprints = c->data.fingerprints,
                .share = c->node.share,
                .shm = c->node.shm,
                .nccl = c->node.nccl,
                .peers = c->peers,
                .activity = &c->activity,
                .programs = &c->config.programs,
                .hidden = c->hidden,
                .privacy = &c->private.site,
                .state_dir = *c->config.state_dir ? c->config.state_dir : NULL,
                .plugins = mfl_client_plugins_text(c->plugins),
                .filters = c->filters};
        return mfl_trainer_new(&options, &c->trainer, err);
}

/* "NVIDIA H200", "NVIDIA H200, MPS": for people. */
static void device_text(const struct client *c, char *buf, size_t bytes)
{
        snprintf(buf, bytes, "%.80s%s", c->pin.info.name, c->pin.mps ? ", MPS" : "");
}

static void log_start(const struct client *c)
{
        const struct mfl_device_info *d = &c->pin.info;
        mfl_log(MFL_LOG_INFO, "%s: backend %s on %s%s%s%s, %u worker%s, server %s", c->config.name,
                d->backend, d->name, *d->library ? " (" : "", d->library, *d->library ? ")" : "", c->workers,
                c->workers == 1 ? "" : "s", c->config.server);
        if (c->pin.demanded && strcmp(d->backend, "cuda"))
                mfl_log(MFL_LOG_WARN, "GPU %s is pinned, but backend %s does not use it", c->config.gpu,
                        d->backend);
        if (c->pin.known)
                mfl_log(MFL_LOG_INFO, "GPU %u%s%s, %s%s%s%s%s", c->pin.gpu.index,
                        *c->pin.gpu.name ? ": " : "", c->pin.gpu.name, c->pin.gpu.uuid,
                        *c->pin.gpu.pci ? " at " : "", c->pin.gpu.pci, c->pin.nvml ? ", driver " : "",
                        c->pin.nvml ? mfl_nvml_driver(c->pin.nvml) : "");
        mfl_log(MFL_LOG_INFO, "collectives: %s", c->node.text);
        if (c->peers)
                mfl_log(MFL_LOG_INFO, "peers: daemons of other nodes reach this one at %s",
                        mfl_peer_port_address(c->peers));
        for (uint32_t i = 0; i < c->config.programs.n; i++)
                mfl_log(MFL_LOG_INFO, "program %s: %s", c->config.programs.v[i].name,
                        c->config.programs.v[i].command[0]);
        if (*mfl_client_plugins_text(c->plugins))
                mfl_log(MFL_LOG_INFO, "plug-ins: %s", mfl_client_plugins_text(c->plugins));
        for (uint32_t i = 0; i < c->config.n_data_sets + c->config.plugin_data.n; i++) {
                char shape[96];
                mfl_log(MFL_LOG_INFO, "data set %s: %u training and %u test samples of %s, %u classes",
                        c->data.infos[i].name, c->data.infos[i].train_samples, c->data.infos[i].test_samples,
                        mfl_shape_text(&c->data.infos[i].shape, shape, sizeof(shape)),
                        c->data.infos[i].classes);
        }
}

/* Errors in the files are reported at start, instead of a connection that never succeeds. */
static int check_tls(const struct client *c, struct mfl_error *err)
{
        const struct mfl_tls_files files = tls_files(c);
        struct mfl_tls_context *context;
        char roles[64];
        if (!files.ca)
                return 0;
        int r = mfl_tls_context_new(&files, false, &context, err);
        if (r)
                return r;
        const struct mfl_tls_identity *own = mfl_tls_context_identity(context);
        mfl_log(MFL_LOG_INFO, "TLS: certificate of '%s' (%s), serial %s", own->name,
                mfl_tls_roles_text(own->roles, roles, sizeof roles), own->serial);
        mfl_tls_context_unref(context);
        return 0;
}

static int prepare(struct client *c, struct mfl_error *err)
{
        struct mfl_servers servers;
        int r = mfl_servers_init(&servers, c->config.server, err);
        if (!r)
                r = check_tls(c, err);
        if (!r)
                r = mfl_client_plugins_open(c->config.plugins, &c->plugins, err);
        if (!r)
                r = mfl_client_data_load(&c->data, &c->config, c->plugins, err);
        if (!r)
                r = open_backend(c, err);
        if (!r)
                r = open_node(c, err);
        if (!r)
                r = open_peers(c, err);
        if (!r)
                r = mfl_client_filters_open(&c->config, c->plugins, c->workers, &c->filters, err);
        return r ? r : open_trainer(c, err);
}

/* ---- the loop ---- */

static void stop(struct client *c, const char *why)
{
        if (c->stopping)
                return;
        c->stopping = true;
        mfl_systemd_notify("STOPPING=1");
        mfl_log(MFL_LOG_INFO, "stopping: %s", why);
        mfl_link_stop(c->link);
}

static void leave(struct client *c)
{
        c->leaving = true;
        mfl_client_service_stopping(c->config.stop_ms);
        mfl_systemd_status("%s: finishing its work, and taking no more", c->config.name);
        mfl_log(MFL_LOG_INFO,
                "SIGTERM: taking no more work, and finishing within %llu s; another "
                "SIGTERM ends it now",
                (unsigned long long)c->config.stop_ms / 1000);
        mfl_link_leave(c->link, c->config.stop_ms);
}

static void on_signal(uv_signal_t *handle, int number)
{
        struct client *c = handle->data;
        if (number == SIGTERM && c->config.stop == MFL_CLIENT_STOP_TASK && !c->leaving && !c->stopping) {
                leave(c);
                return;
        }
        if (c->stopping)
                _exit(1);
        stop(c, strsignal(number));
}

static void on_in_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
        static char ignored[256];
        *ret_buf = uv_buf_init(ignored, sizeof(ignored));
}

static void on_in_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        if (n < 0)
                stop(stream->data, "standard input ended");
}

/* A regular file or /dev/null ends at once. */
static int watch_stdin(struct client *c, struct mfl_error *err)
{
        if (!c->config.exit_with_stdin)
                return 0;
        uv_handle_type type = uv_guess_handle(STDIN_FILENO);
        int r;
        if (type == UV_TTY) {
                r = uv_tty_init(&c->loop, &c->in.tty, STDIN_FILENO, 1);
        } else if (type == UV_NAMED_PIPE) {
                r = uv_pipe_init(&c->loop, &c->in.pipe, 0);
                r = r ? r : uv_pipe_open(&c->in.pipe, STDIN_FILENO);
        } else {
                stop(c, "standard input is at its end");
                return 0;
        }
        if (r)
                return mfl_fail(err, r, "watch standard input: %s", uv_strerror(r));
        c->in_open = true;
        c->in.handle.data = c;
        r = uv_read_start(&c->in.stream, on_in_alloc, on_in_read);
        return r ? mfl_fail(err, r, "watch standard input: %s", uv_strerror(r)) : 0;
}

static void on_link_closed(void *user)
{
        struct client *c = user;
        mfl_compute_close(&c->compute, NULL);
        mfl_worker_close(&c->hasher, NULL);
        mfl_gpu_sampler_close(&c->sampler);
        mfl_client_report_close(&c->report);
        mfl_client_service_close(&c->service);
        mfl_control_close(c->control);
        uv_close((uv_handle_t *)&c->sigterm, NULL);
        uv_close((uv_handle_t *)&c->sigint, NULL);
        if (c->in_open)
                uv_close(&c->in.handle, NULL);
}

static void on_exit_wanted(struct mfl_link *link, int status, const char *reason)
{
        struct client *c = mfl_link_user(link);
        c->status = status;
        c->stopping = true; /* from here on, a signal ends it at once */
        mfl_log(status ? MFL_LOG_ERROR : MFL_LOG_INFO, "ended: %s", reason);
        mfl_link_close(link, on_link_closed);
}

static void on_online(struct mfl_link *link, bool online)
{
        struct client *c = mfl_link_user(link);
        mfl_systemd_status(online ? "%s: connected to %s" : "%s: the connection to %s is lost; trying again",
                c->config.name, c->config.server);
        if (!online)
                return;
        mfl_log(MFL_LOG_INFO, "connected to %s as %s", mfl_link_server(link), c->config.name);
        mfl_client_report_online(&c->report);
}

static void on_sample(struct mfl_gpu_sampler *sampler, const struct mfl_telemetry *telemetry)
{
        struct client *c = sampler->user;
        mfl_client_report_gpu(&c->report, telemetry);
}

static void on_trace(struct mfl_link *link, const char *line)
{
        mfl_log(MFL_LOG_DEBUG, "%s", line);
}

/* As the driver knows it; the backend fills in the rest. */
static void describe_gpu(const struct client *c, struct mfl_daemon_info *info)
{
        const struct mfl_device_info *d = &c->pin.info;
        const struct mfl_gpu *gpu = c->pin.known ? &c->pin.gpu : NULL;
        bool own_words = *d->uuid != 0;
        mfl_strcpy(info->device_uuid, sizeof(info->device_uuid), gpu ? gpu->uuid : d->uuid);
        mfl_strcpy(info->device_pci, sizeof(info->device_pci), gpu && *gpu->pci ? gpu->pci : d->pci);
        info->device_memory = gpu && gpu->memory_bytes ? gpu->memory_bytes : own_words ? d->memory_bytes : 0;
}

static int open_sampler(struct client *c, struct mfl_error *err)
{
        if (!c->pin.nvml || !c->pin.known)
                return 0;
        c->sampler.nvml = c->pin.nvml;
        c->sampler.user = c;
        c->sampler.on_sample = on_sample;
        mfl_strcpy(c->sampler.uuid, sizeof(c->sampler.uuid), c->pin.gpu.uuid);
        return mfl_gpu_sampler_start(&c->sampler, &c->loop, err);
}

static int open_link(struct client *c, struct mfl_error *err)
{
        c->site = (struct mfl_link_site){.n_data_sets = c->data.n,
                .data_sets = (const struct mfl_dataset *const *)c->data.sets,
                .fingerprints = c->data.fingerprints,
                .predictions_dir = c->config.predictions_dir,
                .backend = c->pin.ops->name,
                .predict = mfl_site_predict};
        struct mfl_link_options options = {.server = c->config.server,
                .agent = {.results_max = 2},
                .ops = &mfl_compute_trainer,
                .compute = &c->compute,
                .hasher = &c->hasher,
                .budget = &c->budget,
                .share = c->node.share,
                .activity = &c->activity,
                .gate = c->gate,
                .privacy = &c->private.site,
                .site = &c->site,
                .tls = tls_files(c),
                .user = c,
                .on_exit = on_exit_wanted,
                .on_online = on_online,
                .on_trace = on_trace};
        struct mfl_daemon_info *info = &options.agent.info;
        mfl_strcpy(info->name, sizeof(info->name), c->config.name);
        mfl_strcpy(info->node, sizeof(info->node), c->config.node);
        mfl_strcpy(info->site, sizeof(info->site), c->config.site);
        mfl_strcpy(info->tags, sizeof(info->tags), c->config.tags);
        info->alone = c->config.team != 0;
        if (c->peers)
                mfl_strcpy(info->peer, sizeof(info->peer), mfl_peer_port_address(c->peers));
        mfl_strcpy(info->backend, sizeof(info->backend), c->pin.ops->name);
        device_text(c, info->device, sizeof(info->device));
        mfl_client_report_numerics(&c->pin.info, info->numerics, sizeof(info->numerics));
        describe_gpu(c, info);
        mfl_strcpy(info->software, sizeof(info->software), "mfl-client " MFL_VERSION);
        info->workers = c->workers;
        info->n_data_sets = c->data.n;
        info->data_sets = c->data.infos;
        info->instance = c->instance;
        info->has_reach = c->node.has_reach;
        info->reach = c->node.reach;
        int r = random_u64(&options.agent.seed, err);
        if (!r)
                r = mfl_link_open(&c->loop, &options, &c->link, err);
        if (r)
                return r;
        c->report.activity = &c->activity;
        c->report.link = c->link;
        mfl_client_report_open(&c->report, &c->loop);
        return 0;
}

static int open_policy(struct client *c, struct mfl_error *err)
{
        const struct mfl_policy *policy = &c->config.policy;
        if (!policy->set)
                return 0;
        int r = mfl_gate_open(policy, c->config.name, c->config.site, c->config.server, &c->gate, err);
        if (!r) /* from here on no other daemon of this name uses the directory */
                r = mfl_control_open(&c->loop, policy->dir, c->config.name, c->gate, &c->control, err);
        if (!r)
                r = mfl_client_private_open(&c->private, c->config.name, c->gate, err);
        if (!r)
                mfl_log(MFL_LOG_INFO,
                        "policy: this site decides which jobs it takes; audit log %s/%s.audit.jsonl",
                        policy->dir, c->config.name);
        return r;
}

static int open_loop(struct client *c, struct mfl_error *err)
{
        int r = uv_loop_init(&c->loop);
        if (r)
                return mfl_fail(err, r, "event loop: %s", uv_strerror(r));
        r = mfl_compute_open(&c->compute, &c->loop, c->trainer, err);
        if (!r)
                r = mfl_worker_start(&c->hasher, &c->loop, "hash", 64, err);
        if (!r)
                r = open_policy(c, err);
        if (!r)
                r = open_link(c, err);
        if (!r)
                r = open_sampler(c, err);
        if (r)
                return r;
        uv_signal_init(&c->loop, &c->sigterm);
        uv_signal_init(&c->loop, &c->sigint);
        c->sigterm.data = c->sigint.data = c;
        uv_signal_start(&c->sigterm, on_signal, SIGTERM);
        uv_signal_start(&c->sigint, on_signal, SIGINT);
        mfl_client_service_open(&c->service, &c->loop);
        return watch_stdin(c, err);
}

/* Everything that other daemons see of this one. */
static void close_node(struct client *c)
{
        mfl_trainer_free(c->trainer);
        mfl_filters_close(c->filters);
        mfl_client_plugins_close(c->plugins);
        c->filters = NULL;
        c->plugins = NULL;
        c->trainer = NULL;
        mfl_peer_port_close(c->peers);
        c->peers = NULL;
        mfl_client_node_close(&c->node);
}

static void deinit(struct client *c)
{
        close_node(c);
        mfl_activity_deinit(&c->activity);
        mfl_gate_close(c->gate);
        mfl_gpu_pin_close(&c->pin);
        mfl_client_data_deinit(&c->data);
        mfl_client_config_deinit(&c->config);
}

static int fail(int r, const struct mfl_error *err)
{
        mfl_log(MFL_LOG_ERROR, "%s", err->text);
        return r == MFL_CONFIG_USAGE ? 2 : r > 0 ? EXIT_CONFIG : 1;
}

static int run(struct client *c, int argc, char **argv)
{
        struct mfl_error err = {{0}};
        c->service.argc = argc;
        c->service.argv = argv;
        int r = mfl_client_config_init(&c->config, argc, argv, &err);
        mfl_log_init("mfl-client", (enum mfl_log_level)c->config.log_level);
        if (r)
                return r == MFL_SETTINGS_SHOWN ? 0 : fail(r, &err);
        mfl_signals_init();
        if (mfl_supervise_wanted(&c->config)) {
                r = mfl_supervise_run(&c->config, argc, argv, &c->status, &err);
                return r ? fail(r, &err) : c->status;
        }
        r = prepare(c, &err);
        if (r)
                return fail(r, &err);
        log_start(c);
        /* A half-open loop is not closed: the process ends here. */
        r = open_loop(c, &err);
        if (r) {
                mfl_client_node_close(&c->node);
                _exit(fail(r, &err));
        }
        char text[384];
        snprintf(text, sizeof(text), "%s: up, trying to reach %.250s", c->config.name, c->config.server);
        mfl_client_service_ready(text);
        uv_run(&c->loop, UV_RUN_DEFAULT);
        close_node(c);
        /* NVML still works on another thread, or hangs. */
        if (c->sampler.busy)
                _exit(c->status);
        uv_loop_close(&c->loop);
        return c->status;
}

int main(int argc, char **argv)
{
        int ran = mfl_program_child(argc, argv);
        if (ran >= 0)
                return ran;
        if (!mfl_fs_open_standard())
                return 1;
        /* Before a module loads libgomp: its threads must not spin, and the job says how many threads a
         * network uses. */
        setenv("OMP_WAIT_POLICY", "passive", 0);
        setenv("OMP_NUM_THREADS", "1", 0);
        int told = mfl_client_tell(argc, argv);
        if (told >= 0)
                return told;
        static struct client c;
        int status = run(&c, argc, argv);
        deinit(&c);
        return status;
}
