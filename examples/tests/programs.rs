//! Runs the example programs as a user would: on threads, as processes, from any folder.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const HELLO: &str = env!("CARGO_BIN_EXE_hello");
const RING: &str = env!("CARGO_BIN_EXE_ring");
const GROUPS: &str = env!("CARGO_BIN_EXE_groups");
const OVERLAP: &str = env!("CARGO_BIN_EXE_overlap");
const SCOPE: &str = env!("CARGO_BIN_EXE_scope");
const SYMMETRIC: &str = env!("CARGO_BIN_EXE_symmetric");
const FAILURE: &str = env!("CARGO_BIN_EXE_failure");
const THREADS: &str = env!("CARGO_BIN_EXE_threads");
const EXPLAIN: &str = env!("CARGO_BIN_EXE_explain");
const TRAIN: &str = env!("CARGO_BIN_EXE_train_mlp");

/// Options for a training that takes a few seconds on any machine.
const SHORT: [&str; 7] = ["--bundled", "--images", "1000", "--epochs", "1", "--batch", "100"];

/// Runs a program in an empty folder, with an environment that sets only a deadline.
fn output(program: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("KOLO_TIMEOUT", "60").current_dir(folder.path());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the output of a program, which must succeed.
fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Sorts lines, since the ranks print in any order.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn fingerprint(text: &str) -> &str {
    let line = text.lines().find(|line| line.starts_with("weights identical")).expect(text);
    assert!(line.contains("on all ranks: yes"), "{text}");
    line.rsplit_once("fingerprint ").unwrap().1
}

#[test]
fn hello_sums_the_ranks() {
    let text = printed(&output(HELLO, &["--ranks", "3"]));
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank} of 3: the sum of all ranks is 3\n")), "{text}");
    }
}

#[test]
fn without_a_launcher_there_are_four_threads() {
    let text = printed(&output(HELLO, &[]));
    assert!(text.contains("rank 3 of 4: the sum of all ranks is 6\n"), "{text}");
}

#[test]
fn ring_passes_the_token_and_sums() {
    let text = printed(&output(RING, &["--ranks", "3"]));
    let want = [
        "rank 0: 1000 sums over 3 ranks agree with all_reduce",
        "rank 0: the token came with 3",
        "rank 1: 1000 sums over 3 ranks agree with all_reduce",
        "rank 1: the token came with 1",
        "rank 2: 1000 sums over 3 ranks agree with all_reduce",
        "rank 2: the token came with 2",
    ];
    assert_eq!(sorted(&text), want);
    assert!(printed(&output(RING, &["--ranks", "1"])).contains("sums over 1 ranks agree"));
}

#[test]
fn groups_sum_rows_and_columns() {
    let three = printed(&output(GROUPS, &["--ranks", "3"]));
    assert!(three.contains("rank 1 at row 0, column 1: the row's sum is 3, the column's 1\n"), "{three}");
    let text = printed(&output(GROUPS, &["--ranks", "6"]));
    let want = [
        "rank 0 at row 0, column 0: the row's sum is 3, the column's 3",
        "rank 0 is rank 0 of the first column's 2",
        "rank 1 at row 0, column 1: the row's sum is 3, the column's 5",
        "rank 2 at row 0, column 2: the row's sum is 3, the column's 7",
        "rank 3 at row 1, column 0: the row's sum is 12, the column's 3",
        "rank 3 is rank 1 of the first column's 2",
        "rank 4 at row 1, column 1: the row's sum is 12, the column's 5",
        "rank 5 at row 1, column 2: the row's sum is 12, the column's 7",
    ];
    assert_eq!(sorted(&text), want);
}

#[test]
fn overlap_gets_the_same_sums() {
    let text = printed(&output(OVERLAP, &["--ranks", "3"]));
    assert!(text.starts_with("16 buckets of 1024 KiB, the same sums both times"), "{text}");
    let mut canonical = Command::new(OVERLAP);
    canonical
        .args(["--ranks", "3"])
        .env_clear()
        .env("KOLO_TIMEOUT", "60")
        .env("KOLO_DETERMINISM", "canonical");
    let text = printed(&canonical.output().unwrap());
    assert!(text.starts_with("16 buckets of 1024 KiB, the same sums both times\n"), "{text}");
}

