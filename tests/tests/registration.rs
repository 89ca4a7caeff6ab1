//! Memory registered with a communicator, where nothing needs it and over RDMA (in the guest of tests/softroce;
//! elsewhere skipped with the reason), both ordinary memory of this process and a dma-buf.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};

use kolo::{Cluster, Communicator, Config, Error, MemoryCounters, TransportKind, Transports};
use kolo_tests::arrangement::Arrangement;

const ELEMENTS: usize = 1 << 20;

/// Runs `body` on two ranks over RDMA; if there is none, skips it and prints the reason.
fn over_rdma<R: Send>(body: impl Fn(Communicator) -> R + Sync) -> Option<Vec<R>> {
    let config = Config::default().with(|config| {
        config.transports = Transports::Only(vec![TransportKind::Rdma]);
        // With this setting, only explicit registrations outlive a message.
        config.ib_cache = kolo_transport::rdma::Keep::Never;
    });
    match Cluster::with_config(2, &config, body) {
        Ok(results) => Some(results),
        Err(error) => {
            assert!(std::env::var_os("KOLO_REQUIRE_RDMA").is_none(), "RDMA is required: {error}");
            println!("skipped: {error}");
            None
        }
    }
}

/// Sends the buffer round and reduces it, and checks every element.
fn exercise(comm: &Communicator, buffer: &mut [u32]) {
    for round in 0..3 {
        let value = |at: usize, rank: u32| (at as u32).wrapping_mul(2_654_435_761) ^ (rank << 20) ^ round;
        let rank = comm.rank();
        buffer.iter_mut().enumerate().for_each(|(at, x)| *x = value(at, rank));
        comm.broadcast(buffer, 1).expect("broadcast");
        assert!(buffer.iter().enumerate().all(|(at, x)| *x == value(at, 1)), "broadcast, round {round}");
        buffer.iter_mut().enumerate().for_each(|(at, x)| *x = value(at, rank) >> 1);
        comm.all_reduce(buffer, kolo::ReduceOp::Sum).expect("all_reduce");
        let sum = |at: usize| (value(at, 0) >> 1).wrapping_add(value(at, 1) >> 1);
        assert!(buffer.iter().enumerate().all(|(at, x)| *x == sum(at)), "all_reduce, round {round}");
        match rank {
            0 => comm.send(buffer, 1).expect("send"),
            _ => {
                buffer.fill(0);
                comm.recv(buffer, 0).expect("recv");
            }
        }
        assert!(buffer.iter().enumerate().all(|(at, x)| *x == sum(at)), "recv, round {round}");
    }
}

fn since(comm: &Communicator, before: MemoryCounters) -> (u64, u64, u64, u64) {
    let now = comm.memory_counters();
    (
        now.in_place_bytes - before.in_place_bytes,
        now.staged_bytes - before.staged_bytes,
        now.registrations - before.registrations,
        now.cache_hits - before.cache_hits,
    )
}

#[test]
fn where_nothing_pins_memory_it_says_so() {
    // Between hosts, the transport might be RDMA.
    let no_rdma = |config: Config| match config.transports {
        Transports::Auto => config.with(|config| {
            config.transports = Transports::Only(vec![TransportKind::Shm, TransportKind::Tcp])
        }),
        _ => config,
    };
    for arrangement in [Arrangement::Shm, Arrangement::Tcp, Arrangement::Hosts(1)] {
        arrangement.run_with(2, no_rdma, |comm| {
            let mut registered = comm.register(vec![0_u32; 1000]).expect("register");
            let status = registered.registration().status();
            assert!(!status.is_empty() && status.iter().all(|(_, not)| not.is_some()), "{status:?}");
            assert!(!registered.registration().is_used());
            exercise(&comm, &mut registered);
            assert_eq!(comm.memory_counters(), MemoryCounters::default());
            assert!(
                matches!(comm.register(Vec::<u8>::new()), Err(Error::Usage { .. })),
                "nothing to register"
            );
            let mut elements = [0_u64; 8];
            let used = comm.with_registered(&mut elements, |elements, registration| {
                elements[3] = 7;
                registration.is_used()
            });
            assert!(!used.expect("register"));
            assert_eq!(elements[3], 7);
            assert_eq!(registered.into_inner().len(), 1000);
        });
    }
}

#[test]
fn a_registration_outlives_its_communicator_without_harm() {
    Arrangement::Shm.run(2, |comm| {
        let registered = comm.register(vec![1_u8; 100].into_boxed_slice()).expect("register");
        drop(comm);
        assert_eq!(registered[99], 1);
    });
}

