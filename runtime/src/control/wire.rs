//! Frames and messages between the ranks and the coordinator.
//!
//! A frame is a length (4 bytes, little-endian) and a postcard-encoded message. The length is checked against the limit
//! of its direction before any memory is allocated. Texts from other processes are made printable when they are
//! decoded.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use kolo_transport::foreign::printable;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::abort::{AbortCause, Loss};
use super::board::Account;
use super::peers::evidence::Seen;
use super::peers::listener::ListenerAddress;
use crate::error::JoinFailure;
use crate::job::Cookie;
use crate::job::limits::{MAX_FRAME_FROM_COORDINATOR, MAX_REMEMBERED, MAX_TEXT_BYTES};

/// Facts about a rank, which all ranks know after joining.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Rank in the world.
    pub rank: u32,
    /// Host name, for messages.
    #[serde(deserialize_with = "foreign")]
    pub hostname: String,
    /// Process number in the rank's own PID namespace.
    pub pid: u32,
    /// Rank among the ranks of its host, if the launcher told it.
    pub local_rank: Option<u32>,
    /// Version of this crate.
    #[serde(deserialize_with = "foreign")]
    pub version: String,
    /// Number that is equal for ranks on one running kernel within the same network and PID namespaces. Such ranks can
    /// share memory.
    pub host_key: u64,
    /// Number of the listener of the member that passes on the bytes between the rank and the coordinator, if the rank
    /// does not reach the coordinator itself.
    pub(crate) relayed_by: Option<u64>,
}

/// Identifies one all-gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GatherKey {
    /// Id of the communicator, or any number that the members agree on.
    pub communicator: u64,
    /// The values that are gathered. Each pair of communicator and round is used once.
    pub round: Round,
}

/// The all-gathers of a communicator, by the values that its ranks give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Round {
    /// Their introductions to each other.
    Introductions,
    /// The paths on which nothing got through.
    FailedPaths,
    /// Whether each shares memory with the ranks of its host.
    SharedMemory,
    /// Their measurements of the network.
    Measurements,
    /// The newcomers that wait at their listeners.
    Newcomers,
    /// Their requests to the split of this number.
    Split(u64),
    /// Their requests for the symmetric buffer of this number.
    AllocRequests(u64),
    /// The addresses of its memory.
    AllocAddresses(u64),
    /// Whether each could map the others' memory.
    AllocOutcomes(u64),
    /// Values of a program that numbers its rounds itself.
    Numbered(u64),
}

impl fmt::Display for GatherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gathering of ")?;
        match self.round {
            Round::Introductions => write!(f, "introductions"),
            Round::FailedPaths => write!(f, "failed paths"),
            Round::SharedMemory => write!(f, "facts about shared memory"),
            Round::Measurements => write!(f, "network measurements"),
            Round::Newcomers => write!(f, "waiting newcomers"),
            Round::Split(number) => write!(f, "requests for split {number}"),
            Round::AllocRequests(number) => write!(f, "requests for allocation {number}"),
            Round::AllocAddresses(number) => write!(f, "addresses of allocation {number}"),
            Round::AllocOutcomes(number) => write!(f, "outcomes of allocation {number}"),
            Round::Numbered(number) => write!(f, "values of round {number}"),
        }?;
        write!(f, " in communicator {:#x}", self.communicator)
    }
}

/// First frame of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) peer: PeerInfo,
    pub(crate) world_size: u32,
    /// Name of the job, if the launcher told it. An empty name matches any.
    #[serde(deserialize_with = "foreign")]
    pub(crate) job: String,
    /// Description of where the rank's number came from, for messages.
    #[serde(deserialize_with = "foreign")]
    pub(crate) source: String,
    /// Address at which others reach the rank without the coordinator, if it has a listener.
    pub(crate) listener: Option<ListenerAddress>,
    /// The ends of this connection as the rank sees them, its own first. `None` within a process.
    pub(crate) ends: Option<[SocketAddr; 2]>,
}

