/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to etcd's JSON gateway with libcurl. See etcd.h. */
#include "server/cluster/etcd.h"

#include <curl/curl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>

#include "server/cluster/base64.h"

#define ANSWER_MAX ((size_t)64 << 20)

struct mfl_etcd {
        CURL *curl;
        struct curl_slist *headers;
        char *endpoints, *endpoint[MFL_ETCD_ENDPOINTS_MAX];
        uint32_t n_endpoints, current;
        char *answer;
        size_t n_answer, room;
        bool too_large;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_curl(void)
{
        curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t on_bytes(char *data, size_t size, size_t n, void *user)
{
        struct mfl_etcd *etcd = user;
        size_t bytes = size * n;
        if (etcd->n_answer + bytes + 1 > etcd->room) {
                size_t room = MFL_MAX(2 * etcd->room, etcd->n_answer + bytes + 1);
                char *grown = etcd->n_answer + bytes < ANSWER_MAX ? mfl_realloc(etcd->answer, room) : NULL;
                if (!grown) {
                        etcd->too_large = true;
                        return 0;
                }
                etcd->answer = grown;
                etcd->room = room;
        }
        memcpy(etcd->answer + etcd->n_answer, data, bytes);
        etcd->n_answer += bytes;
        etcd->answer[etcd->n_answer] = 0;
        return bytes;
}

/* ---- opening ---- */

static int split_endpoints(struct mfl_etcd *etcd, const char *text, struct mfl_error *err)
{
        char *rest = etcd->endpoints = mfl_strdup(text), *one;
        if (!rest)
                return mfl_fail_memory(err, strlen(text), "a list of addresses");
        while ((one = strsep(&rest, ","))) {
                size_t n = strlen(one);
                if (n && one[n - 1] == '/')
                        one[n - 1] = 0;
                if (strncmp(one, "http://", 7) != 0 && strncmp(one, "https://", 8) != 0)
                        return mfl_fail(err, MFL_INVALID,
                                "cluster: etcd: '%.100s': expected a URL such as https://etcd-1:2379", one);
                if (etcd->n_endpoints == MFL_ETCD_ENDPOINTS_MAX)
                        return mfl_fail(err, MFL_INVALID, "cluster: etcd: more than %d addresses",
                                MFL_ETCD_ENDPOINTS_MAX);
                etcd->endpoint[etcd->n_endpoints++] = one;
        }
        return 0;
}

int mfl_etcd_new(const struct mfl_etcd_options *options, struct mfl_etcd **ret_etcd, struct mfl_error *err)
{
        pthread_once(&once, init_curl);
        struct mfl_etcd *etcd = mfl_calloc(1, sizeof *etcd);
        if (!etcd)
                return mfl_fail_memory(err, sizeof *etcd, "a connection to etcd");
        int r = split_endpoints(etcd, options->endpoints, err);
        etcd->curl = curl_easy_init();
        etcd->headers = curl_slist_append(NULL, "Content-Type: application/json");
        if (!r && (!etcd->curl || !etcd->headers))
                r = mfl_fail_memory(err, 1 << 16, "a connection to etcd");
        if (r) {
                mfl_etcd_free(etcd);
                return r;
        }
        CURL *curl = etcd->curl;
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, etcd->headers);
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)options->timeout_ms);
        curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)options->timeout_ms);
        curl_easy_setopt(curl, CURLOPT_PROXY, "");
        curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, etcd);
        if (*options->ca)
                curl_easy_setopt(curl, CURLOPT_CAINFO, options->ca);
        if (*options->cert)
                curl_easy_setopt(curl, CURLOPT_SSLCERT, options->cert);
        if (*options->key)
                curl_easy_setopt(curl, CURLOPT_SSLKEY, options->key);
        *ret_etcd = etcd;
        return 0;
}

void mfl_etcd_free(struct mfl_etcd *etcd)
{
        if (!etcd)
                return;
        curl_easy_cleanup(etcd->curl);
        curl_slist_free_all(etcd->headers);
        free(etcd->endpoints);
        free(etcd->answer);
        free(etcd);
}

void mfl_etcd_values_deinit(struct mfl_etcd_values *values)
{
        for (uint32_t i = 0; i < values->n; i++)
                free(values->v[i].bytes);
        free(values->v);
        *values = (struct mfl_etcd_values){0};
}

/* ---- requests ---- */

/* Whether a request that ended so can't have reached a member. */
static bool never_sent(CURLcode code)
{
        return code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST ||
               code == CURLE_SSL_CONNECT_ERROR || code == CURLE_PEER_FAILED_VERIFICATION ||
               code == CURLE_SSL_CERTPROBLEM || code == CURLE_SSL_CACERT_BADFILE;
}

