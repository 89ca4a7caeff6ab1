//! Two connected queue pairs of one device in one process, and tests of them.

use std::time::{Duration, Instant};

use kolo_verbs::*;

pub const BUFFER_BYTES: usize = 1 << 20;

/// One end: a queue pair, its completion queue and a buffer.
#[derive(Debug)]
pub struct End {
    pub pair: QueuePair,
    pub queue: CompletionQueue,
    pub buffer: PinnedBuffer,
    pub domain: ProtectionDomain,
    pub address: Address,
    pub path: Path,
}

impl End {
    pub fn new(context: &Context, channel: Option<&CompletionChannel>, remote: Access) -> Self {
        let port = context.port(1).unwrap();
        let gids = context.gids(&port).unwrap();
        let gid = GidEntry::best(&gids).expect("a GID").clone();
        let path = Path {
            port: 1,
            gid_index: gid.index,
            global: true,
            mtu: port.active_mtu.unwrap(),
            traffic_class: 0,
            service_level: 0,
            partition_index: 0,
        };
        let queue = context.completion_queue(256, channel, 42).unwrap();
        let domain = context.protection_domain().unwrap();
        let buffer = domain.allocate(BUFFER_BYTES, Access::LOCAL_WRITE | remote).unwrap();
        let pair = domain
            .queue_pair(&QueuePairSpec {
                send_queue: &queue,
                receive_queue: &queue,
                send_depth: 64,
                receive_depth: 64,
                send_pieces: 2,
                receive_pieces: 2,
                inline_bytes: 32,
            })
            .unwrap();
        let address =
            Address { number: pair.number(), first_packet: 7, lid: port.lid, mtu: path.mtu, gid: gid.gid };
        pair.initialize(&path, remote).unwrap();
        Self { pair, queue, buffer, domain, address, path }
    }

    pub fn connect(&self, peer: &Self) {
        let how = Reliability::default();
        self.pair.connect(&self.path, self.address.first_packet, &peer.address, &how).unwrap();
        assert_eq!(self.pair.query_state().unwrap(), State::ReadyToSend);
    }

    pub fn local(&self, offset: usize, len: usize) -> Local {
        self.buffer.region().local(offset, len)
    }

    pub fn remote(&self, offset: usize) -> Remote {
        self.buffer.region().remote(offset)
    }

    /// Posts a request on pieces of this end's buffer.
    pub fn post(&self, id: u64, operation: Operation, local: &[Local]) {
        let request = Send { id, operation, local, report: Report::Yes, flags: Flags::NONE };
        // SAFETY: the buffer lives as long as the queue pair, and tests touch its pieces only between completions.
        unsafe { self.pair.post_send(&request).unwrap() };
    }

    pub fn post_receive(&self, id: u64, into: &[Local]) {
        // SAFETY: as in `post`.
        unsafe { self.pair.post_receive(id, into).unwrap() };
    }

    /// Returns the next completion, which must come within ten seconds.
    pub fn completion(&self) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut one = [Completion::default()];
        while self.queue.poll(&mut one).unwrap() == 0 {
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
        one[0]
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(offset, &mut bytes);
        bytes
    }
}

/// Makes two connected ends.
pub fn connected(context: &Context, channel: Option<&CompletionChannel>) -> (End, End) {
    let remote = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let ends = (End::new(context, channel, remote), End::new(context, channel, remote));
    ends.0.connect(&ends.1);
    ends.1.connect(&ends.0);
    ends
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 + seed * 7 + index / 251) as u8).collect()
}

