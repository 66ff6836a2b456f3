/* SPDX-License-Identifier: Apache-2.0 */
/* What all kinds of plug-ins share: numbers that can be set. Each kind has a header of its own, which includes this one. */
#ifndef MFL_PLUGIN_H
#define MFL_PLUGIN_H

#define MFL_PLUGIN_NUMBERS_MAX 16

/* A number of the plug-in's `settings`. Values outside [min, max], names that are not here and values that are not finite are refused
 * before the plug-in is called. */
struct mfl_plugin_number {
        const char *name; /* lower-case letters, digits and '_'; at most 31 */
        double standard;  /* where nobody says it */
        double min, max;
};

#endif