static void next_endpoint(struct mfl_etcd *etcd)
{
        etcd->current = (etcd->current + 1) % etcd->n_endpoints;
}

static int send_text(struct mfl_etcd *etcd, const char *path, const char *body, struct mfl_error *err)
{
        char url[512];
        long status = 0;
        snprintf(url, sizeof url, "%.400s/v3/%s", etcd->endpoint[etcd->current], path);
        etcd->n_answer = 0;
        etcd->too_large = false;
        curl_easy_setopt(etcd->curl, CURLOPT_URL, url);
        curl_easy_setopt(etcd->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
        curl_easy_setopt(etcd->curl, CURLOPT_POSTFIELDS, body);
        CURLcode code = curl_easy_perform(etcd->curl);
        curl_easy_getinfo(etcd->curl, CURLINFO_RESPONSE_CODE, &status);
        if (!code && status == 200)
                return 0;
        next_endpoint(etcd);
        if (code)
                return mfl_fail(err, never_sent(code) ? MFL_ETCD_AWAY : MFL_ETCD_UNKNOWN, "etcd %.200s: %s",
                        url, etcd->too_large ? "the answer is too large" : curl_easy_strerror(code));
        return mfl_fail(err, MFL_ETCD_UNKNOWN, "etcd %.200s: status %ld: %.200s", url, status,
                etcd->n_answer ? etcd->answer : "");
}

/* Takes over the request. */
static int ask(
        struct mfl_etcd *etcd, const char *path, json_t *request, json_t **ret_answer, struct mfl_error *err)
{
        char *body = request ? json_dumps(request, JSON_COMPACT) : NULL;
        json_decref(request);
        if (!body)
                return mfl_fail_memory(err, 1024, "a request to etcd");
        int r = send_text(etcd, path, body, err);
        free(body);
        if (r)
                return r;
        json_error_t why;
        json_t *answer =
                json_loadb(etcd->n_answer ? etcd->answer : "", etcd->n_answer, JSON_REJECT_DUPLICATES, &why);
        if (!json_is_object(answer)) {
                json_decref(answer);
                next_endpoint(etcd);
                return mfl_fail(
                        err, MFL_ETCD_UNKNOWN, "etcd %s: the answer is not JSON: %.100s", path, why.text);
        }
        *ret_answer = answer;
        return 0;
}

/* etcd writes 64-bit numbers as strings. */
static uint64_t number_of(const json_t *object, const char *key)
{
        const json_t *value = json_object_get(object, key);
        if (json_is_string(value))
                return strtoull(json_string_value(value), NULL, 10);
        return json_is_integer(value) ? (uint64_t)json_integer_value(value) : 0;
}

static json_t *make_number(uint64_t value)
{
        char text[24];
        snprintf(text, sizeof text, "%llu", (unsigned long long)value);
        return json_string(text);
}

static json_t *make_bytes(const void *bytes, size_t n)
{
        char *text = mfl_malloc(mfl_base64_room(n));
        if (!text)
                return NULL;
        mfl_base64_write(bytes, n, text);
        json_t *value = json_string(text);
        free(text);
        return value;
}

static json_t *make_key(const char *key)
{
        return make_bytes(key, strlen(key));
}

/* ---- leases ---- */

int mfl_etcd_grant(struct mfl_etcd *etcd, uint32_t ttl_s, uint64_t *ret_lease, uint32_t *ret_ttl_s,
        struct mfl_error *err)
{
        json_t *answer;
        int r = ask(etcd, "lease/grant", json_pack("{s:o}", "TTL", make_number(ttl_s)), &answer, err);
        if (r)
                return r;
        *ret_lease = number_of(answer, "ID");
        *ret_ttl_s = (uint32_t)number_of(answer, "TTL");
        json_decref(answer);
        return *ret_lease && *ret_ttl_s ? 0
                                        : mfl_fail(err, MFL_ETCD_UNKNOWN, "etcd: a lease without a number");
}

int mfl_etcd_keep(struct mfl_etcd *etcd, uint64_t lease, uint32_t *ret_ttl_s, struct mfl_error *err)
{
        json_t *answer;
        int r = ask(etcd, "lease/keepalive", json_pack("{s:o}", "ID", make_number(lease)), &answer, err);
        if (r)
                return r;
        const json_t *result = json_object_get(answer, "result");
        bool there = json_is_object(result);
        *ret_ttl_s = (uint32_t)number_of(result, "TTL");
        json_decref(answer);
        return there ? 0 : mfl_fail(err, MFL_ETCD_UNKNOWN, "etcd: no answer to keepalive");
}

int mfl_etcd_revoke(struct mfl_etcd *etcd, uint64_t lease, struct mfl_error *err)
{
        json_t *answer;
        int r = ask(etcd, "lease/revoke", json_pack("{s:o}", "ID", make_number(lease)), &answer, err);
        if (!r)
                json_decref(answer);
        return r;
}

/* ---- keys ---- */

static int read_value(const json_t *kv, struct mfl_etcd_value *value, struct mfl_error *err)
{
        const json_t *key = json_object_get(kv, "key"), *bytes = json_object_get(kv, "value");
        size_t n_key = 0, n_text = bytes ? json_string_length(bytes) : 0;
        uint8_t name[MFL_ETCD_KEY_BYTES + 4];
        value->created = number_of(kv, "create_revision");
        if (!json_is_string(key) || json_string_length(key) > MFL_ETCD_KEY_BYTES ||
                !mfl_base64_read(json_string_value(key), json_string_length(key), name, &n_key) ||
                n_key >= MFL_ETCD_KEY_BYTES)
                return mfl_fail(err, MFL_ETCD_UNKNOWN, "etcd: a key that is not ours");
        memcpy(value->key, name, n_key);
        value->key[n_key] = 0;
        value->bytes = mfl_malloc(n_text + 4);
        if (!value->bytes)
                return mfl_fail_memory(err, n_text, "a value of etcd");
        if (n_text && !mfl_base64_read(json_string_value(bytes), n_text, value->bytes, &value->n))
                return mfl_fail(err, MFL_ETCD_UNKNOWN, "etcd: the value of %s is not base64", value->key);
        return 0;
}

int mfl_etcd_range(struct mfl_etcd *etcd, const char *first, const char *end, uint32_t limit,
        struct mfl_etcd_values *ret_values, struct mfl_error *err)
{
        json_t *answer;
        int r = ask(etcd, "kv/range",
                json_pack("{s:o,s:o,s:o}", "key", make_key(first), "range_end", make_key(end), "limit",
                        make_number(limit)),
                &answer, err);
        if (r)
                return r;
        const json_t *kvs = json_object_get(answer, "kvs");
        struct mfl_etcd_values values = {0};
        size_t n = json_array_size(kvs);
        values.v = n ? mfl_calloc(n, sizeof *values.v) : NULL;
        if (n && !values.v)
                r = mfl_fail_memory(err, n * sizeof *values.v, "values of etcd");
        for (size_t i = 0; i < n && !r; i++) {
                values.n++;
                r = read_value(json_array_get(kvs, i), &values.v[i], err);
        }
        json_decref(answer);
        if (r)
                mfl_etcd_values_deinit(&values);
        else
                *ret_values = values;
        return r;
}

/* {"request_put": ...} */
static json_t *make_put(const char *key, const void *value, size_t n, uint64_t lease)
{
        return json_pack("{s:{s:o,s:o,s:o}}", "request_put", "key", make_key(key), "value",
                make_bytes(value, n), "lease", make_number(lease));
}

static json_t *make_absent(const char *key)
{
        return json_pack("{s:s,s:s,s:o,s:o}", "target", "VERSION", "result", "EQUAL", "key", make_key(key),
                "version", make_number(0));
}

/* Takes over both lists. */
static int transact(
        struct mfl_etcd *etcd, json_t *compare, json_t *then, bool *ret_done, struct mfl_error *err)
{
        json_t *answer;
        int r = ask(
                etcd, "kv/txn", json_pack("{s:o,s:o}", "compare", compare, "success", then), &answer, err);
        if (r)
                return r;
        bool there = json_is_object(json_object_get(answer, "header"));
        *ret_done = json_is_true(json_object_get(answer, "succeeded"));
        json_decref(answer);
        return there ? 0 : mfl_fail(err, MFL_ETCD_UNKNOWN, "etcd: no answer to a transaction");
}

int mfl_etcd_create(struct mfl_etcd *etcd, const char *key, const void *value, size_t n, uint64_t lease,
        bool *ret_done, struct mfl_error *err)
{
        return transact(etcd, json_pack("[o]", make_absent(key)),
                json_pack("[o]", make_put(key, value, n, lease)), ret_done, err);
}

int mfl_etcd_commit(
        struct mfl_etcd *etcd, const struct mfl_etcd_commit *commit, bool *ret_done, struct mfl_error *err)
{
        json_t *guard = json_pack("{s:s,s:s,s:o,s:o}", "target", "CREATE", "result", "EQUAL", "key",
                make_key(commit->guard), "create_revision", make_number(commit->term));
        json_t *then = json_pack("[o]", make_put(commit->key, commit->value, commit->n, 0));
        if (*commit->drop_first)
                json_array_append_new(
                        then, json_pack("{s:{s:o,s:o}}", "request_delete_range", "key",
                                      make_key(commit->drop_first), "range_end", make_key(commit->drop_end)));
        return transact(etcd, json_pack("[o,o]", guard, make_absent(commit->key)), then, ret_done, err);
}
