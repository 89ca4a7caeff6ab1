//! Tests of the table of a machine, of memory and copies over a stand-in for libcuda, and of machines without a GPU.

use std::ffi::{CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use kolo_gdr::{Copies, Cuda, DmaBuf, Driver, Drivers, Flush, Mode, Owner, Path, decide};

/// Returns the path of the stand-in, which cargo builds beside the test program.
fn stand_in() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    program.ancestors().nth(2).expect("target/debug").join("examples/libfake_libcuda.so")
}

/// Returns a function of the stand-in that tests call directly.
fn function(name: &str) -> *mut c_void {
    function_of(&stand_in(), name)
}

fn function_of(file: &std::path::Path, name: &str) -> *mut c_void {
    let file = CString::new(file.as_os_str().as_bytes()).expect("a name");
    let name = CString::new(name).expect("a name");
    // SAFETY: the strings are terminated; loading the library twice returns the same one.
    let found = unsafe { libc::dlsym(libc::dlopen(file.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

fn allocate(bytes: usize, managed: bool) -> *mut u8 {
    let mut address = 0_u64;
    let code = if managed {
        // SAFETY: this is the stand-in's own function of that type.
        let allocate: extern "C" fn(*mut u64, usize, u32) -> c_int =
            unsafe { std::mem::transmute(function("cuMemAllocManaged")) };
        allocate(&raw mut address, bytes, 1)
    } else {
        // SAFETY: this is the stand-in's own function of that type.
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
    let plan = decide(Mode::Require, &cuda).expect("not refused");
    assert_eq!((plan.path, plan.flush), (Path::DmaBuf(DmaBuf::Plain), Flush::Driver));
    assert!(cuda.wants_pcie() && cuda.exports(DmaBuf::Pcie).expect_err("too old").contains("12.8"));
}

#[test]
fn memory_is_told_apart_and_exported_by_pages() {
    let driver = Driver::load(Some(stand_in().as_os_str())).expect("loads");
    let host = [0_u8; 100];
    // The answer is the same before and after the driver is started.
    assert_eq!(driver.owner(host.as_ptr()), Ok(Owner::Host));
    drop(Cuda::open(0, Some(stand_in().as_os_str()), Ok(())));
    assert_eq!(driver.owner(host.as_ptr()), Ok(Owner::Host));
    let memory = allocate(10_000, false);
    assert_eq!(driver.owner(memory), Ok(Owner::Gpu(0)));
    assert_eq!(driver.owner(memory.wrapping_add(9_999)), Ok(Owner::Gpu(0)));
    assert_eq!(driver.owner(allocate(10, true)), Ok(Owner::Host), "the host reaches managed memory too");

    let gpu = driver.gpu(0).expect("there is one");
    let found = gpu.allocation(memory.wrapping_add(5000)).expect("known");
    assert_eq!((found.start, found.bytes), (memory as u64, 12_288));
    assert_ne!(gpu.allocation(allocate(10_000, false)).expect("known").id, found.id);
    let inside = memory as u64 + 4096 + 0x234;
    match gpu.export(inside, 100, DmaBuf::Plain) {
        Ok(range) => assert_eq!(range.offset, 0x234),
        // The system cannot make dma-bufs.
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
        // Copies that are given up are complete when `settle` returns.
        there.fill(0);
        copies.start([(memory_read, to, 250)], 3).expect("started");
        copies.settle();
        assert!(copies.is_idle() && there == here);
        drop(pins);
    }
}

#[test]
fn adapters_that_take_none_are_a_reason() {
    let cuda = Cuda::open(0, Some(stand_in().as_os_str()), Err("rxe0 does not accept dma-bufs".into()));
    let plan = decide(Mode::Auto, &cuda).expect("not refused");
    assert!(plan.to_string().contains("not dma-buf: rxe0 does not accept dma-bufs"), "{plan}");
}

#[test]
fn no_driver_and_no_such_gpu_are_reasons() {
    let missing = Cuda::open(0, Some(OsStr::new("libnothing-cuda.so.1")), Ok(()));
    let plan = decide(Mode::Auto, &missing).expect("not refused");
    assert_eq!(
        plan.to_string(),
        "staged through pinned host memory; not direct: libnothing-cuda.so.1 cannot be loaded: no GPU driver \
         is installed"
    );
    assert!(decide(Mode::Require, &missing).is_err());
    assert!(Driver::load(Some(OsStr::new("libnothing-cuda.so.1"))).is_err());

    let second = Cuda::open(1, Some(stand_in().as_os_str()), Ok(()));
    assert_eq!(second.driver(), Err("GPU 1: no such device".to_owned()));
    // This is some other library.
    let other = Cuda::open(0, Some(OsStr::new("libc.so.6")), Ok(()));
    assert_eq!(other.driver(), Err("libc.so.6 has no cuInit".to_owned()));
}

/// Returns a copy of the stand-in, for a test that changes its answers: tests run side by side.
fn own_stand_in() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("libown_libcuda.so");
    std::fs::copy(stand_in(), &file).expect("a copy");
    (folder, file)
}

fn set(file: &std::path::Path, what: u32, value: i64) {
    // SAFETY: this is the stand-in's own function of that type.
    let set: extern "C" fn(u32, i64) = unsafe { std::mem::transmute(function_of(file, "fake_set")) };
    set(what, value);
}

#[test]
fn memory_is_the_hosts_unless_the_driver_says_otherwise() {
    let (_folder, file) = own_stand_in();
    let driver = Driver::load(Some(file.as_os_str())).expect("loads");
    let host = [0_u8; 100];
    // No context in this thread, the toolkit's stub, the end of the process, and failed kernels.
    for (times, error) in [201, 34, 4, 700, 719].into_iter().enumerate() {
        set(&file, 1, error);
        let told = driver.owner(host.as_ptr());
        let Ok(Owner::Unknown { words, is_first }) = told else { panic!("{told:?}") };
        assert!(words.contains("whose memory an address is") && is_first == (times == 0), "{words}");
        assert_eq!(driver.unknown_owners(), times as u64 + 1);
        // Memory that the processor cannot reach is an error instead of a crash.
        let told = driver.owner(std::ptr::without_provenance(8));
        assert!(matches!(&told, Err(words) if words.contains("the CPU cannot read it")), "{told:?}");
    }
    set(&file, 1, 0);
    assert_eq!(driver.owner(host.as_ptr()), Ok(Owner::Host));
    assert_eq!(driver.unknown_owners(), 5);
}

#[test]
fn a_driver_without_a_gpu_is_none() {
    let (_folder, file) = own_stand_in();
    let driver = Driver::load(Some(file.as_os_str())).expect("loads");
    if std::path::Path::new("/dev/nvidiactl").exists() {
        println!("skipped: the kernel's driver is loaded here, and the stand-in not asked");
        return;
    }
    set(&file, 2, 1);
    assert_eq!(driver.has_gpus(), Err("starting the GPU driver: no such device".to_owned()));
    set(&file, 2, 0);
    assert_eq!(driver.has_gpus(), Ok(()));
}
