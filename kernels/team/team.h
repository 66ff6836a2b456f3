/* SPDX-License-Identifier: Apache-2.0 */
/* A team: workers that train one client together, step by step (data parallel over grains).
 *
 * A step's rows are cut into grains of `grain` rows, in their order. Each rank takes some of them; gradients are added as
 * integers (kernels/grad.h), each rank takes the optimizer's step for a range of the params, and all get all params. So
 * the params after a step are a function of the rows, the grain and the arithmetic of one network: not of the number of
 * ranks, who took which grain, or how the mesh carries it. One rank alone gives the same bits.
 *
 * One step of rank r of W, with n params: its grains; the sum of all gradients; the largest elements (one number for each
 * tensor) and, of batch norm, what its grains saw go to all; the optimizer's step; all params go to all.
 *
 * Buckets: the gradient is cut into buckets, from its end on, as backward gives it: each begins where a tensor does, but
 * for the rest of a block, and each rank owns a slice of whole blocks of every bucket. With `overlap` a bucket's
 * sum is taken on a thread of the rank's own behind the backward of its last grain, in the buckets' order at all
 * ranks. A step whose scales did not fit sends the gradient twice; so the first step of a training, which rarely fits,
 * does without.
 *
 * Where a rank adds no grain to another before it sends them (always in the stages 2 and 3, and in stage 1 where a step has no more
 * grains than there are ranks), grains travel as floats, and their owners round and add them: the same integers for half the bytes.
 * In stage 1 the rank's grain then stays until the step's end, and scales that did not fit cost only that it is sent again.
 *
 * Large dense layers: with sums of integers, ranks exchange what such a layer got and the gradient of what it gave, which is little
 * beside the gradient of its weights. Each rank then computes the total of that gradient for the weights that it owns, grain by grain as
 * ever, so the bits are the same; nobody sends or adds the rest. (In stage 0 totals go to all, as floats.) Bytes in the table below
 * are those of other tensors; of these a rank takes 4 (W - 1) / W per param, the params or totals, and in stage 3 none.
 *
 * What a rank holds, by stage (Rajbhandari et al. 2020, "ZeRO": there it is P_os and P_os+g; here with integers), in bytes
 * per param, with AdamW in float; and what it takes from other ranks in a step, with g grains per rank:
 *
 *   zero  params  sums  optimizer  total     bytes taken per param
 *   0     4       8     8          20        16 (W - 1) / W                   all-reduce; each rank takes the whole step
 *   1     4       8     8 / W      12 + 8/W  12 (W - 1) / W                   reduce-scatter, own step, all-gather
 *   ...g=1 4      4+8/W 8 / W      8 + 16/W  8 (W - 1) / W                    the same with floats
 *   2     4       8 / W 8 / W      4 + 16/W  (4 g + 4) (W - 1) / W            the same with floats for each grain
 *   3     4 / V   8 / W 8 / W      20/W      4 g (W - 1) / W                  the same; V = W ranks of a host have one memory
 *
 * Stage 3 is stage 2 with networks whose params are lent (kernels/grad.h), from memory that the ranks of a host have together
 * (kernels/mesh/mesh_memory.h): each writes the params that it owns. Where ranks are on several hosts, the params travel as in stage
 * 2, and the first rank of each memory writes what comes from elsewhere; V is the number of ranks on the host.
 * The optimizer column is 0 for SGD, 4 for SGD with momentum and Adagrad; a proximal term has 4 for the params at the start.
 * Sums of floats take 4 in place of 8. On top come activations, the gradient of one layer as floats (4), and for stages 2 and 3 the
 * buckets that are open at once: usually two, of the bucket size or of one layer, whichever is more. (Until ABI 12 a rank had
 * 28: params and their start 8, optimizer 8, gradient as floats 4, sums 8; and 4 for places of params, 8 for updates.)
 * With `shared` the params of all ranks are one memory, and so is the optimizer's state: stage 0 is then stage 1.
 * The stage changes no bit of the result.
 *
 * Scales: a tensor's elements have the bits that follow from the largest element of any grain in the step before (2^-10
 * in the first), with 2^8 of headroom. Where an element is beyond that, or all of a tensor are below 2^-20 of it, the
 * step's gradient is computed again with the bits that fit. Params have not moved and counters of random numbers are the
 * same, so that is a pure repeat, and the second time always fits. With N grains in a step, 62 - 8 - log2 N bits stay for
 * elements near the largest; a float has 24.
 *
 * On the device (`resident`): the same steps and bits. The largest elements go to all over the host's mesh first, so a gradient is added
 * between devices once, with scales that fit. A rank that is lost there is found by the host's mesh.
 * Where it finds none, bulk->unreached says that the devices did not reach each other.
 *
 * fp16: the loss scale (kernels/backend.h) is the team's. Where any rank's grain overflows, all leave the step out. Sums of floats
 * know no largest element, so there fp16 is refused.
 *
 * Threads: each rank has a thread of its own; all call with the same arguments. Errors: as in backend.h, and
 * MFL_MESH_BROKEN. After an error of one rank, the caller aborts the mesh. */
