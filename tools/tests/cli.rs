//! The `kolo` command as people and scripts use it: as a process, with real ranks.

mod common;
mod terminal;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{KOLO, command, kolo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use terminal::terminal;

/// Time limit of every wait: much longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

fn run(line: &str) -> Output {
    kolo(line).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn rows(stdout: &str) -> Vec<Vec<&str>> {
    let lines = stdout.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_whitespace().collect()).collect()
}

/// Starts a command and returns it with the lines of its standard output.
fn start(command: &mut Command) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines.map_while(Result::ok))
}

fn pid(number: &str) -> Pid {
    Pid::from_raw(number.trim().parse().unwrap()).unwrap()
}

/// Whether a process ends within the limit.
fn ends(process: Pid) -> bool {
    let Ok(descriptor) = pidfd_open(process, PidfdFlags::empty()) else { return true };
    let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

#[test]
fn processes_measure_and_check() {
    for line in [
        "perf all_reduce -b 8 -e 64K -f 8 -n 3 --ranks 3",
        "perf alltoallv -b 4K -e 4K -n 3 --ranks 3 --transport tcp",
        "perf sendrecv -b 4K -e 4K -n 3 --ranks 3 --threads",
        "perf hypercube -b 4K -e 4K -n 3 --ranks 2 -t 2",
    ] {
        let output = run(line);
        let stdout = text(&output.stdout);
        assert!(output.status.success(), "{line}\n{stdout}{}", text(&output.stderr));
        assert!(stdout.contains("# Out of bounds values : 0 OK"), "{line}\n{stdout}");
        let rows = rows(&stdout);
        assert!(!rows.is_empty() && rows.iter().all(|row| row.len() == 13), "{line}\n{stdout}");
    }
}

#[test]
fn each_rank_is_listed() {
    let stdout = text(&run("perf barrier -n 2 --ranks 2 -t 2").stdout);
    for rank in 0..4 {
        assert!(stdout.contains(&format!("#  Rank  {rank} Group  0 Pid ")), "{stdout}");
    }
    assert_eq!(rows(&stdout)[0][0], "0");
}

#[test]
fn names_of_nccl_tests() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("all_gather_perf_mpi");
    symlink(KOLO, &name).unwrap();
    let output = command(&name).args(["-b", "1K", "-e", "1K", "-n", "2", "-g", "2"]).output().unwrap();
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", text(&output.stderr));
    assert!(stdout.contains("# Collective test starting: all_gather_perf_mpi\n"), "{stdout}");
    assert_eq!(rows(&stdout)[0][..5], ["1024", "128", "float", "none", "-1"]);
    for options in [&[][..], &["-t", "1", "-g", "1"]] {
        let output = command(&name).args(["-b", "1K", "-e", "1K", "-n", "2"]).args(options).output().unwrap();
        let stdout = text(&output.stdout);
        assert_eq!(stdout.matches("#  Rank ").count(), 1, "{stdout}");
    }
}

