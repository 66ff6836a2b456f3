/* SPDX-License-Identifier: Apache-2.0 */
/* The completion of `mfl` for bash: commands, options and words from the tables, names of jobs and daemons
 * from the server. */
#include "cli/commands/manual.h"

#include "cli/commands/commands.h"
#include "cli/commands/options.h"

/* The completion asks the server only when a name is needed, for at most two seconds. It takes the address
 * and the certificates from the command line. */
static const char functions[] =
        "_mfl_words()\n"
        "{\n"
        "        mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$cur\")\n"
        "}\n"
        "_mfl_files()\n"
        "{\n"
        "        compopt -o filenames 2>/dev/null\n"
        "        mapfile -t COMPREPLY < <(compgen \"$1\" -- \"$cur\")\n"
        "}\n"
        "# _mfl_ask COMMAND PATTERN: the server's answer; nothing if there is none. compgen expands words\n"
        "# like the shell, so PATTERN must match only plain names. COMMAND may be several words.\n"
        "_mfl_ask()\n"
        "{\n"
        "        local i options=()\n"
        "        for ((i = 1; i < COMP_CWORD; i++)); do\n"
        "                case ${COMP_WORDS[i]} in\n"
        "                --plain) options+=(--plain) ;;\n"
        "                --server | --tls-ca | --tls-cert | --tls-key)\n"
        "                        if [ \"${COMP_WORDS[i + 1]}\" = = ]; then\n"
        "                                options+=(\"${COMP_WORDS[i]}\" \"${COMP_WORDS[i + 2]}\")\n"
        "                        else\n"
        "                                options+=(\"${COMP_WORDS[i]}\" \"${COMP_WORDS[i + 1]}\")\n"
        "                        fi\n"
        "                        # bash makes three words of HOST:PORT.\n"
        "                        if [ \"${COMP_WORDS[i]}\" = --server ]; then\n"
        "                                local at=$((i + 1))\n"
        "                                [ \"${COMP_WORDS[at]}\" = = ] && at=$((at + 1))\n"
        "                                [ \"${COMP_WORDS[at + 1]}\" = : ] &&\n"
        "                                        options[-1]=${COMP_WORDS[at]}:${COMP_WORDS[at + 2]}\n"
        "                        fi\n"
        "                        ;;\n"
        "                esac\n"
        "        done\n"
        "        timeout 2 \"${COMP_WORDS[0]}\" $1 --json \"${options[@]}\" 2>/dev/null </dev/null |\n"
        "                grep -oE \"$2\" | cut -d '\"' -f 4\n"
        "}\n"
        "_mfl_jobs()\n"
        "{\n"
        "        _mfl_words \"last $(_mfl_ask list '" MFL_COMPLETION_JOB "')\"\n"
        "}\n"
        "_mfl_daemons()\n"
        "{\n"
        "        _mfl_words \"$(_mfl_ask daemons '" MFL_COMPLETION_DAEMON "')\"\n"
        "}\n"
        "# _mfl_rules RULE: the patterns of such rules, quoted. In cn:x, bash replaces only the part after "
        "':'.\n"
        "_mfl_rules()\n"
        "{\n"
        "        local pattern head=\n"
        "        if [[ $cur == : ]]; then\n"
        "                head=$prev:\n"
        "                cur=\n"
        "        elif [ \"$prev\" = : ]; then\n"
        "                head=${COMP_WORDS[COMP_CWORD - 2]}:\n"
        "        fi\n"
        "        while read -r pattern; do\n"
        "                [[ $pattern != \"$head$cur\"* ]] || COMPREPLY+=(\"$(printf %q "
        "\"${pattern#\"$head\"}\")\")\n"
        "        done < <(_mfl_ask 'daemons rules' '" MFL_COMPLETION_RULE "\"'\"$1\"'\"')\n"
        "}\n";

static const char head[] = "        local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
                           "        local i command= verb= n=0\n"
                           "        COMPREPLY=()\n"
                           "        # bash makes three words of --name=value.\n"
                           "        if [ \"$cur\" = = ]; then\n"
                           "                cur=\n"
                           "        elif [ \"$prev\" = = ]; then\n"
                           "                prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
                           "        fi\n"
                           "        case $prev in\n";

/* After the values of options: finds the command, its first argument, and the number of arguments before the
 * cursor. */
static const char middle[] = "        esac\n"
                             "        for ((i = 1; i < COMP_CWORD; i++)); do\n"
                             "                case ${COMP_WORDS[i]} in\n"
                             "                = | :)\n"
                             "                        i=$((i + 1))\n"
                             "                        ;;\n"
                             "                -*)\n"
                             "                        if [[ $with == *\" ${COMP_WORDS[i]} \"* ]]; then\n"
                             "                                i=$((i + 1))\n"
                             "                                [ \"${COMP_WORDS[i]}\" = = ] && i=$((i + 1))\n"
                             "                        fi\n"
                             "                        ;;\n"
                             "                *)\n"
                             "                        if [ -n \"$command\" ]; then\n"
                             "                                [ \"$n\" -gt 0 ] || verb=${COMP_WORDS[i]}\n"
                             "                                n=$((n + 1))\n"
                             "                        else\n"
                             "                                command=${COMP_WORDS[i]}\n"
                             "                        fi\n"
                             "                        ;;\n"
                             "                esac\n"
                             "        done\n";

