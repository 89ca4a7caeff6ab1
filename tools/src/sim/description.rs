//! Description of a cluster: a TOML file, overridden by options.

use std::fs;

use kolo_collectives::simulate::Cluster;

use super::ClusterArgs;
use crate::error::{CliError, Result};
use crate::explain::{configured, known_rates};

/// An example description to start from.
pub(super) const EXAMPLE_FILE: &str = "\
# A cluster for `kolo sim`. Whatever is left out has a default.
hosts = 16
ranks_per_host = 8
# segment_bytes = 1048576        # chosen as the runtime would, unless given
# window = 4

[model]
nic_bytes_per_second = 25e9      # of a host, each direction, shared by its ranks
nic_message_seconds = 0.05e-6    # of a host, for each message, at each end
memory_bytes_per_second = 100e9  # of a host, shared by its ranks
move_bytes_per_second = 20e9     # of messages inside a host, of a processor, in or out
reduce_bytes_per_second = 20e9   # of a rank
copy_bytes_per_second = 10e9     # of a rank
oversubscription = 1.0           # ranks per processor

[model.intra]                    # between ranks of a host
latency_seconds = 0.3e-6
overhead_seconds = 0.1e-6
bytes_per_second = 10e9

[model.inter]                    # between hosts
latency_seconds = 2e-6
overhead_seconds = 0.3e-6
bytes_per_second = 25e9

# [[rates]]                      # of each host, in their order, where they differ
# out_bytes_per_second = 1e9
# in_bytes_per_second = 1e9

# [[pairs]]                      # of hosts that have less than both
# from = 0
# to = 3
# bytes_per_second = 1e8

# [[stragglers]]
# rank = 3
# delay_seconds = 1e-3

# [killed]
# rank = 5
# at_seconds = 1e-4
";

/// A cluster, and which of its settings the user chose.
pub(crate) struct Described {
    /// The cluster.
    pub(crate) cluster: Cluster,
    /// Whether the user chose `segment_bytes`.
    pub(super) segment_given: bool,
    /// Whether the user chose `window`.
    pub(super) window_given: bool,
}

/// Gives the hosts the rates of the profile, if it has the same number of hosts.
fn known_hosts(cluster: &mut Cluster) -> Result<()> {
    let profile = kolo::Config::from_env()?.profile;
    if let Some(rates) = known_rates(cluster.hosts, profile.as_ref()) {
        // A link is as fast as its host's interface.
        let fastest = rates.hosts.iter().map(|host| host.out_bytes_per_second.max(host.in_bytes_per_second));
        cluster.model.inter.bytes_per_second = fastest.fold(cluster.model.inter.bytes_per_second, f64::max);
        (cluster.rates, cluster.pairs) = (rates.hosts, rates.pairs);
    }
    Ok(())
}

/// Reads the description, applies the options, and checks the result.
pub(crate) fn describe(args: &ClusterArgs, element_bytes: u64) -> Result<Described> {
    let (mut cluster, table) = match &args.cluster {
        None => {
            let model = configured(args.network.model(), &kolo::Config::from_env()?);
            (Cluster { model, ..Cluster::default() }, toml::Table::new())
        }
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|error| CliError::system(format!("{} cannot be read", path.display()), &error))?;
            let bad = |error: toml::de::Error| {
                let text = error.to_string();
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                CliError::usage(
                    format!("{} does not describe a cluster: {text}", path.display()),
                    "`kolo sim --example` prints a description that does",
                )
            };
            (toml::from_str(&text).map_err(bad)?, toml::from_str(&text).map_err(bad)?)
        }
    };
    cluster.hosts = args.hosts.unwrap_or(cluster.hosts);
    if args.cluster.is_none() {
        known_hosts(&mut cluster)?;
    }
    cluster.ranks_per_host = args.ranks_per_host.unwrap_or(cluster.ranks_per_host);
    cluster.element_bytes = element_bytes as usize;
    let ranks = u64::from(cluster.hosts) * u64::from(cluster.ranks_per_host);
    if !(1..=1 << 20).contains(&ranks) {
        return Err(CliError::usage(
            format!("{} hosts with {} ranks make {ranks} ranks", cluster.hosts, cluster.ranks_per_host),
            "A cluster has 1 to 1048576 ranks",
        ));
    }
    let ranks = ranks as u32;
    let wrong = cluster.stragglers.iter().map(|straggler| straggler.rank);
    if let Some(rank) = wrong.chain(cluster.killed.map(|killed| killed.rank)).find(|rank| *rank >= ranks) {
        return Err(CliError::usage(
            format!("the description mentions rank {rank}, but there are {ranks} ranks"),
            "Number them from 0",
        ));
    }
    let hosts = cluster.hosts as usize;
    if !cluster.rates.is_empty() && cluster.rates.len() != hosts
        || cluster.pairs.iter().any(|pair| pair.from.max(pair.to) as usize >= hosts)
    {
        return Err(CliError::usage(
            format!(
                "the description has rates for {} hosts or pairs of more, but there are {hosts} hosts",
                cluster.rates.len()
            ),
            "Give [[rates]] for each host or for none, and number the hosts of [[pairs]] from 0",
        ));
    }
    let model = &cluster.model;
    let rates = [
        model.intra.bytes_per_second,
        model.inter.bytes_per_second,
        model.reduce_bytes_per_second,
        model.copy_bytes_per_second,
        model.nic_bytes_per_second,
        model.memory_bytes_per_second,
        model.oversubscription,
        model.move_bytes_per_second,
    ];
    let caches = &model.caches;
    let own = cluster.rates.iter().flat_map(|rate| [rate.out_bytes_per_second, rate.in_bytes_per_second]);
    let rates = rates
        .into_iter()
        .chain(own)
        .chain(cluster.pairs.iter().map(|pair| pair.bytes_per_second))
        .chain([caches.messages, caches.copies, caches.reductions].into_iter().flat_map(|curve| curve.0));
    let times =
        [model.intra, model.inter].map(|class| [class.latency_seconds, class.overhead_seconds]).concat();
    let times = [&times[..], &[model.switch_seconds, model.channel_seconds, model.call_seconds]].concat();
    if rates.into_iter().any(|rate| !rate.is_finite() || rate <= 0.0)
        || times.iter().any(|time| !time.is_finite() || *time < 0.0)
        || cluster.segment_bytes == 0
        || cluster.window == 0
        || cluster.calls == 0
    {
        return Err(CliError::usage(
            "the description has a rate, a window or a segment that is not positive, or a negative time",
            "Correct it; all values are plain numbers of bytes, seconds and bytes per second",
        ));
    }
    let given = |name: &str| table.contains_key(name);
    Ok(Described { cluster, segment_given: given("segment_bytes"), window_given: given("window") })
}
