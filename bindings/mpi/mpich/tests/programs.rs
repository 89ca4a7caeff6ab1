//! Compiles and runs C programs that use the libraries as a user would: each for both ABIs, if both have the functions that it calls.

#[path = "../../../c/tests/common/ended.rs"]
mod ended;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// The longest time that one run of a program may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Returns the folder `bindings/mpi`.
fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    text
}

fn compiler() -> Option<String> {
    compiler_of("CC", "cc")
}

fn compiler_of(variable: &str, default: &str) -> Option<String> {
    let name = std::env::var(variable).ok().filter(|name| !name.is_empty()).unwrap_or(default.to_owned());
    let found = Command::new(&name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Some(name);
    }
    println!("skipped: there is no compiler '{name}' (set {variable})");
    None
}

/// One of the two libraries.
struct Abi {
    package: &'static str,
    /// Name for the linker, and name of the file, which is the soname.
    link: &'static str,
    file: &'static str,
    include: &'static str,
    folder: OnceLock<PathBuf>,
}

static ABIS: [Abi; 2] = [
    Abi { package: "kolo-mpi", link: "mpi", file: "libmpi.so.12", include: "mpich", folder: OnceLock::new() },
    Abi {
        package: "kolo-mpi-abi",
        link: "mpi_abi",
        file: "libmpi_abi.so.1",
        include: "abi",
        folder: OnceLock::new(),
    },
];

/// Builds the library; returns the folder that has it under its soname. Cargo does not build a cdylib before tests by itself, since tests
/// cannot link to it.
fn library(abi: &'static Abi) -> &'static Path {
    abi.folder.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let test = std::env::current_exe().unwrap();
        let folder = test.ancestors().nth(2).unwrap();
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(other) => other,
        };
        let build = ["build-as-tests", "--lib", "--offline", "--profile", profile];
        succeed(Command::new(env!("CARGO")).args(build).arg("--target-dir").arg(target).current_dir(home()));
        let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{profile}", abi.package));
        std::fs::create_dir_all(&own).unwrap();
        let plain = format!("lib{}.so", abi.link);
        for name in [abi.file, &plain] {
            // Renamed into place, so that a concurrent test run that has the old file open keeps it.
            let draft = own.join(format!("{name}.{}", std::process::id()));
            std::fs::copy(folder.join(&plain), &draft).unwrap();
            std::fs::rename(draft, own.join(name)).unwrap();
        }
        own
    })
}

/// Compiles a program of `tests/c`.
fn program(cc: &str, name: &str, folder: &Path, abi: &'static Abi) -> PathBuf {
    let program = folder.join(format!("{name}-{}", abi.include));
    compile(cc, "c99", &home().join(format!("tests/c/{name}.c")), &program, abi);
    program
}

/// Compiles a program whose `main` does this.
fn short_program(cc: &str, main: &str, folder: &Path, abi: &'static Abi) -> PathBuf {
    let (source, program) = (folder.join("short.c"), folder.join(format!("short-{}", abi.include)));
    let text = format!("#include <mpi.h>\nint main(void) {{ {main} }}\n");
    std::fs::write(&source, text).unwrap();
    compile(cc, "c99", &source, &program, abi);
    program
}

fn compile(compiler: &str, standard: &str, source: &Path, program: &Path, abi: &'static Abi) {
    let library = library(abi);
    let mut command = Command::new(compiler);
    command
        .arg(format!("-std={standard}"))
        .args(["-g", "-pthread", "-Wall", "-Wextra", "-Werror"])
        .arg("-I")
        .arg(home().join("include").join(abi.include));
    command.arg(source).arg("-o").arg(program);
    command.arg("-L").arg(library).arg(format!("-l{}", abi.link));
    command.arg(format!("-Wl,-rpath,{}", library.display()));
    succeed(&mut command);
}

/// Runs a program as the ranks of a job; all must succeed.
fn run_ranks(program: &Path, arguments: &[&str], ranks: usize, transport: &str) {
    run_ranks_with(program, arguments, ranks, transport, &[]);
}

/// As [`run_ranks`], with settings of Kolo.
fn run_ranks_with(
    program: &Path,
    arguments: &[&str],
    ranks: usize,
    transport: &str,
    settings: &[(&str, &str)],
) {
    let failures = failures_of(program, arguments, ranks, transport, settings);
    assert!(failures.is_empty(), "{} with {ranks} ranks over {transport}:\n{failures}", program.display());
}

/// Runs a program as the ranks of a job; returns what the ranks that failed have written.
fn failures_of(
    program: &Path,
    arguments: &[&str],
    ranks: usize,
    transport: &str,
    settings: &[(&str, &str)],
) -> String {
    let folder = tempfile::tempdir().unwrap();
    let meeting = format!("file://{}", folder.path().join("meeting").display());
    let start = |rank: usize| {
        let mut command = rank_command(program, rank, ranks, &meeting, transport);
        command.args(arguments).envs(settings.iter().copied());
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..ranks).map(start).collect();
    ended::failures(children, PATIENCE)
}