#[test]
fn too_little_bandwidth_is_exit_code_1_and_no_error() {
    let output =
        kolo("perf all_reduce -b 8 -e 8 -n 2 --ranks 2").env("NCCL_TESTS_MIN_BW", "1e9").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains(" FAILED\n"));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn nonsense_gets_a_paragraph_and_no_hang() {
    for (line, expected) in [
        ("perf all_reduce --ranks 0", "--ranks"),
        ("perf all_reduce -q", "invalid option 'q'"),
        ("perf all_reduce -b x", "invalid size specified for 'minbytes'"),
        ("perf all_reduce -e 1000000G", "(-e) do not fit"),
        ("perf reduce -r 4 --ranks 4", "out of range"),
        ("perf hypercube --ranks 3", "power-of-two"),
        ("perf all_reduce --transport pigeon", "--transport"),
        ("perf all_reduce --algo magic", "magic"),
        ("perf all_reduce --algo binomial", "binomial cannot serve all_reduce"),
        ("perf nothing", "there is no test 'nothing'"),
        ("perf all_reduce -d foo", "int8, uint8, int32"),
        ("perf all_reduce -o foo", "sum, prod, max, min, avg, mulsum, or all"),
        ("run -n 0 -- true", "-n is 0"),
        ("run -n 1 -- /no/such/program", "/no/such/program"),
        ("run -n 2 --nodes 2 -- true", "--rendezvous"),
        ("run --np 2 true", "there is no option '--np'"),
        ("run --grace 18446744073709551615 -- true", "--grace"),
        ("explain all_reduce --ranks 3 --hosts 2", "evenly"),
        ("sim all_reduce --cluster /no/such/file", "/no/such/file"),
        ("frobnicate", "frobnicate"),
    ] {
        let output = run(line);
        let stderr = text(&output.stderr);
        assert!(!output.status.success() && output.status.code().is_some(), "{line}");
        assert!(stderr.contains(expected), "{line}\n{stderr}");
        assert!(stderr.starts_with("kolo: ") && !stderr.contains("panicked"), "{line}\n{stderr}");
    }
}

#[test]
fn a_file_that_cannot_be_written_costs_no_measurement() {
    for (line, file) in [
        ("perf all_reduce -b 8 -e 8 -n 1 --ranks 2 --plot /nonexistent/x.svg", "the plot /nonexistent/x.svg"),
        ("doctor --svg /nonexistent/x.svg", "the heat map /nonexistent/x.svg"),
        ("tune --out /dev/null/x.toml", "/dev/null"),
    ] {
        let output = run(line);
        assert!(!output.status.success() && text(&output.stderr).contains(file), "{output:?}");
        assert_eq!(text(&output.stdout), "", "{line}");
    }
}

#[test]
fn names_of_nccl_tests_take_unknown_types_and_operators_as_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("all_reduce_perf");
    symlink(KOLO, &name).unwrap();
    let words = ["-b", "1K", "-e", "1K", "-n", "2", "-t", "2", "-d", "foo", "-o", "bar"];
    let output = command(&name).args(words).output().unwrap();
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", text(&output.stderr));
    assert!(stdout.contains("invalid type foo, defaulting to float"), "{stdout}");
    assert_eq!(rows(&stdout)[2][2..4], ["float", "sum"], "{stdout}");
}

#[test]
fn verbose_says_which_way_is_taken() {
    for (algorithms, expected) in [
        ("", " on by exchange: "),
        ("all_reduce:ring", " on by ring: "),
        ("broadcast:chain", " on by exchange: "),
    ] {
        let output = kolo("perf all_reduce -b 8 -e 8 -n 1 --ranks 2 -v")
            .env("KOLO_ALGO", algorithms)
            .output()
            .unwrap();
        let stdout = text(&output.stdout);
        assert!(output.status.success(), "{algorithms}\n{stdout}{}", text(&output.stderr));
        assert!(stdout.contains(expected), "{algorithms}\n{stdout}");
    }
}

/// The soft limit on open files is low on most systems, and each rank's outputs take two.
#[test]
fn outputs_of_many_ranks_need_no_higher_soft_limit() {
    let folder = tempfile::tempdir().unwrap();
    let limited = |limit: &str, script: &str| {
        let run = format!("ulimit {limit}; exec {KOLO} run -n 20 --prefix -- sh -c '{script}'");
        command("sh").args(["-c", &run]).env("FOLDER", folder.path()).output().unwrap()
    };
    // All ranks stay until the last one has started.
    let together = ": > $FOLDER/$RANK; until [ -e $FOLDER/19 ]; do sleep 0.02; done; ulimit -n";
    let output = limited("-Sn 30", together);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert_eq!(
        said.lines().filter(|line| line.ends_with("] 30")).count(),
        20,
        "ranks keep their limit: {said}"
    );
    let output = limited("-n 30", "exec sleep 60");
    assert!(text(&output.stderr).contains("ulimit -Hn"), "{}", text(&output.stderr));
}

