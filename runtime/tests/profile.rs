//! Tests of profiles, as the ranks of a communicator use them.

use kolo::internal::profile::{Curve, Loaded, Profile, TransportProfile, VERSION};
use kolo::{Cluster, Collective, Config, DataType, RawCall, ReduceOp};

fn profile(latency_seconds: f64) -> Profile {
    let of = TransportProfile {
        call_seconds: 1e-7,
        latency_seconds,
        overhead_seconds: 1e-7,
        bytes_per_second: 1e10,
        host_bytes_per_second: 3e10,
        reduce_bytes_per_second: 2e10,
        switch_seconds: 3e-6,
        channel_seconds: 1e-7,
        message_factors: Curve::FLAT,
        reduce_factors: Curve::FLAT,
    };
    Profile {
        version: VERSION,
        machine: "a test".into(),
        copy_bytes_per_second: 1e10,
        copy_factors: Curve::FLAT,
        shm: of,
        tcp: of,
        network: None,
    }
}

fn config(path: &str, latency_seconds: f64) -> Config {
    let loaded = Loaded { path: path.into(), profile: profile(latency_seconds) };
    Config::default().with(|config| config.profile = Some(loaded))
}

#[test]
fn ranks_with_other_constants_do_not_join() {
    let configs = |rank: u32| config("profile.toml", 1e-6 * f64::from(rank + 1));
    let text = Cluster::with_configs(2, configs, |_| ()).unwrap_err().to_string();
    assert!(text.contains("different settings") && text.contains("KOLO_PROFILE is profile.toml ("), "{text}");
    let some = |rank: u32| if rank == 0 { Config::default() } else { config("profile.toml", 1e-6) };
    let text = Cluster::with_configs(2, some, |_| ()).unwrap_err().to_string();
    assert!(text.contains("KOLO_PROFILE is not set here") || text.contains("not set there"), "{text}");
}

#[test]
fn the_same_constants_from_other_places_are_used_and_named() {
    let configs = |rank: u32| {
        config(&format!("/rank{rank}/profile.toml"), 1e-4).with(|config| config.exchange_bytes = Some(0))
    };
    let results = Cluster::with_configs(2, configs, |comm| {
        let mut words = [1_u64; 4];
        comm.all_reduce(&mut words, ReduceOp::Sum).unwrap();
        assert_eq!(words, [2; 4]);
        let call = RawCall {
            collective: Collective::AllReduce,
            input: words.as_ptr().cast(),
            output: words.as_mut_ptr().cast(),
            count: words.len(),
            data_type: DataType::U64,
            op: ReduceOp::Sum,
            root: 0,
        };
        (comm.model().intra.latency_seconds, comm.explain(&call).unwrap())
    });
    for (rank, (latency_seconds, text)) in results.unwrap().into_iter().enumerate() {
        assert_eq!(latency_seconds, 1e-4);
        assert!(text.contains(&format!("profile /rank{rank}/profile.toml")), "{text}");
    }
}

#[test]
fn a_duplicate_has_settings_of_its_own() {
    Cluster::with_configs(
        2,
        |_| Config::default(),
        |comm| {
            let other = comm.duplicate(config("profile.toml", 1e-4)).unwrap();
            assert_ne!(comm.model(), other.model());
            let mut word = [u64::from(comm.rank())];
            other.all_reduce(&mut word, ReduceOp::Sum).unwrap();
            assert_eq!(word, [1]);
        },
    )
    .unwrap();
}
