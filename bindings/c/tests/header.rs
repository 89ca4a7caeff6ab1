//! Tests that `kolo.h` compiles as C and C++, declares exactly the functions that the library exports, and agrees with it on every struct.

mod common;

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::process::Command;

use kolo_rs::{Collective, DataType, ReduceOp};

use common::{STRICT, cc, compiler, library, package, soname, succeed};

#[allow(dead_code, unreachable_pub, reason = "the library's own description of the header")]
#[path = "../src/abi.rs"]
mod abi;

fn header() -> String {
    std::fs::read_to_string(package().join("include/kolo.h")).unwrap()
}

/// Returns a program that uses every initializer, and every function's address.
fn user() -> String {
    let uses: Vec<String> = declared().iter().map(|name| format!("    (void)&{name};\n")).collect();
    format!(
        "#include <kolo.h>\n#include <kolo.h>\nint main(void) {{\n    koloConfig_t config = KOLO_CONFIG_INITIALIZER;\n    \
         koloCall_t call = KOLO_CALL_INITIALIZER;\n    (void)config;\n    (void)call;\n{}    return 0;\n}}\n",
        uses.concat()
    )
}

/// Returns the functions that the header declares.
fn declared() -> BTreeSet<String> {
    header()
        .lines()
        .filter(|line| {
            ["koloResult_t kolo", "const char *kolo", "int kolo", "size_t kolo"]
                .iter()
                .any(|s| line.starts_with(s))
        })
        .filter_map(|line| line.split_once('('))
        .map(|(start, _)| start.rsplit([' ', '*']).next().unwrap().to_owned())
        .collect()
}

fn compiles(compiler: &str, standard: &str, file: &str) {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join(file);
    std::fs::write(&source, user()).unwrap();
    let strict = STRICT.iter().filter(|flag| file.ends_with(".c") || **flag != "-Wstrict-prototypes");
    let mut command = Command::new(compiler);
    command.arg(format!("-std={standard}")).args(strict).args(["-Wshadow", "-Wconversion", "-fsyntax-only"]);
    succeed(command.arg("-I").arg(package().join("include")).arg(source));
}

#[test]
fn compiles_as_c() {
    let Some(cc) = cc() else { return };
    for standard in ["c99", "c11", "c17"] {
        compiles(&cc, standard, "user.c");
    }
}

#[test]
fn compiles_as_cpp() {
    let Some(cxx) = compiler("CXX", "c++") else { return };
    for standard in ["c++11", "c++17", "c++20"] {
        compiles(&cxx, standard, "user.cpp");
    }
}

#[test]
fn the_shared_library_exports_what_is_declared_and_nothing_else() {
    let Some(nm) = compiler("NM", "nm") else { return };
    let library = library().join("libkolo.so");
    let symbols = succeed(Command::new(nm).args(["--dynamic", "--defined-only"]).arg(library));
    let exported: BTreeSet<String> =
        symbols.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect();
    assert!(exported.len() > 50, "{exported:?}");
    assert_eq!(exported, declared());
}

/// A program linked with a library runs with every later library of the same soname. So a function in the list stays there, with the same
/// signature, until the soname changes; new functions are added to the list.
#[test]
fn the_interface_is_the_one_on_record() {
    let Some(nm) = compiler("NM", "nm") else { return };
    let Some(readelf) = compiler("READELF", "readelf") else { return };
    let library = library().join("libkolo.so");
    let dynamic = succeed(Command::new(readelf).arg("--dynamic").arg(&library));
    assert!(dynamic.contains(&format!("[{}]", soname())), "{dynamic}");
    let symbols = succeed(Command::new(nm).args(["--dynamic", "--defined-only"]).arg(&library));
    let exported: BTreeSet<&str> =
        symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let record = std::fs::read_to_string(package().join("abi.txt")).unwrap();
    let recorded: BTreeSet<&str> = record.lines().skip(1).collect();
    let gone: Vec<_> = recorded.difference(&exported).collect();
    assert!(
        gone.is_empty(),
        "programs linked with {} need {gone:?}; only a new soname may leave them out",
        soname()
    );
    let new: Vec<_> = exported.difference(&recorded).collect();
    assert!(new.is_empty(), "bindings/c/abi.txt has no line for {new:?}");
}

