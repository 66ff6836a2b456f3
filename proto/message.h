/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon plane's messages as plain C data: the inputs and outputs of the pure cores (server/core, client/agent).
 * mfl.proto documents each field; proto/wire.h converts. They never contain bulk payload.
 *
 * Ownership: a message owns its arrays; mfl_msg_deinit frees them; mfl_msg_copy is deep. A zeroed message is
 * valid. Reasons are cut to fit.
 */
#ifndef MFL_PROTO_MESSAGE_H
#define MFL_PROTO_MESSAGE_H

#include "common/base/base.h"
#include "common/base/fixed.h"
#include "common/model/graph.h"
#include "common/secure/packet.h"

#define MFL_JOB_ID_BYTES 24
#define MFL_REASON_BYTES 256
/* Limits of rules about who may take part (Access). */
#define MFL_ACCESS_RULES_MAX 1000
#define MFL_ACCESS_PATTERN_BYTES 80 /* "sha256:" and 64 digits is the longest */
#define MFL_ACCESS_REASON_BYTES 201
#define MFL_NODE_BYTES (2 * MFL_NAME_BYTES) /* a node's name: an id, "/", a daemon's name */
#define MFL_DIGEST_BYTES 32
#define MFL_ITEMS_MAX 65536
#define MFL_LOSSES_MAX 32768    /* items whose losses an Announce tells */
#define MFL_TALLY_MAX (1 << 20) /* numbers of one evaluation result */
#define MFL_DATA_SETS_MAX 64
#define MFL_RANGES_MAX 1024
/* Of a Partition. */
#define MFL_PARTITION_SHOWN_MAX 256
#define MFL_PARTITION_CLASSES_MAX 64
#define MFL_PARTITION_BYTES_MAX (64 * 1024)
#define MFL_PARTITION_COUNTS_MAX 16384 /* of one message */
#define MFL_CREW_MAX 100               /* members of a Crew */
#define MFL_BACKEND_BYTES 16
#define MFL_DEVICE_BYTES 96
#define MFL_DEVICE_UUID_BYTES 64
#define MFL_NUMERICS_BYTES 128
#define MFL_DEVICE_PCI_BYTES 32
#define MFL_GROUP_MAX 64       /* members */
#define MFL_TEAM_RANKS_MAX 64u /* of all members together */
#define MFL_COMMUNICATOR_ID_BYTES 128
#define MFL_PEER_BYTES 128 /* "host:port" of a daemon that others reach */
#define MFL_PEER_NONCE_BYTES 16
#define MFL_MOVE_FILES_MAX 4096       /* of a job that moves */
#define MFL_MOVE_DATA_MAX (512 << 10) /* bytes of a piece of a file in a message */
#define MFL_BELOW_MAX 64              /* relays that a relay says are below it */
#define MFL_RELAY_BYTES 256           /* the names of the relays on the way to a daemon */
#define MFL_TEAM_KEY_BYTES 32
/* What has happened to a team's member: as enum mfl_mesh_loss (kernels/mesh/mesh.h). */
#define MFL_TEAM_GONE 0u
#define MFL_TEAM_LATE 1u
#define MFL_TEAM_UNREACHED 2u
#define MFL_TEAM_ISOLATED 3u
#define MFL_TEAM_LOSS_MAX MFL_TEAM_ISOLATED

struct mfl_data_info {
        char name[MFL_NAME_BYTES];
        struct mfl_shape shape;
        uint32_t classes, train_samples, test_samples;
        uint64_t fingerprint; /* of its content */
        uint64_t meaning;     /* of its labels and tokens; 0: unknown */
};

/* How other daemons of its host can reach a daemon. */
struct mfl_reach {
        uint32_t user, nccl;
        uint64_t network_space, memory_space;
        char memory_reason[MFL_REASON_BYTES], nccl_reason[MFL_REASON_BYTES];
};

