/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a private CA: JSON text to a table and back, and the checks of names. */
#include "cli/pki/pki_index.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <stdio.h>

static const char *const role_names[] = {"daemon", "operator", "viewer", "admin", "server", "relay", "serve"};
const char *const mfl_pki_state_names[] = {"valid", "renewed", "revoked", NULL};

unsigned mfl_pki_role_of(const char *text)
{
        for (unsigned i = 0; i < MFL_ARRAY_SIZE(role_names); i++)
                if (!strcmp(role_names[i], text))
                        return 1u << i;
        return 0;
}

int mfl_pki_role_names(unsigned roles, const char *ret_names[MFL_PKI_ROLES_MAX])
{
        int n = 0;
        for (unsigned i = 0; i < MFL_ARRAY_SIZE(role_names) && n < MFL_PKI_ROLES_MAX; i++)
                if (roles >> i & 1)
                        ret_names[n++] = role_names[i];
        return n;
}

const char *mfl_pki_roles_text(unsigned roles, char *buf, size_t buf_bytes)
{
        const char *names[MFL_PKI_ROLES_MAX];
        int n = mfl_pki_role_names(roles, names);
        size_t at = 0;
        buf[0] = '\0';
        for (int i = 0; i < n && at < buf_bytes; i++)
                at += (size_t)snprintf(buf + at, buf_bytes - at, "%s%s", i ? "," : "", names[i]);
        return buf;
}

static const char name_letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

bool mfl_pki_name_valid(const char *name)
{
        size_t n = strlen(name);
        return n >= 1 && n <= MFL_PKI_NAME_MAX && strspn(name, name_letters) == n && strcmp(name, ".") &&
               strcmp(name, "..");
}

bool mfl_pki_host_valid(const char *host)
{
        unsigned char address[16];
        if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
                return true;
        if (!strncmp(host, "*.", 2))
                host += 2;
        if (!*host || strlen(host) > 253)
                return false;
        bool digits = true; /* in the last label: 10.0.0.256 is not a name */
        while (*host) {
                size_t n = strcspn(host, ".");
                if (n < 1 || n > 63 || host[0] == '-' || host[n - 1] == '-' ||
                        strspn(host, name_letters) < n || memchr(host, '_', n))
                        return false;
                digits = strspn(host, "0123456789") == n;
                host += n;
                if (*host == '.' && !*++host)
                        return false;
        }
        return !digits;
}

/* ---- table ---- */

static void entry_deinit(struct mfl_pki_entry *e)
{
        for (int i = 0; i < e->n_hosts; i++)
                free(e->hosts[i]);
        e->n_hosts = 0;
}

void mfl_pki_index_deinit(struct mfl_pki_index *index)
{
        for (size_t i = 0; i < index->n; i++)
                entry_deinit(&index->entry[i]);
        free(index->entry);
        index->entry = NULL;
        index->n = 0;
}

int mfl_pki_index_add(struct mfl_pki_index *index, const struct mfl_pki_entry *entry, struct mfl_error *err)
{
        struct mfl_pki_entry copy = *entry;
        struct mfl_pki_entry *grown = mfl_realloc(index->entry, (index->n + 1) * sizeof *grown);
        if (!grown)
                return mfl_fail_memory(err, (index->n + 1) * sizeof *grown, "the index");
        index->entry = grown;
        for (copy.n_hosts = 0; copy.n_hosts < entry->n_hosts; copy.n_hosts++) {
                copy.hosts[copy.n_hosts] = mfl_strdup(entry->hosts[copy.n_hosts]);
                if (!copy.hosts[copy.n_hosts]) {
                        entry_deinit(&copy);
                        return mfl_fail_memory(err, MFL_PKI_HOST_BYTES, "the index");
                }
        }
        index->entry[index->n++] = copy;
        return 0;
}

struct mfl_pki_entry *mfl_pki_index_find(const struct mfl_pki_index *index, const char *name)
{
        for (size_t i = index->n; i-- > 0;)
                if (!strcmp(index->entry[i].name, name))
                        return &index->entry[i];
        return NULL;
}

struct mfl_pki_entry *mfl_pki_index_find_serial(const struct mfl_pki_index *index, const char *serial)
{
        for (size_t i = 0; i < index->n; i++)
                if (!strcasecmp(index->entry[i].serial, serial))
                        return &index->entry[i];
        return NULL;
}

/* ---- text ---- */

static json_t *entry_json(const struct mfl_pki_entry *e)
{
        const char *names[MFL_PKI_ROLES_MAX];
        json_t *roles = json_array(), *hosts = json_array();
        int n = mfl_pki_role_names(e->roles, names);
        for (int i = 0; i < n; i++)
                json_array_append_new(roles, json_string(names[i]));
        for (int i = 0; i < e->n_hosts; i++)
                json_array_append_new(hosts, json_string(e->hosts[i]));
        return json_pack("{ss ss* so so ss sb sI sI ss so}", "name", e->name, "site",
                *e->site ? e->site : NULL, "roles", roles, "hosts", hosts, "serial", e->serial, "request",
                e->request, "not_before", (json_int_t)e->not_before, "not_after", (json_int_t)e->not_after,
                "state", mfl_pki_state_names[e->state], "revoked",
                e->state == MFL_PKI_REVOKED ? json_integer(e->revoked) : json_null());
}

