//! Description of several network interfaces to other hosts.

use kolo_transport::Rail;

/// Describes the load of the rails to some peers: for each interface its share of the traffic, and the rate of a
/// connection there. `None` if there is only one path.
pub(crate) fn in_words(peers: &[Vec<Rail>]) -> Option<String> {
    let used = |rails: &&Vec<Rail>| rails.iter().any(|rail| rail.sent_bytes > 0);
    let with_traffic: Vec<&Vec<Rail>> = peers.iter().filter(used).collect();
    let all = || with_traffic.iter().flat_map(|rails| rails.iter());
    let mut names: Vec<&str> = Vec::new();
    for rail in all() {
        if !names.contains(&rail.interface.as_str()) {
            names.push(&rail.interface);
        }
    }
    let sum: u64 = all().map(|rail| rail.sent_bytes).sum();
    let mut words = Vec::new();
    for name in names {
        let own = || all().filter(|rail| rail.interface == name);
        let share = own().map(|rail| rail.sent_bytes).sum::<u64>() as f64 / sum as f64;
        let rates: Vec<f64> = own().map(|rail| rail.bytes_per_second).filter(|rate| *rate > 0.0).collect();
        let rate = rates.iter().sum::<f64>() / rates.len().max(1) as f64 / 1e6;
        words.push(match own().find_map(|rail| Some((rail, rail.problem.as_ref()?))) {
            Some((rail, problem)) => format!("not {name} to {}: {problem}", rail.remote),
            None if rates.is_empty() => format!("{name} {:.0} %", share * 100.0),
            None => format!("{name} {:.0} % ({rate:.1} MB/s a connection)", share * 100.0),
        });
    }
    (!words.is_empty()).then(|| format!("rails {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(interface: &str, sent_bytes: u64, rate: f64, problem: Option<&str>) -> Rail {
        Rail {
            interface: interface.into(),
            remote: "192.0.2.7".parse().unwrap(),
            bytes_per_second: rate,
            sent_bytes,
            problem: problem.map(str::to_owned),
        }
    }

    #[test]
    fn shares_and_problems_are_said() {
        assert_eq!(in_words(&[]), None);
        assert_eq!(in_words(&[vec![]]), None);
        let two = |a, b| vec![rail("eth0", a, 100e6, None), rail("eth1", b, 50e6, None)];
        let words = in_words(&[two(60, 40), vec![], two(80, 20)]).unwrap();
        assert_eq!(words, "rails eth0 70 % (100.0 MB/s a connection), eth1 30 % (50.0 MB/s a connection)");
        let half = vec![rail("eth0", 9, 0.0, None), rail("eth1", 0, 0.0, Some("no answer"))];
        assert_eq!(in_words(&[half]).unwrap(), "rails eth0 100 %, not eth1 to 192.0.2.7: no answer");
    }
}
