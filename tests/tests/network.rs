//! The network between hosts is measured when ranks join, and all ranks get the same result.

use kolo::{Cluster, Collective, Communicator, Config, DataType, RawCall, ReduceOp};
use kolo_collectives::model::Model;
use kolo_tests::watchdog::bounded;

/// Runs ranks on simulated hosts of `per_host` ranks each.
fn on_hosts<R: Send + 'static>(
    ranks: u32,
    per_host: u32,
    config: Config,
    body: impl Fn(Communicator) -> R + Send + Sync + 'static,
) -> Vec<R> {
    bounded("hosts", move || {
        let of = |rank: u32| config.clone().with(|c| c.host_id = Some(format!("host {}", rank / per_host)));
        Cluster::with_configs(ranks, of, body).expect("they join")
    })
}

fn off() -> Config {
    Config::default().with(|config| config.network_probe = false)
}

#[test]
fn all_ranks_go_by_the_same_network() {
    for (ranks, per_host) in [(2, 1), (3, 1), (6, 2), (5, 3), (9, 1)] {
        let found = on_hosts(ranks, per_host, Config::default(), |comm| {
            let pair = comm.split(Some(comm.rank() / 2), 0).expect("all call it").expect("in a part");
            (comm.network(), comm.model(), comm.recent().len(), pair.model(), comm.rank() / 2)
        });
        let (network, model, ..) = &found[0];
        let words = network.as_ref().expect("several hosts");
        assert!(words.starts_with(&format!("{} hosts, round trip ", ranks.div_ceil(per_host))), "{words}");
        assert_ne!(model.inter, Model::TCP.inter, "{words}");
        for (theirs, their_model, calls, ..) in &found {
            assert_eq!((theirs, their_model, *calls), (network, model, 0));
        }
        for (.., pair, part) in &found {
            let first = found.iter().find(|(.., of)| of == part).expect("a first one");
            assert_eq!(*pair, first.3, "part {part} of {ranks}");
        }
    }
}

#[test]
fn one_host_and_switched_off_measure_nothing() {
    let none = |comm: Communicator| comm.network();
    assert_eq!(on_hosts(4, 4, Config::default(), none), [None, None, None, None]);
    for words in on_hosts(2, 1, off(), none) {
        let words = words.expect("two hosts");
        assert!(words.ends_with("MB/s (built-in constants, not measured)"), "{words}");
    }
    let read =
        |value: &str| Config::from_lookup(&|name| (name == "KOLO_NETWORK_PROBE").then(|| value.to_owned()));
    assert!(!read("off").expect("a setting").network_probe && read("auto").expect("a setting").network_probe);
    let error = read("sometimes").expect_err("no setting").to_string();
    assert!(error.contains("KOLO_NETWORK_PROBE") && error.contains("auto or off"), "{error}");
}

#[test]
fn explanations_and_summaries_say_so() {
    let told = on_hosts(2, 1, Config::default(), |comm| {
        let mut data = [0_u8; 4000];
        let output = data.as_mut_ptr();
        let (collective, data_type, op) = (Collective::AllReduce, DataType::F32, ReduceOp::Sum);
        let call = RawCall { collective, input: output, output, count: 1000, data_type, op, root: 0 };
        (comm.summary(), comm.explain(&call).expect("a call"))
    });
    for (summary, explained) in told {
        assert!(summary.contains("; network: 2 hosts, round trip "), "{summary}");
        assert!(explained.contains("; network: 2 hosts, round trip "), "{explained}");
        assert!(explained.contains(" (measured in "), "{explained}");
    }
}

#[test]
fn ranks_that_disagree_about_measuring_are_told() {
    let config = |rank| if rank == 0 { Config::default() } else { off() };
    let error = Cluster::with_configs(2, config, |_| ()).expect_err("they differ").to_string();
    assert!(error.contains("KOLO_NETWORK_PROBE is "), "{error}");
}