#[test]
fn registered_memory_is_used_without_the_cache() {
    over_rdma(|comm| {
        let mut registered = comm.register(vec![0_u32; ELEMENTS]).expect("register");
        assert_eq!(registered.registration().status(), [("rdma", None)]);
        let before = comm.memory_counters();
        exercise(&comm, &mut registered);
        let (in_place, staged, registrations, hits) = since(&comm, before);
        println!(
            "registered: {in_place} bytes in place, {staged} copied, {registrations} registrations, {hits} hits"
        );
        assert!(in_place > 4 * ELEMENTS as u64 && hits > 0, "{in_place} bytes, {hits} hits");
        assert_eq!((staged, registrations), (0, 0), "bytes copied, registrations");

        // Without its registration, the buffer is registered for each message again.
        let mut buffer = registered.into_inner();
        let before = comm.memory_counters();
        exercise(&comm, &mut buffer);
        let (_, staged, registrations, _) = since(&comm, before);
        assert!(staged == 0 && registrations >= 3, "{staged} bytes copied, {registrations} registrations");
    });
}

/// `UDMABUF_CREATE` of linux/udmabuf.h: a dma-buf of a part of a memory file.
#[repr(C)]
struct Create {
    memory: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

const UDMABUF_CREATE: libc::Ioctl = 0x4018_7542;

/// Memory of this process that is also a dma-buf: like a GPU's, except that the processor can read it.
struct Exported {
    start: *mut u8,
    bytes: usize,
    descriptor: File,
}

impl Exported {
    fn new(bytes: usize) -> std::io::Result<Self> {
        let exporter = File::options().read(true).write(true).open("/dev/udmabuf")?;
        // SAFETY: a constant name; the result is checked, and owned from here on.
        let file = match unsafe { libc::memfd_create(c"exported".as_ptr(), libc::MFD_ALLOW_SEALING) } {
            ..0 => return Err(std::io::Error::last_os_error()),
            // SAFETY: a new descriptor, which nothing else owns.
            file => unsafe { File::from_raw_fd(file) },
        };
        file.set_len(bytes as u64)?;
        // SAFETY: only adds a seal, without which there is no dma-buf.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
        let wanted = Create { memory: file.as_raw_fd() as u32, flags: 0, offset: 0, size: bytes as u64 };
        // SAFETY: reads one structure of the layout that it expects.
        let descriptor = match unsafe { libc::ioctl(exporter.as_raw_fd(), UDMABUF_CREATE, &raw const wanted) }
        {
            ..0 => return Err(std::io::Error::last_os_error()),
            // SAFETY: a new descriptor, which nothing else owns.
            descriptor => unsafe { File::from_raw_fd(descriptor) },
        };
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0)? };
        Ok(Self { start: start.cast(), bytes, descriptor })
    }

    fn elements(&mut self) -> &mut [u32] {
        // SAFETY: mapped, aligned to pages, zeroed by the kernel, and the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes / size_of::<u32>()) }
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        // SAFETY: mapped once, unmapped once.
        unsafe { rustix::mm::munmap(self.start.cast(), self.bytes).expect("munmap") };
    }
}

/// With `KOLO_EXPECT_DMABUF=yes` adapters must take dma-bufs; with `no` they must refuse them.
#[test]
fn collectives_use_memory_that_is_a_dma_buf() {
    let expected = std::env::var("KOLO_EXPECT_DMABUF").ok();
    over_rdma(|comm| {
        let mut memory = match Exported::new(ELEMENTS * size_of::<u32>()) {
            Ok(memory) => memory,
            Err(error) => {
                assert!(expected.is_none(), "no dma-buf: {error}");
                return println!("skipped: /dev/udmabuf: {error}");
            }
        };
        let descriptor = memory.descriptor.try_clone().expect("clone");
        // Registers the middle of the memory, so that the offset matters.
        let offset = 1 << 16;
        let (start, bytes) = (memory.start.wrapping_add(offset), memory.bytes - offset);
        // SAFETY: the registration is dropped before the memory.
        let made = unsafe { comm.register_dma_buf(start, bytes, descriptor.as_fd(), offset as u64) };
        drop(descriptor);
        let registration = match made {
            Ok(registration) => registration,
            Err(error) => {
                println!("refused: {error}");
                assert_ne!(expected.as_deref(), Some("yes"), "{error}");
                let text = error.to_string();
                assert!(text.contains("dma-buf") && text.contains("rxe0"), "{text}");
                // The communicator is unaffected.
                return exercise(&comm, memory.elements());
            }
        };
        assert_ne!(expected.as_deref(), Some("no"), "it was to be refused");
        let before = comm.memory_counters();
        exercise(&comm, &mut memory.elements()[offset / size_of::<u32>()..]);
        let (in_place, staged, registrations, hits) = since(&comm, before);
        println!(
            "dma-buf: {in_place} bytes in place, {staged} copied, {registrations} registrations, {hits} hits"
        );
        assert!(in_place > 3 * ELEMENTS as u64 && hits > 0, "{in_place} bytes, {hits} hits");
        assert_eq!((staged, registrations), (0, 0), "bytes copied, registrations");
        drop(registration);
        exercise(&comm, memory.elements());
    });
}
