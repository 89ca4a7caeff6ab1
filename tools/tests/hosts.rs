//! `kolo run --hosts` with agents that start the ranks on this machine, in place of ssh.

mod common;
mod terminal;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{KOLO, command};
use rustix::process::{Pid, Signal, kill_process};
use terminal::as_from_a_terminal;

/// Time limit of every test, much longer than any of them takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn kolo(hosts: &str, options: &[&str], program: &[&str]) -> Command {
    // Ends a test that would wait forever.
    let mut command = command("timeout");
    let limit = LIMIT.as_secs().to_string();
    command
        .args(["-s", "KILL", &limit, KOLO, "run", "--hosts", hosts, "--agent", "env ON={host}"])
        .args(options)
        .arg("--")
        .args(program);
    command
}

fn shell(hosts: &str, options: &[&str], script: &str) -> Output {
    kolo(hosts, options, &["sh", "-c", script]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn ranks_are_where_the_list_says() {
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $ON $MASTER_ADDR";
    let ended = shell("a:1,b:2,a:1", &[], script);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(sorted(&ended.stdout), ["0 4 0 2 0 a a", "1 4 0 2 1 b a", "2 4 1 2 1 b a", "3 4 1 2 0 a a"]);
}

#[test]
fn ranks_of_two_hosts_meet() {
    // Both names are of this machine.
    let arguments = [KOLO, "perf", "all_reduce", "--min", "1K", "--max", "1K", "--iters", "2"];
    let ended = kolo("127.0.0.1:1,localhost:1", &[], &arguments).output().unwrap();
    assert!(ended.status.success(), "{} {}", text(&ended.stdout), text(&ended.stderr));
    assert!(text(&ended.stdout).contains("1024"), "{}", text(&ended.stdout));
}

/// An agent such as ssh gives processes a PATH of its own.
#[test]
fn kolo_is_found_by_its_name() {
    let mut command = command(KOLO);
    command.args(["run", "--hosts", "a:1,b:1", "--agent", "env PATH=/usr/bin:/bin ON={host}", "--"]);
    let ended = command.args(["sh", "-c", "kolo --version"]).output().unwrap();
    assert!(ended.status.success(), "{} {}", text(&ended.stdout), text(&ended.stderr));
    let given = common::command(KOLO)
        .args(["run", "--hosts", "a:1", "--agent", "env ON={host}", "-x", "PATH=/usr/bin:/bin", "--"])
        .args(["sh", "-c", "echo $PATH"])
        .output()
        .unwrap();
    assert_eq!(text(&given.stdout), "/usr/bin:/bin\n", "a PATH that is given is taken as it is");
}

#[test]
fn folder_variables_and_prefix_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "a slots=1\nb\n").unwrap();
    let ended = command(KOLO)
        .current_dir(folder.path())
        .env("KOLO_TIMEOUT", "77")
        .env("GIVEN", "it's \"quoted\" $HOME; true")
        .args([
            "run",
            "--prefix",
            "--hostfile",
            "hosts",
            "-x",
            "GIVEN",
            "-x",
            "MADE=a=b",
            "-x",
            "NOT_SET_ANYWHERE",
        ])
        // No variable of this process is inherited.
        .args(["--agent", "env -i PATH=/usr/bin:/bin ON={host}", "--"])
        .args(["sh", "-c", "pwd; echo \"$GIVEN|$MADE|$KOLO_TIMEOUT|${#KOLO_JOB_SECRET}|$0\"", "it's\n$0"])
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let lines = sorted(&ended.stdout);
    let real = folder.path().canonicalize().unwrap();
    for rank in 0..2 {
        assert!(lines.contains(&format!("[{rank}] {}", real.display())), "{lines:?}");
        assert!(lines.contains(&format!("[{rank}] it's \"quoted\" $HOME; true|a=b|77|32|it's")), "{lines:?}");
    }
}

/// The output may be binary data, without ends of lines, or one line that is longer than the launcher keeps.
#[test]
fn one_rank_s_output_arrives_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    let data: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).filter(|byte| *byte != b'\n').collect();
    std::fs::write(&file, &data).unwrap();
    let ended = kolo("localhost:1", &[], &["cat", file.to_str().unwrap()]).output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert!(ended.stdout == data, "{} bytes of {}", ended.stdout.len(), data.len());
}

