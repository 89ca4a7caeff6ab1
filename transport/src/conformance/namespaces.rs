//! The suite across network namespaces: every rank has a network stack and addresses of its own, and a bridge joins
//! them. One host cannot get nearer to several hosts.

use std::process::Command;

use super::processes::{Scenario, play_a_part, start};
use super::{Subject, skip};

/// Runs the scenarios with every rank in a network namespace of its own; skipped where namespaces cannot be made
/// (that takes root and the `ip` tool). Called in the same way as [`across_processes`](super::across_processes).
///
/// # Panics
/// If a promise is broken in any process.
pub fn across_namespaces(subject: &dyn Subject, test: &str) {
    if let Some(why) = subject.absent() {
        return skip(&why);
    }
    if play_a_part(subject) {
        return;
    }
    let net = match Net::new(3) {
        Ok(net) => net,
        Err(why) => return skip(&why),
    };
    for scenario in [Scenario::Traffic, Scenario::Kill] {
        start(subject, test, scenario, |rank| {
            let words = ["ip", "netns", "exec", &net.name(rank)].map(str::to_owned);
            Some(words.to_vec())
        });
    }
}

/// Namespaces `0..ranks`, and one more with the bridge. Dropping it deletes them.
struct Net {
    base: String,
    ranks: u32,
}

impl Net {
    fn new(ranks: u32) -> Result<Self, String> {
        let random = getrandom::u32().map_err(|error| error.to_string())?;
        let net = Self { base: format!("kolo-{:x}-{random:08x}", std::process::id()), ranks };
        let hub = net.name(ranks);
        for at in 0..=ranks {
            ip(&format!("netns add {}", net.name(at)))?;
        }
        ip(&format!("-n {hub} link add hub type bridge"))?;
        ip(&format!("-n {hub} link set hub up"))?;
        for rank in 0..ranks {
            let (name, host) = (net.name(rank), rank + 1);
            ip(&format!("-n {name} link add eth0 type veth peer name port{rank} netns {hub}"))?;
            ip(&format!("-n {hub} link set port{rank} master hub up"))?;
            // Address ranges reserved for documentation (RFC 5737, RFC 3849).
            ip(&format!("-n {name} address add 192.0.2.{host}/24 dev eth0"))?;
            ip(&format!("-n {name} address add 2001:db8::{host}/64 dev eth0 nodad"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
        }
        Ok(net)
    }

    fn name(&self, at: u32) -> String {
        format!("{}-{at}", self.base)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for at in 0..=self.ranks {
            // The namespace may not exist.
            let _ = ip(&format!("netns delete {}", self.name(at)));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .map_err(|error| format!("network namespaces need the ip tool: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("network namespaces are not permitted here: ip {arguments}: {}", said.trim()))
}
