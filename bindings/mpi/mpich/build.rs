//! Makes the functions from the table that both MPI libraries share, and gives the library its soname.

#[path = "../generate.rs"]
mod generate;

fn main() {
    println!("cargo::rerun-if-changed=../functions.txt");
    println!("cargo::rerun-if-changed=../generate.rs");
    let table = std::fs::read_to_string("../functions.txt").expect("the table of functions");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let text = generate::generate(&table, generate::Abi::Mpich);
    std::fs::write(format!("{out}/functions.rs"), text).expect("the functions");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmpi.so.12");
    }
}