/* A daemon as its Hello describes it. */
struct mfl_daemon_info {
        char name[MFL_NAME_BYTES];
        char node[MFL_NAME_BYTES];
        char backend[MFL_BACKEND_BYTES];
        char device[MFL_DEVICE_BYTES];
        char software[MFL_NAME_BYTES];
        char site[MFL_NAME_BYTES];         /* "": it is one by itself */
        char relay[MFL_RELAY_BYTES];       /* "eu/paris": relays on the way to it; "": none */
        char tags[MFL_TAGS_BYTES];         /* "gpu=h100,region=eu", or "" */
        bool alone;                        /* it never trains a client together with others */
        bool stays;                        /* it knows no server that it was sent to */
        bool leaving;                      /* it is about to end, and takes no new work */
        char peer[MFL_PEER_BYTES];         /* where daemons of other nodes reach it; "": they don't */
        char numerics[MFL_NUMERICS_BYTES]; /* what decides the last bit of its results; empty: unknown */
        uint64_t instance;
        uint32_t workers;
        uint32_t protocol;                       /* the protocol version used with it */
        char device_uuid[MFL_DEVICE_UUID_BYTES]; /* empty: no GPU */
        char device_pci[MFL_DEVICE_PCI_BYTES];
        uint64_t device_memory;
        bool has_reach;
        struct mfl_reach reach;
        uint32_t n_data_sets;
        struct mfl_data_info *data_sets;
};

/* The state of a GPU, and the activity of a daemon's workers. A value is valid if its bit is in `known`; the others
 * are 0.
 */
enum {
        MFL_TELEMETRY_GPU = 1u << 0,
        MFL_TELEMETRY_MEMORY_USED = 1u << 1,
        MFL_TELEMETRY_MEMORY_TOTAL = 1u << 2,
        MFL_TELEMETRY_TEMPERATURE = 1u << 3,
        MFL_TELEMETRY_POWER = 1u << 4,
        MFL_TELEMETRY_ACTIVITY = 1u << 5,
};
#define MFL_TELEMETRY_OF_GPU (MFL_TELEMETRY_ACTIVITY - 1u)

/* How a worker spends its time (mfl.proto, Activity): in one state at each moment. */
enum mfl_activity_state {
        MFL_ACTIVITY_COMPUTE,
        MFL_ACTIVITY_DATA,
        MFL_ACTIVITY_NETWORK,
        MFL_ACTIVITY_WAIT,
        MFL_ACTIVITY_STATES
};
#define MFL_ACTIVITY_SECONDS 10u /* the period of the shares and of samples_per_second */
const char *mfl_activity_state_name(enum mfl_activity_state state); /* "compute", ... */
struct mfl_activity_figures {
        uint64_t workers;
        uint64_t total_us[MFL_ACTIVITY_STATES], samples; /* since the start */
        double samples_per_second, share[MFL_ACTIVITY_STATES];
};

struct mfl_telemetry {
        uint32_t known;
        uint32_t gpu_percent, temperature_c, power_mw;
        uint64_t memory_used, memory_total; /* bytes */
        struct mfl_activity_figures activity;
};

enum mfl_task_kind {
        MFL_TASK_TRAIN = 1,
        MFL_TASK_EVAL = 2,
        MFL_TASK_ASSIST = 3,
};
enum mfl_encoding {
        MFL_ENCODING_I64 = 1,
        MFL_ENCODING_F32 = 2,
};
enum mfl_refused {
        MFL_REFUSED_LATE = 1,
        MFL_REFUSED_DUPLICATE = 2,
        MFL_REFUSED_INVALID = 3,
        MFL_REFUSED_UNKNOWN = 4,
};

enum mfl_collective_kind {
        MFL_COLLECTIVE_SOLO = 1,
        MFL_COLLECTIVE_SHM = 2,
        MFL_COLLECTIVE_NCCL = 3,
        MFL_COLLECTIVE_RELAY = 4,
};

/* The daemons of one node that train the same round together. */
struct mfl_group {
        uint64_t group; /* 0: none */
        enum mfl_collective_kind collective;
        uint32_t rank; /* the receiver's */
        uint32_t n_members;
        uint64_t members[MFL_GROUP_MAX]; /* instances, by rank */
        uint32_t workers;                /* of all of them together */
        uint64_t communicator;           /* nccl */
};

/* Daemons that train a client together. */
struct mfl_task_team {
        uint64_t team;   /* 0: none */
        uint32_t member; /* the receiver; 0 leads */
        uint32_t n_members;
        uint64_t members[MFL_GROUP_MAX]; /* instances */
        uint32_t widths[MFL_GROUP_MAX];  /* ranks of each */
        uint8_t key[MFL_TEAM_KEY_BYTES]; /* with peers */
        /* n_members addresses; owned by the message. NULL: the members meet in shared memory. */
        char (*peers)[MFL_PEER_BYTES];
};

