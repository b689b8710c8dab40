//! `sanctl providers`: what is installed, which addresses it serves, and why it may not be usable.

use std::fmt::Write;
use std::net::IpAddr;

use sanshim_core::provider::interface::catalogue::{Catalogue, CatalogueEntry};
use sanshim_core::provider::interface::client::Provider;
use sanshim_core::provider::interface::Info;
use sanshim_core::provider::BUILT_IN;
use serde::Serialize;

use crate::cli::ProvidersArguments;
use crate::library;
use crate::output::{complain, print, printable, printable_json};

#[derive(Serialize)]
struct Listing {
    providers: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    kind: Option<String>,
    version: Option<String>,
    families: Vec<&'static str>,
    file: Option<String>,
    /// `usable` or `unusable`.
    state: &'static str,
    /// Why it is not usable, and what to do.
    reason: Option<String>,
    /// The local addresses it serves.
    addresses: Vec<IpAddr>,
}

/// Prints the providers and returns the exit status.
pub(crate) fn providers(arguments: &ProvidersArguments) -> i32 {
    let library = library::find();
    if let Err(line) = &library {
        complain(line);
    }
    let folder = library.as_ref().ok().and_then(|library| library.parent());
    let catalogue = Catalogue::of(BUILT_IN, folder);
    let rows: Vec<Row> = catalogue.entries().iter().map(row).collect();
    let text = if arguments.json {
        json(Listing { providers: rows })
    } else {
        rows.iter().map(table).collect()
    };
    print(&text).max(i32::from(library.is_err()))
}

fn row(entry: &CatalogueEntry) -> Row {
    let file = entry.file().map(|file| file.to_string_lossy().into_owned());
    let mut row = Row {
        name: entry.name().into(),
        kind: None,
        version: None,
        families: Vec::new(),
        file,
        state: "unusable",
        reason: None,
        addresses: Vec::new(),
    };
    let library = match entry.library() {
        Ok(library) => library,
        Err(error) => {
            row.reason = Some(error.to_string());
            return row;
        }
    };
    let info = library.query();
    row.kind = Some(info.kind());
    row.version = Some(info.version());
    row.families = families(info.families);
    row.reason = library.unusable();
    if row.reason.is_none() {
        match Provider::open(&library).and_then(|provider| provider.addresses()) {
            Ok(found) if found.is_empty() => {
                let line = "no address of this host is on a device of its kind; see 'ip addr'";
                row.reason = Some(line.into());
            }
            Ok(found) => {
                row.state = "usable";
                row.addresses = found.iter().map(|address| address.ip()).collect();
            }
            Err(error) => row.reason = Some(error.to_string()),
        }
    }
    row
}

fn families(bits: u32) -> Vec<&'static str> {
    let known = [(Info::IPV4, "IPv4"), (Info::IPV6, "IPv6")];
    known.iter().filter(|(bit, _)| bits & bit != 0).map(|&(_, name)| name).collect()
}

fn json(listing: Listing) -> String {
    // Plain data has no way to fail.
    let mut text = printable_json(&serde_json::to_string_pretty(&listing).unwrap_or_default());
    text.push('\n');
    text
}

fn table(row: &Row) -> String {
    let mut text = String::new();
    let unknown = "?".to_owned();
    let version = row.version.as_ref().unwrap_or(&unknown);
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{:<10} {:<8} {:<10} {}",
        printable(&row.name),
        printable(version),
        row.state,
        row.families.join(" ")
    );
    let place = row.file.as_deref().unwrap_or("part of libsanshim.so");
    let _ = writeln!(text, "  from    {}", printable(place));
    match &row.reason {
        Some(reason) => {
            let _ = writeln!(text, "  why not {}", printable(reason));
        }
        None => {
            let list: Vec<String> = row.addresses.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "  serves  {}", list.join(" "));
        }
    }
    text
}
