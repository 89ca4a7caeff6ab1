//! Striped messages over pairs of sockets, cut anywhere.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use socket2::{Domain, Type};

use super::super::inbound::{Halt, Landing, Recv};
use super::super::link::{Link, State};
use super::*;
use crate::endpoint::{Channel, Consumer, Event, Piece, Token};
use crate::pieces::{Eater, Pieces};

fn pair() -> [Unshared<Socket>; 2] {
    let (near, far) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    [near, far].map(|socket| {
        socket.set_nonblocking(true).unwrap();
        Unshared::new(socket)
    })
}

fn paths(count: usize) -> Vec<Path> {
    let remote = IpAddr::V4(Ipv4Addr::LOCALHOST);
    vec![Path::new(remote, String::new()); count]
}

/// Makes two ends of a channel with this many connections.
fn links(strands: usize) -> [Link; 2] {
    let mut ends = [0, 1].map(|peer| Link::new(Channel { peer, index: 0 }));
    let mut bundles = [0, 0].map(Bundle::new);
    for path in 0..strands {
        for ((end, bundle), socket) in ends.iter_mut().zip(&mut bundles).zip(pair()) {
            if path == 0 {
                end.state = State::Open(socket);
            } else {
                bundle.strands.push(Strand::new(Some(socket), path));
            }
        }
    }
    for (end, bundle) in ends.iter_mut().zip(bundles) {
        end.bundle = Some(Box::new(bundle));
        (end.outbound.stripes, end.inbound.expects_parts) = (true, true);
    }
    ends
}

fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + number * 7) as u8).collect()
}

unsafe fn put(context: *mut (), offset: usize, data: *const u8, len: usize) {
    // SAFETY: the context is a vector of the test that outlives the token and is long enough; the data is as
    // promised.
    unsafe {
        let out = &mut *context.cast::<Vec<u8>>();
        assert!(
            out[offset..offset + len].iter().all(|byte| *byte == 0),
            "bytes of an ordinary message come once"
        );
        std::ptr::copy_nonoverlapping(data, out.as_mut_ptr().add(offset), len);
    }
}

/// Length sent, length expected, whether the tag is wrong, and whether a consumer takes it.
type Case = (usize, usize, bool, bool);

