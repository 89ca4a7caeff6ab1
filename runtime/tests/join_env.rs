//! Tests of each launcher's environment as Kolo reads it, and of the errors for broken ones.

use std::time::Duration;

use kolo::JoinSpec;
use kolo::internal::join::{launched, rank_from_env};

/// Makes an environment from "NAME=value" words, where %s stands for a space.
fn environment(words: &str) -> impl Fn(&str) -> Option<String> {
    let pairs: Vec<(String, String)> = words
        .split_ascii_whitespace()
        .map(|word| word.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.replace("%s", " ")))
        .collect();
    move |name| pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
}

fn spec(words: &str) -> JoinSpec {
    JoinSpec::from_env(&environment(words)).unwrap_or_else(|error| panic!("{words}: {error}"))
}

#[test]
fn known_launchers() {
    let folder = tempfile::tempdir().unwrap();
    let private = format!("XDG_RUNTIME_DIR={}", folder.path().display());
    let file = |name: &str| format!("file://{}/kolo/{name}", folder.path().display());
    /// A row of the table: name, environment, rank, world size, local rank, locator.
    type Row = (&'static str, String, u32, u32, Option<u32>, String);
    let mut table: Vec<Row> = vec![
        (
            "Kolo's own variables come first",
            "KOLO_RENDEZVOUS=tcp://n1:5000 KOLO_RANK=1 KOLO_WORLD_SIZE=3 KOLO_LOCAL_RANK=0 RANK=7 WORLD_SIZE=9".into(),
            1,
            3,
            Some(0),
            "tcp://n1:5000".into(),
        ),
        (
            "everything in the URL",
            "KOLO_RENDEZVOUS=file:///tmp/x?rank=2&world_size=4".into(),
            2,
            4,
            None,
            "file:///tmp/x".into(),
        ),
        (
            "the rank in the URL, the size from elsewhere",
            "KOLO_RENDEZVOUS=file:///tmp/x?rank=1 RANK=0 WORLD_SIZE=2".into(),
            1,
            2,
            None,
            "file:///tmp/x".into(),
        ),
        (
            "the size in the URL, the rank from elsewhere",
            "KOLO_RENDEZVOUS=file:///tmp/x?world_size=8 KOLO_RANK=1 KOLO_WORLD_SIZE=4 KOLO_LOCAL_RANK=1".into(),
            1,
            8,
            Some(1),
            "file:///tmp/x".into(),
        ),
        (
            "a meeting point from us, the rank from MPI",
            "KOLO_RENDEZVOUS=file:///tmp/x OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4".into(),
            2,
            4,
            None,
            "file:///tmp/x".into(),
        ),
        (
            "plain torch variables",
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=n1 MASTER_PORT=29500".into(),
            1,
            2,
            Some(1),
            "tcp://n1:29500".into(),
        ),
        (
            "torchrun: its agent owns the port",
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=n1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=r7 \
             TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=3"
                .into(),
            1,
            2,
            Some(1),
            "the TCPStore at n1:29500 (key kolo/r7/3)".into(),
        ),
        (
            "torchrun: the agent's store switched off",
            "RANK=1 WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=r7 \
             TORCHELASTIC_USE_AGENT_STORE=False"
                .into(),
            1,
            2,
            None,
            "tcp://n1:29500".into(),
        ),
        ("a single rank needs nobody", "RANK=0 WORLD_SIZE=1".into(), 0, 1, None, "within this process".into()),
        (
            "Open MPI on one host",
            format!(
                "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 \
                 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=prterun-n1-77 {private}"
            ),
            3,
            4,
            Some(3),
            file("Open-MPI-prterun-n1-77"),
        ),
        (
            "Open MPI on several hosts, told where",
            "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_SIZE=4 MASTER_ADDR=n1 \
             MASTER_PORT=29500"
                .into(),
            3,
            8,
            None,
            "tcp://n1:29500".into(),
        ),
        (
            "Open MPI 5 on several hosts: rank 0 beside mpirun",
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
             PMIX_NAMESPACE=prterun-n-1.here-100@2 PMIX_HOSTNAME=n-1 \
             PMIX_SERVER_URI2=prterun-n-1.here-100@0.0;tcp4://127.0.0.1:9"
                .into(),
            0,
            4,
            None,
            "tcp://n-1.here:12702".into(),
        ),
        (
            "Open MPI 5 on several hosts: another rank, by another daemon",
            "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
             PMIX_NAMESPACE=prterun-n-1.here-100@2 PMIX_SERVER_URI2=prterun-n-1.here-100@0.1;tcp4://127.0.0.1:9"
                .into(),
            3,
            4,
            None,
            "tcp://n-1.here:12702".into(),
        ),
        (
            "MPICH Hydra on one host, named by its proxy",
            format!("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 kolo.parent-process=12-345 {private}"),
            0,
            2,
            Some(0),
            file("MPICH-Hydra-12-345"),
        ),
        (
            "Cray PALS, which also sets PMI variables",
            format!(
                "PALS_RANKID=1 PALS_APID=ab-cd PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PMI_RANK=1 PMI_SIZE=2 {private}"
            ),
            1,
            2,
            Some(1),
            file("Cray-PALS-ab-cd"),
        ),
        (
            "Slurm on several hosts",
            "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_JOB_ID=1000 SLURM_STEP_ID=2 SLURM_NNODES=2 \
             SLURM_STEP_NODELIST=n[07-08] SLURM_JOB_NODELIST=n[01-08]"
                .into(),
            5,
            8,
            Some(1),
            "tcp://n07:19002".into(),
        ),
        (
            "Slurm on one host",
            format!(
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=1000 SLURM_STEP_ID=2 SLURM_NNODES=1 \
                 SLURM_JOB_NODELIST=n01 {private}"
            ),
            1,
            2,
            None,
            file("Slurm-1000.2"),
        ),
        (
            "mpirun within a Slurm job",
            "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 \
             MASTER_ADDR=n1 MASTER_PORT=1"
                .into(),
            1,
            2,
            None,
            "tcp://n1:1".into(),
        ),
        (
            "mpiexec within a batch script",
            format!(
                "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=1 PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 \
                 MPI_LOCALNRANKS=2 PMI_JOBID=j {private}"
            ),
            1,
            2,
            Some(1),
            file("MPICH-Hydra-j"),
        ),
        (
            "mpiexec whose daemons srun has started",
            "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=1 SLURM_STEP_ID=0 PMI_RANK=3 PMI_SIZE=4 \
             MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MASTER_ADDR=n1 MASTER_PORT=1"
                .into(),
            3,
            4,
            Some(1),
            "tcp://n1:1".into(),
        ),
        (
            "Slurm with variables of PMI",
            "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_JOB_ID=1000 SLURM_STEP_ID=2 SLURM_NNODES=2 \
             SLURM_STEP_NODELIST=n[07-08] PMI_RANK=3 PMI_SIZE=4 PMI_FD=7"
                .into(),
            3,
            4,
            Some(1),
            "tcp://n07:19002".into(),
        ),
    ];
    table.push((
        "a program that copied the launcher's rank",
        format!(
            "RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
             PMIX_NAMESPACE=prterun-n1-78 {private}"
        ),
        1,
        2,
        None,
        file("Open-MPI-prterun-n1-78"),
    ));
    for (what, words, rank, world_size, local_rank, locator) in table {
        let spec = spec(&words);
        assert_eq!((spec.rank, spec.world_size, spec.local_rank), (rank, world_size, local_rank), "{what}");
        assert_eq!(spec.locator.to_string(), locator, "{what}");
        assert!(!spec.source.is_empty());
    }
}

#[test]
fn broken_environments_say_what_to_set() {
    let table = [
        ("", vec!["KOLO_RANK", "SLURM_PROCID", "kolo run -n 4"]),
        ("RANK=1", vec!["WORLD_SIZE", "RANK=1 is set"]),
        ("WORLD_SIZE=2", vec!["RANK", "WORLD_SIZE=2 is set"]),
        ("RANK=2 WORLD_SIZE=2 MASTER_ADDR=n MASTER_PORT=1", vec!["rank 2 does not exist"]),
        ("RANK=0 WORLD_SIZE=0 MASTER_ADDR=n MASTER_PORT=1", vec!["WORLD_SIZE is 0"]),
        ("RANK=x WORLD_SIZE=2", vec!["RANK: 'x' is not a number"]),
        ("RANK=-1 WORLD_SIZE=2", vec!["'-1' is not a number"]),
        ("RANK=0 WORLD_SIZE=99999 MASTER_ADDR=n MASTER_PORT=1", vec!["at most 4096"]),
        ("RANK=0 WORLD_SIZE=2", vec!["MASTER_ADDR", "MASTER_PORT", "file:///path"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=n", vec!["MASTER_PORT is not"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=1", vec!["MASTER_ADDR is not"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=n MASTER_PORT=http", vec!["'http' is not a port"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=n MASTER_PORT=70000", vec!["'70000' is not a port"]),
        ("KOLO_RENDEZVOUS=tcp://n:1", vec!["KOLO_RANK", "no variable says which rank"]),
        ("KOLO_RENDEZVOUS=nonsense KOLO_RANK=0 KOLO_WORLD_SIZE=1", vec!["KOLO_RENDEZVOUS", "no scheme"]),
        ("KOLO_RANK=0 KOLO_WORLD_SIZE=2", vec!["MASTER_ADDR"]),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2",
            vec!["Open MPI", "2 of them on this host", "-x MASTER_ADDR"],
        ),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_HOSTNAME=n2 \
             PMIX_NAMESPACE=prterun-n1-7@1 PMIX_SERVER_URI2=prterun-n1-7@0.1;tcp4://127.0.0.1:9",
            vec!["rank 0 is on n2 and mpirun on n1", "-x MASTER_ADDR"],
        ),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=17",
            vec!["2 of them on this host", "-x MASTER_ADDR"],
        ),
        (
            "PMIX_RANK=0 PMIX_NAMESPACE=prterun-n1-7@1",
            vec!["PMIX_RANK", "no variable says how many", "mpirun"],
        ),
        ("PMI_RANK=0 PMI_SIZE=4 MPI_LOCALNRANKS=2", vec!["MPICH Hydra", "-genv MASTER_ADDR"]),
        (
            "PMI_RANK=0 PMI_SIZE=4 MPI_LOCALNRANKS=2 PMI_FD=2147483647",
            vec!["PMI_FD=2147483647 cannot be used", "-genv MASTER_ADDR"],
        ),
        ("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2", vec!["does not name the job", "-genv"]),
        ("OMPI_COMM_WORLD_RANK=0", vec!["OMPI_COMM_WORLD_SIZE"]),
        ("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1", vec!["a batch script", "srun"]),
        ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", vec!["SLURM_JOB_ID"]),
        ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=1", vec!["SLURM_STEP_NODELIST", "srun"]),
        (
            "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1",
            vec!["cannot be read", "srun --export"],
        ),
        ("KOLO_JOIN_TIMEOUT=soon RANK=0 WORLD_SIZE=1", vec!["KOLO_JOIN_TIMEOUT", "'soon'"]),
        ("KOLO_DEAD_AFTER=0 RANK=0 WORLD_SIZE=1", vec!["KOLO_DEAD_AFTER", "'0'"]),
        ("KOLO_JOB_SECRET= RANK=0 WORLD_SIZE=1", vec!["KOLO_JOB_SECRET", "set, but blank"]),
        ("KOLO_JOB_SECRET=%s RANK=0 WORLD_SIZE=1", vec!["KOLO_JOB_SECRET", "set, but blank"]),
    ];
    for (words, parts) in table {
        let error = JoinSpec::from_env(&environment(words)).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{words}: '{part}' is not in: {error}");
        }
    }
}

