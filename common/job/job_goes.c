/* SPDX-License-Identifier: Apache-2.0 */
/* The table of combinations, and its readers. */
#include "common/job/job_goes.h"

#include "common/job/job_training.h"

struct rule {
        struct mfl_job_goes shown;
        unsigned strategies;                      /* which have it: bits of enum mfl_strategy_kind */
        bool (*meets)(const struct mfl_job *job); /* the rest */
        const char *section, *key; /* where it is written, if it must be; section "": at the top */
};

#define ANY (~0u)
#define ONLY(symbol) MFL_JOB_BIT(MFL_STRATEGY_##symbol)
#define STATEFUL (ONLY(SCAFFOLD) | ONLY(FEDDYN))
#define ASYNC (ONLY(FEDBUFF) | ONLY(FEDASYNC))
#define MODELS (ONLY(DITTO) | ONLY(PFEDME))
#define AVERAGES                                                                                             \
        (ONLY(FEDAVG) | ONLY(FEDAVGM) | ONLY(FEDADAGRAD) | ONLY(FEDADAM) | ONLY(FEDYOGI) | ONLY(FEDPROX))

static bool adapts(const struct mfl_job *job)
{
        return job->training.optimizer != SGD;
}

static bool always(const struct mfl_job *job)
{
        return true;
}

static bool has_momentum(const struct mfl_job *job)
{
        return job->training.momentum != 0;
}

static bool clips(const struct mfl_job *job)
{
        return job->training.clip_norm != 0;
}

static bool skips_steps(const struct mfl_job *job)
{
        return job->training.precision == FP16;
}

static bool decays_apart(const struct mfl_job *job)
{
        return job->training.optimizer == ADAMW;
}

static bool first_option(const struct mfl_job *job)
{
        return job->aggregation.option == MFL_SCAFFOLD_I;
}

static bool kept_by_daemons(const struct mfl_job *job)
{
        return job->client_state == MFL_CLIENT_STATE_DAEMON;
}

static bool shards_floats(const struct mfl_job *job)
{
        return !job->parallel.exact && job->parallel.zero > MFL_ZERO_AUTO_FLOATS;
}

static bool least_within_daemon(const struct mfl_job *job)
{
        return job->parallel.members_min > 1 && job->parallel.within == MFL_WITHIN_DAEMON;
}

static bool least_by_modulo(const struct mfl_job *job)
{
        return job->parallel.members_min > 1 && job->selection.assign == MFL_ASSIGN_MODULO;
}

static bool stateless(const struct mfl_job *job)
{
        return !mfl_job_keeps_state(job);
}

static bool fixed_mu(const struct mfl_job *job)
{
        return !job->aggregation.mu_adaptive;
}

static bool is_personal(const struct mfl_job *job)
{
        return job->personal.layers.n;
}

static bool personal_adaptive(const struct mfl_job *job)
{
        return is_personal(job) && job->aggregation.mu_adaptive;
}

static bool is_local(const struct mfl_job *job)
{
        return job->data.partition == MFL_PARTITION_LOCAL;
}

static bool local_separated(const struct mfl_job *job)
{
        return is_local(job) && job->selection.kind == MFL_SELECT_SEPARATED;
}

static bool local_by_choice(const struct mfl_job *job)
{
        return is_local(job) && job->selection.kind == MFL_SELECT_POWER_OF_CHOICE;
}

static bool local_oort(const struct mfl_job *job)
{
        return is_local(job) && job->selection.kind == MFL_SELECT_OORT;
}

static bool local_virtual(const struct mfl_job *job)
{
        return is_local(job) && job->time == MFL_TIME_VIRTUAL;
}

static bool real(const struct mfl_job *job)
{
        return job->time == MFL_TIME_REAL;
}

static bool real_oort(const struct mfl_job *job)
{
        return real(job) && job->selection.kind == MFL_SELECT_OORT;
}

static bool compresses(const struct mfl_job *job)
{
        return job->compression.up;
}

static bool not_uniform(const struct mfl_job *job)
{
        return job->selection.kind != MFL_SELECT_UNIFORM;
}

static bool compresses_rows(const struct mfl_job *job)
{
        return compresses(job) && mfl_job_has_rows(job);
}

