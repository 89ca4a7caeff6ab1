//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::fabric::{Rule, What};
use crate::network::{Family, Network};
use crate::quantity::{self, Of};

/// A network of hosts on one machine.
#[derive(Parser, Debug)]
#[command(name = "kolo-netlab", version)]
pub struct Cli {
    /// The command
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a network and run a command on it, once per rank
    Run(Box<RunArgs>),
    /// In a command that `run` has started: run another on a host, by its address or number
    On {
        /// The host
        host: String,
        /// The command
        #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Run a command on a host as `on` does, with the arguments of ssh, for launchers that take a remote shell
    Rsh {
        /// ssh's options (which are ignored), the host, and what its shell is to do
        #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Change a running network: `cut HOST [NIC]`, `restore HOST [NIC]`, `rate HOST RATE`, `counts`
    Tell {
        /// The socket that `run --control` has made
        socket: PathBuf,
        /// Changes to make
        #[arg(required = true)]
        words: Vec<String>,
    },
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The network.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Ranks on each host
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub ranks_per_host: usize,
    /// Run the command once, on this host, without a rank
    #[arg(long, value_name = "HOST")]
    pub only: Option<usize>,
    /// Cut a host's cables this long after the start: 2@2s
    #[arg(long, value_name = "HOST@TIME", value_parser = quantity::moment)]
    pub cut: Vec<(usize, Duration)>,
    /// Restore a host's cables this long after the start
    #[arg(long, value_name = "HOST@TIME", value_parser = quantity::moment)]
    pub restore: Vec<(usize, Duration)>,
    /// End everything after this time
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    pub limit: Option<Duration>,
    /// Accept `tell` on this socket
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// If the machine does not permit a network, print "skipped: REASON" and succeed
    #[arg(long)]
    pub or_skip: bool,
    /// The command, for which RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// The network. Hosts and cards count from 0.
#[derive(Args, Debug)]
pub struct NetworkArgs {
    /// Number of hosts
    #[arg(long, default_value_t = 2)]
    pub hosts: usize,
    /// Rate of every cable in each direction: 1G; no limit if not given
    #[arg(long, value_parser = quantity::rate)]
    pub rate: Option<u64>,
    /// One-way delay from host to host: 25us
    #[arg(long, value_name = "TIME", value_parser = quantity::time, default_value = "0us")]
    pub delay: Duration,
    /// Largest addition to the delay
    #[arg(long, value_name = "TIME", value_parser = quantity::time, default_value = "0us")]
    pub jitter: Duration,
    /// Share of the packets that are lost: 0.1%
    #[arg(long, value_name = "SHARE", value_parser = quantity::share, default_value = "0")]
    pub loss: f64,
    /// Losses in bursts: share of the packets, and packets per burst
    #[arg(long, value_name = "SHARE[,PACKETS]", value_parser = burst)]
    pub burst: Option<(f64, f64)>,
    /// Share of the packets that are overtaken, and their additional delay
    #[arg(long, value_name = "SHARE[,TIME]", value_parser = reorder)]
    pub reorder: Option<(f64, Duration)>,
    /// Share of the packets that arrive twice
    #[arg(long, value_name = "SHARE", value_parser = quantity::share, default_value = "0")]
    pub duplicate: f64,
    /// Bytes that may wait in the switch for each host
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "256K")]
    pub queue: u64,
    /// Another rate for a host: 2=100M
    #[arg(long, value_name = "HOST=RATE", value_parser = of_rate)]
    pub host_rate: Vec<Of<u64>>,
    /// Another rate from a host
    #[arg(long, value_name = "HOST=RATE", value_parser = of_rate)]
    pub host_up: Vec<Of<u64>>,
    /// Another rate to a host
    #[arg(long, value_name = "HOST=RATE", value_parser = of_rate)]
    pub host_down: Vec<Of<u64>>,
    /// More delay to and from a host: 3=10ms
    #[arg(long, value_name = "HOST=TIME", value_parser = of_time)]
    pub host_delay: Vec<Of<Duration>>,
    /// More loss to and from a host: 3=1%
    #[arg(long, value_name = "HOST=SHARE", value_parser = of_share)]
    pub host_loss: Vec<Of<f64>>,
    /// Cards per host, each with a subnet of its own
    #[arg(long, default_value_t = 1)]
    pub nics: usize,
    /// Another rate for a card of all hosts: 1=500M
    #[arg(long, value_name = "NIC=RATE", value_parser = of_rate)]
    pub nic_rate: Vec<Of<u64>>,
    /// Groups of hosts, each with subnets of its own, and a router between them
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub subnets: usize,
    /// The router's rate into each subnet, and the delay that it adds
    #[arg(long, value_name = "RATE[,TIME]", value_parser = router)]
    pub router: Option<(u64, Duration)>,
    /// Host A can dial host B, but B cannot dial A
    #[arg(long, value_name = "A:B", value_parser = quantity::pair)]
    pub oneway: Vec<(usize, usize)>,
    /// Nobody can dial this host, as behind a NAT
    #[arg(long, value_name = "HOST")]
    pub nat: Vec<usize>,
    /// Two hosts whose packets never reach each other
    #[arg(long, value_name = "A:B", value_parser = quantity::pair)]
    pub apart: Vec<(usize, usize)>,
    /// Lose the first SYNs to a host, this many: 0=1
    #[arg(long, value_name = "HOST=COUNT", value_parser = of_count)]
    pub drop_syn: Vec<Of<u64>>,
    /// Lose SYNs to ports outside of this range, as a firewall does: 40000-40099
    #[arg(long, value_name = "FIRST-LAST", value_parser = ports)]
    pub open_ports: Option<(u16, u16)>,
    /// Silently lose all packets longer than this, as a path with a smaller MTU does
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes)]
    pub black_hole: Option<u64>,
    /// Address families of the hosts
    #[arg(long, value_enum, default_value_t = FamilyArg::Both)]
    pub family: FamilyArg,
    /// Longest packet of the cards
    #[arg(long, default_value_t = 1500)]
    pub mtu: u32,
    /// The hosts' congestion control
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Whether hosts pass on bundles of packets; by default, they do unless packets are lost or reordered
    #[arg(long, value_name = "BOOL")]
    pub offload: Option<bool>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Address families.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum FamilyArg {
    /// IPv4 and IPv6
    Both,
    /// IPv4 only
    V4,
    /// IPv6 only
    V6,
}

