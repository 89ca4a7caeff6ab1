//! Random legal programs. `KOLO_TEST_PROGRAMS` sets how many (12 by default), `KOLO_TEST_PROGRAMS_FROM` the first seed.
//! The program `kolo_program` runs one of them, looks for more, and shrinks one that fails.

use kolo_tests::programs::{Program, run_cluster};

#[test]
fn random_programs() {
    let number = |name: &str, usual| {
        std::env::var(name).map_or(usual, |value| value.parse::<u64>().expect("a number"))
    };
    let from = number("KOLO_TEST_PROGRAMS_FROM", 1);
    for seed in from..from + number("KOLO_TEST_PROGRAMS", 12) {
        let program = Program { seed, losses: (seed % 2) as u32, ..Program::default() };
        if let Err(error) = run_cluster(&program) {
            panic!("`kolo_program shrink {program}` makes it smaller: {error}");
        }
    }
}

#[test]
fn programs_are_read_as_they_are_written() {
    for text in ["7", "7,ranks=3,halved=2,steps=0+14,losses=1,processes", "7,steps="] {
        assert_eq!(text.parse::<Program>().map(|program| program.to_string()), Ok(text.to_owned()));
    }
    assert!("7,x=3".parse::<Program>().is_err());
}
