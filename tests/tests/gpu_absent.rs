//! A GPU's driver without a GPU behaves as no driver at all. This is a test program of its own, since it removes the
//! stand-in's GPU for the whole process.

use kolo::{Collective, DataType, RawCall, ReduceOp};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::gpu::{Count, count, remove_gpu, with_gpu};

#[test]
fn a_driver_without_a_gpu_changes_nothing() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        println!("skipped: the kernel's driver is loaded here, and the stand-in not asked");
        return;
    }
    remove_gpu();
    let explained = |with_driver: bool| {
        let change = |config| if with_driver { with_gpu(config) } else { config };
        Arrangement::Exchange.run_with(4, change, |comm| {
            let mut memory = vec![comm.rank() as u8; 80 << 20];
            let data = memory.as_mut_ptr();
            let call = |count| RawCall {
                collective: Collective::AllReduce,
                input: data,
                output: data,
                count,
                data_type: DataType::U8,
                op: ReduceOp::Max,
                root: 0,
            };
            // SAFETY: the memory outlives the call.
            unsafe { comm.call_raw(&call(1000)) }.expect("a call");
            [8, 2 << 20, 80 << 20].map(|bytes| comm.explain(&call(bytes)).expect("explained")).concat()
        })
    };
    assert_eq!(explained(true), explained(false));
    assert_eq!(count(Count::Questions), 0, "nobody asks whose memory an address is");
}
