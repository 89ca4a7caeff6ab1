use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::super::port::{OWNER_IS_FULL, OWNER_MAGIC};
use super::super::relay::{RELAY_CALL_BYTES, RELAY_READY, RelayCall};
use super::super::wire::key_of;
use super::*;

/// Returns a listener with a full queue, so that the kernel drops further connections, and the connections in the
/// queue.
fn silent() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let to = listener.local_addr().unwrap();
    let knock = || TcpStream::connect_timeout(&to, Duration::from_millis(200)).ok();
    let queued: Vec<_> = std::iter::from_fn(knock).take(100).collect();
    assert!(queued.len() < 100, "the queue does not fill");
    (listener, queued)
}

fn candidate(listener: &TcpListener) -> Candidate {
    let to = listener.local_addr().unwrap();
    Candidate { to, interface: "lo".into(), distance: 0, from: None }
}

/// Returns a relay that is asked at this time.
fn detour(relay: &TcpListener, at: Instant) -> Detour {
    let call = RelayCall { dialer: 1, acceptor: 2, channel: 0, is_dialer: true };
    Detour { to: relay.local_addr().unwrap(), call, at, until: None }
}

#[test]
fn an_address_that_lets_nobody_connect_delays_the_next_one_less() {
    let (silent, _queued) = silent();
    let open = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let options = TcpOptions::default();
    for (first, wait) in [(&silent, CONNECT_PATIENCE), (&open, options.dial_patience)] {
        let candidates = [first, &open].map(candidate);
        let began = Instant::now();
        let hello = ([0; HELLO_BYTES], key_of(&[7; 16]));
        let mut dial = Dial::new(hello, 1, true, &candidates, began);
        let mut attempts_after = |time| {
            assert!(matches!(dial.step(began + time, &options, |_| {}), Dialed::Waiting));
            (dial.attempts.len(), dial.has_begun_hello())
        };
        attempts_after(Duration::ZERO);
        // The kernel makes the handshake, whatever the time that the dial is told.
        let is_open = std::ptr::eq(first, &raw const open);
        while is_open && !attempts_after(Duration::ZERO).1 {
            assert!(began.elapsed() < Duration::from_secs(20), "no connection");
        }
        assert_eq!(attempts_after(wait - Duration::from_millis(1)).0, 1);
        assert_eq!(attempts_after(wait).0, 2);
    }
}

#[test]
fn an_address_that_hangs_up_is_tried_again_after_a_while() {
    let busy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let candidate = candidate(&busy);
    let (options, mut now) = (TcpOptions::default(), Instant::now());
    let mut dial = Dial::new(([0; HELLO_BYTES], key_of(&[7; 16])), 1, true, &[candidate], now);
    for pause in [20, 80, 320].map(Duration::from_millis) {
        assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
        drop(busy.accept().unwrap());
        let began = Instant::now();
        while !dial.attempts.is_empty() {
            assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
            assert!(began.elapsed() < Duration::from_secs(20), "it notices");
        }
        assert_eq!(dial.due(&options), Some(now + pause));
        now += pause;
    }
    assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
    drop(busy.accept().unwrap());
    let began = Instant::now();
    while !matches!(dial.step(now, &options, |_| {}), Dialed::Failed { by: Failure::Answer, .. }) {
        assert!(began.elapsed() < Duration::from_secs(20), "it gives up");
    }
}

#[test]
fn of_addresses_that_hung_up_the_one_that_is_due_first_is_tried_first() {
    let (options, now) = (TcpOptions::default(), Instant::now());
    let mut dial = Dial::new(([0; HELLO_BYTES], key_of(&[7; 16])), 1, true, &[], now);
    for try_number in [2, 0, 1] {
        let busy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let attempt = Attempt::start(candidate(&busy), try_number, true, now, &options).unwrap();
        dial.attempts.push(attempt);
        drop(busy.accept().unwrap());
        let began = Instant::now();
        while !dial.attempts.is_empty() {
            assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
            assert!(began.elapsed() < Duration::from_secs(20), "it notices");
        }
    }
    let times: Vec<_> = dial.waiting.iter().map(|waiting| waiting.at - now).collect();
    assert_eq!(times, [20, 80, 320].map(Duration::from_millis));
    assert_eq!(dial.due(&options), Some(now + RETRY_AFTER));
}

#[test]
fn an_address_without_room_is_tried_again() {
    for (flags, is_tried_again) in [(OWNER_IS_FULL, true), (0, false)] {
        let full = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (options, now) = (TcpOptions::default(), Instant::now());
        let hello = ([0; HELLO_BYTES], key_of(&[7; 16]));
        let mut dial = Dial::new(hello, 1, true, &[candidate(&full)], now);
        while !dial.has_said_hello() {
            assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
            assert!(now.elapsed() < Duration::from_secs(20), "no connection");
        }
        let (mut stream, _) = full.accept().unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        let mut answer = [0; 64];
        answer[..8].copy_from_slice(&OWNER_MAGIC);
        answer[12..16].copy_from_slice(&flags.to_le_bytes());
        stream.write_all(&answer).unwrap();
        let mut last = Dialed::Waiting;
        while !dial.attempts.is_empty() {
            last = dial.step(now, &options, |_| {});
            assert!(now.elapsed() < Duration::from_secs(20), "it notices");
        }
        assert_eq!(dial.waiting.len(), usize::from(is_tried_again));
        assert_eq!(matches!(last, Dialed::Waiting), is_tried_again, "{last:?}");
    }
}