#[test]
fn settings_apply_to_every_launcher() {
    let spec = spec("RANK=0 WORLD_SIZE=1 KOLO_JOIN_TIMEOUT=2.5 KOLO_DEAD_AFTER=2 KOLO_JOB_SECRET=sesame");
    assert_eq!(spec.timeout, Duration::from_millis(2500));
    assert_eq!(spec.liveness.dead_after, Duration::from_secs(2));
    assert!(spec.liveness.heartbeat <= Duration::from_millis(500));
    assert!(spec.secret.is_some());
    assert!(!format!("{spec:?}").contains("sesame"), "secrets are not printed");
}

#[test]
fn the_private_folder_must_be_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let shared = folder.path().join("kolo");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o777)).unwrap();
    let words = format!(
        "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=1 SLURM_NNODES=1 XDG_RUNTIME_DIR={}",
        folder.path().display()
    );
    let error = JoinSpec::from_env(&environment(&words)).unwrap_err().to_string();
    assert!(error.contains("no other user can write"), "{error}");
}

#[test]
fn a_launcher_tells_who_a_process_is() {
    let told = |words: &str| launched(&environment(words)).unwrap();
    let open_mpi = told(
        "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4",
    )
    .unwrap();
    assert_eq!((open_mpi.launcher, open_mpi.rank, open_mpi.world_size), ("Open MPI", 5, 8));
    assert_eq!((open_mpi.local_rank, open_mpi.local_world_size), (Some(1), Some(4)));
    let batch = "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0";
    assert_eq!(told(batch), None, "a batch script is no task");
    assert_eq!(told(&format!("{batch} SLURM_STEP_NUM_TASKS=4")).unwrap().launcher, "Slurm");
    let hydra = format!("{batch} PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1");
    assert_eq!(
        told(&hydra).map(|at| (at.launcher, at.rank)),
        Some(("MPICH Hydra", 1)),
        "mpiexec in a batch script"
    );
    assert_eq!(told("RANK=0 WORLD_SIZE=2"), None, "that is for torch's launcher, or nobody's");
}

