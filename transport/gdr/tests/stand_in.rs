//! The table of a machine, read from a stand-in for libcuda; and from machines that have none.

use std::ffi::OsStr;
use std::path::PathBuf;

use kolo_gdr::{Cuda, DmaBuf, Drivers, Flush, Path, Wish, decide};

/// Beside the test program, where cargo builds examples.
fn stand_in() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    program.ancestors().nth(2).expect("target/debug").join("examples/libfake_libcuda.so")
}

#[test]
fn a_driver_is_asked_and_exports() {
    let cuda = Cuda::open(0, Some(stand_in().as_os_str()), Ok(()));
    assert_eq!(cuda.driver(), Ok(()));
    let plan = decide(Wish::Require, &cuda).expect("not refused");
    assert_eq!((plan.path, plan.flush), (Path::DmaBuf(DmaBuf::Plain), Flush::Driver));
    assert!(cuda.wants_pcie() && cuda.exports(DmaBuf::Pcie).expect_err("too old").contains("12.8"));

    let range = cuda.export(0x7000_0000_1234, 100, DmaBuf::Plain).expect("a descriptor");
    assert_eq!(range.offset, 0x234);
    let error = cuda.export(0x7000_0000_0000, 4096, DmaBuf::Pcie).expect_err("refused");
    assert_eq!(error, "exporting memory: invalid argument");
    assert_eq!(cuda.flush(), Ok(()));
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
    assert!(missing.flush().is_err() && missing.export(0, 1, DmaBuf::Plain).is_err());

    let second = Cuda::open(1, Some(stand_in().as_os_str()), Ok(()));
    assert_eq!(second.driver(), Err("GPU 1: no such device".to_owned()));
    // Some library, but not this one.
    let other = Cuda::open(0, Some(OsStr::new("libc.so.6")), Ok(()));
    assert_eq!(other.driver(), Err("libc.so.6 has no cuInit".to_owned()));
}