#[test]
fn structs_and_numbers_agree() {
    let Some(cc) = cc() else { return };
    let mut expressions: Vec<(String, usize)> = Vec::new();
    macro_rules! agree {
        ($c:literal, $rust:ty, $($field:ident.$inner:ident as $name:literal),*; $($same:ident $(= $renamed:literal)?),*) => {
            expressions.push((format!("sizeof({})", $c), size_of::<$rust>()));
            $(expressions.push((format!("offsetof({}, {})", $c, $name), offset_of!($rust, $field.$inner)));)*
            $(
                #[allow(unused_assignments, unused_mut, reason = "only some are renamed")]
                let mut name = stringify!($same);
                $(name = $renamed;)?
                expressions.push((format!("offsetof({}, {})", $c, name), offset_of!($rust, $same)));
            )*
        };
    }
    agree!("koloConfig_t", abi::Config, head.size as "size", head.magic as "magic", head.version as "version";
        transport, algorithms, host_id, socket_interfaces, socket_congestion, timeout_ms, join_timeout_ms,
        segment_bytes, window, exchange_bytes, spin_us, determinism, port_range);
    agree!("koloCall_t", abi::Call, head.size as "size", head.magic as "magic", head.version as "version";
        collective, data_type = "type", op, root, input, output, count, factor);
    agree!("koloTransfer_t", abi::Transfer,; kind, peer, buffer, count, data_type = "type");
    agree!("koloMessage_t", abi::Message,; source, tag, bytes, data_type = "type");
    agree!("koloUniqueId", abi::UniqueId,; bytes);
    agree!("koloPart_t", abi::Part,; name, memory, bytes);
    agree!("koloChange_t", abi::Change,; epoch, left, left_count, came, came_count, rank, size);
    let numbers = [
        ("KOLO_CONFIG_MAGIC", abi::Config::HEAD.magic as usize),
        ("KOLO_CONFIG_VERSION", abi::Config::HEAD.version as usize),
        ("KOLO_CALL_MAGIC", abi::Call::HEAD.magic as usize),
        ("KOLO_CALL_VERSION", abi::Call::HEAD.version as usize),
        ("KOLO_UNIQUE_ID_BYTES", abi::UNIQUE_ID_BYTES),
        ("KOLO_SUCCESS", abi::result::SUCCESS as usize),
        ("KOLO_USAGE", abi::result::USAGE as usize),
        ("KOLO_CONFIGURATION", abi::result::CONFIGURATION as usize),
        ("KOLO_JOIN", abi::result::JOIN as usize),
        ("KOLO_MISMATCH", abi::result::MISMATCH as usize),
        ("KOLO_PEER_LOST", abi::result::PEER_LOST as usize),
        ("KOLO_TIMEOUT", abi::result::TIMEOUT as usize),
        ("KOLO_ABORTED", abi::result::ABORTED as usize),
        ("KOLO_UNSUPPORTED", abi::result::UNSUPPORTED as usize),
        ("KOLO_TRANSPORT", abi::result::TRANSPORT as usize),
        ("KOLO_SYSTEM", abi::result::SYSTEM as usize),
        ("KOLO_INTERNAL", abi::result::INTERNAL as usize),
        ("KOLO_REVOKED", abi::result::REVOKED as usize),
        ("KOLO_FENCED", abi::result::FENCED as usize),
        ("KOLO_MINORITY", abi::result::MINORITY as usize),
    ];
    expressions.extend(numbers.map(|(name, value)| (name.to_owned(), value)));
    expressions.extend(places(&Collective::ALL.map(Collective::name)));
    expressions.extend(places(&ReduceOp::ALL.map(ReduceOp::name)));
    expressions.extend(places(&DataType::ALL.map(in_c)));
    let prints: String = expressions
        .iter()
        .map(|(expression, _)| format!("    printf(\"{expression}=%zu\\n\", (size_t)({expression}));\n"))
        .collect();
    let source =
        format!("#include <kolo.h>\n#include <stdio.h>\nint main(void) {{\n{prints}    return 0;\n}}\n");
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    std::fs::write(&file, source).unwrap();
    let include = package().join("include");
    succeed(Command::new(cc).arg("-std=c99").arg("-I").arg(include).arg(file).arg("-o").arg(&program));
    let expected: String = expressions.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    assert_eq!(succeed(&mut Command::new(program)), expected);
}

/// Returns the name of a type in C, without `KOLO_`.
fn in_c(data_type: DataType) -> String {
    let name = data_type.name();
    let (kind, bits) = name.split_at(name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len()));
    let kind = match kind {
        "u" => "uint",
        "i" => "int",
        "f" => "float",
        "bf" => "bfloat",
        kind => kind,
    };
    format!("{kind}{bits}")
}

/// Returns constants whose numbers are their positions in the list.
fn places(names: &[impl AsRef<str>]) -> Vec<(String, usize)> {
    let name = |name: &str| format!("KOLO_{}", name.to_uppercase());
    names.iter().enumerate().map(|(at, known)| (name(known.as_ref()), at)).collect()
}

#[test]
fn versions_agree() {
    let (header, version) = (header(), env!("CARGO_PKG_VERSION"));
    let parts: Vec<&str> = version.split('.').collect();
    for (name, value) in ["MAJOR", "MINOR", "PATCH"].into_iter().zip(parts) {
        assert!(header.contains(&format!("#define KOLO_VERSION_{name} {value}\n")), "{name} {value}");
    }
}