#[test]
fn a_blank_secret_starts_no_unprotected_job() {
    for (more, starts) in [(&[][..], false), (&["-x", "KOLO_JOB_SECRET=sesame"], true)] {
        let ended = kolo("a:1", more, &["true"]).env("KOLO_JOB_SECRET", " ").output().unwrap();
        assert_eq!(ended.status.success(), starts, "{ended:?}");
        assert_eq!(text(&ended.stderr).contains("KOLO_JOB_SECRET is set, but blank"), !starts, "{ended:?}");
    }
}

/// Locally, rank 0 gets the launcher's input; on other hosts it does not, and the user must know.
#[test]
fn input_that_is_not_passed_on_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("namelist");
    for (content, reports) in [("&run steps=3 /\n", true), ("", false)] {
        std::fs::write(&file, content).unwrap();
        let input = std::fs::File::open(&file).unwrap();
        let ended = kolo("a:1", &[], &["cat"]).stdin(input).output().unwrap();
        let said = text(&ended.stderr);
        assert!(ended.status.success() && ended.stdout.is_empty(), "{ended:?}");
        assert_eq!(said.contains("do not get this program's standard input"), reports, "{said}");
    }
}

#[test]
fn a_failing_rank_ends_all_hosts() {
    let began = Instant::now();
    let ended = shell("a:2,b:2", &[], "[ $RANK = 3 ] && exit 7; exec tail -f /dev/null");
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(7), "{said}");
    assert!(said.contains("kolo: rank 3 (pid ") && said.contains("; ending the other rank"), "{said}");
    assert!(
        said.contains("kolo: host b (pid ") && said.contains("exit code 7; ending the other host"),
        "{said}"
    );
    assert!(began.elapsed() < LIMIT);
}

#[test]
fn a_host_that_cannot_be_reached_is_named() {
    let ended = command(KOLO)
        .args(["run", "--hosts", "a,b", "--agent", "sh -c exit\\ 255", "--", "true"])
        .output()
        .unwrap();
    let said = text(&ended.stderr);
    assert!(!ended.status.success() && said.contains("kolo: host "), "{said}");
    let ended = command(KOLO)
        .args(["run", "--hosts", "a,b", "--agent", "/there/is/no/agent", "--", "true"])
        .output()
        .unwrap();
    assert!(text(&ended.stderr).contains("host a could not be started"), "{}", text(&ended.stderr));
}

/// Other hosts may have the links that lead to a folder and a program, but not what is behind them here.
#[test]
fn hosts_get_the_names_that_the_user_has_used() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    std::fs::create_dir(at("physical")).unwrap();
    std::os::unix::fs::symlink(at("physical"), at("logical")).unwrap();
    std::os::unix::fs::symlink(KOLO, at("kolo")).unwrap();
    let script = at("agent");
    // The host has neither physical path.
    std::fs::write(&script, "#!/bin/sh\nshift\necho \"$1\"\nrmdir physical && mkdir other && ln -sfn other logical\nexec \"$@\"\n")
        .unwrap();
    let agent = format!("env -C {} sh {}", root.path().display(), script.display());
    let ended = command(at("kolo"))
        .current_dir(at("logical"))
        .env("PWD", at("logical"))
        .args(["run", "--hosts", "a", "--agent", &agent, "--", "pwd", "-P"])
        .output()
        .unwrap();
    let other = at("other").canonicalize().unwrap();
    let expected = format!("{}\n{}\n", at("kolo").display(), other.display());
    assert_eq!(text(&ended.stdout), expected, "{}", text(&ended.stderr));
}

#[test]
fn a_host_without_this_program_is_told_from_other_failures() {
    let mut command = command(KOLO);
    command.args(["run", "--hosts", "a", "--agent", "env ON={host}", "--remote-kolo", "/no/such/kolo"]);
    let ended = command.args(["--", "true"]).output().unwrap();
    let said = text(&ended.stderr);
    assert!(ended.status.code() == Some(127) && said.contains("give it with --remote-kolo"), "{said}");
}