#[test]
fn any_source_gives_a_process_its_rank() {
    let found = |words: &str| {
        let at = rank_from_env(&environment(words)).unwrap();
        at.map(|at| (at.launcher, at.rank, at.world_size, at.variables.join(" ")))
    };
    let place = |launcher: &'static str, rank, size, variables: &str| {
        Some((launcher, rank, size, variables.to_owned()))
    };
    assert_eq!(found("HOME=/"), None);
    assert_eq!(found("SLURM_PROCID=0 SLURM_NTASKS=4"), None, "a batch script is no task");
    assert_eq!(found("RANK=2 WORLD_SIZE=4 PMI_RANK=0 PMI_SIZE=1"), place("RANK", 2, 4, "RANK WORLD_SIZE"));
    let own = "KOLO_RANK=1 KOLO_WORLD_SIZE=3 RANK=0 WORLD_SIZE=1";
    assert_eq!(found(own), place("KOLO_RANK", 1, 3, "KOLO_RANK KOLO_WORLD_SIZE"));
    let pals = place("Cray PALS", 1, 2, "PALS_RANKID PALS_NRANKS");
    assert_eq!(found("PALS_RANKID=1 PALS_NRANKS=2 PMI_RANK=1 PMI_SIZE=2"), pals);
    let url = "KOLO_RENDEZVOUS=tcp://127.0.0.1:29500?rank=1&world_size=3";
    assert_eq!(found(url), place("KOLO_RENDEZVOUS", 1, 3, "KOLO_RENDEZVOUS"));
    assert_eq!(found("KOLO_RENDEZVOUS=env://"), None);
}

#[test]
fn half_a_place_is_an_error() {
    for (words, named) in [
        ("RANK=two WORLD_SIZE=4", "RANK"),
        ("RANK=0 WORLD_SIZE=4x", "WORLD_SIZE"),
        ("RANK=-1 WORLD_SIZE=4", "RANK"),
        ("RANK=0 WORLD_SIZE=4 LOCAL_RANK=x", "LOCAL_RANK"),
        ("WORLD_SIZE=4", "WORLD_SIZE=4 is set, but RANK is not"),
        ("RANK=0", "RANK=0 is set, but WORLD_SIZE is not"),
        ("RANK=4 WORLD_SIZE=4", "rank 4 does not exist in a job of 4 ranks"),
        ("OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK"),
        ("PMI_RANK=0 PMI_SIZE=", "PMI_RANK=0 is set, but PMI_SIZE is not"),
        ("KOLO_RENDEZVOUS=tcp://127.0.0.1:29500", "no variable says which rank"),
    ] {
        let error = rank_from_env(&environment(words)).unwrap_err().to_string();
        assert!(error.contains(named), "{words}: {error}");
    }
}
