/* SPDX-License-Identifier: Apache-2.0 */
/* The signals of a daemon that has no loop yet (signals.h). */
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "common/base/signals.h"

static void on_early_stop(int number)
{
        (void)number;
        _exit(0);
}

void mfl_signals_init(void)
{
        struct sigaction stop = {.sa_handler = on_early_stop};
        sigemptyset(&stop.sa_mask);
        sigaction(SIGTERM, &stop, NULL);
        sigaction(SIGINT, &stop, NULL);
        signal(SIGPIPE, SIG_IGN);
}
