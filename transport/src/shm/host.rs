//! Identity of this host, and a check of the system features that the transport needs.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use super::arena::PAGE;
use crate::sys::map::Mapping;
use crate::sys::memfd;

/// Identity of a host as far as shared memory is concerned. Abstract socket names are visible within one network
/// namespace, and file descriptors travel over those sockets. The identity is therefore the kernel's boot id and the
/// namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// The kernel's boot id, or a digest of the key that replaces it.
    pub(crate) boot: [u8; 16],
    /// Inode of the network namespace.
    pub(crate) namespace: u64,
}

impl Host {
    /// Returns the identity of this host, or the one that `key` stands for.
    pub(crate) fn current(key: Option<&str>) -> io::Result<Self> {
        if let Some(key) = key {
            return Ok(Self { boot: digest(key), namespace: 0 });
        }
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(|e| io::Error::new(e.kind(), format!("cannot read the boot id in /proc: {e}")))?;
        let mut boot = [0; 16];
        let digits: Vec<u8> = text.trim().bytes().filter(|b| *b != b'-').collect();
        if digits.len() != 32 {
            return Err(io::Error::other("the boot id in /proc is malformed"));
        }
        for (byte, pair) in boot.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(io::Error::other)?;
            *byte = u8::from_str_radix(pair, 16).map_err(io::Error::other)?;
        }
        let namespace = std::fs::metadata("/proc/self/ns/net")
            .map_err(|e| {
                io::Error::new(e.kind(), format!("cannot read the network namespace in /proc: {e}"))
            })?
            .ino();
        Ok(Self { boot, namespace })
    }
}

/// Hashes a key to 128 bits (FNV-1a from two offsets). The result is an identity, not a secret.
fn digest(key: &str) -> [u8; 16] {
    let hash = |seed: u64| key.bytes().fold(seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mut out = [0; 16];
    out[..8].copy_from_slice(&hash(0xcbf2_9ce4_8422_2325).to_le_bytes());
    out[8..].copy_from_slice(&hash(0x6c62_272e_07bb_0142).to_le_bytes());
    out
}

/// Checks that this process may make memory of this length for other processes, and map it. Filters of system calls may
/// forbid that.
pub(crate) fn check_memory(bytes: usize) -> io::Result<()> {
    let fd = memfd::create_sealed("kolo-probe", bytes)?;
    memfd::check_sealed(&fd, bytes)?;
    Mapping::new(&fd, PAGE).map(drop)
}

/// Returns this process's random number.
pub(crate) fn process_number() -> io::Result<u64> {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    if let Some(number) = NUMBER.get() {
        return Ok(*number);
    }
    let number = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(*NUMBER.get_or_init(|| number))
}

/// Returns 128 random bits.
pub(crate) fn random_bits() -> io::Result<[u8; 16]> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(bits)
}

/// Length in bytes of the names that [`random_name`] makes.
pub(crate) const NAME_BYTES: usize = 37;

/// Returns a new abstract socket name that cannot be guessed.
pub(crate) fn random_name() -> io::Result<[u8; NAME_BYTES]> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut name = *b"kolo-00000000000000000000000000000000";
    for (i, byte) in random_bits()?.into_iter().enumerate() {
        name[5 + 2 * i] = DIGITS[usize::from(byte >> 4)];
        name[6 + 2 * i] = DIGITS[usize::from(byte & 15)];
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_fit_for_the_tests() {
        check_memory(PAGE).unwrap();
    }

    #[test]
    fn keys_stand_for_hosts() {
        let a = Host::current(Some("a")).unwrap();
        assert_eq!(a, Host::current(Some("a")).unwrap());
        assert_ne!(a, Host::current(Some("b")).unwrap());
        assert_ne!(a, Host::current(None).unwrap());
        assert_eq!(Host::current(None).unwrap(), Host::current(None).unwrap());
    }
}