#ifndef MFL_KERNELS_TEAM_TEAM_H
#define MFL_KERNELS_TEAM_TEAM_H

#include <stdatomic.h>

#include "common/parallel/plan.h"
#include "kernels/backend.h"
#include "kernels/mesh/mesh.h"

/* Which tensors' gradients ranks compute from operands: where it is less to send and to add, or for tests. */
enum mfl_team_products { MFL_TEAM_PRODUCTS_AUTO, MFL_TEAM_PRODUCTS_ALL, MFL_TEAM_PRODUCTS_NONE };

struct mfl_team_options {
        /* Params, sums and the optimizer's state lie on the device, where the network resides (kernels/grad.h). In the stages 0 and 1, with
         * integers, params of its own and no snapshots. bulk: what carries them between ranks, the caller's, as long as the team; NULL
         * where it is one rank. */
        bool resident;
        struct mfl_mesh *bulk;
        uint32_t grain;     /* rows; the batch of the rank's network */
        uint32_t step_rows; /* of the largest step */
        bool shared;        /* all ranks' params are the same memory, whose first rank is 0 */
        /* Only some are: `together` at all ranks, `follows` where an earlier rank has the same memory. Not with floats. */
        bool together, follows;
        uint32_t zero; /* stage: 0 to MFL_TEAM_ZERO_MAX */
        bool floats;   /* sums of floats, in the ranks' order: their bits depend on the number of ranks */
        enum mfl_moments moments; /* as for a network that has them */
        bool start;               /* the optimizer has a proximal term */
        bool overlap;             /* traffic behind backward */
        enum mfl_team_products products;
        uint64_t bucket_bytes; /* 0: MFL_TEAM_BUCKET; the first is a quarter of it */
        uint32_t deadline_ms;  /* of waiting for other ranks, once */
        uint32_t snapshot; /* steps between copies of sharded state, see below; 0: none. Not with floats. */
        uint32_t keeps;    /* for mfl_team_bytes: the most ranks that have one keeper */
        uint8_t keeper
                [MFL_MESH_RANKS_MAX]; /* with `snapshot`: who keeps a copy of each rank's shard; not the rank itself */
};

#define MFL_TEAM_BUCKET ((uint64_t)4 << 20)
#define MFL_TEAM_ZERO_MAX 3u

/* For people: where the time of the steps went, in nanoseconds. */
struct mfl_team_times {
        uint64_t compute, exchange, apply; /* exchange: that nothing else was done behind */
        uint64_t hidden;                   /* of the traffic's thread, its waiting for buckets not included */
        uint32_t repeats;                  /* steps whose gradient was computed again */
};

struct mfl_team;

/* net: of a worker, with batch = grain, and with params. Net and mesh belong to the caller, and live longer. MFL_INVALID where
 * the backend has no such gradients. */
int mfl_team_new(const struct mfl_backend_ops *ops, struct mfl_net *net, const struct mfl_loss *loss,
        struct mfl_mesh *mesh, const struct mfl_team_options *options, struct mfl_team **ret_team,
        struct mfl_error *err);
void mfl_team_free(struct mfl_team *team); /* NULL is fine */
/* What the team of one of n_ranks takes beside such a network, at most, but for params; for stages 2 and 3 with the buckets that are usually open. */
uint64_t mfl_team_bytes(const struct mfl_backend_ops *ops, const struct mfl_graph *graph,
        const struct mfl_net_options *net, const struct mfl_team_options *options, uint32_t n_ranks);
/* What vectors take on the device instead, where the team is resident. */
uint64_t mfl_team_device_bytes(const struct mfl_backend_ops *ops, const struct mfl_graph *graph,
        const struct mfl_net_options *net, const struct mfl_team_options *options, uint32_t n_ranks);
/* What these sizes follow from. */
void mfl_team_shape(const struct mfl_backend_ops *ops, const struct mfl_graph *graph,
        const struct mfl_net_options *net, const struct mfl_team_options *options,
        struct mfl_parallel_shape *ret_shape);

/* Begins a local training: scales start anew. Params are those of the network, at every rank. */
void mfl_team_begin(struct mfl_team *team);
/* n_steps optimizer steps of the group, as backend's `step` with rows of at most step_rows. The score counts all rows, at
 * every rank. cancel (NULL: nobody) breaks the mesh. */
