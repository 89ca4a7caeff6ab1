//! Calls use the plans of files that serve them, with the same results, and say so.

use std::sync::Arc;

use kolo::internal::plans::digest;
use kolo::{Cluster, Collective, Communicator, Config, DataType, LoadedPlans, RawCall, ReduceOp};
use kolo_collectives::model::Model;
use kolo_collectives::plan_set::PlanSet;
use kolo_collectives::select::Request;
use kolo_collectives::{Algorithm, Task};
use kolo_tests::watchdog::bounded;

/// Makes plans of an algorithm for ranks on these hosts, for calls of 1,000 to 100,000 bytes.
fn plans(collective: Collective, hosts: &[u32], algorithm: Algorithm, root: u32) -> LoadedPlans {
    let task = Task::new(collective, hosts.len() as u32).with_hosts(hosts).with_root(root).with_stages();
    let choice = Request::new(&task, 50_000, 4).forced(algorithm).select(&Model::TCP).expect("it can");
    let set = PlanSet::of_choice(&task, &choice, 1_000, 100_000).expect("right");
    LoadedPlans { path: format!("{algorithm}.json").into(), digest: digest(&set), set: Arc::new(set) }
}

fn on_hosts<R: Send + 'static>(
    hosts: &'static [u32],
    config: Config,
    body: impl Fn(Communicator) -> R + Send + Sync + 'static,
) -> Vec<R> {
    bounded("plans", move || {
        let of = |rank: u32| {
            config.clone().with(|config| config.host_id = Some(format!("host {}", hosts[rank as usize])))
        };
        Cluster::with_configs(hosts.len() as u32, of, body).expect("they join")
    })
}

fn with(plans: Vec<LoadedPlans>) -> Config {
    Config::default().with(|config| {
        config.plans = plans;
        config.network_probe = false;
    })
}

/// Makes an all-reduce of `count` floats, in place on some ranks, and checks the sums. Returns its path, and the
/// explanation.
fn all_reduce(comm: &Communicator, count: usize) -> (&'static str, String) {
    let mut input: Vec<f32> = (0..count).map(|at| (at % 7) as f32 + comm.rank() as f32).collect();
    let mut output = vec![0.0_f32; count];
    let is_in_place = comm.rank() % 2 == 1;
    let source = if is_in_place {
        output.copy_from_slice(&input);
        output.as_mut_ptr()
    } else {
        input.as_mut_ptr()
    };
    let call = RawCall {
        collective: Collective::AllReduce,
        input: source.cast(),
        output: output.as_mut_ptr().cast(),
        count,
        data_type: DataType::F32,
        op: ReduceOp::Sum,
        root: 0,
    };
    let said = (comm.way(&call).expect("a call"), comm.explain(&call).expect("a call"));
    if is_in_place {
        comm.all_reduce(&mut output, ReduceOp::Sum).expect("it works");
    } else {
        comm.all_reduce_into(&input, &mut output, ReduceOp::Sum).expect("it works");
    }
    let ranks = comm.world_size() as f32;
    let wanted = |at: usize| ranks * (at % 7) as f32 + ranks * (ranks - 1.0) / 2.0;
    for (at, sum) in output.iter().enumerate() {
        assert!((sum - wanted(at)).abs() < 1e-3, "{at} of {count}: {sum}");
    }
    said
}

