//! Gives the shared library its soname. Its major number changes whenever a program built against an older kolo.h could
//! break; rustc itself sees to it that only the `#[no_mangle]` functions are exported.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkolo.so.0");
    }
}
