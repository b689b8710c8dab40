//! What processes publish, as metrics for Prometheus.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Error;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::MetricType;
use sanshim_core::registry::{self, Process, Totals};

use crate::filter::Filter;
use crate::output::printable;

type Labels = Vec<(&'static str, String)>;

/// A count of a process: name, help, value.
type Counter = (&'static str, &'static str, fn(&Totals) -> u64);

const COUNTERS: [Counter; 13] = [
    ("connections", "Connections with more than next to no traffic", |t| t.opened),
    ("connections_moved", "Moves of connections to the SAN", |t| t.moved),
    ("sent_bytes", "Bytes that programs sent on the connections", |t| t.sent.bytes),
    ("sent_messages", "Messages of sessions that went out", |t| t.sent.messages),
    ("received_bytes", "Bytes that programs received on the connections", |t| t.received.bytes),
    ("received_messages", "Messages of sessions that came in", |t| t.received.messages),
    ("wakeups_sent", "Kernel calls made to wake peers", |t| t.wakeups_sent),
    ("wakeups_avoided", "Events that needed none, because nobody slept", |t| t.wakeups_avoided),
    ("wakeups_received", "Wake-ups from peers", |t| t.wakeups_received),
    ("credit_updates_sent", "Messages sent only to renew a peer's credit", |t| {
        t.credit_updates_sent
    }),
    ("rdma_sent_bytes", "Bytes of those sent that went by RDMA", |t| t.rdma_sent),
    ("rdma_received_bytes", "Bytes of those received that came by RDMA", |t| t.rdma_received),
    ("suspensions", "Suspensions of sessions to take control of a socket", |t| t.suspensions),
];

/// What is exported, and what the counters were the last time.
#[derive(Debug)]
pub(super) struct Metrics {
    filter: Filter,
    /// The counters of each process at the last time. A counter that is read while a connection closes may seem to go
    /// down, which it must not.
    before: Mutex<HashMap<u32, [u64; COUNTERS.len()]>>,
}

impl Metrics {
    pub(super) fn new(filter: Filter) -> Self {
        Self { filter, before: Mutex::default() }
    }

    /// The counters of each of the processes.
    fn counters(&self, processes: &[Process]) -> HashMap<u32, [u64; COUNTERS.len()]> {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = HashMap::new();
        for process in processes {
            let mut counts = COUNTERS.map(|(_, _, value)| value(&process.totals));
            // Another process of the same id begins again.
            let same = before.get(&process.pid).filter(|before| before[0] <= counts[0]);
            for (count, before) in counts.iter_mut().zip(same.into_iter().flatten()) {
                *count = (*count).max(*before);
            }
            now.insert(process.pid, counts);
        }
        before.clone_from(&now);
        now
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut snapshot = registry::read_all();
        self.filter.apply(&mut snapshot.processes);
        let processes = &snapshot.processes;
        let counters = self.counters(processes);

        let mut gauges = |name, help, values: Vec<(Labels, i64)>| {
            let values = values.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value)));
            family(&mut encoder, name, help, MetricType::Gauge, values)
        };
        let one = |value, labels| vec![(labels, value)];
        let version = vec![("version", env!("SANSHIM_VERSION").to_owned())];
        gauges("sanctl", "The exporter", one(1, version))?;
        let many = processes.len() as i64;
        gauges("processes", "Processes under the shim", one(many, Vec::new()))?;
        let unreadable = snapshot.problems.len() as i64;
        let help = "Files of processes that cannot be read; sanctl status says why";
        gauges("unreadable_files", help, one(unreadable, Vec::new()))?;
        let help = "Sockets now, by what carries them and why";
        gauges("sockets", help, processes.iter().flat_map(sockets).collect())?;
        let buffered = |process: &Process| {
            let bytes = process.connections.iter().map(|one| one.buffered_bytes).sum::<u64>();
            (labels(process), bytes as i64)
        };
        let help = "Bytes that wait in send buffers now";
        gauges("buffered_bytes", help, processes.iter().map(buffered).collect())?;

        for (at, (name, help, _)) in COUNTERS.iter().enumerate() {
            let count = |process: &Process| {
                (labels(process), ConstCounter::new(counters[&process.pid][at]))
            };
            family(&mut encoder, name, help, MetricType::Counter, processes.iter().map(count))?;
        }
        let help = "Connections that went back to TCP, by reason";
        let returned = processes.iter().flat_map(returned);
        family(&mut encoder, "connections_returned", help, MetricType::Counter, returned)
    }
}

/// How many connections of a process went back, for each reason.
fn returned(process: &Process) -> impl Iterator<Item = (Labels, ConstCounter<u64>)> + '_ {
    process.returned.iter().map(|(reason, count)| {
        let reason = ("reason", reason.code().to_owned());
        (labels(process).into_iter().chain([reason]).collect(), ConstCounter::new(*count))
    })
}

fn labels(process: &Process) -> Labels {
    let own = [("pid", process.pid.to_string()), ("program", printable(&process.program))];
    let container = process.container.as_ref();
    let id = container.map(|one| ("container", printable(&one.id)));
    let pod = container.and_then(|one| Some(("pod", printable(one.pod.as_ref()?))));
    own.into_iter().chain(id).chain(pod).collect()
}

/// How many sockets a process has for each provider and reason.
fn sockets(process: &Process) -> impl Iterator<Item = (Labels, i64)> {
    let mut many = BTreeMap::new();
    for one in &process.connections {
        *many.entry((one.provider.name(), one.reason.code())).or_insert(0) += 1;
    }
    let own = labels(process);
    many.into_iter().map(move |((provider, reason), many)| {
        let kind = [("provider", provider.to_owned()), ("reason", reason.to_owned())];
        (own.iter().cloned().chain(kind).collect(), many)
    })
}

/// A metric, with its value for each of the labels.
fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    kind: MetricType,
    values: impl IntoIterator<Item = (Labels, M)>,
) -> Result<(), Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        value.encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_do_not_go_back_but_for_another_process_of_the_same_number() {
        let metrics = Metrics::new(Filter::default());
        let with = |opened, moved| Process {
            pid: 7,
            program: "p".to_owned(),
            totals: Totals { opened, moved, ..Totals::default() },
            ..Process::default()
        };
        let seen = |opened, moved| metrics.counters(&[with(opened, moved)])[&7][1];
        assert_eq!((seen(3, 2), seen(3, 1), seen(4, 5), seen(1, 0)), (2, 2, 5, 0));
    }
}
