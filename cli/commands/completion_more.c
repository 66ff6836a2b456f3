/* SPDX-License-Identifier: Apache-2.0 */
/* The completions of `mfl` for zsh and fish, from the tables that bash's comes from. */
#include "cli/commands/commands.h"
#include "cli/commands/manual.h"
#include "cli/commands/options.h"

/* ---- zsh ---- */

/* Names come from the server that the line names. compadd takes them as they are: nothing is expanded. */
static const char zsh_functions[] =
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
static void print_zsh_option(FILE *out, const char *command, const struct mfl_cli_option *o)
{
        bool folder;
        char help[MFL_CLI_HELP_BYTES];
        fputs(" \\\n                        ", out);
        if (o->letter)
                fprintf(out, "'(-%c --%s)'{-%c,--%s%s}'[", o->letter, o->name, o->letter, o->name,
                        o->value ? "=" : "");
        else
                fprintf(out, "'%s--%s%s[", o->kind == KIND_LIST ? "*" : "", o->name, o->value ? "=" : "");
        print_escaped(out, mfl_cli_option_help(o, command, help, sizeof help), "[]:\\");
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

static void print_zsh_options(FILE *out, const struct mfl_cli_command *c)
{
        const struct mfl_cli_option *o;
        for (size_t i = 0; (o = mfl_cli_option_at(i)); i++)
                if (mfl_completion_takes(c, o))
                        print_zsh_option(out, c->name, o);
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

static void print_zsh_argument(FILE *out, const struct mfl_cli_command *c)
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
        fputs(zsh_functions, out);
        fputs("_mfl()\n{\n        local curcontext=$curcontext state\n        local -a line _mfl_line\n"
              "        typeset -A opt_args\n"
              "        _mfl_line=(\"${words[@]}\")\n"
              "        local -a commands=(\n",
                out);
        print_commands(out, true);
        fputs("        )\n        _arguments -C -S", out);
        print_zsh_options(out, &none);
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
                print_zsh_options(out, c);
                print_zsh_argument(out, c);
                fputs("\n                ;;\n", out);
        }
        /* As a file of $fpath it is the function itself; elsewhere it is read. */
        fputs("        esac\n}\n"
              "if [ \"$funcstack[1]\" = _mfl ]; then\n        _mfl \"$@\"\nelse\n        compdef _mfl "
              "mfl\nfi\n",
                out);
}

/* ---- fish ---- */

static const char fish_functions[] =
        "# Arguments before the cursor, without options and their values.\n"
        "function __mfl_arguments\n"
        "        set -l skip 0\n"
        "        for token in (commandline -opc)[2..-1]\n"
        "                if test $skip = 1\n"
        "                        set skip 0\n"
        "                else if contains -- $token $__mfl_with\n"
        "                        set skip 1\n"
        "                else if not string match -q -- '-*' $token\n"
        "                        echo $token\n"
        "                end\n"
        "        end\n"
        "end\n"
        "# __mfl_at COMMAND FROM TO: whether an argument of the command is written, number FROM to TO from 0 "
        "on.\n"
        "function __mfl_at\n"
        "        set -l have (__mfl_arguments)\n"
        "        set -l n (math (count $have) - 1)\n"
        "        test \"$have[1]\" = \"$argv[1]\"; and test $n -ge $argv[2]; and test $n -le $argv[3]\n"
        "end\n"
        "function __mfl_is\n"
        "        set -l have (__mfl_arguments)\n"
        "        test \"$have[1]\" = \"$argv[1]\"\n"
        "end\n"
        "function __mfl_none\n"
        "        test (count (__mfl_arguments)) -eq 0\n"
        "end\n"
        "# __mfl_ask COMMAND PATTERN: names from the server's answer; none if it does not answer within two "
        "seconds.\n"
        "function __mfl_ask\n"
        "        set -l line (commandline -opc)\n"
        "        set -l options\n"
        "        for i in (seq 2 (count $line))\n"
        "                switch $line[$i]\n"
        "                        case --plain '--server=*' '--tls-ca=*' '--tls-cert=*' '--tls-key=*'\n"
        "                                set -a options $line[$i]\n"
        "                        case --server --tls-ca --tls-cert --tls-key\n"
        "                                set -a options $line[$i] $line[(math $i + 1)]\n"
        "                end\n"
        "        end\n"
        "        timeout 2 $line[1] (string split ' ' $argv[1]) --json $options 2>/dev/null </dev/null |\n"
        "                grep -oE $argv[2] | cut -d '\"' -f 4\n"
        "end\n"
        "function __mfl_jobs\n"
        "        echo last\n"
        "        __mfl_ask list '" MFL_COMPLETION_JOB "'\n"
        "end\n"
        "function __mfl_daemons\n"
        "        __mfl_ask daemons '" MFL_COMPLETION_DAEMON "'\n"
        "end\n"
        "function __mfl_presets\n"
        "        __mfl_ask presets '" MFL_COMPLETION_PRESET "'\n"
        "end\n"
        "function __mfl_rules\n"
        "        switch (__mfl_arguments)[2]\n"
        "                case enable\n"
        "                        __mfl_ask 'daemons rules' '" MFL_COMPLETION_RULE "\"disable\"'\n"
        "                case disallow\n"
        "                        __mfl_ask 'daemons rules' '" MFL_COMPLETION_RULE "\"allow\"'\n"
        "                case disable allow\n"
        "                        __mfl_daemons\n"
        "        end\n"
        "end\n"
        "complete -c mfl -f\n";