/// Makes the command of a rank, with Kolo's usual settings.
fn rank_command(program: &Path, rank: usize, ranks: usize, meeting: &str, transport: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KOLO_")) {
        command.env_remove(name);
    }
    if ranks > 1 {
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        command.env("KOLO_RENDEZVOUS", meeting).env("KOLO_TRANSPORT", transport);
    }
    // A busy machine may keep a rank from its processors for longer than the usual second.
    command.env("KOLO_SILENT_AFTER", "10");
    command
}

fn with_ranks(name: &str, ranks: &[usize]) {
    with(&ABIS, name, &[], ranks);
}

fn with(abis: &'static [Abi], name: &str, arguments: &[&str], ranks: &[usize]) {
    let Some(cc) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    for abi in abis {
        let program = program(&cc, name, folder.path(), abi);
        for ranks in ranks {
            run_ranks(&program, arguments, *ranks, "shm,tcp");
        }
        run_ranks(&program, arguments, ranks[ranks.len() - 1], "tcp");
    }
}

#[test]
fn messages() {
    with_ranks("messages", &[1, 2, 3, 4]);
}

/// Random legal programs. `KOLO_TEST_PROGRAMS` sets how many (12 by default), `KOLO_TEST_PROGRAMS_FROM` the first seed.
#[test]
fn random_programs() {
    let Some(cc) = compiler() else { return };
    let number = |name: &str, usual| {
        std::env::var(name).map_or(usual, |value| value.parse::<usize>().expect("a number"))
    };
    let (from, count) = (number("KOLO_TEST_PROGRAMS_FROM", 1), number("KOLO_TEST_PROGRAMS", 12));
    let folder = tempfile::tempdir().unwrap();
    let programs = [0, 1].map(|abi| program(&cc, "random", folder.path(), &ABIS[abi]));
    // Several programs in one job, since its start takes longer than a program.
    for (job, first) in (from..from + count).step_by(4).enumerate() {
        let seeds = [first, 4.min(from + count - first)].map(|number| number.to_string());
        for ranks in 1..=6 {
            let transport = if (job + ranks) / 2 % 2 == 0 { "shm,tcp" } else { "tcp" };
            run_ranks(&programs[(job + ranks) % 2], &seeds.each_ref().map(String::as_str), ranks, transport);
        }
    }
}

#[test]
fn statuses() {
    with_ranks("statuses", &[1, 2]);
}

#[test]
fn lifetimes() {
    with_ranks("lifetimes", &[1, 2, 3]);
}

#[test]
fn programs_in_cpp() {
    let Some(compiler) = compiler_of("CXX", "c++") else { return };
    let folder = tempfile::tempdir().unwrap();
    for abi in &ABIS {
        let program = folder.path().join(abi.include);
        compile(&compiler, "c++11", &home().join("tests/cpp/sum.cpp"), &program, abi);
        [1, 3].into_iter().for_each(|ranks| run_ranks(&program, &[], ranks, "shm,tcp"));
    }
}

#[test]
fn an_abort_writes_what_the_program_has_printed() {
    let Some(cc) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    for abi in &ABIS {
        let program = program(&cc, "abort", folder.path(), abi);
        // The system keeps eight bits of a code.
        for (code, status) in [("3", 3), ("256", 1), ("0", 0)] {
            let output = Command::new(&program).arg(code).output().unwrap();
            assert_eq!(output.status.code(), Some(status), "MPI_Abort with {code}");
            assert_eq!(String::from_utf8_lossy(&output.stdout), "the last words");
        }
    }
}

/// Each write to such a socket is a message of its own.
#[test]
fn the_last_words_of_a_rank_are_one_write() {
    let Some(cc) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = program(&cc, "abort", folder.path(), &ABIS[0]);
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let errors = std::os::fd::OwnedFd::from(theirs);
    let status = Command::new(&program).arg("3").stdout(Stdio::null()).stderr(errors).status().unwrap();
    let mut words = [0; 1000];
    let len = ours.recv(&mut words).unwrap();
    let words = String::from_utf8_lossy(&words[..len]);
    assert!(
        status.code() == Some(3) && words.starts_with("kolo: rank 0") && words.ends_with("MPI_Abort\n"),
        "{words}"
    );
}

/// Set for the process that is a rank without MPI, and leaves when the ranks have joined.
const LEAVES: &str = "LEAVES_WHEN_JOINED";

