/* SPDX-License-Identifier: Apache-2.0 */
/* The completion of `mfl` for fish, from the tables that bash's comes from. */
#include "cli/completion/completion.h"
#include "cli/commands/manual.h"

static const char functions[] =
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

static void print_option(
        FILE *out, const char *condition, const char *command, const struct mfl_cli_option *o)
{
        bool folder;
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
        print_quoted(out, o->help);
        fputc('\n', out);
}

static void print_options(FILE *out, const struct mfl_cli_command *c)
{
        const struct mfl_cli_option *o;
        for (size_t i = 0; (o = mfl_cli_option_at(i)); i++)
                if (mfl_completion_takes(c, o))
                        print_option(out, *c->name ? "__mfl_is " : "__mfl_none", c->name, o);
}

static void print_argument(FILE *out, const struct mfl_cli_command *c)
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
        fputs(functions, out);
        print_options(out, &none);
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++) {
                fprintf(out, "complete -c mfl -n __mfl_none -a %s -d ", c->name);
                print_quoted(out, c->summary);
                fputc('\n', out);
                print_options(out, c);
                print_argument(out, c);
        }
}
