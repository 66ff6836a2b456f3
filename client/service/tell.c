/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the daemons of this host what their administrator has decided. */
#include "client/service/tell.h"

#include <stdio.h>

#include "client/policy/control.h"
#include "client/service/config.h"

int mfl_client_tell(int argc, char **argv)
{
        bool jobs = argc > 1 && (!strcmp(argv[1], "jobs") || !strcmp(argv[1], "budget"));
        bool decides = argc > 1 && (!strcmp(argv[1], "approve") || !strcmp(argv[1], "deny"));
        struct mfl_client_config config;
        struct mfl_error err = {{0}};
        char line[64];
        if (!jobs && !decides)
                return -1;
        int n = jobs ? 1 : 2;
        if (decides && (argc < 3 || argv[2][0] == '-' || strlen(argv[2]) >= MFL_JOB_ID_BYTES)) {
                fprintf(stderr, "mfl-client %s: expected the job's number, such as j-000001\n", argv[1]);
                return 2;
        }
        snprintf(line, sizeof(line), "%s%s%s", argv[1], decides ? " " : "", decides ? argv[2] : "");
        argv[n] = argv[0];
        int r = mfl_client_config_init(&config, argc - n, argv + n, &err);
        int status = r == MFL_SETTINGS_SHOWN ? 0 : 2;
        if (!r && config.policy.set)
                status = mfl_control_tell(config.policy.dir, line);
        else if (!r)
                fprintf(stderr,
                        "mfl-client: no policy in the configuration: name the daemon's file by --config\n");
        else if (r != MFL_SETTINGS_SHOWN)
                fprintf(stderr, "mfl-client: %s\n", err.text);
        mfl_client_config_deinit(&config);
        return status;
}
