//! Hellos: the messages over the side connection by which two ends connect their queue pairs.

use kolo_verbs::Address;

use super::rails::RAILS_MAX;
use super::wire::Place;
use crate::foreign::printable_bytes;

/// Length of a hello. It is fixed, since messages of the side connection have a length that both ends know.
pub(super) const HELLO_BYTES: usize = 512;

/// Maximum number of queue pairs of a link: one for short messages, the others for long ones.
pub(super) const LANES_MAX: usize = 9;

const PROBE_AT: usize = 2 + Address::BYTES;
const LANE_BYTES: usize = PROBE_AT + Place::BYTES;
const HEAD_BYTES: usize = 4 + Place::BYTES;
const WORDS_MAX: usize = HELLO_BYTES - HEAD_BYTES - 2;

const _: () = assert!(HEAD_BYTES + LANES_MAX * LANE_BYTES <= HELLO_BYTES && RAILS_MAX < LANES_MAX);

const VERSION: u8 = 2;

/// A queue pair of the hello's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneHello {
    /// The sender's rail.
    pub(super) ours: u8,
    /// The receiver's rail with which it is to be connected.
    pub(super) theirs: u8,
    pub(super) address: Address,
    /// Memory into which a probe may be written.
    pub(super) probe: Place,
}

/// Description of one end of a link, or the reason why there will be no link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    Link { table: Place, lanes: Vec<LaneHello> },
    Refusal(String),
}

impl Hello {
    pub(super) fn encode(&self, into: &mut [u8; HELLO_BYTES]) {
        into.fill(0);
        into[0] = VERSION;
        match self {
            Self::Link { table, lanes } => {
                into[1] = 1;
                into[2] = lanes.len() as u8;
                into[4..HEAD_BYTES].copy_from_slice(&table.encode());
                for (lane, bytes) in lanes.iter().zip(into[HEAD_BYTES..].chunks_exact_mut(LANE_BYTES)) {
                    bytes[0] = lane.ours;
                    bytes[1] = lane.theirs;
                    bytes[2..PROBE_AT].copy_from_slice(&lane.address.to_bytes());
                    bytes[PROBE_AT..].copy_from_slice(&lane.probe.encode());
                }
            }
            Self::Refusal(words) => {
                into[1] = 2;
                let most = words.len().min(WORDS_MAX);
                let len = (0..=most).rev().find(|&len| words.is_char_boundary(len)).unwrap_or(0);
                into[HEAD_BYTES..HEAD_BYTES + 2].copy_from_slice(&(len as u16).to_le_bytes());
                into[HEAD_BYTES + 2..HEAD_BYTES + 2 + len].copy_from_slice(&words.as_bytes()[..len]);
            }
        }
    }

    /// Decodes a peer's hello. The error names the invalid part.
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, &'static str> {
        if bytes[0] != VERSION {
            return Err("it is of another version of Kolo");
        }
        let body = &bytes[HEAD_BYTES..];
        match bytes[1] {
            1 => {
                let count = usize::from(bytes[2]);
                if !(2..=LANES_MAX).contains(&count) {
                    return Err("a number of queue pairs out of range");
                }
                let mut place = [0; Place::BYTES];
                place.copy_from_slice(&bytes[4..HEAD_BYTES]);
                let lane = |bytes: &[u8]| {
                    let mut address = [0; Address::BYTES];
                    address.copy_from_slice(&bytes[2..PROBE_AT]);
                    let address = Address::from_bytes(&address).ok_or("the address of a queue pair")?;
                    let rails = usize::from(bytes[0]).max(bytes[1].into());
                    (rails < RAILS_MAX).then_some(()).ok_or("the number of an adapter")?;
                    let mut probe = [0; Place::BYTES];
                    probe.copy_from_slice(&bytes[PROBE_AT..]);
                    Ok(LaneHello { ours: bytes[0], theirs: bytes[1], address, probe: Place::decode(&probe) })
                };
                let lanes =
                    body.chunks_exact(LANE_BYTES).take(count).map(lane).collect::<Result<_, &str>>()?;
                Ok(Self::Link { table: Place::decode(&place), lanes })
            }
            2 => {
                let len = usize::from(u16::from_le_bytes([body[0], body[1]])).min(WORDS_MAX);
                Ok(Self::Refusal(printable_bytes(&body[2..2 + len], WORDS_MAX)))
            }
            _ => Err("its kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kolo_verbs::{Gid, Mtu};

    #[test]
    fn hellos_survive_and_nonsense_does_not() {
        let address = Address { number: 17, first_packet: 5, lid: 0, mtu: Mtu::Bytes1024, gid: Gid([1; 16]) };
        let probe = Place { address: 1 << 41, key: 78 };
        let lane = LaneHello { ours: 0, theirs: 3, address, probe };
        let hello = Hello::Link { table: Place { address: 1 << 40, key: 77 }, lanes: vec![lane; 3] };
        let mut bytes = [0; HELLO_BYTES];
        hello.encode(&mut bytes);
        assert_eq!(Hello::decode(&bytes), Ok(hello));
        for (at, value) in [(0, 9), (1, 9), (2, 1), (2, 200), (HEAD_BYTES, 4), (HEAD_BYTES + 12, 99)] {
            let mut damaged = bytes;
            damaged[at] = value;
            assert!(Hello::decode(&damaged).is_err(), "byte {at} = {value}");
        }
        let refusal = Hello::Refusal("ü".repeat(600));
        refusal.encode(&mut bytes);
        let Ok(Hello::Refusal(words)) = Hello::decode(&bytes) else { panic!("a refusal") };
        assert!(words.len() > 400 && words.chars().all(|letter| letter == 'ü'));
    }
}