static bool personal_compresses(const struct mfl_job *job)
{
        return is_personal(job) && compresses(job);
}

static bool personal_by_daemons(const struct mfl_job *job)
{
        return is_personal(job) && kept_by_daemons(job);
}

static bool attacks_rows(const struct mfl_job *job)
{
        return mfl_attack_is_on_updates(&job->simulation);
}

static bool personal_attacks(const struct mfl_job *job)
{
        return is_personal(job) && attacks_rows(job);
}

static bool personal_on_test(const struct mfl_job *job)
{
        return is_personal(job) && job->evaluation.every && job->evaluation.on != MFL_EVALUATE_CLIENTS;
}

static bool unheld(const struct mfl_job *job)
{
        return job->aggregation.lambda == 0;
}

static bool by_loss(const struct mfl_job *job)
{
        return job->selection.kind >= MFL_SELECT_POWER_OF_CHOICE;
}

static bool cuda_phases(const struct mfl_job *job)
{
        return !strcmp(job->training.backend, "cuda");
}

static bool clips_at_median(const struct mfl_job *job)
{
        return job->aggregation.robust.has_update_clip && job->aggregation.robust.update_clip == 0;
}

static bool personal_clips(const struct mfl_job *job)
{
        return is_personal(job) && job->aggregation.robust.has_update_clip;
}

static bool history_by_daemons(const struct mfl_job *job)
{
        return mfl_job_keeps_history(job) && kept_by_daemons(job);
}

static bool backdoor_on_clients(const struct mfl_job *job)
{
        return job->simulation.attack == MFL_ATTACK_BACKDOOR && job->evaluation.on == MFL_EVALUATE_CLIENTS;
}

static bool backdoor_detailed(const struct mfl_job *job)
{
        return job->simulation.attack == MFL_ATTACK_BACKDOOR && job->evaluation.detailed;
}

static bool rounds(const struct mfl_job *job)
{
        return job->compression.bits > 0;
}

static bool is_private(const struct mfl_job *job)
{
        return job->privacy.kind;
}

static bool private_adaptive(const struct mfl_job *job)
{
        return is_private(job) && job->aggregation.mu_adaptive;
}

static bool private_personal(const struct mfl_job *job)
{
        return is_private(job) && is_personal(job);
}

static bool private_rounds(const struct mfl_job *job)
{
        return is_private(job) && rounds(job);
}

static bool private_virtual(const struct mfl_job *job)
{
        return is_private(job) && !real(job);
}

static bool private_attacked(const struct mfl_job *job)
{
        return is_private(job) && attacks_rows(job);
}

static bool private_by_samples(const struct mfl_job *job)
{
        return is_private(job) && job->aggregation.weighting == MFL_WEIGHT_SAMPLES;
}

static bool private_chosen(const struct mfl_job *job)
{
        bool all = job->selection.kind == MFL_SELECT_UNIFORM && !job->selection.clients;
        return is_private(job) && !all && job->selection.kind != MFL_SELECT_POISSON;
}

static bool private_local(const struct mfl_job *job)
{
        return is_private(job) && is_local(job) && !job->privacy.clients;
}

static bool private_population(const struct mfl_job *job)
{
        return is_private(job) && !is_local(job);
}

static bool private_limited(const struct mfl_job *job)
{
        return is_private(job) && job->aggregation.delta_max < job->privacy.clip;
}

static bool is_secure(const struct mfl_job *job)
{
        return job->secure.bits;
}

static bool secure_virtual(const struct mfl_job *job)
{
        return is_secure(job) && !real(job);
}

static bool secure_attacked(const struct mfl_job *job)
{
        return is_secure(job) && attacks_rows(job);
}

static bool secure_chosen(const struct mfl_job *job)
{
        return is_secure(job) && (by_loss(job) || job->selection.kind == MFL_SELECT_POISSON);
}

static bool secure_few(const struct mfl_job *job)
{
        uint32_t n = job->selection.clients;
        return is_secure(job) &&
               ((n && n < MFL_SECURE_LEAST) || (!is_local(job) && job->data.clients < MFL_SECURE_LEAST));
}

