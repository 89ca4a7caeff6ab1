//! Findings of `kolo tune` as tables.

use kolo::internal::profile::{Curve, NetworkProfile, Profile};
use tabled::builder::Builder;
use tabled::settings::object::Columns;
use tabled::settings::{Alignment, Style};

use crate::perf::human_bytes;

/// Total sizes of buffers for which rates are shown: what the nearest caches hold, what the farthest hold, and
/// more.
const SHOWN_BYTES: [f64; 4] = [128.0 * 1024.0, 4.0 * 1048576.0, 32.0 * 1048576.0, 256.0 * 1048576.0];

/// Returns the tables of constants.
pub(super) fn profile(profile: &Profile) -> Vec<String> {
    let micros = |seconds: f64| format!("{:.2}", seconds * 1e6);
    let giga = |rate: f64| format!("{:.2}", rate / 1e9);
    let (shm, tcp) = (&profile.shm, &profile.tcp);
    let mut table = Builder::default();
    table.push_record(["", "shm", "tcp", "unit"]);
    for (name, of, unit) in [
        ("call", [shm.call_seconds, tcp.call_seconds].map(micros), "us"),
        ("latency", [shm.latency_seconds, tcp.latency_seconds].map(micros), "us"),
        ("overhead per message and end", [shm.overhead_seconds, tcp.overhead_seconds].map(micros), "us"),
        ("each further channel", [shm.channel_seconds, tcp.channel_seconds].map(micros), "us"),
        ("wait for a shared processor", [shm.switch_seconds, tcp.switch_seconds].map(micros), "us"),
    ] {
        let [shm, tcp] = of;
        table.push_record([name.to_owned(), shm, tcp, unit.to_owned()]);
    }
    let rates: [(&str, [(f64, Curve); 2]); 4] = [
        ("link, one way", [shm, tcp].map(|of| (of.bytes_per_second, of.message_factors))),
        ("both ways, in and out", [shm, tcp].map(|of| (of.host_bytes_per_second, of.message_factors))),
        ("reduction of what arrives", [shm, tcp].map(|of| (of.reduce_bytes_per_second, of.reduce_factors))),
        ("copy", [(profile.copy_bytes_per_second, profile.copy_factors); 2]),
    ];
    for (name, of) in rates {
        for bytes in SHOWN_BYTES {
            let [shm, tcp] = of.map(|(rate, factors)| giga(rate / factors.at(bytes)));
            let name = format!("{name}, buffers of {}", human_bytes(bytes));
            table.push_record([name, shm, tcp, "GB/s".to_owned()]);
        }
    }
    let mut table = table.build();
    table.with(Style::psql()).modify(Columns::new(1..3), Alignment::right());
    [profile.machine.clone(), String::new()]
        .into_iter()
        .chain(table.to_string().lines().map(str::to_owned))
        .chain(profile.network.iter().flat_map(network))
        .collect()
}

/// Returns the rates of hosts and of slow pairs.
fn network(network: &NetworkProfile) -> Vec<String> {
    let mega = |rate: f64| format!("{:.1} MB/s", rate / 1e6);
    let latency = network.latency_seconds * 1e6;
    let mut lines =
        vec![String::new(), format!("network: {} hosts, latency {latency:.1} us", network.hosts.len())];
    lines.extend(network.hosts.iter().map(|host| {
        let (out, inward) = (mega(host.out_bytes_per_second), mega(host.in_bytes_per_second));
        format!("  {}: sends {out}, receives {inward}", host.name)
    }));
    lines.extend(
        network
            .pairs
            .iter()
            .map(|pair| format!("  {} to {}: {}", pair.from, pair.to, mega(pair.bytes_per_second))),
    );
    lines
}
