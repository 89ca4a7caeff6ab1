//! Numbers and names of types, operators and collectives in C and Python equal those of the tables in Rust.

use std::fmt::Write;
use std::path::Path;

use kolo::{Collective, DataType, ReduceOp};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the constants of an enumeration in C, with their numbers.
fn enumeration(header: &str, name: &str) -> String {
    let end = header.find(&format!("}} {name};")).unwrap_or_else(|| panic!("no {name} in kolo.h"));
    let start = header[..end].rfind("typedef enum {").expect("an enumeration");
    let lines = header[start..end].lines().map(str::trim).filter(|line| line.starts_with("KOLO_"));
    lines.fold(String::new(), |mut all, line| {
        writeln!(all, "{}", line.trim_end_matches(',')).expect("a string");
        all
    })
}

/// Returns the expected enumeration.
fn numbered(names: &[impl AsRef<str>]) -> String {
    names.iter().enumerate().fold(String::new(), |mut all, (number, name)| {
        writeln!(all, "KOLO_{} = {number}", name.as_ref().to_uppercase()).expect("a string");
        all
    })
}

/// Returns a type's name in C, with the kind spelled out.
fn in_c(data_type: DataType) -> String {
    let name = data_type.name();
    let (kind, bits) = name.split_at(name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len()));
    let words = [("u", "uint"), ("i", "int"), ("f", "float"), ("bf", "bfloat")];
    let kind = words.iter().find(|(short, _)| *short == kind).map_or(kind, |(_, word)| word);
    format!("{kind}{bits}")
}

#[test]
fn the_header_has_every_type_operator_and_collective() {
    let header = read("bindings/c/include/kolo.h");
    assert_eq!(enumeration(&header, "koloDataType_t"), numbered(&DataType::ALL.map(in_c)));
    assert_eq!(enumeration(&header, "koloRedOp_t"), numbered(&ReduceOp::ALL.map(ReduceOp::name)));
    assert_eq!(enumeration(&header, "koloCollective_t"), numbered(&Collective::ALL.map(Collective::name)));
}

#[test]
fn python_has_every_type_operator_and_collective() {
    let numbers = read("bindings/python/python/kolo/numbers.py");
    let has = |names: &[&str]| {
        let line = format!("{} = range({})\n", names.join(", ").to_uppercase(), names.len());
        assert!(numbers.contains(&line), "numbers.py lacks the line\n{line}");
    };
    has(&DataType::ALL.map(DataType::name));
    has(&ReduceOp::ALL.map(ReduceOp::name));
    has(&Collective::ALL.map(Collective::name));
    for name in ReduceOp::ALL.map(ReduceOp::name) {
        assert!(numbers.contains(&format!("    \"{name}\": {},\n", name.to_uppercase())), "OPS lacks {name}");
    }
    let sizes = DataType::ALL.map(|data_type| data_type.size().to_string()).join(", ");
    let line = format!("SIZES = ({sizes})\n");
    assert!(
        read("bindings/python/python/kolo/memory.py").contains(&line),
        "memory.py lacks the line\n{line}"
    );
}
