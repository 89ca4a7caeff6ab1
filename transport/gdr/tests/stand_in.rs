//! The table of a machine, memory and copies, over a stand-in for libcuda; and machines that have none.

use std::ffi::{CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use kolo_gdr::{Copies, Cuda, DmaBuf, Driver, Drivers, Flush, Path, Wish, decide};

/// Beside the test program, where cargo builds examples.
fn stand_in() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    program.ancestors().nth(2).expect("target/debug").join("examples/libfake_libcuda.so")
}

/// A function of the stand-in that tests call for themselves.
fn function(name: &str) -> *mut c_void {
    let file = CString::new(stand_in().as_os_str().as_bytes()).expect("a name");
    let name = CString::new(name).expect("a name");
    // SAFETY: terminated texts; loading it twice gives the same.
    let found = unsafe { libc::dlsym(libc::dlopen(file.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

fn allocate(bytes: usize, managed: bool) -> *mut u8 {
    let mut address = 0_u64;
    let code = if managed {
        // SAFETY: the stand-in's own function of that type.
        let allocate: extern "C" fn(*mut u64, usize, u32) -> c_int =
            unsafe { std::mem::transmute(function("cuMemAllocManaged")) };
        allocate(&raw mut address, bytes, 1)
    } else {
        // SAFETY: as above.
        let allocate: extern "C" fn(*mut u64, usize) -> c_int =
            unsafe { std::mem::transmute(function("cuMemAlloc_v2")) };
        allocate(&raw mut address, bytes)
    };
    assert_eq!(code, 0, "{bytes} bytes");
    std::ptr::with_exposed_provenance_mut(address as usize)
}

#[test]
fn a_driver_is_asked() {
    let cuda = Cuda::open(0, Some(stand_in().as_os_str()), Ok(()));
    assert_eq!(cuda.driver(), Ok(()));
    let plan = decide(Wish::Require, &cuda).expect("not refused");
    assert_eq!((plan.path, plan.flush), (Path::DmaBuf(DmaBuf::Plain), Flush::Driver));
    assert!(cuda.wants_pcie() && cuda.exports(DmaBuf::Pcie).expect_err("too old").contains("12.8"));
}

#[test]
fn memory_is_told_apart_and_exported_by_pages() {
    let driver = Driver::load(Some(stand_in().as_os_str())).expect("loads");
    let host = [0_u8; 100];
    // Whether the driver is started or not.
    assert_eq!(driver.owner(host.as_ptr()), Ok(None));
    drop(Cuda::open(0, Some(stand_in().as_os_str()), Ok(())));
    assert_eq!(driver.owner(host.as_ptr()), Ok(None));
    let memory = allocate(10_000, false);
    assert_eq!(driver.owner(memory), Ok(Some(0)));
    assert_eq!(driver.owner(memory.wrapping_add(9_999)), Ok(Some(0)));
    assert_eq!(driver.owner(allocate(10, true)), Ok(None), "the host reaches managed memory too");

    let gpu = driver.gpu(0).expect("there is one");
    let found = gpu.allocation(memory.wrapping_add(5000)).expect("known");
    assert_eq!((found.start, found.bytes), (memory as u64, 12_288));
    assert_ne!(gpu.allocation(allocate(10_000, false)).expect("known").id, found.id);
    let inside = memory as u64 + 4096 + 0x234;
    match gpu.export(inside, 100, DmaBuf::Plain) {
        Ok(range) => assert_eq!(range.offset, 0x234),
        // Where the system makes no dma-bufs.
        Err(error) => assert_eq!(error, "exporting memory: operation not supported"),
    }
    let error = gpu.export(inside, 100, DmaBuf::Pcie).expect_err("refused");
    assert_eq!(error, "exporting memory: invalid argument");
    assert_eq!(gpu.flush(), Ok(()));
    assert_eq!(driver.gpu(1).expect_err("only one"), "GPU 1: no such device");
}

#[test]
fn copies_are_done_when_their_mark_comes_back() {
    let driver = Driver::load(Some(stand_in().as_os_str())).expect("loads");
    let gpu = driver.gpu(0).expect("there is one");
    let mut copies = Copies::new(&gpu).expect("a stream");
    let memory = allocate(1000, false);
    let mut here: Vec<u8> = (0..=249).collect();
    let mut there = vec![0_u8; 250];
    let (from, to) = (here.as_mut_ptr(), there.as_mut_ptr());
    // SAFETY: for the whole block: the memory outlives the copies.
    unsafe {
        let error = copies.start([(from.cast_const(), memory, 250)], 0).expect_err("not pinned");
        assert!(error.contains("250 bytes") && error.contains("GPU 0"), "{error}");
        let pins = (gpu.pin(from, 250).expect("pinned"), gpu.pin(to, 250).expect("pinned"));
        let memory_read = memory.cast_const();
        copies
            .start([(from.cast_const(), memory, 100), (from.add(100), memory.add(100), 150)], 1)
            .expect("started");
        copies.start([(memory_read, to, 250)], 2).expect("started");
        let mut marks = Vec::new();
        let mut questions = 0;
        while !copies.is_idle() {
            questions += 1;
            if let Some(mark) = copies.poll().expect("no copy fails") {
                assert_eq!(there == here, mark == 2, "after mark {mark}");
                marks.push(mark);
            }
        }
        assert_eq!(marks, [1, 2]);
        assert!(questions > 5, "nothing is done before anybody asks");
        // What is given up is over when that returns.
        there.fill(0);
        copies.start([(memory_read, to, 250)], 3).expect("started");
        copies.settle();
        assert!(copies.is_idle() && there == here);
        drop(pins);
    }
}

#[test]
fn adapters_that_take_none_are_a_reason() {
    let cuda = Cuda::open(0, Some(stand_in().as_os_str()), Err("rxe0 takes no dma-bufs".into()));
    let plan = decide(Wish::Auto, &cuda).expect("not refused");
    assert!(plan.to_string().contains("not dma-buf: rxe0 takes no dma-bufs"), "{plan}");
}

#[test]
fn no_driver_and_no_such_gpu_are_reasons() {
    let missing = Cuda::open(0, Some(OsStr::new("libnothing-cuda.so.1")), Ok(()));
    let plan = decide(Wish::Auto, &missing).expect("not refused");
    assert_eq!(
        plan.to_string(),
        "staged through pinned host memory; not direct: libnothing-cuda.so.1 cannot be loaded: no GPU's driver is \
         installed"
    );
    assert!(decide(Wish::Require, &missing).is_err());
    assert!(Driver::load(Some(OsStr::new("libnothing-cuda.so.1"))).is_err());

    let second = Cuda::open(1, Some(stand_in().as_os_str()), Ok(()));
    assert_eq!(second.driver(), Err("GPU 1: no such device".to_owned()));
    // Some library, but not this one.
    let other = Cuda::open(0, Some(OsStr::new("libc.so.6")), Ok(()));
    assert_eq!(other.driver(), Err("libc.so.6 has no cuInit".to_owned()));
}