/* What a site says of a job. */
enum mfl_site_word {
        MFL_SITE_NOTHING,
        MFL_SITE_REFUSES,
        MFL_SITE_ASKS, /* its administrator */
        MFL_SITE_TAKES,
};

#define MFL_TASK_METHOD_MAX 4
#define MFL_GRID_MAX 65536 /* tensors */
#define MFL_TASK_STALENESS_MAX 100
#define MFL_ANNOUNCE_SCALARS_MAX 4

struct mfl_task {
        uint64_t task;
        char job[MFL_JOB_ID_BYTES];
        uint32_t round;
        enum mfl_task_kind kind;
        uint32_t n_items;
        uint64_t *items;
        uint8_t params_digest[MFL_DIGEST_BYTES];
        uint64_t n_params;
        uint64_t n_frozen; /* of them, which come first */
        uint8_t frozen_digest[MFL_DIGEST_BYTES];
        struct mfl_fixed fixed;
        uint32_t arithmetic; /* 0: of a server before version 5 */
        bool single_updates;
        bool sum;    /* int64, of a single client, too */
        bool stands; /* tasks of later rounds don't take its place */
        uint64_t fingerprint;
        uint64_t
                params_from; /* instance of the daemon that fetches the params for the node; 0: the receiver, for
                                 itself */
        struct mfl_group group;
        struct mfl_task_team team;
        uint32_t n_method; /* what the job's strategy keeps from round to round */
        double method[MFL_TASK_METHOD_MAX];
        uint32_t participants; /* clients of the round; 0: not told */
        uint32_t staleness;    /* versions made since that of params_digest */
        uint32_t n_grid;       /* tensors that move, or 0 */
        int32_t *grid;  /* exponents of their steps (common/codec/grid.h); the sender's shell adds them */
        bool has_state; /* what the site keeps of its client; the sender's shell adds it, too */
        uint8_t state_digest[MFL_DIGEST_BYTES];
};

/* What a site keeps of its client (client_state: daemon). */
struct mfl_site_state {
        bool there; /* it has one */
        bool anew;  /* an Announce: the one that the Task names was not there */
        uint8_t digest[MFL_DIGEST_BYTES];
};

struct mfl_rejected {
        uint64_t item;
        char reason[MFL_REASON_BYTES];
};

/* Where the time of a team's steps went. */
struct mfl_task_times {
        uint64_t compute_us, exchange_us, apply_us;
        uint32_t repeats, kept;
};

/* What is counted of a job's teams, as in JobTeams. */
struct mfl_team_totals {
        uint32_t formed, broken, taken;
        uint32_t late, unreached; /* of those that are broken */
        struct mfl_task_times times;
        char last[MFL_REASON_BYTES]; /* why the last one that ended badly did */
};

struct mfl_announce {
        uint64_t task;
        uint32_t update, item_first, item_count;
        uint32_t n_rejected;
        struct mfl_rejected *rejected;
        enum mfl_encoding encoding;
        uint64_t bytes, weight, samples, correct, train_us;
        int64_t loss_sum;
        char job[MFL_JOB_ID_BYTES];
        uint32_t round;
        uint64_t group; /* its sum waits for the others of the node; 0: uploaded alone */
        bool has_team;
        struct mfl_task_times team;
        uint32_t n_scalars; /* sums that the job's strategy adds beside the deltas */
        int64_t scalars[MFL_ANNOUNCE_SCALARS_MAX];
        uint64_t clamped;  /* elements beyond the grid */
        uint32_t n_losses; /* 0, or item_count */
        struct mfl_client_loss *losses;
        bool masked; /* a secure sum: its figures are 0 here */
        struct mfl_site_state state;
};

struct mfl_range {
        uint64_t offset, bytes;
};

struct mfl_eval_item {
        uint64_t item, samples, correct;
        int64_t loss_sum;
};

