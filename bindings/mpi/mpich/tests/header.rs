//! Tests that the header's C prototypes match the table from which the libraries' functions are made.

#[path = "../../generate.rs"]
#[allow(dead_code, reason = "the test wants the prototypes only")]
mod generate;

use std::path::Path;

#[test]
fn header() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let table = std::fs::read_to_string(folder.join("functions.txt")).unwrap();
    let path = folder.join("include/mpi_functions.h");
    let wanted = generate::prototypes(&table);
    if std::env::var_os("KOLO_MPI_WRITE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} is not what functions.txt says; write it with KOLO_MPI_WRITE=1",
        path.display()
    );
}