/* In single quotes. A line ends as a blank. */
static void print_quoted(FILE *out, const char *text)
{
        fputc('\'', out);
        for (; *text; text++)
                fprintf(out, *text == '\'' || *text == '\\' ? "\\%c" : "%c", *text == '\n' ? ' ' : *text);
        fputc('\'', out);
}

static void print_fish_option(
        FILE *out, const char *condition, const char *command, const struct mfl_cli_option *o)
{
        bool folder;
        char help[MFL_CLI_HELP_BYTES];
        fprintf(out, "complete -c mfl -n '%s%s' -l %s", condition, command, o->name);
        if (o->letter)
                fprintf(out, " -s %c", o->letter);
        if (o->value && o->choices)
                fprintf(out, " -x -a '%s'", o->choices);
        else if (o->value && mfl_completion_is_path(o, &folder))
                fputs(folder ? " -x -a '(__fish_complete_directories)'" : " -r -F", out);
        else if (o->value)
                fputs(" -x", out);
        fputs(" -d ", out);
        print_quoted(out, mfl_cli_option_help(o, command, help, sizeof help));
        fputc('\n', out);
}

static void print_fish_options(FILE *out, const struct mfl_cli_command *c)
{
        const struct mfl_cli_option *o;
        for (size_t i = 0; (o = mfl_cli_option_at(i)); i++)
                if (mfl_completion_takes(c, o))
                        print_fish_option(out, *c->name ? "__mfl_is " : "__mfl_none", c->name, o);
}

static void print_fish_argument(FILE *out, const struct mfl_cli_command *c)
{
        static const char *const actions[] = {[MFL_COMPLETES_PRESETS] = "-a '(__mfl_presets)'",
                [MFL_COMPLETES_JOBS] = "-a '(__mfl_jobs)'",
                [MFL_COMPLETES_DAEMONS] = "-a '(__mfl_daemons)'",
                [MFL_COMPLETES_RULES] = "-a '(__mfl_rules)'",
                [MFL_COMPLETES_FILE] = "-F"};
        enum mfl_completes what = mfl_completion_of(c);
        int from = c->words ? 1 : 0, to = MFL_MAX(from, c->n_max - 1);
        if (c->words)
                fprintf(out, "complete -c mfl -n '__mfl_at %s 0 0' -a '%s'\n", c->name, c->words);
        if (what == MFL_COMPLETES_TOPICS) {
                fprintf(out, "complete -c mfl -n '__mfl_at %s 0 0' -a '", c->name);
                for (const struct mfl_cli_command *o = mfl_cli_commands; o->name; o++)
                        fprintf(out, "%s ", o->name);
                fputs(MFL_COMPLETION_TOPICS "'\n", out);
        } else if (what != MFL_COMPLETES_NOTHING) {
                fprintf(out, "complete -c mfl -n '__mfl_at %s %d %d' %s\n", c->name, from, to, actions[what]);
        }
}

void mfl_completion_print_fish(FILE *out)
{
        static const struct mfl_cli_command none = {.name = "", .options = "version"};
        const struct mfl_cli_option *o;
        fputs("# SPDX-License-Identifier: Apache-2.0\n"
              "# fish completion of mfl; made by: mfl help completion-fish\n"
              "set -g __mfl_with",
                out);
        for (size_t i = 0; (o = mfl_cli_option_at(i)); i++) {
                if (o->value)
                        fprintf(out, " --%s", o->name);
                if (o->value && o->letter)
                        fprintf(out, " -%c", o->letter);
        }
        fputc('\n', out);
        fputs(fish_functions, out);
        print_fish_options(out, &none);
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++) {
                fprintf(out, "complete -c mfl -n __mfl_none -a %s -d ", c->name);
                print_quoted(out, c->summary);
                fputc('\n', out);
                print_fish_options(out, c);
                print_fish_argument(out, c);
        }
}