fn case() -> impl Strategy<Value = Case> {
    let len = || prop_oneof![1usize..2000, STRIPED_BYTES - 1..STRIPED_BYTES + 2, STRIPED_BYTES..900_000];
    (len(), len(), 0u8..8, any::<bool>()).prop_map(|(sent, other, fate, eaten)| match fate {
        0 => (sent, other, false, eaten),
        1 => (sent, sent, true, eaten),
        _ => (sent, sent, false, eaten),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// With any number of connections, however far each gets: messages that fit arrive once, whole and in order; a
    /// message that does not fit costs only itself.
    #[test]
    fn messages_in_parts_arrive_whole(
        cases in proptest::collection::vec(case(), 1..8),
        strands in 1usize..4,
        budgets in proptest::collection::vec(prop_oneof![1usize..3000, 10_000usize..400_000], 1..8),
        posted_ahead in 1usize..4,
    ) {
        let [mut near, mut far] = links(strands);
        let sources: Vec<Vec<u8>> = cases.iter().enumerate().map(|(n, case)| payload(n, case.0)).collect();
        let lists: Vec<Vec<Piece>> = sources.iter().map(|source| {
            let (ptr, half) = (source.as_ptr().cast_mut(), source.len() / 3);
            vec![Piece { ptr, len: half }, Piece { ptr: ptr.wrapping_add(half), len: source.len() - half }]
        }).collect();
        for (number, (list, &(len, _, wrong, _))) in lists.iter().zip(&cases).enumerate() {
            let tag = number as u64 + if wrong { 1000 } else { 0 };
            near.outbound.queue.push_back(Send::new(Token(number as u64), tag, len, Pieces::new(list).0));
        }
        let mut targets: Vec<Vec<u8>> = cases.iter().map(|case| vec![0; case.1]).collect();
        let contexts: Vec<*mut ()> = targets.iter_mut().map(|target| std::ptr::from_mut(target).cast()).collect();
        let places: Vec<[Piece; 2]> = targets.iter_mut().map(|target| {
            let (ptr, half) = (target.as_mut_ptr(), target.len() / 2);
            [Piece { ptr, len: half }, Piece { ptr: ptr.wrapping_add(half), len: target.len() - half }]
        }).collect();
        let (mut work, mut ways, mut events, mut sent) = (Workspace::new(), paths(strands), Vec::new(), 0);
        let (mut posted, mut turn) = (0, 0);
        while events.len() < cases.len() {
            while posted < cases.len() && posted < events.len() + posted_ahead {
                let (_, len, _, eaten) = cases[posted];
                let landing = if eaten {
                    Landing::Eat(Eater::new(Consumer { call: put, context: contexts[posted] }))
                } else {
                    Landing::Place(Pieces::new(&places[posted]).0)
                };
                let token = Token(posted as u64);
                far.inbound.queue.push_back(Recv { token, tag: posted as u64, len, landing, conditional: false });
                posted += 1;
            }
            let budget = budgets[turn % budgets.len()];
            turn += 1;
            if !near.outbound.queue.is_empty() {
                let done = |token: Token| {
                    assert_eq!(token, Token(sent), "messages are handed over in order");
                    sent += 1;
                };
                let transmitted = near.transmit(&mut ways, &mut work, budget, done);
                prop_assert!(!matches!(transmitted, Err(Stop::Closed(_))));
            }
            let (_, halt) = far.receive(&mut work, budget, turn % 2 == 0, &mut events);
            prop_assert!(!matches!(halt, Halt::Corrupt(_) | Halt::Closed(_)), "{:?}", halt);
            prop_assert!(turn < 500_000, "stuck: {:?}", far.inbound);
        }
        for (number, (event, &(len, expected, wrong, _))) in events.iter().zip(&cases).enumerate() {
            match event {
                Event::Done(token) => {
                    prop_assert_eq!(token.0, number as u64);
                    prop_assert!(len == expected && !wrong);
                    prop_assert!(targets[number] == payload(number, len), "message {} differs", number);
                }
                Event::Failed(token, _) => {
                    prop_assert_eq!(token.0, number as u64);
                    prop_assert!(len != expected || wrong);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}

/// Returns the receiver's verdict on parts on its first and its second connection, behind the header of a message of
/// 1 MiB.
fn verdict(first: &[Part], second: &[Part]) -> Halt {
    const LEN: usize = 1 << 20;
    let [mut near, mut far] = links(2);
    let mut target = vec![0; LEN];
    let places = [Piece { ptr: target.as_mut_ptr(), len: LEN }];
    let landing = Landing::Place(Pieces::new(&places).0);
    far.inbound.queue.push_back(Recv { token: Token(1), tag: 5, len: LEN, landing, conditional: false });
    let header = Header { tag: 5, len: LEN as u64, sequence: 0, striped: true };
    let State::Open(socket) = &mut near.state else { panic!() };
    socket.write_all(&header.encode()).unwrap();
    for part in first {
        socket
            .write_all(&part.encode())
            .and_then(|()| socket.write_all(&vec![1; part.len.min(1 << 16) as usize]))
            .unwrap();
    }
    let bundle = near.bundle.as_mut().unwrap();
    let socket = bundle.strands[1].socket.as_mut().unwrap();
    for part in second {
        socket.write_all(&part.encode()).unwrap();
    }
    far.receive(&mut Workspace::new(), usize::MAX, true, &mut Vec::new()).1
}

#[test]
fn parts_that_make_no_sense_are_refused() {
    let part = |offset, len, sequence| Part { offset, len, sequence };
    let good = [part(0, 1 << 16, 0)];
    assert!(matches!(verdict(&good, &[part(1 << 16, 1 << 16, 0)]), Halt::Blocked));
    for (bad, why) in [
        (part(0, 1 << 16, 0), "already arrived"),
        (part(64, 64, 0), "already arrived"),
        (part((1 << 20) - 64, 128, 0), "beyond"),
        (part(1 << 40, 64, 0), "beyond"),
        (part((1 << 16) + 1, 63, 0), "beyond"),
        (part(1 << 16, 65, 0), "beyond"),
        (part(1 << 16, 64, u32::MAX), "another message"),
    ] {
        let halt = verdict(&good, &[bad]);
        assert!(matches!(halt, Halt::Corrupt(what) if what.contains(why)), "{bad:?}: {halt:?}");
    }
    // The part of a later message waits. Messages in between may have had no part for this strand.
    for sequence in [1, 2, 7] {
        assert!(matches!(verdict(&good, &[part(0, 64, sequence)]), Halt::Blocked), "{sequence}");
    }
    // On the first connection, the header of that message comes before.
    assert!(matches!(verdict(&[good[0], part(0, 64, 1)], &[]), Halt::Corrupt(_)));
}

/// Sends a message over the first of two connections after the second has been reset, and returns the events and the last
/// halt at the receiver. With `ends_early`, the first ends too, before the message is whole.
fn after_a_reset(ends_early: bool) -> (Vec<Event>, Halt) {
    const LEN: usize = 1 << 20;
    let [mut near, mut far] = links(2);
    // Bytes that nobody reads, such as an answer to a hello, make the end of a connection a reset.
    let mut strand = far.bundle.as_ref().unwrap().strands[1].socket.as_deref().unwrap();
    strand.write_all(b"welcome").unwrap();
    near.bundle.as_mut().unwrap().strands.truncate(1);
    let (source, mut target) = (payload(0, LEN), vec![0; LEN]);
    let list = [Piece { ptr: source.as_ptr().cast_mut(), len: LEN }];
    near.outbound.queue.push_back(Send::new(Token(1), 5, LEN, Pieces::new(&list).0));
    let places = [Piece { ptr: target.as_mut_ptr(), len: LEN }];
    let landing = Landing::Place(Pieces::new(&places).0);
    far.inbound.queue.push_back(Recv { token: Token(1), tag: 5, len: LEN, landing, conditional: false });
    let (mut work, mut ways, mut events) = (Workspace::new(), paths(1), Vec::new());
    loop {
        if !near.outbound.queue.is_empty() && matches!(near.state, State::Open(_)) {
            let _ = near.transmit(&mut ways, &mut work, 100_000, |_| {});
        }
        let (_, halt) = far.receive(&mut work, usize::MAX, true, &mut events);
        if !events.is_empty() || !matches!(halt, Halt::Blocked | Halt::Budget) {
            assert!(events.is_empty() || target == source);
            return (events, halt);
        }
        if ends_early {
            near.state = State::Gone;
        }
    }
}

#[test]
fn a_reset_before_the_first_part_is_the_end_of_one_connection() {
    let (events, halt) = after_a_reset(false);
    assert!(matches!(events[..], [Event::Done(Token(1))]), "{events:?}, {halt:?}");
    let (events, halt) = after_a_reset(true);
    assert!(events.is_empty() && matches!(halt, Halt::Closed(_)), "{events:?}, {halt:?}");
}

/// Resets one of two connections after the second has brought a part of a message of 128 KiB, and returns the receiver's
/// events and its last halt.
fn after_a_part(len: usize, reset: usize) -> (Vec<Event>, Halt) {
    const LEN: usize = STRIPED_BYTES;
    let [mut near, mut far] = links(2);
    let mut target = vec![0; LEN];
    let places = [Piece { ptr: target.as_mut_ptr(), len: LEN }];
    for token in [1, 2].map(Token) {
        let landing = Landing::Place(Pieces::new(&places).0);
        far.inbound.queue.push_back(Recv { token, tag: 5, len: LEN, landing, conditional: false });
    }
    let header = Header { tag: 5, len: LEN as u64, sequence: 0, striped: true };
    let State::Open(first) = &mut near.state else { panic!() };
    first.write_all(&header.encode()).unwrap();
    let mut second = near.bundle.as_ref().unwrap().strands[1].socket.as_deref().unwrap();
    second.write_all(&Part { offset: 0, len: len as u64, sequence: 0 }.encode()).unwrap();
    second.write_all(&vec![1; len]).unwrap();
    let (mut work, mut events) = (Workspace::new(), Vec::new());
    let mut receive =
        |far: &mut Link, events: &mut Vec<Event>| far.receive(&mut work, usize::MAX, true, events).1;
    if len < LEN {
        assert!(matches!(receive(&mut far, &mut events), Halt::Blocked));
    }
    // Bytes that nobody reads make the end of a connection a reset.
    let State::Open(first) = &far.state else { panic!() };
    let mut strand = far.bundle.as_ref().unwrap().strands[reset].socket.as_deref().unwrap_or(first);
    strand.write_all(b"unread").unwrap();
    if reset == 0 {
        near.state = State::Gone;
    } else {
        near.bundle.as_mut().unwrap().strands.truncate(1);
    }
    let halt = receive(&mut far, &mut events);
    (events, halt)
}

#[test]
fn a_reset_after_a_part_is_the_loss_of_the_peer() {
    for reset in [0, 1] {
        let (events, halt) = after_a_part(STRIPED_BYTES / 2, reset);
        assert!(events.is_empty() && matches!(halt, Halt::Closed(Some(_))), "{reset}: {events:?}, {halt:?}");
    }
    // If nothing of this message is missing, the reset concerns the next one.
    let (events, halt) = after_a_part(STRIPED_BYTES, 1);
    assert!(
        matches!(events[..], [Event::Done(Token(1))]) && matches!(halt, Halt::Blocked),
        "{events:?}, {halt:?}"
    );
}

#[test]
fn strands_carry_what_they_are_fast_enough_for() {
    const LEN: usize = 4 << 20;
    let (near, mut far): (Vec<_>, Vec<_>) = (0..2).map(|_| pair()).map(|[near, far]| (near, far)).unzip();
    let mut near = near.into_iter();
    let first = near.next().unwrap();
    let mut bundle = Bundle::new(0);
    bundle.strands.push(Strand::new(near.next(), 1));
    let (mut ways, mut work) = (paths(2), Workspace::new());
    let source = vec![7; LEN];
    let list = [Piece { ptr: source.as_ptr().cast_mut(), len: LEN }];
    let mut buffer = vec![0; 60_000];
    for number in 0..12 {
        let message = Send::new(Token(1), 1, LEN, Pieces::new(&list).0);
        while !bundle.send(&first, &message, number, &mut ways, &mut work, LEN).unwrap().is_over {
            // The first strand is three times as fast as the second.
            for (far, bytes) in far.iter_mut().zip([60_000, 20_000]) {
                let _ = far.read(&mut buffer[..bytes]);
            }
        }
    }
    // No rates are known beforehand, since these are not TCP sockets.
    let [fast, slow] = [ways[0].sent, ways[1].sent];
    assert!(fast > 2 * slow, "{fast} and {slow}");
    assert_eq!(fast + slow, 12 * LEN as u64);
}

#[test]
fn the_end_of_a_message_goes_where_it_is_done_first() {
    assert_eq!(part_len(1 << 20, 0.5, false), 256 << 10);
    assert_eq!(part_len(100 << 10, 0.5, false), PART_BYTES);
    assert_eq!(part_len(50 << 10, 0.5, false), 0, "the other strand is through with it sooner");
    assert_eq!(part_len(50 << 10, 0.5, true), PART_BYTES);
    assert_eq!(part_len(1000, 0.9, true), 1000);
    assert_eq!(part_len(0, 1.0, true), 0);
}

#[test]
fn a_strand_that_carries_only_a_header_forgets_the_longer_message_before() {
    let [mut near, mut far] = links(2);
    let (mut work, mut ways, mut events) = (Workspace::new(), paths(2), Vec::new());
    // Which strand carries the end of the long message depends on its length.
    let long = (0..8).map(|more| (600_000 + more * 50_000, [1.0, 2.0]));
    let both = long.flat_map(|long| [long, (STRIPED_BYTES, [1.0, 1e9])]);
    for (number, (len, rates)) in both.enumerate() {
        ways.iter_mut().zip(rates).for_each(|(way, rate)| way.rate = rate);
        let (source, mut target) = (payload(number, len), vec![0_u8; len]);
        let out = [Piece { ptr: source.as_ptr().cast_mut(), len }];
        let place = [Piece { ptr: target.as_mut_ptr(), len }];
        let (token, tag) = (Token(number as u64), 7);
        near.outbound.queue.push_back(Send::new(token, tag, len, Pieces::new(&out).0));
        let landing = Landing::Place(Pieces::new(&place).0);
        far.inbound.queue.push_back(Recv { token, tag, len, landing, conditional: false });
        while events.len() <= number {
            let transmitted = near.transmit(&mut ways, &mut work, 1 << 20, |_| ());
            assert!(!matches!(transmitted, Err(Stop::Closed(_))));
            far.receive(&mut work, 1 << 20, false, &mut events);
        }
        assert!(target == source, "message {number}");
    }
}
