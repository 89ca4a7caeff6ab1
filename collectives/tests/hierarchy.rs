//! The two-level generators on hosts of all kinds.

mod common;

use common::{COLLECTIVES, PLACEMENTS, expect, irregular, plans, rooted, uniform};
use kolo_collectives::check::Options;
use kolo_collectives::plan::Collective;
use kolo_collectives::{Algorithm, Task};

const FORMS: [Algorithm; 4] =
    [Algorithm::Hierarchical, Algorithm::Leader, Algorithm::HierarchicalStaged, Algorithm::LeaderStaged];

fn check_on(hosts: &[u32], checked: &mut usize) {
    let p = hosts.len() as u32;
    for collective in COLLECTIVES {
        let roots = if rooted(collective) { (0..p).collect() } else { vec![0] };
        for root in roots {
            for placement in PLACEMENTS {
                let task = Task { placement, ..Task::new(collective, p).with_root(root) };
                let task = task.with_hosts(hosts).with_stages();
                for algorithm in FORMS {
                    if algorithm.supports(&task).is_err() {
                        continue;
                    }
                    let plans = plans(algorithm, &task);
                    for count in [1, p as usize, 101] {
                        expect(algorithm, &task, &plans, &uniform(&plans, count), &Options::default());
                    }
                    if matches!(collective, Collective::AllGather | Collective::ReduceScatter) {
                        let shapes = irregular(&task, |owner, _| (owner * 7 % 5) as usize);
                        expect(algorithm, &task, &plans, &shapes, &Options::quick().segmented(3));
                    }
                    *checked += 1;
                }
            }
        }
    }
}

#[test]
fn even_hosts() {
    let mut checked = 0;
    for hosts in 2..=6_u32 {
        for local in 2..=5 {
            let consecutive: Vec<u32> = (0..hosts * local).map(|rank| rank / local).collect();
            check_on(&consecutive, &mut checked);
            let dealt: Vec<u32> = (0..hosts * local).map(|rank| rank % hosts).collect();
            check_on(&dealt, &mut checked);
        }
    }
    assert!(checked > 1000, "only {checked}");
}

#[test]
fn uneven_hosts() {
    let mut checked = 0;
    for hosts in [&[0, 0, 1][..], &[5, 3, 3, 3, 5, 9], &[0, 1, 1, 1, 1, 1, 1], &[2, 2, 2, 2, 2, 1, 0, 0]] {
        check_on(hosts, &mut checked);
        let task = Task::new(Collective::AllReduce, hosts.len() as u32).with_hosts(hosts);
        assert!(Algorithm::Hierarchical.supports(&task).is_err());
    }
    assert!(checked > 50, "only {checked}");
}

#[test]
fn no_hierarchy_says_why() {
    let task = Task::new(Collective::AllReduce, 4);
    for (task, reason) in [
        (task.clone(), "it is not known"),
        (task.clone().with_hosts([0, 0, 0, 0]), "share one host"),
        (task.clone().with_hosts([0, 1, 2, 3]), "alone on its host"),
        (task.clone().with_hosts([0, 0, 1]), "3 of 4 ranks"),
    ] {
        let refusal = Algorithm::Leader.supports(&task).expect_err(reason);
        assert!(refusal.contains(reason), "{refusal}");
    }
}
