//! A channel whose peer knows the job's cookie and says anything. See [`crate::fuzzing`].

use std::io::Write;

use socket2::{Domain, Socket, Type};

use super::super::link::Workspace;
use super::super::stripes::Bundle;
use super::super::wire::{Header, Part};
use super::{Eater, Halt, Inbound, Landing, Pieces, Recv};
use crate::endpoint::{Channel, Consumer, Event, Piece, Token};

const ON: Channel = Channel { peer: 0, index: 0 };
/// Longest message of this rank: several parts.
const LEN_MAX: usize = 4096;
/// Bytes behind a message's memory that nothing may change.
const GUARD: [u8; 64] = [0xa5; 64];

unsafe fn note(context: *mut (), offset: usize, data: *const u8, len: usize) {
    // SAFETY: the context is a buffer of `run` that outlives the token; the data is as promised.
    let (buffer, data) = unsafe { (&mut *context.cast::<Vec<u8>>(), std::slice::from_raw_parts(data, len)) };
    buffer[offset..offset + len].copy_from_slice(data);
}

/// Follows a script of steps of the peer and of this rank. A step is a byte that says what is done, and its arguments.
pub(in super::super) fn run(mut script: &[u8]) {
    let pair = || {
        Socket::pair(Domain::UNIX, Type::STREAM, None).and_then(|(there, here)| {
            there.set_nonblocking(true)?;
            here.set_nonblocking(true)?;
            Ok((there, here))
        })
    };
    let Ok((mut there, here)) = pair() else { return };
    let (mut inbound, mut work, mut bundle) = (Inbound::default(), Workspace::new(), Bundle::new(0));
    let (mut buffers, mut lists, mut events) = (Vec::new(), Vec::new(), Vec::new());
    while let Some([step, a, b, rest @ ..]) = script.first_chunk::<3>().map(|_| script) {
        script = rest;
        let (a, b) = (*a, *b);
        let number = u16::from_le_bytes([a, b]);
        let len = usize::from(number) % (LEN_MAX + 1);
        let sent = match step % 6 {
            0 => {
                let mut buffer = vec![0; len];
                buffer.extend(GUARD);
                buffers.push(Box::new(buffer));
                let buffer = buffers.last_mut().map(|buffer| &mut **buffer).expect("one was added");
                lists.push(Box::new([Piece { ptr: buffer.as_mut_ptr(), len }]));
                let landing = if step & 64 == 0 {
                    Landing::Place(Pieces::new(&lists[lists.len() - 1][..]).0)
                } else {
                    let context = std::ptr::from_mut(buffer).cast();
                    Landing::Eat(Eater::new(Consumer { call: note, context }))
                };
                let (token, conditional) = (Token(buffers.len() as u64), step & 128 != 0);
                inbound.queue.push_back(Recv { token, tag: 0, len, landing, conditional });
                Ok(0)
            }
            1 => {
                let (sequence, striped) = (inbound.sequence.wrapping_add((step >> 7).into()), step & 64 != 0);
                there.write(&Header { tag: 0, len: number.into(), sequence, striped }.encode())
            }
            2 => {
                let offset = 64 * u64::from(b);
                there.write(&Part { offset, len: 16 * u64::from(a), sequence: inbound.sequence }.encode())
            }
            3 => there.write(&vec![*step; len]),
            4 => {
                let bytes = script.split_off(..usize::from(a).min(script.len())).unwrap_or_default();
                there.write(bytes)
            }
            _ if a & 1 == 0 => {
                inbound.probed = true;
                Ok(0)
            }
            _ => {
                inbound.take_back(&mut events);
                Ok(0)
            }
        };
        let budget = if step & 32 == 0 { 1 << 20 } else { 100 };
        let mut halt = inbound.progress(&here, ON, &mut work, budget, step & 64 == 0, &mut events).1;
        if matches!(halt, Halt::Parts) {
            halt =
                inbound.progress_parts(&here, &mut bundle, &mut work, budget, step & 64 == 0, &mut events).1;
        }
        if sent.is_err() || matches!(halt, Halt::Corrupt(_) | Halt::Closed(_)) {
            break;
        }
        let _ = inbound.position();
    }
    let ends = events
        .iter()
        .filter(|event| matches!(event, Event::Done(_) | Event::Failed(..) | Event::Returned(_)));
    assert!(ends.count() + inbound.queue.len() == buffers.len(), "a receive ended twice, or never");
    assert!(buffers.iter().all(|buffer| buffer.ends_with(&GUARD)), "bytes beyond a message");
}
