//! `sanctl export`: what processes publish, for Prometheus.

mod metrics;
mod server;
mod text;

pub(crate) use server::ListenPlace;

use metrics::Metrics;
use prometheus_client::registry::Registry;

use crate::cli::ExportArguments;
use crate::output::{complain, print};

/// Prints the metrics once, or serves them. Gives the exit status.
pub(crate) fn export(arguments: &ExportArguments) -> i32 {
    let mut metrics = Registry::with_prefix("sanshim");
    metrics.register_collector(Box::new(Metrics::new(arguments.filter.clone())));
    let render = move || text::of(&metrics);
    let Some(place) = &arguments.listen else { return print(&render()) };
    match server::serve(place, Box::new(render)) {
        Ok(()) => 0,
        Err(why) => {
            complain(&why);
            1
        }
    }
}
