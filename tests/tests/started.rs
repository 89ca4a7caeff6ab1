//! Every collective in its started forms (owned, in a scope and raw), compared with the blocking form.

use std::time::Duration;

use kolo::{Collective, Communicator, DataType, RawCall, RawCallV, ReduceOp, Result};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::bounded;

const SUM: ReduceOp = ReduceOp::Sum;
const RANKS: u32 = 3;

fn everywhere(body: impl Fn(&Communicator, usize) + Send + Sync + Copy + 'static) {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(RANKS, |comm| {
                for count in [0, 1, 700, 50_000] {
                    body(&comm, count);
                }
            })
        });
    }
}

/// Returns `len` numbers of this rank.
fn numbers(comm: &Communicator, len: usize) -> Vec<i64> {
    (0..len as i64).map(|i| (i + 1) * (i64::from(comm.rank()) + 2)).collect()
}

/// Returns a blocking call's result in a buffer of `len` elements.
fn blocking(len: usize, call: impl FnOnce(&mut [i64]) -> Result<()>) -> Vec<i64> {
    let mut output = vec![-1; len];
    call(&mut output).expect("blocking");
    output
}

/// Returns blocks of unequal length: none on rank 1.
fn counts(count: usize) -> [usize; RANKS as usize] {
    [count, 0, 2 * count + 1]
}

/// Returns the elements that rank `from` sends to rank `to`.
fn pair_count(count: usize, from: usize, to: usize) -> usize {
    (count + 3 * from + to) % (count + 2)
}

#[test]
fn owned_forms_give_what_blocking_ones_do() {
    everywhere(|comm, count| {
        let (n, root) = (RANKS as usize, 1);
        let own = numbers(comm, count);
        let at_root = comm.rank() == root;
        let all = numbers(comm, n * count);
        let roots = if at_root { all.clone() } else { Vec::new() };
        // The started calls overlap, and the blocking ones run meanwhile.
        let works = [
            comm.all_reduce_start(own.clone(), SUM),
            comm.broadcast_start(own.clone(), root),
            comm.reduce_start(own.clone(), SUM, root),
            comm.scan_start(own.clone(), SUM),
            comm.exscan_start(own.clone(), SUM),
            comm.all_gather_start(own.clone()),
            comm.gather_start(own.clone(), root),
            comm.scatter_start(roots.clone(), count, root),
            comm.reduce_scatter_start(all.clone(), SUM),
            comm.all_to_all_start(all.clone()),
        ];
        let in_place = |call: &dyn Fn(&mut [i64]) -> Result<()>| {
            let mut buffer = own.clone();
            call(&mut buffer).expect("blocking");
            buffer
        };
        let wanted = [
            in_place(&|b| comm.all_reduce(b, SUM)),
            in_place(&|b| comm.broadcast(b, root)),
            in_place(&|b| comm.reduce_in_place(b, SUM, root)),
            in_place(&|b| comm.scan(b, SUM)),
            in_place(&|b| comm.exscan(b, SUM)),
            blocking(n * count, |o| comm.all_gather(&own, o)),
            blocking(if at_root { n * count } else { 0 }, |o| comm.gather(&own, o, root)),
            blocking(count, |o| comm.scatter(&roots, o, root)),
            blocking(count, |o| comm.reduce_scatter(&all, o, SUM)),
            blocking(n * count, |o| comm.all_to_all(&all, o)),
        ];
        for (number, (work, wanted)) in works.into_iter().zip(wanted).enumerate() {
            assert_eq!(
                work.expect("started").wait().expect("done"),
                wanted,
                "call {number}, {count} elements"
            );
        }
        comm.barrier_start().expect("started").wait().expect("done");
    });
}

#[test]
fn owned_v_forms_give_what_blocking_ones_do() {
    everywhere(|comm, count| {
        let (me, root) = (comm.rank() as usize, 2);
        let counts = counts(count);
        let (mine, total) = (counts[me], counts.iter().sum::<usize>());
        let (own, all) = (numbers(comm, mine), numbers(comm, total));
        let at_root = comm.rank() == root;
        let sends: Vec<usize> = (0..3).map(|to| pair_count(count, me, to)).collect();
        let recvs: Vec<usize> = (0..3).map(|from| pair_count(count, from, me)).collect();
        let out = numbers(comm, sends.iter().sum());
        let (root_counts, roots) = if at_root { (&counts[..], all.clone()) } else { (&[][..], Vec::new()) };
        let works = [
            comm.all_gather_v_start(own.clone(), &counts),
            comm.reduce_scatter_v_start(all.clone(), &counts, SUM),
            comm.gather_v_start(own.clone(), root_counts, root),
            comm.scatter_v_start(roots.clone(), root_counts, mine, root),
            comm.all_to_all_v_start(out.clone(), &sends, &recvs),
        ];
        let wanted = [
            blocking(total, |o| comm.all_gather_v(&own, o, &counts)),
            blocking(mine, |o| comm.reduce_scatter_v(&all, o, &counts, SUM)),
            blocking(if at_root { total } else { 0 }, |o| comm.gather_v(&own, o, root_counts, root)),
            blocking(mine, |o| comm.scatter_v(&roots, o, root_counts, root)),
            blocking(recvs.iter().sum(), |o| comm.all_to_all_v(&out, &sends, o, &recvs)),
        ];
        for (number, (work, wanted)) in works.into_iter().zip(wanted).enumerate() {
            assert_eq!(
                work.expect("started").wait().expect("done"),
                wanted,
                "call {number}, {count} elements"
            );
        }
    });
}

