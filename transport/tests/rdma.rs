//! RDMA beyond the conformance suite: refusals and their reasons, copied data, and registrations. Each test is
//! skipped with the reason if its adapter is missing; see tests/softroce.

use std::time::{Duration, Instant};

use kolo_transport::RegistrationPolicy;
use kolo_transport::rdma::{Keep, RdmaEndpoint, RdmaOptions};
use kolo_transport::{
    Backing, Channel, Consumer, Endpoint, ErrorKind, Event, OnMisfit, Piece, Posted, Reach, Sink, Token,
};

/// Makes two introduced ends; `None`, with the reason printed, if there is no adapter.
fn ends(options: &RdmaOptions) -> Option<[RdmaEndpoint; 2]> {
    let open = |rank| RdmaEndpoint::new(rank, 2, options.clone());
    let mut ends = match (open(0), open(1)) {
        (Ok(first), Ok(second)) => [first, second],
        (Err(error), _) | (_, Err(error)) => {
            assert!(std::env::var_os("KOLO_REQUIRE_RDMA").is_none(), "RDMA is required: {error}");
            println!("skipped: {error}");
            return None;
        }
    };
    for rank in 0..2 {
        let address = ends[1 - rank].address().to_vec();
        let reach = ends[rank].introduce(1 - rank as u32, &address).expect("introduce");
        assert!(matches!(reach, Reach::Yes { .. }), "{reach:?}");
    }
    Some(ends)
}

fn finish(ends: &mut [RdmaEndpoint; 2], mut open: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut events = Vec::new();
    while open > 0 {
        assert!(Instant::now() < deadline, "stuck");
        for end in &mut *ends {
            end.poll(&mut events);
        }
        for event in events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
            open -= 1;
        }
    }
}

/// Sends one buffer into the other.
fn transfer(ends: &mut [RdmaEndpoint; 2], from: &mut [u8], to: &mut [u8]) {
    let source = [Piece { ptr: from.as_mut_ptr(), len: from.len() }];
    let target = [Piece { ptr: to.as_mut_ptr(), len: to.len() }];
    // SAFETY: both buffers outlive `finish`, which sees both tokens complete.
    let posted = unsafe {
        [
            ends[1]
                .post_recv(Channel { peer: 0, index: 0 }, 7, Sink::Place(&target), OnMisfit::Fail, Token(1))
                .expect("receive"),
            ends[0].post_send(Channel { peer: 1, index: 0 }, 7, &source, Token(0)).expect("send"),
        ]
    };
    finish(ends, posted.iter().filter(|posted| **posted == Posted::Pending).count());
}