#[test]
fn a_program_or_folder_that_a_host_lacks_is_named() {
    let ended = kolo("a", &[], &["/there/is/no/program"]).output().unwrap();
    assert!(text(&ended.stderr).contains("rank 0 could not be started"), "{}", text(&ended.stderr));
    let folder = tempfile::tempdir().unwrap();
    let gone = folder.path().join("gone");
    std::fs::create_dir(&gone).unwrap();
    // The agent of this host removes the folder before it starts anything.
    let script = folder.path().join("agent");
    std::fs::write(&script, format!("#!/bin/sh\ncd /; rmdir {}; shift; exec \"$@\"\n", gone.display()))
        .unwrap();
    let mut command = command(KOLO);
    command.current_dir(&gone).args([
        "run",
        "--hosts",
        "a",
        "--agent",
        &format!("sh {}", script.display()),
        "--",
        "true",
    ]);
    let ended = command.output().unwrap();
    assert!(text(&ended.stderr).contains("has no folder"), "{}", text(&ended.stderr));
}

/// Starts ranks that print a line and go on until they are asked to end; waits until all have printed the line.
fn running(
    hosts: &str,
    count: usize,
    agent: &str,
) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let script = "trap 'echo told; exit 0' TERM; trap 'echo interrupted; exit 0' INT; echo up; \
                  for i in $(seq 1000); do sleep 0.05; done";
    running_script(hosts, count, agent, script)
}

fn running_script(
    hosts: &str,
    count: usize,
    agent: &str,
    script: &str,
) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let mut command = command(KOLO);
    command
        .args(["run", "--hosts", hosts, "--agent", agent, "--", "sh", "-c", script])
        .stdout(Stdio::piped());
    let mut child = as_from_a_terminal(&mut command).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..count {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
    }
    (child, lines)
}

#[test]
fn one_signal_ends_all_hosts() {
    let (mut child, mut lines) = running("a:2,b:1", 3, "env ON={host}");
    let began = Instant::now();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut rest = String::new();
    // The output ends when all processes that could write to it are gone.
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "interrupted\ninterrupted\ninterrupted\n");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 2));
    assert!(began.elapsed() < LIMIT);
}