fn burst(text: &str) -> Result<(f64, f64), String> {
    let packets = |text: &str| text.parse().map_err(|_| format!("{text} is not a number of packets"));
    quantity::with_default(text, quantity::share, packets, 8.0)
}

fn reorder(text: &str) -> Result<(f64, Duration), String> {
    quantity::with_default(text, quantity::share, quantity::time, Duration::from_micros(500))
}

fn ports(text: &str) -> Result<(u16, u16), String> {
    let ends = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    ends.filter(|(first, last)| first <= last)
        .ok_or_else(|| format!("{text} is not FIRST-LAST, as 40000-40099"))
}

fn router(text: &str) -> Result<(u64, Duration), String> {
    quantity::with_default(text, quantity::rate, quantity::time, Duration::ZERO)
}

fn of_rate(text: &str) -> Result<Of<u64>, String> {
    quantity::of(text, quantity::rate)
}

fn of_time(text: &str) -> Result<Of<Duration>, String> {
    quantity::of(text, quantity::time)
}

fn of_share(text: &str) -> Result<Of<f64>, String> {
    quantity::of(text, quantity::share)
}

fn of_count(text: &str) -> Result<Of<u64>, String> {
    quantity::of(text, |text| match text.parse() {
        Ok(0) | Err(_) => Err(format!("{text} is not a number of at least 1")),
        Ok(count) => Ok(count),
    })
}