int mfl_team_step(struct mfl_team *team, const struct mfl_dataset *dataset, const struct mfl_split *split,
        const struct mfl_device_data *data, struct mfl_group_steps *steps, uint32_t n_steps,
        const struct mfl_optimizer *opt, const atomic_bool *cancel, struct mfl_error *err);
/* ---- a training that goes on in another team: team_state.c ----
 *
 * A mesh breaks as a whole when one of its ranks is lost, stopped or late, at whatever operation. In stage 0 each rank then
 * still has all of the training as it was after whole steps: ranks exchange nothing between the first change of a step and
 * its last, and the step's score before the first. Ranks may differ by one step, since one may have the last operation's
 * result while another has not. The ranks that are left form another team, with whoever comes; whoever has come farthest
 * gives its state to all, and the step under way is taken again from its beginning, with the same bits.
 *
 * In later stages a rank has the optimizer's state of its own params only, and a lost rank's is lost: the training begins anew. With
 * `snapshot` N ranks copy their shards (params and optimizer's state) after each N-th step, and each also gets the shard of another
 * process's rank. If one process is lost, or two that don't keep each other's shards, the others have all of the last snapshot that was
 * whole, and the next team goes on from there: at most N steps are taken again, and a step that was under way. A snapshot replaces
 * the one before when all ranks have it. So a rank holds, with Adam in float, 2 (1 + 1) 12 / W bytes per param more, and sends
 * 12 / W every N steps. A team that goes on takes a snapshot before its first step.
 *
 * Who is who: a broken mesh is never used again. The next team has another (team, epoch), which is in the name of each
 * segment in shared memory and in each message over the network, and each operation has its (step, sequence). So a rank
 * that was stopped and wakes writes where nobody reads any more, or is refused; it finds its own mesh broken, and ends. */

struct mfl_team_state;

/* The whole steps of this training that this rank alone could continue from; 0: none, or its state is not all here. *ret_score:
 * of these, at every rank. */
uint32_t mfl_team_done(const struct mfl_team *team, struct mfl_score *ret_score);
/* What a state takes. */
uint64_t mfl_team_state_bytes(const struct mfl_team *team);
/* A copy of it, where mfl_team_done is not 0. note: a number of the caller's that goes with it. */
int mfl_team_state_new(
        const struct mfl_team *team, int64_t note, struct mfl_team_state **ret_state, struct mfl_error *err);
void mfl_team_state_free(struct mfl_team_state *state); /* NULL is fine */
/* The rank's snapshots are from now on in the state (*state NULL: in a new one), as far as it does not have the same ones. -ENOMEM.
 * Here and in the next two a team of NULL has none. */
int mfl_team_snapshots_take(struct mfl_team *team, struct mfl_team_state **state, struct mfl_error *err);
uint64_t mfl_team_snapshots_bytes(const struct mfl_team *team); /* of them; 0: there is none */
bool mfl_team_snapshots_whole(const struct mfl_team *team);     /* one was taken by all ranks */
/* note: of the next snapshots. */
void mfl_team_set_note(struct mfl_team *team, int64_t note);
/* The farthest step with which the training may go on; 0 of NULL. */
uint32_t mfl_team_state_step(const struct mfl_team_state *state);
/* After mfl_team_begin, by all ranks of a team of any stage and number, each with a state of the same training (of a network of
 * the same graph and options; with snapshots: also the same bucket_bytes) or NULL. *ret_step: the step with which the training goes on, at all ranks; 0: it begins. If not 0,
 * *ret_score and *ret_note are those of the state. Errors as of mfl_team_step; MFL_MESH_BROKEN leaves the states as they are. */
int mfl_team_resume(struct mfl_team *team, const struct mfl_team_state *state, const atomic_bool *cancel,
        uint32_t *ret_step, struct mfl_score *ret_score, int64_t *ret_note, struct mfl_error *err);

/* From now on; also between steps. */
void mfl_team_set_deadline(struct mfl_team *team, uint32_t deadline_ms);
const struct mfl_team_times *mfl_team_times(const struct mfl_team *team);

/* ---- scales: team_scale.c ---- */

#define MFL_TEAM_HEADROOM 8
#define MFL_TEAM_FALL 20
#define MFL_TEAM_FIRST (-10) /* the exponent before the first step */

/* The smallest e with largest <= 2^e; largest > 0 and finite. */
int mfl_team_exponent(float largest);
/* Whether elements of at most that size can be added with the scale of exponent e, and keep their precision. Zero and
 * what is not finite always can. */
bool mfl_team_fits(int exponent, float largest);
/* The bits of a sum of n_grains such elements: it stays within 2^62. */
int mfl_team_bits(int exponent, uint32_t n_grains);

#endif
