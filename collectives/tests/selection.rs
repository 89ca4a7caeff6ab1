//! The cost functions compared with the simulator, and the choices that they lead to.

mod common;

use common::{COLLECTIVES, plans};
use kolo_collectives::cost::{Flow, seconds};
use kolo_collectives::layout::{Layout, Shape};
use kolo_collectives::model::{LinkClass, Model};
use kolo_collectives::plan::{Collective, Cut, Plan};
use kolo_collectives::select::{Choice, Order, Request, SelectError};
use kolo_collectives::simulate::{Cluster, simulate};
use kolo_collectives::stage::PAYLOAD_BYTES_MAX;
use kolo_collectives::window::Symmetric;
use kolo_collectives::{Algorithm, Task};

fn task_on(collective: Collective, cluster: &Cluster) -> Task {
    Task::new(collective, cluster.world_size()).with_hosts(cluster.hosts_of_ranks()).with_stages()
}

fn simulated(algorithm: Algorithm, task: &Task, bytes: u64, cluster: &Cluster) -> f64 {
    let plans = plans(algorithm, task);
    let count = bytes as usize / cluster.element_bytes;
    let shape = |cut| match cut {
        Cut::Vector { .. } | Cut::Shards { .. } => Shape::Vector { count },
        Cut::PerRank => Shape::Blocks { count },
    };
    let shapes: Vec<Shape> = plans.iter().map(|plan| shape(plan.cut)).collect();
    let timing = simulate(&plans, &shapes, cluster).expect("the plans fit together");
    assert_eq!(timing.stuck, [], "{algorithm} {task:?}");
    timing.seconds
}

fn clusters() -> Vec<Cluster> {
    let shape = |hosts, ranks_per_host| Cluster { hosts, ranks_per_host, ..Cluster::default() };
    vec![shape(2, 1), shape(8, 1), shape(13, 1), shape(1, 4), shape(1, 7), shape(4, 4), shape(8, 8)]
}

#[test]
fn closed_forms_agree_with_the_simulator() {
    let (mut points, mut near) = (0, 0);
    let mut report = String::new();
    // Hosts with a number of ranks, or ranks with a number of hosts, that is no power of two.
    let uneven = [(3, 4), (2, 5)].map(|(hosts, ranks_per_host)| Cluster {
        hosts,
        ranks_per_host,
        ..Cluster::default()
    });
    for cluster in clusters().into_iter().chain(uneven) {
        for collective in COLLECTIVES {
            let task = task_on(collective, &cluster);
            for algorithm in Algorithm::ALL {
                if algorithm.supports(&task).is_err() {
                    continue;
                }
                for bytes in [64, 16 << 10, 1 << 20, 8 << 20] {
                    if collective.has_block_per_rank() && bytes > 1 << 20 {
                        continue;
                    }
                    let cluster = Cluster { segment_bytes: 1 << 20, window: 4, ..cluster.clone() };
                    let found = simulated(algorithm, &task, bytes, &cluster);
                    let flow = Flow { bytes, segment_bytes: 1 << 20, window: 4 };
                    let cost = seconds(algorithm, &task, flow, &cluster.model);
                    let ratio = cost / found;
                    points += 1;
                    if (0.67..1.5).contains(&ratio) {
                        near += 1;
                    } else {
                        report += &format!(
                            "{algorithm} {collective} {}x{} {bytes}: {:.1} us, simulated {:.1} us\n",
                            cluster.hosts,
                            cluster.ranks_per_host,
                            cost * 1e6,
                            found * 1e6
                        );
                    }
                    assert!(
                        (0.2..5.0).contains(&ratio),
                        "{algorithm} {collective} of {bytes} on {}x{}: {ratio}\n{report}",
                        cluster.hosts,
                        cluster.ranks_per_host
                    );
                }
            }
        }
    }
    assert!(points > 500);
    assert!(near * 100 >= points * 80, "{near} of {points} are near\n{report}");
}

fn choose(task: &Task, bytes: u64, order: Order) -> Choice {
    Request::new(task, bytes, 4).ordered(order).select(&Model::TCP).expect("something can")
}

