//! The queue pairs to one peer, and how they are connected.
//!
//! The lower rank makes its queue pairs and describes them in its hello. The higher rank connects its own to them and
//! answers with its hello. The lower rank connects too, and sends a probe over each queue pair: a note with a full
//! packet behind it. The higher rank answers each with a probe of its own, of the same length. A lane carries
//! messages once a probe of the peer has come through it, so no plan uses a path on which packets of that size do not
//! get through in both directions.

use kolo_verbs::{Access, CompletionQueue, Error, Local, PinnedBuffer, Remote, Wake};

use super::hello::{Hello, LANES_MAX, LaneHello};
use super::lane::{Lane, RECEIVES_AT_ONCE, Settled};
use super::options::RdmaOptions;
use super::rails::Rail;
use super::wire::{CHANNELS, GRANTS, Note, Place, SLOTS};

/// Maximum number of untaken notes about one channel on lane 0: slots, grants, freed slots (one note for each half of
/// them, so three), a refusal, and some to spare.
const NOTES_PER_CHANNEL: u32 = SLOTS + GRANTS + 6;

/// Maximum number of notes before any channel is open: one per channel, and a probe.
const NOTES_AT_FIRST: u32 = CHANNELS as u32 + 4 + RECEIVES_AT_ONCE;

/// As [`NOTES_AT_FIRST`], for the other lanes.
const LONG_NOTES_AT_FIRST: u32 = 2 + RECEIVES_AT_ONCE;

/// Number of requests in flight on the lane for short messages: half of the number that all channels could have; the
/// rest waits.
const SHORT_DEPTH: u32 = 512;

/// Number of requests in flight on a lane for long messages.
const LONG_DEPTH: u32 = 64;

/// Length of an entry in the table of the channels' blocks.
const ENTRY_BYTES: usize = 16;
const TABLE_BYTES: usize = CHANNELS * ENTRY_BYTES;

/// Length of the longest possible packet.
const PROBE_BYTES: usize = 4096;

/// Stage of a link's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for the peer's hello.
    Greeted,
    /// It waits for the peer's probes.
    Probing,
    /// It carries messages.
    Up,
}

/// A peer's queue pairs. Lane 0 carries short messages and notes, the others carry long messages.
#[derive(Debug)]
pub(super) struct Link {
    // The lanes are dropped before the memory.
    pub(super) lanes: Vec<Lane>,
    /// A completion queue per rail, with the rail's number.
    pub(super) queues: Vec<(u8, CompletionQueue)>,
    /// Table of block addresses: the half that the peer writes, then this side's copy of its own half, as it is sent.
    pub(super) table: PinnedBuffer,
    pub(super) remote_table: Place,
    /// Memory per rail, in the order of `queues`: room for the peer's probes, then the bytes of this side's.
    probe_memory: Vec<PinnedBuffer>,
    /// Destination and length of each lane's probe, known once the lanes are connected.
    probes: Vec<(Remote, usize)>,
    pub(super) stage: Stage,
    /// Staging to send from, per lane, allocated on first use.
    pub(super) bounce: Vec<Option<Bounce>>,
}

/// Bounce buffer for long messages that cannot be sent from where they are.
#[derive(Debug)]
pub(super) struct Bounce {
    pub(super) memory: PinnedBuffer,
    pub(super) free: u8,
    pub(super) chunk_bytes: usize,
}

impl Link {
    /// Makes the queue pairs. The completion channels return `cookie` with their events.
    pub(super) fn new(
        rails: &[Rail],
        pairs: &[(u8, u8)],
        options: &RdmaOptions,
        cookie: usize,
    ) -> Result<Self, Error> {
        let long = (pairs.len() * usize::from(options.queue_pairs.max(1))).min(LANES_MAX - 1);
        let ours = pairs.iter().cycle().take(long).map(|&(ours, _)| ours);
        let all: Vec<u8> = pairs.iter().take(1).map(|&(ours, _)| ours).chain(ours).collect();
        Self::on_rails(rails, &all, cookie)
    }

