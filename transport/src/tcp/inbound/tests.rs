//! Streams that are cut anywhere and contain any mismatch.

use std::io::Write;

use super::*;
use crate::endpoint::{Consumer, Piece};
use proptest::prelude::*;
use socket2::{Domain, Type};

/// Length sent, length expected, whether the tag is wrong, and whether a consumer takes the message.
type Case = (usize, usize, bool, bool);

fn case() -> impl Strategy<Value = Case> {
    let len = || prop_oneof![0usize..100, 0usize..40_000, Just(BURST_BYTES)];
    // Most messages are as expected; some have another length, some another tag; some go to a consumer.
    (len(), len(), 0u8..8, any::<bool>()).prop_map(|(sent, other, fate, eaten)| match fate {
        0 => (sent, other, false, eaten),
        1 => (sent, sent, true, eaten),
        _ => (sent, sent, false, eaten),
    })
}

unsafe fn collect(context: *mut (), offset: usize, data: *const u8, len: usize) {
    // SAFETY: the context is a vector of the test that outlives the token; the data is as promised.
    let (out, bytes) = unsafe { (&mut *context.cast::<Vec<u8>>(), std::slice::from_raw_parts(data, len)) };
    assert_eq!(offset, out.len());
    out.extend_from_slice(bytes);
}

fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + number * 7) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// However the stream is cut, and whichever messages mismatch: the expected messages arrive, and the others fail.
    #[test]
    fn mismatches_cost_only_themselves(
        cases in proptest::collection::vec(case(), 1..25),
        chunks in proptest::collection::vec(prop_oneof![1usize..50, 1usize..30_000], 1..12),
        posted_ahead in 1usize..25,
        budget in prop_oneof![1usize..100, Just(1usize << 20)],
    ) {
        let (mut there, here) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        here.set_nonblocking(true).unwrap();
        there.set_nonblocking(true).unwrap();
        let mut stream = Vec::new();
        for (number, &(sent, _, wrong_tag, _)) in cases.iter().enumerate() {
            let tag = number as u64 + if wrong_tag { 1000 } else { 0 };
            stream.extend(Header { tag, len: sent as u64, sequence: number as u32, striped: false }.encode());
            stream.extend(payload(number, sent));
        }
        let mut targets: Vec<Vec<u8>> =
            cases.iter().map(|&(_, len, _, eaten)| if eaten { Vec::new() } else { vec![0; len] }).collect();
        let lists: Vec<Vec<Piece>> = targets.iter_mut().map(|target| {
            let (ptr, half) = (target.as_mut_ptr(), target.len() / 3);
            let rest = Piece { ptr: ptr.wrapping_add(half), len: target.len() - half };
            vec![Piece { ptr, len: half }, rest]
        }).collect();
        let contexts: Vec<*mut ()> = targets.iter_mut().map(|target| std::ptr::from_mut(target).cast()).collect();
        let (mut inbound, mut work, mut events) = (Inbound::default(), Workspace::new(), Vec::new());
        let (mut posted, mut sent, mut turn) = (0, 0, 0);
        while events.len() < cases.len() {
            while posted < cases.len() && posted < events.len() + posted_ahead {
                let (_, len, _, eaten) = cases[posted];
                let landing = if eaten {
                    Landing::Eat(Eater::new(Consumer { call: collect, context: contexts[posted] }))
                } else {
                    Landing::Place(Pieces::new(&lists[posted]).0)
                };
                let (token, tag) = (Token(posted as u64), posted as u64);
                inbound.queue.push_back(Recv { token, tag, len, landing, conditional: false });
                posted += 1;
            }
            let chunk = chunks[turn % chunks.len()].min(stream.len() - sent);
            // With a small budget, the kernel's buffer may run full.
            sent += there.write(&stream[sent..sent + chunk]).unwrap_or(0);
            turn += 1;
            let exhaust = turn % 2 == 0;
            let (_, halt) = inbound.progress(&here, Channel { peer: 0, index: 0 }, &mut work, budget, exhaust, &mut events);
            let corrupt = matches!(halt, Halt::Corrupt(_) | Halt::Closed(_));
            prop_assert!(!corrupt, "{:?}", halt);
            prop_assert!(turn < 2_000_000, "stuck: {:?}", inbound);
        }
        for (number, (event, &(sent, len, wrong_tag, _))) in events.iter().zip(&cases).enumerate() {
            match event {
                Event::Done(token) => {
                    prop_assert_eq!(token.0, number as u64);
                    prop_assert!(sent == len && !wrong_tag);
                    prop_assert_eq!(&targets[number], &payload(number, len));
                }
                Event::Failed(token, error) => {
                    prop_assert_eq!(token.0, number as u64);
                    prop_assert!(sent != len || wrong_tag, "{}", error);
                }
                Event::Down { .. } | Event::Returned(_) | Event::Waiting(_) | Event::Warning(_) => prop_assert!(false),
            }
        }
    }

    /// However the stream is cut: receives that do not fit are returned in order, and the message that they met is
    /// whole.
    #[test]
    fn receives_that_come_back_cost_nothing(
        cases in proptest::collection::vec((0u64..4, prop_oneof![0usize..100, 0usize..40_000], any::<bool>()), 1..25),
        chunks in proptest::collection::vec(prop_oneof![1usize..50, 1usize..30_000], 1..12),
        posted_ahead in 1usize..8,
        first in 0u64..4,
        budget in prop_oneof![1usize..100, Just(1usize << 20)],
    ) {
        const ON: Channel = Channel { peer: 3, index: 5 };
        let (mut there, here) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        here.set_nonblocking(true).unwrap();
        there.set_nonblocking(true).unwrap();
        let mut stream = Vec::new();
        for (number, &(tag, len, _)) in cases.iter().enumerate() {
            stream.extend(Header { tag, len: len as u64, sequence: number as u32, striped: false }.encode());
            stream.extend(payload(number, len));
        }
        let mut targets: Vec<Vec<u8>> =
            cases.iter().map(|&(_, len, eaten)| if eaten { Vec::new() } else { vec![0; len] }).collect();
        let pieces: Vec<[Piece; 1]> =
            targets.iter_mut().map(|target| [Piece { ptr: target.as_mut_ptr(), len: target.len() }]).collect();
        let contexts: Vec<*mut ()> = targets.iter_mut().map(|target| std::ptr::from_mut(target).cast()).collect();
        let recv = |number: usize, conditional| {
            let (tag, len, eaten) = cases[number];
            let landing = if eaten {
                Landing::Eat(Eater::new(Consumer { call: collect, context: contexts[number] }))
            } else {
                Landing::Place(Pieces::new(&pieces[number]).0)
            };
            Recv { token: Token(number as u64), tag, len, landing, conditional }
        };
        // Receives ask for one tag after the other, and meet messages that were sent in another order on the way.
        let mut wanted: VecDeque<usize> = (0..4)
            .flat_map(|i| (0..cases.len()).map(move |number| (i, number)))
            .filter(|&(i, number)| cases[number].0 == (first + i) % 4)
            .map(|(_, number)| number)
            .collect();
        let (mut inbound, mut work, mut events) = (Inbound::default(), Workspace::new(), Vec::new());
        let (mut posted, mut done, mut sent, mut turn) = (VecDeque::new(), 0, 0, 0);
        while done < cases.len() {
            while posted.len() < posted_ahead && let Some(number) = wanted.pop_front() {
                inbound.queue.push_back(recv(number, true));
                posted.push_back(number);
            }
            let chunk = chunks[turn % chunks.len()].min(stream.len() - sent);
            sent += there.write(&stream[sent..sent + chunk]).unwrap_or(0);
            turn += 1;
            let (_, halt) = inbound.progress(&here, ON, &mut work, budget, turn % 2 == 0, &mut events);
            let corrupt = matches!(halt, Halt::Corrupt(_) | Halt::Closed(_));
            prop_assert!(!corrupt, "{:?}", halt);
            prop_assert!(turn < 2_000_000, "stuck: {:?}", inbound);
            let mut returned = Vec::new();
            for event in events.drain(..) {
                match event {
                    Event::Done(token) => {
                        prop_assert_eq!(Some(token.0 as usize), posted.pop_front());
                        done += 1;
                    }
                    Event::Returned(token) => returned.push(token.0 as usize),
                    Event::Waiting(Envelope { on, tag, len }) => {
                        prop_assert_eq!(on, ON);
                        prop_assert!(posted.drain(..).eq(returned.iter().copied()), "all that are posted, in order");
                        returned.drain(..).rev().for_each(|number| wanted.push_front(number));
                        let at = wanted.iter().position(|&number| cases[number].0 == tag).expect("one is left");
                        let number = wanted.remove(at).expect("just found");
                        prop_assert_eq!(len, cases[number].1 as u64);
                        inbound.queue.push_back(recv(number, false));
                        posted.push_back(number);
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        for (number, &(_, len, _)) in cases.iter().enumerate() {
            prop_assert_eq!(&targets[number], &payload(number, len));
        }
    }
}
