//! Buffers on which no call can work: longer than memory, or with partly overlapping input and output. Every entry
//! point of the runtime refuses them before any data moves, and the communicator keeps working.

use kolo::{Collective, Communicator, DataType, Error, RawCall, RawCallV, RawMessage, ReduceOp, Result};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::bounded;

const RANKS: usize = 3;
const COUNT: usize = 40;

fn refused<T>(what: &str, result: Result<T>, words: &[&str]) {
    let Err(error) = result else { panic!("{what}: accepted, where {words:?} was wanted") };
    assert!(matches!(error, Error::Usage { .. }), "{what}: {error:?}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{what}: not all of {words:?} in: {text}");
}

/// Makes the call through every entry point for raw memory.
fn every_way(comm: &Communicator, call: &RawCall, words: &[&str]) {
    let name = format!("{:?}", call.collective);
    // SAFETY: refused before any memory is touched.
    unsafe {
        refused(&name, comm.call_raw(call), words);
        refused(&name, comm.start_raw(call), words);
        refused(&name, comm.start_raw_and_wait(call, comm.config().timeout), words);
    }
    refused(&name, comm.explain(call), words);
}

/// Returns the bytes of the longer of both buffers.
fn most_bytes() -> usize {
    RANKS * COUNT * 4
}

fn collectives(comm: &Communicator, memory: &mut [i32]) {
    let at = memory.as_mut_ptr().cast::<u8>();
    let call = |collective, input: usize, output: usize| RawCall {
        collective,
        input: at.wrapping_add(input),
        output: at.wrapping_add(output),
        count: COUNT,
        data_type: DataType::I32,
        op: ReduceOp::Sum,
        root: comm.rank(),
    };
    let far = most_bytes();
    for collective in Collective::ALL.into_iter().filter(|collective| *collective != Collective::Barrier) {
        for (input, output) in [(0, 4), (4, 0), (0, COUNT * 4 - 1), (COUNT * 4 - 4, 0)] {
            let (named, other) = (at.wrapping_add(input), at.wrapping_add(output));
            every_way(
                comm,
                &call(collective, input, output),
                &["overlap", &format!("{named:?}"), &format!("{other:?}")],
            );
        }
        let long = RawCall { count: isize::MAX as usize / 4 + 1, ..call(collective, 0, far) };
        every_way(comm, &long, &["more than can be addressed"]);
        if collective.has_block_per_rank() {
            let long = RawCall { count: isize::MAX as usize / 4 - 1, ..call(collective, 0, far) };
            every_way(comm, &long, &["for each rank are more than can be addressed"]);
        }
    }
}

fn blocks_of_unequal_length(comm: &Communicator, memory: &mut [i32]) {
    let at = memory.as_mut_ptr().cast::<u8>();
    let each = [COUNT; RANKS];
    let own = [COUNT];
    let cases: [(Collective, &[usize], &[usize]); 5] = [
        (Collective::AllGather, &own, &each),
        (Collective::ReduceScatter, &each, &own),
        (Collective::Gather, &own, &each),
        (Collective::Scatter, &each, &own),
        (Collective::AllToAll, &each, &each),
    ];
    for (collective, input_counts, output_counts) in cases {
        for offset in [0, 4, COUNT * 4 - 1] {
            let call = RawCallV {
                collective,
                input: at,
                input_counts,
                output: at.wrapping_add(offset),
                output_counts,
                data_type: DataType::I32,
                op: ReduceOp::Sum,
                root: comm.rank(),
            };
            let what = format!("{collective:?}, {offset}");
            // SAFETY: refused before any memory is touched.
            unsafe {
                refused(&what, comm.call_raw_v(&call), &["overlap", "unequal"]);
                refused(&what, comm.start_raw_v(&call), &["overlap", "unequal"]);
            }
        }
    }
}

