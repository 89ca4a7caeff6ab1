//! The thread that moves frames between the devices and the [`Fabric`], in real time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::fabric::{Fabric, Facts};
use crate::link::{Bundle, Nanos};
use crate::system::{self, VIRTIO_HEADER};

/// Longest bundle, including its headers.
const FRAME_MAX: usize = 70_000;
/// Most frames taken from a port in a row, so that no other port starves.
const AT_ONCE: usize = 64;
/// Most buffers that are kept for later frames.
const SPARE_MAX: usize = 4096;

/// The switch. It runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Switch {
    fabric: Arc<Mutex<Fabric<Vec<u8>>>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// State of the thread.
struct Loop {
    fabric: Arc<Mutex<Fabric<Vec<u8>>>>,
    stop: Arc<OwnedFd>,
    devices: Vec<File>,
    ports: HashMap<[u8; 6], usize>,
    began: Instant,
    spare: Vec<Vec<u8>>,
}

impl Switch {
    /// Starts the switch. Device i is the fabric's port i, and has the hardware address `macs[i]`.
    pub(crate) fn start(fabric: Fabric<Vec<u8>>, devices: Vec<File>, macs: &[[u8; 6]]) -> io::Result<Self> {
        let fabric = Arc::new(Mutex::new(fabric));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let mut runs = Loop {
            fabric: Arc::clone(&fabric),
            stop: Arc::clone(&stop),
            devices,
            ports: macs.iter().copied().zip(0..).collect(),
            began: Instant::now(),
            spare: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("switch".into()).spawn(move || {
            // Without this privilege, packets may leave late on a busy machine.
            let _ = system::realtime();
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            runs.run();
        })?;
        Ok(Self { fabric, stop, thread: Some(thread) })
    }

    pub(crate) fn fabric(&self) -> MutexGuard<'_, Fabric<Vec<u8>>> {
        lock(&self.fabric)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(fabric: &Mutex<Fabric<Vec<u8>>>) -> MutexGuard<'_, Fabric<Vec<u8>>> {
    fabric.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loop {
    fn run(&mut self) {
        let mut buffer = vec![0; FRAME_MAX];
        let mut arrived = Vec::new();
        let mut ready = Vec::new();
        loop {
            let now = self.now();
            let mut fabric = lock(&self.fabric);
            fabric.advance(now, &mut arrived);
            let holds: Vec<_> = (0..self.devices.len()).map(|port| fabric.holds_until(port, now)).collect();
            let next = holds.iter().flatten().copied().chain(fabric.next()).min();
            drop(fabric);
            let is_idle = arrived.is_empty();
            for (port, frame) in arrived.drain(..) {
                // A host that does not accept frames loses them, as real hosts do.
                let _ = (&self.devices[port]).write(&frame);
                if self.spare.len() < SPARE_MAX {
                    self.spare.push(frame);
                }
            }
            let wait = match next {
                _ if !is_idle => 0,
                Some(next) => next.saturating_sub(now),
                None => 1_000_000_000,
            };
            if self.wait(wait, &holds, &mut ready) {
                return;
            }
            for port in ready.drain(..) {
                self.take(port, &mut buffer);
            }
        }
    }

    /// Waits for frames from ports that do not hold their host back. Returns true when the switch must stop.
    fn wait(&self, nanos: Nanos, holds: &[Option<Nanos>], ready: &mut Vec<usize>) -> bool {
        let nanos = nanos.min(1_000_000_000) as i64;
        let timeout = Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
        let events = |held: &Option<Nanos>| if held.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut polled: Vec<_> =
            self.devices.iter().zip(holds).map(|(device, held)| PollFd::new(device, events(held))).collect();
        polled.push(PollFd::new(&*self.stop, PollFlags::IN));
        if poll(&mut polled, Some(&timeout)).is_err() {
            return false; // a signal
        }
        let is_ready = |at: &usize| polled[*at].revents().contains(PollFlags::IN);
        ready.extend((0..self.devices.len()).filter(is_ready));
        is_ready(&self.devices.len())
    }

    /// Passes frames of one port to the fabric, until the card is busy.
    fn take(&mut self, port: usize, buffer: &mut [u8]) {
        for _ in 0..AT_ONCE {
            let Ok(len) = (&self.devices[port]).read(buffer) else { return };
            let frame = &buffer[..len];
            let Some(facts) = facts(frame) else { continue };
            let mac: [u8; 6] = frame[VIRTIO_HEADER..][..6].try_into().unwrap_or_default();
            let to = if mac[0] & 1 == 1 { None } else { self.ports.get(&mac).copied() };
            // No port has that address.
            if to.is_none() && mac[0] & 1 == 0 {
                continue;
            }
            let mut payload = self.spare.pop().unwrap_or_default();
            payload.clear();
            payload.extend_from_slice(frame);
            let now = self.now();
            let mut fabric = lock(&self.fabric);
            fabric.send(now, port, to, facts, payload);
            if fabric.holds_until(port, now).is_some() {
                return;
            }
        }
    }

    fn now(&self) -> Nanos {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Extracts the facts of a frame behind its virtio header. `None` if it is too short.
fn facts(frame: &[u8]) -> Option<Facts> {
    let (virtio, ethernet) = frame.split_at_checked(VIRTIO_HEADER)?;
    let bytes = ethernet.len() as u64;
    let packet = ethernet.get(14..)?;
    let tcp_at = match ethernet[12..14] {
        [0x08, 0x00] if packet.get(9) == Some(&6) => Some(14 + usize::from(packet[0] & 15) * 4),
        // Extension headers need no handling, since the hosts send none.
        [0x86, 0xdd] if packet.get(6) == Some(&6) => Some(14 + 40),
        _ => None,
    };
    let tcp = tcp_at.and_then(|at| ethernet.get(at..at + 20));
    let syn = tcp.filter(|tcp| tcp[13] & 0x12 == 0x02);
    let syn_to = syn.map(|tcp| u16::from_be_bytes([tcp[2], tcp[3]]));
    let segment = u64::from(u16::from_ne_bytes([virtio[4], virtio[5]]));
    let (bundle, longest_packet) = match (virtio[1] != 0, tcp_at, tcp) {
        (true, Some(at), Some(tcp)) if segment > 0 => {
            let headers = at as u64 + u64::from(tcp[12] >> 4) * 4;
            let payload = bytes.checked_sub(headers)?;
            (Bundle::segmented(payload, segment, headers), headers + segment.min(payload))
        }
        _ => (Bundle::frame(bytes), bytes),
    };
    Some(Facts { bundle, syn_to, longest_packet })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Makes a TCP packet over IPv4, behind a virtio header.
    fn tcp(flags: u8, payload: usize, segment: u16) -> Vec<u8> {
        let mut frame = vec![0; VIRTIO_HEADER + 14 + 20 + 32 + payload];
        frame[1] = u8::from(segment > 0);
        frame[4..6].copy_from_slice(&segment.to_ne_bytes());
        let ethernet = &mut frame[VIRTIO_HEADER..];
        ethernet[12..14].copy_from_slice(&[0x08, 0x00]);
        ethernet[14] = 0x45;
        ethernet[14 + 9] = 6;
        ethernet[34 + 2..34 + 4].copy_from_slice(&[0x12, 0x34]);
        ethernet[34 + 12] = 8 << 4;
        ethernet[34 + 13] = flags;
        frame
    }

    #[test]
    fn packets_are_recognized() {
        let syn = facts(&tcp(0x02, 0, 0)).unwrap();
        assert_eq!((syn.syn_to, syn.bundle), (Some(0x1234), Bundle::frame(66)));
        assert_eq!(facts(&tcp(0x12, 0, 0)).unwrap().syn_to, None, "a SYN that answers");
        let bundle = facts(&tcp(0x10, 14_480, 1448)).unwrap();
        assert_eq!((bundle.bundle, bundle.longest_packet), (Bundle::segmented(14_480, 1448, 66), 1514));
        assert!(facts(&[0; VIRTIO_HEADER + 13]).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), flags: u8) {
            let _ = facts(&bytes);
            let mut frame = tcp(flags, 100, 10);
            let n = bytes.len().min(VIRTIO_HEADER);
            frame[..n].copy_from_slice(&bytes[..n]);
            frame.truncate(bytes.len());
            let _ = facts(&frame);
        }
    }
}