/// A message from a rank to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToCoordinator {
    Hello(Hello),
    Heartbeat,
    AllGather {
        key: GatherKey,
        #[serde(with = "runs")]
        members: Vec<u32>,
        blob: Vec<u8>,
    },
    /// This rank's deadline has passed. The coordinator fails the all-gather for all members and says who was missing.
    Withdraw {
        key: GatherKey,
    },
    Abort {
        communicator: u64,
        #[serde(with = "runs")]
        members: Vec<u32>,
        cause: AbortCause,
    },
    Ask {
        ticket: u64,
        target: u32,
        communicator: u64,
    },
    Answer {
        ticket: u64,
        asker: u32,
        account: Account,
    },
    /// A message that ranks pass on to each other has arrived: the blobs of this all-gather, or the welcome.
    Received {
        key: Option<GatherKey>,
    },
    /// The group goes on after a loss. From now on a host is lost if it has not answered for this long.
    Watch {
        limit_ms: u32,
    },
    Goodbye,
    /// The rank cannot go on because its thread panics. This counts as a closed connection, and gives the reason.
    Dying {
        loss: Loss,
    },
}

/// A message from the coordinator to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromCoordinator {
    Welcome {
        cookie: Cookie,
        peers: Vec<PeerInfo>,
        /// The listeners, by rank.
        listeners: Vec<Option<ListenerAddress>>,
        /// The ends of the ranks' connections to the coordinator, by rank.
        seen: Vec<Option<Seen>>,
    },
    /// A welcome, or the blobs of an all-gather, which the receiver passes on to some of the other ranks: see
    /// `forwarding`.
    Forward {
        key: Option<GatherKey>,
        message: Vec<u8>,
    },
    /// Some ranks are still missing. Carries their names as text, and the number of rejected connections.
    Waiting {
        #[serde(deserialize_with = "foreign")]
        missing: String,
        rejected: u64,
    },
    Refused(Refusal),
    Heartbeat,
    Gathered {
        key: GatherKey,
        blobs: Vec<Vec<u8>>,
    },
    GatherFailed {
        key: GatherKey,
        failure: GatherFailure,
    },
    Aborted {
        communicator: u64,
        cause: AbortCause,
    },
    Lost {
        rank: u32,
        loss: Loss,
    },
    Departed {
        ranks: Vec<u32>,
    },
    Asked {
        ticket: u64,
        asker: u32,
        communicator: u64,
    },
    Answered {
        ticket: u64,
        account: Account,
    },
    Goodbye,
    /// Rank 0 has left and closes the coordinator. This is not an error.
    Closing,
}

/// Reason why the coordinator refuses a rank or gives up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) kind: JoinFailure,
    #[serde(deserialize_with = "foreign")]
    pub(crate) problem: String,
    #[serde(deserialize_with = "foreign")]
    pub(crate) remedy: String,
    /// Whether another coordinator may soon listen here, so that trying again makes sense.
    pub(crate) retry: bool,
}

/// Reason why an all-gather failed. Ranks are world ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GatherFailure {
    Lost {
        rank: u32,
        loss: Loss,
    },
    Departed {
        rank: u32,
    },
    Timeout {
        by: u32,
        missing: Vec<u32>,
    },
    Disagreement {
        #[serde(deserialize_with = "foreign")]
        problem: String,
    },
}

/// Encoding of a list of ranks as runs of consecutive ranks: the first rank of each run and its length.
mod runs {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::job::MAX_WORLD_SIZE;

    pub(super) fn serialize<S: Serializer>(ranks: &[u32], to: S) -> Result<S::Ok, S::Error> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &rank in ranks {
            match runs.last_mut() {
                Some((first, count)) if first.checked_add(*count) == Some(rank) => *count += 1,
                _ => runs.push((rank, 1)),
            }
        }
        runs.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u32>, D::Error> {
        let runs = Vec::<(u32, u32)>::deserialize(from)?;
        let total: u64 = runs.iter().map(|(_, count)| u64::from(*count)).sum();
        if total > u64::from(MAX_WORLD_SIZE) {
            return Err(D::Error::custom(format_args!("a list of {total} ranks")));
        }
        let each = |(first, count): (u32, u32)| (0..count).map(move |place| first.saturating_add(place));
        Ok(runs.into_iter().flat_map(each).collect())
    }
}

/// Decodes a text from another process and makes it fit for errors, logs and terminals.
pub(crate) fn foreign<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map(|text| printable(&text, MAX_TEXT_BYTES))
}

/// Decodes an optional text in the same way.
pub(crate) fn foreign_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.map(|text| printable(&text, MAX_TEXT_BYTES)))
}

/// Bytes of a frame's length prefix.
pub(crate) const PREFIX_BYTES: usize = 4;

