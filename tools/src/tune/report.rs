//! What `kolo tune` found, as tables.

use kolo::TransportKind;
use kolo::profile::Profile;
use tabled::builder::Builder;
use tabled::settings::object::Columns;
use tabled::settings::{Alignment, Style};

use super::derive::Lines;

/// The constants, and how well the lines fit that they come from.
pub(super) fn profile(profile: &Profile, lines: &[(TransportKind, Lines)]) -> Vec<String> {
    let micros = |seconds: f64| format!("{:.2}", seconds * 1e6);
    let giga = |rate: f64| format!("{:.2}", rate / 1e9);
    let (shm, tcp) = (&profile.shm, &profile.tcp);
    let mut table = Builder::default();
    table.push_record(["", "shm", "tcp", "unit"]);
    for (name, of, unit) in [
        ("call", [shm.call_seconds, tcp.call_seconds].map(micros), "us"),
        ("latency", [shm.latency_seconds, tcp.latency_seconds].map(micros), "us"),
        ("overhead per message and end", [shm.overhead_seconds, tcp.overhead_seconds].map(micros), "us"),
        ("wait for a shared processor", [shm.switch_seconds, tcp.switch_seconds].map(micros), "us"),
        ("link, one way", [shm.bytes_per_second, tcp.bytes_per_second].map(giga), "GB/s"),
        ("host, in and out", [shm.host_bytes_per_second, tcp.host_bytes_per_second].map(giga), "GB/s"),
        (
            "reduction of what arrives",
            [shm.reduce_bytes_per_second, tcp.reduce_bytes_per_second].map(giga),
            "GB/s",
        ),
        ("caches", [shm.cache_bytes, tcp.cache_bytes].map(|bytes| format!("{:.1}", bytes / 1e6)), "MB"),
        (
            "cost of a byte beyond them",
            [shm.beyond_cache_factor, tcp.beyond_cache_factor].map(|f| format!("{f:.2}")),
            "times",
        ),
        ("copy", [profile.copy_bytes_per_second; 2].map(giga), "GB/s"),
    ] {
        let [shm, tcp] = of;
        table.push_record([name.to_owned(), shm, tcp, unit.to_owned()]);
    }
    let percent = |of: &dyn Fn(&Lines) -> f64| -> Vec<String> {
        lines.iter().map(|(_, lines)| format!("{:.0}", of(lines) * 100.0)).collect()
    };
    for (name, errors) in [
        ("error of the fit, one way", percent(&|lines| lines.one_way.error)),
        ("error of the fit, both ways", percent(&|lines| lines.exchange.error)),
        ("error of the fit, with reduction", percent(&|lines| lines.reduce.error)),
    ] {
        let row = [name.to_owned()].into_iter().chain(errors).chain(["%".to_owned()]);
        table.push_record(row);
    }
    let mut table = table.build();
    table.with(Style::psql()).modify(Columns::new(1..3), Alignment::right());
    [profile.machine.clone(), String::new()]
        .into_iter()
        .chain(table.to_string().lines().map(str::to_owned))
        .collect()
}
