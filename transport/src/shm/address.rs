//! The address blob by which the ranks of a host find each other.

use super::host::{Host, NAME_BYTES};

/// First bytes of every blob.
const MAGIC: [u8; 4] = *b"KSHM";
/// Version of the layout of the blob, the greetings and the shared memory, which change together.
pub(crate) const VERSION: u32 = 12;
/// Magic, version, boot, namespace, uid, pid, process, name, cookie, beacon, and whether it is registered.
const BYTES: usize = 4 + 4 + 16 + 8 + 4 + 4 + 8 + NAME_BYTES + 16 + 8 + 1;

/// Contents of a rank's address blob, which all other ranks get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: Host,
    pub(crate) uid: u32,
    /// For error texts, and for reading the process's memory; the read proves that it is the right process (see
    /// [`Remote`](super::remote::Remote)).
    pub(crate) pid: u32,
    /// Random number of the process: containers and copies of virtual machines have processes with equal ids.
    pub(crate) process: u64,
    /// Name of the stream listener.
    pub(crate) name: [u8; NAME_BYTES],
    /// Proof that its holder has read this blob: every user of the host can see socket names, but not blobs.
    pub(crate) cookie: [u8; 16],
    /// Address of the cookie in the process's own memory.
    pub(crate) beacon: u64,
    /// Whether others may rely on [`Fences::Asymmetric`](crate::sys::fences::Fences).
    pub(crate) is_registered: bool,
}

/// Id and random number of a process.
pub(crate) type ProcessKey = (u32, u64);

impl Address {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.host.boot);
        out.extend_from_slice(&self.host.namespace.to_le_bytes());
        out.extend_from_slice(&self.uid.to_le_bytes());
        out.extend_from_slice(&self.pid.to_le_bytes());
        out.extend_from_slice(&self.process.to_le_bytes());
        out.extend_from_slice(&self.name);
        out.extend_from_slice(&self.cookie);
        out.extend_from_slice(&self.beacon.to_le_bytes());
        out.push(self.is_registered.into());
        out
    }

    /// Decodes a blob. The error says what is wrong with it.
    pub(crate) fn decode(blob: &[u8]) -> Result<Self, String> {
        let rest = blob.strip_prefix(&MAGIC).ok_or("not the address of a shared-memory endpoint")?;
        let (version, mut rest) = take::<4>(rest)?;
        let version = u32::from_le_bytes(version);
        if version != VERSION {
            return Err(format!(
                "version {version} of the shared-memory transport, but this is version {VERSION}"
            ));
        }
        if blob.len() != BYTES {
            return Err(format!("an address of {} bytes, expected {BYTES}", blob.len()));
        }
        let mut field = |out: &mut [u8]| {
            let (head, tail) = rest.split_at(out.len());
            out.copy_from_slice(head);
            rest = tail;
        };
        let (mut boot, mut namespace, mut uid, mut pid) = ([0; 16], [0; 8], [0; 4], [0; 4]);
        let mut process = [0; 8];
        let (mut name, mut cookie, mut beacon, mut registered) = ([0; NAME_BYTES], [0; 16], [0; 8], [0; 1]);
        field(&mut boot);
        field(&mut namespace);
        field(&mut uid);
        field(&mut pid);
        field(&mut process);
        field(&mut name);
        field(&mut cookie);
        field(&mut beacon);
        field(&mut registered);
        Ok(Self {
            host: Host { boot, namespace: u64::from_le_bytes(namespace) },
            uid: u32::from_le_bytes(uid),
            pid: u32::from_le_bytes(pid),
            process: u64::from_le_bytes(process),
            name,
            cookie,
            beacon: u64::from_le_bytes(beacon),
            is_registered: registered != [0],
        })
    }

    /// Returns a key of the process, also after a fork.
    pub(crate) fn process_key(&self) -> ProcessKey {
        (self.pid, self.process)
    }

    /// Returns the name of the datagram socket through which peers wake a sleeping owner.
    pub(crate) fn bell_name(&self) -> [u8; NAME_BYTES] {
        let mut name = self.name;
        name[..5].copy_from_slice(b"bell-");
        name
    }
}

fn take<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), String> {
    let (head, tail) = bytes.split_first_chunk::<N>().ok_or("the address is cut short")?;
    Ok((*head, tail))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Address {
        Address {
            host: Host { boot: [7; 16], namespace: 42 },
            uid: 1000,
            pid: 77,
            process: 88,
            name: [b'n'; NAME_BYTES],
            cookie: [9; 16],
            beacon: 0x7fff_1234_5678,
            is_registered: true,
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(Address::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn every_cut_and_every_other_version_is_refused() {
        let blob = sample().encode();
        for len in 0..blob.len() {
            assert!(Address::decode(&blob[..len]).is_err(), "{len} bytes");
        }
        let mut other = blob;
        other[4] = 99;
        assert!(Address::decode(&other).unwrap_err().contains("version 99"));
    }

    proptest! {
        #[test]
        fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assume!(!bytes.starts_with(&MAGIC));
            prop_assert!(Address::decode(&bytes).is_err());
        }
    }
}
