//! Man pages: one for `sanctl`, one for each of its commands, and one for the rules file.
//!
//! The command line itself says what a command takes, and docs/configuration.md gives the page of the rules file. Only
//! what neither says stands here: examples, files, and what else to read.

mod markdown;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

const CONFIGURATION: &str = include_str!("../../docs/configuration.md");
/// The heading of the part of it that the page of the rules file shows.
const RULES_FILE: &str = "## The rules file\n";

const FILES: &str = "/etc/sanshim.toml, ~/.config/sanshim.toml\tthe rules file: sanshim.toml(5)
/dev/shm/sanshim-user-UID/\twhat the processes of a user publish
/usr/lib/sanshim/libsanshim.so\tthe library
/usr/share/doc/sanshim/docs/\tthe documents";

const ENVIRONMENT: &str = "SANSHIM_LIBRARY\tthe path of libsanshim.so, for sanctl
SANSHIM\ton or off: off keeps all connections on TCP
SANSHIM_CONFIG\tthe rules file
SANSHIM_FOLDER\twhere programs of different containers find each other
SANSHIM_LOG, SANSHIM_LOG_FILE\twhat to log, and where
SANSHIM_MOVE_AFTER, SANSHIM_PROVIDERS, SANSHIM_ALLOW_USERS, SANSHIM_ALLOW_GROUPS\tsettings of sanshim.toml(5), over it";

/// Examples of each command, and what each does.
fn examples(command: &str) -> &'static str {
    match command {
        "run" => {
            "sanctl run -- redis-server\tstarts a server under the shim
sanctl run --log info redis-benchmark -t get\tstarts a client, and logs each move of a connection"
        }
        "status" => {
            "sanctl status\tshows your programs under the shim
sanctl status --not-on-san --port 6379\tshows which connections of a port are on TCP, and why"
        }
        "top" => "sanctl top --by process\tshows rates by process, live",
        "why" => {
            "sanctl why 4711\tsays where the connections of process 4711 are
sanctl why 4711 8\tsays why descriptor 8 of it is, or is not, on shared memory"
        }
        "trace" => "sanctl trace --past 4711\tshows what happened to its connections, and goes on",
        "export" => "sanctl export --listen 127.0.0.1:9090\tserves metrics to Prometheus",
        "detach" => "sanctl detach 4711 all\tmoves all connections of process 4711 back to TCP",
        "systemd" => {
            "sanctl systemd --check nginx\tsays what of the unit hinders the shim
sanctl systemd nginx\tputs nginx.service under the shim
sanctl systemd --remove nginx\ttakes it away"
        }
        "check" => {
            "sanctl check\tsays whether programs can use shared memory here
sanctl check --with postgres\tsays whether yours share memory with those of user postgres"
        }
        "providers" => "sanctl providers\tlists shared memory and RDMA devices",
        _ => {
            "sanctl run -- redis-server\tstarts a program under the shim
sanctl status\tshows its connections
sanctl check\tsays whether it can work here, and what to do"
        }
    }
}

/// Writes all pages into a folder.
pub(crate) fn write(command: &Command, folder: &Path) -> io::Result<()> {
    let mut command = command.clone();
    command.build();
    let commands: Vec<_> = command.get_subcommands().filter(|one| !one.is_hide_set()).collect();
    let names: Vec<_> = commands.iter().map(|one| format!("sanctl-{}", one.get_name())).collect();
    for (one, name) in commands.iter().zip(&names) {
        fs::write(folder.join(format!("{name}.1")), page(one, &["sanctl".to_owned()])?)?;
    }
    fs::write(folder.join("sanctl.1"), page(&command, &names)?)?;
    fs::write(folder.join("sanshim.toml.5"), rules_file())
}

/// The page of a command. `others` are the pages of section 1 to read besides.
fn page(command: &Command, others: &[String]) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(status) = command.get_after_help() {
        let status = status.to_string();
        let status = status.strip_prefix("Exit status: ").unwrap_or(&status);
        write!(page, ".SH \"EXIT STATUS\"\n{}\n", markdown::escaped(status))?;
    }
    for (heading, entries) in
        [("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES), ("EXAMPLES", examples(command.get_name()))]
    {
        writeln!(page, ".SH {heading}")?;
        for (term, text) in entries.lines().filter_map(|line| line.split_once('\t')) {
            let (term, text) = (markdown::escaped(term), markdown::escaped(text));
            writeln!(page, ".TP\n\\fB{term}\\fR\n{text}")?;
        }
    }
    let others: String = others.iter().map(|name| format!(".BR {name} (1),\n")).collect();
    write!(page, ".SH \"SEE ALSO\"\n{others}.BR sanshim.toml (5)\n")?;
    Ok(page)
}

fn rules_file() -> String {
    let (_, rules) = CONFIGURATION.split_once(RULES_FILE).unwrap_or(("", CONFIGURATION));
    format!(
        ".TH sanshim.toml 5\n.SH NAME\nsanshim.toml \\- rules and sizes of sanshim\n.SH DESCRIPTION\n{}\
         .SH \"SEE ALSO\"\n.BR sanctl (1),\n.BR sanctl-check (1)\n",
        markdown::to_roff(rules)
    )
}