/// Tests send and receive, write, write with immediate, read, inline and batches, and compares every byte.
pub fn exercise(context: &Context) {
    let (mut one, mut two) = connected(context, None);

    let message = pattern(1, 10_000);
    one.buffer.write(0, &message);
    two.post_receive(20, &[two.local(100, 6000), two.local(50_000, 6000)]);
    one.post(10, Operation::SendWithImmediate(0xdead_beef), &[one.local(0, 10_000)]);
    let (sent, received) = (one.completion(), two.completion());
    assert_eq!((sent.id(), sent.result(), sent.kind()), (10, Ok(()), Kind::Send));
    assert_eq!((received.id(), received.result(), received.kind()), (20, Ok(()), Kind::Receive));
    assert_eq!((received.bytes(), received.immediate()), (10_000, Some(0xdead_beef)));
    assert_eq!((sent.queue_pair(), received.queue_pair()), (one.pair.number(), two.pair.number()));
    assert_eq!(two.bytes(100, 6000), message[..6000]);
    assert_eq!(two.bytes(50_000, 4000), message[6000..]);

    let block = pattern(2, BUFFER_BYTES);
    two.buffer.write(0, &block);
    two.post(11, Operation::Write(one.remote(0)), &[two.local(0, BUFFER_BYTES)]);
    assert_eq!((two.completion().result(), two.queue.poll(&mut [Completion::default()])), (Ok(()), Ok(0)));
    assert_eq!(one.bytes(0, BUFFER_BYTES), block);

    let block = pattern(3, 5001);
    one.buffer.write(3, &block);
    two.post_receive(21, &[]);
    one.post(12, Operation::WriteWithImmediate(two.remote(777), 5001), &[one.local(3, 5001)]);
    assert_eq!(one.completion().result(), Ok(()));
    let told = two.completion();
    assert_eq!((told.id(), told.kind(), told.immediate()), (21, Kind::ReceiveWrite, Some(5001)));
    assert_eq!(told.bytes(), 5001);
    assert_eq!(two.bytes(777, 5001), block);

    two.buffer.write(0, &pattern(4, 9000));
    one.post(13, Operation::Read(two.remote(0)), &[one.local(500_000, 9000)]);
    let read = one.completion();
    assert_eq!((read.id(), read.kind(), read.result()), (13, Kind::Read, Ok(())));
    assert_eq!(one.bytes(500_000, 9000), pattern(4, 9000));

    // The batch is longer than one hand-over to the device, and only its last request is reported. Its data are
    // inline from memory that is not registered, if the device supports that.
    let word = [0xa5_u8; 8];
    let inline = one.pair.capacity().inline_bytes >= 8;
    let piece = if inline { Local::new(word.as_ptr().addr() as u64, 8, 0) } else { one.local(0, 8) };
    one.buffer.write(0, &word);
    let requests: Vec<Send<'_>> = (0..BATCH_MAX as u64 + 4)
        .map(|index| Send {
            id: 100 + index,
            operation: Operation::Write(two.remote(index as usize * 16)),
            local: std::slice::from_ref(&piece),
            report: if index == BATCH_MAX as u64 + 3 { Report::Yes } else { Report::No },
            flags: if inline { Flags::INLINE } else { Flags::NONE },
        })
        .collect();
    two.buffer.write(0, &[0; 16 * 32]);
    // SAFETY: the data are inline, or in a buffer that lives as long as the queue pair.
    unsafe { one.pair.post_sends(&requests).unwrap() };
    assert_eq!(one.completion().id(), 100 + BATCH_MAX as u64 + 3);
    for index in 0..BATCH_MAX + 4 {
        assert_eq!(two.bytes(index * 16, 16), [[0xa5; 8], [0; 8]].concat(), "write {index}");
    }
}

/// Tests that a completion wakes by descriptor, with the cookie of the queue.
pub fn wakes(context: &Context) {
    let channel = context.completion_channel().unwrap();
    let (one, two) = connected(context, Some(&channel));
    assert_eq!(channel.take_event().unwrap(), None);
    two.queue.request_event(Wake::Any).unwrap();
    two.post_receive(1, &[two.local(0, 64)]);
    one.post(2, Operation::Send, &[one.local(0, 64)]);
    let deadline = Instant::now() + Duration::from_secs(10);
    let cookie = loop {
        if let Some(cookie) = channel.take_event().unwrap() {
            break cookie;
        }
        assert!(Instant::now() < deadline, "no event");
        std::thread::yield_now();
    };
    assert_eq!(cookie, 42);
    assert_eq!(two.completion().id(), 1);
    assert_eq!(one.completion().id(), 2);
}

/// Tests a key that was never given out: the peer refuses it, the initiator is told, and both ends are out of
/// service.
pub fn refused_access(context: &Context) {
    let (one, two) = connected(context, None);
    let nowhere = Remote { address: two.remote(0).address, key: two.remote(0).key ^ 0x5500 };
    one.post(1, Operation::Write(nowhere), &[one.local(0, 64)]);
    let failure = one.completion().result().unwrap_err();
    assert_eq!(failure.status, Status::RemoteAccess);
    assert!(failure.to_string().contains("does not allow access"), "{failure}");
    assert_eq!(one.pair.query_state().unwrap(), State::Error);
    one.post(2, Operation::Send, &[one.local(0, 64)]);
    assert_eq!(one.completion().result().unwrap_err().status, Status::Flushed);
}

/// Tests that posted requests come back flushed when this side gives up.
pub fn gives_up(context: &Context) {
    let (one, _two) = connected(context, None);
    one.post_receive(1, &[one.local(0, 64)]);
    one.post_receive(2, &[one.local(64, 64)]);
    one.pair.fail().unwrap();
    for id in [1, 2] {
        let flushed = one.completion();
        assert_eq!((flushed.id(), flushed.result().unwrap_err().status), (id, Status::Flushed));
    }
    assert_eq!(one.pair.state(), State::Error);
}