enum mfl_msg_kind {
        MFL_MSG_NONE,
        MFL_MSG_HELLO,           /* D->S hello */
        MFL_MSG_WELCOME,         /* S->D welcome */
        MFL_MSG_BYE,             /* both bye */
        MFL_MSG_PING,            /* both cookie */
        MFL_MSG_PONG,            /* both cookie */
        MFL_MSG_JOB_SPEC,        /* S->D job; the shell adds the text */
        MFL_MSG_TASK,            /* S->D task */
        MFL_MSG_CANCEL,          /* S->D cancel */
        MFL_MSG_PARAMS_GET,      /* D->S params */
        MFL_MSG_PARAMS_GONE,     /* S->D params */
        MFL_MSG_ANNOUNCE,        /* D->S announce */
        MFL_MSG_GRANT,           /* S->D update, ranges */
        MFL_MSG_ACCEPTED,        /* S->D update */
        MFL_MSG_REFUSED,         /* S->D update, code, reason */
        MFL_MSG_EVAL_RESULT,     /* D->S eval */
        MFL_MSG_TASK_FAILED,     /* D->S failed */
        MFL_MSG_PROGRESS,        /* D->S progress */
        MFL_MSG_TELEMETRY,       /* D->S telemetry */
        MFL_MSG_COMBINE,         /* S->D combine */
        MFL_MSG_COMBINE_FAILED,  /* D->S cancel: task is the group's number */
        MFL_MSG_ALONE,           /* S->D cancel: the task goes on, without its node */
        MFL_MSG_COMMUNICATOR_ID, /* both communicator */
        MFL_MSG_LEAVING,         /* D->S cancel: reason only */
        MFL_MSG_RECALL,          /* S->D recall: how many items to keep */
        MFL_MSG_RETURNED,        /* D->S recall: how many were kept */
        MFL_MSG_SECURE,          /* both secure: a step of a secure sum */
        MFL_MSG_COUNT_
};
const char *mfl_msg_name(enum mfl_msg_kind kind);

struct mfl_msg {
        enum mfl_msg_kind kind;
        union {
                struct mfl_daemon_info hello;
                struct {
                        uint32_t heartbeat_ms, dead_ms;
                        uint64_t server_instance;
                        uint32_t protocol; /* filled in by the sender: a core does not know it */
                        char software[MFL_NAME_BYTES];
                } welcome;
                struct {
                        char reason[MFL_REASON_BYTES];
                        bool retry;
                } bye;
                uint64_t cookie;
                char job[MFL_JOB_ID_BYTES];
                struct mfl_task task;
                struct {
                        uint64_t task;
                        char reason[MFL_REASON_BYTES];
                } cancel;
                struct {
                        char job[MFL_JOB_ID_BYTES];
                        uint8_t digest[MFL_DIGEST_BYTES];
                        uint64_t offset;
                        bool has_base; /* PARAMS_GET: this version is there */
                        uint8_t base[MFL_DIGEST_BYTES];
                } params;
                struct mfl_announce announce;
                struct {
                        uint64_t task;
                        uint32_t update;
                        enum mfl_refused code;         /* refused */
                        char reason[MFL_REASON_BYTES]; /* refused */
                        uint32_t n_ranges;             /* grant */
                        struct mfl_range *ranges;
                } update;
                struct {
                        uint64_t task;
                        uint32_t n_items;
                        struct mfl_eval_item *items;
                        uint32_t n_tally; /* n_items times mfl_tally_size, or 0 */
                        uint64_t *tally;
                } eval;
                struct {
                        uint64_t task;
                        char reason[MFL_REASON_BYTES];
                        bool permanent;
                        bool broken;
                        uint32_t accused;
                        enum mfl_site_word site;
                        char job[MFL_JOB_ID_BYTES]; /* site */
                        uint32_t loss;              /* of the accused: MFL_TEAM_GONE, .. */
                } failed;
                struct {
                        uint64_t task;
                        uint32_t items_done;
                        uint64_t samples_done;
                        int64_t loss_sum;
                } progress;
                struct {
                        uint64_t task;
                        uint32_t n_items; /* the task's first `count` items */
                } recall;
                struct mfl_telemetry telemetry;
                struct {
                        uint64_t group, ranks;
                        uint32_t leader, deadline_ms;
                } combine;
                struct mfl_secure_msg secure;
                struct {
                        uint64_t communicator;
                        bool made; /* false: reason */
                        uint8_t id[MFL_COMMUNICATOR_ID_BYTES];
                        char reason[MFL_REASON_BYTES];
                } communicator;
        };
};

void mfl_msg_deinit(struct mfl_msg *msg);
int mfl_msg_copy(const struct mfl_msg *msg, struct mfl_msg *ret_copy); /* -ENOMEM */
/* One English line for traces: "task 12: train round 3 of j-000001, 5 items"; returns buf. */
const char *mfl_msg_text(const struct mfl_msg *msg, char *buf, size_t buf_bytes);

#endif
