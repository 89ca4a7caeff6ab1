//! Time until ranks can call, and the absence of leftovers when they are gone.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use kolo::{Cluster, ReduceOp};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::{Job, Process, environment};
use kolo_tests::system::Holdings;
use kolo_tests::watchdog::{Gate, bounded};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kolo_rank");

/// Targets on an otherwise idle machine. The tests run beside others and often on fewer processors, so they assert five
/// times as much.
const PROCESSES_READY: Duration = Duration::from_millis(200);
const THREADS_READY: Duration = Duration::from_secs(2);

/// Jobs of which one must be ready in time. The machine may pause during some of them.
const JOBS_MAX: usize = 8;

/// MPICH's newer launchers do not name the job; the process that started the ranks identifies it.
#[test]
fn ranks_of_one_parent_join_by_hydras_variables_alone() {
    bounded("PMI", || {
        let mut ranks: Vec<Process> = (0..2)
            .map(|rank| {
                let mut command = Command::new(PROGRAM);
                for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KOLO_")) {
                    command.env_remove(name);
                }
                for (name, value) in
                    [("PMI_RANK", rank), ("PMI_SIZE", 2), ("MPI_LOCALRANKID", rank), ("MPI_LOCALNRANKS", 2)]
                {
                    command.env(name, value.to_string());
                }
                command.arg("ready").env("KOLO_JOIN_TIMEOUT", "30");
                Process::start(command)
            })
            .collect();
        ranks.iter_mut().for_each(|rank| drop(rank.expect("@joined ")));
    });
}

#[test]
fn eight_processes() {
    for arrangement in [Arrangement::Exchange, Arrangement::Tcp, Arrangement::Hosts(4)] {
        bounded(&format!("{arrangement:?}"), move || {
            let ready_after = || {
                let start = Instant::now();
                let mut job = Job::start(PROGRAM, 8, 8, &["ready"], |rank| environment(arrangement, rank));
                let joined = job.expect_all("@joined ");
                let took = start.elapsed();
                let most = joined.iter().filter_map(|us| us.parse::<u64>().ok()).max();
                println!(
                    "{arrangement:?}: 8 processes started and ready after {:.0} ms, {:.0} ms of them joining",
                    took.as_secs_f64() * 1e3,
                    most.unwrap_or(0) as f64 / 1e3
                );
                assert_eq!(job.ended(), [true; 8]);
                assert_eq!(job.files_left(), 0, "rank 0 left its file");
                took
            };
            let is_fast = (0..JOBS_MAX).any(|_| ready_after() < 5 * PROCESSES_READY);
            assert!(is_fast, "{arrangement:?}: none of {JOBS_MAX} jobs");
        });
    }
}

#[test]
fn many_thread_ranks() {
    bounded("128 thread ranks", || {
        let start = Instant::now();
        let took = Cluster::with_configs(
            128,
            |rank| Arrangement::Exchange.config(rank),
            |comm| {
                let ready = start.elapsed();
                let mut data = [1_u32; 3];
                comm.all_reduce(&mut data, ReduceOp::Sum).expect("all of them");
                assert_eq!(data, [128; 3]);
                ready
            },
        )
        .expect("they join");
        let ready = took.into_iter().max().unwrap_or_default();
        println!("128 thread ranks ready after {ready:.2?}, gone after {:.2?}", start.elapsed());
        assert!(ready < 5 * THREADS_READY, "{ready:?}");
    });
}

/// Returns the ports on which a process listens.
fn listening(process: u32) -> BTreeSet<u16> {
    let links = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it lives");
    let own: Vec<String> = links
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|target| {
            Some(target.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        })
        .collect();
    let mut ports = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (Some(at), Some(state), Some(inode)) = (fields.get(1), fields.get(3), fields.get(9)) else {
                continue;
            };
            if *state == "0A" && own.iter().any(|own| own == inode) {
                let port = at.rsplit(':').next().and_then(|hex| u16::from_str_radix(hex, 16).ok());
                ports.insert(port.expect("a port"));
            }
        }
    }
    ports
}

/// Rank 0 chooses the port at which ranks join, so it uses its one port for that, too.
#[test]
fn a_process_with_many_communicators_listens_at_one_port_which_a_range_may_give() {
    bounded("one port", || {
        let ports = [(); 4].map(|()| kolo_transport::conformance::free_port());
        let settings = |rank: u32| {
            let port = ports[rank as usize];
            let mut all = environment(Arrangement::Hosts(2), rank);
            all.extend([("KOLO_TRANSPORT", "tcp".to_owned()), ("KOLO_PORT_RANGE", format!("{port}-{port}"))]);
            all
        };
        let mut job = Job::start(PROGRAM, 4, 4, &["groups", "5"], settings);
        job.expect_all("@running");
        for (rank, port) in job.ranks.iter().zip(&ports) {
            assert_eq!(listening(rank.id()), BTreeSet::from([*port]));
        }
        job.ranks.iter_mut().for_each(|rank| rank.tell("go"));
        assert_eq!(job.ended(), [true; 4]);
    });
}

/// Runs a cluster that uses everything and ends.
fn one_life(arrangement: Arrangement) {
    let gate = Gate::new(3);
    arrangement.run(3, |comm| {
        let work = comm.all_reduce_start(vec![1.0_f32; 200_000], ReduceOp::Sum).expect("starts");
        comm.barrier().expect("all are there");
        let half = comm.split(Some(comm.rank() / 2), 0).expect("all call it").expect("everybody");
        half.all_reduce(&mut [1.0_f32; 20], ReduceOp::Sum).expect("a part");
        drop(work.wait().expect("done"));
        // A handle that is dropped without a wait, and a failure at the end.
        drop(comm.all_reduce_start(vec![1.0_f32; 10_000], ReduceOp::Sum).expect("starts"));
        gate.wait();
        if comm.rank() == 0 {
            comm.abort("the end of this life");
        }
        comm.barrier().expect_err("aborted");
    });
}

#[test]
fn nothing_is_left() {
    // Other tests of this process would be counted too, so this runs in a process of its own.
    if std::env::var_os("KOLO_TEST_LEAKS").is_some() {
        for arrangement in Arrangement::ALL {
            // The first clusters load resources that stay for good.
            (0..2).for_each(|_| one_life(arrangement));
            let before = Holdings::now();
            (0..20).for_each(|_| one_life(arrangement));
            let after = Holdings::now();
            println!("{arrangement:?}: {before:?} before, {after:?} after 20 lives");
            assert_eq!(
                (before.descriptors, before.threads),
                (after.descriptors, after.threads),
                "{arrangement:?}"
            );
            assert_eq!(before.shm_files, after.shm_files, "{arrangement:?}: files in /dev/shm");
            // The allocator keeps some mappings.
            assert!(after.mappings <= before.mappings + 20, "{arrangement:?}: {before:?} {after:?}");
        }
        return;
    }
    bounded("leaks", || {
        let this = std::env::current_exe().expect("this program");
        let ended = Command::new(this)
            .args(["--exact", "nothing_is_left", "--nocapture"])
            .env("KOLO_TEST_LEAKS", "1")
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&ended.stdout);
        text.lines().filter(|line| line.contains("20 lives")).for_each(|line| println!("{line}"));
        assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    });
}
