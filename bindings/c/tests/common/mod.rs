//! Builds the library and C programs against it, and runs them as the ranks of a job.
#![allow(dead_code, reason = "each test file uses a part of it")]

mod ended;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// The longest time that one run of a program may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Strict flags that users may compile with.
pub(crate) const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wstrict-prototypes"];

/// System libraries that Rust's static libraries need, as in `kolo.pc`.
pub(crate) const SYSTEM_LIBRARIES: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// Returns the folder of this package.
pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a compiler of the system, if there is one.
pub(crate) fn compiler(variable: &str, default: &str) -> Option<String> {
    let name = std::env::var(variable).ok().filter(|name| !name.is_empty()).unwrap_or(default.to_owned());
    let found = Command::new(&name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Some(name);
    }
    println!("skipped: there is no compiler '{name}' (set {variable})");
    None
}

/// Returns the C compiler, if there is one.
pub(crate) fn cc() -> Option<String> {
    compiler("CC", "cc")
}

/// Returns the name that the dynamic linker asks for: the first line of `abi.txt`.
pub(crate) fn soname() -> String {
    let abi = std::fs::read_to_string(package().join("abi.txt")).unwrap();
    abi.lines().next().unwrap().to_owned()
}

/// Builds the library; returns the folder with `libkolo.so`, its soname and `libkolo.a`.
///
/// Cargo does not build a cdylib before the integration tests of its package, since they cannot link to it. So the tests build it
/// themselves; Cargo holds no lock while tests run.
pub(crate) fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kolo-c-{}", profile()));
        std::fs::create_dir_all(&folder).unwrap();
        let put = |name: &str, make: &dyn Fn(&Path)| {
            // Renamed into place, so that a concurrent test run that has the old file open keeps it.
            let draft = folder.join(format!("{name}.{}", std::process::id()));
            make(&draft);
            std::fs::rename(draft, folder.join(name)).unwrap();
        };
        for file in built() {
            let name = file.file_name().unwrap().to_str().unwrap();
            put(name, &|to| {
                std::fs::copy(&file, to).unwrap();
            });
        }
        put(&soname(), &|to| std::os::unix::fs::symlink("libkolo.so", to).unwrap());
        folder
    })
}

/// Returns the profile with which this test was built.
pub(crate) fn profile() -> String {
    let test = std::env::current_exe().unwrap();
    match test.ancestors().nth(2).and_then(Path::file_name).and_then(|name| name.to_str()) {
        Some("debug") | None => "dev".to_owned(),
        Some(other) => other.to_owned(),
    }
}

/// Builds the library; returns the files where cargo puts them.
fn built() -> Vec<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["build-as-tests", "--lib", "--offline", "--message-format", "json"])
        .args(["--profile", &profile(), "--target-dir"])
        .arg(target)
        .current_dir(package())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files: Vec<PathBuf> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|message| {
            message["reason"] == "compiler-artifact"
                && message["target"]["name"] == "kolo"
                && message["package_id"].as_str().is_some_and(|id| id.contains("bindings/c"))
        })
        .flat_map(|message| message["filenames"].as_array().unwrap().clone())
        .map(|file| PathBuf::from(file.as_str().unwrap()))
        .collect();
    assert_eq!(files.len(), 2, "{files:?}");
    files
}

/// The way in which a program is linked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Link {
    /// To `libkolo.so`.
    Shared,
    /// To `libkolo.a`.
    Static,
    /// To `libkolo.so`, with the address and leak sanitizer in the program.
    Sanitized,
}

/// Compiles `tests/c/NAME.c` into a program in `folder`.
pub(crate) fn program(cc: &str, name: &str, link: Link, folder: &Path) -> PathBuf {
    let program = folder.join(format!("{name}-{link:?}"));
    let mut command = Command::new(cc);
    command.args(["-std=c99", "-g", "-pthread"]).args(STRICT).arg("-o").arg(&program);
    command.arg("-I").arg(package().join("include")).arg(package().join(format!("tests/c/{name}.c")));
    linked(command, link);
    program
}

/// Compiles `tests/cpp/NAME.cpp` into a program in `folder`.
pub(crate) fn program_cpp(cxx: &str, standard: &str, name: &str, link: Link, folder: &Path) -> PathBuf {
    let program = folder.join(format!("{name}-{standard}-{link:?}"));
    let mut command = Command::new(cxx);
    let strict = STRICT.iter().filter(|flag| **flag != "-Wstrict-prototypes");
    command.arg(format!("-std={standard}")).args(["-g", "-pthread", "-Wshadow", "-Wconversion"]).args(strict);
    command.arg("-o").arg(&program).arg("-I").arg(package().join("include"));
    command.arg(package().join(format!("tests/cpp/{name}.cpp")));
    linked(command, link);
    program
}

/// Runs a compiler with the library.
fn linked(mut command: Command, link: Link) {
    match link {
        Link::Shared | Link::Sanitized => {
            if link == Link::Sanitized {
                command.arg("-fsanitize=address");
            }
            command.arg("-L").arg(library()).arg("-lkolo");
            command.arg(format!("-Wl,-rpath,{}", library().display()));
        }
        Link::Static => {
            command.arg(library().join("libkolo.a")).args(SYSTEM_LIBRARIES);
        }
    }
    succeed(&mut command);
}

/// Runs a command to its end and returns its output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    text
}

/// Runs a program as the ranks of a job; all must succeed.
pub(crate) fn run_ranks(program: &Path, ranks: usize, arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let meeting = format!("file://{}", folder.path().join("meeting").display());
    let children: Vec<Child> = (0..ranks)
        .map(|rank| {
            let mut command = Command::new(program);
            for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KOLO_")) {
                command.env_remove(name);
            }
            command
                .args(arguments)
                // Needed by sanitized programs, one of which asks for more memory than there is.
                .env("ASAN_OPTIONS", "allocator_may_return_null=1")
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", ranks.to_string())
                .env("KOLO_RENDEZVOUS", &meeting)
                // A busy machine may keep a rank from its processors for longer than the usual second.
                .env("KOLO_SILENT_AFTER", "10")
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    let failures = ended::failures(children, PATIENCE);
    assert!(failures.is_empty(), "{} {arguments:?}:\n{failures}", program.display());
}