fn refusal(options: RdmaOptions) -> String {
    match RdmaEndpoint::new(0, 2, options) {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_missing_library_says_which_and_what_to_install() {
    let text = refusal(RdmaOptions { library: Some("libnothing-ibverbs.so.1".into()), ..Default::default() });
    assert!(text.contains("libnothing-ibverbs.so.1") && text.contains("ibverbs-providers"), "{text}");
}

#[test]
fn an_adapter_that_is_not_there_says_which_are() {
    if ends(&RdmaOptions::default()).is_none() {
        return;
    }
    let text = refusal(RdmaOptions { adapters: Some("=mlx5_77".into()), ..Default::default() });
    assert!(text.contains("rxe0 port 1: excluded by KOLO_IB_HCA"), "{text}");
}

#[test]
fn a_wrong_gid_index_says_which_would_do() {
    if ends(&RdmaOptions::default()).is_none() {
        return;
    }
    let text = refusal(RdmaOptions { gid_index: Some(200), ..Default::default() });
    assert!(
        text.contains("GID 200 is empty") && text.contains("KOLO_IB_GID_INDEX may be one of 0 ("),
        "{text}"
    );
}

/// tests/softroce runs this with little lockable memory, with ports down, and without devices. It expects the text
/// that the variable holds.
#[test]
fn what_is_wrong_with_this_machine_is_said() {
    let Ok(expected) = std::env::var("KOLO_EXPECT_REFUSAL") else {
        println!("skipped: KOLO_EXPECT_REFUSAL is not set");
        return;
    };
    let text = refusal(RdmaOptions::default());
    for words in expected.split('|') {
        assert!(text.contains(words), "no '{words}' in: {text}");
    }
}

#[test]
fn long_messages_between_registered_buffers_are_not_copied() {
    let options = RdmaOptions { keep: Keep::Never, ..Default::default() };
    let Some(mut ends) = ends(&options) else { return };
    let (mut from, mut to) = (vec![7u8; 3 << 20], vec![0u8; 3 << 20]);
    for (end, memory) in ends.iter_mut().zip([&mut from, &mut to]) {
        let piece = Piece { ptr: memory.as_mut_ptr(), len: memory.len() };
        assert!(!end.is_registered(piece));
        // SAFETY: the buffers are deregistered below, before they are dropped.
        unsafe { end.register(piece, Backing::Pages).expect("register") };
        assert!(end.is_registered(piece));
    }
    for _ in 0..4 {
        to.fill(0);
        transfer(&mut ends, &mut from, &mut to);
        assert!(from == to);
    }
    let (sent, received) = (ends[0].counters(), ends[1].counters());
    assert_eq!((sent.sent_in_place_bytes, sent.sent_staged_bytes), (12 << 20, 0));
    assert_eq!((received.received_in_place_bytes, received.received_staged_bytes), (12 << 20, 0));
    assert_eq!((sent.cache.misses, received.cache.misses), (1, 1), "registered once, by hand");
    for (end, memory) in ends.iter_mut().zip([&mut from, &mut to]) {
        let piece = Piece { ptr: memory.as_mut_ptr(), len: memory.len() };
        end.deregister(piece);
        assert!(!end.is_registered(piece));
    }
}

/// The receiver does nothing after it has posted, so each message must find its own memory granted.
#[test]
fn long_messages_with_tags_do_not_wait_for_those_before_them() {
    const BYTES: usize = 64 << 10;
    let Some(mut ends) = ends(&RdmaOptions::default()) else { return };
    let (mut from, mut to) = (vec![7u8; 3 * BYTES], vec![0u8; 3 * BYTES]);
    transfer(&mut ends, &mut from[..8], &mut to[..8]);
    let mut list = |memory: &mut [u8]| [Piece { ptr: memory.as_mut_ptr(), len: memory.len() }];
    let targets: Vec<[Piece; 1]> = to.chunks_mut(BYTES).map(&mut list).collect();
    let sources: Vec<[Piece; 1]> = from.chunks_mut(BYTES).map(&mut list).collect();
    for (at, target) in targets.iter().enumerate() {
        let (tag, token) = (at as u64, Token(10 + at as u64));
        // SAFETY: the list and the buffer outlive `finish`.
        let posted = unsafe {
            ends[1].post_recv(
                Channel { peer: 0, index: 0 },
                tag,
                Sink::Place(target),
                OnMisfit::Return,
                token,
            )
        };
        assert_eq!(posted.expect("receive"), Posted::Pending);
    }
    let mut open = 0;
    for (at, source) in sources.iter().enumerate() {
        // SAFETY: the list and the buffer outlive the loop below.
        let posted =
            unsafe { ends[0].post_send(Channel { peer: 1, index: 0 }, at as u64, source, Token(at as u64)) };
        open += usize::from(posted.expect("send") == Posted::Pending);
    }
    let (deadline, mut events) = (Instant::now() + Duration::from_secs(30), Vec::new());
    while open > 0 {
        assert!(Instant::now() < deadline, "{open} messages wait for the receiver");
        ends[0].poll(&mut events);
        open -=
            events.drain(..).inspect(|event| assert!(matches!(event, Event::Done(_)), "{event:?}")).count();
    }
    finish(&mut ends, 3);
    assert!(from == to);
}

#[test]
fn a_reduction_reads_what_was_received_where_it_is() {
    unsafe fn count(context: *mut (), _offset: usize, _data: *const u8, len: usize) {
        // SAFETY: the context is the counter below.
        unsafe { *context.cast::<usize>() += len };
    }
    let Some(mut ends) = ends(&RdmaOptions::default()) else { return };
    let (mut from, mut eaten) = (vec![7u8; 1 << 20], 0usize);
    let source = [Piece { ptr: from.as_mut_ptr(), len: from.len() }];
    let consumer = Consumer { call: count, context: (&raw mut eaten).cast() };
    let sink = Sink::Consume { len: source[0].len, consumer };
    // SAFETY: buffer and counter outlive `finish`, which sees both tokens complete.
    unsafe {
        let _ = ends[1]
            .post_recv(Channel { peer: 0, index: 0 }, 7, sink, OnMisfit::Fail, Token(1))
            .expect("receive");
        let _ = ends[0].post_send(Channel { peer: 1, index: 0 }, 7, &source, Token(0)).expect("send");
    }
    finish(&mut ends, 2);
    let received = ends[1].counters();
    assert_eq!(eaten, 1 << 20);
    assert_eq!((received.received_eaten_bytes, received.received_staged_bytes), (1 << 20, 0));
}

#[test]
fn registrations_are_found_again_and_let_go_when_memory_is_unmapped() {
    let Some(mut ends) = ends(&RdmaOptions::default()) else { return };
    if ends[0].registration_policy() != RegistrationPolicy::Watched {
        println!("skipped: registrations are {}", ends[0].registration_policy());
        return;
    }
    const LEN: usize = 2 << 20;
    let map = || memmap(LEN);
    let (mut from, mut to) = (map(), map());
    for value in 1..4u8 {
        from.bytes().fill(value);
        transfer(&mut ends, from.bytes(), to.bytes());
        assert!(to.bytes().iter().all(|byte| *byte == value));
    }
    let before = ends[0].counters().cache;
    assert_eq!(before.misses, 1, "{before:?}");
    assert!(before.hits >= 2, "{before:?}");
    // The memory is unmapped, and other pages are mapped at the same address, as an allocator may do.
    let address = from.start;
    drop(from);
    let mut from = memmap_at(address, LEN);
    from.bytes().fill(9);
    transfer(&mut ends, from.bytes(), to.bytes());
    assert!(to.bytes().iter().all(|byte| *byte == 9), "the old pages were sent");
    let after = ends[0].counters().cache;
    assert!(after.invalidated >= 1 && after.misses == 2, "{after:?}");
}

/// The queue pair fails as when a device gives it up: none of its requests fails first, and all come back flushed.
#[test]
fn a_queue_pair_that_dies_by_itself_is_noticed_and_its_own_rank_named() {
    let Some(mut ends) = ends(&RdmaOptions::default()) else { return };
    let (mut from, mut to) = (vec![7u8; 1 << 20], vec![0u8; 1 << 20]);
    transfer(&mut ends, &mut from, &mut to);
    let target = [Piece { ptr: to.as_mut_ptr(), len: to.len() }];
    for (rank, end) in ends.iter_mut().enumerate() {
        let on = Channel { peer: 1 - rank as u32, index: 0 };
        // SAFETY: list and buffer are alive until both receives have failed, and no data is sent there.
        let posted =
            unsafe { end.post_recv(on, 7, Sink::Place(&target), OnMisfit::Fail, Token(9)).expect("receive") };
        assert_eq!(posted, Posted::Pending);
    }
    ends[0].sever(1).expect("severed");
    let (began, mut errors, mut events) = (Instant::now(), [None, None], Vec::new());
    while errors.iter().any(Option::is_none) {
        assert!(began.elapsed() < Duration::from_secs(30), "nobody notices: {errors:?}");
        for (end, error) in ends.iter_mut().zip(&mut errors) {
            end.poll(&mut events);
            for event in events.drain(..) {
                if let Event::Failed(Token(9), cause) = event {
                    error.get_or_insert(cause);
                }
            }
        }
    }
    let [here, there] = errors.map(|error| error.expect("as just seen"));
    assert_eq!((here.kind, there.kind), (ErrorKind::Local, ErrorKind::PeerLost), "{here}; {there}");
    assert!(here.to_string().contains("rank 0's queue pair"), "{here}");
}

/// Memory that is unmapped when it is dropped.
struct Map {
    start: *mut u8,
    len: usize,
}

fn memmap(len: usize) -> Map {
    memmap_at(std::ptr::null_mut(), len)
}

fn memmap_at(address: *mut u8, len: usize) -> Map {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let (read_write, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the call maps new memory; the address is only a hint.
    let start =
        unsafe { mmap_anonymous(address.cast(), len, read_write, flags).expect("memory").cast::<u8>() };
    assert!(address.is_null() || start == address, "the place is taken");
    Map { start, len }
}

impl Map {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped and zeroed, and this is the only reference to it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped once, and is unmapped once.
        unsafe { rustix::mm::munmap(self.start.cast(), self.len).expect("munmap") };
    }
}
