//! Tests of MPI's messages, which have connections of their own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kolo_netlab::Lab;

use crate::Test;
use crate::job::{built, commands, run, succeed};
use crate::joins::network;

pub(crate) const TESTS: &[Test] = tests![Long messages_are_relayed_as_collectives_are];

const LONG: Duration = Duration::from_secs(60);

/// Sends a number to the other rank and back.
const PING_PONG: &str = r"
#include <mpi.h>
int main(int count, char **words) {
  int rank, number = 7;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) {
    MPI_Send(&number, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(&number, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else {
    int twice;
    MPI_Recv(&twice, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    twice *= 2;
    MPI_Send(&twice, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return rank == 0 && number != 14;
}
";

/// Compiles a program in C; `None` without the library or a compiler.
fn compiled(text: &str, folder: &Path) -> Option<PathBuf> {
    let library = built("libmpi.so", "kolo-mpi")?;
    for name in ["libmpi.so", "libmpi.so.12"] {
        symlink(&library, folder.join(name)).expect("a link");
    }
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    fs::write(&source, text).expect("a file");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/mpi/include/mpich");
    let mut command = Command::new("cc");
    command.arg("-I").arg(include).arg(source).arg("-o").arg(&program);
    command.arg("-L").arg(folder).arg("-lmpi").arg(format!("-Wl,-rpath,{}", folder.display()));
    match command.status() {
        Ok(status) => assert!(status.success(), "{command:?}: {status}"),
        Err(error) => {
            println!("skipped: there is no compiler cc ({error})");
            return None;
        }
    }
    Some(program)
}

/// A rank that uses only its loopback interface has no network in common with the other.
fn messages_are_relayed_as_collectives_are() {
    let folder = std::env::temp_dir().join(format!("kolo-netlab-mpi-{}", std::process::id()));
    // A run that failed may have left it.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).expect("a folder");
    if let Some(program) = compiled(PING_PONG, &folder) {
        let lab = Lab::new(&network(2)).expect("a network");
        let mut ranks = commands(&lab, 1, &[program.into_os_string()], &[("KOLO_TIMEOUT", "40")]);
        ranks[1].env("KOLO_SOCKET_IFNAME", "lo");
        succeed(&run(ranks, LONG), "a rank without a common network");
    }
    let _ = fs::remove_dir_all(folder);
}