#[test]
fn the_choice_is_near_the_best_of_all_by_simulation() {
    for cluster in clusters() {
        for collective in
            [Collective::AllReduce, Collective::AllGather, Collective::Broadcast, Collective::AllToAll]
        {
            for bytes in [64, 4 << 10, 256 << 10] {
                let task = task_on(collective, &cluster);
                let choice = choose(&task, bytes, Order::Any);
                let cluster =
                    Cluster { segment_bytes: choice.segment_bytes, window: choice.window, ..cluster.clone() };
                let chosen = task.clone().with_params(choice.params);
                let own = simulated(choice.algorithm, &chosen, bytes, &cluster);
                for algorithm in Algorithm::ALL {
                    if algorithm.supports(&task).is_ok() {
                        let other = simulated(algorithm, &task, bytes, &cluster);
                        assert!(
                            own <= 1.6 * other,
                            "{collective} of {bytes} on {}x{}: {} with {:.1} us, but {algorithm} takes {:.1} us",
                            cluster.hosts,
                            cluster.ranks_per_host,
                            choice.algorithm,
                            own * 1e6,
                            other * 1e6
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn hosts_of_unequal_size_keep_long_vectors_within_hosts() {
    let hosts = |ranks: &[u32]| -> Vec<u32> {
        ranks.iter().zip(0..).flat_map(|(ranks, host)| (0..*ranks).map(move |_| host)).collect()
    };
    let gigabit = LinkClass { latency_seconds: 100e-6, bytes_per_second: 113e6, ..Model::TCP.inter };
    let model = Model { inter: gigabit, nic_bytes_per_second: 113e6, ..Model::TCP };
    for ranks in [&[1, 3, 7][..], &[4, 4, 1, 4], &[2, 6]] {
        let hosts = hosts(ranks);
        let task = Task::new(Collective::AllReduce, hosts.len() as u32).with_hosts(hosts).with_stages();
        for bytes in [64 << 10, 256 << 10, 2 << 20, 16 << 20] {
            let choice = Request::new(&task, bytes, 4).select(&model).expect("a choice");
            // By halving and along trees, several ranks of the largest host send most of the vector to other hosts.
            assert!(
                matches!(choice.algorithm, Algorithm::HierarchicalStaged | Algorithm::Ring),
                "{bytes} B on {ranks:?}: {} {}",
                choice.algorithm,
                choice.reason
            );
        }
    }
}

#[test]
fn channels_decide() {
    use Algorithm as A;
    let task = Task::new(Collective::AllReduce, 128).with_hosts((0..128).collect::<Vec<u32>>());
    let model = Model { inter: LinkClass { latency_seconds: 10e-3, ..Model::TCP.inter }, ..Model::TCP };
    let choose = |channels, force| {
        Request::new(&task.clone().with_channels(channels), 256 << 20, 4).forced(force).select(&model)
    };
    let with = |channels| choose(channels, None).expect("some can");
    assert_eq!((with(8).algorithm, with(8).window), (A::Tree, 4), "{}", with(8).reason);
    assert_eq!((with(8).window_max, with(16).window_max), (4, 8));
    let narrow = with(2);
    assert!(narrow.window * usize::from(narrow.algorithm.channels(&task)) <= 2, "{narrow:?}");
    let ring = |channels| choose(channels, Some(A::Ring)).expect("it can");
    assert!(ring(8).window > 1 && ring(8).cost_seconds < ring(1).cost_seconds, "a price follows the number");
    let one = with(1);
    assert!(one.algorithm != A::Tree && one.window == 1, "{one:?}");
    let refusal = choose(1, Some(A::Tree)).expect_err("it needs two").to_string();
    assert!(refusal.contains("it needs 2 channels to a peer, but the transports offer 1"), "{refusal}");
}

#[test]
fn size_decides() {
    let task = Task::new(Collective::AllReduce, 16).with_hosts((0..16).collect::<Vec<u32>>());
    let small = choose(&task, 8, Order::Any);
    assert!(matches!(small.algorithm, Algorithm::OneShot | Algorithm::RecursiveDoubling), "{}", small.reason);
    let large = choose(&task, 64 << 20, Order::Any);
    assert!(
        !matches!(large.algorithm, Algorithm::OneShot | Algorithm::RecursiveDoubling | Algorithm::Leader),
        "{}",
        large.reason
    );
    assert!(large.segment_bytes <= 4 << 20 && large.segment_bytes >= 64 << 10);
    assert!(large.window > 1 && small.window == 1);
    assert!(small.cost_seconds < large.cost_seconds);
    let on_hosts =
        Task::new(Collective::AllReduce, 32).with_hosts((0..32).map(|rank| rank / 8).collect::<Vec<u32>>());
    // Both of these keep most of the data within hosts.
    let split = choose(&on_hosts, 64 << 20, Order::Any);
    assert!(matches!(split.algorithm, Algorithm::Hierarchical | Algorithm::Halving), "{}", split.reason);
}

#[test]
fn canonical_order_is_kept() {
    for p in [1, 2, 7, 8, 64] {
        for collective in [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter] {
            for bytes in [0, 8, 1 << 16, 1 << 28] {
                let task = Task::new(collective, p).with_root(p - 1);
                let choice = choose(&task, bytes, Order::Canonical);
                assert!(choice.algorithm.is_canonical(&task));
            }
        }
    }
}

#[test]
fn every_task_has_a_choice_and_every_algorithm_a_place() {
    for p in [1, 2, 3, 17, 64, 4096] {
        for collective in COLLECTIVES {
            for irregular in [false, true] {
                for bytes in [0, 1, 1000, 1 << 20, 1 << 34] {
                    let task = Task::new(collective, p);
                    let choice = Request::new(&task, bytes, 8)
                        .irregular(irregular)
                        .select(&Model::RDMA)
                        .expect("a choice");
                    assert!(!irregular || choice.algorithm.serves_irregular(collective));
                    assert_eq!(choice.losers.len() + 1, Algorithm::ALL.len());
                    assert!(choice.cost_seconds.is_finite() && choice.cost_seconds >= 0.0);
                    assert!(choice.segment_bytes > 0 && choice.segment_bytes.is_multiple_of(8));
                    assert!(choice.losers.iter().all(|(algorithm, _)| *algorithm != choice.algorithm));
                }
            }
        }
    }
}

#[test]
fn staging_is_bounded() {
    use kolo_collectives::cost::scratch_factor;
    for p in [64, 1024] {
        for collective in COLLECTIVES {
            for bytes in [1 << 16, 1 << 22, 1 << 30] {
                let task = Task::new(collective, p).in_place();
                let choice = choose(&task, bytes, Order::Any);
                let scratch = scratch_factor(choice.algorithm, &task) * choice.segment_bytes as f64;
                assert!(scratch * choice.window as f64 <= (64 << 20) as f64, "{task:?} {choice:?}");
            }
        }
    }
}

#[test]
fn no_payload_is_longer_than_a_stage_holds() {
    let mut looked_at = 0;
    for (hosts, ranks) in [(1, 2), (1, 3), (1, 4), (1, 7), (1, 8), (1, 17), (1, 64), (2, 2), (2, 4), (4, 8)] {
        let cluster = Cluster { hosts, ranks_per_host: ranks, ..Cluster::default() };
        for collective in COLLECTIVES {
            let task = task_on(collective, &cluster);
            for algorithm in Algorithm::ALL {
                if algorithm.supports(&task).is_err() {
                    continue;
                }
                let staged = plans(algorithm, &task).iter().any(|plan| plan.stage.is_some());
                for bytes in [8, 1 << 10, 100_000, 513 << 10, 1_000_000, 16 << 20, 1 << 30] {
                    for element in [1, 16] {
                        let force = Some(algorithm);
                        let choice = Request::new(&task, bytes, element)
                            .forced(force)
                            .select(&Model::TCP)
                            .expect("it can");
                        assert_eq!(choice.staged_segment_bytes_max.is_some(), staged, "{algorithm}");
                        let Some(longest) = choice.staged_segment_bytes_max else { continue };
                        assert!(choice.segment_bytes <= longest, "{algorithm} {task:?} {bytes}: {choice:?}");
                        let task = task.clone().with_params(choice.params);
                        for segment in [choice.segment_bytes, longest] {
                            let most = longest_payload(&plans(algorithm, &task), segment / element) * element;
                            assert!(
                                most <= PAYLOAD_BYTES_MAX,
                                "{algorithm} {task:?} {bytes} {segment}: {most}"
                            );
                            looked_at += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(looked_at > 1000, "only {looked_at}");
}

/// Stages hold 40 bytes for each of the most ranks.
#[test]
fn blocks_of_very_many_ranks_are_cut_to_what_a_stage_holds() {
    for hosts in [1, 4] {
        for ranks in [6_000, 16_384] {
            let cluster = Cluster { hosts, ranks_per_host: ranks / hosts, ..Cluster::default() };
            for collective in [Collective::AllToAll, Collective::ReduceScatter, Collective::AllGather] {
                let task = task_on(collective, &cluster);
                for algorithm in Algorithm::ALL.into_iter().filter(|a| a.supports(&task).is_ok()) {
                    for bytes in [100, 1 << 20] {
                        let choice = Request::new(&task, bytes, 16)
                            .forced(algorithm)
                            .select(&Model::TCP)
                            .expect("it can");
                        let most = choice.staged_segment_bytes_max.unwrap_or(usize::MAX);
                        assert!(choice.segment_bytes <= most, "{algorithm}, {ranks} ranks: {choice:?}");
                    }
                }
            }
        }
    }
}

/// A short last segment would cost as many rounds as a long one.
#[test]
fn staged_segments_are_as_long_as_each_other() {
    for (p, collective) in
        [2, 4, 8, 13].into_iter().flat_map(|p| COLLECTIVES.map(|collective| (p, collective)))
    {
        for bytes in [700_000, 1 << 20, 10_000_000, 64 << 20] {
            let task = Task::new(collective, p).with_stages();
            for algorithm in [Algorithm::Staged, Algorithm::StagedOneShot, Algorithm::StagedTwoShot] {
                if algorithm.supports(&task).is_err() || collective == Collective::Barrier {
                    continue;
                }
                let choice = Request::new(&task, bytes, 4).forced(algorithm).select(&Model::TCP);
                let segment = choice.expect("it can").segment_bytes as u64;
                let segments = bytes.div_ceil(segment);
                assert!(segment <= bytes.div_ceil(segments) + 128, "{algorithm} {task:?} {bytes}: {segment}");
            }
        }
    }
}

/// Returns the elements of the longest payload in segments of `elements`.
fn longest_payload(plans: &[Plan], elements: usize) -> usize {
    let longest = |plan: &Plan| {
        let shape = match plan.cut {
            Cut::Vector { .. } | Cut::Shards { .. } => Shape::Vector { count: elements },
            Cut::PerRank => Shape::Blocks { count: elements },
        };
        let layout = Layout::new(plan, shape, elements.max(1));
        plan.stage.as_ref().map_or(0, |stage| stage.longest(&layout).iter().sum())
    };
    plans.iter().map(longest).max().unwrap_or(0)
}

#[test]
fn scratch_is_what_the_cost_model_says_at_most() {
    use kolo_collectives::cost::scratch_factor;
    for p in [2, 3, 8, 13, 32] {
        for collective in COLLECTIVES {
            for task in [Task::new(collective, p), Task::new(collective, p).in_place()] {
                for algorithm in Algorithm::ALL {
                    if algorithm.supports(&task).is_err() {
                        continue;
                    }
                    for plan in plans(algorithm, &task) {
                        let count = 64 * 81 * 5 * 7 * 11 * 13;
                        let shape = match plan.cut {
                            Cut::Vector { .. } | Cut::Shards { .. } => Shape::Vector { count },
                            Cut::PerRank => Shape::Blocks { count },
                        };
                        let scratch =
                            Layout::new(&plan, shape, count).scratch_elements() as f64 / count as f64;
                        let declared = scratch_factor(algorithm, &task);
                        assert!(
                            scratch <= declared + 1e-9,
                            "{algorithm} {task:?}: {scratch}, not {declared}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn force_is_obeyed_or_refused() {
    let task = Task::new(Collective::AllReduce, 8);
    let model = Model::TCP;
    let ring = Request::new(&task, 8, 4).forced(Algorithm::Ring).select(&model).expect("it can");
    assert_eq!(ring.algorithm, Algorithm::Ring);
    assert!(ring.reason.contains("requested"));
    let refused = |task: &Task, irregular, order, force| {
        let error = Request::new(task, 8, 4)
            .irregular(irregular)
            .ordered(order)
            .forced(force)
            .select(&model)
            .expect_err("it cannot");
        assert!(matches!(error, SelectError::Forced { algorithm, .. } if algorithm == force));
        error.to_string()
    };
    assert!(refused(&task, false, Order::Any, Algorithm::Bruck).contains("Bruck"));
    assert!(refused(&task, false, Order::Canonical, Algorithm::Ring).contains("canonical"));
    let all_to_all = Task::new(Collective::AllToAll, 8);
    assert!(refused(&all_to_all, true, Order::Any, Algorithm::Bruck).contains("equal length"));
}

/// On one host with symmetric buffers, calls of 1 MiB and more were measured to be about as fast on windows
/// as in any other form, or faster (docs/measurements.md). The closed form predicts this, and agrees with the
/// simulator.
#[test]
fn long_calls_on_symmetric_buffers_take_windows() {
    use Collective as C;
    for ranks in [2, 4, 8] {
        for collective in
            [C::AllReduce, C::Reduce, C::Broadcast, C::ReduceScatter, C::AllGather, C::AllToAll, C::Scatter]
        {
            let task = Task::new(collective, ranks).with_stages().with_symmetric(Symmetric::All);
            let blocks = if collective.has_block_per_rank() { u64::from(ranks) } else { 1 };
            for all in [1 << 20, 16 << 20] {
                let bytes = all / blocks;
                for oversubscription in [1.0, f64::from(ranks) / 2.0] {
                    let model = Model { oversubscription, ..Model::TCP };
                    let choice = Request::new(&task, bytes, 4).select(&model).expect("some can");
                    let on_windows = match choice.algorithm {
                        Algorithm::Window => choice.cost_seconds,
                        _ => {
                            let window = choice.losers.iter().find(|(other, _)| *other == Algorithm::Window);
                            window.and_then(|(_, cost)| cost.clone().ok()).expect("it can serve")
                        }
                    };
                    assert!(
                        on_windows <= 1.15 * choice.cost_seconds,
                        "{collective} of {all} on {ranks}, {oversubscription} per processor: {choice:?}"
                    );
                }
                let cluster = Cluster { ranks_per_host: ranks, segment_bytes: 1 << 30, ..Cluster::default() };
                let flow = Flow { bytes, segment_bytes: bytes, window: 1 };
                let priced = seconds(Algorithm::Window, &task, flow, &cluster.model);
                // A rank's own block, which no form counts, stays where it is in place.
                let placed = if collective == C::AllToAll { task.clone() } else { task.clone().in_place() };
                let simulated = simulated(Algorithm::Window, &placed, bytes, &cluster);
                let ratio = priced / simulated;
                assert!((0.5..1.5).contains(&ratio), "{collective} of {all} on {ranks}: {ratio}");
            }
        }
    }
}

/// The choices among ranks that share two processors, over loopback TCP, as measured (docs/measurements.md,
/// "Reductions among ranks that share processors, over TCP").
#[test]
fn long_reductions_of_ranks_that_share_processors_are_handed_on() {
    let intra = LinkClass { latency_seconds: 0.7e-6, overhead_seconds: 2.6e-6, bytes_per_second: 6.5e9 };
    let alone = Model { intra, switch_seconds: 3.5e-6, ..Model::TCP };
    for ranks in [4, 8] {
        let model = Model { oversubscription: f64::from(ranks) / 2.0, ..alone };
        let chosen = |collective, bytes, model| {
            Request::new(&Task::new(collective, ranks), bytes, 4).select(model).expect("some can")
        };
        for bytes in [256 << 10, 1 << 20, 16 << 20] {
            for collective in [Collective::Reduce, Collective::Scan] {
                let choice = chosen(collective, bytes, &model);
                let flow = (choice.algorithm, choice.segment_bytes, choice.window);
                assert_eq!(flow, (Algorithm::Chain, 32 << 10, 1), "{collective} of {bytes} on {ranks}");
            }
        }
        for bytes in [8, 32 << 10] {
            assert_ne!(chosen(Collective::Reduce, bytes, &model).algorithm, Algorithm::Chain);
        }
        assert_eq!(chosen(Collective::AllReduce, 1 << 20, &model).algorithm, Algorithm::Ring);
        // With processors of their own, ranks go on with the next segments while one is in flight.
        let scan = chosen(Collective::Scan, 1 << 20, &alone);
        assert!(scan.algorithm != Algorithm::Chain || scan.window > 1, "{scan:?}");
    }
}

/// Senders that would meet at a host's link go round a ring instead (docs/measurements.md, "Rings between hosts").
/// The latency decides for short calls, and for calls between two hosts.
#[test]
fn long_calls_between_hosts_go_round_a_ring() {
    let inter = LinkClass { latency_seconds: 60e-6, bytes_per_second: 113e6, ..LinkClass::TCP };
    let model = Model { inter, nic_bytes_per_second: 113e6, ..Model::TCP };
    for hosts in [4, 8] {
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
            let chosen = |total: u64| {
                let bytes =
                    if collective == Collective::AllReduce { total } else { total / u64::from(hosts) };
                let task = Task::new(collective, hosts).with_hosts((0..hosts).collect::<Vec<u32>>());
                Request::new(&task, bytes, 4).select(&model).expect("some can").algorithm
            };
            for total in [4 << 20, 16 << 20] {
                assert_eq!(chosen(total), Algorithm::Ring, "{collective} of {total} on {hosts} hosts");
            }
            assert_ne!(chosen(64 << 10), Algorithm::Ring, "{collective} on {hosts} hosts");
        }
    }
}

/// Broadcasts go along a chain in short parts, one after the other on one connection: docs/measurements.md, "Broadcasts between hosts".
#[test]
fn long_broadcasts_between_hosts_go_along_a_chain() {
    let inter = LinkClass { latency_seconds: 60e-6, bytes_per_second: 11.8e6, ..LinkClass::TCP };
    let model = Model { inter, nic_bytes_per_second: 11.8e6, ..Model::TCP };
    let task = Task::new(Collective::Broadcast, 4).with_hosts((0..4).collect::<Vec<u32>>());
    for bytes in [256 << 10, 1 << 20, 4 << 20, 64 << 20] {
        let choice = Request::new(&task, bytes, 4).select(&model).expect("some can");
        let Choice { algorithm, segment_bytes, window, params, .. } = choice;
        assert_eq!((algorithm, window), (Algorithm::Chain, 1), "{bytes}");
        assert_eq!(
            segment_bytes as u64 / u64::from(params.parts),
            (bytes / 128).clamp(8 << 10, 32 << 10),
            "{bytes}"
        );
        // Adapters hold no messages back, so several segments are in flight.
        let choice =
            Request::new(&task, bytes, 4).forced(Algorithm::Chain).select(&Model::RDMA).expect("forced");
        assert_eq!((choice.window, choice.params.parts), (3, 1), "{bytes}");
    }
}

/// Long all-to-alls move the blocks inside a host through shared memory (docs/measurements.md, "All-to-alls between hosts of several ranks").
#[test]
fn long_all_to_alls_go_through_memory_inside_hosts() {
    let hosts: Vec<u32> = (0..8).map(|rank| rank / 4).collect();
    let task = Task::new(Collective::AllToAll, 8).with_hosts(hosts).with_stages();
    let rate = 760e6;
    let inter = LinkClass { latency_seconds: 7e-6, overhead_seconds: 12e-6, bytes_per_second: rate };
    let model = Model { inter, nic_bytes_per_second: rate, oversubscription: 4.0, ..Model::TCP };
    for block in [128 << 10, 512 << 10, 2 << 20] {
        let choice = Request::new(&task, block, 4).select(&model).expect("some can");
        assert_eq!(choice.algorithm, Algorithm::HierarchicalStaged, "blocks of {block} bytes");
    }
}

/// A program that runs on one host runs on two, and on one rank, whatever order of reduction its settings ask for.
#[test]
fn every_call_has_an_algorithm_everywhere() {
    let together: fn(u32) -> u32 = |_| 0;
    let apart: fn(u32) -> u32 = |rank| rank;
    let lopsided: fn(u32) -> u32 = |rank| u32::from(rank == 3);
    for (ranks, host) in [(1, together), (2, together), (5, together), (2, apart), (5, apart), (4, lopsided)]
    {
        for collective in Collective::ALL {
            let task = Task::new(collective, ranks).with_hosts((0..ranks).map(host).collect::<Vec<u32>>());
            for task in [task.clone(), task.with_stages()] {
                for (order, irregular) in [
                    (Order::Any, false),
                    (Order::Any, collective.has_block_per_rank()),
                    (Order::Canonical, false),
                    (Order::Canonical, collective.has_block_per_rank()),
                ] {
                    for bytes in [0, 1 << 10, 8 << 20] {
                        let choice = Request::new(&task, bytes, 4)
                            .irregular(irregular)
                            .ordered(order)
                            .select(&Model::TCP);
                        choice.unwrap_or_else(|error| panic!("{task:?}, {order:?}: {error}"));
                    }
                }
            }
        }
    }
}
