//! Prometheus' own text format, which its textfile collector reads as well. The client library writes OpenMetrics, which
//! that does not read: there a counter's name in the comments lacks the `_total` of its samples.

use std::collections::HashSet;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// What the registry holds.
pub(super) fn of(metrics: &Registry) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = encode(&mut text, metrics);
    plain(&text)
}

fn plain(text: &str) -> String {
    let counters: HashSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut plain = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                plain.push_str(&format!("# {kind} {name}_total {rest}"));
            }
            _ => plain.push_str(line),
        }
        plain.push('\n');
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn comments_name_counters_as_samples_do() {
        let open = "# HELP a_bytes Bytes sent.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                    a_bytes_total{x=\"# TYPE y counter\"} 1\n# HELP b Some.\n# TYPE b gauge\nb 2\n# EOF\n";
        let expected = "# HELP a_bytes_total Bytes sent.\n# TYPE a_bytes_total counter\n\
                        a_bytes_total{x=\"# TYPE y counter\"} 1\n# HELP b Some.\n# TYPE b gauge\nb 2\n";
        assert_eq!(plain(open), expected);
    }
}