    fn on_rails(rails: &[Rail], all: &[u8], cookie: usize) -> Result<Self, Error> {
        let mut queues: Vec<(u8, CompletionQueue)> = Vec::new();
        let mut lanes = Vec::new();
        let share = (CHANNELS as u32).div_ceil(all.len() as u32 - 1);
        for (number, &rail) in all.iter().enumerate() {
            let (sends, receives) = match number {
                0 => (SHORT_DEPTH, NOTES_AT_FIRST + CHANNELS as u32 * NOTES_PER_CHANNEL),
                _ => (LONG_DEPTH, LONG_NOTES_AT_FIRST + share * GRANTS),
            };
            let opened = &rails[usize::from(rail)];
            let queue = match queues.iter().find(|(of, _)| *of == rail) {
                Some((_, queue)) => queue.clone(),
                None => {
                    // The queue serves all lanes of the link that are on this rail.
                    let on_it = all.iter().enumerate().filter(|(_, of)| **of == rail);
                    let depth = on_it.map(|(number, _)| match number {
                        0 => SHORT_DEPTH + NOTES_AT_FIRST + CHANNELS as u32 * NOTES_PER_CHANNEL,
                        _ => LONG_DEPTH + LONG_NOTES_AT_FIRST + share * GRANTS,
                    });
                    let made =
                        opened.context().completion_queue(depth.sum(), Some(&opened.channel), cookie)?;
                    queues.push((rail, made.clone()));
                    made
                }
            };
            let first = if number == 0 { NOTES_AT_FIRST } else { LONG_NOTES_AT_FIRST };
            lanes.push(Lane::new(number as u8, (rail, opened), &queue, (sends, receives), first)?);
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let table = rails[usize::from(all[0])].domain.allocate(2 * TABLE_BYTES, access)?;
        let bounce = lanes.iter().map(|_| None).collect();
        let probe_memory = queues
            .iter()
            .map(|(rail, _)| rails[usize::from(*rail)].domain.allocate(2 * PROBE_BYTES, access))
            .collect::<Result<_, _>>()?;
        let remote_table = Place { address: 0, key: 0 };
        let probes = Vec::new();
        Ok(Self { lanes, queues, table, remote_table, probe_memory, probes, stage: Stage::Greeted, bounce })
    }

    /// Makes and connects the queue pairs that a hello asks for. The error is the text to send to the peer.
    pub(super) fn answer(rails: &[Rail], hello: &Hello, cookie: usize) -> Result<Self, String> {
        let Hello::Link { lanes, .. } = hello else { return Err("no hello".into()) };
        if lanes.iter().any(|lane| usize::from(lane.theirs) >= rails.len()) {
            return Err(format!("it asks for an adapter beyond the {} here", rails.len()));
        }
        let all: Vec<u8> = lanes.iter().map(|lane| lane.theirs).collect();
        let mut link = Self::on_rails(rails, &all, cookie).map_err(|error| error.to_string())?;
        link.connect(rails, hello)?;
        Ok(link)
    }

    /// Connects this side's queue pairs to the peer's.
    pub(super) fn connect(&mut self, rails: &[Rail], hello: &Hello) -> Result<(), String> {
        let Hello::Link { table, lanes } = hello else { return Err("no hello".into()) };
        if lanes.len() != self.lanes.len() {
            return Err(format!("{} queue pairs there, {} here", lanes.len(), self.lanes.len()));
        }
        self.remote_table = *table;
        for (lane, theirs) in self.lanes.iter().zip(lanes) {
            if lane.rail != theirs.theirs {
                return Err("the ends pair their adapters differently".into());
            }
            let rail = &rails[usize::from(lane.rail)];
            lane.connect(rail, &theirs.address).map_err(|error| error.to_string())?;
            // The probe is as long as the path permits.
            let bytes = rail.path.mtu.min(theirs.address.mtu).bytes() as usize;
            let Place { address, key } = theirs.probe;
            self.probes.push((Remote { address, key }, bytes.min(PROBE_BYTES)));
        }
        self.stage = Stage::Probing;
        Ok(())
    }

    /// Returns the hello for the peer. `theirs` returns the number of the peer's rail that is paired with a rail of
    /// this side.
    pub(super) fn hello(&self, rails: &[Rail], theirs: impl Fn(usize, u8) -> u8) -> Hello {
        let lanes = self.lanes.iter().enumerate().map(|(number, lane)| LaneHello {
            ours: lane.rail,
            theirs: theirs(number, lane.rail),
            address: lane.address(&rails[usize::from(lane.rail)]),
            probe: place_of(self.probe_memory(lane.rail)),
        });
        Hello::Link { table: place_of(&self.table), lanes: lanes.collect() }
    }

    /// Sends a probe over a connected lane: the longest packet that its path permits.
    pub(super) fn probe(&mut self, number: usize) -> Result<(), Error> {
        let (to, bytes) = self.probes[number];
        let local = self.probe_memory(self.lanes[number].rail).region().local(PROBE_BYTES, bytes);
        let note = Some(Note::Probe.encode(0));
        // SAFETY: the memory lives until the lanes are gone, and this part of it is never written.
        unsafe { self.lanes[number].write(to, Some(local), note, Some(Settled::default())) }
    }

    fn probe_memory(&self, rail: u8) -> &PinnedBuffer {
        let at = self.queues.iter().position(|(of, _)| *of == rail);
        &self.probe_memory[at.expect("each lane's rail has a queue")]
    }

    /// Returns an address for notes without bytes; the peer's adapter checks no address for these.
    pub(super) fn nowhere(&self) -> Remote {
        Remote { address: self.remote_table.address, key: self.remote_table.key }
    }

    /// Returns the location of a channel's entry in the peer's table.
    pub(super) fn remote_entry(&self, channel: u8) -> Remote {
        let at = u64::from(channel) * ENTRY_BYTES as u64;
        Remote { address: self.remote_table.address.wrapping_add(at), key: self.remote_table.key }
    }

    /// Returns the location of the peer's block of a channel, as the peer has written it.
    pub(super) fn entry(&self, channel: u8) -> Place {
        let mut bytes = [0; Place::BYTES];
        self.table.read(usize::from(channel) * ENTRY_BYTES, &mut bytes);
        Place::decode(&bytes)
    }

    /// Returns the number of the lane for a channel's long messages.
    pub(super) fn long_lane(&self, channel: u8) -> usize {
        1 + usize::from(channel) % (self.lanes.len() - 1)
    }

    /// Posts the receives for the notes of one more channel.
    pub(super) fn make_room(&self, channel: u8) -> Result<(), Error> {
        self.lanes[0].post_receives(NOTES_PER_CHANNEL)?;
        self.lanes[self.long_lane(channel)].post_receives(GRANTS)
    }

    /// Requests that the next completions wake the owner, if it is about to sleep.
    pub(super) fn wake_for(&self, sleep: bool) -> Result<(), Error> {
        match sleep {
            true => self.queues.iter().try_for_each(|(_, queue)| queue.request_event(Wake::Any)),
            false => Ok(()),
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.lanes.iter().all(Lane::is_settled)
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.lanes.iter().all(Lane::is_flushed)
    }

    /// Sends an empty request behind short messages, whose completion is reported; short messages are not reported
    /// one by one.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let to = self.nowhere();
        for lane in &mut self.lanes {
            if !lane.is_flushed() && lane.is_settled() && lane.has_room() {
                // SAFETY: the write involves no memory.
                unsafe { lane.write(to, None, None, Some(Settled::default()))? };
            }
        }
        Ok(())
    }

    pub(super) fn local_of(memory: &PinnedBuffer, at: usize, len: usize) -> Local {
        memory.region().local(at, len)
    }
}

fn place_of(memory: &PinnedBuffer) -> Place {
    let Remote { address, key } = memory.region().remote(0);
    Place { address, key }
}