int mfl_pki_index_text(const struct mfl_pki_index *index, char **ret_text, struct mfl_error *err)
{
        json_t *list = json_array();
        bool ok = list != NULL;
        for (size_t i = 0; ok && i < index->n; i++)
                ok = !json_array_append_new(list, entry_json(&index->entry[i]));
        json_t *top = json_pack("{si ss sI si so}", "version", 1, "ca", index->ca, "crl_number",
                (json_int_t)index->crl_number, "crl_days", index->crl_days, "certificates", list);
        char *text = ok && top ? json_dumps(top, JSON_INDENT(1)) : NULL;
        /* Ends with a line break, for people who look at it with cat. */
        char *whole = text ? mfl_asprintf("%s\n", text) : NULL;
        json_decref(top);
        free(text);
        if (!whole)
                return mfl_fail_memory(err, 0, "the index");
        *ret_text = whole;
        return 0;
}

/* The members that are not lists. False: damaged. */
static bool read_plain(json_t *json, struct mfl_pki_entry *e)
{
        const char *name, *serial, *state, *site = "";
        json_int_t before, after;
        json_t *revoked;
        int request;
        if (json_unpack(json, "{ss s?s ss sb sI sI ss so}", "name", &name, "site", &site, "serial", &serial,
                    "request", &request, "not_before", &before, "not_after", &after, "state", &state,
                    "revoked", &revoked))
                return false;
        *e = (struct mfl_pki_entry){.request = request,
                .not_before = before,
                .not_after = after,
                .revoked = json_integer_value(revoked)};
        int i = 0;
        while (mfl_pki_state_names[i] && strcmp(mfl_pki_state_names[i], state))
                i++;
        e->state = (enum mfl_pki_state)i;
        return mfl_pki_state_names[i] && mfl_pki_name_valid(name) &&
               mfl_strcpy(e->name, sizeof e->name, name) && *serial && (!*site || mfl_pki_name_valid(site)) &&
               mfl_strcpy(e->site, sizeof e->site, site) &&
               strspn(serial, "0123456789ABCDEF") == strlen(serial) &&
               mfl_strcpy(e->serial, sizeof e->serial, serial);
}

static bool read_entry(
        json_t *json, struct mfl_pki_index *index, struct mfl_pki_entry *e, int *ret_r, struct mfl_error *err)
{
        json_t *roles = json_object_get(json, "roles"), *hosts = json_object_get(json, "hosts"), *item;
        size_t i;
        if (!read_plain(json, e) || !json_is_array(roles) || !json_is_array(hosts) ||
                json_array_size(hosts) > MFL_PKI_HOSTS_MAX)
                return false;
        json_array_foreach(roles, i, item)
        {
                unsigned role = json_is_string(item) ? mfl_pki_role_of(json_string_value(item)) : 0;
                if (!role)
                        return false;
                e->roles |= role;
        }
        json_array_foreach(hosts, i, item)
        {
                if (!json_is_string(item) || !mfl_pki_host_valid(json_string_value(item)))
                        return false;
                e->hosts[e->n_hosts++] = (char *)(uintptr_t)json_string_value(item);
        }
        *ret_r = mfl_pki_index_add(index, e, err);
        return e->roles != 0;
}

static int read_top(json_t *top, const char *path, struct mfl_pki_index *index, struct mfl_error *err)
{
        const char *ca;
        int version, r = 0;
        json_int_t number;
        json_t *list, *item;
        size_t i;
        if (json_unpack(top, "{si ss sI si so}", "version", &version, "ca", &ca, "crl_number", &number,
                    "crl_days", &index->crl_days, "certificates", &list) ||
                !json_is_array(list) || number < 1 || index->crl_days < 1 ||
                !mfl_strcpy(index->ca, sizeof index->ca, ca))
                return mfl_fail(err, MFL_INVALID, "%s: not the index of an mfl CA", path);
        if (version != 1)
                return mfl_fail(
                        err, MFL_INVALID, "%s: was written by a newer mfl (version %d)", path, version);
        index->crl_number = (uint64_t)number;
        json_array_foreach(list, i, item)
        {
                struct mfl_pki_entry e;
                if (!read_entry(item, index, &e, &r, err))
                        return mfl_fail(
                                err, MFL_INVALID, "%s: certificate %zu of the list is damaged", path, i + 1);
                if (r)
                        return r;
        }
        return 0;
}

int mfl_pki_index_parse(
        const char *text, const char *path, struct mfl_pki_index *ret_index, struct mfl_error *err)
{
        struct mfl_pki_index index = {.n = 0};
        json_error_t where;
        json_t *top = json_loads(text, JSON_REJECT_DUPLICATES, &where);
        if (!top)
                return mfl_fail(err, MFL_INVALID, "%s:%d: %s", path, where.line, where.text);
        int r = read_top(top, path, &index, err);
        json_decref(top);
        if (r)
                mfl_pki_index_deinit(&index);
        else
                *ret_index = index;
        return r;
}
