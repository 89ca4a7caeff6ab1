//! An installed GPU driver must not affect calls on host memory: neither their path nor their results, whatever errors
//! it returns.

use std::time::{Duration, Instant};

use kolo::{Collective, Communicator, Config, DataType, RawCall, RawMessage, ReduceOp, Work};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::gpu::{Count, DeviceMemory, answer_with, count, is_stand_in, with_gpu};
use kolo_transport::Unpoisoned;

/// The stand-in's answers apply to the whole process, so tests that change them run one at a time.
static ANSWERS: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn all_reduce(data: *mut u8, bytes: usize) -> RawCall {
    RawCall {
        collective: Collective::AllReduce,
        input: data,
        output: data,
        count: bytes,
        data_type: DataType::U8,
        op: ReduceOp::Max,
        root: 0,
    }
}

fn explained(change: fn(Config) -> Config) -> Vec<String> {
    Arrangement::Exchange.run_with(4, change, |comm| {
        let mut memory = vec![0_u8; 2 << 20];
        let mut text = String::new();
        for bytes in [8, 32 << 10, 512 << 10] {
            text += &comm.explain(&all_reduce(memory.as_mut_ptr(), bytes)).expect("explained");
        }
        text
    })
}

/// Returns the explanations without the limit that they name.
fn ways(texts: &[String]) -> Vec<String> {
    let words = |text: &String| {
        text.split("exchange: ").map(|part| part.split(" (").next().unwrap_or_default().to_owned()).collect()
    };
    texts.iter().flat_map(|text| -> Vec<String> { words(text) }).collect()
}

#[test]
fn calls_on_the_hosts_memory_take_the_way_that_they_take_without_a_gpu() {
    let _one = ANSWERS.lock().unpoisoned();
    let (with, without) = (explained(with_gpu), explained(|config| config));
    assert!(without[0].matches("exchange: ").count() == 3, "{}", without[0]);
    assert_eq!(ways(&with), ways(&without));
}

/// One exchange runs at a time, so calls that wait for their turn need no memory of their own yet.
#[test]
fn memory_for_started_calls_is_bounded_together() {
    const BYTES: usize = 16 << 20;
    const KEPT_BYTES: i64 = 64 << 20;
    let _one = ANSWERS.lock().unpoisoned();
    if !is_stand_in() {
        return;
    }
    Arrangement::Exchange.run_with(2, with_gpu, |comm| {
        let memory = DeviceMemory::new(8 * BYTES);
        let works: Vec<_> = (0..8)
            .map(|number| {
                let call = all_reduce(memory.address().wrapping_add(number * BYTES), BYTES);
                // SAFETY: the memory is kept until all calls have ended.
                unsafe { comm.start_raw(&call) }.expect("started")
            })
            .collect();
        works.into_iter().for_each(|work| work.wait().expect("started"));
        comm.barrier().expect("all have ended");
        let pinned = count(Count::Pinned);
        assert!(pinned > 0 && pinned <= 2 * KEPT_BYTES, "{pinned} bytes are pinned");
        comm.barrier().expect("all have counted");
    });
}

/// Blocking and started calls on GPU and host memory, in all mixtures: ranks meet only if all take the same path,
/// whichever memory each has. As many are started at once as may be in flight together.
#[test]
fn ranks_meet_whosever_memory_their_calls_are_on() {
    let _one = ANSWERS.lock().unpoisoned();
    let brief = |config| with_gpu(config).with(|config| config.timeout = Duration::from_secs(20));
    for bytes in [8, 40_000, 600_001, 3_000_001] {
        Arrangement::Exchange.run_with(3, brief, |comm| {
            let (mut there, mut here, mut works) = (Vec::new(), Vec::new(), Vec::new());
            for turn in 0..16_u32 {
                let memory = vec![(comm.rank() as u8 + 1) * (turn as u8 + 1); bytes];
                there.push(DeviceMemory::holding(&memory));
                here.push(memory);
                let on_gpu = turn >> comm.rank() & 1 != 0;
                let data =
                    if on_gpu { there[turn as usize].address() } else { here[turn as usize].as_mut_ptr() };
                let call = all_reduce(data, bytes);
                if turn & 8 != 0 {
                    // SAFETY: the buffers are kept until all calls have ended.
                    works.push(unsafe { comm.start_raw(&call) }.expect("started"));
                } else {
                    run(&comm, &call, turn & 4 != 0);
                }
                assert_eq!(comm.staging_bytes(), 0, "a plan ran");
            }
            works.into_iter().for_each(|work| work.wait().expect("started"));
            for (turn, (there, here)) in there.iter().zip(&here).enumerate() {
                let on_gpu = turn >> comm.rank() & 1 != 0;
                let got = if on_gpu { there.bytes() } else { here.clone() };
                assert!(got.iter().all(|byte| *byte == 3 * (turn as u8 + 1)), "turn {turn}, {bytes} bytes");
            }
            let counters = comm.gpu_counters();
            assert_eq!((counters.staged_calls, counters.loaded_bytes), (8, 8 * bytes as u64));
            assert_eq!(counters.stored_bytes, counters.loaded_bytes);
        });
    }
    assert!(!is_stand_in() || count(Count::Pinned) == 0, "bytes are still pinned");
}