#[test]
fn calls_that_a_file_serves_take_its_plan() {
    for (hosts, algorithm) in [
        (&[0, 0, 1, 1][..], Algorithm::Ring),
        (&[0, 1, 1, 2], Algorithm::Circulant),
        (&[0, 0, 1, 1], Algorithm::HierarchicalStaged),
        (&[0, 0, 0], Algorithm::Tree),
    ] {
        let config = with(vec![plans(Collective::AllReduce, hosts, algorithm, 0)]);
        for said in on_hosts(hosts, config, move |comm| {
            let all = [100, 251, 5_000, 25_000, 25_001].map(|count| all_reduce(&comm, count));
            (all, comm.summary())
        }) {
            let ([few, first, some, last, many], summary) = said;
            for (way, words) in [first, some, last] {
                assert!(
                    way == "plan" && words.starts_with(&format!("plan {algorithm} of {algorithm}.json (")),
                    "{words}"
                );
                assert!(words.contains("without it: ") && !words.contains("is not used"), "{words}");
            }
            for ((way, words), bytes) in [(few, 400), (many, 100_004)] {
                let reason = format!(
                    "KOLO_PLAN {algorithm}.json is not used: it is for 1000 to 100000 bytes, but this is \
                     {bytes}"
                );
                assert!(way != "plan" && words.contains(&reason), "{words}");
            }
            assert!(summary.contains(&format!("; plan {algorithm} of {algorithm}.json (")), "{summary}");
        }
    }
}

#[test]
fn what_does_not_fit_says_why() {
    let files = || {
        vec![
            plans(Collective::AllReduce, &[0, 1, 1, 0], Algorithm::Ring, 0),
            plans(Collective::Broadcast, &[0, 0, 1, 1], Algorithm::Binomial, 2),
            plans(Collective::AllReduce, &[0, 0, 1, 1], Algorithm::Tree, 0),
            plans(Collective::AllReduce, &[0, 0, 1, 1], Algorithm::Circulant, 0),
        ]
    };
    let hosts = &[0, 0, 1, 1];
    for (way, words) in on_hosts(hosts, with(files()), |comm| all_reduce(&comm, 5_000)) {
        assert_eq!(way, "plan");
        for reason in [
            "plan tree of tree.json",
            "KOLO_PLAN ring.json is not used: it is for ranks on hosts [0, 1, 1, 0], but these are on [0, 0, \
             1, 1]",
            "KOLO_PLAN binomial.json is not used: it is for broadcast",
            "KOLO_PLAN circulant.json is not used: tree.json comes first",
        ] {
            assert!(words.contains(reason), "{reason}: {words}");
        }
    }
    let split = on_hosts(hosts, with(files()), |comm| {
        let half = comm.split(Some(comm.rank() % 2), 0).expect("all call it").expect("in a part");
        all_reduce(&half, 5_000)
    });
    for (way, words) in split {
        assert!(way != "plan" && words.contains("it is for 4 ranks, but there are 2"), "{words}");
    }
    for (change, reason) in [
        (
            (|config| config.algorithms = "ring".to_owned()) as fn(&mut Config),
            "KOLO_ALGO requests an algorithm",
        ),
        (|config| config.determinism = kolo::Determinism::Canonical, "one order of reduction"),
    ] {
        for (way, words) in on_hosts(hosts, with(files()).with(change), |comm| all_reduce(&comm, 5_000)) {
            assert!(way != "plan" && words.contains(reason), "{words}");
        }
    }
}

#[test]
fn broadcasts_go_by_their_root() {
    let hosts = &[0, 0, 1, 1];
    let config = with(vec![plans(Collective::Broadcast, hosts, Algorithm::Binomial, 2)]);
    on_hosts(hosts, config, |comm| {
        for root in 0..4 {
            let mut data = vec![if comm.rank() == root { root as f32 + 0.5 } else { 0.0 }; 5_000];
            comm.broadcast(&mut data, root).expect("it works");
            assert!(data.iter().all(|value| *value == root as f32 + 0.5), "root {root}");
        }
    });
}

#[test]
fn ranks_with_other_plans_are_told() {
    let config = |rank| {
        let hosts = if rank == 0 { [0, 0] } else { [0, 1] };
        with(vec![plans(Collective::AllReduce, &hosts, Algorithm::Ring, 0)])
    };
    let error = bounded("plans", move || Cluster::with_configs(2, config, |_| ()).expect_err("they differ"))
        .to_string();
    assert!(error.contains("KOLO_PLAN is ring.json (plans "), "{error}");
}
