//! Gives the shared library its soname, which changes whenever a program built against an older kolo.h could break: with the
//! minor version before 1.0, and with the major version from then on (docs/c-api.md, "Versions"). rustc itself exports only the
//! `#[no_mangle]` functions.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        let part = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
        let version = match part("MAJOR") {
            major if major == "0" => format!("0.{}", part("MINOR")),
            major => major,
        };
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkolo.so.{version}");
    }
}