fn run(comm: &Communicator, call: &RawCall, starts: bool) {
    // SAFETY: the callers keep the buffers until this returns.
    unsafe {
        match starts {
            true => comm.start_raw(call).and_then(Work::wait).expect("started"),
            false => comm.call_raw(call).expect("blocking"),
        }
    }
}

/// No context in this thread, the toolkit's stub library, the end of the process, failed kernels: none of these errors
/// affects a call on host memory.
#[test]
fn errors_of_the_driver_do_not_touch_the_hosts_memory() {
    if !is_stand_in() {
        println!("skipped: a real driver can neither be told to fail nor asked for counts");
        return;
    }
    let _one = ANSWERS.lock().unpoisoned();
    for error in [201, 34, 4, 700, 719] {
        answer_with(error);
        for arrangement in [Arrangement::Exchange, Arrangement::Tcp] {
            arrangement.run_with(2, with_gpu, |comm| {
                let mut memory = vec![comm.rank() as u8 + 1; 10_000];
                run(&comm, &all_reduce(memory.as_mut_ptr(), 10_000), false);
                run(&comm, &all_reduce(memory.as_mut_ptr(), 10_000), true);
                assert!(memory.iter().all(|byte| *byte == 2), "{error}");
                let message =
                    |data: *mut u8| RawMessage { data, bytes: 5000, data_type: DataType::U8, tag: 0 };
                let (from, to) = memory.split_at_mut(5000);
                from.fill(comm.rank() as u8);
                let (from, to) = (message(from.as_mut_ptr()), message(to.as_mut_ptr()));
                let other = 1 - comm.rank();
                // SAFETY: the buffers live as long as the batch.
                let batch = unsafe { comm.batch().send_message(from, other).recv_message(to, other) };
                batch.run().expect("a message");
                assert!(memory[5000..].iter().all(|byte| u32::from(*byte) == other), "{error}");
                assert_eq!(comm.gpu_counters().untold_buffers, 4, "of two calls in place and two messages");
            });
        }
    }
    // No code may read memory that the processor cannot reach: the result is an error that names the driver's, not a
    // crash.
    Arrangement::Exchange.run_with(1, with_gpu, |comm| {
        answer_with(0);
        let memory = DeviceMemory::new(100);
        answer_with(700);
        // SAFETY: the call is refused.
        let refused = unsafe { comm.call_raw(&all_reduce(memory.address(), 100)) }.expect_err("refused");
        let text = refused.to_string();
        assert!(text.contains("illegal memory access") && text.contains("cannot read it"), "{text}");
        answer_with(0);
    });
}

/// The end of a GPU's copy wakes nobody, so the thread that waits looks for it often. Of many calls the quickest counts: it takes less
/// than one of the long sleeps of threads that others wake.
#[test]
fn nobody_sleeps_through_the_end_of_a_copy() {
    let _one = ANSWERS.lock().unpoisoned();
    for arrangement in [Arrangement::Exchange, Arrangement::Shm, Arrangement::Tcp] {
        arrangement.run_with(2, with_gpu, |comm| {
            let memory = DeviceMemory::holding(&[1; 8]);
            for starts in [false, true] {
                let times = (0..100).map(|_| {
                    let began = Instant::now();
                    run(&comm, &all_reduce(memory.address(), 8), starts);
                    began.elapsed()
                });
                let quickest = times.min().expect("some");
                assert!(quickest < Duration::from_millis(4), "{arrangement:?}, {starts}: {quickest:?}");
            }
        });
    }
}

#[test]
fn each_buffer_is_asked_about_once() {
    if !is_stand_in() {
        println!("skipped: a real driver can neither be told to fail nor asked for counts");
        return;
    }
    let _one = ANSWERS.lock().unpoisoned();
    Arrangement::Exchange.run_with(1, with_gpu, |comm| {
        let mut memory = vec![0_u8; 8];
        let before = count(Count::Questions);
        run(&comm, &all_reduce(memory.as_mut_ptr(), 8), false);
        assert_eq!(count(Count::Questions), before + 1);
    });
}
