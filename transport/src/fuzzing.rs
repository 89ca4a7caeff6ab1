//! Parsers of bytes from other processes, as functions for tests/fuzz. Compiled only with `cfg(fuzzing)` and in
//! tests.
//!
//! Each function accepts any bytes and must not panic. Where there is an encoder, a decoded value survives encoding and decoding.

/// A fuzz target: its name, and the function that takes the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets.
pub const TARGETS: [Target; 8] = [
    ("tcp_hello", tcp_hello),
    ("tcp_address", tcp_address),
    ("tcp_inbound", tcp_inbound),
    ("shm_hello", shm_hello),
    ("shm_control", shm_control),
    ("rdma_hello", rdma_hello),
    ("rdma_wire", rdma_wire),
    ("foreign", foreign),
];

/// Parses the hello, the answer and the header of a TCP connection.
pub fn tcp_hello(bytes: &[u8]) {
    crate::tcp::fuzz_hello(bytes);
}

/// Parses the address of a TCP endpoint.
pub fn tcp_address(bytes: &[u8]) {
    crate::tcp::fuzz_address(bytes);
}

/// Receives messages and their parts from a peer that breaks the protocol.
pub fn tcp_inbound(script: &[u8]) {
    crate::tcp::fuzz_inbound(script);
}

/// Parses the greeting and the addresses that go over UNIX sockets.
pub fn shm_hello(bytes: &[u8]) {
    crate::shm::fuzz_hello(bytes);
}

/// Works with the control words of a ring while a hostile peer overwrites them.
pub fn shm_control(bytes: &[u8]) {
    crate::shm::fuzz_control(bytes);
}

/// Parses the hello and the address of an RDMA endpoint.
pub fn rdma_hello(bytes: &[u8]) {
    crate::rdma::fuzz_hello(bytes);
}

/// Parses the headers, grants and notes that a peer writes into registered memory.
pub fn rdma_wire(bytes: &[u8]) {
    crate::rdma::fuzz_wire(bytes);
}

/// Escapes text of other parties.
pub fn foreign(bytes: &[u8]) {
    let shown = crate::foreign::printable_bytes(bytes, 100);
    assert!(shown.len() <= 100 && !shown.chars().any(char::is_control));
}

#[cfg(test)]
mod tests {
    /// Runs the corpus of tests/fuzz through the same functions.
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
