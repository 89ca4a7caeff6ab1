//! The tests over a real device, in software or hardware; `tests/softroce` provides one on any machine. Without a
//! device, they are skipped with the reason. `KOLO_REQUIRE_RDMA=1` makes the lack of one a failure.

mod common;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use common::ends::{self, BUFFER_BYTES, connected};
use kolo_verbs::*;

fn device() -> Option<Context> {
    match probe() {
        Probe::Ready(devices) => {
            let report = devices.iter().find(|device| device.trouble.is_none()).unwrap();
            Some(Library::open().unwrap().devices().unwrap().find(&report.name).unwrap().open().unwrap())
        }
        Probe::Absent(absence) => {
            assert!(std::env::var_os("KOLO_REQUIRE_RDMA").is_none(), "{absence}; {}", absence.remedy());
            println!("skipped: {absence}");
            None
        }
    }
}

#[test]
fn transfers_arrive() {
    if let Some(context) = device() {
        println!("{:?}: {:?}", context, context.attributes().unwrap());
        ends::exercise(&context);
    }
}

#[test]
fn a_descriptor_wakes() {
    if let Some(context) = device() {
        ends::wakes(&context);
    }
}

#[test]
fn a_wrong_key_is_refused_and_giving_up_flushes() {
    if let Some(context) = device() {
        ends::refused_access(&context);
        ends::gives_up(&context);
    }
}

#[test]
fn memory_that_may_not_be_locked_is_told() {
    let Some(context) = device() else { return };
    let MemoryLock::Limited { bytes } = MemoryLock::current() else {
        return println!("skipped: this process may lock as much as it likes");
    };
    let domain = context.protection_domain().unwrap();
    let len = usize::try_from(bytes).unwrap() + (1 << 20);
    let error = domain.allocate(len, Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(error, Error::MemoryLock { .. }), "{error}");
}

/// Prints figures of two ends in one process. They do not measure the device, but show that this crate adds no delay.
#[test]
fn figures() {
    let Some(context) = device() else { return };
    let (one, two) = connected(&context, None);

    const ROUNDS: usize = 500;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        one.post_receive(1, &[]);
        two.post_receive(2, &[]);
        one.post(3, Operation::WriteWithImmediate(two.remote(0), 1), &[one.local(0, 8)]);
        while two.completion().kind() != Kind::ReceiveWrite {}
        two.post(4, Operation::WriteWithImmediate(one.remote(0), 1), &[two.local(0, 8)]);
        // The end's own write may complete before or after the peer's write arrives.
        while one.completion().kind() != Kind::ReceiveWrite {}
        rounds.push(start.elapsed());
    }
    rounds.sort();
    println!("write with immediate, 8 bytes, there and back: median {:?}", rounds[ROUNDS / 2]);

    for bytes in [4 << 10, 64 << 10, BUFFER_BYTES] {
        let (one, two) = connected(&context, None);
        let total = 64 << 20;
        let (count, window) = (total / bytes, 16);
        let start = Instant::now();
        for index in 0..count {
            if index >= window {
                one.completion().result().unwrap();
            }
            one.post(index as u64, Operation::Write(two.remote(0)), &[one.local(0, bytes)]);
        }
        for _ in 0..window.min(count) {
            one.completion().result().unwrap();
        }
        let rate = total as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("write, {bytes} bytes, {window} under way: {rate:.0} MB/s");
    }
}

#[test]
fn asking_for_events_does_not_wait_and_dma_buf_support_is_found_out() {
    let Some(context) = device() else { return };
    for _ in 0..100 {
        match context.async_event().unwrap() {
            Some(event) => println!("{event:?}"),
            None => break,
        }
    }
    assert_eq!(context.async_event(), Ok(None));
    let domain = context.protection_domain().unwrap();
    println!("dma-buf: {:?}", domain.dma_buf_support());
    let relaxed = domain.allocate(4096, Access::LOCAL_WRITE | Access::RELAXED_ORDERING).unwrap();
    println!("relaxed ordering: {}", relaxed.region().access().contains(Access::RELAXED_ORDERING));
    let (one, _two) = connected(&context, None);
    println!("{:?}", one.pair.capacity());
}

/// Argument of `UDMABUF_CREATE` of linux/udmabuf.h, which makes a dma-buf of a part of a memory file.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}
const UDMABUF_CREATE: libc::Ioctl = 0x4018_7542;

/// Registers memory as that of a GPU is registered, without an address in this process. Descriptor and file replace
/// the GPU's driver.
#[test]
fn a_dma_buf_is_written_to() {
    const BYTES: usize = 1 << 20;
    let Some(context) = device() else { return };
    let (mut one, two) = connected(&context, None);
    if two.domain.dma_buf_support() != DmaBufSupport::Yes {
        return println!("skipped: this device does not accept dma-bufs");
    }
    let Ok(exporter) = File::options().read(true).write(true).open("/dev/udmabuf") else {
        return println!("skipped: no /dev/udmabuf");
    };
    // SAFETY: the descriptor is new, and owned from here on.
    let memory =
        unsafe { File::from_raw_fd(libc::memfd_create(c"dma-buf".as_ptr(), libc::MFD_ALLOW_SEALING)) };
    memory.set_len(BYTES as u64).unwrap();
    // SAFETY: the call only adds a seal, without which there is no dma-buf.
    assert_eq!(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
    let wanted = UdmabufCreate { memfd: memory.as_raw_fd() as u32, flags: 0, offset: 0, size: BYTES as u64 };
    // SAFETY: the call reads one structure.
    let made = unsafe { libc::ioctl(exporter.as_raw_fd(), UDMABUF_CREATE, &raw const wanted) };
    assert!(made >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and owned from here on.
    let dma_buf = unsafe { File::from_raw_fd(made) };

    // The address belongs to nothing here, and has the offset's position within its page.
    let (offset, address) = (8192, 0x7000_0000_0000);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // SAFETY: the memory belongs to the file, and nobody has mapped it.
    let region = unsafe {
        two.domain.register_dma_buf(dma_buf.as_fd(), offset, BYTES - offset as usize, address, access)
    }
    .unwrap();
    drop(dma_buf);
    let message: Vec<u8> = (0..100_000).map(|index| (index * 7 + index / 256) as u8).collect();
    one.buffer.write(0, &message);
    two.post_receive(1, &[]);
    one.post(2, Operation::WriteWithImmediate(region.remote(4000), 0), &[one.local(0, message.len())]);
    one.completion().result().unwrap();
    two.completion().result().unwrap();
    let mut arrived = vec![0; message.len()];
    memory.read_exact_at(&mut arrived, offset + 4000).unwrap();
    assert!(arrived == message, "not what was sent");
    println!("{} bytes written into a dma-buf", message.len());
}