#[test]
fn values_beyond_reason_are_errors() {
    for (line, code) in [("doctor --seconds 18446744073709551615", 2), ("doctor --seconds 86401", 2)] {
        let output = kolo(line).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {}", text(&output.stderr));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(OsStr::from_bytes(b"\xfe.json"));
    let output = kolo("perf barrier -n 1 --ranks 1 -J").arg(&path).output().unwrap();
    assert!(output.status.success() && path.exists(), "{}", text(&output.stderr));
}

#[test]
fn a_folder_whose_name_is_no_url_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("a?b");
    std::fs::create_dir(&folder).unwrap();
    let output = kolo("run -n 2 -- true").env("TMPDIR", &folder).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("Set TMPDIR"), "{said}");
}

#[test]
fn half_a_launcher_starts_no_cluster() {
    for (name, value, expected) in [
        ("RANK", "x", "RANK: 'x' is not a number"),
        ("WORLD_SIZE", "2", "RANK is not"),
        ("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE is not"),
        ("PMI_RANK", "1/2", "PMI_RANK: '1/2' is not a number"),
    ] {
        let output = kolo("perf barrier -n 1 --ranks 2").env(name, value).output().unwrap();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(2), "{name}={value}\n{stdout}{stderr}");
        assert!(stderr.contains(expected), "{name}={value}\n{stderr}");
    }
}

#[test]
fn a_rank_that_dies_ends_the_measurement_and_is_named() {
    let (mut child, mut lines) = start(&mut kolo("perf all_reduce -b 64K -e 64K -N 0 --ranks 2"));
    let rank_1 = lines.by_ref().find(|line| line.starts_with("#  Rank  1 ")).unwrap();
    let words: Vec<&str> = rank_1.split_whitespace().collect();
    let place = words.iter().position(|word| *word == "Pid").unwrap();
    // The first row shows that the ranks are measuring.
    lines.by_ref().find(|line| !line.starts_with('#')).unwrap();
    kill_process(pid(words[place + 1]), Signal::KILL).unwrap();
    lines.for_each(drop);
    let stderr = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9), "{stderr}");
    assert!(stderr.contains("rank 1") && stderr.contains("killed by signal 9 (SIGKILL)"), "{stderr}");
}