/// A rank's own block that is not as long in the input as in the output.
fn own_blocks(comm: &Communicator, memory: &mut [i32]) {
    let (input, output) = memory.split_at_mut(RANKS * COUNT + 1);
    let each = [COUNT; RANKS];
    let mut longer = each;
    longer[comm.rank() as usize] += 1;
    let cases: [(Collective, &[usize], &[usize]); 6] = [
        (Collective::AllGather, &[COUNT], &longer),
        (Collective::ReduceScatter, &longer, &[COUNT]),
        (Collective::Gather, &[COUNT], &longer),
        (Collective::Scatter, &longer, &[COUNT]),
        (Collective::AllToAll, &longer, &each),
        (Collective::AllToAll, &each, &longer),
    ];
    for (collective, input_counts, output_counts) in cases {
        let call = RawCallV {
            collective,
            input: input.as_ptr().cast(),
            input_counts,
            output: output.as_mut_ptr().cast(),
            output_counts,
            data_type: DataType::I32,
            op: ReduceOp::Sum,
            root: comm.rank(),
        };
        // SAFETY: refused before any memory is touched.
        unsafe { refused(&format!("{collective:?}"), comm.call_raw_v(&call), &["own block", "elements"]) };
    }
}

fn messages(comm: &Communicator, memory: &mut [i32]) {
    let at = memory.as_mut_ptr().cast::<u8>();
    let (left, right) = ((comm.rank() + 2) % 3, (comm.rank() + 1) % 3);
    let message = |offset: usize, bytes| RawMessage {
        data: at.wrapping_add(offset),
        bytes,
        data_type: DataType::I32,
        tag: 0,
    };
    // SAFETY: refused before any memory is touched.
    unsafe {
        let both = || comm.batch().send_message(message(0, 80), right).recv_message(message(76, 80), left);
        refused("batch", both().run(), &["transfer 0", "transfer 1", "80 bytes", "overlap"]);
        refused("started", both().start(), &["overlap"]);
        let twice = comm
            .batch()
            .send_message(message(800, 80), right)
            .recv_message(message(0, 80), left)
            .send_message(message(400, 80), left)
            .recv_message(message(40, 80), right);
        refused("received twice", twice.run(), &["output of transfer 1", "output of transfer 3", "overlap"]);
        let long = comm.batch().recv_message(message(0, isize::MAX as usize + 1), left);
        refused("long", long.run(), &["more than can be addressed"]);
        refused("long", comm.send_raw_start(&message(0, usize::MAX), left), &["more than can be addressed"]);
        // Memory that is only read may be read twice at once.
        memory.fill(comm.rank() as i32);
        let mut source = 9;
        let fine = comm
            .batch()
            .send_message(message(0, 80), right)
            .send_message(message(40, 80), right)
            .recv_message(message(200, 80), left)
            .recv_any_message(message(280, 80), &mut source);
        fine.run().expect("sends may share memory");
        assert_eq!((source, memory[50], memory[89]), (left, left as i32, left as i32));
    }
}

/// Buffers that are adjacent, and buffers that are exactly in place, are accepted.
fn neighbours(comm: &Communicator, memory: &mut [i32]) {
    let at = memory.as_mut_ptr();
    let block = |number: usize| at.wrapping_add(number * COUNT);
    let rank = comm.rank() as usize;
    let apart = [(block(0), block(1)), (block(3), block(0))];
    for (input, output) in apart.into_iter().chain([(block(rank), block(0))]) {
        memory.fill(rank as i32 + 1);
        let call = RawCall {
            collective: Collective::AllGather,
            input: input.cast(),
            output: output.cast(),
            count: COUNT,
            data_type: DataType::I32,
            op: ReduceOp::Sum,
            root: 0,
        };
        // SAFETY: both lie in the memory, and nobody else touches it.
        unsafe { comm.call_raw(&call) }.expect("they lie apart, or in place");
        for of in 0..RANKS {
            // SAFETY: as above.
            assert_eq!(unsafe { output.add(of * COUNT).read() }, of as i32 + 1);
        }
    }
}

#[test]
fn memory_that_no_call_can_be_made_on_is_refused() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(RANKS as u32, |comm| {
                let mut memory = vec![0_i32; 3 * RANKS * COUNT];
                collectives(&comm, &mut memory);
                blocks_of_unequal_length(&comm, &mut memory);
                own_blocks(&comm, &mut memory);
                assert!(memory.iter().all(|value| *value == 0), "something was moved");
                messages(&comm, &mut memory);
                neighbours(&comm, &mut memory);
                assert_eq!(comm.recent().len(), 3, "refused calls are not numbered");
            });
        });
    }
}