/// Does nothing, except in a process that [`beside_a_rank_that_leaves`] starts.
#[test]
fn a_rank_that_leaves_when_joined() {
    if std::env::var_os(LEAVES).is_some() {
        let _kolo = kolo::Communicator::from_env().unwrap();
        // The communicator is not dropped, so the other rank takes this for a crash.
        std::process::exit(0);
    }
}

/// Runs a program as rank 0, whose only peer leaves when both have joined. Returns what rank 0 has written, if it failed.
fn beside_a_rank_that_leaves(cc: &str, main: &str, abi: &'static Abi) -> String {
    let folder = tempfile::tempdir().unwrap();
    let program = short_program(cc, main, folder.path(), abi);
    let meeting = format!("file://{}", folder.path().join("meeting").display());
    let mut rank = rank_command(&program, 0, 2, &meeting, "shm,tcp");
    let rank = rank.stderr(Stdio::piped()).spawn().unwrap();
    let test = std::env::current_exe().unwrap();
    let mut leaving = rank_command(&test, 1, 2, &meeting, "shm,tcp");
    leaving.args(["--exact", "a_rank_that_leaves_when_joined"]).env(LEAVES, "1");
    let status = leaving.stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{status}");
    ended::failures(vec![rank], PATIENCE)
}

#[test]
fn an_initialization_that_fails_ends_the_job() {
    let Some(cc) = compiler() else { return };
    for abi in &ABIS {
        let failure = beside_a_rank_that_leaves(&cc, "MPI_Init(0, 0); return 0;", abi);
        assert!(failure.contains("exit status: 1"), "{failure}");
        let line = failure.lines().find(|line| line.starts_with("kolo: ") && line.contains("MPI_Init: "));
        assert!(line.is_some_and(|line| line.contains("rank 1")), "{failure}");
        // A session has an error handler from the beginning.
        let main =
            "MPI_Session one; return MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &one) ? 3 : 0;";
        let failure = beside_a_rank_that_leaves(&cc, main, abi);
        assert!(failure.contains("exit status: 3") && !failure.contains("ends the job"), "{failure}");
    }
}

#[test]
fn collectives() {
    with_ranks("collectives", &[1, 2, 3, 4]);
}