#define UNKNOWN_CLIENTS "needs a population that is known beforehand; with partition local, write uniform"

static const struct rule rules[] = {
        {{"strategy: fednova", "optimizer other than sgd",
                 "fednova divides by the steps of sgd, and other optimizers' steps have no such number; "
                 "write sgd, or strategy: fedavg"},
                ONLY(FEDNOVA), adapts, "training", "optimizer"},
        {{"strategy: scaffold", "optimizer other than sgd",
                 "scaffold finds a client's mean gradient from how far it went, which only sgd's steps tell; "
                 "write sgd, or another strategy"},
                ONLY(SCAFFOLD), adapts, "training", "optimizer"},
        {{"strategy: scaffold", "momentum",
                 "scaffold finds a client's mean gradient from how far it went, which momentum changes; "
                 "remove it"},
                ONLY(SCAFFOLD), has_momentum, "training", "momentum"},
        {{"strategy: scaffold", "clip_norm",
                 "scaffold finds a client's mean gradient from how far it went, which clipping changes; "
                 "remove it"},
                ONLY(SCAFFOLD), clips, "training", "clip_norm"},
        {{"strategy: scaffold", "precision: fp16",
                 "fp16 may skip steps, which scaffold divides by; write bf16 or fp32"},
                ONLY(SCAFFOLD), skips_steps, "training", "precision"},
        {{"strategy: scaffold", "option: I", "I is not supported yet; write II"}, ONLY(SCAFFOLD),
                first_option, "aggregation", "option"},
        {{"strategy: feddyn", "optimizer: adamw",
                 "adamw's weight decay is no part of the gradient that feddyn's clients remember; write "
                 "adam"},
                ONLY(FEDDYN), decays_apart, "training", "optimizer"},
        {{"strategy: fedbuff or fedasync", "time: real",
                 "clients that don't wait for each other are supported in virtual time alone: add time: "
                 "virtual "
                 "and trace"},
                ASYNC, real, "aggregation", "strategy"},
        {{"strategy: fedbuff or fedasync", "selection other than uniform",
                 "is for rounds; clients that don't wait for each other start one by one: write uniform"},
                ASYNC, not_uniform, "selection", "kind"},
        {{"strategy: fedbuff or fedasync", "over",
                 "is for rounds; here nobody waits for slow clients anyway: remove it"},
                ASYNC, always, "selection", "over"},
        {{"strategy: fedbuff or fedasync", "parallel",
                 "clients that start from several versions can't be trained by several workers together yet; "
                 "remove `parallel`"},
                ASYNC, always, "", "parallel"},
        {{"strategy: fedbuff or fedasync", "simulation: an attack on updates",
                 "changes rows of updates that all start from one version; write an attack on data, or "
                 "another "
                 "strategy"},
                ASYNC, attacks_rows, "", "simulation"},
        {{"strategy: scaffold or feddyn", "parallel",
                 "clients that keep a state can't be trained by several workers together yet; remove "
                 "`parallel`"},
                STATEFUL, always, "", "parallel"},
        {{"strategy: scaffold or feddyn", "client_state: daemon",
                 "daemon is not supported yet; write server"},
                STATEFUL, kept_by_daemons, "", "client_state"},
        {{"neither scaffold, feddyn, ditto, pfedme, foolsgold nor personal", "client_state",
                 "is only used where clients keep a state: with scaffold, feddyn, ditto, pfedme, foolsgold "
                 "and personal"},
                ANY, stateless, "", "client_state"},
        {{"neither scaffold, feddyn, ditto, pfedme, foolsgold nor personal", "limits.state",
                 "is only used where clients keep a state: with scaffold, feddyn, ditto, pfedme, foolsgold "
                 "and personal"},
                ANY, stateless, "limits", "state"},
        {{"strategy: ditto or pfedme", "parallel",
                 "clients with a model of their own can't be trained by several workers together yet; remove "
                 "`parallel`"},
                MODELS, always, "", "parallel"},
        {{"strategy: ditto or pfedme", "client_state: daemon", "daemon is not supported yet; write server"},
                MODELS, kept_by_daemons, "", "client_state"},
        {{"strategy: ditto or pfedme", "compression",
                 "is for sums of updates, and the server takes those of clients with a model of their own "
                 "one "
                 "by one; remove compression"},
                MODELS, compresses, "compression", "up"},
        {{"strategy: ditto or pfedme", "simulation: an attack on updates",
                 "changes rows of updates, and clients with a model of their own have none; write another "
                 "strategy"},
                MODELS, attacks_rows, "", "simulation"},
        {{"strategy: pfedme", "lambda: 0", "with 0 no client would move the params; write a larger number"},
                ONLY(PFEDME), unheld, "aggregation", "lambda"},
        {{"strategy: pfedme", "selection: power-of-choice or oort",
                 "these choose clients by their losses, and pfedme's clients see each batch several times; "
                 "write uniform"},
                ONLY(PFEDME), by_loss, "selection", "kind"},
        {{"strategy: scaffold or feddyn", "compression",
                 "is for sums of updates, and the server takes those of clients that keep a state one by "
                 "one; "
                 "remove compression"},
                STATEFUL, compresses, "compression", "up"},
        {{"robust strategies, attacks on updates", "compression",
                 "is for sums of updates, and this job takes each client's by itself; remove compression"},
                ANY, compresses_rows, "compression", "up"},
        {{"strategy: scaffold or feddyn", "simulation: an attack on updates",
                 "changes rows of updates, and clients that keep a state have none; write another "
                 "strategy"},
                STATEFUL, attacks_rows, "", "simulation"},
        {{"strategy: fednova, qfedavg, fedbuff or fedasync", "compression: bits",
                 "bits need the mean of the deltas for their range, and this strategy weighs deltas "
                 "otherwise; write lossless"},
                ONLY(FEDNOVA) | ONLY(QFEDAVG) | ASYNC, rounds, "compression", "up"},
        {{"personal", "strategies other than fedavg and its server optimizers",
                 "needs a strategy that averages what is not personal: fedavg, fedavgm, fedadagrad, fedadam, "
                 "fedyogi or fedprox; write one of them"},
                ~AVERAGES, is_personal, "", "personal"},
        {{"personal", "mu: adaptive", "adaptive is not supported with personal layers; write a number"},
                ONLY(FEDPROX), personal_adaptive, "aggregation", "mu"},
        {{"personal", "evaluation on: test",
                 "the server has no client's personal layers, so only clients can evaluate the model: add "
                 "evaluation: {on: clients}, or {every: 0}"},
                ANY, personal_on_test, "", "personal"},
        {{"personal.epochs", "backend: cuda",
                 "is not supported on the cuda backend yet: remove it, or write training.backend: cpu"},
                ANY, cuda_phases, "personal", "epochs"},
        {{"personal", "parallel",
                 "clients with personal layers can't be trained by several workers together yet; remove "
                 "`parallel`"},
                ANY, is_personal, "", "parallel"},
        {{"parallel: exact: false", "zero: 2 or 3",
                 "with exact: false, stages 2 and 3 would add gradients in another order than stages 0 and "
                 "1; "
                 "write 1, or exact: true"},
                ANY, shards_floats, "parallel", "zero"},
        {{"parallel: within: daemon", "members.min above 1",
                 "min is for teams of several daemons; write within: node or any, or leave min out"},
                ANY, least_within_daemon, "parallel", "members"},
        {{"selection: assign: modulo", "members.min above 1",
                 "with selection.assign: modulo each client has its daemon, and no team; leave min out"},
                ANY, least_by_modulo, "parallel", "members"},
        {{"personal", "client_state: daemon", "daemon is not supported yet; write server"}, ANY,
                personal_by_daemons, "", "client_state"},
        {{"personal", "compression",
                 "is for sums of updates, and the server takes those of clients with personal layers one by "
                 "one; remove compression"},
                ANY, personal_compresses, "compression", "up"},
        {{"strategy: foolsgold, simulation: stale", "client_state: daemon",
                 "what clients sent before is kept by the server, which must not ask them; write server"},
                ANY, history_by_daemons, "", "client_state"},
        {{"strategy: scaffold or feddyn", "update_clip",
                 "a client's state follows from how far it went, which clipping changes; remove it"},
                STATEFUL, always, "aggregation", "update_clip"},
        {{"strategy: ditto or pfedme", "update_clip",
                 "is not supported where clients have a model of their own; remove it"},
                MODELS, always, "aggregation", "update_clip"},
        {{"privacy", "update_clip", "privacy.clip shortens each client's change already; remove it"}, ANY,
                is_private, "aggregation", "update_clip"},
        {{"strategy: fedbuff or fedasync", "update_clip",
                 "is not supported for updates that arrive one after the other yet; remove it"},
                ASYNC, always, "aggregation", "update_clip"},
        {{"strategy: fednova or qfedavg", "update_clip: median",
                 "the median needs each update as a row, which this strategy's updates are not; write a "
                 "number"},
                ONLY(FEDNOVA) | ONLY(QFEDAVG), clips_at_median, "aggregation", "update_clip"},
        {{"personal", "update_clip", "would shorten what stays with the client, too; remove it"}, ANY,
                personal_clips, "aggregation", "update_clip"},
        {{"personal", "simulation: an attack on updates",
                 "changes rows of updates, and clients with personal layers have none; remove it, or "
                 "personal"},
                ANY, personal_attacks, "", "simulation"},
        {{"privacy", "strategies other than fedavg and its server optimizers",
                 "needs a strategy that only adds up clients' changes: fedavg, fedavgm, fedadagrad, fedadam, "
                 "fedyogi "
                 "or fedprox. Others look at single updates or losses, or keep states of clients, which the "
                 "noise "
                 "of a sum does not hide"},
                ~AVERAGES, is_private, "", "privacy"},
        {{"privacy", "mu: adaptive",
                 "adaptive follows the training losses, which have no noise; write a number"},
                ONLY(FEDPROX), private_adaptive, "aggregation", "mu"},
        {{"privacy", "personal", "personal layers are not supported with privacy yet; remove one of the two"},
                ANY, private_personal, "", "privacy"},
        {{"privacy", "compression: bits",
                 "bits are of no use with privacy, whose clipping and noise have a grid of their own; write "
                 "lossless"},
                ANY, private_rounds, "compression", "up"},
        {{"privacy", "time: virtual", "virtual is not supported with privacy yet; write real"}, ANY,
                private_virtual, "", "time"},
        {{"privacy", "simulation: an attack on updates",
                 "bad clients change single updates, which a job with privacy does not have; remove it"},
                ANY, private_attacked, "", "simulation"},
        {{"privacy", "weighting: samples",
                 "a client must not count more than others: write uniform, or remove it"},
                ANY, private_by_samples, "aggregation", "weighting"},
        {{"privacy", "selection other than poisson, or of all",
                 "the cost of a round is only known if each client is drawn by itself, or all take part: "
                 "write "
                 "selection: {kind: poisson, rate: 0.1}, or no selection"},
                ANY, private_chosen, "", "selection"},
        {{"privacy", "partition: local without privacy.clients",
                 "needs clients, the number of sites by which a round's sum is divided: a number that does "
                 "not "
                 "depend on who is there"},
                ANY, private_local, "", "privacy"},
        {{"privacy.clients", "partitions other than local", "is data.clients for a population; remove it"},
                ANY, private_population, "privacy", "clients"},
        {{"privacy", "delta_max below clip",
                 "a client with a longer element would be left out instead of clipped; write at least "
                 "privacy.clip, or remove it"},
                ANY, private_limited, "aggregation", "delta_max"},
        {{"secure_sum", "strategies that look at single updates, or keep something of each client",
                 "the server sees the sum of all updates alone: write fedavg, fedavgm, fedadagrad, fedadam, "
                 "fedyogi, "
                 "fedprox, fednova or qfedavg"},
                ~(AVERAGES | ONLY(FEDNOVA) | ONLY(QFEDAVG)), is_secure, "", "secure_sum"},
        {{"secure_sum", "fewer than 3 clients in a round",
                 "a sum of two tells each of them the other's update; a round needs at least 3 clients"},
                ANY, secure_few, "", "secure_sum"},
        {{"secure_sum", "privacy", "is not supported with secure_sum yet; remove one of the two"}, ANY,
                is_secure, "", "privacy"},
        {{"secure_sum", "personal",
                 "the server takes updates of clients with personal layers one by one; remove one of the "
                 "two"},
                ANY, is_secure, "", "personal"},
        {{"secure_sum", "compression", "masked updates look like noise, and can't be packed; remove it"}, ANY,
                is_secure, "", "compression"},
        {{"secure_sum", "parallel",
                 "clients that are trained by several workers together are not supported with secure_sum "
                 "yet; "
                 "remove it"},
                ANY, is_secure, "", "parallel"},
        {{"secure_sum", "training.program",
                 "updates of programs are not masked yet; remove it, or secure_sum"},
                ANY, is_secure, "training", "program"},
        {{"secure_sum", "time: virtual", "virtual is not supported with secure_sum yet; write real"}, ANY,
                secure_virtual, "", "time"},
        {{"secure_sum", "simulation: an attack on updates",
                 "bad clients change single updates, which the server does not see; remove it"},
                ANY, secure_attacked, "", "simulation"},
        {{"secure_sum", "selection: power-of-choice, oort or poisson",
                 "the first two need each client's losses, and poisson may draw fewer than 3 clients; write "
                 "uniform"},
                ANY, secure_chosen, "selection", "kind"},
        {{"secure_sum", "update_clip", "needs each update by itself; remove it"}, ANY, is_secure,
                "aggregation", "update_clip"},
        {{"strategy: fedprox, mu: a number", "mu_start", "is only used with mu: adaptive; remove it"},
                ONLY(FEDPROX), fixed_mu, "aggregation", "mu_start"},
        {{"strategy: fedprox, mu: a number", "mu_patience", "is only used with mu: adaptive; remove it"},
                ONLY(FEDPROX), fixed_mu, "aggregation", "mu_patience"},
        {{"simulation: backdoor", "evaluation on: clients",
                 "a backdoor's success is measured on the test split; remove it"},
                ANY, backdoor_on_clients, "evaluation", "on"},
        {{"simulation: backdoor", "evaluation detailed",
                 "an evaluation of a backdoor counts its successes instead of a confusion matrix; remove it"},
                ANY, backdoor_detailed, "evaluation", "detailed"},
        {{"partition: local", "selection: separated", "separated " UNKNOWN_CLIENTS}, ANY, local_separated,
                "selection", "kind"},
        {{"partition: local", "selection: power-of-choice", "power-of-choice " UNKNOWN_CLIENTS}, ANY,
                local_by_choice, "selection", "kind"},
        {{"partition: local", "selection: oort", "oort " UNKNOWN_CLIENTS}, ANY, local_oort, "selection",
                "kind"},
        {{"partition: local", "time: virtual",
                 "virtual time has a trace of a population that is known beforehand; with partition local, "
                 "write real"},
                ANY, local_virtual, "", "time"},
        {{"time: real", "selection: oort",
                 "oort weighs clients by their durations, which virtual time has: add time: "
                 "virtual and trace"},
                ANY, real_oort, "selection", "kind"},
        {{"time: real", "trace", "is only used with time: virtual; add that, or remove it"}, ANY, real, "",
                "trace"},
        {{"time: real", "over",
                 "is only used with time: virtual, which knows who would be late; add that, or remove it"},
                ANY, real, "selection", "over"},
        {{"time: real", "virtual_deadline", "is only used with time: virtual; add that, or write deadline"},
                ANY, real, "limits", "virtual_deadline"},
};

size_t mfl_job_goes_count(void)
{
        return MFL_ARRAY_SIZE(rules);
}

const struct mfl_job_goes *mfl_job_goes_at(size_t i)
{
        return &rules[i].shown;
}

int mfl_job_check_goes(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rules); i++) {
                const struct rule *rule = &rules[i];
                const struct mfl_yaml_node *root = mfl_yaml_root(doc);
                const struct mfl_yaml_node *section =
                        rule->section[0] ? mfl_job_find_key(root, rule->section) : root;
                const struct mfl_yaml_node *node = mfl_job_find_key(section, rule->key);
                if (node && rule->strategies & MFL_JOB_BIT(job->aggregation.strategy) && rule->meets(job))
                        return mfl_yaml_fail(doc, node, err, "%s", rule->shown.why);
        }
        return 0;
}
