//! The parsers of bytes from other processes, as functions, for tests/fuzz. Only with `cfg(fuzzing)` and in tests.
//!
//! Each function accepts any bytes and must not panic. Where there is an encoder, a decoded value survives encoding and decoding.

/// A target: its name, and what takes its bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 7] = [
    ("tcp_hello", tcp_hello),
    ("tcp_address", tcp_address),
    ("shm_hello", shm_hello),
    ("shm_control", shm_control),
    ("rdma_hello", rdma_hello),
    ("rdma_wire", rdma_wire),
    ("foreign", foreign),
];

/// Hello, answer and header of a TCP connection.
pub fn tcp_hello(bytes: &[u8]) {
    crate::tcp::fuzz_hello(bytes);
}

/// The address of a TCP endpoint.
pub fn tcp_address(bytes: &[u8]) {
    crate::tcp::fuzz_address(bytes);
}

/// Greeting and addresses over UNIX sockets.
pub fn shm_hello(bytes: &[u8]) {
    crate::shm::fuzz_hello(bytes);
}

/// The control words of a ring, written by a hostile peer while the owner works with them.
pub fn shm_control(bytes: &[u8]) {
    crate::shm::fuzz_control(bytes);
}

/// Hello and address of an RDMA endpoint.
pub fn rdma_hello(bytes: &[u8]) {
    crate::rdma::fuzz_hello(bytes);
}

/// Headers, grants and notes that a peer writes into registered memory.
pub fn rdma_wire(bytes: &[u8]) {
    crate::rdma::fuzz_wire(bytes);
}

/// Texts of others.
pub fn foreign(bytes: &[u8]) {
    let shown = crate::foreign::printable_bytes(bytes, 100);
    assert!(shown.len() <= 100 && !shown.chars().any(char::is_control));
}

#[cfg(test)]
mod tests {
    /// The corpus of tests/fuzz, through the same functions.
    #[test]
    fn the_corpus_passes() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus");
        for (name, target) in super::TARGETS {
            let files = std::fs::read_dir(corpus.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut count = 0;
            for file in files {
                target(&std::fs::read(file.unwrap().path()).unwrap());
                count += 1;
            }
            assert!(count > 0, "{name} has no corpus");
        }
    }
}
