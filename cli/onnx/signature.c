/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a module's tensors that PyTorch's current exporter writes beside the graph: the signature of the program that it
 * exported. It has them all, also those that the exporter then merged, computed with, or left out:
 *
 *     p_fc_weight: PARAMETER target='fc.weight'
 *     b_mask: BUFFER target='mask' persistent=True
 *
 * Earlier versions wrote the same as Python prints it:
 *
 *     InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_fc_weight'), target='fc.weight', persistent=None)
 */
#include "cli/onnx/internal.h"

#define SIGNATURE "pkg.torch.export.ExportedProgram.graph_signature"
#define TARGET "target='"

struct onnx_said {
        char *name; /* NULL: a free place */
        enum onnx_role role;
};

static size_t slot_of(const struct onnx *o, const char *name)
{
        uint64_t h = 14695981039346656037u; /* FNV-1a */
        for (const char *p = name; *p; p++)
                h = (h ^ (unsigned char)*p) * 1099511628211u;
        size_t i = h & (o->n_said - 1);
        while (o->said[i].name && strcmp(o->said[i].name, name))
                i = (i + 1) & (o->n_said - 1);
        return i;
}

/* The last word before the target, or the one behind the last "InputKind.": what the tensor is. */
static enum onnx_role role_of(const char *from, const char *target)
{
        static const char kind[] = "InputKind.";
        const size_t n = sizeof kind - 1;
        const char *end = target, *word;
        while (end > from && end[-1] == ' ')
                end--;
        for (word = end; word > from && word[-1] != ' ' && word[-1] != '\n';)
                word--;
        if (end > word && end[-1] == ',') {
                for (word = end - n; word > from && memcmp(word, kind, n) != 0;)
                        word--;
                if (word <= from)
                        return ONNX_NOT_SAID;
                word += n;
                end = word + strcspn(word, ":>,");
        }
        if (end - word == 9 && !memcmp(word, "PARAMETER", 9))
                return ONNX_PARAMETER;
        return end - word == 6 && !memcmp(word, "BUFFER", 6) ? ONNX_BUFFER : ONNX_NOT_SAID;
}

static int add(struct onnx *o, const char *name, size_t n, enum onnx_role role)
{
        char *copy = mfl_onnx_alloc(o, n + 1, 1);
        if (!copy)
                return onnx_memory(o);
        memcpy(copy, name, n);
        struct onnx_said *said = &o->said[slot_of(o, copy)];
        if (!said->name)
                *said = (struct onnx_said){copy, role};
        return 0;
}

int mfl_onnx_read_signature(struct onnx *o)
{
        const char *text = NULL;
        size_t n = 0, places = 16;
        int r = 0;
        for (size_t k = 0; k < o->graph->n_metadata_props; k++) {
                const Onnx__StringStringEntryProto *entry = o->graph->metadata_props[k];
                if (entry->key && entry->value && !strcmp(entry->key, SIGNATURE))
                        text = entry->value;
        }
        for (const char *at = text; at && (at = strstr(at, TARGET)); at++)
                n++;
        if (!n)
                return 0;
        while (places < 2 * n + 2)
                places *= 2;
        if (!(o->said = mfl_onnx_alloc(o, places, sizeof *o->said)))
                return onnx_memory(o);
        o->n_said = places;
        for (const char *from = text, *at; !r && (at = strstr(from, TARGET));) {
                const char *name = at + sizeof TARGET - 1;
                size_t length = strcspn(name, "'");
                enum onnx_role role = role_of(from, at);
                if (role)
                        r = add(o, name, length, role);
                from = name + length;
        }
        return r;
}

enum onnx_role mfl_onnx_role(const struct onnx *o, const char *name)
{
        return o->said ? o->said[slot_of(o, name)].role : ONNX_NOT_SAID;
}

const char *mfl_onnx_said_name(const struct onnx *o, size_t i)
{
        return i < o->n_said && o->said[i].name ? o->said[i].name : NULL;
}