#[test]
fn a_dial_whose_hello_is_out_waits_for_the_answer_before_it_asks_the_relay() {
    let (late, now) = (TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), Instant::now());
    let (relay, options) = (detour(&late, now + Duration::from_secs(1)), TcpOptions::default());
    let hello = ([0; HELLO_BYTES], key_of(&[7; 16]));
    let mut dial = Dial::new(hello, 1, true, &[candidate(&late)], now).or_by(Some(relay));
    while !dial.has_said_hello() {
        assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
        assert!(now.elapsed() < Duration::from_secs(20), "no connection");
    }
    assert!(matches!(dial.step(now + Duration::from_secs(2), &options, |_| {}), Dialed::Waiting));
    let much_later = now + options.dial_timeout;
    assert_eq!((dial.attempts.len(), dial.due(&options)), (1, Some(much_later)));
    // Something else may have taken the hello.
    assert!(matches!(dial.step(much_later, &options, |_| {}), Dialed::Waiting));
    let is_relayed = |attempt: &Attempt| matches!(attempt.course, Course::Relayed { .. });
    assert!(dial.attempts.len() == 2 && is_relayed(&dial.attempts[1]), "beside the first attempt");
}

/// As where a program posts a receive, and computes for seconds before it waits.
#[test]
fn the_addresses_have_their_time_before_the_relay_is_asked_even_if_the_first_step_is_late() {
    let (patience, made_at) = (Duration::from_secs(1), Instant::now());
    let (address, _queued) = silent();
    let relay = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (relay, options) = (detour(&relay, made_at + patience), TcpOptions::default());
    let hello = ([0; HELLO_BYTES], key_of(&[7; 16]));
    let mut dial = Dial::new(hello, 1, true, &[candidate(&address)], made_at).or_by(Some(relay));
    let first = made_at + 3 * patience;
    let is_relayed = |attempt: &Attempt| matches!(attempt.course, Course::Relayed { .. });
    for (now, asks) in [(first, false), (first + patience / 2, false), (first + patience, true)] {
        assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
        assert_eq!(
            (dial.attempts.len(), dial.attempts.iter().any(is_relayed)),
            (1 + usize::from(asks), asks)
        );
    }
}

#[test]
fn a_relay_without_room_is_asked_again_until_the_time_is_over() {
    let (relay, options, began) =
        (TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), TcpOptions::default(), Instant::now());
    let hello = ([5; HELLO_BYTES], key_of(&[7; 16]));
    let dial = || Dial::new(hello.clone(), 1, true, &[], began).or_by(Some(detour(&relay, began)));
    let step_until = |dial: &mut Dial, now, is_done: &dyn Fn(&Dial) -> bool| {
        while !is_done(dial) {
            assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
            assert!(began.elapsed() < Duration::from_secs(20), "it notices");
        }
    };
    // Takes the call of a dial at this time.
    let called = |dial: &mut Dial, now| {
        let is_sent =
            |dial: &Dial| dial.attempts.iter().any(|attempt| attempt.calling().is_some_and(Calling::is_sent));
        step_until(dial, now, &is_sent);
        let (mut stream, _) = relay.accept().unwrap();
        stream.read_exact(&mut [0; RELAY_CALL_BYTES]).unwrap();
        stream
    };
    let (mut met, mut now) = (dial(), began);
    for _ in 0..5 {
        drop(called(&mut met, now));
        step_until(&mut met, now, &|dial| dial.attempts.is_empty());
        let due = met.due(&options).expect("another call");
        assert!(due > now && matches!(met.step(now, &options, |_| {}), Dialed::Waiting));
        now = due;
    }
    let mut stream = called(&mut met, now);
    stream.write_all(&[RELAY_READY]).unwrap();
    step_until(&mut met, now, &Dial::has_said_hello);
    let mut heard = [0; HELLO_BYTES];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard, hello.0);

    let mut alone = dial();
    drop(called(&mut alone, began));
    let late = began + options.dial_timeout;
    while !matches!(alone.step(late, &options, |_| {}), Dialed::Failed { by: Failure::Silence, .. }) {
        assert!(began.elapsed() < Duration::from_secs(20), "it gives up");
    }
}

/// The peer had arrived there, and has not waited for a hello that was late: this rank was stopped meanwhile.
#[test]
fn a_relay_whose_other_end_has_left_is_asked_again_until_the_time_is_over() {
    let (relay, options, began) =
        (TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), TcpOptions::default(), Instant::now());
    let hello = ([5; HELLO_BYTES], key_of(&[7; 16]));
    let mut dial = Dial::new(hello, 1, true, &[], began).or_by(Some(detour(&relay, began)));
    let mut now = began;
    let meet_and_part = |dial: &mut Dial, now| {
        assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
        let (mut stream, _) = relay.accept().unwrap();
        while !dial.attempts.iter().any(|attempt| attempt.calling().is_some_and(Calling::is_sent)) {
            assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
        }
        stream.read_exact(&mut [0; RELAY_CALL_BYTES]).unwrap();
        stream.write_all(&[RELAY_READY]).unwrap();
        drop(stream);
    };
    for _ in 0..RETRIES + 2 {
        meet_and_part(&mut dial, now);
        while !dial.attempts.is_empty() {
            assert!(matches!(dial.step(now, &options, |_| {}), Dialed::Waiting));
            assert!(began.elapsed() < Duration::from_secs(20), "it notices");
        }
        now = dial.due(&options).expect("another call");
    }
    meet_and_part(&mut dial, now);
    let late = began + options.dial_timeout;
    while !matches!(dial.step(late, &options, |_| {}), Dialed::Failed { by: Failure::Silence, .. }) {
        assert!(began.elapsed() < Duration::from_secs(20), "it gives up");
    }
}