/// Encodes a message as a frame.
pub(crate) fn encode<T: Serialize>(message: &T) -> Bytes {
    let mut frame = BytesMut::with_capacity(64);
    frame.put_u32_le(0);
    // These are Kolo's own types, encoded into memory, so postcard cannot fail.
    let mut frame = postcard::to_extend(message, Extend(frame)).expect("messages can be encoded").0;
    let length = frame.len() - 4;
    assert!(length <= MAX_FRAME_FROM_COORDINATOR, "a frame of {length} bytes is over every limit");
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    frame.freeze()
}

struct Extend(BytesMut);

impl std::iter::Extend<u8> for Extend {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.0.extend(bytes);
    }
}

/// Decodes a frame's payload. Trailing bytes are an error.
pub(crate) fn decode<T: DeserializeOwned>(payload: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(payload) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(invalid(format!("{} bytes after the message", rest.len()))),
        Err(error) => Err(invalid(format!("not a message: {error}"))),
    }
}

/// Reads one frame. Returns `None` if the stream ends between frames.
pub(crate) async fn read_frame<R: AsyncRead + Unpin>(
    reader: &mut R,
    limit: usize,
) -> io::Result<Option<Vec<u8>>> {
    let mut prefix = [0; 4];
    let mut have = 0;
    while have < prefix.len() {
        match reader.read(&mut prefix[have..]).await? {
            0 if have == 0 => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => have += n,
        }
    }
    let length = u32::from_le_bytes(prefix) as usize;
    if length > limit {
        return Err(invalid(format!("a frame of {length} bytes; at most {limit} are allowed here")));
    }
    let mut payload = vec![0; length];
    reader.read_exact(&mut payload).await?;
    Ok(Some(payload))
}

/// Cuts a text to the length that a message may carry.
pub(crate) fn clip(mut text: String, most: usize) -> String {
    let most = most.min(MAX_TEXT_BYTES);
    if text.len() > most {
        let mut end = most - 3;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// Appends to a list that drops its oldest entry when it is full.
pub(crate) fn remember<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == MAX_REMEMBERED {
        list.pop_front();
    }
    list.push_back(item);
}

pub(crate) fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn frames_survive_and_bad_ones_do_not() {
        let message = ToCoordinator::AllGather {
            key: GatherKey { communicator: 7, round: Round::Introductions },
            members: vec![0, 2],
            blob: vec![1; 300],
        };
        let frame = encode(&message);
        let mut reader: &[u8] = &frame;
        let payload = read_frame(&mut reader, 1000).await.unwrap().unwrap();
        assert_eq!(decode::<ToCoordinator>(&payload).unwrap(), message);
        assert!(read_frame(&mut reader, 1000).await.unwrap().is_none());
        assert!(read_frame(&mut &frame[..], 100).await.unwrap_err().to_string().contains("at most 100"));
        assert!(read_frame(&mut &frame[..50], 1000).await.is_err(), "cut off");
        let mut longer = payload.clone();
        longer.push(0);
        assert!(decode::<ToCoordinator>(&longer).is_err());
        assert!(decode::<ToCoordinator>(&[200]).is_err());
    }

    #[test]
    fn lists_of_ranks_are_short_where_they_are_in_a_row() {
        let with = |members: Vec<u32>| ToCoordinator::AllGather {
            key: GatherKey { communicator: 7, round: Round::Introductions },
            members,
            blob: vec![],
        };
        let all = encode(&with((0..4096).collect()));
        assert!(all.len() < 20, "{} bytes", all.len());
        for members in [vec![], vec![5], vec![3, 1, 2, 2], vec![u32::MAX, 0, 1], (0..4096).rev().collect()] {
            assert_eq!(decode::<ToCoordinator>(&encode(&with(members.clone()))[4..]).unwrap(), with(members));
        }
        let mut long = all.to_vec();
        let count = long.windows(2).position(|two| two == [0x80, 0x20]).expect("4096 as a varint");
        long[count + 1] = 0x21;
        assert!(decode::<ToCoordinator>(&long[4..]).is_err(), "more ranks than there can be");
    }

    #[test]
    fn texts_are_cut_at_character_boundaries() {
        let text = clip("ä".repeat(5000), 100);
        assert!(text.len() <= 100 && text.ends_with("..."));
        assert_eq!(clip("short".into(), 100), "short");
    }

    proptest::proptest! {
        /// Bytes from the network decode or fail. They cause neither a panic nor an allocation beyond their own size.
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = decode::<ToCoordinator>(&bytes);
            let _ = decode::<FromCoordinator>(&bytes);
        }
    }
}
