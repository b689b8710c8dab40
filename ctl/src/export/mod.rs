//! `sanctl export`: what processes publish, for Prometheus.

mod metrics;
mod server;

pub(crate) use server::Place;

use metrics::Metrics;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::cli::ExportArguments;
use crate::output::{complain, print};

/// Prints the metrics once, or serves them. Gives the exit status.
pub(crate) fn export(arguments: &ExportArguments) -> i32 {
    let mut metrics = Registry::with_prefix("sanshim");
    metrics.register_collector(Box::new(Metrics::new(arguments.filter.clone())));
    let render = || {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &metrics);
        text
    };
    let Some(place) = &arguments.listen else { return print(&render()) };
    match server::serve(place, render) {
        Ok(()) => 0,
        Err(why) => {
            complain(&why);
            1
        }
    }
}