#[test]
fn scopes_have_every_collective() {
    everywhere(|comm, count| {
        let (n, root, me) = (RANKS as usize, 0, comm.rank() as usize);
        let at_root = me == 0;
        let (own, all) = (numbers(comm, count), numbers(comm, n * count));
        let uneven = counts(count);
        let (v_own, v_all) = (numbers(comm, uneven[me]), numbers(comm, uneven.iter().sum()));
        let sends: Vec<usize> = (0..3).map(|to| pair_count(count, me, to)).collect();
        let recvs: Vec<usize> = (0..3).map(|from| pair_count(count, from, me)).collect();
        let out = numbers(comm, sends.iter().sum());
        let wanted = [
            blocking(count, |o| comm.scan_into(&own, o, SUM)),
            blocking(if at_root { count } else { 0 }, |o| comm.reduce(&own, o, SUM, root)),
            blocking(if at_root { n * count } else { 0 }, |o| comm.gather(&own, o, root)),
            blocking(count, |o| comm.scatter(&all, o, root)),
            blocking(n * count, |o| comm.all_to_all(&all, o)),
            blocking(v_all.len(), |o| comm.all_gather_v(&v_own, o, &uneven)),
            blocking(uneven[me], |o| comm.reduce_scatter_v(&v_all, o, &uneven, SUM)),
            blocking(if at_root { v_all.len() } else { 0 }, |o| comm.gather_v(&v_own, o, &uneven, root)),
            blocking(uneven[me], |o| comm.scatter_v(&v_all, o, &uneven, root)),
            blocking(recvs.iter().sum(), |o| comm.all_to_all_v(&out, &sends, o, &recvs)),
        ];
        let mut got: Vec<Vec<i64>> = wanted.iter().map(|wanted| vec![-1; wanted.len()]).collect();
        got[0].clone_from(&own);
        let [a, b, c, d, e, f, g, h, i, j] = got.as_mut_slice() else { panic!("ten") };
        comm.scope(|scope| {
            scope.scan(a, SUM)?;
            scope.reduce(&own, b, SUM, root)?;
            scope.gather(&own, c, root)?;
            scope.scatter(&all, d, root)?;
            scope.all_to_all(&all, e)?;
            scope.all_gather_v(&v_own, f, &uneven)?;
            scope.reduce_scatter_v(&v_all, g, &uneven, SUM)?;
            scope.gather_v(&v_own, h, &uneven, root)?;
            scope.scatter_v(&v_all, i, &uneven, root)?;
            scope.all_to_all_v(&out, &sends, j, &recvs)?;
            scope.barrier()
        })
        .expect("all of it");
        assert_eq!(got, wanted, "{count} elements");
    });
}

#[test]
fn raw_v_forms_check_their_lists() {
    everywhere(|comm, count| {
        let counts = counts(count);
        let me = comm.rank() as usize;
        let (own, total) = (numbers(comm, counts[me]), counts.iter().sum::<usize>());
        let mut got = vec![-1; total];
        let call = RawCallV {
            collective: Collective::AllGather,
            input: own.as_ptr().cast(),
            input_counts: &counts[me..=me],
            output: got.as_mut_ptr().cast(),
            output_counts: &counts,
            data_type: DataType::I64,
            op: SUM,
            root: 0,
        };
        // SAFETY: both vectors outlive the work, which is waited for.
        unsafe { comm.start_raw_v(&call).expect("started").wait().expect("done") };
        assert_eq!(got, blocking(total, |o| comm.all_gather_v(&own, o, &counts)));
        let refused = |call: RawCallV<'_>, word: &str| {
            // SAFETY: refused before any memory is touched.
            let error = unsafe { comm.call_raw_v(&call) }.expect_err("makes no sense");
            assert!(
                matches!(error, kolo::Error::Usage { .. }) && error.to_string().contains(word),
                "{error}"
            );
        };
        refused(RawCallV { input_counts: &counts, ..call }, "3 input counts were given, but 1 are needed");
        refused(RawCallV { output_counts: &counts[1..], ..call }, "2 output counts");
        refused(RawCallV { collective: Collective::AllReduce, ..call }, "unequal length");
        refused(RawCallV { collective: Collective::Gather, root: 3, ..call }, "root 3");
        refused(RawCallV { output_counts: &[usize::MAX, 1, 1], ..call }, "addressed");
        refused(RawCallV { input: std::ptr::null(), input_counts: &[5], ..call }, "null");
    });
}

#[test]
fn some_ranks_wait_at_once() {
    everywhere(|comm, count| {
        let mut sums = vec![numbers(comm, count); 4];
        for (i, sum) in sums.iter_mut().enumerate() {
            let data = sum.as_mut_ptr();
            let call = RawCall {
                collective: Collective::AllReduce,
                input: data.cast(),
                output: data.cast(),
                count,
                data_type: DataType::I64,
                op: SUM,
                root: 0,
            };
            // SAFETY: the vector outlives the call, and the work, which is waited for.
            unsafe {
                if i % RANKS as usize == comm.rank() as usize {
                    comm.start_raw_and_wait(&call, Duration::from_secs(60)).expect("done");
                } else {
                    comm.start_raw(&call).expect("started").wait().expect("done");
                }
            }
        }
        let own = numbers(comm, count);
        let wanted = blocking(count, |o| {
            o.copy_from_slice(&own);
            comm.all_reduce(o, SUM)
        });
        assert!(sums.iter().all(|sum| *sum == wanted), "{count} elements");
    });
}