#[test]
fn scope_sums_all_layers() {
    let text = printed(&output(SCOPE, &["--ranks", "3"]));
    let want: Vec<String> = (0..3).map(|rank| format!("rank {rank}: 3 layers summed in one scope")).collect();
    assert_eq!(sorted(&text), want);
}

#[test]
fn symmetric_buffers_give_the_same_sums() {
    let text = printed(&output(SYMMETRIC, &["--ranks", "2"]));
    assert!(text.starts_with("16 MiB, the same sums both times\nordinary memory: "), "{text}");
}

#[test]
fn failure_is_told_by_every_rank_that_stays() {
    let text = printed(&output(FAILURE, &["--ranks", "3"]));
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank}: fatal: false: ")), "{text}");
        let is_told = text.contains(&format!("rank {rank}: fatal: true: rank {rank}, all_reduce("));
        assert_eq!(is_told, rank < 2, "{text}");
    }
    assert_eq!(text.matches("rank 2 is lost (it has dropped its communicator").count(), 2, "{text}");
}

#[test]
fn threads_reduce_at_the_same_time() {
    let text = printed(&output(THREADS, &["--ranks", "3"]));
    let want: Vec<String> =
        (0..3).map(|rank| format!("rank {rank}: 100 sums of 6, 100 products of 8")).collect();
    assert_eq!(sorted(&text), want);
}

#[test]
fn explain_names_the_forced_algorithm() {
    let text = printed(&output(EXPLAIN, &["--ranks", "3"]));
    assert!(text.starts_with("as chosen: "), "{text}");
    assert!(text.contains("\nby the ring: ring: "), "{text}");
    assert_eq!(text.matches(" all_reduce(1048576 x f32, sum) took ").count(), 2, "{text}");
}

#[test]
fn training_is_the_same_on_any_number_of_ranks() {
    for ranks in ["1", "2", "3"] {
        let text = printed(&output(TRAIN, &[&SHORT[..], &["--compare", "--ranks", ranks]].concat()));
        assert!(text.starts_with("data: the bundled subset of Fashion-MNIST: 1000 images, 500 to"), "{text}");
        assert!(text.contains("epoch  1: loss "), "{text}");
        assert!(text.contains(", within rounding ("), "{text}");
        fingerprint(&text);
    }
}

/// At this learning rate the weights soon become NaN, which never compares equal.
#[test]
fn a_failed_comparison_shows_in_the_exit_code() {
    let arguments = [&SHORT[..], &["--ranks", "2", "--compare", "--learning-rate", "1e6"]].concat();
    let found = output(TRAIN, &arguments);
    assert_eq!(found.status.code(), Some(1));
    assert!(text(&found.stdout).contains("more than rounding"), "{}", text(&found.stdout));
}

/// Starts processes that meet through a file.
fn start_ranks(program: &str, arguments: &[&str], ranks: u32, meeting: &Path) -> Vec<Child> {
    let start = |rank: u32| {
        Command::new(program)
            .args(arguments)
            .env_clear()
            .env("KOLO_RENDEZVOUS", format!("file://{}", meeting.display()))
            .env("KOLO_RANK", rank.to_string())
            .env("KOLO_WORLD_SIZE", ranks.to_string())
            .env("KOLO_TIMEOUT", "60")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (0..ranks).map(start).collect()
}

#[test]
fn processes_learn_what_threads_learn() {
    let folder = tempfile::tempdir().unwrap();
    let processes = start_ranks(TRAIN, &SHORT, 2, &folder.path().join("meeting"));
    let outputs: Vec<Output> = processes.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let threads = printed(&output(TRAIN, &[&SHORT[..], &["--ranks", "2"]].concat()));
    assert_eq!(fingerprint(&printed(&outputs[0])), fingerprint(&threads));
    assert_eq!(printed(&outputs[1]), "", "only rank 0 reports");
}

#[test]
fn half_an_environment_is_an_error() {
    let found = Command::new(HELLO).env_clear().env("RANK", "0").env("WORLD_SIZE", "2").output().unwrap();
    assert!(!found.status.success());
    let message = text(&found.stderr);
    assert!(message.contains("MASTER_ADDR"), "{message}");
}

#[test]
fn data_that_is_not_there_is_an_error() {
    let found = output(TRAIN, &["--data", "nowhere"]);
    assert_eq!(found.status.code(), Some(1));
    let message = text(&found.stderr);
    assert!(message.starts_with("train_mlp: no data set in nowhere: neither train-images"), "{message}");
}