static void print_values(FILE *out)
{
        const struct mfl_cli_option *o;
        bool folder;
        for (size_t i = 0; (o = mfl_cli_option_at(i)); i++) {
                if (!o->value)
                        continue;
                fprintf(out, "        --%s%s%c)\n", o->name, o->letter ? " | -" : "",
                        o->letter ? o->letter : ' ');
                if (o->choices)
                        fprintf(out, "                _mfl_words '%s'\n", o->choices);
                else if (mfl_completion_is_path(o, &folder))
                        fprintf(out, "                _mfl_files -%c\n", folder ? 'd' : 'f');
                fputs("                return\n                ;;\n", out);
        }
}

/* The options that take a value: the value is not an argument of the command. */
static void print_with_value(FILE *out)
{
        const struct mfl_cli_option *o;
        fputs("_mfl()\n{\n        local with=' ", out);
        for (size_t i = 0; (o = mfl_cli_option_at(i)); i++)
                if (o->value) {
                        fprintf(out, "--%s ", o->name);
                        if (o->letter)
                                fprintf(out, "-%c ", o->letter);
                }
        fputs("'\n", out);
}

static void print_names(FILE *out, const char *names, bool local)
{
        const struct mfl_cli_option *o;
        for (size_t i = 0; (o = mfl_cli_option_at(i)); i++)
                if (mfl_cli_name_in(names, o->name) || mfl_cli_name_in(mfl_cli_common_options, o->name) ||
                        (!local && mfl_cli_name_in(mfl_cli_server_options, o->name)))
                        fprintf(out, " --%s", o->name);
}

static void print_commands(FILE *out)
{
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++)
                fprintf(out, "%s%s", c == mfl_cli_commands ? "" : " ", c->name);
}

/* The words of the usage line say what the arguments are. */
enum mfl_completes mfl_completion_of(const struct mfl_cli_command *c)
{
        if (!strcmp(c->name, "help"))
                return MFL_COMPLETES_TOPICS;
        if (!strcmp(c->name, "presets"))
                return MFL_COMPLETES_PRESETS;
        if (!strcmp(c->name, "daemons"))
                return MFL_COMPLETES_RULES;
        if (!strncmp(c->arguments, "JOB", 3))
                return MFL_COMPLETES_JOBS;
        if (!strncmp(c->arguments, "DAEMON", 6))
                return MFL_COMPLETES_DAEMONS;
        return strstr(c->arguments, "job.yaml") ? MFL_COMPLETES_FILE : MFL_COMPLETES_NOTHING;
}

bool mfl_completion_is_path(const struct mfl_cli_option *o, bool *ret_folder)
{
        *ret_folder = !strcmp(o->value, "DIR");
        return *ret_folder || !strncmp(o->value, "FILE", 4);
}

bool mfl_completion_takes(const struct mfl_cli_command *c, const struct mfl_cli_option *o)
{
        return mfl_cli_name_in(c->options, o->name) || mfl_cli_name_in(mfl_cli_common_options, o->name) ||
               (!c->local && mfl_cli_name_in(mfl_cli_server_options, o->name));
}

/* The table's `words` come first. */
static void print_argument(FILE *out, const struct mfl_cli_command *c)
{
        if (c->words)
                fprintf(out, "                [ \"$n\" -gt 0 ] || _mfl_words '%s'\n", c->words);
        switch (mfl_completion_of(c)) {
        case MFL_COMPLETES_TOPICS:
                fputs("                [ \"$n\" -gt 0 ] || _mfl_words '", out);
                print_commands(out);
                fputs(" " MFL_COMPLETION_TOPICS "'\n", out);
                break;
        case MFL_COMPLETES_PRESETS:
                fputs("                [ \"$n\" -gt 0 ] || _mfl_words \"$(_mfl_ask presets "
                      "'" MFL_COMPLETION_PRESET "')\"\n",
                        out);
                break;
        case MFL_COMPLETES_RULES:
                fputs("                case $n$verb in\n"
                      "                1enable | 2enable) _mfl_rules disable ;;\n"
                      "                1disallow | 2disallow) _mfl_rules allow ;;\n"
                      "                1disable | 1allow) _mfl_daemons ;;\n"
                      "                esac\n",
                        out);
                break;
        case MFL_COMPLETES_JOBS:
                fputs("                [ \"$n\" -gt 0 ] || _mfl_jobs\n", out);
                break;
        case MFL_COMPLETES_DAEMONS:
                fputs("                [ \"$n\" -gt 0 ] || _mfl_daemons\n", out);
                break;
        case MFL_COMPLETES_FILE:
                fprintf(out, "                [ \"$n\" != %d ] || _mfl_files -f\n", c->words ? 1 : 0);
                break;
        case MFL_COMPLETES_NOTHING:
                break;
        }
}

void mfl_completion_print(FILE *out)
{
        fprintf(out,
                "# SPDX-License-Identifier: Apache-2.0\n"
                "# bash completion of mfl; made by: mfl help completion\n%s",
                functions);
        print_with_value(out);
        fputs(head, out);
        print_values(out);
        fputs(middle, out);
        fputs("        if [ -z \"$command\" ] && [[ $cur != -* ]]; then\n                _mfl_words '", out);
        print_commands(out);
        fputs("'\n                return\n        fi\n        case $command in\n        '')\n                "
              "_mfl_words '--version",
                out);
        print_names(out, "", false);
        fputs("'\n                ;;\n", out);
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++) {
                fprintf(out,
                        "        %s)\n                if [[ $cur == -* ]]; then\n                        "
                        "_mfl_words '",
                        c->name);
                print_names(out, c->options, c->local);
                fputs("'\n                        return\n                fi\n", out);
                print_argument(out, c);
                fputs("                ;;\n", out);
        }
        fputs("        esac\n}\ncomplete -F _mfl mfl\n", out);
}