#[test]
fn reductions_by_messages() {
    with_ranks("reducing", &[1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn started_collectives_that_several_threads_advance() {
    with_ranks("started", &[1, 2, 3]);
}

/// The time for joining is over before the last rank calls the first collective of a communicator.
#[test]
fn first_collectives_wait_without_limit() {
    let Some(cc) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = program(&cc, "late", folder.path(), &ABIS[0]);
    run_ranks_with(&program, &["6"], 2, "shm,tcp", &[("KOLO_JOIN_TIMEOUT", "5")]);
}

#[test]
fn layouts() {
    with_ranks("layouts", &[1, 2, 3]);
}

#[test]
fn operators_on_the_thread_of_the_program() {
    with_ranks("own_thread", &[2, 3]);
}

#[test]
fn intercommunicators() {
    with_ranks("intercommunicators", &[2, 3, 5]);
}

#[test]
fn windows() {
    with_ranks("windows", &[1, 2, 4]);
}

#[test]
fn files() {
    let folder = tempfile::tempdir().unwrap();
    with(&ABIS, "files", &[folder.path().to_str().unwrap()], &[1, 2, 4]);
    // No file is left behind, not even the hidden file of a shared pointer.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn wrong_arguments() {
    with_ranks("misuse", &[1, 2]);
}

#[test]
fn collectives_of_different_lengths() {
    with_ranks("mismatched", &[2, 3, 4, 5]);
}

#[test]
fn deprecated_attributes() {
    with_ranks("attributes", &[1, 2]);
}

#[test]
fn sessions() {
    with_ranks("sessions", &[1, 2, 3]);
    with(&ABIS, "sessions", &["without-the-world"], &[1, 3]);
}

#[test]
fn tools() {
    with_ranks("tools", &[1, 2, 3]);
}

/// Profiling libraries and Fortran bindings call the conversions of handles under all of these names.
#[test]
fn conversions_of_handles_have_all_their_names() {
    for abi in &ABIS {
        let library = std::fs::read(library(abi).join(abi.file)).unwrap();
        let has = |name: &str| {
            // In the table of names, a zero stands before and behind each.
            let name = format!("\0{name}\0");
            library.windows(name.len()).any(|bytes| bytes == name.as_bytes())
        };
        let forms: &[&str] =
            if abi.include == "mpich" { &["c2f", "f2c", "toint", "fromint"] } else { &["toint", "fromint"] };
        let kinds = [
            "Comm",
            "Errhandler",
            "File",
            "Group",
            "Info",
            "Message",
            "Op",
            "Request",
            "Session",
            "Type",
            "Win",
        ];
        for (prefix, kind) in ["MPI", "PMPI"].into_iter().flat_map(|prefix| kinds.map(|kind| (prefix, kind)))
        {
            for form in forms {
                assert!(has(&format!("{prefix}_{kind}_{form}")), "{}: {prefix}_{kind}_{form}", abi.file);
            }
            assert!(has(&format!("{prefix}_Abi_get_version")), "{}", abi.file);
        }
    }
}

/// Every function that a library has is declared in its header, under its own name and under its profiling name.
#[test]
fn functions_are_declared() {
    let Some(cc) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    for abi in &ABIS {
        let functions = exported_functions(abi);
        assert!(functions.len() > 1000, "{}: {} functions", abi.file, functions.len());
        for name in &functions {
            let twin = name.strip_prefix('P').map_or_else(|| format!("P{name}"), str::to_owned);
            assert!(functions.contains(&twin), "{}: {name} without {twin}", abi.file);
        }
        let addresses: Vec<String> = functions.iter().map(|name| format!("(any){name}")).collect();
        let text = format!(
            "#include <mpi.h>\ntypedef void (*any)(void);\nany all[] = {{{}}};\nint main(void) {{ return all[0] == 0; }}\n",
            addresses.join(",\n")
        );
        let source = folder.path().join(format!("{}.c", abi.include));
        std::fs::write(&source, text).unwrap();
        compile(&cc, "c99", &source, &folder.path().join(abi.include), abi);
    }
}

/// Returns the names of a library's functions, without those that only MPICH's bindings for Fortran know. Reads the ELF file's table of
/// dynamic symbols.
fn exported_functions(abi: &'static Abi) -> BTreeSet<String> {
    const DYNAMIC_SYMBOLS: u64 = 11;
    const FUNCTION: u64 = 2;
    let file = std::fs::read(library(abi).join(abi.file)).unwrap();
    let number = |at: usize, len: usize| {
        file[at..at + len].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let sections = number(0x28, 8) as usize;
    let section = |nth: u64| sections + (nth * number(0x3a, 2)) as usize;
    let symbols = (0..number(0x3c, 2)).map(section).find(|at| number(at + 4, 4) == DYNAMIC_SYMBOLS).unwrap();
    let names = number(section(number(symbols + 40, 4)) + 24, 8) as usize;
    let (from, len) = (number(symbols + 24, 8) as usize, number(symbols + 32, 8) as usize);
    let function = |at: usize| {
        let is_defined = number(at + 4, 1) & 15 == FUNCTION && number(at + 6, 2) != 0;
        let name = &file[names + number(at, 4) as usize..];
        let end = name.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&name[..end]).ok().filter(|_| is_defined)
    };
    let is_public = |name: &&str| name.trim_start_matches('P').starts_with("MPI_") || name.contains("MPIX_");
    (from..from + len).step_by(24).filter_map(function).filter(is_public).map(str::to_owned).collect()
}

/// Runs with the MPICH ABI only: the MPI-5 standard has none of these functions.
#[test]
fn survivors() {
    with(&ABIS[..1], "survivors", &[], &[1, 2, 3, 4]);
    with(&ABIS[..1], "agreeing", &[], &[3, 4]);
}

/// Runs with the MPICH ABI only, as above.
#[test]
fn survivors_finalize_without_a_shrink() {
    for case in ["noticed", "unnoticed", "handler", "again"] {
        with(&ABIS[..1], "finalizing", &[case], &[3, 4]);
    }
    let Some(cc) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = program(&cc, "finalizing", folder.path(), &ABIS[0]);
    // The default error handler ends the job, and names the loss.
    let failures = failures_of(&program, &["fatal"], 3, "shm,tcp", &[]);
    assert!(failures.contains("rank 2") && failures.contains("lost"), "{failures}");
}

#[test]
fn ranks_that_another_aborts_name_their_own_messages() {
    with_ranks("aborted", &[3]);
}

#[test]
fn calls_given_up_after_a_loss() {
    with_ranks("given_up", &[3]);
}

/// The limit is long enough for a busy machine to bring the ranks together within it.
#[test]
fn waits_for_messages_end_at_the_limit() {
    let Some(cc) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    for abi in &ABIS {
        let program = program(&cc, "limits", folder.path(), abi);
        for transport in ["shm", "tcp"] {
            run_ranks_with(&program, &[], 2, transport, &[("KOLO_TIMEOUT", "4")]);
        }
    }
}

#[test]
fn calls_given_up_while_their_peer_computes() {
    let folder = tempfile::tempdir().unwrap();
    let stage = folder.path().join("stage");
    for call in ["receive", "send", "get"] {
        with(&ABIS, "computing", &[stage.to_str().unwrap(), call], &[3]);
    }
}

/// Runs with the MPICH ABI only: the MPI-5 standard has none of these functions.
#[test]
fn older_programs_and_fortran() {
    with(&ABIS[..1], "older", &[], &[1, 2]);
}