/// Agents write to pipes, and the launcher tells them that the user sits at a terminal.
#[test]
fn a_question_of_a_rank_is_shown_before_its_answer() {
    let folder = tempfile::tempdir().unwrap();
    let answers = folder.path().join("answers");
    assert!(Command::new("mkfifo").arg(&answers).status().unwrap().success());
    for options in [&["-n", "1"][..], &["--hosts", "a", "--agent", "env ON={host}"]] {
        let (mut screen, program) = terminal();
        // Ends a test that would wait for ever.
        let mut command = command("timeout");
        command.args(["-s", "KILL", "60", KOLO, "run", "--prefix"]).args(options).args(["--", "sh", "-c"]);
        command.arg("printf 'Name: '; read name < \"$0\"; echo hello $name").arg(&answers);
        command.stdin(Stdio::null()).stdout(program);
        let mut child = command.spawn().unwrap();
        // This process must not hold the terminal, whose end is that of its programs.
        drop(command);
        let mut shown = |expected: &str| {
            let mut bytes = vec![0; expected.len()];
            screen.read_exact(&mut bytes).unwrap();
            assert_eq!(text(&bytes), expected, "{options:?}");
        };
        shown("[0] Name: ");
        std::fs::write(&answers, "you\n").unwrap();
        shown("hello you\r\n");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn signals_are_passed_on() {
    // The shell is ready once it waits, and no other process of it holds its output open.
    let script = "trap 'echo told; exit 0' TERM; tail -f /dev/null >/dev/null & echo ready; wait";
    let (mut child, mut lines) = start(kolo("run -n 2 --prefix -- sh -c").arg(script));
    for _ in 0..2 {
        assert!(lines.next().unwrap().ends_with("ready"));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut told: Vec<String> = lines.collect();
    told.sort();
    assert_eq!(told, ["[0] told", "[1] told"]);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn ranks_do_not_outlive_the_launcher() {
    let (mut child, mut lines) = start(kolo("run -n 1 -- sh -c").arg("echo $$; exec tail -f /dev/null"));
    let rank = pid(&lines.next().unwrap());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert!(ends(rank), "rank still runs");
}

#[test]
fn the_exit_code_of_a_program_is_passed_on() {
    assert_eq!(run("run -n 3 -- true").status.code(), Some(0));
    let output = kolo("run -n 3 -- sh -c").arg("exit $((RANK + 5 * (RANK == 2)))").output().unwrap();
    assert!(matches!(output.status.code(), Some(1 | 7)), "{:?}", output.status);
    assert!(text(&output.stderr).starts_with("kolo: rank "));
}

#[test]
fn variables_for_the_ranks_arrive_on_this_machine_too() {
    let output =
        kolo("run -n 2 -x MADE=a=b -x NOT_SET_ANYWHERE -- sh -c").arg("echo $MADE").output().unwrap();
    assert_eq!(text(&output.stdout), "a=b\na=b\n");
}

#[test]
fn programs_of_a_job_can_meet() {
    // `kolo perf` under `kolo run` joins instead of starting ranks of its own.
    let perf = format!("run -n 2 -- {KOLO} perf all_reduce -b 8 -e 8 -n 2");
    let output = run(&perf);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", text(&output.stderr));
    assert_eq!(stdout.matches("# Collective test concluded").count(), 1, "{stdout}");
    assert_eq!(stdout.matches("#  Rank ").count(), 2, "{stdout}");
}

/// Uses the stand-in for libibverbs, which needs no adapter.
#[test]
fn info_says_what_becomes_of_registrations_and_of_a_fork() {
    let library = std::path::Path::new(KOLO).with_file_name("examples/libfake_ibverbs.so");
    // Rebuilds the library even if it exists, since it may be outdated.
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build-as-tests", "--quiet", "--example", "fake_ibverbs"]);
    assert!(cargo.status().unwrap().success() && library.exists(), "cannot build {}", library.display());
    let output = kolo("info").env("KOLO_IBVERBS_LIB", &library).output().unwrap();
    let said = text(&output.stdout);
    for words in ["buffer registrations are", "fork is safe: the kernel copies pinned pages"] {
        assert!(said.contains(words), "no '{words}' in: {said}");
    }
}

/// Uses the stand-in for libcuda, which has one GPU.
#[test]
fn info_names_gpus_and_the_way_to_their_memory() {
    let library = std::path::Path::new(KOLO).with_file_name("examples/libfake_libcuda.so");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build-as-tests", "--quiet"]);
    assert!(cargo.status().unwrap().success() && library.exists(), "cannot build {}", library.display());
    let output = kolo("info --no-probe").env("KOLO_CUDA_LIBRARY", &library).output().unwrap();
    let said = text(&output.stdout);
    for words in ["Stand-in", "staged through pinned host memory", "no adapter is in use"] {
        assert!(said.contains(words), "no '{words}' in: {said}");
    }
}

#[test]
fn the_example_of_a_cluster_is_one() {
    let example = run("sim --example");
    assert!(example.status.success(), "{}", text(&example.stderr));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.toml");
    std::fs::write(&file, &example.stdout).unwrap();
    let simulated = run(&format!("sim all_reduce --cluster {} -b 64K", file.display()));
    assert!(simulated.status.success(), "{}", text(&simulated.stderr));
    assert!(text(&simulated.stdout).contains("16 host(s) with 8 rank(s) each"));
    let incomplete = run("sim");
    assert!(!incomplete.status.success() && text(&incomplete.stderr).contains("COLLECTIVE"));
}
