/* SPDX-License-Identifier: Apache-2.0 */
/* The table of combinations, and its readers. */
#include "common/job/job_rules.h"

#include "common/job/job_compression.h"
#include "common/job/job_training.h"

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

static bool scales_in_teams(const struct mfl_job *job)
{
        return job->parallel.grain && !job->parallel.exact && skips_steps(job);
}

static bool decays_apart(const struct mfl_job *job)
{
        return job->training.optimizer == ADAMW;
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

static bool snaps_within_daemon(const struct mfl_job *job)
{
        return job->parallel.snapshot && job->parallel.within == MFL_WITHIN_DAEMON;
}

static bool snaps_whole(const struct mfl_job *job)
{
        return job->parallel.snapshot && !job->parallel.zero;
}

static bool snaps_floats(const struct mfl_job *job)
{
        return job->parallel.snapshot && !job->parallel.exact;
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

static bool adaptive_alpha(const struct mfl_job *job)
{
        return job->aggregation.alpha_adaptive;
}

static bool personal_adaptive(const struct mfl_job *job)
{
        return is_personal(job) && job->aggregation.mu_adaptive;
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

static bool real_oort(const struct mfl_job *job)
{
        return real(job) && job->selection.kind == MFL_SELECT_OORT;
}

static bool compresses(const struct mfl_job *job)
{
        return job->compression.up;
}

static bool real_compresses(const struct mfl_job *job)
{
        return real(job) && compresses(job);
}

static bool not_uniform(const struct mfl_job *job)
{
        return job->selection.kind != MFL_SELECT_UNIFORM;
}

static bool compresses_rows(const struct mfl_job *job)
{
        return compresses(job) && mfl_job_has_rows(job);
}

static bool buckets(const struct mfl_job *job)
{
        return mfl_job_sums_buckets(job) && job->aggregation.robust.unit == MFL_ROWS_BUCKET;
}

static bool buckets_spread(const struct mfl_job *job)
{
        return buckets(job) && !is_local(job);
}

static bool buckets_few(const struct mfl_job *job)
{
        return buckets(job) && job->aggregation.robust.bucket < MFL_SECURE_LEAST;
}

/* The rest is in the last bucket, which may so have one less than two of them. */
static bool buckets_large(const struct mfl_job *job)
{
        return buckets(job) && job->aggregation.robust.bucket > MFL_SECURE_MEMBERS_MAX / 2;
}

/* Without buckets one sum has all of a round's clients, each from a daemon of its own. */
static bool sum_large(const struct mfl_job *job)
{
        return job->secure.bits && !buckets(job) && is_local(job) &&
               job->selection.clients > MFL_SECURE_MEMBERS_MAX;
}

static bool buckets_narrow(const struct mfl_job *job)
{
        return buckets(job) && job->secure.bits < 64;
}

static bool buckets_short(const struct mfl_job *job)
{
        uint32_t n = job->selection.clients;
        return buckets(job) && n && n < job->aggregation.robust.bucket;
}

/* The strategy needs more rows than a round can have: no round would be counted. */
static bool buckets_scarce(const struct mfl_job *job)
{
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        uint32_t n = job->selection.clients;
        return buckets(job) && n && spec->on_few == MFL_ON_FEW_FAIL &&
               mfl_robust_rows_after(spec, n / spec->bucket) < mfl_robust_rows_least(job);
}

static bool personal_compresses(const struct mfl_job *job)
{
        return is_personal(job) && compresses(job);
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

static bool backdoor_metrics(const struct mfl_job *job)
{
        return job->simulation.attack == MFL_ATTACK_BACKDOOR && job->evaluation.n_metrics;
}

static bool beyond_one(const struct mfl_job *job)
{
        return job->aggregation.alpha > 1;
}

static bool draws_anew(const struct mfl_job *job)
{
        return job->selection.kind == MFL_SELECT_POISSON || job->selection.kind >= MFL_SELECT_POWER_OF_CHOICE;
}

#define UNKNOWN_CLIENTS "needs a population that is known beforehand; with partition local, write uniform"

static const struct mfl_job_rule rules[] = {
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
        {{"strategy: mimelite, mime or apfl", "optimizer other than sgd",
                 "is defined for sgd's steps alone, in which gradients of the same batch are compared; write "
                 "sgd, or another strategy"},
                PROBES, adapts, "training", "optimizer"},
        {{"strategy: mimelite, mime or apfl", "training.momentum",
                 "mimelite and mime have a momentum of the server's, aggregation.momentum, and apfl's models "
                 "have none; remove it"},
                PROBES, has_momentum, "training", "momentum"},
        {{"strategy: mimelite, mime or apfl", "clip_norm",
                 "is not supported where gradients are taken at several params; remove it"},
                PROBES, clips, "training", "clip_norm"},
        {{"strategy: mimelite, mime or apfl", "precision: fp16",
                 "fp16 may skip steps, and with them gradients that are needed; write bf16 or fp32"},
                PROBES, skips_steps, "training", "precision"},
        {{"strategy: mimelite or mime", "parallel",
                 "clients that tell gradients can't be trained by several workers together yet; remove "
                 "`parallel`"},
                GUIDED, always, "", "parallel"},
        {{"strategy: mimelite or mime", "compression",
                 "is for sums of updates, and the server takes those of clients that tell gradients one by "
                 "one; remove compression"},
                GUIDED, compresses, "compression", "up"},
        {{"strategy: mimelite or mime", "simulation: an attack on updates",
                 "changes rows of updates, and clients that tell gradients have none; write another "
                 "strategy"},
                GUIDED, attacks_rows, "", "simulation"},
        {{"strategy: mimelite or mime", "update_clip",
                 "would shorten the change and not the gradient beside it; remove it"},
                GUIDED, always, "aggregation", "update_clip"},
        {{"strategy: mime", "selection: poisson, power-of-choice or oort",
                 "two rounds have the same clients, which these draw anew in each; write uniform"},
                ONLY(MIME), draws_anew, "selection", "kind"},
        {{"strategy: mime", "time: virtual",
                 "two rounds have the same clients, and in virtual time some may be late in one of them; "
                 "write real"},
                ONLY(MIME), mfl_job_is_virtual, "", "time"},
        {{"strategy: apfl", "alpha above 1",
                 "is the share of the client's own part in its model; write a number up to 1"},
                ONLY(APFL), beyond_one, "aggregation", "alpha"},
        {{"strategy: feddyn or fedasync", "alpha: adaptive", "is for apfl's clients; write a number"},
                ONLY(FEDDYN) | ONLY(FEDASYNC), adaptive_alpha, "aggregation", "alpha"},
        {{"strategy: feddyn", "optimizer: adamw",
                 "adamw's weight decay is no part of the gradient that feddyn's clients remember; write "
                 "adam"},
                ONLY(FEDDYN), decays_apart, "training", "optimizer"},
        {{"strategy: fedbuff or fedasync, time: real", "compression.up",
                 "is for sums of updates, and in real time the server takes those of clients that don't wait "
                 "for each other one by one; remove it, or write time: virtual and trace"},
                ASYNC, real_compresses, "compression", "up"},
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
                 "these need the exact mean of all clients' states, which the server keeps for it; write "
                 "server"},
                STATEFUL, kept_by_daemons, "", "client_state"},
        {{"none of scaffold, feddyn, ditto, pfedme, apfl, foolsgold, personal, top_k", "client_state",
                 "is only used where clients keep a state: with scaffold, feddyn, ditto, pfedme, apfl, "
                 "foolsgold, personal and top_k"},
                ANY, stateless, "", "client_state"},
        {{"none of scaffold, feddyn, ditto, pfedme, apfl, foolsgold, personal, top_k", "limits.state",
                 "is only used where clients keep a state: with scaffold, feddyn, ditto, pfedme, apfl, "
                 "foolsgold, personal and top_k"},
                ANY, stateless, "limits", "state"},
        {{"strategy: ditto, pfedme or apfl", "parallel",
                 "clients with a model of their own can't be trained by several workers together yet; remove "
                 "`parallel`"},
                MODELS, always, "", "parallel"},
        {{"strategy: ditto, pfedme or apfl", "compression",
                 "is for sums of updates, and the server takes those of clients with a model of their own "
                 "one "
                 "by one; remove compression"},
                MODELS, compresses, "compression", "up"},
        {{"strategy: ditto, pfedme or apfl", "simulation: an attack on updates",
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
        {{"compression", "neither up nor down", "must say what: up: lossless, or down: bf16"}, ANY,
                mfl_job_compresses_nothing, "", "compression"},
        {{"strategy: fedbuff or fedasync", "compression: down",
                 "what rounding leaves is added to the next round's params, and here clients start from "
                 "several "
                 "versions; remove down"},
                ASYNC, mfl_job_rounds_params, "compression", "down"},
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
        {{"personal", "parallel",
                 "clients with personal layers can't be trained by several workers together yet; remove "
                 "`parallel`"},
                ANY, is_personal, "", "parallel"},
        {{"parallel: exact: false", "precision: fp16",
                 "sums of floats do not tell which step overflows; write bf16 or fp32, or exact: true"},
                ANY, scales_in_teams, "training", "precision"},
        {{"parallel: exact: false", "zero: 2 or 3",
                 "with exact: false, stages 2 and 3 would add gradients in another order than stages 0 and "
                 "1; "
                 "write 1, or exact: true"},
                ANY, shards_floats, "parallel", "zero"},
        {{"parallel: within: daemon", "members.min above 1",
                 "min is for teams of several daemons; write within: node or any, or leave min out"},
                ANY, least_within_daemon, "parallel", "members"},
        {{"parallel: within: daemon", "snapshot",
                 "a snapshot is kept by another daemon of the team; write within: node or any, or leave "
                 "snapshot out"},
                ANY, snaps_within_daemon, "parallel", "snapshot"},
        {{"parallel: zero: 0", "snapshot",
                 "in stage 0 each member has all of the training's state, and nothing is lost with one; "
                 "leave "
                 "snapshot out, or write zero: 1, 2 or 3"},
                ANY, snaps_whole, "parallel", "snapshot"},
        {{"parallel: exact: false", "snapshot",
                 "with exact: false the model depends on the number of members, so another team can't go on; "
                 "leave snapshot out, or write exact: true"},
                ANY, snaps_floats, "parallel", "snapshot"},
        {{"selection: assign: modulo", "members.min above 1",
                 "with selection.assign: modulo each client has its daemon, and no team; leave min out"},
                ANY, least_by_modulo, "parallel", "members"},
        {{"secure_sum with unit: bucket", "partitions other than local",
                 "needs daemons with one client each: with a population, a daemon has clients of several "
                 "buckets; write partition: local"},
                ANY, buckets_spread, "", "secure_sum"},
        {{"secure_sum with unit: bucket", "fewer than 3 clients in a bucket",
                 "a sum of two tells each of them the other's update; write bucket: 3 or more"},
                ANY, buckets_few, "", "secure_sum"},
        {{"secure_sum with unit: bucket", "more than 512 clients in a bucket",
                 "a secure sum has at most 1024 daemons, and the last bucket has the rest, too; write "
                 "bucket: 512 "
                 "or less"},
                ANY, buckets_large, "aggregation", "bucket"},
        {{"secure_sum", "more than 1024 clients of partition local in a round",
                 "a secure sum has at most 1024 daemons; write clients: 1024 or less"},
                ANY, sum_large, "selection", "clients"},
        {{"secure_sum with unit: bucket", "bits below 64",
                 "narrow rings need compression, which changes each row; write bits: 64"},
                ANY, buckets_narrow, "secure_sum", "bits"},
        {{"secure_sum with unit: bucket", "fewer clients in a round than in a bucket",
                 "is larger than a round; write a smaller bucket, or a larger selection.clients"},
                ANY, buckets_short, "aggregation", "bucket"},
        {{"secure_sum with unit: bucket", "fewer buckets in a round than rows that the strategy needs",
                 "is too large for the strategy with its f and selection.clients, since the rest is in the "
                 "last "
                 "bucket; write a smaller bucket or f, a larger selection.clients, or on_few"},
                ANY, buckets_scarce, "aggregation", "bucket"},
        {{"secure_sum with unit: bucket", "strategy: fltrust",
                 "compares with the root's own update, which the server would have to see; write another "
                 "robust strategy"},
                ONLY(FLTRUST), buckets, "", "secure_sum"},
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
        {{"strategy: ditto, pfedme or apfl", "update_clip",
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
        {{"strategy: fedprox, mu: a number", "mu_start", "is only used with mu: adaptive; remove it"},
                ONLY(FEDPROX), fixed_mu, "aggregation", "mu_start"},
        {{"strategy: fedprox, mu: a number", "mu_patience", "is only used with mu: adaptive; remove it"},
                ONLY(FEDPROX), fixed_mu, "aggregation", "mu_patience"},
        {{"simulation: backdoor", "evaluation on: clients",
                 "a backdoor's success is measured on the test split; remove it"},
                ANY, backdoor_on_clients, "evaluation", "on"},
        {{"simulation: backdoor", "evaluation metrics",
                 "an evaluation of a backdoor counts its successes instead of predictions; remove them"},
                ANY, backdoor_metrics, "evaluation", "metrics"},
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

static const struct mfl_job_rule *rule_at(size_t i)
{
        return i < MFL_ARRAY_SIZE(rules) ? &rules[i] : &mfl_job_rules_more[i - MFL_ARRAY_SIZE(rules)];
}

size_t mfl_job_goes_count(void)
{
        return MFL_ARRAY_SIZE(rules) + mfl_job_rules_more_count;
}

const struct mfl_job_goes *mfl_job_goes_at(size_t i)
{
        return &rule_at(i)->shown;
}

int mfl_job_check_goes(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        for (size_t i = 0; i < mfl_job_goes_count(); i++) {
                const struct mfl_job_rule *rule = rule_at(i);
                const struct mfl_yaml_node *root = mfl_yaml_root(doc);
                const struct mfl_yaml_node *section =
                        rule->section[0] ? mfl_job_find_key(root, rule->section) : root;
                const struct mfl_yaml_node *node = mfl_job_find_key(section, rule->key);
                if (node && rule->strategies & MFL_JOB_BIT(job->aggregation.strategy) && rule->meets(job))
                        return mfl_yaml_fail(doc, node, err, "%s", rule->shown.why);
        }
        return 0;
}
