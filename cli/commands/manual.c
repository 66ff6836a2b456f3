/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the man page of `mfl` from the tables of commands and options. */
#include "cli/commands/manual.h"

#include "cli/commands/commands.h"
#include "cli/commands/options.h"

static void print_options(struct mfl_page *page, const char *names)
{
        char term[96];
        const struct mfl_cli_option *o;
        for (size_t i = 0; (o = mfl_cli_option_at(i)); i++) {
                if (!mfl_cli_name_in(names, o->name))
                        continue;
                mfl_snprintf(term, sizeof term, "--%s%s%s", o->name, o->value ? " " : "",
                        o->value ? o->value : "");
                mfl_page_item(page, term);
                if (o->letter)
                        fprintf(page->out, "(\\-%c) ", o->letter);
                mfl_page_text(page, *o->help ? o->help : "see the option above");
        }
        mfl_page_items_end(page);
}

static void print_command(struct mfl_page *page, const struct mfl_cli_command *c)
{
        char title[160];
        mfl_snprintf(title, sizeof title, "mfl %s%s%s", c->name, *c->arguments ? " " : "", c->arguments);
        mfl_page_subsection(page, title);
        mfl_snprintf(title, sizeof title, "%s.\n\n", c->summary);
        mfl_page_text(page, title);
        print_options(page, c->options);
        mfl_page_text(page, c->text + (*c->text == '\n'));
}

static void print_topic(struct mfl_page *page, const char *title, const char *name)
{
        mfl_page_section(page, title);
        mfl_page_text(page, mfl_help_topic_text(name));
}

static const char environment[] =
        "  MFL_SERVER         the server, HOST:PORT, without --server\n"
        "  MFL_TLS_CA, MFL_TLS_CERT, MFL_TLS_KEY\n"
        "                     certificates, like --tls-ca, --tls-cert and --tls-key\n"
        "  XDG_CONFIG_HOME    contains the folder mfl with certificates; default ~/.config\n"
        "  NO_COLOR           if not empty, no colours";
static const char files[] = "  ~/.config/mfl/ca.pem, cert.pem, key.pem    certificates, see TLS\n"
                            "  ~/.config/mfl/pki                          the private CA of mfl pki";

void mfl_manual_print(FILE *out)
{
        struct mfl_page page;
        mfl_page_open(&page, out, MFL_PAGE_MAN, 0);
        page.joined = true;
        mfl_page_title(&page, "mfl", "1", "federated learning from the command line");
        mfl_page_section(&page, "SYNOPSIS");
        fputs(".B mfl\n\\fICOMMAND\\fR [\\fIarguments\\fR] [\\fIoptions\\fR]\n", out);
        mfl_page_section(&page, "DESCRIPTION");
        mfl_page_text(&page,
                "Sends jobs to mfl-server(8), watches them, and fetches their models. It also trains jobs on "
                "this machine alone. A JOB is an id such as j-000001, a name that only one job has, or last, "
                "the newest. "
                "Options may be at any position.\n\n"
                "First steps:\n"
                "  mfl run examples/demo.yaml         all on this machine\n"
                "  mfl submit job.yaml --watch        on the server that MFL_SERVER or --server names");
        mfl_page_section(&page, "OPTIONS");
        mfl_page_text(&page, "Every command takes:\n");
        print_options(&page, mfl_cli_common_options);
        mfl_page_text(&page, "Commands that ask a server take:\n");
        print_options(&page, mfl_cli_server_options);
        mfl_page_section(&page, "COMMANDS");
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++)
                print_command(&page, c);
        print_topic(&page, "EXIT STATUS", "exit");
        mfl_page_section(&page, "ENVIRONMENT");
        mfl_page_text(&page, environment);
        mfl_page_section(&page, "FILES");
        mfl_page_text(&page, files);
        print_topic(&page, "TLS", "tls");
        print_topic(&page, "JSON OUTPUT", "json");
        mfl_page_section(&page, "SEE ALSO");
        mfl_page_text(
                &page, "mfl-job(5), mfl-server(8), mfl-client(8), mfl-server.yaml(5), mfl-client.yaml(5)");
}