impl NetworkArgs {
    /// Returns the network that these arguments describe.
    #[must_use]
    pub fn network(&self) -> Network {
        let mut network = Network::hosts(self.hosts)
            .delay(self.delay)
            .jitter(self.jitter)
            .loss(self.loss)
            .duplicate(self.duplicate)
            .queue(self.queue)
            .nics(self.nics)
            .groups(self.subnets)
            .mtu(self.mtu)
            .seed(self.seed)
            .family(match self.family {
                FamilyArg::Both => Family::Both,
                FamilyArg::V4 => Family::V4,
                FamilyArg::V6 => Family::V6,
            });
        network = self.rate.into_iter().fold(network, Network::rate);
        network =
            self.burst.into_iter().fold(network, |network, (share, packets)| network.burst(share, packets));
        network = self.reorder.into_iter().fold(network, |network, (share, by)| network.reorder(share, by));
        network =
            self.router.into_iter().fold(network, |network, (rate, delay)| network.router(Some(rate), delay));
        network = self.congestion.iter().fold(network, Network::congestion);
        network = self.offload.into_iter().fold(network, Network::offload);
        network = self.nic_rate.iter().fold(network, |network, of| network.nic_rate(of.which, of.value));
        network = self.host_rate.iter().fold(network, |network, of| network.host_rate(of.which, of.value));
        network = self.host_up.iter().fold(network, |network, of| network.host_up(of.which, of.value));
        network = self.host_down.iter().fold(network, |network, of| network.host_down(of.which, of.value));
        network = self.host_delay.iter().fold(network, |network, of| network.host_delay(of.which, of.value));
        network = self.host_loss.iter().fold(network, |network, of| network.host_loss(of.which, of.value));
        self.rules().into_iter().fold(network, Network::rule)
    }

    fn rules(&self) -> Vec<Rule> {
        let all = Rule { from: None, to: None, what: What::Everything, count: None };
        let apart = self.apart.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
        let apart = apart.map(|(from, to)| Rule { from: Some(from), to: Some(to), ..all });
        let syn = Rule { what: What::Syn, ..all };
        let oneway = self.oneway.iter().map(|&(a, b)| Rule { from: Some(b), to: Some(a), ..syn });
        let nat = self.nat.iter().map(|&host| Rule { to: Some(host), ..syn });
        let lost = self.drop_syn.iter().map(|of| Rule { to: Some(of.which), count: Some(of.value), ..syn });
        let long = self.black_hole.iter().map(|&bytes| Rule { what: What::LongerThan(bytes), ..all });
        let ports = self.open_ports.map(|(first, last)| Rule { what: What::SynOutside(first, last), ..all });
        apart.chain(ports).chain(oneway).chain(nat).chain(lost).chain(long).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_line_describes_a_network() {
        let line = "kolo-netlab run --hosts 4 --ranks-per-host 2 --rate 1G --delay 25us --jitter 5us --loss 0.1% --burst 1% \
                    --reorder 1%,1ms --queue 256K --host-rate 2=100M --nics 2 --nic-rate 1=500M --subnets 2 \
                    --router 1G,1ms --oneway 0:1 --nat 3 --cut 2@2s --restore 2@4s -- kolo perf all_reduce";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Run(run) = cli.command else { panic!() };
        let network = run.network.network();
        assert_eq!(network.check(), Ok(()));
        assert_eq!(network.rules.len(), 2);
        assert_eq!((network.rules[0].from, network.rules[0].to), (Some(1), Some(0)));
        assert_eq!(run.cut, [(2, Duration::from_secs(2))]);
        assert_eq!(run.command.len(), 3);
        for wrong in ["run --rate fast -- x", "run --cut 2s -- x", "run --drop-syn 0=0 -- x", "run"] {
            let words = ["kolo-netlab"].into_iter().chain(wrong.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "{wrong}");
        }
    }
}