#[test]
fn a_signal_of_the_user_reaches_all_hosts() {
    // The shell waits all the time: while it starts a program, it may lose a signal.
    let script = "trap 'echo told; exit 0' TERM; trap 'echo asked' USR1; \
                  (trap '' USR1; exec tail -f /dev/null >/dev/null) & echo up; while :; do wait; done";
    let (mut child, lines) = running_script("a:2,b:1", 3, "env ON={host}", script);
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    let mut lines = lines.lines().map(Result::unwrap);
    assert!(lines.by_ref().take(3).all(|line| line == "asked"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(lines.collect::<Vec<_>>(), ["told"; 3], "the job goes on after the first signal");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn no_rank_outlives_a_launcher_that_is_killed() {
    // The agent soon ceases to be a child of the launcher, like one on another host: it starts the ranks in a
    // session of their own.
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("agent");
    std::fs::write(&script, "#!/bin/sh\nshift\nexec setsid \"$@\"\n").unwrap();
    let (mut child, mut lines) = running("a:1,b:1", 2, &format!("sh {}", script.display()));
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(rest.is_empty() || rest.lines().all(|line| line == "told"), "{rest}");
}

/// Writes an agent whose host outlives the launcher's, as with ssh: the processes that it starts soon cease to be
/// children of the launcher. The ranks find `$HERE`, where output that nobody reads is logged.
fn far(folder: &Path) -> String {
    let script = folder.join("agent");
    let text = format!(
        "#!/bin/sh\nexport HERE={0} TMPDIR={0} ON=$1\nshift\nexec 3<&0\nsetsid \"$@\" <&3 &\nwait $!\n",
        folder.display()
    );
    std::fs::write(&script, text).unwrap();
    format!("sh {} {{host}}", script.display())
}

fn elastic(agent: &str, options: &[&str], script: &str) -> Command {
    let mut command = command("timeout");
    command.args(["-s", "KILL", &LIMIT.as_secs().to_string(), KOLO, "run"]);
    command.args(options).args(["--agent", agent, "--", "sh", "-c", script]);
    command
}

#[test]
fn a_rank_that_dies_is_started_again_on_its_host() {
    let folder = tempfile::tempdir().unwrap();
    // Rank 1 comes back as a newcomer for its slot; rank 0 ends when that has happened, and rank 2 joins from the
    // beginning.
    let script = "case ${KOLO_JOIN:-first} in
        first) [ $RANK = 1 ] && kill -9 $$; while [ ! -e $HERE/back ]; do sleep 0.02; done ;;
        *) echo $ON slot=$KOLO_SLOT $KOLO_ELASTIC ${#KOLO_JOB_SECRET}; [ $KOLO_JOIN = file://$KOLO_INVITE ] && : > $HERE/back ;;
        esac";
    let ended =
        elastic(&far(folder.path()), &["--hosts", "a:1,b:1", "--elastic", "1:2"], script).output().unwrap();
    let said = text(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert_eq!(text(&ended.stdout), "b slot=1 1:2 32\n", "{said}");
    assert!(
        said.contains("kolo: rank 1 (pid ") && said.contains("restarting it as a newcomer (1 of 3 times)"),
        "{said}"
    );
}

#[test]
fn a_host_that_is_lost_costs_its_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    // Host b ends with all its ranks, and no process there can report how.
    let lost = format!(
        "[ $ON = b ] && kill -9 $PPID; while [ ! -e {at}/on ]; do sleep 0.02; done; echo $RANK of $ON"
    );
    let mut child = elastic("env ON={host}", &["--hosts", "a:2,b:2", "--elastic", "2"], &lost)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("host b") {
        assert!(told.read_line(&mut said).unwrap() > 0, "{said}");
    }
    assert!(said.contains("; the other 2 go on"), "{said}");
    std::fs::write(folder.path().join("on"), "").unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(sorted(&ended.stdout), ["0 of a", "1 of a"]);
    // Fewer ranks are left than the minimum.
    std::fs::remove_file(folder.path().join("on")).unwrap();
    let ended = elastic("env ON={host}", &["--hosts", "a:2,b:2", "--elastic", "3"], &lost).output().unwrap();
    let said = text(&ended.stderr);
    assert!(!ended.status.success() && said.contains("; ending the other host"), "{said}");
}

/// Returns the process that starts the agents: the launcher's only child.
fn supervisor(launcher: Pid) -> Pid {
    let path = format!("/proc/{launcher}/task/{launcher}/children");
    let began = Instant::now();
    loop {
        // The list may lack the child for a moment.
        if let Ok(child) = std::fs::read_to_string(&path).unwrap().trim().parse() {
            return Pid::from_raw(child).unwrap();
        }
        assert!(began.elapsed() < LIMIT, "the launcher has no child");
    }
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ranks_go_on_when_the_host_of_their_launcher_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "echo up; while [ ! -e $HERE/on ]; do sleep 0.02; done; echo later; echo $RANK >> $HERE/ended";
    let mut child = command(KOLO)
        .args(["run", "--hosts", "a:1,b:1", "--elastic", "1", "--agent", &far(folder.path())])
        .args(["--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
    }
    // Neither process has time to end anything, as in a power failure. Only the launcher is stopped first: a
    // process that is stopped when its parent ends is continued by a SIGHUP.
    let launcher = Pid::from_child(&child);
    let supervisor = supervisor(launcher);
    for (process, signal) in [(launcher, Signal::STOP), (supervisor, Signal::KILL), (launcher, Signal::KILL)]
    {
        kill_process(process, signal).unwrap();
    }
    child.wait().unwrap();
    drop(lines);
    let logs = || {
        let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let logs = entries.filter(|path| path.extension().is_some_and(|end| end == "log"));
        logs.map(|path| std::fs::read_to_string(path).unwrap()).collect::<Vec<_>>()
    };
    let say = |words: &str| logs().iter().filter(|text| text.contains(words)).count();
    wait_for("both hosts say so", || say("the ranks of this host run to their end\n") == 2);
    std::fs::write(folder.path().join("on"), "").unwrap();
    let ended = || std::fs::read(folder.path().join("ended")).map_or(Vec::new(), |bytes| sorted(&bytes));
    wait_for("both ranks come to their end", || ended() == ["0", "1"]);
    wait_for("what they say is in the logs", || say("later\n") == 2);
}

/// A launcher that is killed while its host lives ends the job, since its supervisor tells the agents.
#[test]
fn the_end_of_a_launcher_alone_ends_an_elastic_job() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done";
    for signal in [Signal::KILL, Signal::INT] {
        let mut command = command(KOLO);
        command
            .args(["run", "--hosts", "a:1,b:1", "--elastic", "1", "--agent", &far(folder.path())])
            .args(["--", "sh", "-c", script])
            .stdout(Stdio::piped());
        let mut child = as_from_a_terminal(&mut command).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        for _ in 0..2 {
            lines.read_line(&mut String::new()).unwrap();
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        // The output ends when all processes that could write to it are gone.
        lines.read_to_string(&mut String::new()).unwrap();
    }
}

/// Returns a configuration of ssh that reaches an sshd of this test through pipes, for every host; or the reason
/// why there is none.
fn ssh(folder: &Path) -> Result<String, String> {
    let sshd = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|path| Path::new(path).exists());
    let sshd = sshd.ok_or("there is no sshd")?;
    let key = |name: &str| {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(name));
        command
            .status()
            .map_err(|error| format!("there is no ssh-keygen: {error}"))
            .map(|status| assert!(status.success()))
    };
    key("host")?;
    key("user")?;
    let at = folder.display();
    let server = format!(
        "HostKey {at}/host\nAuthorizedKeysFile {at}/user.pub\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nLogLevel QUIET\n"
    );
    std::fs::write(folder.join("sshd.conf"), server).unwrap();
    let client = format!(
        "Host *\nProxyCommand {sshd} -i -f {at}/sshd.conf\nIdentityFile {at}/user\nIdentitiesOnly yes\nBatchMode yes\n\
         StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    );
    std::fs::write(folder.join("ssh.conf"), client).unwrap();
    let agent = format!("ssh -F {at}/ssh.conf");
    let tried =
        Command::new("ssh").arg("-F").arg(folder.join("ssh.conf")).args(["somewhere", "true"]).output();
    match tried {
        Ok(ended) if ended.status.success() => Ok(agent),
        Ok(ended) => Err(format!("sshd does not run here: {}", text(&ended.stderr).trim())),
        Err(error) => Err(format!("there is no ssh: {error}")),
    }
}

#[test]
fn ssh_is_an_agent() {
    let folder = tempfile::tempdir().unwrap();
    let agent = match ssh(folder.path()) {
        Ok(agent) => agent,
        Err(why) => return println!("skipped: {why}"),
    };
    let kolo = || {
        let mut command = command("timeout");
        command.args(["-s", "KILL", &LIMIT.as_secs().to_string(), KOLO, "run"]);
        command.args([
            "--hosts",
            "localhost:2,127.0.0.1:1",
            "--agent",
            &agent,
            "-x",
            "GIVEN=it's",
            "--",
            "sh",
            "-c",
        ]);
        command
    };
    let ended = kolo().arg("echo $RANK $GIVEN").output().unwrap();
    assert_eq!(sorted(&ended.stdout), ["0 it's", "1 it's", "2 it's"], "{ended:?}");
    let ended =
        kolo().arg("[ $RANK = 2 ] && exit 7; for i in $(seq 1000); do sleep 0.05; done").output().unwrap();
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    assert!(text(&ended.stderr).contains("kolo: host 127.0.0.1 (pid "), "{ended:?}");
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (options, problem) in [
        (&["--hosts", "a", "--nodes", "2"][..], "cannot be used with"),
        (&["--hosts", "a", "--hostfile", "f"], "cannot be used with"),
        (&["--hosts", "a:x"], "is not a valid number of ranks"),
        (&["--hosts", "a", "--agent", " "], "--agent is empty"),
        (&["--hosts", "a", "--rendezvous", "nowhere"], "--rendezvous 'nowhere' is not valid"),
        (&["--hosts", "a", "-x", "=1"], "does not name a variable"),
        (&["-x", "=1"], "does not name a variable"),
        (&["--agent", "rsh"], "--hostfile <FILE>"),
        (&["--remote-kolo", "/opt/kolo"], "--hostfile <FILE>"),
    ] {
        let ended = command(KOLO).arg("run").args(options).args(["--", "true"]).output().unwrap();
        assert!(!ended.status.success() && text(&ended.stderr).contains(problem), "{options:?}: {ended:?}");
    }
    let mut child = command(KOLO);
    let ended = child.args(["run", "--from-stdin"]).stdin(Stdio::null()).output().unwrap();
    assert!(text(&ended.stderr).contains("--from-stdin is for `kolo run --hosts`"), "{ended:?}");
}
