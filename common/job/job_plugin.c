/* SPDX-License-Identifier: Apache-2.0 */
/* aggregation.plugin: which plug-in, and its numbers. Whether there is one, and what it takes, only a server knows. */
#include "common/job/job_keys.h"

#define AT(member, read_)                                                                                    \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_job, aggregation.plugin member), .read = read_
const struct mfl_yaml_field mfl_job_plugin_fields[] = {
        {.key = "name", AT(.name, mfl_plugin_read_name), .required = true},
        {.key = "settings", AT(.settings, mfl_plugin_read_numbers)}, {0}};

int mfl_job_check_plugin(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *aggregation = mfl_job_find_key(mfl_yaml_root(doc), "aggregation");
        const struct mfl_yaml_node *plugin = mfl_job_find_key(aggregation, "plugin");
        bool wants = job->aggregation.strategy == MFL_STRATEGY_PLUGIN;
        if (wants && !plugin)
                return mfl_yaml_fail(doc, aggregation, err,
                        "strategy: plugin needs plugin: {name: NAME}, one of those that the server has "
                        "(docs/plugins.md)");
        if (!wants && plugin)
                return mfl_yaml_fail(doc, plugin, err, "goes with strategy: plugin, and the strategy is %s",
                        mfl_strategy_name(job->aggregation.strategy));
        return 0;
}
