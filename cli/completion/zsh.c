/* SPDX-License-Identifier: Apache-2.0 */
/* The completion of `mfl` for zsh, from the tables that bash's comes from. */
#include "cli/completion/completion.h"
#include "cli/commands/manual.h"

/* Names come from the server that the line names. compadd takes them as they are: nothing is expanded. */
static const char functions[] =
        "#compdef mfl\n"
        "# SPDX-License-Identifier: Apache-2.0\n"
        "# zsh completion of mfl; made by: mfl help completion-zsh\n"
        "# _mfl_ask COMMAND PATTERN: names from the server's answer; none if it does not answer within two "
        "seconds.\n"
        "_mfl_ask()\n"
        "{\n"
        "        local i\n"
        "        local -a options\n"
        "        for ((i = 2; i < $#_mfl_line; i++)); do\n"
        "                case ${_mfl_line[i]} in\n"
        "                --plain | --server=* | --tls-ca=* | --tls-cert=* | --tls-key=*) "
        "options+=(${_mfl_line[i]}) ;;\n"
        "                --server | --tls-ca | --tls-cert | --tls-key) options+=(${_mfl_line[i]} "
        "${_mfl_line[i+1]}) ;;\n"
        "                esac\n"
        "        done\n"
        "        command timeout 2 ${_mfl_line[1]} ${=1} --json $options 2>/dev/null </dev/null | grep -oE "
        "$2 | cut -d '\"' -f 4\n"
        "}\n"
        "_mfl_names()\n"
        "{\n"
        "        local -a found\n"
        "        found=(${=1} ${(f)\"$(_mfl_ask $2 $3)\"})\n"
        "        compadd -a found\n"
        "}\n"
        "_mfl_jobs()\n"
        "{\n"
        "        _mfl_names last list '" MFL_COMPLETION_JOB "'\n"
        "}\n"
        "_mfl_daemons()\n"
        "{\n"
        "        _mfl_names '' daemons '" MFL_COMPLETION_DAEMON "'\n"
        "}\n"
        "_mfl_presets()\n"
        "{\n"
        "        _mfl_names '' presets '" MFL_COMPLETION_PRESET "'\n"
        "}\n"
        "_mfl_rules()\n"
        "{\n"
        "        case ${line[1]} in\n"
        "        enable) _mfl_names '' 'daemons rules' '" MFL_COMPLETION_RULE "\"disable\"' ;;\n"
        "        disallow) _mfl_names '' 'daemons rules' '" MFL_COMPLETION_RULE "\"allow\"' ;;\n"
        "        disable | allow) _mfl_daemons ;;\n"
        "        esac\n"
        "}\n";

/* Inside single quotes, where `special` characters mean something to _arguments or _describe. A line ends as a blank. */
static void print_escaped(FILE *out, const char *text, const char *special)
{
        for (; *text; text++) {
                if (*text == '\'')
                        fputs("'\\''", out);
                else if (*text == '\n')
                        fputc(' ', out);
                else
                        fprintf(out, strchr(special, *text) ? "\\%c" : "%c", *text);
        }
}

/* A specification of _arguments: '--name=[help]:VALUE:action'. */
static void print_option(FILE *out, const struct mfl_cli_option *o)
{
        bool folder;
        fputs(" \\\n                        ", out);
        if (o->letter)
                fprintf(out, "'(-%c --%s)'{-%c,--%s%s}'[", o->letter, o->name, o->letter, o->name,
                        o->value ? "=" : "");
        else
                fprintf(out, "'%s--%s%s[", o->kind == KIND_LIST ? "*" : "", o->name, o->value ? "=" : "");
        print_escaped(out, o->help, "[]:\\");
        fputc(']', out);
        if (o->value) {
                fputc(':', out);
                print_escaped(out, o->value, ":\\");
                if (o->choices)
                        fprintf(out, ":(%s)", o->choices);
                else if (mfl_completion_is_path(o, &folder))
                        fprintf(out, ":_files%s", folder ? " -/" : "");
                else
                        fputs(": ", out);
        }
        fputc('\'', out);
}

static void print_options(FILE *out, const struct mfl_cli_command *c)
{
        const struct mfl_cli_option *o;
        for (size_t i = 0; (o = mfl_cli_option_at(i)); i++)
                if (mfl_completion_takes(c, o))
                        print_option(out, o);
}

static void print_commands(FILE *out, bool described)
{
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++) {
                if (!described) {
                        fprintf(out, "%s ", c->name);
                        continue;
                }
                fprintf(out, "                '%s:", c->name);
                print_escaped(out, c->summary, ":\\");
                fputs("'\n", out);
        }
}

static void print_argument(FILE *out, const struct mfl_cli_command *c)
{
        static const char *const actions[] = {[MFL_COMPLETES_PRESETS] = "preset:_mfl_presets",
                [MFL_COMPLETES_JOBS] = "job:_mfl_jobs",
                [MFL_COMPLETES_DAEMONS] = "daemon:_mfl_daemons",
                [MFL_COMPLETES_RULES] = "pattern:_mfl_rules",
                [MFL_COMPLETES_FILE] = "job file:_files"};
        enum mfl_completes what = mfl_completion_of(c);
        int at = 1;
        if (c->words)
                fprintf(out, " \\\n                        '%d:word:(%s)'", at++, c->words);
        if (what == MFL_COMPLETES_TOPICS) {
                fprintf(out, " \\\n                        '%d:topic:(", at);
                print_commands(out, false);
                fputs(MFL_COMPLETION_TOPICS ")'", out);
        } else if (what != MFL_COMPLETES_NOTHING) {
                fprintf(out, " \\\n                        '%c:%s'", c->n_max > at ? '*' : '0' + at,
                        actions[what]);
        }
}

void mfl_completion_print_zsh(FILE *out)
{
        static const struct mfl_cli_command none = {.name = "", .options = ""};
        fputs(functions, out);
        fputs("_mfl()\n{\n        local curcontext=$curcontext state\n        local -a line _mfl_line\n"
              "        typeset -A opt_args\n"
              "        _mfl_line=(\"${words[@]}\")\n"
              "        local -a commands=(\n",
                out);
        print_commands(out, true);
        fputs("        )\n        _arguments -C -S", out);
        print_options(out, &none);
        fputs(" \\\n                        '--version[show the version]' \\\n"
              "                        '1:command:->command' '*::argument:->argument'\n"
              "        if [[ $state = command ]]; then\n"
              "                _describe -t commands command commands\n"
              "                return\n"
              "        fi\n"
              "        [[ $state = argument ]] || return\n"
              "        case ${words[1]} in\n",
                out);
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++) {
                fprintf(out, "        %s)\n                _arguments -S", c->name);
                print_options(out, c);
                print_argument(out, c);
                fputs("\n                ;;\n", out);
        }
        /* As a file of $fpath it is the function itself; elsewhere it is read. */
        fputs("        esac\n}\n"
              "if [ \"$funcstack[1]\" = _mfl ]; then\n        _mfl \"$@\"\nelse\n        compdef _mfl "
              "mfl\nfi\n",
                out);
}
